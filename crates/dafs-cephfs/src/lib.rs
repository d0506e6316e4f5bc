//! A store on CephFS through libcephfs, which is loaded at run time.
//!
//! Notes
//! * A store has several mounts, because all calls of one mount share a lock. Each mount is a
//!   client of the file system. If two of them use the same object, the metadata server (MDS) moves
//!   its capabilities between them, which is slow. So all operations on names go through the first
//!   mount, and so do the files that it has made while they are open. Other opens are spread over
//!   all mounts.
//! * Other clients may use the file system at the same time. The store sees their changes at once.
//! * If another client moves an object out of the exported directory, the store does not notice:
//!   its id still works.
//!
//! Invariants
//! * Written data is at the storage daemons when a call returns. Its size may be known to this
//!   process alone, so no data counts as stable before a sync of the file.
//! * libcephfs checks the caller's rights; each call passes the caller's identity.
//! * Data that a client has written at a data server is visible to all readers of the file, because
//!   data servers are clients of the file system, too.
//! * All unsafe code is in `sys`.

mod attr;
mod data;
mod ends;
mod file;
mod hash;
mod id;
mod layouts;
mod limits;
mod map;
mod network;
mod node;
mod nudge;
mod server;
mod store;
mod stripes;
mod sys;

pub use data::CephData;
pub use network::in_network;
pub use node::{CephNode, CephNodeOptions};

use dafs_mem::{Mutex, Unavailable};
use dafs_store::inode::{Ids, Inode as _};
use dafs_store::node::Node;
use dafs_store::vital::Periodic;
use dafs_store::{
    Attr, Cred, DEVICE_SERVERS_MAX, DataKeys, ExportSecret, FileId, FsId, NfsAddresses, NoOutcome,
    Result, StoreError, Tries,
};
use id::{ID_VERSION, Object};
use layouts::{Place, Server, Spread};
use limits::{OPEN_TIMEOUT, WATCH_INTERVAL};
use map::OsdMap;
use nudge::{Nudge, Waits};
use rustc_hash::{FxHashMap, FxHashSet};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use sys::{ClusterOptions, Inode, Mount, MountOptions, Rados, StatX};
use thiserror::Error;

/// The options of a [`CephStore`].
#[derive(Debug, Clone)]
pub struct CephOptions {
    /// The configuration of the cluster; `None` takes ceph's default places.
    pub config: Option<PathBuf>,
    /// The user of the cluster, without "client."; `None` is admin.
    pub user: Option<String>,
    /// The file with the user's key; `None` takes the one of the configuration.
    pub keyring: Option<PathBuf>,
    /// The name of the file system, if the cluster has several.
    pub file_system: Option<String>,
    /// The directory to export, from the top of the file system.
    pub root: String,
    /// The identity of this server in the cluster, the same after every restart. No two running
    /// servers may have the same identity, because each would evict the other.
    pub identity: String,
    /// The key of the ids, the same after every restart.
    pub secret: ExportSecret,
    /// The number of mounts, from 1 to 64.
    pub mounts: usize,
    /// Data servers, each with a mount of its own; at most 256.
    pub data_servers: Vec<DataServerOptions>,
    /// The keys of the file ids for data servers in other processes, if there are any.
    pub data_keys: Option<DataKeys>,
    /// The kind of placements for clients.
    pub told: Told,
    /// Maps the file system id of a data server's store to that of its handles.
    pub data_fs: fn(&FsId) -> FsId,
}

/// A data server, which serves clients the files of storage daemons next to it.
#[derive(Debug, Clone)]
pub struct DataServerOptions {
    /// The process of the data server.
    pub place: DataPlace,
    /// The numbers of the storage daemons next to it. Each daemon has one data server.
    pub daemons: Vec<u32>,
}

/// The process of a data server.
#[derive(Clone)]
pub enum DataPlace {
    /// This process.
    Here {
        /// The addresses for clients.
        addresses: NfsAddresses,
        /// The network namespace of its mount, if not this process's.
        network: Option<PathBuf>,
    },
    /// Another process: a [`CephNode`] behind a control connection.
    Far(Arc<dyn Node>),
}

