//! A store on GlusterFS, by way of libgfapi, which is opened at run time.
//!
//! What is not obvious
//! * A volume is used by one client of GlusterFS in a process, whatever is exported of it, and stays in
//!   use until the process ends: to give one back takes the library ten seconds.
//! * Others may use the volume meanwhile. What they do is seen at once, since the parts of the library
//!   that keep something are told to let everything through.
//! * An export of a part of a volume does not notice when others move what a client has looked up out
//!   of that part: its id keeps working.
//!
//! Invariants
//! * What was written is at the brick when a call returns, and stable when a sync has returned.
//! * The caller's rights are checked by the bricks, which are told who calls.
//! * What a client has written at a data server is seen by all who look at the file, as is its size; its
//!   time of change moves when that is committed, or the layout goes.
//! * No regular file gets the sticky bit: GlusterFS marks files with it that it moves.
//! * All unsafe code is in `sys`.

mod attr;
mod brick;
mod data;
mod file;
mod id;
mod layouts;
mod limits;
mod names;
mod node;
mod store;
mod sys;
mod volume;

pub use data::GlusterData;
pub use node::{GlusterNode, GlusterNodeOptions};
pub use sys::Unavailable;

use attr::attr;
use brick::Brick;
use dafs_store::node::Node;
use dafs_store::{
    Attr, Cred, DEVICE_SERVERS_MAX, ExportSecret, FileId, FsId, Kind, NfsAddresses, NoOutcome,
    Result, StoreError, Tries,
};
use file::Opens;
use id::Ids;
use layouts::{Place, Server, Spread, Watch};
use limits::OPEN_TIMEOUT;
use rustc_hash::FxHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::{Gfid, Mount, MountOptions, Object};
use thiserror::Error;
use volume::Volume;

/// How to open a [`GlusterStore`].
#[derive(Debug, Clone)]
pub struct GlusterOptions {
    /// The volume.
    pub volume: String,
    /// Hosts whose management daemons know the volume, with their ports where these are not 24007; the
    /// first that answers is asked.
    pub servers: Vec<(String, Option<u16>)>,
    /// The directory to export, from the top of the volume.
    pub root: String,
    /// The key of the ids; the same after every restart.
    pub secret: ExportSecret,
    /// Data servers, each for one brick; at most 256.
    pub data_servers: Vec<DataServerOptions>,
    /// The key of the names by which data servers of other processes know files, if there are any.
    pub data_secret: Option<ExportSecret>,
    /// What the file system of a data server's handles is called, when its store is called so.
    pub data_fs: fn(&FsId) -> FsId,
}

/// A data server, that clients go to for what lies on its brick.
#[derive(Debug, Clone)]
pub struct DataServerOptions {
    /// Where it is.
    pub place: DataPlace,
    /// The brick, as `gluster volume info` names it: HOST:PATH, with the path on its machine.
    pub brick: String,
}

/// Where a data server is.
#[derive(Clone)]
pub enum DataPlace {
    /// In this process, on the brick's machine; clients reach it there.
    Here(NfsAddresses),
    /// In another process: a [`GlusterNode`] behind a control connection.
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

/// Why a store cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libgfapi cannot be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A step did not work.
    #[error("{step} failed ({}){}", std::io::Error::from_raw_os_error(*.errno), hint(.step, *.errno))]
    Step {
        /// Which.
        step: Step,
        /// What the library says about it.
        errno: i32,
    },
    /// No server is named.
    #[error("name at least one host with a management daemon (glusterd)")]
    Servers,
    /// The volume does not tell who it is.
    #[error("the volume does not tell its id: {0}")]
    VolumeId(StoreError),
    /// The exported directory cannot be looked at.
    #[error("the directory cannot be looked at: {0}")]
    Root(StoreError),
    /// Nothing comes of it.
    #[error("nothing has come of it for {} seconds; do glusterd and the bricks run, and can this host reach them?", .0.as_secs())]
    Timeout(Duration),
    /// So many wait already.
    #[error(
        "{0} tries to open the volume still wait for it; if it is there, start this server again"
    )]
    Stuck(usize),
    /// The volume does not say what it consists of.
    #[error("the volume does not say what it consists of: {0}")]
    Volume(StoreError),
    /// Its bricks cannot be used past GlusterFS.
    #[error(
        "the bricks of the volume must not be used past GlusterFS, because it has {0}: leave the data servers out. \
         Only a volume that does nothing but distribute whole files can have them"
    )]
    NotPlain(String),
    /// There is no such brick.
    #[error("the volume has no brick {brick:?}; it has {}", .bricks.join(", "))]
    NoBrick {
        /// What was asked for.
        brick: String,
        /// What there is.
        bricks: Vec<String>,
    },
    /// A brick cannot be used.
    #[error(
        "the brick {brick:?} cannot be used: {error}; a data server runs, as root, on the machine of its brick"
    )]
    Brick {
        /// Which.
        brick: String,
        /// Why.
        error: std::io::Error,
    },
    /// There are too many data servers.
    #[error("there can be 256 data servers at most")]
    DataServers,
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// Something cannot be told to the library.
    #[error("names and paths cannot have a byte of zero")]
    ZeroByte,
}

