//! Files whose content is spread over several nodes. Names and attributes are in a local directory
//! (the metadata directory); stripes of content are on nodes, round robin.
//!
//! Notes
//! * A regular file in the metadata directory has no content of its own; its size is the size of
//!   the file. Its extended attribute `user.dafs.stripes` (`record`), which clients do not see,
//!   names the nodes of the content. The file gets the record together with its first content.
//! * A file of the metadata directory that has content and no record is served as it is.
//! * A record belongs to one metadata file. A copy of that file, made by any tool, cannot be read
//!   ([`StoreError::Io`](dafs_store::StoreError::Io)). No striped file can be read once the secret
//!   is lost.
//! * Holes are not distinguished from zeros, and the reported space of a file is at least its size.
//! * With [`StripedOptions::copies`] above 1, new files have whole copies on as many nodes instead
//!   of stripes on all nodes (`copies`).
//!
//! Invariants
//! * The size of a file is extended only after the data is on the node. Only a change of the size
//!   makes it smaller.
//! * Before components are truncated, the record holds the new size. The next use of the file
//!   finishes an unfinished truncation first, also after a restart (`truncations`: on the nodes that
//!   are reachable).
//! * Components are removed only after the last name and the last open of a file are gone and the
//!   removal of the name is stable.
//! * Data of components beyond the size never reappears: a change of the size truncates all
//!   components that may have such data.

#![forbid(unsafe_code)]

mod copies;
mod file;
mod layouts;
mod limits;
mod moving;
mod pending;
mod record;
mod slots;
mod stable;
mod state;
mod store;
mod truncations;

pub use copies::{Fault, Faults, Leaving, Scrubbed};
pub use moving::{Relocation, Walk};

use dafs_mem::{Failing, Mutex, RwLock, VolatileSlice};
use dafs_posix::{PosixStore, ServerGuard};
use dafs_store::backend::{STRIPE_BYTES_MAX, STRIPE_BYTES_MIN, before};
use dafs_store::node::{ComponentId, Node, component_store_fs};
use dafs_store::{
    Attr, COPIES_MAX, Cred, DEVICE_SERVERS_MAX, DataKeys, Device, DeviceKey, FileId, FsId, Kind,
    Result, Stability, StoreError,
};
use pending::{List, Pending};
use rustc_hash::{FxHashMap, FxHashSet};
use slots::{Slot, Slots};
use state::{FileState, Place};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The options of a [`StripedStore`].
pub struct StripedOptions {
    /// The key of records, the same after every restart.
    pub secret: [u8; 16],
    /// The keys of the handles by which clients name components. Data servers have them, too. A
    /// client that knows one can reach every component.
    pub component_keys: DataKeys,
    /// The file system id of the handles by which clients name components to data servers.
    pub component_fs: FsId,
    /// Bytes of a stripe of new files: from 4096 to 2^30, a multiple of 64.
    pub unit_bytes: NonZeroU32,
    /// The number of nodes that hold the whole of each new file. With 1 the file has stripes on all
    /// nodes instead.
    pub copies: usize,
    /// A directory for the list of components to be removed. It is made if it does not exist.
    pub removed: PathBuf,
    /// A directory for the list of components that moved files have left. It is made if it does not
    /// exist.
    pub left: PathBuf,
    /// A file with the numbers of nodes that are being emptied, in an existing directory.
    pub leaving: PathBuf,
    /// A directory for the list of files with copies to be repaired. It is made if it does not
    /// exist.
    pub repairs: PathBuf,
    /// The clock of leases and pauses.
    pub clock: Arc<dyn Clock>,
    /// Called when unstable data may be lost.
    pub lost: Box<dyn Fn() + Send + Sync>,
}

impl StripedOptions {
    /// Returns the options of a store with stripes, whose lists are below a directory.
    pub fn new(lists: &Path, secret: [u8; 16], unit_bytes: NonZeroU32) -> Self {
        Self {
            secret,
            component_keys: DataKeys::new(secret, secret),
            component_fs: component_store_fs(&secret),
            unit_bytes,
            copies: 1,
            removed: lists.join("removed"),
            left: lists.join("left"),
            leaving: lists.join("leaving"),
            repairs: lists.join("repairs"),
            clock: Arc::new(SystemClock),
            lost: Box::new(|| {}),
        }
    }
}

/// A source of time.
pub trait Clock: Send + Sync {
    /// Returns the present time.
    fn now(&self) -> Instant;

    /// Blocks the thread for a while.
    fn sleep(&self, time: Duration);
}

/// The clock of the system.
#[derive(Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A store whose files are spread over nodes.
pub struct StripedStore {
    shared: Arc<Shared>,
}

