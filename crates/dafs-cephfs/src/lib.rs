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
//! * All unsafe code is in `sys`.

mod attr;
mod file;
mod id;
mod limits;
mod names;
mod store;
mod sys;

pub use sys::Unavailable;

use dafs_store::{Cred, ExportSecret, FileId, FsId, Result, StoreError};
use id::{Ids, Object};
use rustc_hash::FxHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::{Inode, Mount, MountOptions, Perm, StatX};
use thiserror::Error;

/// How to open a [`CephStore`].
#[derive(Debug, Clone)]
pub struct CephOptions {
    /// The configuration of the cluster; `None` takes ceph's usual places.
    pub config: Option<PathBuf>,
    /// The user of the cluster, without "client."; `None` is admin.
    pub user: Option<String>,
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
}

/// Why a store cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libcephfs cannot be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A step did not work.
    #[error("{0} failed: {1}; is the cluster up, and may this user mount the directory?")]
    Step(&'static str, StoreError),
    /// The number of mounts is out of range.
    #[error("the number of mounts has to be from 1 to 64")]
    Mounts,
    /// Something cannot be told to the library.
    #[error("names and paths cannot have a byte of zero")]
    ZeroByte,
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

impl CephStore {
    /// Mounts a directory of CephFS. Waits for the cluster for a while.
    ///
    /// # Errors
    /// What is missing or wrong, for whoever set it up.
    pub fn open(options: &CephOptions) -> std::result::Result<Self, OpenError> {
        if !(1..=limits::MOUNTS_MAX).contains(&options.mounts) {
            return Err(OpenError::Mounts);
        }
        let mount = |number: usize| {
            Mount::new(&MountOptions {
                config: options.config.clone(),
                user: options.user.clone(),
                file_system: options.file_system.clone(),
                root: options.root.clone(),
                uuid: format!("dafs-{}-{number}", options.identity),
            })
            .map(Arc::new)
        };
        let mounts = (0..options.mounts).map(mount).collect::<std::result::Result<Vec<_>, _>>()?;
        let step = |error| OpenError::Step("looking at the exported directory", error);
        let stat = mounts[0].root().and_then(|root| {
            let perm = Perm::new(&mounts[0], &server())?;
            root.stat(&perm)
        });
        let root = object(&stat.map_err(step)?);
        let mut hasher = SipHasher24::new_with_key(options.secret.as_bytes());
        hasher.write(options.file_system.as_deref().unwrap_or_default().as_bytes());
        hasher.write_u64(root.ino);
        hasher.write_u64(root.snap);
        let fs_id = FsId(hasher.finish128().as_bytes());
        let ids = Ids::new(fs_id, options.secret);
        let shared = Shared { mounts, ids, root, homes: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }
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
