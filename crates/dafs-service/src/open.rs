//! Opens and share reservations.
//!
//! Invariants
//! * Two opens of a file by different owners never conflict: what one accesses the other does not
//!   deny. The check and the entry into the table are one step under the table's lock.
//! * A state-id names one (owner, file); it does not change while the open lives, and is never
//!   used again.
//! * The caller's rights are checked by opening in the store before anything is entered, so an open
//!   that is not allowed leaves no trace on those that are under way beside it.
//! * What a client holds is entered only while its record is current, so that nothing is entered
//!   after it has been released.

use crate::client::{Client, ClientKey};
use crate::error::ServiceError;
use crate::export::Export;
use crate::handle::Handle;
use crate::limits::{OPEN_TRIES_MAX, OPENS_MAX, OPENS_PER_CLIENT_MAX, OWNER_BYTES_MAX};
use crate::{Caller, Result, Service};
use dafs_store::{Attr, CreateHow, Cred, DirChange, Kind, OpenFile, OpenMode, SetAttr, StoreError};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A state-id as the service counts them: 24 bits of the server's instance above, a number below.
/// Zero is the anonymous state-id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u64);

impl StateId {
    /// I/O without an open (DAFS O37).
    pub const ANONYMOUS: StateId = StateId(0);
    /// Never valid (DAFS O37).
    const ONES: StateId = StateId(u64::MAX);
}

/// Bits of a state-id that count. Enough for a million opens per second for twelve days; 32 would
/// last for an hour.
const NUMBER_BITS: u32 = 40;

/// The largest number of a state-id.
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

/// What an open accesses and what it denies to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub struct Share {
    pub read: bool,
    pub write: bool,
    pub deny_read: bool,
    pub deny_write: bool,
}

impl Share {
    fn conflicts(self, other: Share) -> bool {
        self.read && other.deny_read
            || self.write && other.deny_write
            || self.deny_read && other.read
            || self.deny_write && other.write
    }

    fn union(self, other: Share) -> Share {
        Share {
            read: self.read || other.read,
            write: self.write || other.write,
            deny_read: self.deny_read || other.deny_read,
            deny_write: self.deny_write || other.deny_write,
        }
    }

    fn contains(self, other: Share) -> bool {
        self.union(other) == self
    }

    fn mode(self) -> OpenMode {
        OpenMode { read: self.read, write: self.write }
    }
}

/// How to find or make the file to open.
#[derive(Debug, Clone, Copy)]
pub enum OpenHow {
    /// It must exist.
    Existing,
    /// Make it as the store does; the attributes are for a new file, or size 0 to truncate.
    Create(CreateHow, SetAttr),
}

/// What to open.
#[derive(Debug, Clone, Copy)]
pub struct OpenRequest<'a> {
    /// The directory.
    pub dir: &'a Handle,
    /// The name in it.
    pub name: &'a [u8],
    /// The owner, unique within the client.
    pub owner: &'a [u8],
    /// Access and denial.
    pub share: Share,
    /// Whether others may remove the file meanwhile (DAFS delete disposition).
    pub deny_delete: bool,
    /// Find or make.
    pub how: OpenHow,
}

/// A file that is open now.
#[derive(Clone)]
pub struct Opened {
    /// The open.
    pub state: Arc<OpenState>,
    /// Attributes of the file.
    pub attr: Attr,
    /// The change of the directory.
    pub dir: DirChange,
    /// True when the file is new.
    pub created: bool,
}

/// How careful a removal is about files that are open (DAFS 10.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveMode {
    /// Fails only if an open denies removal.
    Unchecked,
    /// Fails if the file is open at all.
    CheckOpen,
}

/// One open.
pub struct OpenState {
    id: StateId,
    client: ClientKey,
    handle: Handle,
    /// The file as opens are compared by.
    key: Handle,
    owner: Vec<u8>,
    /// Set when the open has been given back or revoked.
    gone: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    share: Share,
    deny_delete: bool,
    /// The store's file and what it was opened for.
    file: Option<(OpenMode, Arc<dyn OpenFile>)>,
    /// Counts the changes of the above by opens and downgrades.
    changes: u32,
}

impl OpenState {
    /// Its state-id.
    pub fn id(&self) -> StateId {
        self.id
    }

