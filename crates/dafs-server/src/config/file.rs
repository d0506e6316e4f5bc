//! The configuration file as text, and the checks that make a [`Config`] of it.

use super::access_log::{self, AccessLogFile};
use super::export::{self, ExportFile};
use super::importance::{self, ImportanceFile};
use super::kerberos::{self, IdentityFile, KerberosFile};
use super::keys::table;
use super::nfs::NfsFile;
use super::rules;
use super::tls::{self, TlsFile};
use super::units::{Bytes, Milliseconds, Seconds};
use super::{
    CLEAR_PASSWORDS_SENTENCE, Config, DANGER_SENTENCE, Wrong, parse_listen, parse_listen_verbs,
    wrong,
};
use dafs_dat::Wake;
use dafs_engine::{OwnIdentity, SessionLimits};
use dafs_sandbox::Sandbox;
use dafs_tls::NoTransportSecurity;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

table! {
    pub(super) struct ConfigFile {
        /// The addresses where DAFS clients connect, each as `HOST:PORT`. A link-local IPv6 address has its
        /// zone: `[fe80::1%eth0]:20490`. Default: `["127.0.0.1:20490"]`, which this host alone can reach.
        #[serde(default)]
        listen: Vec<String>,
        /// The addresses of RDMA devices of this host where DAFS clients connect. Clients try the address
        /// and the port of their URL, so give both listeners the same ones. Default: none.
        #[serde(default)]
        verbs_listen: Vec<String>,
        /// The address where `dafs --server` and other programs administer the server over HTTP, with the token
        /// in the file `admin-token` of the state directory. Browsers get a page there. With `[tls]` inside TLS;
        /// without it an address of this host alone. Default: none.
        admin_listen: Option<String>,
        /// The address where Prometheus reads counters, at `/metrics`. Default: none.
        metrics_listen: Option<String>,
        /// The least protection of connections to `metrics_listen`: `none`, `tls`, or `mtls` for scrapers
        /// with a certificate that the authorities of `[tls]` vouch for. Default: `none`.
        metrics_transport_security: Option<String>,
        /// The server logs requests that take longer than so many milliseconds: 1 to 3600000. Default:
        /// none are logged.
        slow_operation_ms: Option<Milliseconds>,
        /// Memory in bytes in which exports with `optimistic` show files to clients: 1048576 or more.
        /// Default: 268435456.
        optimistic_memory_bytes: Option<Bytes>,
        /// The seconds for which the server keeps the opens and locks of a silent client: 1 to 3600.
        /// Default: 30.
        lease_time_seconds: Option<Seconds>,
        /// How threads wait for work: `adaptive` polls for a while as long as that pays, `poll` never
        /// sleeps and uses a whole core for each thread, `sleep` never polls. Default: `adaptive`.
        #[serde(default, with = "WakeFile")]
        wake: Wake,
        /// Threads that serve connections: 1 to 256. Default: one for each processor, 4 at most.
        threads: Option<usize>,
        /// Address ranges, such as `192.0.2.0/24`, whose DAFS clients may name the user for whom they act.
        /// Default: none.
        trusted: Option<Vec<String>>,
        /// The file with users and their passwords, which `dafs passwd` writes. Without it, and without
        /// Kerberos or certificates, the server refuses to listen where other hosts reach it.
        password_file: Option<PathBuf>,
        /// The directory for the key of file handles and for other state that outlives the server.
        /// Default: `/var/lib/dafs` for root, `~/.local/state/dafs` for others.
        state_directory: Option<PathBuf>,
        /// A name and a password that the server shows to DAFS clients that ask for its identity.
        server_auth: Option<ServerAuthFile>,
        /// The server asks iWARP peers for a CRC of every segment. Default: false.
        #[serde(default)]
        crc: bool,
        /// The server gives up all files, ports and system calls that it does not need: `required`,
        /// `if possible` or `off`. Default: `if possible` for a server that neither runs as root nor uses
        /// CephFS or GlusterFS, else `off`.
        sandbox: Option<String>,
        /// Admits other hosts without authentication, if the value is exactly the sentence that the
        /// server's message has.
        danger_allow_unauthenticated_remote_clients: Option<String>,
        /// Accepts Kerberos from other hosts over DAFS without encryption, if the value is exactly the
        /// sentence that the server's message has.
        danger_allow_dafs_kerberos_in_clear: Option<String>,
        /// Accepts passwords from other hosts over DAFS without encryption, if the value is exactly the
        /// sentence that the server's message has.
        danger_allow_dafs_passwords_in_clear: Option<String>,
        /// The log of requests in a file. Default: there is none.
        access_log: Option<AccessLogFile>,
        /// Bounds of connections and sessions.
        #[serde(default)]
        limits: LimitsFile,
        /// The NFS front ends. Without an address in `listen` or the other lists the server has none.
        #[serde(default)]
        nfs: NfsFile,
        /// The cluster of this metadata server, for exports with data servers in other processes.
        #[serde(default)]
        cluster: ClusterFile,
        /// The keys of this server for Kerberos. Exports with `krb5`, `krb5i` or `krb5p` need them.
        kerberos: Option<KerberosFile>,
        /// The certificates of this server for TLS. Exports with `transport_security` need them.
        tls: Option<TlsFile>,
        /// The user of a principal of Kerberos, or of a certificate. The first rule that fits decides.
        #[serde(default)]
        identity: Vec<IdentityFile>,
        /// The weight of sessions when all of them want more credits or slots than there are. The first
        /// rule that fits decides, and all conditions of a rule must fit: `user`, `network` and `client`.
        #[serde(default)]
        importance: Vec<ImportanceFile>,
        /// A directory, a part of another file system, or memory that clients see. A server needs at
        /// least one.
        #[serde(default)]
        export: Vec<ExportFile>,
    }
}

