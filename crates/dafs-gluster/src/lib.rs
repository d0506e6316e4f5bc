//! A store on GlusterFS through libgfapi, which is loaded at run time.
//!
//! Notes
//! * One process has one client of GlusterFS for each volume, for all its exports. The client is
//!   never closed before the process ends, because the library takes ten seconds to close it.
//! * Other clients may use the volume at the same time. The store sees their changes at once,
//!   because the caching parts of the library are set to pass everything through.
//! * If another client moves an object out of the exported directory, the store does not notice:
//!   its id still works.
//!
//! Invariants
//! * Written data is at the brick when a call returns, and stable when a sync has returned.
//! * The bricks check the caller's rights; each call passes the caller's identity.
//! * Data that a client has written at a data server is visible to all readers of the file, and so
//!   is its size. Its mtime changes with the commit or the end of the layout.
//! * No regular file gets the sticky bit: GlusterFS marks files with it that it moves.
//! * All unsafe code is in `sys`.

mod attr;
mod brick;
mod data;
mod file;
mod layouts;
mod limits;
mod node;
mod store;
mod sys;
mod volume;

pub use data::GlusterData;
pub use node::{GlusterNode, GlusterNodeOptions};

use attr::attr;
use brick::Brick;
use dafs_mem::{Mutex, Unavailable};
use dafs_store::inode::{Ids, Inode};
use dafs_store::node::Node;
use dafs_store::vital::Periodic;
use dafs_store::{
    Attr, Cred, DEVICE_SERVERS_MAX, DataKeys, ExportSecret, FileId, FsId, Kind, NfsAddresses,
    NoOutcome, Result, StoreError, Tries,
};
use file::Opens;
use layouts::{Place, Server, Spread};
use limits::{ID_VERSION, OPEN_TIMEOUT, WATCH_INTERVAL};
use rustc_hash::FxHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::path::Path;
use std::sync::{Arc, LazyLock, MutexGuard};
use std::time::Duration;
use sys::{Gfid, Mount, MountOptions, Object};
use thiserror::Error;
use volume::Volume;

/// The options of a [`GlusterStore`].
#[derive(Debug, Clone)]
pub struct GlusterOptions {
    /// The name of the volume.
    pub volume: String,
    /// Hosts whose management daemons know the volume, with their ports if these are not 24007. The
    /// first that answers is used.
    pub servers: Vec<(String, Option<u16>)>,
    /// The directory to export, from the top of the volume.
    pub root: String,
    /// The key of the ids, the same after every restart.
    pub secret: ExportSecret,
    /// Data servers, each for one brick; at most 256.
    pub data_servers: Vec<DataServerOptions>,
    /// The keys of the file ids for data servers in other processes, if there are any.
    pub data_keys: Option<DataKeys>,
    /// Maps the file system id of a data server's store to that of its handles.
    pub data_fs: fn(&FsId) -> FsId,
}

/// A data server, which serves clients the files of one brick.
#[derive(Debug, Clone)]
pub struct DataServerOptions {
    /// The process of the data server.
    pub place: DataPlace,
    /// The brick, as `gluster volume info` names it: HOST:PATH, with the path on its machine.
    pub brick: String,
}

/// The process of a data server.
#[derive(Clone)]
pub enum DataPlace {
    /// This process, on the brick's machine, with the addresses for clients.
    Here(NfsAddresses),
    /// Another process: a [`GlusterNode`] behind a control connection.
    Far(Arc<dyn Node>),
}

impl std::fmt::Debug for DataPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Here(addresses) => f.debug_tuple("Here").field(addresses).finish(),
            Self::Far(node) => f.debug_tuple("Far").field(&node.number()).finish(),
        }
    }
}

/// The reason why a store cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libgfapi cannot be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A step has failed.
    #[error("{step} failed ({}){}", std::io::Error::from_raw_os_error(*.errno), hint(.step, *.errno))]
    Step {
        /// The failed step.
        step: Step,
        /// The error number of the library.
        errno: i32,
    },
    /// No server is named.
    #[error("name at least one host with a management daemon (glusterd)")]
    Servers,
    /// The id of the volume cannot be read.
    #[error("the volume does not tell its id: {0}")]
    VolumeId(StoreError),
    /// The attributes of the exported directory cannot be read.
    #[error("the directory cannot be looked at: {0}")]
    Root(StoreError),
    /// The cluster has not answered in time.
    #[error("nothing has come of it for {} seconds; do glusterd and the bricks run, and can this host reach them?", .0.as_secs())]
    Timeout(Duration),
    /// Too many attempts are still waiting.
    #[error(
        "{0} tries to open the volume still wait for it; if it is there, start this server again"
    )]
    Stuck(usize),
    /// The description of the volume cannot be read.
    #[error("the volume does not say what it consists of: {0}")]
    Volume(StoreError),
    /// Data servers must not bypass GlusterFS on its bricks.
    #[error(
        "the bricks of the volume must not be used past GlusterFS, because it has {0}: leave the data servers out. \
         Only a volume that does nothing but distribute whole files can have them"
    )]
    NotPlain(String),
    /// The volume has no such brick.
    #[error("the volume has no brick {brick:?}; it has {}", .bricks.join(", "))]
    NoBrick {
        /// The wanted brick.
        brick: String,
        /// The bricks of the volume.
        bricks: Vec<String>,
    },
    /// A brick cannot be used.
    #[error(
        "the brick {brick:?} cannot be used: {error}; a data server runs, as root, on the machine of its brick"
    )]
    Brick {
        /// The brick.
        brick: String,
        /// The cause.
        error: std::io::Error,
    },
    /// There are too many data servers.
    #[error("there can be 256 data servers at most")]
    DataServers,
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// A string cannot be passed to the library.
    #[error("names and paths cannot have a byte of zero")]
    ZeroByte,
}

