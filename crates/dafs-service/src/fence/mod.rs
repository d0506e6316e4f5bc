//! Fences: who may use a file or a file system at all (DAFS 11).
//!
//! A cluster that ejects a node takes the node's name off the lists and goes on when that has returned: from
//! then on nothing of the node reaches the object, and nothing that it had sent before is still under
//! way. Names are claims; a fence keeps out nodes that have failed, not ones that lie.
//!
//! Invariants
//! * A list is on the disk before it holds, and holds before anybody is told so.
//! * Both lists, the file's and the file system's, must let somebody in (DAFS O47).
//! * Updates are made one after the other, and each is made by somebody who was not shut out by the one
//!   before: of two nodes that eject each other, one wins.
//! * An update that takes access away is over when all work of those who have none is: work looks at
//!   the lists after it has been entered where [`Drain`] finds it.
//! * As long as there is no list, a request pays for one load.

mod gate;
mod list;
mod records;

pub(crate) use list::FenceList;
pub use list::{FenceUpdate, Subject, is_fence_id};
pub use records::{FenceRecord, FenceRecords, FileFences, NoFenceRecords};

use crate::export::Export;
use crate::handle::Handle;
use crate::hosts::{Host, has_share};
use crate::limits::{FENCE_LISTS_MAX, FENCE_LISTS_SWEPT_MAX};
use crate::records::RecordsError;
use crate::{Caller, Client, ClientKey, Result, Service, ServiceError};
use dafs_store::{FsId, StoreError};
use gate::{Entered, Gate};
use rustc_hash::FxHashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// What a list is about. A handle is any of the object's; two exports of one directory lead to the same
/// files and are one file system here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FenceObject {
    /// A file.
    File(Handle),
    /// A file system.
    FileSystem(FsId),
}

/// What lets somebody see and change fences.
#[derive(Debug, Clone, Copy)]
pub enum FenceRight<'a> {
    /// A client's request; it must be `trusted`, or own the file (DAFS 11).
    Client(Caller<'a>, bool),
    /// The server's administrator.
    Administrator,
}

/// To be told that everything is over. Called from any thread, never under a lock; must not block.
pub type Drained = Box<dyn FnOnce() + Send>;

/// A front door that may have work under way for those whom a list shuts out.
pub trait Drain: Send + Sync {
    /// Keeps `draining` until all work is over that is under way now for subjects it
    /// [concerns](Draining::concerns). Must not block.
    fn drain(&self, draining: Draining);
}

/// Somebody waits for work to be over until all clones of this are dropped.
#[derive(Clone)]
pub struct Draining(Arc<Wait>);

struct Wait {
    list: FenceList,
    drained: Mutex<Option<Drained>>,
    /// All who wait.
    waiting: Arc<AtomicUsize>,
}

impl Draining {
    /// Whether work for this subject has to be over.
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
        let drained = self.drained.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(drained) = drained.take() {
            drained();
        }
    }
}

/// While it lives, an update of a fence that shuts out whose work it is waits.
#[must_use = "work is awaited only while this lives"]
pub struct FenceEntry<'a> {
    address: IpAddr,
    entered: Entered<'a, Worker, Draining>,
}

impl FenceEntry<'_> {
    /// The work is of this client, which may be on a list by its name.
    pub fn is_of(&self, client: &Client) {
        self.entered.is_of(Worker { address: self.address, client: Some(client.key()) });
    }
}

/// Whose work it is, in few words: names are looked up when somebody has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Worker {
    address: IpAddr,
    client: Option<ClientKey>,
}