impl std::fmt::Debug for DataPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Here { addresses, network } => {
                f.debug_tuple("Here").field(addresses).field(network).finish()
            }
            Self::Far(node) => f.debug_tuple("Far").field(&node.number()).finish(),
        }
    }
}

/// The kind of placements for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Told {
    /// The data server next to the daemon that has the bytes.
    #[default]
    Placement,
    /// The data servers round robin, without regard to daemons, as by a pNFS server that does not
    /// know the placement of its file system. For comparison: most bytes then cross the network
    /// twice.
    Turns,
}

/// The reason why a store cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libcephfs cannot be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A step has failed.
    #[error("{step} failed ({}){}", std::io::Error::from_raw_os_error(*.errno), hint(.step, *.errno))]
    Step {
        /// The failed step.
        step: Step,
        /// The error number of ceph.
        errno: i32,
    },
    /// The attributes of the exported directory cannot be read.
    #[error("the directory cannot be looked at: {0}")]
    Root(StoreError),
    /// The number of mounts is out of range.
    #[error("the number of mounts has to be from 1 to 64")]
    Mounts,
    /// The map of storage daemons cannot be read.
    #[error(
        "the map of storage daemons cannot be had from the monitors: {0}; may this user read it?"
    )]
    Map(StoreError),
    /// The cluster has not answered in time.
    #[error("nothing has come of it for {} seconds; does a metadata server of the cluster work?", .0.as_secs())]
    Timeout(Duration),
    /// Too many attempts are still waiting.
    #[error(
        "{0} tries to open the cluster still wait for it; if it is there, start this server again"
    )]
    Stuck(usize),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// The network of a data server cannot be entered.
    #[error("the network namespace {path} of a data server cannot be entered: {error}")]
    Network {
        /// The path of the namespace.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// There are too many data servers.
    #[error("there can be 256 data servers at most")]
    DataServers,
    /// A string cannot be passed to the library.
    #[error("names and paths cannot have a byte of zero")]
    ZeroByte,
}

/// The steps of mounting a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum Step {
    Client,
    Configuration,
    Option,
    Start,
    FileSystem,
    Mount,
    Monitors,
}

impl Step {
    /// Maps the return value of the library's call for this step.
    fn check(self, answer: i32) -> std::result::Result<(), OpenError> {
        match answer {
            0.. => Ok(()),
            _ => Err(OpenError::Step { step: self, errno: answer.saturating_neg() }),
        }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client => "making a client",
            Self::Configuration => "reading the configuration of the cluster",
            Self::Option => "setting an option of ceph",
            Self::Start => "starting a client",
            Self::FileSystem => "choosing the file system",
            Self::Mount => "mounting",
            Self::Monitors => "connecting to the monitors",
        })
    }
}

/// Suggests what to check after the failure of a step.
fn hint(step: &Step, errno: i32) -> &'static str {
    match (step, errno) {
        (Step::Start | Step::Monitors, libc::ENOENT) => {
            "; does the configuration name the monitors (mon_host), and a keyring that is there?"
        }
        (Step::Configuration, _) => "; does conf name the ceph.conf of the cluster?",
        (_, libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ECONNREFUSED | libc::EHOSTDOWN) => {
            "; do the monitors run, does a metadata server, and can this host reach them?"
        }
        (_, libc::EACCES | libc::EPERM | libc::EOPNOTSUPP | libc::EKEYREJECTED) => {
            "; do id and keyring name a user of the cluster that may use the file system?"
        }
        (Step::FileSystem | Step::Mount, libc::ENOENT | libc::EINVAL) => {
            "; does the cluster have such a file system, with such a directory? And is the keyring \
             where the configuration says?"
        }
        _ => "",
    }
}

/// A store on CephFS.
#[derive(Debug)]
pub struct CephStore {
    shared: Arc<Shared>,
}

/// The state that the store and its files share.
#[derive(Debug)]
struct Shared {
    mounts: Vec<Arc<Mount>>,
    ids: Ids,
    root: Object,
    /// The mount of each open file, with the number of its opens.
    homes: Mutex<FxHashMap<Object, Home>>,
    /// The data servers with the placement of files, if there are any, and the thread that watches
    /// both.
    spread: Option<(Arc<Spread>, Periodic)>,
    _nudge: Nudge,
}

