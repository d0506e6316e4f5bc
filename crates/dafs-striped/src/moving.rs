//! Moving files off nodes that are being emptied, while they are in use.
//!
//! Invariants
//! * From [`begin_move`](StripedStore::begin_move) on nobody is told any more where the file lies. The
//!   first step comes when clients have forgotten it: whoever moves it sees to that.
//! * Until the record says otherwise, the nodes that it names have everything. What is written meanwhile
//!   goes to them first, and then to the new ones as well.
//! * The record is changed when all that the file has is stable on the new nodes, and none of them has
//!   lost anything since the first byte was copied.
//! * Components on nodes that the record does not name are removed. From before the first byte is
//!   copied a list says which those may be.

use super::pending::Entry;
use super::record::Record;
use super::slots::Slot;
use super::state::{FileState, Place};
use super::{Shared, StripedStore, lock, server};
use crate::limits::{MOVE_BYTES, WALK_ENTRIES};
use dafs_mem::VolatileSlice;
use dafs_store::node::{ComponentId, Node};
use dafs_store::{FileId, Kind, Result, Stability, Store, StoreError};
use siphasher::sip::SipHasher24;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Where a file goes to.
pub(super) struct Move {
    targets: Vec<Target>,
    /// The list says what may be left over; nothing is written before that.
    ready: AtomicBool,
    failed: AtomicBool,
}

/// Where the stripes of one place go to.
struct Target {
    place: usize,
    slot: Arc<Slot>,
    /// The node has nothing of the file yet.
    fresh: bool,
    /// Held by who writes to the old node and the new one, lest two come to them in different orders.
    turn: Mutex<()>,
}

impl Move {
    /// It is to begin anew.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// To be held from before something is written to a place until it has [followed](Self::follow).
    pub(super) fn take_turn(&self, place: usize) -> Option<MutexGuard<'_, ()>> {
        let target = self.targets.iter().find(|target| target.place == place)?;
        Some(lock(&target.turn))
    }

    /// Writes what was written to a place to where that goes, too.
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

/// A file that is being moved. Dropped, it stays where it was.
pub struct Relocation {
    shared: Arc<Shared>,
    state: Arc<FileState>,
    moving: Arc<Move>,
    component: ComponentId,
    /// What the new nodes said before the first byte was copied; nothing yet.
    verifiers: Option<Vec<u64>>,
    /// How far the file has been looked through.
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
        lock(&self.shared.moving).remove(&self.component);
    }
}

