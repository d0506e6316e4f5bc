//! The configuration file: TOML in, checked values out. Every message names the wrong key and the
//! text to write instead. Syntax errors have the line.

mod access_log;
mod addresses;
mod cephfs;
mod changes;
mod engine;
mod export;
mod file;
mod gluster;
mod importance;
mod kerberos;
mod keys;
mod named;
mod nfs;
mod review;
mod rules;
mod tls;
mod units;

pub use access_log::AccessLogConfig;
pub use addresses::{parse_listen, parse_listen_nfs, parse_listen_nfs_rdma, parse_listen_verbs};
pub(crate) use changes::{changes, export_key};
pub use engine::{BrickConfig, EngineConfig, EngineError, OsdConfig};
pub use kerberos::KerberosConfig;
pub use keys::{Form, Key, config_keys, engine_keys};

use crate::limits::MEND_IDLE;
use dafs_dat::Wake;
use dafs_engine::{AuthConfig, SessionLimits};
use dafs_sandbox::Sandbox;
use dafs_service::{AddressRange, ExportOptions, ImportanceRule, Rule};
use dafs_store::own::{self, OwnError};
use dafs_tls::{ServerFiles, TransportSecurity};
use file::ConfigFile;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use toml::de::{DeTable, DeValue};

/// The port of URLs without a port.
pub const DEFAULT_PORT: u16 = 20_490;

/// The port of NFS.
pub const NFS_PORT: u16 = 2049;

/// The port of NFS over RDMA (RFC 8267 section 6).
pub const NFS_RDMA_PORT: u16 = 20_049;

/// The memory for optimistic reads in bytes: by default, and at least.
pub(crate) const OPTIMISTIC_BYTES_DEFAULT: usize = 256 << 20;
pub(crate) const OPTIMISTIC_BYTES_MIN: usize = 1 << 20;

/// The sentence that an administrator must write to admit other hosts without authentication.
pub const DANGER_SENTENCE: &str = "anyone who reaches this port can read and write these files";

/// The sentence that an administrator must write to accept Kerberos from other hosts over DAFS
/// without encryption. The messages after the proof are protected by nothing there.
pub const CLEAR_SENTENCE: &str = "anyone on the network between can take over these sessions";

/// The sentence that an administrator must write to accept passwords from other hosts over DAFS without
/// encryption.
pub(crate) const CLEAR_PASSWORDS_SENTENCE: &str =
    "anyone on the network between can read these passwords";

/// The reason why a configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}{remedy}", path = .path.display(), remedy = remedy(.error))]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// Other users could change the file, or it is no file.
    #[error("cannot trust the configuration: {0}")]
    Own(OwnError),
    /// The file is not TOML, or has an unknown key. The text names line and column.
    #[error("{path}: {text}", path = .path.display(), text = explained(.error))]
    Syntax {
        /// The path of the file.
        path: PathBuf,
        /// The position and the error.
        error: Box<toml::de::Error>,
    },
    /// A value is invalid.
    #[error("{path} line {line}: {key}: {remedy}", path = .path.display())]
    Value {
        /// The path of the file.
        path: PathBuf,
        /// The line of the key, from 1.
        line: usize,
        /// The key, with its table.
        key: String,
        /// The error and the text to write.
        remedy: String,
    },
    /// Other hosts could reach an export without authentication.
    #[error(
        "{at}{address} can be reached by other hosts and clients need not prove who they are; set \
         password_file, or listen on 127.0.0.1, or write\n  \
         danger_allow_unauthenticated_remote_clients = \"{DANGER_SENTENCE}\"",
        at = .place.as_ref().map(|place| format!("{place}: listen: ")).unwrap_or_default()
    )]
    Unauthenticated {
        /// The address.
        address: SocketAddr,
        /// The file and the line, if the address is from there.
        place: Option<String>,
    },
}

/// Reads a configuration file.
fn read_text(path: &Path) -> Result<String, OwnError> {
    String::from_utf8(own::read_config(path)?).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let text = format!("line {line} is not UTF-8; save it as UTF-8");
        OwnError::Io(path.to_owned(), std::io::Error::new(std::io::ErrorKind::InvalidData, text))
    })
}