/// The state that all files of a store share.
struct Shared {
    meta: PosixStore,
    slots: Slots,
    options: StripedOptions,
    states: Mutex<FxHashMap<FileId, Weak<FileState>>>,
    /// Held exclusively while no name may begin to lead to another file. Held shared by removals and renames.
    names: RwLock<()>,
    /// Components of removed files that are still open.
    held: Mutex<FxHashSet<ComponentId>>,
    removed: Pending,
    /// Components that files may have left.
    left: Pending,
    /// Held by the thread that changes the list `left`.
    left_turn: Mutex<()>,
    /// Components of files that are being moved.
    moving: Mutex<FxHashSet<ComponentId>>,
    /// Counts the moves of relevant objects to another directory.
    wandered: AtomicU64,
    /// Components that must not be used before they are truncated, by the number of the node, with
    /// their files. Only of files in use.
    truncations: Mutex<FxHashMap<(ComponentId, u32), FileId>>,
    /// Files with stale copies.
    repairs: Pending,
    /// Files in use whose copies may differ, because a writer is active.
    torn: Mutex<FxHashMap<FileId, Arc<FileState>>>,
    /// Files to ask the service about: do clients hold layouts for writing? True if it is to recall
    /// them.
    asked: Mutex<FxHashMap<FileId, bool>>,
    /// The number of threads that wait for unreachable data servers.
    grant_waiters: AtomicUsize,
    /// Files whose placement has changed.
    moved: Mutex<Vec<FileId>>,
    devices: Mutex<Devices>,
    /// The files of the components that this run has handed out to clients, for as long as the file
    /// is in use.
    files: Mutex<FxHashMap<ComponentId, Known>>,
    failing: Repeated,
}

/// Work that is tried again and again.
#[derive(Default)]
struct Repeated {
    /// To remove components that files have left.
    left: Failing,
    /// To remove components of removed files.
    removed: Failing,
    /// To read the list of files to be repaired.
    repairs: Failing,
}

/// A device that was handed out to clients.
struct KnownDevice {
    device: Device,
    /// The numbers of its nodes, in the order of its servers.
    nodes: Vec<u32>,
    /// The DAFS addresses of its servers.
    dafs: Vec<Vec<SocketAddr>>,
}

/// The devices that clients may know.
#[derive(Default)]
struct Devices {
    /// The current devices, with the numbers of their nodes.
    known: FxHashMap<DeviceKey, KnownDevice>,
    /// Devices that no placement names any more; clients are to be notified of their deletion.
    gone: Vec<DeviceKey>,
}

/// The file that a component is of.
struct Known {
    file: FileId,
    /// The nodes whose copies clients may use; `None` of stripes.
    usable: Option<Vec<u32>>,
}

/// The credentials of the server itself, as a caller of the metadata store.
fn server() -> Cred {
    Cred::new(0, 0)
}

impl StripedStore {
    /// Spreads the content of new files of `meta` over `nodes`. The nodes that hold content of
    /// older files must be among them.
    ///
    /// # Errors
    /// * [`StoreError::Invalid`] for options and nodes that cannot be used.
    /// * [`StoreError::NotSupported`] when the metadata directory cannot keep extended attributes.
    /// * Those of the lists of files.
    pub fn open(
        meta: PosixStore,
        nodes: Vec<Arc<dyn Node>>,
        options: StripedOptions,
    ) -> Result<Self> {
        use dafs_store::Store as _;
        let unit = options.unit_bytes.get();
        let mut numbers: Vec<_> = nodes.iter().map(|node| node.number()).collect();
        numbers.sort_unstable();
        let sound = (STRIPE_BYTES_MIN..=STRIPE_BYTES_MAX).contains(&unit)
            && unit.is_multiple_of(64)
            && (1..=DEVICE_SERVERS_MAX).contains(&nodes.len())
            && (1..=COPIES_MAX.min(nodes.len())).contains(&options.copies)
            && numbers.windows(2).all(|pair| pair[0] != pair[1]);
        if !sound {
            return Err(StoreError::Invalid);
        }
        if !meta.capabilities().xattrs {
            return Err(StoreError::NotSupported);
        }
        let key = options.secret;
        let removed = Pending::open(&options.removed, List::Removed, key)?;
        let repairs = Pending::open(&options.repairs, List::Repairs, key)?;
        let left = Pending::open(&options.left, List::Left, key)?;
        let shared = Arc::new(Shared {
            meta,
            slots: Slots::open(nodes, &options.leaving, key)?,
            options,
            states: Mutex::default(),
            names: RwLock::default(),
            held: Mutex::default(),
            removed,
            left,
            left_turn: Mutex::default(),
            moving: Mutex::default(),
            wandered: AtomicU64::new(0),
            repairs,
            torn: Mutex::default(),
            asked: Mutex::default(),
            grant_waiters: AtomicUsize::new(0),
            moved: Mutex::default(),
            devices: Mutex::default(),
            files: Mutex::default(),
            truncations: Mutex::default(),
            failing: Repeated::default(),
        });
        shared.note_devices();
        Ok(Self { shared })
    }

