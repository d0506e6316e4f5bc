//! Fences: lists of the clients that may use a file or a file system (DAFS 11).
//!
//! A cluster that ejects a node removes the node's name from the lists, and goes on when that call
//! has returned. From then on no request of the node reaches the object, and none that it had sent
//! before is still under way. Names are claims. A fence keeps out nodes that have failed, not
//! malicious ones.
//!
//! Invariants
//! * A list is on the disk before it holds, and holds before any caller is told so.
//! * A subject needs to be on both lists, the file's and the file system's (DAFS O47).
//! * Updates are serialised, and a subject that the update before has shut out can make none: of
//!   two nodes that eject each other, one wins.
//! * An update that removes access ends when all work of the subjects without access has ended:
//!   work checks the lists after it has been entered where [`Drain`] finds it.
//! * As long as there is no list, a request pays for one load.

mod gate;
mod list;
mod records;

pub(crate) use list::FenceList;
pub use list::{FenceUpdate, Subject, is_fence_id};
pub use records::{FenceRecord, FenceRecords, FileFences, NoFenceRecords};

use crate::export::{Export, Exports};
use crate::handle::Handle;
use crate::hosts::{Host, has_share};
use crate::limits::{FENCE_LISTS_MAX, FENCE_LISTS_SWEPT_MAX};
use crate::records::RecordsError;
use crate::{Caller, Client, ClientKey, Clients, Result, Service, ServiceError};
use dafs_mem::{Failing, Mutex, RwLock};
use dafs_store::{FsId, StoreError};
use gate::{Entered, Gate};
use rustc_hash::FxHashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The object of a list. Any handle of the object names it. Two exports of one directory lead to
/// the same files and are one file system here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FenceObject {
    /// A file.
    File(Handle),
    /// A file system.
    FileSystem(FsId),
}

/// The right by which a caller sees and changes fences.
#[derive(Debug, Clone, Copy)]
pub enum FenceRight<'a> {
    /// A client's request. The client must be `trusted`, or own the file (DAFS 11).
    Client(Caller<'a>, bool),
    /// The server's administrator.
    Administrator,
}

/// Called when all work is over. It comes from any thread, never under a lock, and must not block.
pub type Drained = Box<dyn FnOnce() + Send>;

/// A front end that may have work under way for subjects that a list shuts out.
pub trait Drain: Send + Sync {
    /// Keeps `draining` until all work has ended that is under way now for subjects it
    /// [concerns](Draining::concerns). Must not block.
    fn drain(&self, draining: Draining);
}

/// A token of an update that waits for work to end. The wait is over when all clones of it are
/// dropped.
#[derive(Clone)]
pub struct Draining(Arc<Wait>);

struct Wait {
    list: FenceList,
    drained: Mutex<Option<Drained>>,
    /// The number of updates that wait.
    waiting: Arc<AtomicUsize>,
}

impl Draining {
    /// True if work for this subject has to end first.
    pub fn concerns(&self, subject: &Subject<'_>) -> bool {
        !self.0.list.admits(subject)
    }
}

impl fmt::Debug for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Draining").field(&self.0.list).finish()
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let drained = self.drained.lock().take();
        if let Some(drained) = drained {
            drained();
        }
    }
}

/// Marks work as under way while it lives. An update of a fence that shuts out the subject of the
/// work waits for it.
#[must_use = "work is awaited only while this lives"]
pub struct FenceEntry<'a> {
    address: IpAddr,
    entered: Entered<'a, Worker, Draining>,
}

impl FenceEntry<'_> {
    /// Says that the work belongs to this client, whose name may be on a list.
    pub fn is_of(&self, client: &Client) {
        self.entered.is_of(Worker { address: self.address, client: Some(client.key()) });
    }
}

/// The subject of work, in few words. Names are looked up when an update has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Worker {
    address: IpAddr,
    client: Option<ClientKey>,
}

/// All fences.
pub struct Fences {
    exports: Arc<Exports>,
    clients: Arc<Clients>,
    /// The number of lists.
    count: AtomicUsize,
    lists: RwLock<FxHashMap<FenceObject, FenceList>>,
    records: OnceLock<Box<dyn FenceRecords>>,
    /// The hosts from which clients of this run have made lists. Held from the check of a list
    /// until the list has been changed.
    update: Mutex<FxHashMap<FenceObject, Host>>,
    drains: Mutex<Vec<Weak<dyn Drain>>>,
    /// Work of front ends that do not drain themselves.
    gate: Gate<Worker, Draining>,
    /// Updates that wait for work to end.
    waiting: Arc<AtomicUsize>,
    /// Where the sweep goes on.
    swept: AtomicUsize,
    sweeps: Failing,
}