/// Returns what helps against an error of reading.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; `dafs config init FILE` makes one",
        _ => "",
    }
}

/// Returns the text of an error of the parser, with the remedy where serde names only types.
fn explained(error: &toml::de::Error) -> String {
    let (text, message) = (error.to_string(), error.message());
    let remedy = if message.contains("map, expected a sequence") {
        "; there may be several of these tables, so write its name in two pairs of brackets: [[export]]"
    } else if message.contains("expected a sequence") {
        "; write a list in brackets: [\"...\"]"
    } else if message.contains("expected u") {
        "; write a number without quotes and without a unit, which is in the name of the key or in \
         dafs.toml(5)"
    } else if message.contains("expected a boolean") {
        "; write true or false, without quotes"
    } else if message.contains("expected a string") || message.contains("expected path string") {
        "; write text in quotes"
    } else {
        ""
    };
    format!("{}{remedy}", text.trim_end())
}

/// An invalid value, before its line is known.
struct Wrong {
    key: String,
    /// The path to the key: names of tables and keys, numbers of array elements.
    steps: Vec<String>,
    remedy: String,
}

/// Makes an error of a dotted `key`.
fn wrong(key: &str, remedy: impl Into<String>) -> Wrong {
    let steps = key.split('.').map(str::to_owned).collect();
    Wrong { key: key.to_owned(), steps, remedy: remedy.into() }
}

impl Wrong {
    fn locate(self, path: &Path, text: &str) -> ConfigError {
        let line = line_of(text, &self.steps);
        ConfigError::Value { path: path.to_owned(), line, key: self.key, remedy: self.remedy }
    }
}

/// Returns the line where the last of the existing steps begins.
fn line_of(text: &str, steps: &[String]) -> usize {
    let Ok(table) = DeTable::parse(text) else { return 1 };
    let mut at = 0;
    let mut value = &DeValue::Table(table.into_inner());
    for step in steps {
        let found = match value {
            DeValue::Table(table) => {
                table.get_key_value(step.as_str()).map(|(key, value)| (key.span(), value))
            }
            DeValue::Array(array) => step
                .parse::<usize>()
                .ok()
                .and_then(|index| array.get(index))
                .map(|value| (value.span(), value)),
            _ => None,
        };
        let Some((span, inner)) = found else { break };
        at = span.start;
        value = inner.get_ref();
    }
    1 + text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count()
}

/// The source of an export's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportSource {
    /// In a local directory.
    Directory(PathBuf),
    /// Names and attributes in a local directory, content distributed over others.
    Striped {
        /// The directory with names and attributes.
        path: PathBuf,
        /// Bytes of a stripe of new files.
        unit_bytes: NonZeroU32,
        /// The number of nodes with a whole copy of each new file. 1 for stripes.
        copies: usize,
        /// The nodes for the stripes.
        nodes: Vec<NodeConfig>,
        /// The file with the secret of the cluster, if there are nodes on other machines.
        cluster_secret: Option<PathBuf>,
    },
    /// In CephFS.
    CephFs(CephFsConfig),
    /// In GlusterFS.
    Gluster(GlusterConfig),
    /// In memory, up to so many bytes. They are lost when the server ends.
    Memory {
        /// Bytes of file content, symlink texts and names.
        bytes_max: u64,
    },
}

/// A node for stripes of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its permanent name in the records of files.
    pub number: u32,
    /// Its place.
    pub place: NodePlace,
}

/// The RDMA addresses of a data server. Clients get these addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataRdma {
    /// For iWARP in software, and shared memory for this host.
    pub soft: Option<SocketAddr>,
    /// For a device of the system.
    pub verbs: Option<SocketAddr>,
}

/// The place of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePlace {
    /// In a directory of this machine.
    Directory {
        /// The directory.
        path: PathBuf,
        /// The address for clients that bypass the server's other front ends (pNFS).
        listen: Option<SocketAddr>,
        /// The same over RDMA. Only where there is `listen`.
        rdma: DataRdma,
        /// The same for DAFS clients. Only where there is `listen`.
        dafs_listen: Option<SocketAddr>,
        /// Serve DAFS by the RDMA device of that address, too.
        dafs_verbs: bool,
    },
    /// At a data server: HOST:PORT of its control connection.
    Remote(String),
}

