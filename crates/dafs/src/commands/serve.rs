//! `dafs serve`: runs a server until a signal ends it.

mod data;
mod take_over;

use crate::cli::{SessionOptions, WakeName};
use crate::failure::Failure;
use crate::limits::COUNTS_SETTLE;
use crate::log::LogOptions;
use crate::log_limit;
use crate::manager::Manager;
use crate::manual::CONFIG_FILE;
use dafs_sandbox::Sandbox;
use dafs_server::{
    Config, ExportSource, Server, StartError, confine_server, explain_start, parse_listen,
    parse_listen_nfs, parse_listen_nfs_rdma, parse_listen_verbs,
};
use dafs_service::durable::Durability;
use dafs_service::{AddressRange, OptimisticReads, SharedKeys, Squash, TransportSecurity};
use dafs_tls::NoTransportSecurity;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use take_over::Events;

/// Serve a directory, or the exports of a configuration file
///
/// Prints "ready URL" on standard output once clients can connect, and logs to standard error.
/// SIGTERM and SIGINT end it in order, a second one at once; SIGHUP reads the configuration file
/// again, and a data server the secret of the cluster; SIGUSR1 logs the server's counters. Without
/// --config or --listen only this host can reach it, on port 20490.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Serve {
    /// The directory to export as the root; instead of the exports of a configuration file
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The server's role: data is a data server, which keeps stripes of files in DIR for the
    /// metadata server that connects to --control (docs/striping.md)
    #[arg(long, value_enum, default_value = "all")]
    role: Role,
    /// For a data server: where the metadata server connects
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen)]
    control: Option<SocketAddr>,
    /// For a data server: the file with the secret of the cluster
    #[arg(long, value_name = "FILE")]
    cluster_secret: Option<PathBuf>,
    /// For a data server of another storage engine: the file that describes the engine
    /// (docs/cephfs.md, docs/glusterfs.md). DIR then only holds its identity
    #[arg(long, value_name = "FILE")]
    engine: Option<PathBuf>,
    /// Where to listen; port 0 picks a free one. May be given several times, for a data server
    /// once: it is the one address that DAFS clients use
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen)]
    listen: Vec<SocketAddr>,
    /// Where DAFS clients connect by an RDMA device of this host: the address of its interface, and
    /// best the port of --listen, which clients try by themselves. Needs libibverbs and librdmacm.
    /// May be given several times; for a data server it is the address of --listen
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen_verbs)]
    verbs: Vec<SocketAddr>,
    /// Where NFS clients connect: NFSv4.1, 4.2 and 3, over TCP. May be given several times
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen_nfs)]
    nfs: Vec<SocketAddr>,
    /// Where NFS clients connect over RDMA: iWARP in software, which the siw driver of Linux
    /// speaks. May be given several times; without it port 20049 of each --nfs address with port
    /// 2049. For a data server once, as the address that its clients use, and there is none without
    /// it
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen_nfs_rdma)]
    nfs_rdma: Vec<SocketAddr>,
    /// Where NFS clients connect over RDMA by a device of this host. Needs libibverbs and
    /// librdmacm. May be given several times, for a data server once
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen_nfs_rdma)]
    nfs_verbs: Vec<SocketAddr>,
    /// Clients of this range may mount, and their claims about user ids are trusted. May be given
    /// several times; without it only this host may
    #[arg(long, value_name = "RANGE")]
    nfs_network: Vec<AddressRange>,
    /// Admit NFS clients with ports from 1024 on, which do not prove a request of root on their
    /// host
    #[arg(long)]
    nfs_unprivileged_ports: bool,
    /// The Kerberos keys of a data server, for exports with krb5, krb5i or krb5p; a server with
    /// exports has them in its configuration file
    #[arg(long, value_name = "FILE")]
    keytab: Option<PathBuf>,
    /// The host in these keys, as in nfs/HOST; else the name of this machine
    #[arg(long, value_name = "HOST", requires = "keytab")]
    keytab_host: Option<String>,
    /// The certificate of a data server for TLS, then those of its issuers, for exports with
    /// transport_security; a server with exports has it in its configuration file
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The key of the certificate
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// The authorities that vouch for clients of a data server, for exports with mtls
    #[arg(long, value_name = "FILE", requires = "certificate")]
    authorities: Option<PathBuf>,
    /// The revocation lists of these authorities
    #[arg(long, value_name = "FILE", requires = "authorities")]
    revocations: Option<PathBuf>,
    /// Where Prometheus reads counters
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen)]
    metrics: Option<SocketAddr>,
    /// The least protection of metrics on the network: none, tls, or mtls for scrapers with a
    /// certificate that the authorities vouch for
    #[arg(long, value_name = "LEVEL", value_parser = parse_transport_security)]
    metrics_transport_security: Option<TransportSecurity>,
    /// Grace period in which NFS clients of the last run reclaim their files and locks; else as
    /// --lease
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    grace: Option<u64>,
    /// A configuration file in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do not map root of trusted clients to another user
    #[arg(long)]
    no_root_squash: bool,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// The failures that replies to changes survive, in exports of one directory: off for none,
    /// crash for the end of the server's process, power for a power failure. A client then learns
    /// the outcome of its request
    #[arg(long, value_name = "WHAT", value_parser = parse_durability)]
    durable_replies: Option<Durability>,
    /// The callers that a share key excludes while its file is open: advisory for opens under
    /// another key, strict also for DAFS and NFS clients without a key
    #[arg(long, value_name = "RULE", value_parser = parse_shared_keys)]
    shared_keys: Option<SharedKeys>,
    /// Show files in memory to clients of this host that connect with optimistic=yes, so that they read
    /// them without requests; with =remote, to clients of other hosts, too, which read them by RDMA
    #[arg(
        long,
        value_name = "CLIENTS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "local",
        value_parser = parse_optimistic
    )]
    optimistic: Option<OptimisticReads>,
    /// Where to keep the key of file handles, so that handles survive a restart
    #[arg(long, value_name = "DIR")]
    state_directory: Option<PathBuf>,
    /// Give up all files, ports and system calls that the server does not need: required,
    /// if-possible or off. Without it, if possible for a server that neither runs as root nor uses
    /// CephFS or GlusterFS (docs/security.md)
    #[arg(long, value_name = "WHAT", value_parser = parse_sandbox)]
    sandbox: Option<Sandbox>,
    /// Take the place of the running server with the same state directory, of the same user, while
    /// clients use it. When this one cannot start, that one goes on
    #[arg(long)]
    take_over: bool,
    /// Threads that serve connections
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Lease period: how long the files of a silent client stay open
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: Option<u64>,
    #[command(flatten)]
    log: LogOptions,
}