/// All fences.
pub(crate) struct Fences {
    /// Lists there are.
    count: AtomicUsize,
    lists: RwLock<FxHashMap<FenceObject, FenceList>>,
    records: Box<dyn FenceRecords>,
    /// From where clients of this run have made lists. Held from a look at a list until it has been
    /// changed.
    update: Mutex<FxHashMap<FenceObject, Host>>,
    doors: Mutex<Vec<Weak<dyn Drain>>>,
    /// Work of front doors that do not drain themselves.
    gate: Gate<Worker, Draining>,
    /// Updates that wait for work to be over.
    waiting: Arc<AtomicUsize>,
    /// Where the sweep has come to.
    swept: AtomicUsize,
}

impl Fences {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            lists: RwLock::default(),
            records: Box::new(NoFenceRecords),
            update: Mutex::default(),
            doors: Mutex::default(),
            gate: Gate::new(),
            waiting: Arc::default(),
            swept: AtomicUsize::new(0),
        }
    }

    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.count.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed))
    }

    fn with<T>(&self, object: &FenceObject, act: impl FnOnce(Option<&FenceList>) -> T) -> T {
        act(self.lists.read().unwrap_or_else(PoisonError::into_inner).get(object))
    }

    fn admits(&self, object: &FenceObject, subject: &Subject<'_>) -> bool {
        self.with(object, |list| list.is_none_or(|list| list.admits(subject)))
    }

    /// Whether both lists that concern a file admit somebody.
    fn admits_to(&self, export: &Export, handle: &Handle, subject: &Subject<'_>) -> bool {
        let key = export.key(handle);
        self.admits(&FenceObject::FileSystem(key.fs), subject)
            && self.admits(&FenceObject::File(key), subject)
    }

    fn enter(&self, changes: Vec<(FenceObject, Option<FenceList>)>) {
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        for (object, list) in changes {
            match list {
                Some(list) => drop(lists.insert(object, list)),
                None => drop(lists.remove(&object)),
            }
        }
        self.count.store(lists.len(), Ordering::SeqCst);
    }

    /// Whether there is room for another list. Hosts share it, and leave some to administrators.
    fn check_room(
        &self,
        makers: &mut FxHashMap<FenceObject, Host>,
        host: Option<Host>,
    ) -> Result<()> {
        let lists = self.lists.read().unwrap_or_else(PoisonError::into_inner);
        makers.retain(|object, _| lists.contains_key(object));
        let own = makers.values().filter(|maker| Some(**maker) == host).count();
        match has_share(own, lists.len(), FENCE_LISTS_MAX) {
            true => Ok(()),
            false => Err(ServiceError::Resource),
        }
    }

    fn ask_doors(&self, draining: &Draining) {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.retain(|door| door.strong_count() > 0);
        let doors: Vec<_> = doors.iter().filter_map(Weak::upgrade).collect();
        doors.iter().for_each(|door| door.drain(draining.clone()));
    }
}

impl Service {
    /// The service with the fences of its last run, and a place to keep them.
    ///
    /// # Errors
    /// When they cannot be read: to serve without them would let in who was shut out.
    pub fn with_fences(
        mut self,
        records: Box<dyn FenceRecords>,
    ) -> std::result::Result<Self, RecordsError> {
        let mut lists = Vec::new();
        for (object, names) in records.load()? {
            let names = names.unwrap_or_default();
            let names: Vec<_> = names.iter().map(Vec::as_slice).collect();
            let list = FenceList::of(&names)
                .map_err(|error| RecordsError::new(format!("a fence list is damaged: {error}")))?;
            lists.push((object, Some(list)));
        }
        self.fences.enter(lists);
        self.fences.records = records;
        Ok(self)
    }

    /// Whether there is any list.
    #[inline]
    pub fn has_fences(&self) -> bool {
        self.fences.count.load(Ordering::SeqCst) > 0
    }

    /// Refuses what concerns an object that the subject is fenced from. To be asked after the work has
    /// been entered ([`Drain`], [`begin_work`](Self::begin_work)).
    ///
    /// # Errors
    /// `Fenced`.
    #[inline]
    pub fn check_fence(&self, subject: &Subject<'_>, handle: &Handle) -> Result<()> {
        if self.has_fences() { self.fenced(subject, handle) } else { Ok(()) }
    }

