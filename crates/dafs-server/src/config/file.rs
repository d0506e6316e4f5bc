//! The configuration file as text, and the checks that make a [`Config`] of it.

use super::cephfs::CephFile;
use super::gluster::GlusterFile;
use super::importance::{self, ImportanceFile};
use super::kerberos::{self, IdentityFile, KerberosFile};
use super::nfs::NfsFile;
use super::rules;
use super::tls::{self, TlsFile};
use super::{
    CLEAR_PASSWORDS_SENTENCE, Config, DANGER_SENTENCE, DataRdma, ExportConfig, ExportSource,
    NodeConfig, NodePlace, Wrong, parse_listen, parse_listen_nfs, parse_listen_nfs_rdma,
    parse_listen_verbs, wrong,
};
use dafs_dat::Wake;
use dafs_engine::{OwnIdentity, SessionLimits};
use dafs_service::durable::Durability;
use dafs_service::{Admits, ExportOptions, Squash};
use dafs_store::{COPIES_MAX, Cred};
use dafs_tls::NoTransportSecurity;
use serde::Deserialize;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    #[serde(default)]
    listen: Vec<String>,
    #[serde(default)]
    verbs_listen: Vec<String>,
    metrics_listen: Option<String>,
    metrics_transport_security: Option<String>,
    slow_operation_ms: Option<u64>,
    optimistic_memory_bytes: Option<u64>,
    lease_time_seconds: Option<u64>,
    #[serde(default, with = "WakeFile")]
    wake: Wake,
    threads: Option<usize>,
    trusted: Option<Vec<String>>,
    password_file: Option<PathBuf>,
    state_directory: Option<PathBuf>,
    server_auth: Option<ServerAuthFile>,
    #[serde(default)]
    crc: bool,
    sandbox: Option<String>,
    danger_allow_unauthenticated_remote_clients: Option<String>,
    danger_allow_dafs_kerberos_in_clear: Option<String>,
    danger_allow_dafs_passwords_in_clear: Option<String>,
    #[serde(default)]
    limits: LimitsFile,
    #[serde(default)]
    nfs: NfsFile,
    #[serde(default)]
    cluster: ClusterFile,
    kerberos: Option<KerberosFile>,
    tls: Option<TlsFile>,
    #[serde(default)]
    identity: Vec<IdentityFile>,
    #[serde(default)]
    importance: Vec<ImportanceFile>,
    #[serde(default)]
    export: Vec<ExportFile>,
}

