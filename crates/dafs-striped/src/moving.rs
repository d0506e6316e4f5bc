//! Moves files off nodes that are being emptied, while they are in use.
//!
//! Invariants
//! * From [`begin_move`](StripedStore::begin_move) on, no client gets a layout. The caller does the
//!   first step only when no client may use the old placement any more.
//! * Until the record changes, the nodes that it names have all data. A concurrent write goes to
//!   them first, and then to the new nodes as well.
//! * The record changes when all data of the file is stable on the new nodes, and none of them has
//!   lost data since the first byte was copied.
//! * Components on nodes that the record does not name are removed. From before the first byte is
//!   copied, a list names the nodes that may have such components.

use super::pending::Entry;
use super::record::Record;
use super::slots::Slot;
use super::state::{FileState, Place};
use super::{Shared, StripedStore, server};
use crate::limits::{MOVE_BYTES, WALK_ENTRIES, WALK_PATH_BYTES_MAX};
use dafs_mem::{Mutex, VolatileSlice};
use dafs_store::node::{ComponentId, Node};
use dafs_store::{FileId, Kind, Result, Stability, Store, StoreError};
use siphasher::sip::SipHasher24;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

/// A running move of a file.
pub(super) struct Move {
    targets: Vec<Target>,
    /// The list names the nodes that may keep unused components. No data is written to new nodes
    /// before that.
    ready: AtomicBool,
    failed: AtomicBool,
}

/// The new node for the stripes of one place.
struct Target {
    place: usize,
    slot: Arc<Slot>,
    /// True if the node has no data of the file yet.
    fresh: bool,
    /// Held while a write goes to the old node and the new one, so that both get all writes in the
    /// same order.
    turn: Mutex<()>,
}

impl Move {
    /// Marks the move as failed: it must begin again.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Locks a place. The caller holds the guard from before its write until the write has
    /// [followed](Self::follow).
    pub(super) fn take_turn(&self, place: usize) -> Option<MutexGuard<'_, ()>> {
        let target = self.targets.iter().find(|target| target.place == place)?;
        Some(target.turn.lock())
    }

    /// Repeats a write to a place on the new node of that place.
    pub(super) fn follow(
        &self,
        record: &Record,
        place: usize,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) {
        if !self.ready.load(Ordering::SeqCst) {
            return;
        }
        let Some(target) = self.targets.iter().find(|target| target.place == place) else { return };
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        let node = &target.slot.node;
        match node.write(&record.component, views, offset, Stability::Unstable) {
            Ok(written) if written.count == wanted => {}
            _ => self.fail(),
        }
    }
}

/// A move of a file. If it is dropped before its end, the file stays where it was.
pub struct Relocation {
    shared: Arc<Shared>,
    state: Arc<FileState>,
    moving: Arc<Move>,
    component: ComponentId,
    /// The write verifiers of the new nodes from before the first byte was copied.
    verifiers: Option<Vec<u64>>,
    /// The offset up to which the file was copied.
    reached: u64,
    copied_bytes: u64,
}

impl std::fmt::Debug for Relocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relocation").field("component", &self.component).finish_non_exhaustive()
    }
}

impl Drop for Relocation {
    fn drop(&mut self) {
        self.state.end_move();
        self.shared.moving.lock().remove(&self.component);
    }
}

