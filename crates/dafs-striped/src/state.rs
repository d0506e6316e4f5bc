//! What is known of one file by all who use it: where it lies, and the steps that change its size.
//!
//! Invariants
//! * Content is read and written under the shared side of the gate, sizes are cut and placements made
//!   under the exclusive one.
//! * Nobody gets past the gate while a cut is unfinished. It is finished without nodes that are away: what
//!   they owe is in the record, and their components are used by nobody before they have been cut.
//! * Every change of the size is made under `size_lock`, so that none undoes another.

use super::copies::Copies;
use super::moving::Move;
use super::record::{Owner, Record, STRIPES_XATTR, Whole};
use super::slots::Slot;
use super::stable::Stable;
use super::{Known, Shared, lock, server};
use crate::limits::COPY_ATTEMPTS_MAX;
use dafs_store::node::ComponentId;
use dafs_store::{
    Attr, FileId, Kind, OpenFile, OpenMode, Result, SetAttr, SetXattr, Store, StoreError,
};
use siphasher::sip::SipHasher24;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
    Weak,
};

/// Where the content of a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Not looked at yet.
    Unknown,
    /// It has none, and is placed when it gets some.
    Nowhere,
    /// In the metadata directory, from before.
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
    /// Whether the record is known to be stable.
    synced: Stable,
    /// Whether components may reach beyond the size: they belong to a record of an earlier use, or
    /// clients write to them.
    loose: AtomicBool,
    /// Whether the size covers what earlier runs have left on the nodes.
    adopted: AtomicBool,
    /// An open of the metadata file for writing, for what the server does by itself.
    writer: Mutex<Option<Weak<dyn OpenFile>>>,
    /// Made without a name and not given one yet: nobody finds it once it is closed.
    unnamed: AtomicBool,
    /// Where it goes to, while it is moved. Changed by those who are alone.
    moving: Mutex<Option<Arc<Move>>>,
    /// The component that is removed when the state goes.
    held: Mutex<Option<ComponentId>>,
    copies: Copies,
}

impl Drop for FileState {
    fn drop(&mut self) {
        let mut states = lock(&self.shared.states);
        let place = self.gate.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Another state of the file may have come in the meantime.
        if states.get(&self.id).is_some_and(|state| state.strong_count() == 0) {
            states.remove(&self.id);
            if let Place::Striped(record) = place {
                lock(&self.shared.files).remove(&record.component);
                lock(&self.shared.owing).retain(|(component, _), _| *component != record.component);
            }
        }
        drop(states);
        if let Place::Striped(record) = place
            && self.unnamed.load(Ordering::SeqCst)
        {
            self.shared.enter_removed(self.id, record);
        }
        if let Some(component) = lock(&self.held).take() {
            lock(&self.shared.held).remove(&component);
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
        *lock(&self.writer) = Some(Arc::downgrade(file));
    }

    /// Says whether the file has had a name.
    pub(super) fn set_unnamed(&self, unnamed: bool) {
        self.unnamed.store(unnamed, Ordering::SeqCst);
    }

    /// Lets the file be found by its component.
    pub(super) fn announce(&self, record: &Record) {
        let known = Known { file: self.id, usable: record.usable() };
        lock(&self.shared.files).insert(record.component, known);
    }

    /// What is known of the copies has changed. False if nobody was told where the file lies.
    pub(super) fn announce_again(&self, record: &Record) -> bool {
        let mut files = lock(&self.shared.files);
        let known = files.get_mut(&record.component);
        known.map(|known| known.usable = record.usable()).is_some()
    }

    /// Keeps the component from being removed for as long as somebody uses the file.
    pub(super) fn hold(&self, component: ComponentId) {
        lock(&self.shared.held).insert(component);
        *lock(&self.held) = Some(component);
    }

    /// Where the file lies, for as long as the guard lives.
    pub(super) fn enter(&self) -> Result<RwLockReadGuard<'_, Place>> {
        let mut tried = false;
        loop {
            let place = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            if is_settled(&place) && (tried || !self.can_pay(&place)) {
                return Ok(place);
            }
            drop(place);
            drop(self.enter_alone()?);
            tried = true;
        }
    }