/// The role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// A server of files
    All,
    /// A data server
    Data,
}

impl Serve {
    pub(crate) fn run(&self, session: &SessionOptions) -> Result<(), Failure> {
        if let Some(option) = session.client_only() {
            let text = format!("{option} is for clients and means nothing to serve; leave it out");
            return Err(Failure::Usage(text));
        }
        self.log.start(None)?;
        set_umask();
        if self.role == Role::Data {
            return self.run_data(session.wake);
        }
        if self.control.is_some() || self.cluster_secret.is_some() || self.engine.is_some() {
            let text = "--control, --cluster-secret and --engine are for data servers: use --role \
                        data, or leave them out";
            return Err(Failure::Usage(text.to_owned()));
        }
        if self.keytab.is_some() {
            let text = "--keytab is for data servers: write [kerberos] with keytab = \"FILE\" into the \
                        configuration file, or use --role data";
            return Err(Failure::Usage(text.to_owned()));
        }
        if self.certificate.is_some() {
            let text = "--certificate is for data servers: write [tls] with certificate = \"FILE\" and key = \
                        \"FILE\" into the configuration file, or use --role data";
            return Err(Failure::Usage(text.to_owned()));
        }
        let config = self.configuration(session.wake)?;
        // From here on a signal is either handled below or ends the process in order.
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            let status = 128 + signal;
            flag::register_conditional_shutdown(signal, status, again.clone())
                .map_err(|error| Failure::local("cannot handle signals", &error))?;
        }
        let signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])
            .map_err(|error| Failure::local("cannot handle signals", &error))?;
        let manager = Manager::of_process();
        let taking = self.ask_running(&config)?;
        confine_server(&config).map_err(|error| start_failure(&error))?;
        start_trimming()?;
        let events = Events::of(signals)?;
        let server = Self::start(&config, taking, &manager, |server| {
            self.prepare(server, session.wake, &events.sender);
            introduce(server);
            announce(server)
        })?;
        manager.ready(&format!("serving {}", server.url()));
        self.serve(server, (&config, session.wake), events, (&again, &manager))
    }

    fn configuration(&self, wake: Option<WakeName>) -> Result<Config, Failure> {
        let wrong = |error: &dafs_server::ConfigError| Failure::Usage(error.to_string());
        let mut config = match (&self.config, &self.directory) {
            (Some(file), Some(directory)) => {
                Config::load_for_directory(file, directory.clone()).map_err(|e| wrong(&e))?
            }
            (Some(file), None) => Config::load(file).map_err(|e| wrong(&e))?,
            (None, Some(directory)) => Config::for_directory(directory.clone()),
            (None, None) => return Err(nothing_to_serve()),
        };
        if let Some(directory) = self.directory.as_deref().filter(|directory| !directory.is_dir()) {
            let text = format!("{} is no directory; make it first", directory.display());
            return Err(Failure::Usage(text));
        }
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        if !self.verbs.is_empty() {
            config.verbs_listen.clone_from(&self.verbs);
        }
        if !self.nfs.is_empty() {
            config.nfs.listen.clone_from(&self.nfs);
        }
        if !self.nfs_rdma.is_empty() {
            config.nfs.rdma_listen = Some(self.nfs_rdma.clone());
        }
        if !self.nfs_verbs.is_empty() {
            config.nfs.rdma_verbs_listen.clone_from(&self.nfs_verbs);
        }
        config.metrics_listen = self.metrics.or(config.metrics_listen);
        if let Some(least) = self.metrics_transport_security {
            config.metrics_transport_security = least;
        }
        if let Some(seconds) = self.grace {
            config.nfs.grace_time = Some(Duration::from_secs(seconds));
        }
        for export in &mut config.exports {
            export.options.read_only |= self.read_only;
            export.options.admits.networks.extend(&self.nfs_network);
            export.options.admits.unprivileged_ports |= self.nfs_unprivileged_ports;
            if self.no_root_squash {
                export.options.squash = Squash::None;
            }
            if let Some(rule) = self.shared_keys {
                export.options.shared_keys = rule;
            }
            // Files of other exports are never shown.
            let optimistic = self.optimistic.unwrap_or_default();
            export.options.optimistic = export.options.optimistic.max(optimistic);
            // Files in memory do not outlive the server; striped exports keep no replies.
            let kept = matches!(export.source, ExportSource::Directory(_));
            if let Some(durability) = self.durable_replies.filter(|_| kept) {
                export.options.durable_replies = durability;
            }
        }
        if let Some(directory) = &self.state_directory {
            config.state_directory = Some(directory.clone());
        }
        if let Some(wake) = wake {
            config.wake = wake.into();
        }
        if let Some(threads) = self.threads {
            config.threads = usize::from(threads);
        }
        if let Some(seconds) = self.lease {
            config.lease_time = Duration::from_secs(seconds);
        }
        config.sandbox = self.sandbox.or(config.sandbox);
        Ok(config)
    }
}

