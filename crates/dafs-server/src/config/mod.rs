//! The configuration file: TOML in, checked values out. Every message names the key at fault and
//! what to write instead; syntax errors carry the line.

mod cephfs;
mod engine;
mod file;
mod gluster;

pub use engine::{BrickConfig, EngineConfig, EngineError, OsdConfig};

use dafs_dat::Wake;
use dafs_engine::{AuthConfig, SessionLimits};
use dafs_service::{AddressRange, ExportOptions};
use dafs_store::own::{self, OwnError};
use file::ConfigFile;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use toml::de::{DeTable, DeValue};

/// The port that clients use when a URL names none.
pub const DEFAULT_PORT: u16 = 20_490;

/// The port of NFS.
pub const NFS_PORT: u16 = 2049;

/// The port of NFS over RDMA (RFC 8267 section 6).
pub const NFS_RDMA_PORT: u16 = 20_049;

/// What an administrator must write to let strangers in without proof.
pub const DANGER_SENTENCE: &str = "anyone who reaches this port can read and write these files";

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Others could change the file, or it is none.
    #[error("cannot trust the configuration: {0}")]
    Own(OwnError),
    /// The file is not TOML, or has a key that does not exist. The text names line and column.
    #[error("{path}: {error}", path = .path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        error: Box<toml::de::Error>,
    },
    /// A value makes no sense.
    #[error("{path} line {line}: {key}: {remedy}", path = .path.display())]
    Value {
        /// Which file.
        path: PathBuf,
        /// The line of the key, from 1.
        line: usize,
        /// The key, with its table.
        key: String,
        /// What is wrong and what to write.
        remedy: String,
    },
    /// Strangers could reach an export without proving who they are.
    #[error(
        "{address} can be reached by other hosts and clients need not prove who they are; set \
         password_file, or listen on 127.0.0.1, or write\n  \
         danger_allow_unauthenticated_remote_clients = \"{DANGER_SENTENCE}\""
    )]
    Unauthenticated {
        /// The address.
        address: SocketAddr,
    },
}

/// A value that makes no sense, before it is known which line it stands in.
struct Wrong {
    key: String,
    /// The way to the key: names of tables and keys, numbers of array elements.
    steps: Vec<String>,
    remedy: String,
}

/// `key` is dotted.
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

/// The line in which the last of the steps that exist begins.
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

/// Where the files of an export live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportSource {
    /// In a local directory.
    Directory(PathBuf),
    /// Names and attributes in a local directory, content spread over others.
    Striped {
        /// The directory with names and attributes.
        path: PathBuf,
        /// Bytes of a stripe of new files.
        unit_bytes: NonZeroU32,
        /// On how many nodes new files are as a whole; 1 for stripes.
        copies: usize,
        /// Where the stripes are.
        nodes: Vec<NodeConfig>,
        /// The file with the secret of the cluster, if there are nodes on other machines.
        cluster_secret: Option<PathBuf>,
    },
    /// In CephFS.
    CephFs(CephFsConfig),
    /// In GlusterFS.
    Gluster(GlusterConfig),
    /// In memory, up to so many bytes; they are gone when the server ends.
    Memory {
        /// Bytes of file content, symlink texts and names.
        bytes_max: u64,
    },
}

/// A place for stripes of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its name in the records of files: the same for ever.
    pub number: u32,
    /// Where it is.
    pub place: NodePlace,
}

/// Where a data server listens for NFS over RDMA. Clients are told, so these are the addresses that they
/// use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataRdma {
    /// For iWARP in software, with shared memory for this host beside it.
    pub soft: Option<SocketAddr>,
    /// For a device of the system.
    pub verbs: Option<SocketAddr>,
}

/// Where stripes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePlace {
    /// In a directory of this machine.
    Directory {
        /// The directory.
        path: PathBuf,
        /// Where clients that can (pNFS) reach it without going through the server's other doors.
        listen: Option<SocketAddr>,
        /// The same over RDMA; only where there is `listen`.
        rdma: DataRdma,
        /// The same for clients that speak DAFS; only where there is `listen`.
        dafs_listen: Option<SocketAddr>,
    },
    /// With a data server: HOST:PORT of its control connection.
    Remote(String),
}