    #[cold]
    fn fenced(&self, subject: &Subject<'_>, handle: &Handle) -> Result<()> {
        let namespace = self.namespace();
        // A handle of no export is found out by the operation that uses it.
        let Ok(export) = namespace.export(handle) else { return Ok(()) };
        match self.fences.admits_to(export, handle, subject) {
            true => Ok(()),
            false => Err(ServiceError::Fenced),
        }
    }

    /// Whether anybody is fenced from a file, by what fences are kept under.
    pub(crate) fn is_any_fenced(&self, key: &Handle) -> bool {
        let listed = |object| self.fences.with(&object, |list| list.is_some());
        self.has_fences()
            && (listed(FenceObject::FileSystem(key.fs)) || listed(FenceObject::File(*key)))
    }

    /// Whether the subject is fenced from every file system there is.
    pub fn is_fenced_everywhere(&self, subject: &Subject<'_>) -> bool {
        let admitted = |export: &Arc<Export>| {
            self.fences.admits(&FenceObject::FileSystem(export.store().fs_id()), subject)
        };
        self.has_fences() && !self.namespace().exports().any(admitted)
    }

    /// Work of a request of an NFS caller begins that no [`Drain`] knows of.
    pub fn begin_work(&self, address: IpAddr) -> FenceEntry<'_> {
        let entered = self.fences.gate.enter(Worker { address, client: None });
        FenceEntry { address, entered }
    }

    /// Lets an update wait until nothing is under way for those whom its list shuts out.
    fn drain(&self, list: FenceList, drained: Drained) {
        let (drained, waiting) = (Mutex::new(Some(drained)), self.fences.waiting.clone());
        waiting.fetch_add(1, Ordering::Relaxed);
        let draining = Draining(Arc::new(Wait { list, drained, waiting }));
        self.fences.ask_doors(&draining);
        self.fences.gate.mark(&draining, |worker| {
            // A client that is gone meanwhile is on no list.
            let client = worker.client.and_then(|key| self.find_client(key).ok());
            let owner = client.as_ref().map(|client| client.name());
            let (address, host) = (worker.address, Host::of(worker.address));
            draining.concerns(&Subject::Nfs { owner, address, host })
        });
    }

    /// Has a front door asked to drain from now on.
    pub fn add_drain(&self, door: Weak<dyn Drain>) {
        self.fences.doors.lock().unwrap_or_else(PoisonError::into_inner).push(door);
    }

    /// The names on a list; `None` where there is no list and everybody has access.
    ///
    /// # Errors
    /// `NotOwner`, `Fenced`, the store's.
    pub fn fence_list(
        &self,
        right: FenceRight<'_>,
        object: &FenceObject,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let key = self.fence_key(right, object)?;
        Ok(self.fences.with(&key, |list| list.map(FenceList::names)))
    }

    /// Changes a list. When it has returned, requests of those who have no access are refused;
    /// `drained` is called when nothing of them is under way any more, or not at all after an
    /// error. May wait for the disk.
    ///
    /// # Errors
    /// `NotOwner`, `Fenced`; `Invalid` for names and updates that make no sense; `Resource`; `Delay` when
    /// data servers cannot be told, though the list holds here; `Io` when
    /// the disk failed, with the list as it was; the store's.
    pub fn set_fence(
        &self,
        right: FenceRight<'_>,
        object: &FenceObject,
        update: FenceUpdate<'_>,
        drained: Drained,
    ) -> Result<()> {
        let mut makers = self.fences.update.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever was shut out by the last update has nothing to say any more.
        let key = self.fence_key(right, object)?;
        let before = self.fences.with(&key, |list| list.cloned());
        let after = FenceList::updated(before.as_ref(), update)?;
        let host = match right {
            FenceRight::Client(caller, _) => Some(caller.client.host().host()),
            FenceRight::Administrator => None,
        };
        if before.is_none() && after.is_some() {
            self.fences.check_room(&mut makers, host)?;
        }
        if before != after {
            let names = after.as_ref().map(FenceList::names);
            if let Err(error) = self.fences.records.put(&[(key, names)]) {
                tracing::error!(%error, "a fence cannot be kept, so it is not set");
                return Err(StoreError::Io.into());
            }
            self.fences.enter(vec![(key, after.clone())]);
            if let (None, Some(host)) = (&before, host) {
                makers.insert(key, host);
            }
        }
        drop(makers);
        tracing::info!(object = ?key, list = ?after, "fence");
        if after.is_some() {
            // Data servers know nothing of fences, so clients come here from now on.
            self.take_layouts_of(&key)?;
        }
        let only_adds = matches!(update, FenceUpdate::Add(_)) && before.is_some();
        match after {
            // Also when nothing has changed: the update that did may not be over.
            Some(list) if !only_adds => self.drain(list, drained),
            _ => drained(),
        }
        Ok(())
    }

    /// What a list is kept under, if it may be seen and changed.
    fn fence_key(&self, right: FenceRight<'_>, object: &FenceObject) -> Result<FenceObject> {
        let namespace = self.namespace();
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
        // It must be there.
        let attr = self.getattr_in(export, &handle)?;
        let FenceRight::Client(caller, trusted) = right else { return Ok(key) };
        let owns = export.map_cred(caller.cred).uid == attr.uid;
        if !trusted && (!owns || matches!(key, FenceObject::FileSystem(_))) {
            return Err(StoreError::NotOwner.into());
        }
        match caller.subject {
            // Managers and owners need no name of their own to lift a fence again.
            Subject::Session([]) | Subject::Server => {}
            subject if self.fences.admits_to(export, &handle, &subject) => {}
            _ => return Err(ServiceError::Fenced),
        }
        Ok(key)
    }

    /// Forgets the lists of some files that are gone.
    pub(crate) fn sweep_fences(&self) {
        if self.fences.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let namespace = self.namespace();
        let objects: Vec<_> = {
            let lists = self.fences.lists.read().unwrap_or_else(PoisonError::into_inner);
            lists.keys().copied().collect()
        };
        let is_gone = |object: &FenceObject| {
            let FenceObject::File(key) = object else { return false };
            let of = |export: &&Arc<Export>| export.store().fs_id() == key.fs;
            // The list of an export that is not served now is kept.
            let Some(export) = namespace.exports().find(of) else { return false };
            let handle = Handle { fs: export.fs(), file: key.file };
            self.getattr_in(export, &handle) == Err(StoreError::Stale.into())
        };
        let start = self.fences.swept.fetch_add(FENCE_LISTS_SWEPT_MAX, Ordering::Relaxed);
        let count = objects.len();
        let some = objects.into_iter().cycle().skip(start % count.max(1)).take(count);
        let gone: Vec<_> = some.take(FENCE_LISTS_SWEPT_MAX).filter(is_gone).collect();
        if gone.is_empty() {
            return;
        }
        let _updating = self.fences.update.lock().unwrap_or_else(PoisonError::into_inner);
        let records: Vec<FenceRecord> = gone.iter().map(|&object| (object, None)).collect();
        match self.fences.records.put(&records) {
            Ok(()) => self.fences.enter(gone.into_iter().map(|object| (object, None)).collect()),
            Err(error) => tracing::warn!(%error, "fences of files that are gone cannot be removed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::FileId;

    #[test]
    fn no_host_makes_all_lists() {
        let (fences, mut makers) = (Fences::new(), FxHashMap::default());
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
        // Lists that are gone count for nobody.
        fences.enter(makers.keys().map(|object| (*object, None)).collect());
        assert!(room(&mut makers, Some(Host::User(1))).is_ok() && makers.is_empty());
    }
}