impl StripedStore {
    /// Begins to move the stripes of a file off nodes that are being emptied. `None` if it is on
    /// none of them. Copies [leave](Self::leave_nodes) in another way.
    ///
    /// # Errors
    /// * [`StoreError::NotSupported`] for a file with copies.
    /// * [`StoreError::Busy`] when the file cannot be moved now.
    /// * The store's.
    pub fn begin_move(&self, file: &FileId) -> Result<Option<Relocation>> {
        let (shared, state) = (self.shared.clone(), self.shared.state(file));
        let place = state.enter_exclusive()?;
        let Place::Striped(record) = &*place else { return Ok(None) };
        if !shared.is_misplaced(record) {
            return Ok(None);
        }
        if record.whole.is_some() {
            return Err(StoreError::NotSupported);
        }
        if !record.truncations.is_empty() || state.is_moving() {
            return Err(StoreError::Busy);
        }
        let component = record.component;
        let (ready, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let moving = Arc::new(Move { targets: shared.targets(record)?, ready, failed });
        shared.moving.lock().insert(component);
        state.set_moving(moving.clone());
        drop(place);
        let (verifiers, reached, copied_bytes) = (None, 0, 0);
        Ok(Some(Relocation { shared, state, moving, component, verifiers, reached, copied_bytes }))
    }
}

impl Relocation {
    /// Returns the number of copied bytes.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Copies the next piece. True when the move is complete.
    ///
    /// # Errors
    /// * [`StoreError::Busy`] when the file or a node cannot be used now.
    /// * The nodes' and the store's.
    ///
    /// The caller can retry. If the move [has failed](Self::has_failed), it must begin a new one.
    pub fn step(&mut self) -> Result<bool> {
        if self.has_failed() {
            return Err(StoreError::Busy);
        }
        if self.verifiers.is_none() {
            self.verifiers = Some(self.prepare()?);
        }
        let state = self.state.clone();
        let mut place = state.enter_exclusive()?;
        let Place::Striped(record) = &*place else { return Err(StoreError::Busy) };
        let size = state.attr()?.size;
        while self.reached < size {
            let left = usize::try_from(size - self.reached).unwrap_or(usize::MAX);
            let Some(piece) = record.pieces(self.reached, left.min(MOVE_BYTES)).next() else {
                break;
            };
            let mut targets = self.moving.targets.iter();
            if let Some(target) = targets.find(|target| target.place == piece.place) {
                self.copy(record, target, piece.offset, piece.len)?;
                self.reached += piece.len as u64;
                self.copied_bytes += piece.len as u64;
                return Ok(false);
            }
            self.reached += piece.len as u64;
        }
        self.finish(&mut place)?;
        Ok(true)
    }

    /// True if the move must begin again.
    pub fn has_failed(&self) -> bool {
        self.moving.failed.load(Ordering::SeqCst)
    }

    /// Prepares the move. The size covers all data, the list names the nodes that may keep unused
    /// components, and the new nodes have no data of an earlier attempt.
    fn prepare(&self) -> Result<Vec<u64>> {
        let place = self.state.enter()?;
        let Place::Striped(record) = &*place else { return Err(StoreError::Busy) };
        self.state.adopt(record)?;
        let record = record.clone();
        // Released first, to avoid a deadlock: the thread that works off the list enters the gates
        // of files while it holds the lock of the list.
        drop(place);
        let _server = self.shared.as_server()?;
        let targets = &self.moving.targets;
        let fresh = targets.iter().filter(|target| target.fresh);
        let nodes = fresh.map(|target| target.slot.node.number());
        let nodes = nodes.chain(targets.iter().map(|target| record.nodes[target.place]));
        let entry =
            Entry { component: self.component, file: self.state.id(), nodes: nodes.collect() };
        self.shared.enter_moved(entry)?;
        let ready = |target: &Target| {
            if target.fresh {
                target.slot.node.truncate(&self.component, 0)?;
            }
            target.slot.node.commit(&self.component)
        };
        let verifiers = targets.iter().map(ready).collect::<Result<_>>()?;
        self.moving.ready.store(true, Ordering::SeqCst);
        Ok(verifiers)
    }

    fn copy(&self, record: &Record, target: &Target, offset: u64, len: usize) -> Result<()> {
        let _server = self.shared.as_server()?;
        let from = self.state.slot(record, target.place)?;
        let mut bytes = vec![0; len];
        let count =
            from.node.read(&self.component, &[VolatileSlice::from_mut(&mut bytes)], offset)?;
        bytes[count..].fill(0);
        if target.fresh && bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let view = VolatileSlice::from_mut(&mut bytes);
        let node = &target.slot.node;
        let written = node.write(&self.component, &[view], offset, Stability::Unstable)?;
        if written.count < len { Err(StoreError::NoSpace) } else { Ok(()) }
    }