/// Which part of which CephFS, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CephFsConfig {
    /// The configuration of the cluster; `None` for ceph's usual places.
    pub conf: Option<PathBuf>,
    /// The user of the cluster, without "client."; `None` for admin.
    pub id: Option<String>,
    /// The user's key; `None` for where the configuration of the cluster says.
    pub keyring: Option<PathBuf>,
    /// The file system; `None` for the cluster's default one.
    pub fs: Option<String>,
    /// The directory, from the top of the file system.
    pub root: String,
    /// Where clients that can (pNFS) reach storage daemons without going through the server's other
    /// doors.
    pub data_servers: Vec<CephDataServer>,
    /// What these clients are told of where files lie.
    pub told: dafs_cephfs::Told,
    /// The file with the secret of the cluster, if there are data servers in other processes.
    pub cluster_secret: Option<PathBuf>,
}

/// Which part of which volume of GlusterFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlusterConfig {
    /// The volume.
    pub volume: String,
    /// Hosts whose management daemons know it, with their ports where these are not the usual one.
    pub servers: Vec<(String, Option<u16>)>,
    /// The directory, from the top of the volume.
    pub root: String,
    /// Where clients that can (pNFS) reach bricks without going through the server's other doors.
    pub data_servers: Vec<GlusterDataServer>,
    /// The file with the secret of the cluster, if there are data servers in other processes.
    pub cluster_secret: Option<PathBuf>,
}

/// Where a data server of a file system is that keeps its files itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataServerPlace {
    /// In this server; clients reach it there, and over RDMA.
    Here(SocketAddr, DataRdma),
    /// In a process of its own, which says where clients reach it.
    Far {
        /// What it is called there.
        number: u32,
        /// Its control connection: HOST:PORT.
        control: String,
    },
}

/// A data server for a brick of a volume of GlusterFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlusterDataServer {
    /// Where it is.
    pub place: DataServerPlace,
    /// The brick, as the volume calls it: HOST:PATH.
    pub brick: String,
}

/// A data server before storage daemons of a CephFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CephDataServer {
    /// Where it is.
    pub place: DataServerPlace,
    /// The numbers of the storage daemons (OSDs) that it is next to.
    pub osds: Vec<u32>,
    /// The network namespace that it is in, if it is in this process and that is another one.
    pub network_namespace: Option<PathBuf>,
}

/// An export.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// Its name below the root; empty for the only export of a server without a file.
    pub name: String,
    /// Its files.
    pub source: ExportSource,
    /// Its rules.
    pub options: ExportOptions,
    /// Whether files that were moved out of its directory are looked for
    /// ([`dafs_posix::PosixOptions::subtree_check`]).
    pub subtree_check: bool,
}

/// The NFS front doors.
#[derive(Debug, Clone, Default)]
pub struct NfsConfig {
    /// Where to listen over TCP.
    pub listen: Vec<SocketAddr>,
    /// Where to listen for RDMA in software (iWARP), and for shared memory beside it; `None` for port
    /// 20049 of each address of `listen` with port 2049, if nobody has it.
    pub rdma_listen: Option<Vec<SocketAddr>>,
    /// Where to listen for RDMA by a device of the system.
    pub rdma_verbs_listen: Vec<SocketAddr>,
    /// How long clients of the last run may reclaim what they held; `None` for the lease time.
    pub grace_time: Option<Duration>,
    /// Never grant delegations.
    pub no_delegations: bool,
    /// Tell the rpcbind of this host where NFSv3 and MOUNT are.
    pub rpcbind: bool,
}

impl NfsConfig {
    /// Whether NFS is served at all.
    pub fn is_on(&self) -> bool {
        !self.listen.is_empty() || !self.rdma().is_empty() || !self.rdma_verbs_listen.is_empty()
    }