fn nothing_to_serve() -> Failure {
    Failure::Usage(format!(
        "name a directory to serve: dafs serve DIR, or a configuration: dafs serve --config \
         {CONFIG_FILE}, which `dafs config init` makes"
    ))
}

/// Starts the first thread beside this one, so after the sandbox.
fn start_trimming() -> Result<(), Failure> {
    crate::heap::keep_trimmed().map_err(|error| Failure::local("cannot start a thread", &error))
}

fn parse_sandbox(text: &str) -> Result<Sandbox, String> {
    text.parse()
}

fn parse_transport_security(text: &str) -> Result<TransportSecurity, String> {
    text.parse().map_err(|error: NoTransportSecurity| error.to_string())
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    text.parse()
}

fn parse_optimistic(text: &str) -> Result<OptimisticReads, String> {
    match text {
        "local" => Ok(OptimisticReads::Local),
        "remote" => Ok(OptimisticReads::Remote),
        _ => Err("use local or remote".to_owned()),
    }
}

fn parse_shared_keys(text: &str) -> Result<SharedKeys, String> {
    text.parse()
}

/// Logs the addresses.
fn introduce(server: &Server) {
    for address in server.addresses() {
        tracing::info!(%address, "listening");
    }
    for address in server.verbs_addresses() {
        tracing::info!(%address, "listening for DAFS over RDMA (a device)");
    }
    for address in server.nfs_addresses() {
        tracing::info!(%address, "listening for NFS");
    }
    for address in server.nfs_rdma_addresses() {
        tracing::info!(%address, "listening for NFS over RDMA (iWARP in software)");
    }
    for address in server.nfs_verbs_addresses() {
        tracing::info!(%address, "listening for NFS over RDMA (a device)");
    }
    let name = rustix::system::uname();
    for line in server.mount_lines(&name.nodename().to_string_lossy()) {
        tracing::info!("NFS clients: {line}");
    }
    if let Some(url) = server.admin_url() {
        tracing::info!("administration at {url}");
    }
    if let Some(url) = server.metrics_url() {
        tracing::info!("metrics at {url}");
    }
}