    /// The same without waiting; `None` where that is not possible.
    pub(super) fn try_enter(&self) -> Option<RwLockReadGuard<'_, Place>> {
        let place = match self.gate.try_read() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        is_settled(&place).then_some(place)
    }

    /// The record as it is, be it of a cut that is not finished; `None` if it has none.
    pub(super) fn look(&self) -> Result<Option<Record>> {
        self.look_at(self.gate.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// [`StoreError::WouldBlock`] where that is not possible.
    pub(super) fn try_look(&self) -> Result<Option<Record>> {
        match self.gate.try_write() {
            Ok(place) => self.look_at(place),
            Err(TryLockError::Poisoned(place)) => self.look_at(place.into_inner()),
            Err(TryLockError::WouldBlock) => Err(StoreError::WouldBlock),
        }
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

    /// Where the file lies, while nobody else uses it.
    pub(super) fn enter_alone(&self) -> Result<RwLockWriteGuard<'_, Place>> {
        let mut place = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if *place == Place::Unknown {
            *place = self.load()?;
            if let Place::Striped(record) = &*place {
                self.note_owing(record);
            }
        }
        if let Place::Striped(record) = &mut *place {
            if let Some(size) = record.cutting {
                self.finish_cut(record, size)?;
            }
            self.pay(record);
        }
        Ok(place)
    }

    /// The same while no client writes to copies by itself either: each copy would come to another end.
    fn enter_alone_of_clients(&self) -> Result<RwLockWriteGuard<'_, Place>> {
        for _ in 0..COPY_ATTEMPTS_MAX {
            let place = self.enter_alone()?;
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
        // A sync that began between the two may have come too early.
        self.synced.change();
        Ok(())
    }

    /// Runs something that needs the rights to read and write the metadata file. A server without
    /// privileges that has them not, because nobody has, gives them to itself for so long.
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

    /// Says where a file will lie that has no content yet.
    pub(super) fn place(&self) -> Result<()> {
        let mut place = self.enter_alone()?;
        if *place == Place::Nowhere {
            *place = Place::Striped(self.make_record()?);
        }
        Ok(())
    }

    /// The same for one that has just been made with a size.
    pub(super) fn place_new(&self) -> Result<()> {
        let mut place = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*place, Place::Striped(_)) {
            *place = Place::Striped(self.make_record()?);
        }
        Ok(())
    }

    fn make_record(&self) -> Result<Record> {
        let slots = self.shared.slots.staying();
        let mut component = [0; 16];
        getrandom::fill(&mut component).map_err(|_| StoreError::Io)?;
        // Files begin on different nodes, so that small ones are spread too.
        let turn = SipHasher24::new().hash(&component) % slots.len() as u64;
        let mut record = Record {
            component: ComponentId(component),
            unit_bytes: self.shared.options.unit_bytes,
            first: u16::try_from(turn).unwrap_or(0),
            nodes: slots.iter().map(|slot| slot.node.number()).collect(),
            cutting: None,
            owed: Vec::new(),
            whole: None,
        };
        if self.shared.options.copies > 1 {
            self.make_whole(&mut record)?;
        }
        self.keep(&record)?;
        // There is nothing on any node yet.
        self.loose.store(false, Ordering::SeqCst);
        self.adopted.store(true, Ordering::SeqCst);
        Ok(record)
    }

    /// Where the file goes to, if it is being moved.
    pub(super) fn moving(&self) -> Option<Arc<Move>> {
        lock(&self.moving).clone()
    }

    /// Whether it is being moved.
    pub(super) fn is_moving(&self) -> bool {
        lock(&self.moving).is_some()
    }

    /// Says where it goes to; to be called by who is alone.
    pub(super) fn set_moving(&self, moving: Arc<Move>) {
        *lock(&self.moving) = Some(moving);
    }

    /// It is moved no more, and nobody who writes takes it to be.
    pub(super) fn end_move(&self) {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        *lock(&self.moving) = None;
    }

    /// Something may have been written beyond the size.
    pub(super) fn set_loose(&self) {
        self.loose.store(true, Ordering::SeqCst);
    }

    /// Makes ready for clients that write to components themselves: where the file lies is stable, and
    /// what others have left on the nodes, who could not say so any more, is part of the file.
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

    /// Makes the file reach as far as its components do, and that stable: whoever made it longer may have
    /// been killed before it was.
    pub(super) fn adopt(&self, record: &Record) -> Result<()> {
        // First, so that nobody is asked about a file that is gone.
        let size = self.attr()?.size;
        let reach = self.reach(record)?;
        if reach > size {
            self.synced.change();
            self.extend(&*self.writer()?, reach)?;
            // A sync that began between the two may have come too early.
            self.synced.change();
        }
        if reach > 0 && !self.synced.is_stable() {
            self.sync_meta(&*self.writer()?)?;
        }
        Ok(())
    }

    pub(super) fn lock_size(&self) -> MutexGuard<'_, ()> {
        lock(&self.size_lock)
    }

    /// Makes the file reach to `end` at least, and counts as a change of it in any case. The caller
    /// is inside the gate.
    pub(super) fn extend(&self, meta: &dyn OpenFile, end: u64) -> Result<()> {
        let _size = self.lock_size();
        let size = meta.attr()?.size;
        meta.set_size(size.max(end))
    }

    /// Sets the size in the way that every change of it goes.
    pub(super) fn set_size(&self, meta: &dyn OpenFile, size: u64) -> Result<()> {
        let mut place = self.enter_alone_of_clients()?;
        if *place == Place::Nowhere && size > 0 {
            *place = Place::Striped(self.make_record()?);
        }
        if let Place::Striped(record) = &*place {
            self.be_sure_alone(record)?;
        }
        let _size = self.lock_size();
        match &mut *place {
            // What components have beyond the size would come back when the file grows.
            Place::Striped(record)
                if size < meta.attr()?.size || self.loose.load(Ordering::SeqCst) =>
            {
                // Who moves it begins anew.
                self.moving().inspect(|moving| moving.fail());
                record.cutting = Some(size);
                let noted = self.keep(record).and_then(|()| self.sync_meta(meta));
                if let Err(error) = noted {
                    // What is kept is not known, and nothing was cut.
                    record.cutting = None;
                    if self.keep(record).is_err() {
                        *place = Place::Unknown;
                    }
                    return Err(error);
                }
                self.cut(record, meta, size)
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

    fn finish_cut(&self, record: &mut Record, size: u64) -> Result<()> {
        let meta = self.writer()?;
        let _size = self.lock_size();
        tracing::info!(component = %record.component, size, "a cut is finished");
        self.cut(record, &*meta, size)
    }

    /// Cuts components, then the metadata file, and says so. The record says already what to.
    fn cut(&self, record: &mut Record, meta: &dyn OpenFile, size: u64) -> Result<()> {
        assert_eq!(record.cutting, Some(size), "a cut is noted first");
        let (failed, owed) = match record.whole {
            Some(_) => (self.cut_copies(record, size)?, Vec::new()),
            None => (0, self.cut_components(record, size)?),
        };
        if meta.attr()?.size != size {
            meta.set_size(size)?;
        }
        let give_up = |whole: Whole| Whole { stale: whole.stale | failed, ..whole };
        let whole = record.whole.map(give_up);
        let done = Record { cutting: None, owed, whole, ..record.clone() };
        self.keep(&done)?;
        // After a crash the file would be cut again, with what clients have written behind it since.
        self.sync_meta(meta)?;
        if failed != 0 {
            self.note_given_up(&done, failed);
        }
        *record = done;
        self.note_owing(record);
        self.be_sure_alone(record)
    }

    /// An open of the metadata file for writing: somebody's, or the server's own.
    pub(super) fn writer(&self) -> Result<Arc<dyn OpenFile>> {
        if let Some(file) = lock(&self.writer).as_ref().and_then(Weak::upgrade) {
            return Ok(file);
        }
        let mode = OpenMode { read: false, write: true };
        self.with_rights(|| self.shared.meta.open(&server(), &self.id, mode))
    }

    /// Makes the size stable, and where the file lies.
    pub(super) fn commit_meta(&self, meta: &dyn OpenFile) -> Result<()> {
        if self.synced.is_stable() { meta.commit(0, 0) } else { self.sync_meta(meta) }
    }

    /// The same with all attributes.
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
        // The caller has told a verifier from before, and would keep to it.
        if same { Ok(()) } else { Err(StoreError::Busy) }
    }

    /// How far the components of a record reach.
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

    /// How far the component reaches that holds the byte before `end`.
    pub(super) fn reach_at(&self, record: &Record, end: u64) -> Result<u64> {
        if record.whole.is_some() {
            return self.reach_of_copies(record);
        }
        let _server = self.shared.as_server()?;
        let place = record.place_of(end.saturating_sub(1));
        self.slot(record, place)?.node.size(&record.component)
    }

    /// The node of a place in a record, to use its component.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while it has not been cut.
    pub(super) fn slot(&self, record: &Record, place: usize) -> Result<Arc<Slot>> {
        match record.owed_at(place) {
            Some(_) => Err(StoreError::Busy),
            None => self.shared.slot(record.nodes[place]),
        }
    }

    /// Current attributes, of a file without a name too.
    pub(super) fn attr(&self) -> Result<Attr> {
        self.shared.meta.getattr(&self.id)
    }
}

/// Whether content may be used.
fn is_settled(place: &Place) -> bool {
    match place {
        Place::Unknown => false,
        Place::Striped(record) => record.cutting.is_none(),
        Place::Nowhere | Place::Here => true,
    }
}