    /// Makes all copied data stable, and then changes the record.
    fn finish(&self, place: &mut Place) -> Result<()> {
        let Place::Striped(record) = &*place else { return Err(StoreError::Busy) };
        let targets = &self.moving.targets;
        // Writers that rely on unstable data of the old nodes are told of its loss.
        self.state.commit_stripes(record)?;
        let server = self.shared.as_server()?;
        let verifiers = targets.iter().map(|target| target.slot.node.commit(&self.component));
        let verifiers = verifiers.collect::<Result<Vec<_>>>()?;
        drop(server);
        if self.verifiers.as_ref() != Some(&verifiers) || self.has_failed() {
            self.moving.fail();
            return Err(StoreError::Busy);
        }
        let mut moved = record.clone();
        for target in targets {
            moved.nodes[target.place] = target.slot.node.number();
        }
        let meta = self.state.writer()?;
        let kept = self.state.keep(&moved).and_then(|()| self.state.sync_meta(&*meta));
        // After an error the content of the record is unknown.
        *place = if kept.is_ok() { Place::Striped(moved) } else { Place::Unknown };
        kept.inspect_err(|_| self.moving.fail())
    }
}

impl Shared {
    /// True if a file is on a node that is being emptied.
    fn is_misplaced(&self, record: &Record) -> bool {
        let leaving = self.slots.leaving();
        record.nodes.iter().any(|number| leaving.contains(number))
    }

    /// True if a walk through all directories may look for such a file.
    fn may_be_wanted(&self, look: Result<Option<Record>>) -> bool {
        let lost = self.slots.lost();
        let is_wanted = |record: Record| {
            self.is_misplaced(&record) || record.nodes.iter().any(|number| lost.contains(number))
        };
        look.map_or(true, |record| record.is_some_and(is_wanted))
    }

    /// Chooses new nodes for stripes on nodes that are being emptied. Prefers nodes that have no
    /// data of the file.
    fn targets(&self, record: &Record) -> Result<Vec<Target>> {
        let (leaving, mut staying) = (self.slots.leaving(), self.slots.staying());
        staying.retain(|slot| slot.node.is_reachable());
        let mut used = record.nodes.clone();
        let mut targets = Vec::new();
        for (place, number) in record.nodes.iter().enumerate() {
            if !leaving.contains(number) {
                continue;
            }
            let unused: Vec<_> =
                staying.iter().filter(|slot| !used.contains(&slot.node.number())).collect();
            let among = if unused.is_empty() { staying.iter().collect() } else { unused };
            if among.is_empty() {
                return Err(StoreError::Busy);
            }
            let turn = SipHasher24::new().hash(&self_key(&record.component, place));
            let at = usize::try_from(turn % among.len() as u64).unwrap_or(0);
            let slot = among[at].clone();
            let fresh = !record.nodes.contains(&slot.node.number());
            used.push(slot.node.number());
            targets.push(Target { place, slot, fresh, turn: Mutex::default() });
        }
        Ok(targets)
    }

    /// Returns the files in use.
    pub(super) fn in_use(&self) -> Vec<Arc<FileState>> {
        self.states.lock().values().filter_map(std::sync::Weak::upgrade).collect()
    }

    /// Adds a moving file to the list of components to be removed: on nodes that it leaves, or to
    /// which a failed move has copied.
    pub(super) fn enter_moved(&self, mut entry: Entry) -> Result<()> {
        let _alone = self.left_turn.lock();
        if let Some(before) = self.left.read(entry.component)? {
            entry.nodes.extend(before.nodes);
        }
        entry.nodes.sort_unstable();
        entry.nodes.dedup();
        self.left.enter(&entry)
    }

    /// Removes components that moved files have left.
    pub(super) fn sweep_moved(self: &Arc<Self>) -> Result<()> {
        let _alone = self.left_turn.lock();
        let settle = || self.meta.sync_file_system();
        self.left.work_off(|| self.as_server(), settle, |entry| self.remove_left(entry))
    }

    fn remove_left(self: &Arc<Self>, entry: &Entry) -> Result<()> {
        if self.moving.lock().contains(&entry.component) {
            return Err(StoreError::Busy);
        }
        let in_use = self.states.lock().get(&entry.file).and_then(std::sync::Weak::upgrade);
        let is_there = match self.meta.getattr(&entry.file) {
            Ok(attr) => attr.links > 0,
            Err(StoreError::Stale | StoreError::NotFound) => false,
            Err(error) => return Err(error),
        };
        let mut nodes = entry.nodes.clone();
        if is_there || in_use.is_some() {
            let state = in_use.unwrap_or_else(|| self.state(&entry.file));
            match state.look() {
                Ok(Some(record)) if record.component == entry.component => {
                    // No later sweep could find the placement of a file without a name.
                    if !is_there {
                        return Err(StoreError::Busy);
                    }
                    nodes.retain(|number| !record.nodes.contains(number));
                }
                Ok(Some(_)) => {}
                _ if is_there => return Err(StoreError::Busy),
                _ => {}
            }
        }
        self.remove_from(&nodes, &entry.component)
    }

