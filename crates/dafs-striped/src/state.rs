//! The state of one file, shared by all its users: its placement, and the steps that change its
//! size.
//!
//! Invariants
//! * Content is read and written with the gate held shared. Truncation and placement hold it
//!   exclusively.
//! * No operation passes the gate while a truncation is unfinished. It is finished without nodes
//!   that are unreachable: the record lists their components as pending, and these are not used
//!   before they are truncated.
//! * Every change of the size is made under `size_lock`, so that none undoes another.

use super::copies::Copies;
use super::moving::Move;
use super::record::{Owner, Record, STRIPES_XATTR, Whole};
use super::slots::Slot;
use super::stable::Stable;
use super::{Known, Shared, server};
use crate::limits::COPY_ATTEMPTS_MAX;
use dafs_mem::Shrinking as _;
use dafs_mem::{Mutex, RwLock};
use dafs_store::node::ComponentId;
use dafs_store::{
    Attr, FileId, Kind, OpenFile, OpenMode, Result, SetAttr, SetXattr, Store, StoreError,
};
use siphasher::sip::SipHasher24;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, RwLockReadGuard, RwLockWriteGuard, Weak};

/// The place of the content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Not read yet.
    Unknown,
    /// The file has no content. It is placed when it gets some.
    Nowhere,
    /// In the metadata directory, from before the store was striped.
    Here,
    /// On nodes.
    Striped(Record),
}

/// A file in use.
pub(super) struct FileState {
    shared: Arc<Shared>,
    id: FileId,
    gate: RwLock<Place>,
    size_lock: Mutex<()>,
    /// Tracks if the record is stable.
    synced: Stable,
    /// True if components may be longer than the size: they belong to a record of an earlier use,
    /// or clients write to them.
    loose: AtomicBool,
    /// True if the size covers the data that earlier runs have left on the nodes.
    adopted: AtomicBool,
    /// An open of the metadata file for writing, for the server's own changes.
    writer: Mutex<Option<Weak<dyn OpenFile>>>,
    /// The file was made without a name and has none yet: it cannot be found after its close.
    unnamed: AtomicBool,
    /// The move of the file to other nodes, if one is running. It changes while the gate is held
    /// exclusively.
    moving: Mutex<Option<Arc<Move>>>,
    /// The component that is protected from removal for the life of this state.
    held: Mutex<Option<ComponentId>>,
    copies: Copies,
}

impl Drop for FileState {
    fn drop(&mut self) {
        let mut states = self.shared.states.lock();
        let place = self.gate.get_mut();
        // A new state of the file may exist by now.
        if states.get(&self.id).is_some_and(|state| state.strong_count() == 0) {
            states.remove_and_shrink(&self.id);
            if let Place::Striped(record) = place {
                self.shared.files.lock().remove_and_shrink(&record.component);
                self.shared
                    .truncations
                    .lock()
                    .retain(|(component, _), _| *component != record.component);
            }
        }
        drop(states);
        if let Place::Striped(record) = place
            && self.unnamed.load(Ordering::SeqCst)
        {
            self.shared.enter_removed(self.id, record);
        }
        if let Some(component) = self.held.lock().take() {
            self.shared.held.lock().remove_and_shrink(&component);
        }
    }
}

impl FileState {
    pub(super) fn new(shared: Arc<Shared>, id: FileId) -> Self {
        Self {
            shared,
            id,
            gate: RwLock::new(Place::Unknown),
            size_lock: Mutex::default(),
            synced: Stable::unknown(),
            loose: AtomicBool::new(true),
            adopted: AtomicBool::new(false),
            writer: Mutex::default(),
            unnamed: AtomicBool::new(false),
            moving: Mutex::default(),
            held: Mutex::default(),
            copies: Copies::default(),
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    pub(super) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Remembers an open for writing.
    pub(super) fn note_writer(&self, file: &Arc<dyn OpenFile>) {
        *self.writer.lock() = Some(Arc::downgrade(file));
    }

    /// Records that the file has no name yet, or has got one.
    pub(super) fn set_unnamed(&self, unnamed: bool) {
        self.unnamed.store(unnamed, Ordering::SeqCst);
    }

    /// Makes the file known by its component.
    pub(super) fn announce(&self, record: &Record) {
        let known = Known { file: self.id, usable: record.usable() };
        self.shared.files.lock().insert(record.component, known);
    }

    /// Publishes a change of the copies. False if no client knows the placement.
    pub(super) fn announce_again(&self, record: &Record) -> bool {
        let mut files = self.shared.files.lock();
        let known = files.get_mut(&record.component);
        known.map(|known| known.usable = record.usable()).is_some()
    }

    /// Protects the component from removal while the file is in use.
    pub(super) fn hold(&self, component: ComponentId) {
        self.shared.held.lock().insert(component);
        *self.held.lock() = Some(component);
    }

    /// Enters the gate shared, and returns the place of the content.
    pub(super) fn enter(&self) -> Result<RwLockReadGuard<'_, Place>> {
        let mut tried = false;
        loop {
            let place = self.gate.read();
            if is_settled(&place) && (tried || !self.can_finish_pending(&place)) {
                return Ok(place);
            }
            drop(place);
            drop(self.enter_exclusive()?);
            tried = true;
        }
    }

    /// Does the same without waiting; `None` if that is not possible.
    pub(super) fn try_enter(&self) -> Option<RwLockReadGuard<'_, Place>> {
        self.gate.try_read().filter(|place| is_settled(place))
    }