    /// The file's handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The store's file, if the open allows `need`.
    ///
    /// # Errors
    /// `OpenMode` when it does not, `StaleStateId` when the open is gone.
    pub fn file(&self, need: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let inner = self.lock();
        if self.gone.load(Ordering::Relaxed) {
            return Err(ServiceError::StaleStateId);
        }
        if need.read && !inner.share.read || need.write && !inner.share.write {
            return Err(ServiceError::OpenMode);
        }
        let file = inner.file.as_ref().map(|(_, file)| file.clone());
        file.ok_or(ServiceError::BadStateId)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct OpenTable {
    instance: u32,
    next: u64,
    states: FxHashMap<StateId, Arc<OpenState>>,
    files: FxHashMap<Handle, Vec<Arc<OpenState>>>,
    by_client: FxHashMap<ClientKey, FxHashSet<StateId>>,
    /// Files that are losing a name just now, and how careful that removal is.
    removing: FxHashMap<Handle, RemoveMode>,
}

impl OpenTable {
    pub(crate) fn new(instance: u32) -> Self {
        Self {
            instance: instance & 0x00ff_ffff,
            next: 0,
            states: FxHashMap::default(),
            files: FxHashMap::default(),
            by_client: FxHashMap::default(),
            removing: FxHashMap::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Ends all opens of a client. The files are to be dropped without the lock, because closing
    /// one may take long.
    pub(crate) fn release_client(&mut self, client: ClientKey) -> Vec<Released> {
        let ids = self.by_client.remove(&client).unwrap_or_default();
        ids.iter().filter_map(|&id| self.release(id)).collect()
    }

    fn release(&mut self, id: StateId) -> Option<Released> {
        let state = self.states.remove(&id)?;
        state.gone.store(true, Ordering::Relaxed);
        let file = state.lock().file.take();
        if let Some(list) = self.files.get_mut(&state.key) {
            list.retain(|other| other.id != id);
            if list.is_empty() {
                self.files.remove(&state.key);
            }
        }
        if let Some(ids) = self.by_client.get_mut(&state.client) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_client.remove(&state.client);
            }
        }
        Some(Released { _state: state, _file: file })
    }

    /// Enters an open, or widens the owner's existing one. Returns it, what it had before when it
    /// existed, and whether it is new.
    fn reserve(
        &mut self,
        client: &Client,
        handle: Handle,
        key: Handle,
        request: &OpenRequest<'_>,
    ) -> Result<Reserved> {
        // The record is marked before what it holds is released under the table's lock, so a new
        // entry is either seen by that release or refused here.
        if client.is_gone() {
            return Err(ServiceError::Expired);
        }
        let client = client.key();
        let forbidden =
            |removal: &RemoveMode| request.deny_delete || *removal == RemoveMode::CheckOpen;
        if self.removing.get(&key).is_some_and(forbidden) {
            // The file is about to lose its name; the client asks again and sees.
            return Err(StoreError::Busy.into());
        }
        if self.states.len() >= OPENS_MAX {
            return Err(ServiceError::Resource);
        }
        let list = self.files.entry(key).or_default();
        let mut own = None;
        for other in list.iter() {
            if other.client == client && other.owner == request.owner {
                own = Some(other.clone());
            } else if other.lock().share.conflicts(request.share) {
                return Err(ServiceError::ShareDenied);
            }
        }
        if let Some(state) = own {
            let mut inner = state.lock();
            let before = Some((inner.share, inner.deny_delete));
            inner.share = inner.share.union(request.share);
            inner.deny_delete |= request.deny_delete;
            inner.changes += 1;
            let changes = inner.changes;
            drop(inner);
            return Ok(Reserved { state, before, changes });
        }
        let held = self.by_client.entry(client).or_default();
        if held.len() >= OPENS_PER_CLIENT_MAX || self.next == NUMBER_MAX {
            if list.is_empty() {
                self.files.remove(&key);
            }
            return Err(ServiceError::Resource);
        }
        self.next += 1;
        let id = StateId(u64::from(self.instance) << NUMBER_BITS | self.next);
        let state = Arc::new(OpenState {
            id,
            client,
            handle,
            key,
            owner: request.owner.to_vec(),
            gone: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                share: request.share,
                deny_delete: request.deny_delete,
                file: None,
                changes: 0,
            }),
        });
        held.insert(id);
        list.push(state.clone());
        self.states.insert(id, state.clone());
        Ok(Reserved { state, before: None, changes: 0 })
    }

    /// Undoes a reservation whose open failed in the store. If another open of the same owner has
    /// joined meanwhile, what it was told stays true, and the close of both gives all back.
    fn cancel(&mut self, reserved: &Reserved) {
        if reserved.state.lock().changes != reserved.changes {
            return;
        }
        match reserved.before {
            Some((share, deny_delete)) => {
                let mut inner = reserved.state.lock();
                inner.share = share;
                inner.deny_delete = deny_delete;
            }
            None => {
                self.release(reserved.state.id);
            }
        }
    }

    fn find(&self, id: StateId) -> Result<&Arc<OpenState>> {
        let other_run = id.0 >> NUMBER_BITS != u64::from(self.instance);
        let given_back = (1..=self.next).contains(&(id.0 & NUMBER_MAX));
        self.states.get(&id).ok_or(if id != StateId::ONES && (other_run || given_back) {
            ServiceError::StaleStateId
        } else {
            ServiceError::BadStateId
        })
    }

