//! Files whose content is spread over several places: names and attributes lie in a local directory,
//! stripes of content on nodes, round robin.
//!
//! What is not obvious
//! * A regular file in the metadata directory has no content of its own; its size is the file's. Its
//!   extended attribute `user.dafs.stripes` (`record`), which clients do not see, says where the
//!   content lies. It comes with the first content.
//! * A file of the metadata directory that has content and no such record is served as it is.
//! * A record belongs to one metadata file. A copy of that, by whatever tool, cannot be read
//!   ([`StoreError::Io`](dafs_store::StoreError::Io)), nor can anything once the secret is lost.
//! * Holes are not told from zeros, and a file is told to use as much space as it is long.
//!
//! * With [`StripedOptions::copies`] above 1, new files have whole copies on so many nodes instead of
//!   stripes on all (`copies`).
//!
//! Invariants
//! * The size of a file is extended only after the data is on the node; it is never made shorter but
//!   by a change of the size.
//! * Before components are cut, the record says what to: whoever finds it finishes that first (`owed`: as
//!   far as nodes are there).
//! * Components are removed when the last name and the last open of a file are gone and that is stable,
//!   not before.
//! * What components have beyond the size does not come back: a change of the size cuts them wherever
//!   there may be such a thing.

#![forbid(unsafe_code)]

mod copies;
mod file;
mod layouts;
mod limits;
mod moving;
mod owed;
mod pending;
mod record;
mod slots;
mod stable;
mod state;
mod store;

pub use copies::Leaving;
pub use moving::{Relocation, Walk};

use dafs_mem::VolatileSlice;
use dafs_posix::{PosixStore, ServerGuard};
use dafs_store::backend::{STRIPE_BYTES_MAX, STRIPE_BYTES_MIN, before};
use dafs_store::node::{ComponentId, Node};
use dafs_store::{
    Attr, COPIES_MAX, Cred, DEVICE_SERVERS_MAX, Device, DeviceKey, FileId, FsId, Kind, Result,
    Stability, StoreError,
};
use pending::{List, Pending};
use rustc_hash::{FxHashMap, FxHashSet};
use slots::{Slot, Slots};
use state::{FileState, Place};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How to open a [`StripedStore`].
pub struct StripedOptions {
    /// The key of records; the same after every restart.
    pub secret: [u8; 16],
    /// The key of the handles by which clients name components, which data servers have too. Whoever
    /// knows it can reach every component.
    pub component_secret: [u8; 16],
    /// The file system id of the handles by which clients name components to data servers.
    pub component_fs: FsId,
    /// Bytes of a stripe of new files: from 4096 to 2^30, a multiple of 64.
    pub unit_bytes: NonZeroU32,
    /// On how many nodes each new file is as a whole; 1: on none, but in stripes on all.
    pub copies: usize,
    /// A directory for the list of components to be removed. It is made if it is not there.
    pub removed: PathBuf,
    /// The same for those that files have left.
    pub left: PathBuf,
    /// A file with the numbers of nodes that are being emptied, in a directory that is there.
    pub leaving: PathBuf,
    /// The same for the list of files with copies to be mended.
    pub mends: PathBuf,
    /// Called when unstable data that was written before may be lost.
    pub lost: Box<dyn Fn() + Send + Sync>,
}

/// A store whose files are spread over nodes.
pub struct StripedStore {
    shared: Arc<Shared>,
}

/// What all files share.
struct Shared {
    meta: PosixStore,
    slots: Slots,
    options: StripedOptions,
    states: Mutex<FxHashMap<FileId, Weak<FileState>>>,
    /// Components of removed files that somebody has open.
    held: Mutex<FxHashSet<ComponentId>>,
    removed: Pending,
    /// Components that files may have left.
    left: Pending,
    /// Held by whoever changes that list.
    left_turn: Mutex<()>,
    /// Components of files that are being moved.
    moving: Mutex<FxHashSet<ComponentId>>,
    /// How often something that is to be moved has gone to another directory.
    wandered: AtomicU64,
    /// Components that nobody may use before they are cut, by the number of the node, and whose they
    /// are; of files in use.
    owing: Mutex<FxHashMap<(ComponentId, u32), FileId>>,
    /// Files with stale copies.
    mends: Pending,
    /// Files whose copies may differ, because somebody writes.
    torn: Mutex<FxHashMap<FileId, Arc<FileState>>>,
    /// Files of which is to be known whether clients write to copies by themselves; and whether they are
    /// to stop.
    asked: Mutex<FxHashMap<FileId, bool>>,
    /// Threads that wait for data servers that cannot be reached.
    napping: AtomicUsize,
    /// Files whose placement has become another one.
    moved: Mutex<Vec<FileId>>,
    devices: Mutex<Devices>,
    /// Which files the components are of that clients were told about in this run, for as long as
    /// somebody uses the file.
    files: Mutex<FxHashMap<ComponentId, Known>>,
}

/// A device that clients were told of.
struct KnownDevice {
    device: Device,
    /// The numbers of its nodes, in the order of its servers.
    nodes: Vec<u32>,
    /// Where these serve DAFS.
    dafs: Vec<Vec<SocketAddr>>,
}