/// A directory of a CephFS, and the identity there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CephFsConfig {
    /// The configuration of the cluster. `None` for ceph's usual places.
    pub conf: Option<PathBuf>,
    /// The user of the cluster, without "client.". `None` for admin.
    pub id: Option<String>,
    /// The user's key. `None` for the place in the configuration of the cluster.
    pub keyring: Option<PathBuf>,
    /// The file system. `None` for the cluster's default one.
    pub fs: Option<String>,
    /// The directory, from the top of the file system.
    pub root: String,
    /// Data servers for clients that bypass the server's other front ends (pNFS).
    pub data_servers: Vec<CephDataServer>,
    /// The form of layouts for these clients.
    pub told: dafs_cephfs::Told,
    /// The file with the secret of the cluster, if there are data servers in other processes.
    pub cluster_secret: Option<PathBuf>,
}

/// A directory of a volume of GlusterFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlusterConfig {
    /// The volume.
    pub volume: String,
    /// Hosts whose management daemons know the volume, with their ports where these are not the
    /// default.
    pub servers: Vec<(String, Option<u16>)>,
    /// The directory, from the top of the volume.
    pub root: String,
    /// Data servers for clients that bypass the server's other front ends (pNFS).
    pub data_servers: Vec<GlusterDataServer>,
    /// The file with the secret of the cluster, if there are data servers in other processes.
    pub cluster_secret: Option<PathBuf>,
}

/// The place of a data server, for a file system that keeps its files itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataServerPlace {
    /// In this server, with its addresses for clients, over TCP and over RDMA.
    Local(SocketAddr, DataRdma),
    /// In a process of its own, which knows its addresses for clients.
    Remote {
        /// Its number there.
        number: u32,
        /// Its control connection: HOST:PORT.
        control: String,
    },
}

/// A data server for a brick of a volume of GlusterFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlusterDataServer {
    /// Its place.
    pub place: DataServerPlace,
    /// The brick, in the volume's notation: HOST:PATH.
    pub brick: String,
}

/// A data server local to storage daemons of a CephFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CephDataServer {
    /// Its place.
    pub place: DataServerPlace,
    /// The numbers of its storage daemons (OSDs).
    pub osds: Vec<u32>,
    /// Its network namespace, if it is in this process and uses another one.
    pub network_namespace: Option<PathBuf>,
}

/// An export.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// Its name below the root. Empty for the only export of a server without a file.
    pub name: String,
    /// Its files.
    pub source: ExportSource,
    /// Its rules.
    pub options: ExportOptions,
    /// Search for files that were moved out of its directory
    /// ([`dafs_posix::PosixOptions::subtree_check`]).
    pub subtree_check: bool,
    /// The time without writes after which the copies of a file are repaired. No key of the file says it; tests
    /// wait less.
    pub mend_idle: Duration,
}

/// The NFS front ends.
#[derive(Debug, Clone, Default)]
pub struct NfsConfig {
    /// The addresses for TCP.
    pub listen: Vec<SocketAddr>,
    /// The addresses for RDMA in software (iWARP), and for shared memory beside it. `None` means
    /// port 20049 of each address of `listen` with port 2049, if that is free.
    pub rdma_listen: Option<Vec<SocketAddr>>,
    /// The addresses for RDMA by a device of the system.
    pub rdma_verbs_listen: Vec<SocketAddr>,
    /// The time for clients of the last run to reclaim their state. `None` means the lease time.
    pub grace_time: Option<Duration>,
    /// Never grant delegations.
    pub no_delegations: bool,
    /// Register NFS, NFS_ACL, MOUNT, NLM and NSM with the rpcbind of this host.
    pub rpcbind: bool,
    /// The domain of owners' names, for callers that prove theirs. `None` means that owners are
    /// numbers.
    pub domain: Option<Box<str>>,
}