    /// Where to listen for RDMA in software.
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

/// Everything a server needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// Where NFS clients connect; none, no NFS.
    pub nfs: NfsConfig,
    /// Where Prometheus reads counters, if anywhere.
    pub metrics_listen: Option<SocketAddr>,
    /// NFS requests that take longer are logged, with the time that each stage took.
    pub slow_operation: Option<Duration>,
    /// What to export.
    pub exports: Vec<ExportConfig>,
    /// How long a silent client keeps its opens.
    pub lease_time: Duration,
    /// How reactors wait.
    pub wake: Wake,
    /// Reactor threads.
    pub threads: usize,
    /// Proofs of identity.
    pub auth: AuthConfig,
    /// Where the key that signs file handles is kept; `None` for the user's default place.
    pub state_directory: Option<PathBuf>,
    /// Ask iWARP peers for CRC32C.
    pub crc: bool,
    /// Bounds.
    pub limits: SessionLimits,
}

impl Config {
    /// One directory, on loopback, without a file.
    pub fn for_directory(path: PathBuf) -> Self {
        let options = ExportOptions::default();
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))],
            nfs: NfsConfig::default(),
            metrics_listen: None,
            slow_operation: None,
            exports: vec![ExportConfig {
                name: String::new(),
                source: ExportSource::Directory(path),
                options,
                subtree_check: false,
            }],
            lease_time: Duration::from_secs(30),
            wake: Wake::Adaptive,
            threads: default_threads(),
            auth: AuthConfig::default(),
            state_directory: None,
            crc: false,
            limits: SessionLimits::default(),
        }
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_with(path, None)
    }

    /// Reads a configuration file, and exports `directory` instead of what it names.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_for_directory(path: &Path, directory: PathBuf) -> Result<Self, ConfigError> {
        Self::load_with(path, Some(directory))
    }

    fn load_with(path: &Path, directory: Option<PathBuf>) -> Result<Self, ConfigError> {
        let text = own::read_config(path).map_err(|error| match error {
            OwnError::Io(path, error) => ConfigError::Read { path, error },
            error => ConfigError::Own(error),
        })?;
        let file: ConfigFile = toml::from_str(&text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            error: Box::new(error),
        })?;
        file.check(path.parent().unwrap_or(Path::new(".")), directory)
            .map_err(|wrong| wrong.locate(path, &text))
    }

    /// Refuses an open door that nobody meant to open.
    ///
    /// # Errors
    /// The address that strangers could reach.
    pub fn check_exposure(&self) -> Result<(), ConfigError> {
        if self.auth.allow_unauthenticated_remote_clients {
            return Ok(());
        }
        // Trusted ranges are the administrator's word; without them and without passwords nobody
        // from outside gets in, and with them somebody does without any proof.
        let loopback = AddressRange::loopback();
        let outside = self.auth.trusted.iter().any(|range| !loopback.contains(range));
        let reachable = self.listen.iter().find(|address| !address.ip().is_loopback());
        match reachable {
            Some(&address) if outside || self.auth.password_file.is_none() => {
                Err(ConfigError::Unauthenticated { address })
            }
            _ => Ok(()),
        }
    }
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(4))
}

/// Reads `HOST:PORT`, `:PORT` or `PORT` into an address to listen on; names are resolved.
///
/// # Errors
/// What to write instead.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, DEFAULT_PORT)
}

/// As [`parse_listen`], for NFS.
///
/// # Errors
/// What to write instead.
pub fn parse_listen_nfs(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, NFS_PORT)
}

/// As [`parse_listen`], for NFS over RDMA.
///
/// # Errors
/// What to write instead.
pub fn parse_listen_nfs_rdma(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, NFS_RDMA_PORT)
}