impl StripedStore {
    /// Begins to move the stripes of a file off nodes that are being emptied; `None` if it lies on none of
    /// them. Copies [leave](Self::leave_nodes) in another way.
    ///
    /// # Errors
    /// [`StoreError::NotSupported`] for a file with copies, [`StoreError::Busy`] when it cannot be moved now; the store's.
    pub fn begin_move(&self, file: &FileId) -> Result<Option<Relocation>> {
        let (shared, state) = (self.shared.clone(), self.shared.state(file));
        let place = state.enter_alone()?;
        let Place::Striped(record) = &*place else { return Ok(None) };
        if !shared.is_misplaced(record) {
            return Ok(None);
        }
        if record.whole.is_some() {
            return Err(StoreError::NotSupported);
        }
        if !record.owed.is_empty() || state.is_moving() {
            return Err(StoreError::Busy);
        }
        let component = record.component;
        let (ready, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let moving = Arc::new(Move { targets: shared.targets(record)?, ready, failed });
        lock(&shared.moving).insert(component);
        state.set_moving(moving.clone());
        drop(place);
        let (verifiers, reached, copied_bytes) = (None, 0, 0);
        Ok(Some(Relocation { shared, state, moving, component, verifiers, reached, copied_bytes }))
    }
}

impl Relocation {
    /// Bytes that were copied.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Copies the next piece. True when the file lies elsewhere, and nothing is left to do.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the file or a node cannot be used now; the nodes' and the store's. It
    /// can be tried again; if it [has failed](Self::has_failed), from the beginning.
    pub fn step(&mut self) -> Result<bool> {
        if self.has_failed() {
            return Err(StoreError::Busy);
        }
        if self.verifiers.is_none() {
            self.verifiers = Some(self.prepare()?);
        }
        let state = self.state.clone();
        let mut place = state.enter_alone()?;
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

    /// Whether it has to begin anew.
    pub fn has_failed(&self) -> bool {
        self.moving.failed.load(Ordering::SeqCst)
    }

    /// Makes ready: the size covers all that there is, the list says what may be left over, and the new
    /// nodes have nothing of an earlier try.
    fn prepare(&self) -> Result<Vec<u64>> {
        let place = self.state.enter()?;
        let Place::Striped(record) = &*place else { return Err(StoreError::Busy) };
        self.state.adopt(record)?;
        let record = record.clone();
        // Who works on the list looks at records.
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
                target.slot.node.cut(&self.component, 0)?;
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

    /// Makes all stable that was copied, and then says that the file lies there.
    fn finish(&self, place: &mut Place) -> Result<()> {
        let Place::Striped(record) = &*place else { return Err(StoreError::Busy) };
        let targets = &self.moving.targets;
        // What the old nodes have lost is told to those who still count on it.
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
        // What is kept is not known after an error.
        *place = if kept.is_ok() { Place::Striped(moved) } else { Place::Unknown };
        kept.inspect_err(|_| self.moving.fail())
    }
}

impl Shared {
    /// Whether a file lies on a node that is being emptied.
    fn is_misplaced(&self, record: &Record) -> bool {
        let leaving = self.slots.leaving();
        record.nodes.iter().any(|number| leaving.contains(number))
    }

    /// Whether who looks through all directories looks for such a file.
    fn may_be_wanted(&self, look: Result<Option<Record>>) -> bool {
        let lost = self.slots.lost();
        let is_wanted = |record: Record| {
            self.is_misplaced(&record) || record.nodes.iter().any(|number| lost.contains(number))
        };
        look.map_or(true, |record| record.is_some_and(is_wanted))
    }

    /// Where stripes on nodes that are being emptied go to: to nodes that have nothing of the file, as
    /// far as there are any.
    fn targets(&self, record: &Record) -> Result<Vec<Target>> {
        let (leaving, mut staying) = (self.slots.leaving(), self.slots.staying());
        staying.retain(|slot| slot.node.is_there());
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

    /// The files that somebody uses.
    pub(super) fn in_use(&self) -> Vec<Arc<FileState>> {
        lock(&self.states).values().filter_map(std::sync::Weak::upgrade).collect()
    }

    /// Has components removed on nodes that the file will have left, or was not moved to.
    pub(super) fn enter_moved(&self, mut entry: Entry) -> Result<()> {
        let _alone = lock(&self.left_turn);
        if let Some(before) = self.left.find(&entry.component)? {
            entry.nodes.extend(before.nodes);
        }
        entry.nodes.sort_unstable();
        entry.nodes.dedup();
        self.left.enter(&entry)
    }

    /// Removes what moved files have left behind.
    pub(super) fn sweep_moved(self: &Arc<Self>) -> Result<()> {
        let _alone = lock(&self.left_turn);
        let settle = || self.meta.sync_file_system();
        self.left.work_off(|| self.as_server(), settle, |entry| self.remove_left(entry))
    }

    fn remove_left(self: &Arc<Self>, entry: &Entry) -> Result<()> {
        if lock(&self.moving).contains(&entry.component) {
            return Err(StoreError::Busy);
        }
        let in_use = lock(&self.states).get(&entry.file).and_then(std::sync::Weak::upgrade);
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
                    // Nobody else knows where it lies once it is closed.
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
        let _server = self.as_server()?;
        let remove = |number: &u32| {
            let node = self.slot(*number)?.node.clone();
            node.forget(&entry.component)?;
            node.remove(&entry.component)
        };
        nodes.iter().map(remove).fold(Ok(()), Result::and)
    }

    /// Notes that an object is about to go to another directory: whoever looks through all of them may not
    /// meet it. Waits for nobody: what is not known counts.
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

/// A look through all directories of a store.
#[derive(Debug)]
pub struct Walk {
    directories: Vec<FileId>,
    /// The directory that is being read, and where in it.
    at: Option<(FileId, u64)>,
    wandered: u64,
    /// Why something could not be looked at: it may lie anywhere.
    unseen: Option<StoreError>,
}

impl Walk {
    /// Why something could not be looked at.
    pub fn unseen(&self) -> Option<StoreError> {
        self.unseen
    }

    fn note_unseen(&mut self, error: StoreError) {
        // What was removed meanwhile lies nowhere.
        if !matches!(error, StoreError::Stale | StoreError::NotFound) {
            self.unseen = Some(error);
        }
    }
}

impl StripedStore {
    /// Begins a look for files that are to be moved.
    pub fn walk(&self) -> Walk {
        let wandered = self.shared.wandered.load(Ordering::SeqCst);
        Walk { directories: vec![Store::root(&self.shared.meta)], at: None, wandered, unseen: None }
    }

    /// The next files that lie on nodes that are being emptied, perhaps none; `None` at the end.
    ///
    /// # Errors
    /// Those of the metadata directory.
    pub fn misplaced(&self, walk: &mut Walk) -> Result<Option<Vec<FileId>>> {
        self.next_where(walk, |record| self.shared.is_misplaced(record))
    }

    /// The next files of which a record says something, perhaps none; `None` at the end.
    pub(super) fn next_where(
        &self,
        walk: &mut Walk,
        wanted: impl Fn(&Record) -> bool,
    ) -> Result<Option<Vec<FileId>>> {
        let next = walk.at.take().or_else(|| Some((walk.directories.pop()?, 0)));
        let Some((directory, from)) = next else { return Ok(None) };
        let (mut files, mut count, mut last, mut unseen) = (Vec::new(), 0, from, Vec::new());
        let meta = &self.shared.meta;
        let read = meta.readdir(&server(), &directory, from, true, &mut |entry| {
            if count == WALK_ENTRIES {
                return false;
            }
            (count, last) = (count + 1, entry.cookie);
            match entry.object {
                Some((id, attr)) if attr.kind == Kind::Directory => walk.directories.push(id),
                Some((id, attr)) if attr.kind == Kind::Regular => files.push(id),
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
        let mut found = Vec::new();
        for id in files {
            match self.shared.state(&id).look() {
                Ok(Some(record)) if wanted(&record) => found.push(id),
                Ok(_) => {}
                Err(error) => walk.note_unseen(error),
            }
        }
        Ok(Some(found))
    }

    /// Whether a look that has come to its end has met everything that there is.
    pub fn met_all(&self, walk: &Walk) -> bool {
        walk.unseen.is_none() && self.shared.wandered.load(Ordering::SeqCst) == walk.wandered
    }
}

impl StripedStore {
    /// From now on a node gets no new files, and those that lie there are [misplaced](Self::misplaced);
    /// or all is as before.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] where fewer nodes would take files than files have copies, or none would,
    /// [`StoreError::NotFound`] for one that is not there; those of the directory in which that is kept.
    pub fn set_leaving(&self, number: u32, leaves: bool) -> Result<()> {
        if self.shared.slots.find(number).is_none() {
            return Err(StoreError::NotFound);
        }
        let _server = self.shared.as_server()?;
        self.shared.slots.set_leaving(number, leaves, self.shared.options.copies)
    }

    /// The numbers of the nodes that are being emptied.
    pub fn leaving(&self) -> Vec<u32> {
        self.shared.slots.leaving().into_iter().collect()
    }

    /// Whether nothing lies on a node for files that are in use and for those that were removed. Whether
    /// others lie there, a [walk](Self::walk) says.
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

    /// Takes a node in for new files.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a number that is used, or when there are too many.
    pub fn add_node(&self, node: Arc<dyn Node>) -> Result<()> {
        self.shared.slots.add(node)?;
        self.shared.note_devices();
        Ok(())
    }

    /// Leaves a node out that nothing lies on.
    ///
    /// # Errors
    /// [`StoreError::Busy`] for one that is not being emptied; those of the directory in which that is
    /// kept.
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