impl NfsConfig {
    /// True if NFS is served at all.
    pub fn is_on(&self) -> bool {
        !self.listen.is_empty() || !self.rdma().is_empty() || !self.rdma_verbs_listen.is_empty()
    }

    /// Returns the addresses for RDMA in software.
    pub fn rdma(&self) -> Vec<SocketAddr> {
        match &self.rdma_listen {
            Some(addresses) => addresses.clone(),
            None => {
                let standard = self.listen.iter().filter(|address| address.port() == NFS_PORT);
                standard.map(|address| SocketAddr::new(address.ip(), NFS_RDMA_PORT)).collect()
            }
        }
    }
}

/// The complete configuration of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The addresses for DAFS.
    pub listen: Vec<SocketAddr>,
    /// The addresses for DAFS by RDMA devices of the system. Clients try the address and port by
    /// which they reach the server over TCP.
    pub verbs_listen: Vec<SocketAddr>,
    /// The NFS front ends. Without addresses there are none.
    pub nfs: NfsConfig,
    /// The address for administration over HTTP, if there is one. Other hosts reach it only with
    /// [`Config::tls`].
    pub admin_listen: Option<SocketAddr>,
    /// The address for Prometheus, if there is one.
    pub metrics_listen: Option<SocketAddr>,
    /// The least protection of its connections. TLS needs [`Config::tls`].
    pub metrics_transport_security: TransportSecurity,
    /// Requests that take longer are logged, those of NFS with the time of each stage.
    pub slow_operation: Option<Duration>,
    /// The log of requests in a file, if there is one.
    pub access_log: Option<AccessLogConfig>,
    /// Memory in which exports show files to clients of this host, in bytes. It is used as files are
    /// read, and only if an export is optimistic when the server starts.
    pub optimistic_memory_bytes: usize,
    /// The exports.
    pub exports: Vec<ExportConfig>,
    /// The time for which a silent client keeps its opens.
    pub lease_time: Duration,
    /// The wait of reactors.
    pub wake: Wake,
    /// Reactor threads.
    pub threads: usize,
    /// DAFS reactors leave reads from disks to the kernel (io_uring) where it offers that. No file
    /// sets this: it is for programs that compare both ways.
    pub read_rings: bool,
    /// The rules of authentication.
    pub auth: AuthConfig,
    /// The use of Kerberos, if there is any.
    pub kerberos: Option<KerberosConfig>,
    /// The rules for users whom certificates of clients name. Without any such names mean nothing.
    pub certificate_users: Vec<Rule>,
    /// The rules for weights of sessions.
    pub importance: Vec<ImportanceRule>,
    /// The certificates for TLS, if there are any.
    pub tls: Option<ServerFiles>,
    /// The directory with the key that signs file handles. `None` means the user's default one.
    pub state_directory: Option<PathBuf>,
    /// Request CRC32C from iWARP peers.
    pub crc: bool,
    /// The bounds of sessions.
    pub limits: SessionLimits,
    /// The choice of a sandbox. `None` for the default one.
    pub sandbox: Option<Sandbox>,
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// The exports are those of the file, which a reload may change.
    pub exports_of_file: bool,
    /// Settings that are allowed and probably not meant, each with file, line and remedy.
    pub warnings: Vec<String>,
    /// The keys and values of the file. Empty without a file, and without exports where a directory
    /// replaces them.
    pub(crate) document: toml::Table,
    /// The places of the addresses that are in the file: file and line.
    listen_places: Vec<(SocketAddr, String)>,
}