/// The wait of reactors, as text.
#[derive(Deserialize)]
#[serde(remote = "Wake", rename_all = "lowercase")]
enum WakeFile {
    Adaptive,
    Poll,
    Sleep,
}

table! {
    struct ServerAuthFile {
        /// The name of the server.
        id: String,
        /// The password, which clients know. It travels in clear text.
        password: String,
    }
}

table! {
    #[derive(Default)]
    struct LimitsFile {
        /// Connections at all front ends together: 1 or more. Default: 16384.
        connections: Option<usize>,
        /// Connections of one address: 1 or more. Default: 1024.
        connections_per_address: Option<usize>,
        /// Requests in flight of one DAFS session: 1 or more. Default: 256.
        credits_per_session: Option<u16>,
        /// Bytes of the longest read or write: 65536 to 67108864. Default: 4194304.
        transfer_bytes: Option<Bytes>,
    }
}

table! {
    #[derive(Default)]
    struct ClusterFile {
        /// The file with the secret that all servers of the cluster share; `dafs cluster init` makes it.
        secret: Option<PathBuf>,
    }
}

impl ConfigFile {
    pub(super) fn check(self, base: &Path, directory: Option<PathBuf>) -> Result<Config, Wrong> {
        let exports = self.export.iter().enumerate();
        let secret = self.cluster.secret.as_ref().map(|path| base.join(path));
        let exports = exports.map(|(index, export)| export.check(index, base, secret.as_deref()));
        let exports = exports.collect::<Result<Vec<_>, _>>()?;
        export::check_names(&exports)?;
        let replaced = directory.is_some();
        let mut config = Config::for_directory(directory.unwrap_or_default());
        if !replaced {
            config.exports = exports;
            config.exports_of_file = true;
        }
        if config.exports.is_empty() {
            return Err(wrong("export", "name at least one: [[export]] with name and path"));
        }
        if !self.listen.is_empty() {
            let parse = |text: &String| parse_listen(text).map_err(|e| wrong("listen", e));
            config.listen = self.listen.iter().map(parse).collect::<Result<_, _>>()?;
        }
        let parse = |text: &String| parse_listen_verbs(text).map_err(|e| wrong("verbs_listen", e));
        config.verbs_listen = self.verbs_listen.iter().map(parse).collect::<Result<_, _>>()?;
        if let Some(text) = &self.metrics_listen {
            config.metrics_listen =
                Some(parse_listen(text).map_err(|e| wrong("metrics_listen", e))?);
        }
        if let Some(text) = &self.metrics_transport_security {
            let wrong_level =
                |error: NoTransportSecurity| wrong("metrics_transport_security", error.to_string());
            config.metrics_transport_security = text.parse().map_err(wrong_level)?;
        }
        if let Some(Milliseconds(ms)) = self.slow_operation_ms {
            if !(1..=3_600_000).contains(&ms) {
                return Err(wrong("slow_operation_ms", "use 1 to 3600000, or leave it out"));
            }
            config.slow_operation = Some(Duration::from_millis(ms));
        }
        config.access_log =
            access_log::check(self.access_log, config.slow_operation.is_some(), base)?;
        if let Some(Bytes(bytes)) = self.optimistic_memory_bytes {
            config.optimistic_memory_bytes = rules::optimistic_bytes(bytes)?;
        }
        if let Some(Seconds(seconds)) = self.lease_time_seconds {
            if !(1..=3600).contains(&seconds) {
                return Err(wrong("lease_time_seconds", "use 1 to 3600"));
            }
            config.lease_time = Duration::from_secs(seconds);
        }
        if let Some(threads) = self.threads {
            if !(1..=256).contains(&threads) {
                return Err(wrong("threads", "use 1 to 256"));
            }
            config.threads = threads;
        }
        if let Some(trusted) = &self.trusted {
            let parse = |text: &String| text.parse().map_err(|e: String| wrong("trusted", e));
            config.auth.trusted = trusted.iter().map(parse).collect::<Result<_, _>>()?;
        }
        if let Some(sentence) = self.danger_allow_unauthenticated_remote_clients {
            if sentence != DANGER_SENTENCE {
                return Err(wrong(
                    "danger_allow_unauthenticated_remote_clients",
                    format!("remove it, or if you mean it write exactly \"{DANGER_SENTENCE}\""),
                ));
            }
            config.auth.allow_unauthenticated_remote_clients = true;
        }
        config.auth.clear_passwords = check_clear_passwords(
            self.danger_allow_dafs_passwords_in_clear.as_deref(),
            self.password_file.is_some(),
        )?;
        config.auth.password_file = self.password_file.map(|path| base.join(path));
        config.state_directory = self.state_directory.map(|path| base.join(path));
        let own = |ServerAuthFile { id, password }| OwnIdentity { id, password };
        config.auth.own_identity = self.server_auth.map(own);
        let sandbox = |text: String| {
            let unknown = |e: String| wrong("sandbox", format!("{text:?} is unknown; {e}"));
            text.parse::<Sandbox>().map_err(unknown)
        };
        config.sandbox = self.sandbox.map(sandbox).transpose()?;
        config.wake = self.wake;
        config.crc = self.crc;
        let exports = config.exports.iter();
        let sentence = self.danger_allow_dafs_kerberos_in_clear.as_deref();
        let in_clear = kerberos::check_clear(sentence, self.kerberos.is_some())?;
        let kerberos = (self.kerberos, in_clear);
        config.kerberos = kerberos::check(kerberos, &self.identity, exports, base)?;
        let metrics = config.metrics_transport_security;
        config.tls = tls::check(self.tls, (config.exports.iter(), metrics), base)?;
        config.admin_listen =
            rules::admin_listen(self.admin_listen.as_deref(), config.tls.is_some())?;
        config.certificate_users =
            kerberos::certificate_users(&self.identity, config.tls.as_ref())?;
        config.importance = importance::check(&self.importance)?;
        self.limits.apply(&mut config.limits)?;
        self.nfs.apply(&mut config.nfs)?;
        let of_nfs = &config.nfs.rdma_verbs_listen;
        if let Some(address) = config.verbs_listen.iter().find(|own| of_nfs.contains(own)) {
            let remedy =
                format!("{address} is in nfs.rdma_verbs_listen too; give one of them another port");
            return Err(wrong("verbs_listen", remedy));
        }
        kerberos::check_domain(&config)?;
        Ok(config)
    }
}