#[derive(Debug)]
struct Home {
    mount: usize,
    opens: usize,
}

/// The credentials of the server itself.
fn server() -> Cred {
    Cred::new(0, 0)
}

/// Runs an open with a timeout, because it may never return.
fn in_time<T: Send + 'static>(
    open: impl FnOnce() -> std::result::Result<T, OpenError> + Send + 'static,
) -> std::result::Result<T, OpenError> {
    static TRIES: Tries = Tries::new();
    TRIES.run("dafs-ceph-open", OPEN_TIMEOUT, open).unwrap_or_else(|failed| {
        Err(match failed {
            NoOutcome::Stuck(tries) => OpenError::Stuck(tries),
            NoOutcome::Timeout(limit) => OpenError::Timeout(limit),
            NoOutcome::Thread(error) => OpenError::Thread(error),
        })
    })
}

impl CephStore {
    /// Mounts a directory of CephFS. Waits for the cluster for a limited time.
    ///
    /// # Errors
    /// The missing or wrong setting, for administrators.
    pub fn open(options: &CephOptions) -> std::result::Result<Self, OpenError> {
        let options = options.clone();
        in_time(move || Self::open_here(&options))
    }

    fn open_here(options: &CephOptions) -> std::result::Result<Self, OpenError> {
        if !(1..=limits::MOUNTS_MAX).contains(&options.mounts) {
            return Err(OpenError::Mounts);
        }
        let cluster = ClusterOptions {
            config: options.config.clone(),
            user: options.user.clone(),
            keyring: options.keyring.clone(),
        };
        if options.data_servers.len() > DEVICE_SERVERS_MAX {
            return Err(OpenError::DataServers);
        }
        let waits = Arc::new(Waits::default());
        let as_client = MountOptions {
            cluster: cluster.clone(),
            file_system: options.file_system.clone(),
            root: options.root.clone(),
            uuid: String::new(),
            waits: waits.clone(),
        };
        let mount = |name: String| {
            let uuid = format!("dafs-{}-{name}", options.identity);
            Mount::new(&MountOptions { uuid, ..as_client.clone() }).map(Arc::new)
        };
        let mounts = (0..options.mounts).map(|number| mount(number.to_string()));
        let mounts = mounts.collect::<std::result::Result<Vec<_>, _>>()?;
        let stat = mounts[0].root().and_then(|root| root.statx());
        let root = object(&stat.map_err(OpenError::Root)?);
        let mut hasher = SipHasher24::new_with_key(options.secret.as_bytes());
        hasher.write(options.file_system.as_deref().unwrap_or_default().as_bytes());
        hasher.write_u64(root.ino);
        hasher.write_u64(root.snap);
        let fs_id = FsId(hasher.finish128().as_bytes());
        let ids = Ids::new(ID_VERSION, fs_id, options.secret);
        let spread = match options.data_servers.is_empty() {
            true => None,
            false => Some(spread(options, &as_client, fs_id, &mount)?),
        };
        let servers = spread.iter().flat_map(|(spread, _)| spread.here());
        let servers: Vec<_> = servers.map(|server| server.mount()).collect();
        let nudge = Nudge::start(&waits, mounts.iter().chain(&servers));
        let _nudge = nudge.map_err(OpenError::Thread)?;
        let shared = Shared { mounts, ids, root, homes: Mutex::default(), spread, _nudge };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the data servers of this process, in the order of the options.
    pub fn data_servers(&self) -> Vec<Arc<CephData>> {
        let spread = self.shared.spread.iter();
        spread.flat_map(|(spread, _)| spread.here()).cloned().collect()
    }
}

/// Makes the data servers, each with its own mount.
fn spread(
    options: &CephOptions,
    as_client: &MountOptions,
    fs_id: FsId,
    mount: &(dyn Fn(String) -> std::result::Result<Arc<Mount>, OpenError> + Sync),
) -> std::result::Result<(Arc<Spread>, Periodic), OpenError> {
    let rados = Rados::connect(&as_client.cluster)?;
    let map = Arc::new(OsdMap::new(Box::new(rados)).map_err(OpenError::Map)?);
    let own = || DataKeys::new(fs_id.0, *options.secret.as_bytes());
    let keys = options.data_keys.clone().unwrap_or_else(own);
    let ids = Arc::new(Ids::of_data_servers(ID_VERSION, keys));
    let data_fs = ids.fs_id();
    let mut servers = Vec::new();
    for (number, server) in options.data_servers.iter().enumerate() {
        let daemons: FxHashSet<_> = server.daemons.iter().copied().collect();
        let place = match &server.place {
            DataPlace::Here { addresses, network } => {
                let network = network.as_deref();
                // The library inherits the namespace for its threads from this thread, and for its
                // connections from those.
                let mount = in_network(network, || mount(format!("data-{number}")));
                let mount = mount.map_err(|error| {
                    let path = network.map(PathBuf::from).unwrap_or_default();
                    OpenError::Network { path, error }
                })??;
                let (map, ids) = (map.clone(), ids.clone());
                let data = CephData::new(mount, map, ids, data_fs, daemons.clone(), false);
                Place::Here(Arc::new(data), addresses.clone())
            }
            DataPlace::Far(node) => Place::Far(node.clone()),
        };
        servers.push(Arc::new(Server::new(place, daemons)));
    }
    let (keys, as_client) = (options.data_keys.clone(), as_client.clone());
    let evict = move |number| {
        let name = |keys: &DataKeys| node::client_name(keys.store(), number);
        let uuid = keys.as_ref().map_or_else(String::new, name);
        // A mount with the same uuid evicts the old client: it loses its capabilities, and its late
        // writes are rejected.
        Mount::new(&MountOptions { uuid, ..as_client.clone() }).map(drop)
    };
    let data_fs = (options.data_fs)(&data_fs);
    let told = (data_fs, options.told);
    let spread = Arc::new(Spread::new(map, servers, ids, told, Arc::new(evict)));
    let watch = Periodic::start("dafs-ceph-watch", WATCH_INTERVAL, &spread, Spread::turn);
    let watch = watch.map_err(OpenError::Thread)?;
    Ok((spread, watch))
}

/// Returns the object of some attributes. For objects in a snapshot, the library returns the
/// snapshot as the device.
fn object(stat: &StatX) -> Object {
    Object { ino: stat.ino, snap: stat.dev }
}

impl Shared {
    fn homes(&self) -> MutexGuard<'_, FxHashMap<Object, Home>> {
        self.homes.lock()
    }