impl Config {
    /// Exports one directory, on loopback, without a file.
    pub fn for_directory(path: PathBuf) -> Self {
        let options = ExportOptions::default();
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))],
            verbs_listen: Vec::new(),
            nfs: NfsConfig::default(),
            admin_listen: None,
            metrics_listen: None,
            metrics_transport_security: TransportSecurity::None,
            slow_operation: None,
            access_log: None,
            optimistic_memory_bytes: OPTIMISTIC_BYTES_DEFAULT,
            exports: vec![ExportConfig {
                name: String::new(),
                source: ExportSource::Directory(path),
                options,
                subtree_check: false,
                mend_idle: MEND_IDLE,
            }],
            lease_time: Duration::from_secs(30),
            wake: Wake::Adaptive,
            threads: default_threads(),
            read_rings: true,
            auth: AuthConfig::default(),
            kerberos: None,
            certificate_users: Vec::new(),
            importance: Vec::new(),
            tls: None,
            state_directory: None,
            crc: false,
            limits: SessionLimits::default(),
            sandbox: None,
            file: None,
            exports_of_file: false,
            warnings: Vec::new(),
            document: toml::Table::new(),
            listen_places: Vec::new(),
        }
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// The error, its position, and the text to write instead.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_with(path, None)
    }

    /// Reads a configuration file, and exports `directory` instead of its exports.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn load_for_directory(path: &Path, directory: PathBuf) -> Result<Self, ConfigError> {
        Self::load_with(path, Some(directory))
    }

    fn load_with(path: &Path, directory: Option<PathBuf>) -> Result<Self, ConfigError> {
        let text = read_text(path).map_err(|error| match error {
            OwnError::Io(path, error) => ConfigError::Read { path, error },
            error => ConfigError::Own(error),
        })?;
        let syntax = |error| ConfigError::Syntax { path: path.to_owned(), error: Box::new(error) };
        let file: ConfigFile = toml::from_str(&text).map_err(syntax)?;
        let mut document: toml::Table = toml::from_str(&text).map_err(syntax)?;
        if directory.is_some() {
            document.remove("export");
        }
        let checked = file.check(path.parent().unwrap_or(Path::new(".")), directory);
        let config = checked.map_err(|wrong| wrong.locate(path, &text))?;
        let warnings = review::warnings(&config).into_iter();
        let warnings = warnings.map(|wrong| wrong.locate(path, &text).to_string()).collect();
        let place =
            |key: &str| format!("{} line {}", path.display(), line_of(&text, &[key.to_owned()]));
        let soft = config.listen.iter().map(|&address| (address, place("listen")));
        let verbs = config.verbs_listen.iter().map(|&address| (address, place("verbs_listen")));
        let listen_places = soft.chain(verbs).collect();
        let file = Some(path.to_owned());
        Ok(Self { file, warnings, document, listen_places, ..config })
    }

    /// Refuses a configuration that exposes files unintentionally.
    ///
    /// # Errors
    /// The address that other hosts could reach.
    pub fn check_exposure(&self) -> Result<(), ConfigError> {
        if self.auth.allow_unauthenticated_remote_clients {
            return Ok(());
        }
        // Without TLS or its own sentence Kerberos admits no client of another host either.
        let is_used = |kerberos: &KerberosConfig| kerberos.dafs_in_clear || self.tls.is_some();
        let by_kerberos = self.kerberos.as_ref().is_some_and(is_used);
        let by_certificates = !self.certificate_users.is_empty();
        let proves = self.auth.password_file.is_some() || by_kerberos || by_certificates;
        // Trusted ranges are the administrator's choice. Without them and without any proof no other
        // host is admitted, and with them some hosts are admitted without one.
        let loopback = AddressRange::loopback();
        let outside = self.auth.trusted.iter().any(|range| !loopback.contains(range));
        let mut addresses = self.listen.iter().chain(&self.verbs_listen);
        let reachable = addresses.find(|address| !address.ip().is_loopback());
        match reachable {
            Some(&address) if outside || !proves => {
                let mut places = self.listen_places.iter();
                let place = places.find(|(known, _)| *known == address);
                let place = place.map(|(_, place)| place.clone());
                Err(ConfigError::Unauthenticated { address, place })
            }
            _ => Ok(()),
        }
    }
}

impl Config {
    /// True if clients of other hosts reach this server, and none of them by its passwords.
    pub(crate) fn has_passwords_for_this_host_only(&self) -> bool {
        let (auth, reachable) = (&self.auth, |address: &SocketAddr| !address.ip().is_loopback());
        auth.password_file.is_some()
            && !auth.clear_passwords
            && self.tls.is_none()
            && self.listen.iter().chain(&self.verbs_listen).any(reachable)
    }
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(4))
}

#[cfg(test)]
mod tests;