    /// Refuses what an open denies to those without one.
    fn check_anonymous(&self, handle: &Handle, need: OpenMode) -> Result<()> {
        let access = Share { read: need.read, write: need.write, ..Share::default() };
        let opens = self.files.get(handle).map_or(&[][..], Vec::as_slice);
        if opens.iter().any(|open| open.lock().share.conflicts(access)) {
            return Err(ServiceError::ShareDenied);
        }
        Ok(())
    }

    /// Begins the removal of a name of a file, unless an open forbids it.
    pub(crate) fn begin_removal(&mut self, key: Handle, mode: RemoveMode) -> Result<()> {
        let opens = self.files.get(&key).map_or(&[][..], Vec::as_slice);
        let denied = match mode {
            RemoveMode::Unchecked => opens.iter().any(|open| open.lock().deny_delete),
            RemoveMode::CheckOpen => !opens.is_empty(),
        };
        if denied {
            return Err(ServiceError::DeleteDenied);
        }
        self.removing.insert(key, mode);
        Ok(())
    }

    pub(crate) fn end_removal(&mut self, key: &Handle) {
        self.removing.remove(key);
    }

    /// Any file of an open of this handle, to answer for a file without a name.
    pub(crate) fn any_file(&self, handle: &Handle) -> Option<Arc<dyn OpenFile>> {
        let file = |open: &Arc<OpenState>| open.lock().file.as_ref().map(|(_, f)| f.clone());
        self.files.get(handle)?.iter().find_map(file)
    }
}

/// An open that is over, with what is to be dropped outside of the lock.
pub(crate) struct Released {
    _state: Arc<OpenState>,
    _file: Option<(OpenMode, Arc<dyn OpenFile>)>,
}

struct Reserved {
    state: Arc<OpenState>,
    before: Option<(Share, bool)>,
    changes: u32,
}

fn covers(mode: OpenMode, need: OpenMode) -> bool {
    (mode.read || !need.read) && (mode.write || !need.write)
}

impl Service {
    /// Opens a regular file by name.
    ///
    /// # Errors
    /// Those of the store, and `ShareDenied`.
    pub fn open(&self, caller: Caller<'_>, request: &OpenRequest<'_>) -> Result<Opened> {
        if !(request.share.read || request.share.write) {
            return Err(StoreError::Invalid.into());
        }
        if request.owner.len() > OWNER_BYTES_MAX {
            return Err(ServiceError::Resource);
        }
        let export = self.namespace().export(request.dir)?;
        if request.share.write || matches!(request.how, OpenHow::Create(..)) {
            export.writable()?;
        }
        for _ in 0..OPEN_TRIES_MAX {
            match self.open_once(caller, export, request) {
                // Somebody made the file between our look and our create.
                Err(ServiceError::Store(StoreError::Exists))
                    if matches!(request.how, OpenHow::Create(CreateHow::Unchecked, _)) => {}
                // Somebody removed it between our look and our open.
                Err(ServiceError::Store(StoreError::Stale))
                    if matches!(request.how, OpenHow::Create(CreateHow::Unchecked, _)) => {}
                done => return done,
            }
        }
        Err(StoreError::Busy.into())
    }