impl Fences {
    pub(crate) fn new(exports: Arc<Exports>, clients: Arc<Clients>) -> Self {
        Self {
            exports,
            clients,
            count: AtomicUsize::new(0),
            lists: RwLock::default(),
            records: OnceLock::new(),
            update: Mutex::default(),
            drains: Mutex::default(),
            gate: Gate::new(),
            waiting: Arc::default(),
            swept: AtomicUsize::new(0),
            sweeps: Failing::default(),
        }
    }

    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.count.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed))
    }

    fn with<T>(&self, object: &FenceObject, act: impl FnOnce(Option<&FenceList>) -> T) -> T {
        act(self.lists.read().get(object))
    }

    fn admits(&self, object: &FenceObject, subject: &Subject<'_>) -> bool {
        self.with(object, |list| list.is_none_or(|list| list.admits(subject)))
    }

    /// True if both lists of a file admit the subject.
    fn admits_to(&self, export: &Export, handle: &Handle, subject: &Subject<'_>) -> bool {
        let key = export.key(handle);
        self.admits(&FenceObject::FileSystem(key.fs), subject)
            && self.admits(&FenceObject::File(key), subject)
    }

    fn put(&self, records: &[FenceRecord]) -> std::result::Result<(), RecordsError> {
        self.records.get().map_or(Ok(()), |kept| kept.put(records))
    }

    fn enter(&self, changes: Vec<(FenceObject, Option<FenceList>)>) {
        let mut lists = self.lists.write();
        for (object, list) in changes {
            match list {
                Some(list) => drop(lists.insert(object, list)),
                None => drop(lists.remove(&object)),
            }
        }
        self.count.store(lists.len(), Ordering::SeqCst);
    }

    /// Checks that there is room for another list. Hosts share the room, and leave some to
    /// administrators.
    fn check_room(
        &self,
        makers: &mut FxHashMap<FenceObject, Host>,
        host: Option<Host>,
    ) -> Result<()> {
        let lists = self.lists.read();
        makers.retain(|object, _| lists.contains_key(object));
        let own = makers.values().filter(|maker| Some(**maker) == host).count();
        match has_share(own, lists.len(), FENCE_LISTS_MAX) {
            true => Ok(()),
            false => Err(ServiceError::Resource),
        }
    }

    fn ask_doors(&self, draining: &Draining) {
        let mut drains = self.drains.lock();
        drains.retain(|drain| drain.strong_count() > 0);
        let drains: Vec<_> = drains.iter().filter_map(Weak::upgrade).collect();
        drains.iter().for_each(|drain| drain.drain(draining.clone()));
    }
}

impl Fences {
    /// Loads the fences of the last run, and keeps new ones in `records`.
    ///
    /// # Errors
    /// The fences cannot be read. To serve without them would admit fenced subjects.
    ///
    /// # Panics
    /// When it is called twice.
    pub fn load(&self, records: Box<dyn FenceRecords>) -> std::result::Result<(), RecordsError> {
        let mut lists = Vec::new();
        for (object, names) in records.load()? {
            let names = names.unwrap_or_default();
            let names: Vec<_> = names.iter().map(Vec::as_slice).collect();
            let list = FenceList::of(&names)
                .map_err(|error| RecordsError::new(format!("a fence list is damaged: {error}")))?;
            lists.push((object, Some(list)));
        }
        self.enter(lists);
        assert!(self.records.set(records).is_ok(), "fences are loaded once");
        Ok(())
    }

    /// True if there is any list.
    #[inline]
    pub fn exist(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Refuses a request about an object that the subject is fenced from. The caller asks after the
    /// work has been entered ([`Drain`], [`begin_work`](Self::begin_work)).
    ///
    /// # Errors
    /// `Fenced`.
    #[inline]
    pub fn check(&self, subject: &Subject<'_>, handle: &Handle) -> Result<()> {
        if self.exist() { self.check_lists(subject, handle) } else { Ok(()) }
    }

    #[cold]
    fn check_lists(&self, subject: &Subject<'_>, handle: &Handle) -> Result<()> {
        let namespace = self.exports.namespace();
        // The operation that uses a handle of no export reports the error.
        let Ok(export) = namespace.export(handle) else { return Ok(()) };
        match self.admits_to(export, handle, subject) {
            true => Ok(()),
            false => Err(ServiceError::Fenced),
        }
    }

    /// True if a fence list exists for a file, by its key, or for its file system.
    pub(crate) fn is_fenced(&self, key: &Handle) -> bool {
        let listed = |object| self.with(&object, |list| list.is_some());
        self.exist() && (listed(FenceObject::FileSystem(key.fs)) || listed(FenceObject::File(*key)))
    }

    /// True if the subject is fenced from every file system.
    pub fn is_fenced_everywhere(&self, subject: &Subject<'_>) -> bool {
        let admitted = |export: &Arc<Export>| {
            self.admits(&FenceObject::FileSystem(export.store().fs_id()), subject)
        };
        self.exist() && !self.exports.namespace().exports().any(admitted)
    }

    /// Begins work for a request of an NFS caller that no [`Drain`] knows of.
    pub fn begin_work(&self, address: IpAddr) -> FenceEntry<'_> {
        let entered = self.gate.enter(Worker { address, client: None });
        FenceEntry { address, entered }
    }