/// The steps of opening a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum Step {
    Client,
    Server,
    Option,
    Mount,
}

impl Step {
    /// Maps the return value of the library's call for this step.
    fn check(self, answer: i32) -> std::result::Result<(), OpenError> {
        let failed = std::io::Error::last_os_error().raw_os_error();
        match answer {
            0 => Ok(()),
            _ => Err(OpenError::Step { step: self, errno: failed.unwrap_or(libc::EIO) }),
        }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client => "making a client",
            Self::Server => "naming a server",
            Self::Option => "setting an option of GlusterFS",
            Self::Mount => "becoming a client of the volume",
        })
    }
}

/// Suggests what to check after the failure of a step.
fn hint(step: &Step, errno: i32) -> &'static str {
    match (step, errno) {
        (Step::Mount, libc::ENOENT | libc::EINVAL) => {
            "; is there a volume of this name (gluster volume list), and is it started?"
        }
        (Step::Mount, libc::EACCES | libc::EPERM) => {
            "; does the volume let this host in (auth.allow, auth.reject)?"
        }
        (Step::Mount, _) => {
            "; do glusterd and the bricks run (gluster volume status), can this host reach them, and \
             is the volume's name right?"
        }
        _ => "",
    }
}

/// A store on GlusterFS.
#[derive(Debug)]
pub struct GlusterStore {
    shared: Arc<Shared>,
}

/// The state that the store and its files share.
struct Shared {
    mount: Arc<Mount>,
    ids: Ids,
    root: Gfid,
    opens: Mutex<FxHashMap<Gfid, Opens>>,
    /// The data servers with the placement of files, if there are any, and the thread that watches
    /// both.
    spread: Option<(Arc<Spread>, Periodic)>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("mount", &self.mount).finish_non_exhaustive()
    }
}

/// The credentials of the server itself.
fn server() -> Cred {
    static SERVER: LazyLock<Cred> = LazyLock::new(|| Cred::new(0, 0));
    SERVER.clone()
}

/// Returns the client of a volume; the first call makes it.
fn mounted(options: &MountOptions) -> std::result::Result<Arc<Mount>, OpenError> {
    static MOUNTS: Mutex<Vec<(MountOptions, Arc<Mount>)>> = Mutex::new(Vec::new());
    // No thread waits for bricks while it holds the lock.
    let mounts = || MOUNTS.lock();
    let known = |mounts: &[(MountOptions, Arc<Mount>)]| {
        let found = mounts.iter().find(|(known, _)| known == options);
        found.map(|(_, mount)| mount.clone())
    };
    if let Some(mount) = known(&mounts()) {
        return Ok(mount);
    }
    let mount = Arc::new(Mount::new(options)?);
    let mut mounts = mounts();
    if let Some(mount) = known(&mounts) {
        return Ok(mount);
    }
    mounts.push((options.clone(), mount.clone()));
    Ok(mount)
}

/// Runs an open with a timeout, because it may never return.
fn in_time<T: Send + 'static>(
    open: impl FnOnce() -> std::result::Result<T, OpenError> + Send + 'static,
) -> std::result::Result<T, OpenError> {
    static TRIES: Tries = Tries::new();
    TRIES.run("dafs-gluster-open", OPEN_TIMEOUT, open).unwrap_or_else(|failed| {
        Err(match failed {
            NoOutcome::Stuck(tries) => OpenError::Stuck(tries),
            NoOutcome::Timeout(limit) => OpenError::Timeout(limit),
            NoOutcome::Thread(error) => OpenError::Thread(error),
        })
    })
}

impl GlusterStore {
    /// Opens a directory of a volume. Waits for the bricks for a limited time.
    ///
    /// # Errors
    /// The missing or wrong setting, for administrators.
    pub fn open(options: &GlusterOptions) -> std::result::Result<Self, OpenError> {
        let options = options.clone();
        in_time(move || Self::open_here(&options))
    }