fn parse_address(text: &str, example_port: u16) -> Result<SocketAddr, String> {
    use std::net::ToSocketAddrs;
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    // With a zone by its name, as in [fe80::1%eth0]:20490.
    let in_brackets = text.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    let found = match in_brackets.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some(host_and_port) => host_and_port.to_socket_addrs(),
        None => text.to_socket_addrs(),
    };
    found.ok().and_then(|mut addresses| addresses.next()).ok_or_else(|| {
        format!("{text:?} is no address; write HOST:PORT, such as 127.0.0.1:{example_port}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::Squash;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        let path = dir.path().join("dafs.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(&path)
    }

    const EXPORT: &str = "[[export]]\nname = \"data\"\npath = \"data\"\n";

    #[test]
    fn a_small_file_gets_safe_defaults() {
        let config = load(EXPORT).unwrap();
        assert_eq!(config.listen[0].port(), DEFAULT_PORT);
        assert!(config.listen[0].ip().is_loopback());
        assert_eq!(config.exports[0].options.squash, Squash::Root);
        config.check_exposure().unwrap();
    }

    #[test]
    fn mistakes_are_named_with_their_remedy() {
        let check = |text: &str, expected: &str| {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        };
        check("", "[[export]]");
        check("lissten = 3", "line 1");
        check(&format!("wake = \"often\"\n{EXPORT}"), "line 1");
        check(&format!("lease_time_seconds = 0\n{EXPORT}"), "use 1 to 3600");
        check(&format!("listen = [\"nowhere\"]\n{EXPORT}"), "HOST:PORT");
        check(&format!("trusted = [\"10/8\"]\n{EXPORT}"), "192.0.2.0/24");
        check(&format!("{EXPORT}squash = \"most\""), "root, none or all");
        check(&format!("[nfs]\nlisten = [\"here\"]\n{EXPORT}"), "127.0.0.1:2049");
        check(&format!("[nfs]\nrdma_listen = [\"here\"]\n{EXPORT}"), "127.0.0.1:20049");
        check(&format!("[nfs]\nrdma_verbs_listen = [\"here\"]\n{EXPORT}"), "127.0.0.1:20049");
        let twice = "rdma_listen = [\"127.0.0.1:7\"]\nrdma_verbs_listen = [\"127.0.0.1:7\"]";
        check(&format!("[nfs]\n{twice}\n{EXPORT}"), "another port");
        check(&format!("[nfs]\ngrace_time_seconds = 9999\n{EXPORT}"), "0 to 3600");
        check(&format!("{EXPORT}networks = [\"10/8\"]"), "192.0.2.0/24");
        check(&format!("{EXPORT}security = [\"krb6\"]"), "\"sys\" and \"none\"");
        check(&EXPORT.replace("\"data\"\n", "\"gone\"\n"), "is no directory");
        check(&format!("{EXPORT}memory_bytes = 5"), "leave it out");
        check("[[export]]\nname = \"data\"", "memory_bytes = N");
        let ceph = "[[export]]\nname = \"c\"\nstore = \"cephfs\"\n";
        check(&ceph.replace("cephfs", "ceph"), "write \"cephfs\"");
        let gluster = "[[export]]\nname = \"g\"\nstore = \"glusterfs\"\n";
        let table = "[export.gluster]\nvolume = \"v\"\nservers = [\"h\"]\n";
        check(gluster, "with volume and servers");
        check(&format!("{EXPORT}{table}"), "or leave it");
        check(&format!("{ceph}{table}"), "or leave it");
        check(&format!("{gluster}path = \"data\"\n{table}"), "GlusterFS keeps the files");
        check(&format!("{gluster}durable_replies = \"crash\"\n{table}"), "GlusterFS are not kept");
        check(&format!("{gluster}{table}root = \"x\""), "\"/\" first");
        check(&format!("{gluster}{}", table.replace("\"h\"", "")), "servers = [\"HOST\"]");
        check(&format!("{gluster}{}", table.replace("\"h\"", "\"h:x\"")), "no HOST:PORT");
        check(&format!("{gluster}{}", table.replace("\"v\"", "\"a/b\"")), "volume list");
        let door = "[[export.gluster.data_server]]\nlisten = \"127.0.0.1:1\"\nbrick = \"h:/b\"\n";
        check(&format!("{gluster}{table}{door}{door}"), "h:/b is named by two");
        check(&format!("{gluster}{table}{}", door.replace("h:/b", "h")), "HOST:PATH");
        check(
            &format!("{gluster}{table}{}", door.replace("127.0.0.1", "0.0.0.0")),
            "that clients use",
        );
        let far = door.replace("listen = \"127.0.0.1:1\"", "number = 1\ncontrol = \"h:7101\"");
        check(&format!("{gluster}{table}{far}"), "[cluster] with secret");
        check(&format!("{gluster}{table}{}", far.replace("h:7101", "h")), "\"HOST:PORT\"");
        check(&format!("{gluster}{table}{far}listen = \"127.0.0.1:1\""), "or number and control");
        check(&format!("{gluster}{table}{far}rdma_listen = \"127.0.0.1:2\""), "number and control");
        check(&format!("{gluster}{table}{door}rdma_listen = \"0.0.0.0:2\""), "that clients use");
        let other = far.replace("h:/b", "h:/c");
        check(&format!("{gluster}{table}{far}{other}"), "its own number");
        check(&format!("{EXPORT}[export.ceph]\nid = \"x\""), "write \"cephfs\"");
        check(&format!("{ceph}path = \"data\""), "leave it out");
        check(&format!("{ceph}durable_replies = \"crash\""), "CephFS are not kept");
        check(&format!("{ceph}[export.ceph]\nid = \"client.x\""), "without \"client.\"");
        check(&format!("{ceph}[export.ceph]\nconf = \"gone\""), "gone is not there");
        check(&format!("{ceph}[export.ceph]\nroot = \"x\""), "\"/\" first");
        let server = "[[export.ceph.data_server]]\nlisten = \"127.0.0.1:1\"\nosds = [0]\n";
        check(&format!("{ceph}{server}{server}"), "OSD 0 is named by two");
        check(&format!("{ceph}{}", server.replace("[0]", "[]")), "osds = [0, 1]");
        check(&format!("{ceph}{}", server.replace("127.0.0.1", "0.0.0.0")), "that clients use");
        let far = server.replace("listen = \"127.0.0.1:1\"", "number = 1\ncontrol = \"h:7101\"");
        check(&format!("{ceph}{far}"), "[cluster] with secret");
        check(&format!("{ceph}{far}network_namespace = \"x\""), "leave network_namespace out");
        let device = "rdma_verbs_listen = \"127.0.0.1:2\"\nnetwork_namespace = \"x\"";
        check(&format!("{ceph}{server}{device}"), "in the network of this process");
        check(&format!("{ceph}{}", far.replace("number = 1\n", "")), "or number and control");
        let node = "[[export.node]]\nnumber = 1\npath = \"data\"\n";
        check(&format!("{EXPORT}{node}{node}"), "its own number");
        check(&format!("{EXPORT}{}", node.replace("\"data\"", "\"gone\"")), "is no directory");
        check(&format!("{EXPORT}{node}listen = \"0.0.0.0:1\""), "that clients use");
        check(&format!("{EXPORT}{node}rdma_listen = \"127.0.0.1:2\""), "name listen too");
        let open = format!("{EXPORT}{node}listen = \"127.0.0.1:1\"\n");
        check(&format!("{open}rdma_listen = \"0.0.0.0:2\""), "that clients use");
        check(&format!("{open}rdma_verbs_listen = \"127.0.0.1:0\""), "name the port");
        let twice = "rdma_listen = \"127.0.0.1:2\"\nrdma_verbs_listen = \"127.0.0.1:2\"";
        check(&format!("{open}{twice}"), "another port");
        let far = "[[export.node]]\nnumber = 2\ncontrol = \"192.0.2.2:2052\"\n";
        check(&format!("{EXPORT}{far}"), "[cluster] with secret");
        let same = far.replace("number = 2", "number = 3");
        check(&format!("{EXPORT}{far}{same}"), "two have the same control");
        check(&format!("{EXPORT}{far}path = \"data\""), "or control =");
        check(&format!("{EXPORT}{far}listen = \"192.0.2.2:1\""), "leave listen out");
        check(&format!("{EXPORT}{far}rdma_listen = \"192.0.2.2:1\""), "leave listen out");
        check(&format!("{EXPORT}{}", far.replace(":2052", "")), "control = \"HOST:PORT\"");
        check(&format!("{EXPORT}[[export.node]]\nnumber = 1"), "path = \"DIRECTORY\"");
        check(&format!("{EXPORT}stripe_bytes = 100\n{node}"), "4096 to 1073741824");
        check(&format!("{EXPORT}stripe_bytes = 4096"), "[[export.node]]");
        check(&format!("{EXPORT}copies = 2"), "[[export.node]]");
        check(&format!("{EXPORT}copies = 2\n{node}"), "no more than there are nodes");
        check(&format!("{EXPORT}copies = 0\n{node}"), "use 1 to 8");
        check(&format!("{EXPORT}durable_replies = \"crash\"\n{node}"), "spread over nodes");
        check(&format!("{EXPORT}durable_replies = \"on\""), "off, crash or power");
        let memory = "[[export]]\nname = \"m\"\nmemory_bytes = 4096\n";
        check(&format!("{memory}durable_replies = \"crash\""), "do not outlive");
        check(
            &format!("danger_allow_unauthenticated_remote_clients = \"yes\"\n{EXPORT}"),
            DANGER_SENTENCE,
        );
    }

    #[test]
    fn rdma_is_beside_the_port_of_nfs_unless_something_else_is_said() {
        let rdma = |nfs: &str| {
            let nfs = load(&format!("[nfs]\n{nfs}\n{EXPORT}")).unwrap().nfs;
            (nfs.rdma(), nfs.is_on())
        };
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let both = "listen = [\"192.0.2.1:2049\", \"127.0.0.1:2050\"]";
        assert_eq!(rdma(both), (vec![address("192.0.2.1:20049")], true));
        assert_eq!(rdma(&format!("{both}\nrdma_listen = []")), (vec![], true));
        let other = "rdma_listen = [\"127.0.0.1:7\"]";
        assert_eq!(rdma(other), (vec![address("127.0.0.1:7")], true));
        let verbs = "rdma_verbs_listen = [\"192.0.2.1:20049\"]";
        assert_eq!(rdma(verbs), (vec![], true));
        assert_eq!(rdma(""), (vec![], false));
    }

    #[test]
    fn a_link_local_address_has_a_zone() {
        let address = parse_listen("[fe80::1%lo]:7").unwrap();
        let SocketAddr::V6(address) = address else { panic!("{address}") };
        assert!(address.scope_id() > 0 && address.port() == 7, "{address}");
        assert_eq!(address.ip().to_string(), "fe80::1");
        assert!(parse_listen("[fe80::1%none-such]:7").is_err());
        assert!(parse_listen("[fe80::1%lo]").is_err());
    }

    #[test]
    fn an_open_door_must_be_meant() {
        let open = format!("listen = [\"0.0.0.0:0\"]\n{EXPORT}");
        let error = load(&open).unwrap().check_exposure().unwrap_err();
        assert!(matches!(error, ConfigError::Unauthenticated { .. }));
        let meant =
            format!("danger_allow_unauthenticated_remote_clients = \"{DANGER_SENTENCE}\"\n{open}");
        load(&meant).unwrap().check_exposure().unwrap();
        let passwords = format!("password_file = \"users\"\n{open}");
        load(&passwords).unwrap().check_exposure().unwrap();
        let trusting = format!("trusted = [\"10.0.0.0/8\"]\n{passwords}");
        assert!(load(&trusting).unwrap().check_exposure().is_err());
    }
}