    fn open_once(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
    ) -> Result<Opened> {
        let cred = export.map_cred(caller.cred);
        let (store, dir) = (export.store(), &request.dir.file);
        // An exclusive create must reach the store even if the name exists: it may be a repetition.
        if !matches!(request.how, OpenHow::Create(CreateHow::Exclusive(_), _)) {
            match store.lookup(&cred, dir, request.name) {
                Ok((id, attr)) => {
                    if matches!(request.how, OpenHow::Create(CreateHow::Guarded, _)) {
                        return Err(StoreError::Exists.into());
                    }
                    let handle = Handle { fs: request.dir.fs, file: id };
                    return self.open_existing(caller, export, request, handle, attr);
                }
                Err(StoreError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let OpenHow::Create(how, attr) = request.how else {
            return Err(StoreError::NotFound.into());
        };
        let how = match how {
            CreateHow::Exclusive(verifier) => CreateHow::Exclusive(verifier),
            CreateHow::Unchecked | CreateHow::Guarded => CreateHow::Guarded,
        };
        let made = store.create(&cred, dir, request.name, how, &attr, request.share.mode())?;
        let handle = Handle { fs: request.dir.fs, file: made.id };
        let reserved =
            self.lock_opens().reserve(caller.client, handle, export.key(&handle), request)?;
        if let Err(error) = install(export, &cred, request, &reserved, made.file) {
            self.lock_opens().cancel(&reserved);
            return Err(error);
        }
        Ok(Opened { state: reserved.state, attr: made.attr, dir: made.dir, created: made.created })
    }

    fn open_existing(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        handle: Handle,
        attr: Attr,
    ) -> Result<Opened> {
        match attr.kind {
            Kind::Regular | Kind::NamedAttr => {}
            Kind::Directory | Kind::AttrDirectory => return Err(StoreError::IsDirectory.into()),
            Kind::Symlink => return Err(StoreError::Symlink.into()),
            _ => return Err(StoreError::Invalid.into()),
        }
        let cred = export.map_cred(caller.cred);
        let file = export.store().open(&cred, &handle.file, request.share.mode())?;
        let reserved =
            self.lock_opens().reserve(caller.client, handle, export.key(&handle), request)?;
        let installed = install(export, &cred, request, &reserved, file);
        let opened =
            installed.and_then(|()| self.open_reserved(export, &cred, request, &reserved, attr));
        if opened.is_err() {
            self.lock_opens().cancel(&reserved);
        }
        opened
    }

    fn open_reserved(
        &self,
        export: &Export,
        cred: &Cred,
        request: &OpenRequest<'_>,
        reserved: &Reserved,
        attr: Attr,
    ) -> Result<Opened> {
        let (store, state) = (export.store(), &reserved.state);
        let mut attr = attr;
        if let OpenHow::Create(_, SetAttr { size: Some(0), .. }) = request.how {
            let change = SetAttr { size: Some(0), ..SetAttr::default() };
            let file = state.file(OpenMode { read: false, write: false })?;
            attr = store.setattr(cred, &state.handle.file, &change, Some(&*file))?;
        }
        let change = store.getattr(&request.dir.file)?.change;
        let dir = DirChange { before: change, after: change, atomic: true };
        Ok(Opened { state: state.clone(), attr, dir, created: false })
    }

    /// The open of a state-id that this client was given for this file.
    ///
    /// # Errors
    /// `StaleStateId` for one given back or of an earlier run, else `BadStateId`.
    pub fn open_state(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        id: StateId,
    ) -> Result<Arc<OpenState>> {
        let opens = self.lock_opens();
        let state = opens.find(id)?;
        if state.client != caller.client.key() || state.handle != *handle {
            return Err(ServiceError::BadStateId);
        }
        Ok(state.clone())
    }

    /// A file to do I/O on: that of the open, or, for the anonymous state-id, one opened for this
    /// caller now if no open denies it.
    ///
    /// # Errors
    /// Those of the state-id, `ShareDenied`, and the store's.
    pub fn io_file(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        id: StateId,
        need: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        if id != StateId::ANONYMOUS {
            return self.open_state(caller, handle, id)?.file(need);
        }
        let export = self.namespace().export(handle)?;
        if need.write {
            export.writable()?;
        }
        self.lock_opens().check_anonymous(&export.key(handle), need)?;
        let cred = export.map_cred(caller.cred);
        Ok(export.store().open(&cred, &handle.file, need)?)
    }

    /// Gives an open back.
    ///
    /// # Errors
    /// Those of the state-id.
    pub fn close(&self, caller: Caller<'_>, handle: &Handle, id: StateId) -> Result<()> {
        self.open_state(caller, handle, id)?;
        let released = self.lock_opens().release(id);
        drop(released);
        Ok(())
    }

    /// Reduces access and denial of an open to a part of what it has.
    ///
    /// # Errors
    /// `Invalid` when `share` is not a part of it.
    pub fn downgrade(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        id: StateId,
        share: Share,
    ) -> Result<()> {
        let state = self.open_state(caller, handle, id)?;
        // Under the table's lock, because shares are compared under it.
        let _opens = self.lock_opens();
        let mut inner = state.lock();
        if !(share.read || share.write) || !inner.share.contains(share) {
            return Err(StoreError::Invalid.into());
        }
        inner.share = share;
        inner.changes += 1;
        Ok(())
    }
}

/// Gives the open a file for all that its owner may do now: the one it has, or `file`, which is
/// open for what was asked for this time, or a new one for both.
fn install(
    export: &Export,
    cred: &Cred,
    request: &OpenRequest<'_>,
    reserved: &Reserved,
    file: Arc<dyn OpenFile>,
) -> Result<()> {
    let state = &reserved.state;
    let mut inner = state.lock();
    let need = inner.share.mode();
    if inner.file.as_ref().is_some_and(|(mode, _)| covers(*mode, need)) {
        return Ok(());
    }
    if covers(request.share.mode(), need) {
        inner.file = Some((request.share.mode(), file));
        return Ok(());
    }
    drop(inner);
    let both = export.store().open(cred, &state.handle.file, need)?;
    state.lock().file = Some((need, both));
    Ok(())
}