/// The devices that clients may know of.
#[derive(Default)]
struct Devices {
    /// With the numbers of their nodes.
    known: FxHashMap<DeviceKey, KnownDevice>,
    /// Those that no placement names any more, to be told.
    gone: Vec<DeviceKey>,
}

/// The file that a component is of.
struct Known {
    file: FileId,
    /// The nodes whose copies clients may use; `None` of stripes.
    usable: Option<Vec<u32>>,
}

/// The server itself, as a caller of the store of the metadata.
fn server() -> Cred {
    Cred::new(0, 0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these hold is whole between any two steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StripedStore {
    /// Spreads the content of new files of `meta` over `nodes`. Those that hold content of older
    /// files have to be among them.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for options and nodes that cannot be used,
    /// [`StoreError::NotSupported`] when the metadata directory cannot keep extended attributes, and
    /// what the list of removals says.
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
        let mends = Pending::open(&options.mends, List::Mends, key)?;
        let left = Pending::open(&options.left, List::Left, key)?;
        let shared = Arc::new(Shared {
            meta,
            slots: Slots::open(nodes, &options.leaving, key)?,
            options,
            states: Mutex::default(),
            held: Mutex::default(),
            removed,
            left,
            left_turn: Mutex::default(),
            moving: Mutex::default(),
            wandered: AtomicU64::new(0),
            mends,
            torn: Mutex::default(),
            asked: Mutex::default(),
            napping: AtomicUsize::new(0),
            moved: Mutex::default(),
            devices: Mutex::default(),
            files: Mutex::default(),
            owing: Mutex::default(),
        });
        shared.note_devices();
        Ok(Self { shared })
    }
}

impl StripedStore {
    /// The size of the file that a component is of; for those that clients were told about in this run
    /// and that somebody uses.
    ///
    /// # Errors
    /// [`StoreError::Busy`] where that is not known.
    pub fn size_of(&self, component: &ComponentId) -> Result<u64> {
        use dafs_store::Store as _;
        let file = lock(&self.shared.files).get(component).map(|known| known.file);
        Ok(self.shared.meta.getattr(&file.ok_or(StoreError::Busy)?)?.size)
    }
}

impl StripedStore {
    /// Reads from the file that a component is of, for a data server that was asked for what it does
    /// not have. Ends where the node that has the first byte does.
    ///
    /// # Errors
    /// [`StoreError::Busy`] where the file is not known, as with [`size_of`](Self::size_of); the node's.
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

    /// Writes to the file that a component is of, as far as the node goes that has the first byte.
    /// Stable when the call returns; the size of the file is left as it is.
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

    /// Runs something with the node that has the byte at `offset`, and with what it has of the views.
    fn with_piece(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
        run: impl FnOnce(&Slot, &[VolatileSlice<'_>]) -> Result<usize>,
    ) -> Result<usize> {
        let file = lock(&self.shared.files).get(component).map(|known| known.file);
        let state = self.shared.state(&file.ok_or(StoreError::Busy)?);
        let place = state.enter()?;
        let Place::Striped(record) = &*place else { return Err(StoreError::Busy) };
        // While it is moved, nobody is to come this way any more; and a copy lies nowhere else.
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
        // These know the store.
        let torn = std::mem::take(&mut *lock(&self.shared.torn));
        drop(torn);
    }
}

impl std::fmt::Debug for StripedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StripedStore").field("meta", &self.shared.meta).finish_non_exhaustive()
    }
}

impl Shared {
    /// Where the node with a number is.
    fn slot(&self, number: u32) -> Result<Arc<Slot>> {
        self.slots.find(number).ok_or_else(|| {
            tracing::error!(number, "a file lies on a node that is not configured");
            StoreError::Io
        })
    }

    /// The thread's identity while it works on nodes.
    fn as_server(&self) -> Result<ServerGuard> {
        self.meta.as_server()
    }

    /// Notes a node's write verifier. False when it is another one than before, in which case
    /// everybody has been told.
    fn note_verifier(&self, slot: &Slot, verifier: u64) -> bool {
        // Whoever finds the new one comes after everybody has been told.
        let mut known = lock(&slot.verifier);
        let same = *known == 0 || *known == verifier;
        if !same {
            tracing::warn!(node = slot.node.number(), "a node has lost what was not stable");
            (self.options.lost)();
        }
        *known = verifier;
        same
    }

    /// What is known of a file in common by all who use it.
    fn state(self: &Arc<Self>, id: &FileId) -> Arc<FileState> {
        let mut states = lock(&self.states);
        if let Some(state) = states.get(id).and_then(Weak::upgrade) {
            return state;
        }
        let state = Arc::new(FileState::new(self.clone(), *id));
        states.insert(*id, Arc::downgrade(&state));
        state
    }
}

/// What clients are told of an object. The blocks of a metadata file say nothing about its content,
/// and some tools take a file without blocks for one without content.
fn shown(attr: Attr) -> Attr {
    match attr.kind {
        Kind::Regular => Attr { space_used: attr.space_used.max(attr.size), ..attr },
        _ => attr,
    }
}