    /// Returns the mount for an object: the one where it is open, else the first.
    fn home(&self, object: Object) -> usize {
        self.homes().get(&object).map_or(0, |home| home.mount)
    }

    /// Returns the mount for an open of a file: the one where it is open, else one that its inode
    /// number determines.
    fn home_of_open(&self, object: Object) -> usize {
        let open = self.homes().get(&object).map(|home| home.mount);
        open.unwrap_or_else(|| usize::try_from(object.ino).unwrap_or(0) % self.mounts.len())
    }

    fn is_open(&self, object: Object) -> bool {
        self.homes().contains_key(&object)
    }

    fn inode(&self, id: &FileId) -> Result<(Object, Inode)> {
        let object: Object = self.ids.open(id)?;
        let inode = self.mounts[self.home(object)].inode(object.ino, object.snap)?;
        Ok((object, inode))
    }

    /// Returns the inode of an id on a given mount.
    fn inode_on(&self, mount: &Arc<Mount>, id: &FileId) -> Result<(Object, Inode)> {
        let object: Object = self.ids.open(id)?;
        Ok((object, mount.inode(object.ino, object.snap)?))
    }

    /// Returns the attributes of an existing object, which has a name or is open here.
    fn stat(&self, object: Object, inode: &Inode) -> Result<Attr> {
        let attr = inode.stat()?;
        // The library's cache keeps removed objects.
        if attr.links == 0 && !self.is_open(object) {
            return Err(StoreError::Stale);
        }
        Ok(attr)
    }
}