/// Tells the parent process, which may wait for this line on a pipe.
fn announce(server: &Server) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {}", server.url())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::local("cannot write to standard output", &error))
}

/// Makes the server's own files private, should a mode be forgotten somewhere. The owner keeps
/// access, unlike with a umask of 777. Files of clients get the requested modes all the same.
pub(crate) fn set_umask() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

pub(crate) fn start_failure(error: &StartError) -> Failure {
    match error {
        StartError::Listen { error: reason, .. } => {
            let in_use = "; another program has that port: stop it, or choose one with --listen";
            listen_failure(error, reason, in_use)
        }
        StartError::ListenRdma { error: reason, .. }
        | StartError::ListenVerbs { error: reason, .. } => {
            let in_use = "; another program has that port, or RDMA in software and an iWARP device \
                          of this host both want it, which share the TCP ports: choose another \
                          with --nfs-rdma, --nfs-verbs or --verbs";
            listen_failure(error, reason, in_use)
        }
        StartError::Config(_)
        | StartError::Passwords(_)
        | StartError::Namespace(_)
        | StartError::Tls(_)
        | StartError::Own(_)
        | StartError::Secret(_) => Failure::Usage(explain_start(error.to_string())),
        StartError::Sandbox(_) => Failure::Usage(error.to_string()),
        _ => Failure::Failed(explain_start(error.to_string())),
    }
}

fn listen_failure(error: &StartError, reason: &std::io::Error, in_use: &str) -> Failure {
    let hint = match reason.kind() {
        std::io::ErrorKind::AddrInUse => in_use,
        std::io::ErrorKind::PermissionDenied => "; use a port from 1024 on",
        std::io::ErrorKind::AddrNotAvailable => "; this host has no such address",
        _ => "",
    };
    Failure::Failed(format!("{error}{hint}"))
}

/// Logs the server's counters, and where bytes were copied in user space.
fn log_counts(server: &Server) {
    // The first call asks the reactors for fresh numbers, the second reads them.
    server.counts();
    std::thread::sleep(COUNTS_SETTLE);
    let (engine, service) = (server.counts(), server.service_counts());
    tracing::info!(
        connections = engine.connections,
        sessions = engine.sessions,
        pending = engine.pending,
        replies = engine.replies,
        chunks = engine.chunks,
        credits = engine.credits,
        clients = service.clients,
        opens = service.opens,
        open_files = service.open_files,
        log_lines_left_out = log_limit::left_out(),
        "counts"
    );
    let copied: Vec<String> = dafs_mem::copies()
        .filter(|count| count.bytes > 0)
        .map(|count| format!("{}={}", count.site.label(), count.bytes))
        .collect();
    tracing::info!("copied bytes: {}", copied.join(" "));
}