    fn open_here(options: &GlusterOptions) -> std::result::Result<Self, OpenError> {
        if options.servers.is_empty() {
            return Err(OpenError::Servers);
        }
        let GlusterOptions { volume, servers, .. } = options.clone();
        let mount = mounted(&MountOptions { volume, servers })?;
        let volume_id = mount.volume_id().map_err(OpenError::VolumeId)?;
        let root = root(&mount, &options.root).map_err(OpenError::Root)?;
        let mut hasher = SipHasher24::new_with_key(options.secret.as_bytes());
        hasher.write(&volume_id);
        hasher.write(&root);
        let fs_id = FsId(hasher.finish128().as_bytes());
        let spread = match options.data_servers.is_empty() {
            true => None,
            false => Some(spread(options, &mount, &volume_id, fs_id)?),
        };
        let (ids, opens) = (Ids::new(ID_VERSION, fs_id, options.secret), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { mount, ids, root, opens, spread }) })
    }

    /// Returns the data servers of this process, in the order of the options.
    pub fn data_servers(&self) -> Vec<Arc<GlusterData>> {
        let spread = self.shared.spread.iter();
        spread.flat_map(|(spread, _)| spread.here()).cloned().collect()
    }
}

/// Makes the data servers, each with its brick.
fn spread(
    options: &GlusterOptions,
    mount: &Arc<Mount>,
    volume_id: &[u8; 16],
    fs_id: FsId,
) -> std::result::Result<(Arc<Spread>, Periodic), OpenError> {
    if options.data_servers.len() > DEVICE_SERVERS_MAX {
        return Err(OpenError::DataServers);
    }
    let volume = plain_volume(mount)?;
    let own = || DataKeys::new(fs_id.0, *options.secret.as_bytes());
    let keys = options.data_keys.clone().unwrap_or_else(own);
    let ids = Arc::new(Ids::of_data_servers(ID_VERSION, keys));
    let data_fs = ids.fs_id();
    let mut servers = Vec::new();
    for DataServerOptions { place, brick } in options.data_servers.clone() {
        let path = path_of_brick(&volume, &brick)?;
        servers.push(match place {
            DataPlace::Here(addresses) => {
                let opened = open_brick(&path, &brick, volume_id)?;
                let data = GlusterData::new(mount.clone(), opened, ids.clone(), data_fs);
                Server::new(Place::Here(Arc::new(data), addresses), brick)
            }
            DataPlace::Far(node) => Server::new(Place::Far(node), brick),
        });
    }
    let data_fs = (options.data_fs)(&data_fs);
    let spread = Arc::new(Spread::new(mount.clone(), servers, ids, data_fs, volume));
    let watch = Periodic::start("dafs-gluster-watch", WATCH_INTERVAL, &spread, Spread::turn);
    let watch = watch.map_err(OpenError::Thread)?;
    Ok((spread, watch))
}

/// Returns the description of a volume, if data servers may bypass GlusterFS on its bricks.
fn plain_volume(mount: &Mount) -> std::result::Result<Volume, OpenError> {
    let volume = Volume::parse(&mount.volfile().map_err(OpenError::Volume)?);
    match volume.other {
        Some(other) => Err(OpenError::NotPlain(other)),
        None => Ok(volume),
    }
}

/// Returns the path of a brick of the volume on its machine.
fn path_of_brick(volume: &Volume, brick: &str) -> std::result::Result<String, OpenError> {
    let path = brick.split_once(":/").map(|(_, path)| format!("/{path}"));
    path.filter(|_| volume.bricks.iter().any(|known| known == brick)).ok_or_else(|| {
        OpenError::NoBrick { brick: brick.to_owned(), bricks: volume.bricks.clone() }
    })
}

fn open_brick(
    path: &str,
    brick: &str,
    volume_id: &[u8; 16],
) -> std::result::Result<Brick, OpenError> {
    Brick::open(Path::new(path), volume_id)
        .map_err(|error| OpenError::Brick { brick: brick.to_owned(), error })
}

/// Returns the directory at a path from the root of the volume. Follows no links.
fn root(mount: &Arc<Mount>, path: &str) -> Result<Gfid> {
    let mut at = mount.top()?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = at.lookup(name.as_bytes(), &server())?.inode;
    }
    match at.stat()?.kind {
        Kind::Directory => at.gfid(),
        _ => Err(StoreError::NotDirectory),
    }
}

impl Shared {
    fn opens(&self) -> MutexGuard<'_, FxHashMap<Gfid, Opens>> {
        self.opens.lock()
    }

    /// Returns the object of an id, and its attributes. A file without a name has no object any
    /// more, but has attributes as long as it is open.
    fn object(&self, id: &FileId) -> Result<(Gfid, Result<Object>, Attr)> {
        let gfid = self.ids.open(id)?;
        let found = self.mount.object(&gfid).and_then(|object| {
            let attr = object.stat()?;
            Ok((object, attr))
        });
        match found {
            Ok((object, attr)) if attr.links > 0 => Ok((gfid, Ok(object), attr)),
            Ok(_) | Err(StoreError::Stale) => {
                let read = dafs_store::OpenMode { read: false, write: false };
                let open = self.opens().get(&gfid).and_then(|opens| opens.handle(read));
                let open = open.ok_or(StoreError::Stale)?;
                Ok((gfid, Err(StoreError::Stale), attr(&open.stat()?)?))
            }
            Err(error) => Err(error),
        }
    }
}