    /// Counts the move of an object to another directory, because a walk may miss the object. Never
    /// waits: an object whose gate is held counts.
    pub(super) fn note_wandering(self: &Arc<Self>, id: &FileId) {
        if self.slots.leaving().is_empty() && self.slots.lost().is_empty() {
            return;
        }
        let Ok(attr) = self.meta.getattr(id) else { return };
        let matters = match attr.kind {
            Kind::Directory => true,
            Kind::Regular => self.may_be_wanted(self.state(id).try_look()),
            _ => false,
        };
        if matters {
            self.wandered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn self_key(component: &ComponentId, place: usize) -> Vec<u8> {
    [&component.0[..], &place.to_le_bytes()].concat()
}

/// A walk through all directories of a store.
#[derive(Debug)]
pub struct Walk {
    /// Directories to read, with the length of the path that each is in, and its name.
    directories: Vec<(FileId, usize, Vec<u8>)>,
    /// The directory that is being read, and the cookie in it.
    at: Option<(FileId, u64)>,
    /// Its path below the root. The paths of directories to read begin with a part of it.
    path: Vec<u8>,
    wandered: u64,
    /// The last error that hid objects from the walk.
    unseen: Option<StoreError>,
}

impl Walk {
    /// Returns the last error that hid objects from the walk.
    pub fn unseen(&self) -> Option<StoreError> {
        self.unseen
    }

    /// Begins to read the next directory.
    fn descend(&mut self) -> Option<(FileId, u64)> {
        let (id, above, name) = self.directories.pop()?;
        self.path.truncate(above);
        if !name.is_empty() {
            self.path.push(b'/');
            self.path.extend(name);
        }
        Some((id, 0))
    }

    fn note_unseen(&mut self, error: StoreError) {
        // A removed object is on no node.
        if !matches!(error, StoreError::Stale | StoreError::NotFound) {
            self.unseen = Some(error);
        }
    }
}

impl StripedStore {
    /// Begins a walk in search of files to be moved.
    pub fn walk(&self) -> Walk {
        let wandered = self.shared.wandered.load(Ordering::SeqCst);
        let directories = vec![(Store::root(&self.shared.meta), 0, Vec::new())];
        Walk { directories, at: None, path: Vec::new(), wandered, unseen: None }
    }

    /// Returns the next files, perhaps none, on nodes that are being emptied. `None` at the end.
    ///
    /// # Errors
    /// Those of the metadata directory.
    pub fn misplaced(&self, walk: &mut Walk) -> Result<Option<Vec<FileId>>> {
        self.next_where(walk, |record| self.shared.is_misplaced(record))
    }

    /// Returns about how many bytes of a file are on nodes that are being emptied.
    ///
    /// # Errors
    /// Those of the metadata.
    pub fn misplaced_bytes(&self, file: &FileId) -> Result<u64> {
        let state = self.shared.state(file);
        let Some(record) = state.look()? else { return Ok(0) };
        let (leaving, size) = (self.shared.slots.leaving(), state.attr()?.size);
        let places = record.nodes.iter().filter(|number| leaving.contains(*number)).count() as u64;
        Ok(match record.whole {
            Some(_) => size.saturating_mul(places),
            None => (size / record.nodes.len().max(1) as u64).saturating_mul(places),
        })
    }

    /// Returns the next files, perhaps none, whose records match. `None` at the end.
    pub(super) fn next_where(
        &self,
        walk: &mut Walk,
        wanted: impl Fn(&Record) -> bool,
    ) -> Result<Option<Vec<FileId>>> {
        let Some(files) = self.next_files(walk) else { return Ok(None) };
        let mut found = Vec::new();
        for (id, _) in files {
            match self.shared.state(&id).look() {
                Ok(Some(record)) if wanted(&record) => found.push(id),
                Ok(_) => {}
                Err(error) => walk.note_unseen(error),
            }
        }
        Ok(Some(found))
    }

    /// Returns the next files, perhaps none, with their paths below the root, which begin with a
    /// slash. A path that is too long for system calls begins with dots instead. `None` at the end.
    pub fn next_files(&self, walk: &mut Walk) -> Option<Vec<(FileId, Vec<u8>)>> {
        let (directory, from) = match walk.at.take() {
            Some(at) => at,
            None => walk.descend()?,
        };
        let above = walk.path.len();
        // Users choose the depth of directories.
        let path = if above > WALK_PATH_BYTES_MAX { &b"..."[..] } else { &walk.path[..] };
        let (mut files, mut count, mut last, mut unseen) = (Vec::new(), 0, from, Vec::new());
        let meta = &self.shared.meta;
        let read = meta.readdir(&server(), &directory, from, true, &mut |entry| {
            if count == WALK_ENTRIES {
                return false;
            }
            (count, last) = (count + 1, entry.cookie);
            match entry.object {
                Some((id, attr)) if attr.kind == Kind::Directory => {
                    walk.directories.push((id, above, entry.name.to_vec()));
                }
                Some((id, attr)) if attr.kind == Kind::Regular => {
                    files.push((id, [path, b"/", entry.name].concat()));
                }
                Some(_) => {}
                None => unseen.push(entry.name.to_vec()),
            }
            true
        });
        match read {
            Ok(true) => {}
            Ok(false) => walk.at = Some((directory, last)),
            Err(error) => walk.note_unseen(error),
        }
        for name in unseen {
            let seen = meta.peek(&server(), &directory, &name);
            walk.note_unseen(seen.err().unwrap_or(StoreError::Busy));
        }
        Some(files)
    }

    /// True if a walk that has come to its end has met all files.
    pub fn met_all(&self, walk: &Walk) -> bool {
        walk.unseen.is_none() && self.shared.wandered.load(Ordering::SeqCst) == walk.wandered
    }

    /// Marks a node as being emptied, or withdraws the mark. Such a node gets no new files, and the
    /// files there are [misplaced](Self::misplaced).
    ///
    /// # Errors
    /// * [`StoreError::Invalid`] if fewer nodes would take files than files have copies, or none
    ///   would.
    /// * [`StoreError::NotFound`] for an unknown node.
    /// * Those of the directory of the mark.
    pub fn set_leaving(&self, number: u32, leaves: bool) -> Result<()> {
        if self.shared.slots.find(number).is_none() {
            return Err(StoreError::NotFound);
        }
        let _server = self.shared.as_server()?;
        self.shared.slots.set_leaving(number, leaves, self.shared.options.copies)
    }

    /// Returns the numbers of the nodes that are being emptied.
    pub fn leaving(&self) -> Vec<u32> {
        self.shared.slots.leaving().into_iter().collect()
    }

    /// True if a node has no data of files in use and none of removed files. A [walk](Self::walk)
    /// finds other files.
    ///
    /// # Errors
    /// Those of the lists.
    pub fn is_idle(&self, number: u32) -> Result<bool> {
        let shared = &self.shared;
        for state in shared.in_use() {
            match state.look() {
                Ok(Some(record)) if record.nodes.contains(&number) => return Ok(false),
                Ok(_) | Err(StoreError::Stale | StoreError::NotFound | StoreError::BadType) => {}
                Err(error) => return Err(error),
            }
        }
        let _server = shared.as_server()?;
        Ok(!shared.removed.names(number)? && !shared.left.names(number)?)
    }

    /// Adds a node for new files.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a number in use, or when there are too many nodes.
    pub fn add_node(&self, node: Arc<dyn Node>) -> Result<()> {
        self.shared.slots.add(node)?;
        self.shared.note_devices();
        Ok(())
    }

    /// Removes a node that has no data.
    ///
    /// # Errors
    /// [`StoreError::Busy`] for a node that is not being emptied; those of the directory of the
    /// mark.
    pub fn remove_node(&self, number: u32) -> Result<()> {
        if !self.shared.slots.leaving().contains(&number) {
            return Err(StoreError::Busy);
        }
        let _server = self.shared.as_server()?;
        self.shared.slots.remove(number)?;
        self.shared.drop_devices(number);
        Ok(())
    }
}