/// Checks the sentence by which an administrator accepts passwords in clear text.
fn check_clear_passwords(sentence: Option<&str>, has_passwords: bool) -> Result<bool, Wrong> {
    let wrong = |remedy: String| Err(wrong("danger_allow_dafs_passwords_in_clear", remedy));
    match sentence {
        None => Ok(false),
        Some(CLEAR_PASSWORDS_SENTENCE) if has_passwords => Ok(true),
        Some(CLEAR_PASSWORDS_SENTENCE) => {
            wrong("leave it out, or write password_file = \"FILE\"".to_owned())
        }
        Some(_) => wrong(format!(
            "remove it, or if you mean it write exactly \"{CLEAR_PASSWORDS_SENTENCE}\""
        )),
    }
}

impl LimitsFile {
    fn apply(&self, limits: &mut SessionLimits) -> Result<(), Wrong> {
        if let Some(connections) = self.connections {
            if connections == 0 {
                return Err(wrong("limits.connections", "use at least 1"));
            }
            limits.connections_max = connections;
        }
        if let Some(connections) = self.connections_per_address {
            if connections == 0 {
                return Err(wrong("limits.connections_per_address", "use at least 1"));
            }
            limits.connections_per_address_max = connections;
        }
        if let Some(credits) = self.credits_per_session {
            if credits == 0 {
                return Err(wrong("limits.credits_per_session", "use at least 1"));
            }
            limits.credits_per_session_max = credits;
            limits.credits_initial = limits.credits_initial.min(credits);
        }
        if let Some(Bytes(bytes)) = self.transfer_bytes {
            let bytes =
                u32::try_from(bytes).ok().filter(|bytes| (65_536..=64 << 20).contains(bytes));
            let outside = || wrong("limits.transfer_bytes", "use 65536 to 67108864");
            limits.transfer_bytes_max = bytes.ok_or_else(outside)?;
        }
        Ok(())
    }
}