    /// Makes an update wait until no work is under way for subjects that its list shuts out.
    fn drain(&self, list: FenceList, drained: Drained) {
        let (drained, waiting) = (Mutex::new(Some(drained)), self.waiting.clone());
        waiting.fetch_add(1, Ordering::Relaxed);
        let draining = Draining(Arc::new(Wait { list, drained, waiting }));
        self.ask_doors(&draining);
        self.gate.mark(&draining, |worker| {
            // A client that has gone meanwhile is on no list.
            let client = worker.client.and_then(|key| self.clients.find(key).ok());
            let owner = client.as_ref().map(|client| client.name());
            let (address, host) = (worker.address, Host::of(worker.address));
            draining.concerns(&Subject::Nfs { owner, address, host })
        });
    }

    /// Registers a front end that is asked to drain from now on.
    pub fn add_drain(&self, drain: Weak<dyn Drain>) {
        self.drains.lock().push(drain);
    }

    /// Returns the names on a list. `None` when there is no list, so that every subject has access.
    ///
    /// # Errors
    /// `NotOwner`, `Fenced`, the store's.
    pub fn list(
        &self,
        right: FenceRight<'_>,
        object: &FenceObject,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let key = self.key(right, object)?;
        Ok(self.with(&key, |list| list.map(FenceList::names)))
    }

    /// Changes a list on the disk and here. Returns its key, the list now, and true if it is new.
    fn change(
        &self,
        right: FenceRight<'_>,
        object: &FenceObject,
        update: FenceUpdate<'_>,
    ) -> Result<(FenceObject, Option<FenceList>, bool)> {
        let mut makers = self.update.lock();
        // A subject that the last update has shut out has no right to change the list.
        let key = self.key(right, object)?;
        let before = self.with(&key, |list| list.cloned());
        let after = FenceList::updated(before.as_ref(), update)?;
        let host = match right {
            FenceRight::Client(caller, _) => Some(caller.client.host().host()),
            FenceRight::Administrator => None,
        };
        if before.is_none() && after.is_some() {
            self.check_room(&mut makers, host)?;
        }
        if before != after {
            let names = after.as_ref().map(FenceList::names);
            if let Err(error) = self.put(&[(key, names)]) {
                tracing::error!(%error, "a fence cannot be stored, so it is not set");
                return Err(StoreError::Io.into());
            }
            self.enter(vec![(key, after.clone())]);
            if let (None, Some(host)) = (&before, host) {
                makers.insert(key, host);
            }
        }
        drop(makers);
        tracing::info!(object = ?key, list = ?after, "fence");
        Ok((key, after, before.is_none()))
    }

    /// Returns the key of a list, if the caller may see and change it.
    fn key(&self, right: FenceRight<'_>, object: &FenceObject) -> Result<FenceObject> {
        let namespace = self.exports.namespace();
        let (handle, key) = match object {
            FenceObject::File(handle) => {
                let export = namespace.export(handle)?;
                (*handle, FenceObject::File(export.key(handle)))
            }
            FenceObject::FileSystem(fs) => {
                let known = namespace.exports().find(|export| export.fs() == *fs);
                let export = known.ok_or(StoreError::BadHandle)?;
                (export.root(), FenceObject::FileSystem(export.store().fs_id()))
            }
        };
        let export = namespace.export(&handle)?;
        if !namespace.exports().any(|real| real.fs() == export.fs()) {
            // The directory of exports is not on any disk.
            return Err(StoreError::Invalid.into());
        }
        // The object must exist.
        let attr = self.clients.state.getattr_in(export, &handle)?;
        let FenceRight::Client(caller, trusted) = right else { return Ok(key) };
        let owns = export.map_cred(caller.cred).uid == attr.uid;
        if !trusted && (!owns || matches!(key, FenceObject::FileSystem(_))) {
            return Err(StoreError::NotOwner.into());
        }
        match caller.subject {
            // Managers and owners need no name of their own to lift a fence again.
            Subject::Session([]) | Subject::Server => {}
            subject if self.admits_to(export, &handle, &subject) => {}
            _ => return Err(ServiceError::Fenced),
        }
        Ok(key)
    }