    /// Returns the record as it is, even with an unfinished truncation. `None` if the file has no
    /// record.
    pub(super) fn look(&self) -> Result<Option<Record>> {
        self.look_at(self.gate.write())
    }

    /// Does the same without waiting.
    ///
    /// # Errors
    /// [`StoreError::WouldBlock`] if that is not possible.
    pub(super) fn try_look(&self) -> Result<Option<Record>> {
        self.look_at(self.gate.try_write().ok_or(StoreError::WouldBlock)?)
    }

    fn look_at(&self, mut place: RwLockWriteGuard<'_, Place>) -> Result<Option<Record>> {
        if *place == Place::Unknown {
            *place = self.load()?;
        }
        Ok(match &*place {
            Place::Striped(record) => Some(record.clone()),
            _ => None,
        })
    }

    /// Enters the gate exclusively.
    pub(super) fn enter_exclusive(&self) -> Result<RwLockWriteGuard<'_, Place>> {
        let mut place = self.gate.write();
        if *place == Place::Unknown {
            *place = self.load()?;
            if let Place::Striped(record) = &*place {
                self.note_pending(record);
            }
        }
        if let Place::Striped(record) = &mut *place {
            if let Some(size) = record.truncating {
                self.finish_truncation(record, size)?;
            }
            self.finish_pending(record);
        }
        Ok(place)
    }

    /// Does the same once no client holds a layout for writing to copies: with concurrent writes
    /// the copies would end at different sizes.
    fn enter_exclusive_of_clients(&self) -> Result<RwLockWriteGuard<'_, Place>> {
        for _ in 0..COPY_ATTEMPTS_MAX {
            let place = self.enter_exclusive()?;
            if !matches!(&*place, Place::Striped(record) if record.whole.is_some())
                || !self.is_lent()
            {
                return Ok(place);
            }
            drop(place);
            self.await_return()?;
        }
        Err(StoreError::Busy)
    }

    fn load(&self) -> Result<Place> {
        let meta = &self.shared.meta;
        let attr = meta.getattr(&self.id)?;
        if attr.kind != Kind::Regular {
            return Err(StoreError::BadType);
        }
        match self.with_rights(|| meta.xattr(&server(), &self.id, STRIPES_XATTR)) {
            Ok(bytes) => {
                let key = &self.shared.options.secret;
                let record = Record::decode(&bytes, Owner::of(&attr), key).inspect_err(|_| {
                    tracing::error!(
                        file = attr.file_id,
                        "a file says that it lies on nodes, but its record is not this store's: is \
                         it a copy, or is the secret another one?"
                    );
                })?;
                self.note_loaded(&record)?;
                Ok(Place::Striped(record))
            }
            Err(StoreError::NoXattr) if attr.size == 0 => Ok(Place::Nowhere),
            Err(StoreError::NoXattr) => Ok(Place::Here),
            Err(error) => Err(error),
        }
    }

    pub(super) fn keep(&self, record: &Record) -> Result<()> {
        let meta = &self.shared.meta;
        let owner = Owner::of(&meta.getattr(&self.id)?);
        let bytes = record.encode(owner, &self.shared.options.secret);
        self.synced.change();
        self.with_rights(|| {
            meta.set_xattr(&server(), &self.id, STRIPES_XATTR, &bytes, SetXattr::Either)
        })?;
        // A sync that began between the two may not cover the change.
        self.synced.change();
        Ok(())
    }

    /// Runs a function that needs the rights to read and write the metadata file. A server without
    /// privileges may lack them, because the mode gives them to no user. Then it sets them for the
    /// call.
    fn with_rights<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        let meta = &self.shared.meta;
        match run() {
            Err(StoreError::Access) if !meta.checks_callers() => {}
            done => return done,
        }
        let mode = meta.getattr(&self.id)?.mode;
        let set = |mode| {
            let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
            meta.setattr(&server(), &self.id, &change, None)
        };
        set(mode | 0o600).map_err(|_| StoreError::Access)?;
        let done = run();
        set(mode)?;
        done
    }

    /// Places a file without content.
    pub(super) fn place(&self) -> Result<()> {
        let mut place = self.enter_exclusive()?;
        if *place == Place::Nowhere {
            *place = Place::Striped(self.make_record()?);
        }
        Ok(())
    }

    /// Places a file that has just been made with a size.
    pub(super) fn place_new(&self) -> Result<()> {
        let mut place = self.gate.write();
        if !matches!(*place, Place::Striped(_)) {
            *place = Place::Striped(self.make_record()?);
        }
        Ok(())
    }

    fn make_record(&self) -> Result<Record> {
        let slots = self.shared.slots.staying();
        let mut component = [0; 16];
        getrandom::fill(&mut component).map_err(|_| StoreError::Io)?;
        // Files begin on different nodes, so that small ones are spread, too.
        let turn = SipHasher24::new().hash(&component) % slots.len() as u64;
        let mut record = Record {
            component: ComponentId(component),
            unit_bytes: self.shared.options.unit_bytes,
            first: u16::try_from(turn).unwrap_or(0),
            nodes: slots.iter().map(|slot| slot.node.number()).collect(),
            truncating: None,
            truncations: Vec::new(),
            whole: None,
        };
        if self.shared.options.copies > 1 {
            self.make_whole(&mut record)?;
        }
        self.keep(&record)?;
        // No node has data of the file yet.
        self.loose.store(false, Ordering::SeqCst);
        self.adopted.store(true, Ordering::SeqCst);
        Ok(record)
    }

    /// Returns the running move of the file.
    pub(super) fn moving(&self) -> Option<Arc<Move>> {
        self.moving.lock().clone()
    }

    /// True if the file is being moved.
    pub(super) fn is_moving(&self) -> bool {
        self.moving.lock().is_some()
    }

    /// Begins a move. The caller holds the gate exclusively.
    pub(super) fn set_moving(&self, moving: Arc<Move>) {
        *self.moving.lock() = Some(moving);
    }

    /// Ends a move. With the gate held exclusively no writer is under way that saw the move.
    pub(super) fn end_move(&self) {
        let _alone = self.gate.write();
        *self.moving.lock() = None;
    }

    /// Records that components may be longer than the size.
    pub(super) fn set_loose(&self) {
        self.loose.store(true, Ordering::SeqCst);
    }

    /// Prepares the file for clients that write to components themselves. The record becomes
    /// stable, and data that earlier clients have left on the nodes without a commit becomes part
    /// of the file.
    pub(super) fn open_to_writers(&self, record: &Record) -> Result<()> {
        self.loose.store(true, Ordering::SeqCst);
        if !self.adopted.load(Ordering::SeqCst) {
            self.adopt(record)?;
            self.adopted.store(true, Ordering::SeqCst);
        }
        if !self.synced.is_stable() {
            self.sync_meta(&*self.writer()?)?;
        }
        Ok(())
    }

    /// Extends the size to the end of the components, stably. The last writer may have died before
    /// its change of the size was stable.
    pub(super) fn adopt(&self, record: &Record) -> Result<()> {
        // First, so that a removed file fails before the nodes are asked.
        let size = self.attr()?.size;
        let reach = self.reach(record)?;
        if reach > size {
            self.synced.change();
            self.extend(&*self.writer()?, reach)?;
            // A sync that began between the two may not cover the change.
            self.synced.change();
        }
        if reach > 0 && !self.synced.is_stable() {
            self.sync_meta(&*self.writer()?)?;
        }
        Ok(())
    }

    pub(super) fn lock_size(&self) -> MutexGuard<'_, ()> {
        self.size_lock.lock()
    }

    /// Extends the size to `end` at least, and updates the change attribute in any case. The caller
    /// is inside the gate.
    pub(super) fn extend(&self, meta: &dyn OpenFile, end: u64) -> Result<()> {
        let _size = self.lock_size();
        let size = meta.attr()?.size;
        meta.set_size(size.max(end))
    }

    /// Sets the size. Every explicit change of the size comes through here.
    pub(super) fn set_size(&self, meta: &dyn OpenFile, size: u64) -> Result<()> {
        let mut place = self.enter_exclusive_of_clients()?;
        if *place == Place::Nowhere && size > 0 {
            *place = Place::Striped(self.make_record()?);
        }
        if let Place::Striped(record) = &*place {
            self.drop_stale_grants_exclusive(record)?;
        }
        let _size = self.lock_size();
        match &mut *place {
            // Data of components beyond the size would reappear when the file grows.
            Place::Striped(record)
                if size < meta.attr()?.size || self.loose.load(Ordering::SeqCst) =>
            {
                // The copying must begin again.
                self.moving().inspect(|moving| moving.fail());
                record.truncating = Some(size);
                let noted = self.keep(record).and_then(|()| self.sync_meta(meta));
                if let Err(error) = noted {
                    // The content of the record is unknown, and no component was truncated.
                    record.truncating = None;
                    if self.keep(record).is_err() {
                        *place = Place::Unknown;
                    }
                    return Err(error);
                }
                self.truncate(record, meta, size)
            }
            Place::Here => {
                meta.set_size(size)?;
                if size == 0 {
                    *place = Place::Nowhere;
                }
                Ok(())
            }
            _ => meta.set_size(size),
        }
    }

    fn finish_truncation(&self, record: &mut Record, size: u64) -> Result<()> {
        let meta = self.writer()?;
        let _size = self.lock_size();
        tracing::info!(component = %record.component, size, "a truncation is finished");
        self.truncate(record, &*meta, size)
    }

    /// Truncates the components, then the metadata file, and records that as done. The record holds
    /// the new size before.
    fn truncate(&self, record: &mut Record, meta: &dyn OpenFile, size: u64) -> Result<()> {
        assert_eq!(record.truncating, Some(size), "the record holds the size first");
        let (failed, truncations) = match record.whole {
            Some(_) => (self.truncate_copies(record, size)?, Vec::new()),
            None => (0, self.truncate_components(record, size)?),
        };
        if meta.attr()?.size != size {
            meta.set_size(size)?;
        }
        let give_up = |whole: Whole| Whole { stale: whole.stale | failed, ..whole };
        let whole = record.whole.map(give_up);
        let done = Record { truncating: None, truncations, whole, ..record.clone() };
        self.keep(&done)?;
        // Without this sync, a crash would repeat the truncation and remove data that clients have
        // written since.
        self.sync_meta(meta)?;
        if failed != 0 {
            self.note_given_up(&done, failed);
        }
        *record = done;
        self.note_pending(record);
        self.drop_stale_grants_exclusive(record)
    }

    /// Returns an open of the metadata file for writing: one of a client, or the server's own.
    pub(super) fn writer(&self) -> Result<Arc<dyn OpenFile>> {
        if let Some(file) = self.writer.lock().as_ref().and_then(Weak::upgrade) {
            return Ok(file);
        }
        let mode = OpenMode { read: false, write: true };
        self.with_rights(|| self.shared.meta.open(&server(), &self.id, mode))
    }

    /// Makes the size and the record stable.
    pub(super) fn commit_meta(&self, meta: &dyn OpenFile) -> Result<()> {
        if self.synced.is_stable() { meta.commit(0, 0) } else { self.sync_meta(meta) }
    }

    /// Makes all attributes and the record stable.
    pub(super) fn sync_meta(&self, meta: &dyn OpenFile) -> Result<()> {
        self.synced.sync(|| meta.sync())
    }

    /// Makes the components of a record stable.
    pub(super) fn commit_stripes(&self, record: &Record) -> Result<()> {
        let _server = self.shared.as_server()?;
        let mut same = true;
        for place in 0..record.nodes.len() {
            let slot = self.slot(record, place)?;
            let verifier = slot.node.commit(&record.component).map_err(StoreError::of_node)?;
            same &= self.shared.note_verifier(&slot, verifier);
        }
        // The writer holds an earlier verifier, and must learn that it has changed.
        if same { Ok(()) } else { Err(StoreError::Busy) }
    }

    /// Returns the end of the longest component of a record.
    pub(super) fn reach(&self, record: &Record) -> Result<u64> {
        if record.whole.is_some() {
            return self.reach_of_copies(record);
        }
        let _server = self.shared.as_server()?;
        let mut reach = 0;
        for place in 0..record.nodes.len() {
            reach = reach.max(self.slot(record, place)?.node.size(&record.component)?);
        }
        Ok(reach)
    }

    /// Returns the end of the component that holds the byte before `end`.
    pub(super) fn reach_at(&self, record: &Record, end: u64) -> Result<u64> {
        if record.whole.is_some() {
            return self.reach_of_copies(record);
        }
        let _server = self.shared.as_server()?;
        let place = record.place_of(end.saturating_sub(1));
        self.slot(record, place)?.node.size(&record.component)
    }

    /// Returns the node at a place in a record, to use its component.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while its truncation is pending.
    pub(super) fn slot(&self, record: &Record, place: usize) -> Result<Arc<Slot>> {
        match record.truncation(place) {
            Some(_) => Err(StoreError::Busy),
            None => self.shared.slot(record.nodes[place]),
        }
    }

    /// Returns the current attributes, also of a file without a name.
    pub(super) fn attr(&self) -> Result<Attr> {
        self.shared.meta.getattr(&self.id)
    }
}

/// True if the content may be used.
fn is_settled(place: &Place) -> bool {
    match place {
        Place::Unknown => false,
        Place::Striped(record) => record.truncating.is_none(),
        Place::Nowhere | Place::Here => true,
    }
}