/// The wait of reactors, as text.
#[derive(Deserialize)]
#[serde(remote = "Wake", rename_all = "lowercase")]
enum WakeFile {
    Adaptive,
    Poll,
    Sleep,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerAuthFile {
    id: String,
    password: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    connections: Option<usize>,
    connections_per_address: Option<usize>,
    credits_per_session: Option<u16>,
    transfer_bytes: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportFile {
    name: String,
    path: Option<PathBuf>,
    memory_bytes: Option<u64>,
    #[serde(default)]
    read_only: bool,
    squash: Option<String>,
    anonymous_uid: Option<u32>,
    anonymous_gid: Option<u32>,
    networks: Option<Vec<String>>,
    #[serde(alias = "security")]
    sec: Option<Vec<String>>,
    transport_security: Option<String>,
    #[serde(default)]
    unprivileged_ports: bool,
    durable_replies: Option<String>,
    shared_keys: Option<String>,
    optimistic: Option<rules::OptimisticFile>,
    #[serde(default)]
    subtree_check: bool,
    stripe_bytes: Option<u32>,
    copies: Option<usize>,
    #[serde(default)]
    node: Vec<NodeFile>,
    store: Option<String>,
    ceph: Option<CephFile>,
    gluster: Option<GlusterFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFile {
    number: u32,
    path: Option<PathBuf>,
    listen: Option<String>,
    rdma_listen: Option<String>,
    rdma_verbs_listen: Option<String>,
    dafs_listen: Option<String>,
    #[serde(default)]
    dafs_verbs: bool,
    control: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    secret: Option<PathBuf>,
}

/// Bytes of a stripe by default.
const STRIPE_BYTES_DEFAULT: u32 = 1 << 20;

impl ConfigFile {
    pub(super) fn check(self, base: &Path, directory: Option<PathBuf>) -> Result<Config, Wrong> {
        let exports = self.export.iter().enumerate();
        let secret = self.cluster.secret.as_ref().map(|path| base.join(path));
        let exports = exports.map(|(index, export)| export.check(index, base, secret.as_deref()));
        let exports = exports.collect::<Result<Vec<_>, _>>()?;
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
        if let Some(ms) = self.slow_operation_ms {
            if !(1..=3_600_000).contains(&ms) {
                return Err(wrong("slow_operation_ms", "use 1 to 3600000, or leave it out"));
            }
            config.slow_operation = Some(Duration::from_millis(ms));
        }
        if let Some(bytes) = self.optimistic_memory_bytes {
            config.optimistic_memory_bytes = rules::optimistic_bytes(bytes)?;
        }
        if let Some(seconds) = self.lease_time_seconds {
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
        let sandbox =
            self.sandbox.map(|text| text.parse().map_err(|e: String| wrong("sandbox", e)));
        config.sandbox = sandbox.transpose()?;
        config.wake = self.wake;
        config.crc = self.crc;
        let exports = config.exports.iter();
        let sentence = self.danger_allow_dafs_kerberos_in_clear.as_deref();
        let in_clear = kerberos::check_clear(sentence, self.kerberos.is_some())?;
        let kerberos = (self.kerberos, in_clear);
        config.kerberos = kerberos::check(kerberos, &self.identity, exports, base)?;
        let metrics = config.metrics_transport_security;
        config.tls = tls::check(self.tls, (config.exports.iter(), metrics), base)?;
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
        if let Some(bytes) = self.transfer_bytes {
            if !(65_536..=64 << 20).contains(&bytes) {
                return Err(wrong("limits.transfer_bytes", "use 65536 to 67108864"));
            }
            limits.transfer_bytes_max = bytes;
        }
        Ok(())
    }
}

/// Parses the address of a data server that clients get.
pub(super) fn own_address(text: &str) -> Result<SocketAddr, String> {
    match parse_listen_nfs(text) {
        Ok(address) if address.ip().is_unspecified() => {
            Err("listen on the one address that clients use".to_owned())
        }
        parsed => parsed,
    }
}

/// Parses the RDMA addresses of a data server: `rdma_listen` and `rdma_verbs_listen` of its table.
pub(super) fn data_rdma(soft: Option<&str>, verbs: Option<&str>) -> Result<DataRdma, String> {
    let parse = |text| match parse_listen_nfs_rdma(text) {
        Ok(address) if address.ip().is_unspecified() => {
            Err("listen for RDMA on the one address that clients use".to_owned())
        }
        parsed => parsed,
    };
    let rdma =
        DataRdma { soft: soft.map(parse).transpose()?, verbs: verbs.map(parse).transpose()? };
    rdma.check()?;
    Ok(rdma)
}

impl DataRdma {
    /// Checks that clients can use both addresses, and that they can coexist.
    ///
    /// # Errors
    /// The text to write instead.
    pub fn check(&self) -> Result<(), String> {
        match (self.soft, self.verbs) {
            (_, Some(verbs)) if verbs.port() == 0 => {
                Err(format!("{verbs}: name the port, which devices do not choose"))
            }
            (Some(soft), Some(verbs)) if soft == verbs => {
                Err(format!("{verbs} is for RDMA in software too; give one of them another port"))
            }
            _ => Ok(()),
        }
    }
}

/// Parses the address where a data server of another process waits for its metadata server.
pub(super) fn control_address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    match port.parse::<u16>() {
        Ok(_) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no address; write control = \"HOST:PORT\"")),
    }
}

impl NodeFile {
    fn check(
        &self,
        base: &Path,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<NodeConfig, Wrong> {
        let number = self.number;
        let path = match (&self.path, &self.control) {
            (None, Some(control)) if !self.is_open() => {
                let control = control_address(control).map_err(|remedy| wrong("node", remedy))?;
                return Ok(NodeConfig { number, place: NodePlace::Remote(control) });
            }
            (None, Some(_)) => {
                let remedy = "leave listen out: the data server says where clients reach it";
                return Err(wrong("node", remedy.to_owned()));
            }
            (Some(path), None) => base.join(path),
            _ => {
                let remedy = "write path = \"DIRECTORY\", or control = \"HOST:PORT\" for a data \
                              server of another machine";
                return Err(wrong("node", remedy.to_owned()));
            }
        };
        if !path.is_dir() {
            let remedy = format!("{} is no directory; make it first", path.display());
            return Err(wrong("node", remedy));
        }
        let parse = |text: &String| own_address(text).map_err(|remedy| wrong("node", remedy));
        let listen = self.listen.as_ref().map(parse).transpose()?;
        let dafs_listen = self.dafs_listen.as_ref().map(parse).transpose()?;
        let (soft, verbs) = (self.rdma_listen.as_deref(), self.rdma_verbs_listen.as_deref());
        let rdma = data_rdma(soft, verbs).map_err(|remedy| wrong("node", remedy))?;
        if listen.is_none() && self.is_open() {
            let remedy = "name listen too: layouts are given where NFS clients can use them, all of \
                          which can use TCP";
            return Err(wrong("node", remedy.to_owned()));
        }
        let dafs_verbs = self.dafs_verbs;
        if dafs_verbs && dafs_listen.is_none() {
            let remedy = "name dafs_listen too: DAFS clients try the RDMA device of that address";
            return Err(wrong("node", remedy.to_owned()));
        }
        let place = NodePlace::Directory { path, listen, rdma, dafs_listen, dafs_verbs };
        Ok(NodeConfig { number, place })
    }

    /// True if there is any address for clients.
    fn is_open(&self) -> bool {
        let all = [&self.listen, &self.rdma_listen, &self.rdma_verbs_listen, &self.dafs_listen];
        self.dafs_verbs || all.iter().any(|listen| listen.is_some())
    }
}

impl ExportFile {
    fn check(
        &self,
        index: usize,
        base: &Path,
        cluster_secret: Option<&Path>,
    ) -> Result<ExportConfig, Wrong> {
        let wrong = |field: &str, remedy: String| Wrong {
            key: format!("export {:?}: {field}", self.name),
            steps: ["export", &index.to_string(), field].map(str::to_owned).to_vec(),
            remedy,
        };
        let squash = match self.squash.as_deref() {
            None | Some("root") => Squash::Root,
            Some("none") => Squash::None,
            Some("all") => Squash::All,
            Some(_) => return Err(wrong("squash", "use root, none or all".to_owned())),
        };
        let source = match (&self.path, self.memory_bytes) {
            _ if self.store.is_some() || self.ceph.is_some() || self.gluster.is_some() => {
                self.engine(base, cluster_secret, &wrong)?
            }
            (Some(path), None) => {
                let path = base.join(path);
                if !path.is_dir() {
                    let remedy = format!("{} is no directory; make it first", path.display());
                    return Err(wrong("path", remedy));
                }
                self.spread(path, base, cluster_secret, &wrong)?
            }
            (None, Some(bytes_max)) => ExportSource::Memory { bytes_max },
            (Some(_), Some(_)) => {
                return Err(wrong("memory_bytes", "leave it out, or path".to_owned()));
            }
            (None, None) => {
                let remedy = "write path = \"DIRECTORY\", or memory_bytes = N for files in memory";
                return Err(wrong("name", remedy.to_owned()));
            }
        };
        let nobody = ExportOptions::default().anonymous;
        let anonymous = Cred::new(
            self.anonymous_uid.unwrap_or(nobody.uid),
            self.anonymous_gid.unwrap_or(nobody.gid),
        );
        let least = self.transport_security.as_deref();
        let admits = Admits {
            unprivileged_ports: self.unprivileged_ports,
            ..rules::admits(self.networks.as_deref(), self.sec.as_deref(), least, &wrong)?
        };
        let durable_replies = self.durable_replies.as_deref().unwrap_or("off").parse();
        let durable_replies =
            durable_replies.map_err(|remedy: String| wrong("durable_replies", remedy))?;
        let durable = durable_replies != Durability::Off;
        if durable && matches!(source, ExportSource::Striped { .. }) {
            let remedy = "replies for files that are spread over nodes are not kept; use off";
            return Err(wrong("durable_replies", remedy.to_owned()));
        }
        let engine = match source {
            ExportSource::CephFs(_) => Some("CephFS"),
            ExportSource::Gluster(_) => Some("GlusterFS"),
            _ => None,
        };
        if let Some(engine) = engine.filter(|_| durable) {
            let remedy = format!("replies for files of {engine} are not kept; use off");
            return Err(wrong("durable_replies", remedy));
        }
        if durable && matches!(source, ExportSource::Memory { .. }) {
            let remedy = "files in memory do not outlive the server; use off, or path";
            return Err(wrong("durable_replies", remedy.to_owned()));
        }
        let shared_keys = self.shared_keys.as_deref().unwrap_or("advisory").parse();
        let shared_keys = shared_keys.map_err(|remedy: String| wrong("shared_keys", remedy))?;
        let optimistic = rules::optimistic(self.optimistic.as_ref(), &source, &wrong)?;
        let options = ExportOptions {
            read_only: self.read_only,
            squash,
            anonymous,
            admits,
            durable_replies,
            shared_keys,
            optimistic,
        };
        let subtree_check = self.subtree_check;
        if subtree_check && !matches!(source, ExportSource::Directory(_)) {
            let remedy = "only an export with `path` alone has it; leave it out";
            return Err(wrong("subtree_check", remedy.to_owned()));
        }
        Ok(ExportConfig { name: self.name.clone(), source, options, subtree_check })
    }