    /// Removes the lists of files that are gone, some at a time.
    pub(crate) fn sweep(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let namespace = self.exports.namespace();
        let objects: Vec<_> = {
            let lists = self.lists.read();
            lists.keys().copied().collect()
        };
        let is_gone = |object: &FenceObject| {
            let FenceObject::File(key) = object else { return false };
            let of = |export: &&Arc<Export>| export.store().fs_id() == key.fs;
            // The list of an export that is not served now is kept.
            let Some(export) = namespace.exports().find(of) else { return false };
            let handle = Handle { fs: export.fs(), file: key.file };
            self.clients.state.getattr_in(export, &handle) == Err(StoreError::Stale.into())
        };
        let start = self.swept.fetch_add(FENCE_LISTS_SWEPT_MAX, Ordering::Relaxed);
        let count = objects.len();
        let some = objects.into_iter().cycle().skip(start % count.max(1)).take(count);
        let gone: Vec<_> = some.take(FENCE_LISTS_SWEPT_MAX).filter(is_gone).collect();
        if gone.is_empty() {
            return;
        }
        let _updating = self.update.lock();
        let records: Vec<FenceRecord> = gone.iter().map(|&object| (object, None)).collect();
        let put = self.put(&records);
        match self.sweeps.news(&put) {
            Some(Err(error)) => {
                tracing::warn!(%error, "fences of files that are gone cannot be removed");
            }
            Some(Ok(())) => tracing::info!("fences of files that are gone can be removed again"),
            None => {}
        }
        if put.is_ok() {
            self.enter(gone.into_iter().map(|object| (object, None)).collect());
        }
    }
}

impl Service {
    /// Changes a list. When this has returned, requests of subjects without access are refused.
    /// `drained` is called when none of their work is under way any more, or not at all after an
    /// error. May wait for the disk.
    ///
    /// # Errors
    /// `NotOwner`, `Fenced`. `Invalid` for names and updates that make no sense. `Resource`.
    /// `Delay` when data servers cannot be notified, though the list holds here. `Io` when the disk
    /// failed, with the list unchanged. The store's.
    pub fn set_fence(
        &self,
        right: FenceRight<'_>,
        object: &FenceObject,
        update: FenceUpdate<'_>,
        drained: Drained,
    ) -> Result<()> {
        let (key, list, is_new) = self.fences.change(right, object, update)?;
        if list.is_some() {
            // Readers without requests know no fences, either.
            let exposure = &self.state.writers.exposure;
            match &key {
                FenceObject::File(key) => exposure.withdraw(key),
                FenceObject::FileSystem(fs) => exposure.withdraw_all_of(*fs),
            }
            // Data servers know no fences, so clients must do their I/O here from now on.
            self.layouts.take_of(&key)?;
        }
        let only_adds = matches!(update, FenceUpdate::Add(_)) && !is_new;
        match list {
            // Drains without a change, too: the update that made the change may not be over.
            Some(list) if !only_adds => self.fences.drain(list, drained),
            _ => drained(),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::FileId;

    #[test]
    fn no_host_makes_all_lists() {
        let (service, mut makers) = (Service::of_memory(), FxHashMap::default());
        let fences = &service.fences;
        let object = |number: usize| {
            let mut file = [0; 48];
            file[..8].copy_from_slice(&number.to_be_bytes());
            FenceObject::File(Handle { fs: FsId([1; 16]), file: FileId(file) })
        };
        let all: Vec<_> = (0..FENCE_LISTS_MAX / 2).map(object).collect();
        makers.extend(all.iter().map(|object| (*object, Host::User(1))));
        let list = FenceList::of(&[b"n"]).expect("a list");
        fences.enter(all.into_iter().map(|object| (object, Some(list.clone()))).collect());
        let room = |makers: &mut _, host| fences.check_room(makers, host);
        let refused = Err(ServiceError::Resource);
        assert_eq!(room(&mut makers, Some(Host::User(1))), refused);
        assert_eq!(room(&mut makers, Some(Host::User(3))), Ok(()));
        assert_eq!(room(&mut makers, None), Ok(()), "the administrator");
        // Lists that are gone count for no host.
        fences.enter(makers.keys().map(|object| (*object, None)).collect());
        assert!(room(&mut makers, Some(Host::User(1))).is_ok() && makers.is_empty());
    }
}
