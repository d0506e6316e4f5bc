//! A store on CephFS, by way of libcephfs, which is opened at run time.
//!
//! What is not obvious
//! * A store has several mounts, since the calls of one have one lock in common. They are clients of
//!   the file system like any others, and what two of them use is taken from the one for the other,
//!   at a price. So all names go through the first, as do files that it has
//!   made for as long as they are open; other files are spread over all by their content.
//! * Others may use the file system meanwhile. What they do is seen at once.
//! * An export of a part of the file system does not notice when others move what a client has
//!   looked up out of that part: its id keeps working.
//!
//! Invariants
//! * What was written is at the storage nodes when a call returns. Its size may be known to this
//!   process alone, so nothing is told to be stable before a sync of the file.
//! * The caller's rights are checked by libcephfs, which is told who calls.
//! * What a client has written at a data server is seen by all who look at the file: data servers are
//!   clients of the file system, too.
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
mod names;
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
pub use sys::Unavailable;

use dafs_store::node::Node;
use dafs_store::{
    Cred, DEVICE_SERVERS_MAX, ExportSecret, FileId, FsId, NfsAddresses, NoOutcome, Result,
    StoreError, Tries,
};
use id::{Ids, Object};
use layouts::{Place, Server, Spread, Watch};
use limits::OPEN_TIMEOUT;
use map::OsdMap;
use nudge::{Nudge, Waits};
use rustc_hash::{FxHashMap, FxHashSet};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::{ClusterOptions, Inode, Mount, MountOptions, Perm, Rados, StatX};
use thiserror::Error;

/// How to open a [`CephStore`].
#[derive(Debug, Clone)]
pub struct CephOptions {
    /// The configuration of the cluster; `None` takes ceph's usual places.
    pub config: Option<PathBuf>,
    /// The user of the cluster, without "client."; `None` is admin.
    pub user: Option<String>,
    /// The user's key; `None` for where the configuration says.
    pub keyring: Option<PathBuf>,
    /// Which file system, if the cluster has several.
    pub file_system: Option<String>,
    /// The directory to export, from the top of the file system.
    pub root: String,
    /// What this server is called in the cluster, the same after every restart. No two running
    /// servers may have the same name: each takes over from the other.
    pub identity: String,
    /// The key of the ids; the same after every restart.
    pub secret: ExportSecret,
    /// How many mounts to use; from 1 to 64.
    pub mounts: usize,
    /// Data servers, each with a mount of its own; at most 256.
    pub data_servers: Vec<DataServerOptions>,
    /// The key of the names by which data servers of other processes know files, if there are any.
    pub data_secret: Option<ExportSecret>,
    /// What clients are told of where files lie.
    pub told: Told,
    /// What the file system of a data server's handles is called, when its store is called so.
    pub data_fs: fn(&FsId) -> FsId,
}

/// A data server, that clients go to for what lies next to it.
#[derive(Debug, Clone)]
pub struct DataServerOptions {
    /// Where it is.
    pub place: DataPlace,
    /// The numbers of the storage daemons that it is next to. Each daemon has one data server.
    pub daemons: Vec<u32>,
}

/// Where a data server is.
#[derive(Clone)]
pub enum DataPlace {
    /// In this process.
    Here {
        /// Where clients reach it.
        addresses: NfsAddresses,
        /// The network namespace that it is a client of the file system from, if not this process's.
        network: Option<PathBuf>,
    },
    /// In another process: a [`CephNode`] behind a control connection.
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

/// What clients are told of where files lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Told {
    /// The data server next to the daemon that has it.
    #[default]
    Placement,
    /// The data servers by turns, whatever they are next to: what a server of pNFS says that does not
    /// know where its file system has files. For comparison; it costs most bytes a second way.
    Turns,
}

/// Why a store cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libcephfs cannot be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A step did not work.
    #[error("{step} failed ({}){}", std::io::Error::from_raw_os_error(*.errno), hint(.step, *.errno))]
    Step {
        /// Which.
        step: Step,
        /// What ceph says about it.
        errno: i32,
    },
    /// The exported directory cannot be looked at.
    #[error("the directory cannot be looked at: {0}")]
    Root(StoreError),
    /// The number of mounts is out of range.
    #[error("the number of mounts has to be from 1 to 64")]
    Mounts,
    /// The map of storage daemons cannot be had.
    #[error(
        "the map of storage daemons cannot be had from the monitors: {0}; may this user read it?"
    )]
    Map(StoreError),
    /// Nothing comes of it.
    #[error("nothing has come of it for {} seconds; does a metadata server of the cluster work?", .0.as_secs())]
    Timeout(Duration),
    /// So many wait already.
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
        /// Where it should be.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// There are too many data servers.
    #[error("there can be 256 data servers at most")]
    DataServers,
    /// Something cannot be told to the library.
    #[error("names and paths cannot have a byte of zero")]
    ZeroByte,
}

/// What is done to mount a file system.
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
    /// What a call of a library answered, when it is done to take this step.
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

/// What to look at when a step fails so.
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

/// What the store and its files share.
#[derive(Debug)]
struct Shared {
    mounts: Vec<Arc<Mount>>,
    ids: Ids,
    root: Object,
    /// The mount with which a file is open, and how many opens there are.
    homes: Mutex<FxHashMap<Object, Home>>,
    /// Where files lie, if there are data servers, and who watches that.
    spread: Option<(Arc<Spread>, Watch)>,
    _nudge: Nudge,
}

