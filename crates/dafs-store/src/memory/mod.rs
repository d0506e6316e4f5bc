//! A complete file system in memory: for tests, for the simulator, and as a kind of export.
//!
//! It checks rights by mode bits as a local file system does (user id 0 has all rights), and never
//! blocks. It is deterministic if it gets a key for its ids: times come from the clock in its
//! options, inode numbers, cookies and change values from counters. Reading does not change the
//! access time. All content is gone when the store is dropped, so "stable" means as stable as the
//! process.
//!
//! Invariants
//! * Inode numbers are never reused, so the id of a removed object is stale for ever.
//! * Each store has a random key, unless the options give one. It refuses ids of other stores.
//! * Lock order: the world, then one object. Two objects are locked together only by a thread that
//!   holds the world for writing. Sinks of `readdir` are called with no lock held.
//! * An object without a name stays until its last open file is dropped.

mod content;
mod file;
mod image;
mod listing;
mod object;
mod ranges;
mod store;
mod tree;
mod xattr;

use crate::{Cred, ExportSecret, FILE_ID_BYTES, FileId, FsId, Kind, Result, StoreError, TimeSpec};
use content::{Content, Space};
use dafs_mem::RwLock;
use object::{Body, Directory, Object, State};
use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use tree::World;
use xattr::Xattrs;

pub use image::{MemoryContent, MemoryImage};

/// The clock of the store.
pub type Clock = Arc<dyn Fn() -> TimeSpec + Send + Sync>;

const ID_MAGIC: [u8; 4] = *b"mem1";
const ROOT_INO: u64 = 1;

/// The options of a [`MemoryStore`].
#[derive(Clone)]
pub struct MemoryOptions {
    /// The identity of the file system; ids carry it.
    pub fs_id: FsId,
    /// The most bytes of file content (in whole pages of 4 KiB), of names (each counted twice), and
    /// of the texts of symlinks.
    pub bytes_max: u64,
    /// The most objects.
    pub files_max: u64,
    /// Refuse every change.
    pub read_only: bool,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// The clock.
    pub clock: Clock,
    /// The key of the ids; a new random one if `None`. A fixed key makes ids the same in every run.
    /// An id of an earlier run may then name another object, so it is for simulations and tests.
    pub id_key: Option<ExportSecret>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            fs_id: FsId(*b"dafs memory fs  "),
            bytes_max: 1 << 30,
            files_max: 1 << 20,
            read_only: false,
            root_owner: (0, 0),
            root_mode: 0o755,
            clock: Arc::new(system_time),
            id_key: None,
        }
    }
}

impl fmt::Debug for MemoryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryOptions")
            .field("bytes_max", &self.bytes_max)
            .field("files_max", &self.files_max)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

fn system_time() -> TimeSpec {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    TimeSpec { seconds, nanoseconds: since.subsec_nanos() }
}

/// Returns an unpredictable key, from the random numbers of the standard library's hash maps.
fn random_key() -> [u8; 16] {
    let random = RandomState::new();
    let mut key = [0; 16];
    for (part, number) in key.chunks_exact_mut(8).zip(0u64..) {
        part.copy_from_slice(&random.hash_one(number).to_le_bytes());
    }
    key
}

/// Returns the inode number in an id, which may be that of another store.
fn number(id: &FileId) -> u64 {
    let mut ino = [0; 8];
    ino.copy_from_slice(&id.0[8..16]);
    u64::from_be_bytes(ino)
}

/// A file system in memory.
pub struct MemoryStore {
    inner: Arc<Inner>,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// The state that the store and its open files share.
struct Inner {
    options: MemoryOptions,
    id_key: [u8; 16],
    space: Arc<Space>,
    changes: AtomicU64,
    world: RwLock<World>,
}

impl MemoryStore {
    /// Makes an empty file system.
    pub fn new(options: MemoryOptions) -> Self {
        let inner = Inner {
            space: Arc::new(Space::new(options.bytes_max)),
            changes: AtomicU64::new(1),
            world: RwLock::new(World::new(options.files_max)),
            id_key: options.id_key.map_or_else(random_key, |key| *key.as_bytes()),
            options,
        };
        let (uid, gid) = inner.options.root_owner;
        let mut state = inner.new_state(&Cred::new(uid, gid), inner.options.root_mode);
        state.links = 2;
        state.body = Body::Directory(Directory::new(ROOT_INO));
        let root = (inner.id(ROOT_INO), ROOT_INO);
        inner.world_mut().put(Object::new(root, Kind::Directory, None, state));
        Self { inner: Arc::new(inner) }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryOptions::default())
    }
}

impl Inner {
    fn world(&self) -> RwLockReadGuard<'_, World> {
        self.world.read()
    }

    fn world_mut(&self) -> RwLockWriteGuard<'_, World> {
        self.world.write()
    }

    fn now(&self) -> TimeSpec {
        (self.options.clock)()
    }

    fn next_change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn touch(&self, state: &mut State, content: bool) {
        state.touch(self.now(), self.next_change(), content);
    }

    /// Returns the state of a new object of the caller, with one name and without a body.
    fn new_state(&self, cred: &Cred, mode: u32) -> State {
        let now = self.now();
        State {
            mode,
            uid: cred.uid,
            gid: cred.gid,
            links: 1,
            raw_device: (0, 0),
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: self.next_change(),
            verifier: None,
            linkable: false,
            attr_dir: None,
            xattrs: Xattrs::default(),
            body: Body::Special,
        }
    }

    fn new_content(&self) -> Body {
        Body::File(Content::new(self.space.clone()))
    }

    fn id(&self, ino: u64) -> FileId {
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[..4].copy_from_slice(&ID_MAGIC);
        bytes[8..16].copy_from_slice(&ino.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.options.fs_id.0);
        let check = SipHasher24::new_with_key(&self.id_key).hash(&bytes[..40]);
        bytes[40..].copy_from_slice(&check.to_le_bytes());
        FileId(bytes)
    }

    /// Returns the inode number in an id of this store.
    fn ino(&self, id: &FileId) -> Result<u64> {
        let ino = number(id);
        if self.id(ino) == *id { Ok(ino) } else { Err(StoreError::BadHandle) }
    }

    fn object(&self, id: &FileId) -> Result<Arc<Object>> {
        match self.world().object(number(id)) {
            // The same bytes have the same key.
            Ok(object) if object.id == *id => Ok(object),
            _ => self.ino(id).and(Err(StoreError::Stale)),
        }
    }

    fn writable(&self) -> Result<()> {
        if self.options.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }
}