/// What is done to use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum Step {
    Client,
    Server,
    Option,
    Mount,
}

impl Step {
    /// What a call of the library answered, when it is done to take this step.
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

/// What to look at when a step fails so.
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

/// What the store and its files share.
struct Shared {
    mount: Arc<Mount>,
    ids: Ids,
    root: Gfid,
    opens: Mutex<FxHashMap<Gfid, Opens>>,
    /// Where files lie, if there are data servers, and who watches that.
    spread: Option<(Arc<Spread>, Watch)>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("mount", &self.mount).finish_non_exhaustive()
    }
}

/// The server itself, as a caller.
fn server() -> Cred {
    static SERVER: LazyLock<Cred> = LazyLock::new(|| Cred::new(0, 0));
    SERVER.clone()
}

/// The volume in use; from now on, if it was not.
fn mounted(options: &MountOptions) -> std::result::Result<Arc<Mount>, OpenError> {
    static MOUNTS: Mutex<Vec<(MountOptions, Arc<Mount>)>> = Mutex::new(Vec::new());
    // It is whole between any two steps, and free while somebody waits for bricks.
    let mounts = || MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Waits for a work of which nothing may ever come.
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
    /// Opens a directory of a volume. Waits for the bricks for a while.
    ///
    /// # Errors
    /// What is missing or wrong, for whoever set it up.
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
        let (ids, opens) = (Ids::new(fs_id, options.secret), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { mount, ids, root, opens, spread }) })
    }

    /// The data servers of this process, in the order of the options.
    pub fn data_servers(&self) -> Vec<Arc<GlusterData>> {
        let spread = self.shared.spread.iter();
        spread.flat_map(|(spread, _)| spread.here()).cloned().collect()
    }
}

/// Data servers, each with its brick.
fn spread(
    options: &GlusterOptions,
    mount: &Arc<Mount>,
    volume_id: &[u8; 16],
    fs_id: FsId,
) -> std::result::Result<(Arc<Spread>, Watch), OpenError> {
    if options.data_servers.len() > DEVICE_SERVERS_MAX {
        return Err(OpenError::DataServers);
    }
    let volume = plain_volume(mount)?;
    let ids = Arc::new(match options.data_secret {
        Some(secret) => data_ids(secret, &[]),
        None => data_ids(options.secret, &fs_id.0),
    });
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
    let watch = Watch::start(&spread).map_err(OpenError::Thread)?;
    Ok((spread, watch))
}

/// What a volume consists of whose bricks may be used past GlusterFS.
fn plain_volume(mount: &Mount) -> std::result::Result<Volume, OpenError> {
    let volume = Volume::parse(&mount.volfile().map_err(OpenError::Volume)?);
    match volume.other {
        Some(other) => Err(OpenError::NotPlain(other)),
        None => Ok(volume),
    }
}

/// Where a brick of the volume is on its machine.
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

/// The names of files for data servers, by a key that they and the metadata server have, and what
/// else tells them from those of other stores.
fn data_ids(secret: ExportSecret, of: &[u8]) -> Ids {
    let mut hasher = SipHasher24::new_with_key(secret.as_bytes());
    hasher.write(b"data servers");
    hasher.write(of);
    Ids::new(FsId(hasher.finish128().as_bytes()), secret)
}

/// The directory at a path from the top. Links are not followed.
fn root(mount: &Arc<Mount>, path: &str) -> Result<Gfid> {
    let mut at = mount.top()?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = at.lookup(name.as_bytes(), &server())?.0;
    }
    match attr(&at.stat()?)?.kind {
        Kind::Directory => at.gfid(),
        _ => Err(StoreError::NotDirectory),
    }
}

impl Shared {
    fn opens(&self) -> MutexGuard<'_, FxHashMap<Gfid, Opens>> {
        // It is whole between any two steps.
        self.opens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an id names, and its attributes. A file whose last name is gone has no object any more, but
    /// attributes for as long as it is open.
    fn object(&self, id: &FileId) -> Result<(Gfid, Result<Object>, Attr)> {
        let gfid = self.ids.open(id)?;
        let found = self.mount.object(&gfid).and_then(|object| {
            let attr = attr(&object.stat()?)?;
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