    /// Returns the source of files that another file system keeps.
    fn engine(
        &self,
        base: &Path,
        cluster_secret: Option<&Path>,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        let (engine, table) = match (self.store.as_deref(), &self.ceph, &self.gluster) {
            (Some("cephfs"), _, None) => ("CephFS", "[export.ceph]"),
            (Some("glusterfs"), None, _) => ("GlusterFS", "[export.gluster]"),
            _ => {
                let remedy = "write \"cephfs\" and perhaps [export.ceph], or \"glusterfs\" and \
                              [export.gluster], or leave it and these out";
                return Err(wrong("store", remedy.to_owned()));
            }
        };
        let other = [
            ("path", self.path.is_some()),
            ("memory_bytes", self.memory_bytes.is_some()),
            ("stripe_bytes", self.stripe_bytes.is_some()),
            ("copies", self.copies.is_some()),
            ("node", !self.node.is_empty()),
        ];
        if let Some((field, _)) = other.iter().find(|(_, is_set)| *is_set) {
            let remedy = format!("leave it out: {engine} keeps the files, and {table} says which");
            return Err(wrong(field, remedy));
        }
        match (engine, &self.gluster) {
            ("GlusterFS", Some(gluster)) => gluster.check(cluster_secret, wrong),
            ("GlusterFS", None) => {
                let remedy = "say which volume: [export.gluster] with volume and servers";
                Err(wrong("store", remedy.to_owned()))
            }
            _ => {
                let ceph = self.ceph.as_ref();
                ceph.unwrap_or(&CephFile::default()).check(base, cluster_secret, wrong)
            }
        }
    }