    /// Returns the size of the file of a component. It knows the files that this run has handed out
    /// to clients and that are in use.
    ///
    /// # Errors
    /// [`StoreError::Busy`] for other components.
    pub fn size_of(&self, component: &ComponentId) -> Result<u64> {
        use dafs_store::Store as _;
        let file = self.shared.files.lock().get(component).map(|known| known.file);
        Ok(self.shared.meta.getattr(&file.ok_or(StoreError::Busy)?)?.size)
    }

    /// Reads from the file of a component, for a data server that was asked for bytes of another
    /// node. Ends at the end of the piece that begins at `offset`, because the next one is on
    /// another node.
    ///
    /// # Errors
    /// [`StoreError::Busy`] where the file is not known, as with [`size_of`](Self::size_of); the
    /// node's.
    pub fn read_component(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        self.with_piece(component, views, offset, |node, views| {
            node.node.read(component, views, offset).map_err(StoreError::of_node)
        })
    }

    /// Writes to the file of a component, up to the end of the piece that begins at `offset`. The
    /// data is stable when the call returns; the size of the file does not change.
    ///
    /// # Errors
    /// As for [`read_component`](Self::read_component).
    pub fn write_component(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        self.with_piece(component, views, offset, |slot, views| {
            let written = slot.node.write(component, views, offset, Stability::Data);
            let written = written.map_err(StoreError::of_node)?;
            self.shared.note_verifier(slot, written.verifier);
            Ok(written.count)
        })
    }

    /// Runs a function with the node that holds the byte at `offset`, and with the node's part of
    /// the views.
    fn with_piece(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
        run: impl FnOnce(&Slot, &[VolatileSlice<'_>]) -> Result<usize>,
    ) -> Result<usize> {
        let file = self.shared.files.lock().get(component).map(|known| known.file);
        let state = self.shared.state(&file.ok_or(StoreError::Busy)?);
        let place = state.enter()?;
        let Place::Striped(record) = &*place else { return Err(StoreError::Busy) };
        // A write here would miss the new nodes of a file that is being moved; and a copy has no
        // other node.
        if record.component != *component || record.whole.is_some() || state.is_moving() {
            return Err(StoreError::Busy);
        }
        let wanted = views.iter().map(VolatileSlice::len).sum();
        let Some(piece) = record.pieces(offset, wanted).next() else { return Ok(0) };
        let _server = self.shared.as_server()?;
        run(&*state.slot(record, piece.place)?, &before(views, piece.len))
    }
}

impl Drop for StripedStore {
    fn drop(&mut self) {
        // Drops the states after the lock is released, because they refer to the store.
        let torn = std::mem::take(&mut *self.shared.torn.lock());
        drop(torn);
    }
}

impl std::fmt::Debug for StripedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StripedStore").field("meta", &self.shared.meta).finish_non_exhaustive()
    }
}

impl Shared {
    /// Returns the node with a number.
    fn slot(&self, number: u32) -> Result<Arc<Slot>> {
        self.slots.find(number).ok_or_else(|| {
            tracing::error!(number, "a file lies on a node that is not configured");
            StoreError::Io
        })
    }

    fn clock(&self) -> &dyn Clock {
        &*self.options.clock
    }

    /// Gives the thread the identity of the server while it works on nodes.
    fn as_server(&self) -> Result<ServerGuard> {
        self.meta.as_server()
    }

    /// Records a node's write verifier. False if it has changed; then the server has reported the
    /// loss of unstable data.
    fn note_verifier(&self, slot: &Slot, verifier: u64) -> bool {
        // The lock is held while the loss is reported. Any thread that sees the new verifier comes
        // after the report.
        let mut known = slot.verifier.lock();
        let same = *known == 0 || *known == verifier;
        if !same {
            tracing::warn!(node = slot.node.number(), "a node has lost what was not stable");
            (self.options.lost)();
        }
        *known = verifier;
        same
    }

    /// Returns the state of a file, shared by all its users.
    fn state(self: &Arc<Self>, id: &FileId) -> Arc<FileState> {
        let mut states = self.states.lock();
        if let Some(state) = states.get(id).and_then(Weak::upgrade) {
            return state;
        }
        let state = Arc::new(FileState::new(self.clone(), *id));
        states.insert(*id, Arc::downgrade(&state));
        state
    }
}

/// Returns the attributes of an object as clients see them. The blocks of a metadata file do not
/// show its content, and some tools take a file without blocks for an empty one.
fn shown(attr: Attr) -> Attr {
    match attr.kind {
        Kind::Regular => Attr { space_used: attr.space_used.max(attr.size), ..attr },
        _ => attr,
    }
}