#[derive(Debug)]
struct Home {
    mount: usize,
    opens: usize,
}

/// The server itself, as a caller.
fn server() -> Cred {
    Cred::new(0, 0)
}

/// Waits for a work of which nothing may ever come.
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
    /// Mounts a directory of CephFS. Waits for the cluster for a while.
    ///
    /// # Errors
    /// What is missing or wrong, for whoever set it up.
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
        let stat = mounts[0].root().and_then(|root| {
            let perm = Perm::new(&mounts[0], &server())?;
            root.stat(&perm)
        });
        let root = object(&stat.map_err(OpenError::Root)?);
        let mut hasher = SipHasher24::new_with_key(options.secret.as_bytes());
        hasher.write(options.file_system.as_deref().unwrap_or_default().as_bytes());
        hasher.write_u64(root.ino);
        hasher.write_u64(root.snap);
        let fs_id = FsId(hasher.finish128().as_bytes());
        let ids = Ids::new(fs_id, options.secret);
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

    /// The data servers of this process, in the order of the options.
    pub fn data_servers(&self) -> Vec<Arc<CephData>> {
        let spread = self.shared.spread.iter();
        spread.flat_map(|(spread, _)| spread.here()).cloned().collect()
    }
}

/// Data servers, each with a mount of its own.
fn spread(
    options: &CephOptions,
    as_client: &MountOptions,
    fs_id: FsId,
    mount: &(dyn Fn(String) -> std::result::Result<Arc<Mount>, OpenError> + Sync),
) -> std::result::Result<(Arc<Spread>, Watch), OpenError> {
    let rados = Rados::connect(&as_client.cluster)?;
    let map = Arc::new(OsdMap::new(Box::new(rados)).map_err(OpenError::Map)?);
    let ids = Arc::new(match options.data_secret {
        Some(secret) => data_ids(secret, &[]),
        None => data_ids(options.secret, &fs_id.0),
    });
    let data_fs = ids.fs_id();
    let mut servers = Vec::new();
    for (number, server) in options.data_servers.iter().enumerate() {
        let daemons: FxHashSet<_> = server.daemons.iter().copied().collect();
        let place = match &server.place {
            DataPlace::Here { addresses, network } => {
                let network = network.as_deref();
                // The library's threads come from this one, and their connections from those.
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
    let (secret, as_client) = (options.data_secret, as_client.clone());
    let shut_out = move |number| {
        let uuid = secret.map_or_else(String::new, |secret| node::client_name(secret, number));
        // Whoever has the name loses what he holds, and whatever he still sends.
        Mount::new(&MountOptions { uuid, ..as_client.clone() }).map(drop)
    };
    let data_fs = (options.data_fs)(&data_fs);
    let told = (data_fs, options.told);
    let spread = Arc::new(Spread::new(map, servers, ids, told, Arc::new(shut_out)));
    let watch = Watch::start(&spread).map_err(OpenError::Thread)?;
    Ok((spread, watch))
}

/// The names of files for data servers, by a key that they and the metadata server have, and what
/// else tells them from those of other stores.
fn data_ids(secret: ExportSecret, of: &[u8]) -> Ids {
    let mut hasher = SipHasher24::new_with_key(secret.as_bytes());
    hasher.write(b"data servers");
    hasher.write(of);
    Ids::new(FsId(hasher.finish128().as_bytes()), secret)
}

/// Which object attributes are of. For what lies in a snapshot, the library tells the snapshot as
/// the device.
fn object(stat: &StatX) -> Object {
    Object { ino: stat.ino, snap: stat.dev }
}

impl Shared {
    fn homes(&self) -> MutexGuard<'_, FxHashMap<Object, Home>> {
        // It is whole between any two steps.
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mount to use for an object: where it is open, else the first.
    fn home(&self, object: Object) -> usize {
        self.homes().get(&object).map_or(0, |home| home.mount)
    }

    /// The mount to open a file with: where it is open, else any, but always the same one.
    fn home_of_open(&self, object: Object) -> usize {
        let open = self.homes().get(&object).map(|home| home.mount);
        open.unwrap_or_else(|| usize::try_from(object.ino).unwrap_or(0) % self.mounts.len())
    }

    fn is_open(&self, object: Object) -> bool {
        self.homes().contains_key(&object)
    }

    /// The inode of an id.
    fn inode(&self, id: &FileId) -> Result<(Object, Inode)> {
        let object = self.ids.open(id)?;
        let inode = self.mounts[self.home(object)].inode(object.ino, object.snap)?;
        Ok((object, inode))
    }

    /// The same on a mount that is chosen already.
    fn inode_on(&self, mount: &Arc<Mount>, id: &FileId) -> Result<(Object, Inode)> {
        let object = self.ids.open(id)?;
        Ok((object, mount.inode(object.ino, object.snap)?))
    }

    /// The attributes of an object that is there: with a name, or open here.
    fn stat(&self, object: Object, inode: &Inode) -> Result<StatX> {
        let stat = inode.stat(&Perm::new(inode.mount(), &server())?)?;
        // The library remembers what has gone.
        if stat.nlink == 0 && !self.is_open(object) {
            return Err(StoreError::Stale);
        }
        Ok(stat)
    }
}