    /// Returns the source of a directory with all of the files, or with their names.
    fn spread(
        &self,
        path: PathBuf,
        base: &Path,
        cluster_secret: Option<&Path>,
        wrong: &dyn Fn(&str, String) -> Wrong,
    ) -> Result<ExportSource, Wrong> {
        if self.node.is_empty() {
            let fields =
                [("stripe_bytes", self.stripe_bytes.is_some()), ("copies", self.copies.is_some())];
            return match fields.iter().find(|(_, is_set)| *is_set) {
                None => Ok(ExportSource::Directory(path)),
                Some((field, _)) => {
                    let remedy =
                        "leave it out, or name nodes: [[export.node]] with number and path";
                    Err(wrong(field, remedy.to_owned()))
                }
            };
        }
        let bytes = self.stripe_bytes.unwrap_or(STRIPE_BYTES_DEFAULT);
        let unit_bytes = NonZeroU32::new(bytes)
            .filter(|_| (4096..=1 << 30).contains(&bytes) && bytes.is_multiple_of(64))
            .ok_or_else(|| {
                wrong("stripe_bytes", "use 4096 to 1073741824, a multiple of 64".to_owned())
            })?;
        let nodes = self.node.iter().map(|node| node.check(base, wrong));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        for (at, node) in nodes.iter().enumerate() {
            if nodes[..at].iter().any(|other| other.number == node.number) {
                return Err(wrong("node", "give each node its own number".to_owned()));
            }
            let remote = matches!(node.place, NodePlace::Remote(_));
            if remote && nodes[..at].iter().any(|other| other.place == node.place) {
                let remedy = "give each node its own data server: two have the same control";
                return Err(wrong("node", remedy.to_owned()));
            }
        }
        let remote = nodes.iter().any(|node| matches!(node.place, NodePlace::Remote(_)));
        let cluster_secret = cluster_secret.filter(|_| remote).map(Path::to_owned);
        if remote && cluster_secret.is_none() {
            let remedy = "name the secret of the cluster too: [cluster] with secret = \"FILE\"";
            return Err(wrong("node", remedy.to_owned()));
        }
        let copies = self.copies.unwrap_or(1);
        if !(1..=COPIES_MAX.min(nodes.len())).contains(&copies) {
            let remedy = format!("use 1 to {COPIES_MAX}, and no more than there are nodes");
            return Err(wrong("copies", remedy));
        }
        Ok(ExportSource::Striped { path, unit_bytes, copies, nodes, cluster_secret })
    }
}
