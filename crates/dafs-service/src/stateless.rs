//! Files for callers that never open any, such as those of NFSv3: a bounded cache of open files, so
//! that a read costs two system calls.
//!
//! Invariants
//! * Each use reads the file's attributes. The file is opened again, which checks the rights anew,
//!   when mode, owner or group have changed. The same happens when only its time of change differs,
//!   perhaps by a new access list, and the last check is not recent.
//! * Denials of opens, and delegations, hold for these callers at every use.
//! * Each shard of the cache is bounded, and evicts files that were not used for a while.

use crate::error::ServiceError;
use crate::export::{Export, Touch};
use crate::handle::Handle;
use crate::limits::{STATELESS_FILES_MAX, STATELESS_IDLE_NS, STATELESS_RIGHTS_NS};
use crate::open::{Opens, SharedKeys};
use crate::{Caller, Result, Service};
use dafs_mem::Mutex;
use dafs_store::{
    Attr, CreateHow, Cred, DirChange, OpenFile, OpenMode, SetAttr, StoreError, TimeSpec, Wait,
};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, MutexGuard};

/// Few files in each shard, because a search goes through all of them.
const SHARDS: usize = 512;
const SHARD_FILES_MAX: usize = STATELESS_FILES_MAX / SHARDS;

/// A file to read or write without an open.
#[derive(Clone)]
pub struct StatelessFile {
    /// The file.
    pub file: Arc<dyn OpenFile>,
    /// Its attributes just before the read or write.
    pub attr: Attr,
}

/// The result of [`Service::stateless_create`].
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub struct StatelessCreated {
    pub handle: Handle,
    pub attr: Attr,
    pub dir: DirChange,
    /// False when the file existed.
    pub created: bool,
}

/// A file that is kept open for one caller.
struct Entry {
    handle: Handle,
    cred: Cred,
    mode: OpenMode,
    file: Arc<dyn OpenFile>,
    rights: Rights,
    used_ns: u64,
}

/// The attributes at the last check of the rights.
#[derive(Debug, Clone, Copy)]
struct Rights {
    mode: u32,
    uid: u32,
    gid: u32,
    ctime: TimeSpec,
    checked_ns: u64,
}

impl Rights {
    fn of(attr: &Attr, now_ns: u64) -> Self {
        let Attr { mode, uid, gid, ctime, .. } = *attr;
        Self { mode, uid, gid, ctime, checked_ns: now_ns }
    }

    /// True if the rights need no new check.
    fn hold(&self, attr: &Attr, now_ns: u64) -> bool {
        (self.mode, self.uid, self.gid) == (attr.mode, attr.uid, attr.gid)
            && (self.ctime == attr.ctime
                || now_ns.saturating_sub(self.checked_ns) < STATELESS_RIGHTS_NS)
    }
}

/// Files that are kept open.
pub(crate) struct StatelessFiles {
    shards: Box<[Mutex<Vec<Entry>>]>,
}

impl StatelessFiles {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, handle: &Handle) -> MutexGuard<'_, Vec<Entry>> {
        let mut hasher = FxHasher::default();
        handle.file.hash(&mut hasher);
        let shard = &self.shards[hasher.finish() as usize % SHARDS];
        shard.lock()
    }

    fn find(
        &self,
        handle: &Handle,
        cred: &Cred,
        need: OpenMode,
        now_ns: u64,
    ) -> Option<(Arc<dyn OpenFile>, Rights)> {
        let mut shard = self.shard(handle);
        let fits = |entry: &&mut Entry| {
            entry.handle == *handle
                && (entry.mode.read || !need.read)
                && (entry.mode.write || !need.write)
                && entry.cred == *cred
        };
        let entry = shard.iter_mut().find(fits)?;
        entry.used_ns = now_ns;
        Some((entry.file.clone(), entry.rights))
    }

    /// Keeps a file, in place of one of the same kind or of the least recently used one. Returns
    /// the replaced one, to be closed without the lock.
    fn keep(&self, entry: Entry) -> Option<Entry> {
        let mut shard = self.shard(&entry.handle);
        let same = |other: &Entry| {
            other.handle == entry.handle && other.mode == entry.mode && other.cred == entry.cred
        };
        let at = shard.iter().position(same).or_else(|| {
            let oldest = shard.iter().enumerate().min_by_key(|(_, other)| other.used_ns);
            (shard.len() >= SHARD_FILES_MAX).then_some(oldest?.0)
        });
        match at {
            Some(at) => Some(std::mem::replace(&mut shard[at], entry)),
            None => {
                shard.push(entry);
                None
            }
        }
    }

    /// Evicts the entries of a file, because its access list has changed or it loses its name.
    pub(crate) fn forget(&self, handle: &Handle) {
        let gone: Vec<Entry> =
            self.shard(handle).extract_if(.., |entry| entry.handle == *handle).collect();
        drop(gone);
    }

    /// Evicts entries that were not used for a while.
    pub(crate) fn sweep(&self, now_ns: u64) {
        let idle = |entry: &mut Entry| now_ns.saturating_sub(entry.used_ns) > STATELESS_IDLE_NS;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let gone: Vec<Entry> = shard.extract_if(.., idle).collect();
            drop(shard);
            drop(gone);
        }
    }

    /// Evicts all entries.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.lock());
            drop(gone);
        }
    }

    /// The files that are kept open.
    pub(crate) fn files(&self) -> Vec<Arc<dyn OpenFile>> {
        let mut files = Vec::new();
        for shard in self.shards.iter() {
            files.extend(shard.lock().iter().map(|entry| entry.file.clone()));
        }
        files
    }

    pub(crate) fn len(&self) -> usize {
        let len = |shard: &Mutex<Vec<Entry>>| shard.lock().len();
        self.shards.iter().map(len).sum()
    }
}

impl Opens {
    /// Returns a file to read or write for a caller without opens. The owner of a file may always
    /// do both, because a client checks the rights when it opens a file and not when it uses it
    /// (RFC 1813 4.4).
    ///
    /// # Errors
    /// `ShareDenied`, `KeyMismatch`. `Grace` in an export with strict share keys, because a client
    /// may still reclaim one. `WouldWait` or `Delay` while other clients return delegations. The
    /// store's.
    pub fn stateless_file(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        need: OpenMode,
    ) -> Result<StatelessFile> {
        let namespace = self.exports.namespace();
        let export = namespace.export(handle)?;
        if need.write {
            export.writable()?;
        }
        if export.options().shared_keys == SharedKeys::Strict && self.clients.in_grace() {
            return Err(ServiceError::Grace);
        }
        self.check_io(caller, &export.key(handle), need, false)?;
        let cred = export.map_cred(caller.cred);
        let now_ns = caller.now_ns;
        if let Some((file, rights)) = self.stateless.find(handle, &cred, need, now_ns) {
            match file.attr() {
                Ok(attr) if attr.links > 0 && rights.hold(&attr, now_ns) => {
                    return Ok(StatelessFile { file, attr });
                }
                // The file was removed, or may be forbidden now: open it again.
                _ => {}
            }
        }
        let file = open_as_owner(export, &cred, handle, need)?;
        let file = self.state.writers.count(export.key(handle), need, file);
        let attr = file.attr()?;
        self.keep_file(handle, &cred, need, &file, &attr, now_ns);
        Ok(StatelessFile { file, attr })
    }

    fn keep_file(
        &self,
        handle: &Handle,
        cred: &Cred,
        mode: OpenMode,
        file: &Arc<dyn OpenFile>,
        attr: &Attr,
        now_ns: u64,
    ) {
        let rights = Rights::of(attr, now_ns);
        let (file, cred) = (file.clone(), cred.clone());
        let entry = Entry { handle: *handle, cred, mode, file, rights, used_ns: now_ns };
        drop(self.stateless.keep(entry));
    }
}

impl Service {
    /// Makes or finds a regular file for a caller without opens.
    ///
    /// # Errors
    /// The store's. When an existing file is emptied, those of a change of size. `WouldWait`.
    pub fn stateless_create(
        &self,
        caller: Caller<'_>,
        dir: &Handle,
        name: &[u8],
        how: CreateHow,
        attr: &SetAttr,
    ) -> Result<StatelessCreated> {
        let namespace = self.namespace();
        let export = namespace.export(dir)?;
        export.writable()?;
        if attr.size.is_some() {
            export.check_wait(caller.wait, Touch::Data)?;
        }
        if matches!(how, CreateHow::Exclusive(_)) && caller.wait == Wait::Never {
            // The store makes the file stable before it reports the creation.
            return Err(ServiceError::WouldWait);
        }
        let cred = export.map_cred(caller.cred);
        let store = export.store();
        let make = match how {
            CreateHow::Unchecked => CreateHow::Guarded,
            CreateHow::Guarded | CreateHow::Exclusive(_) => how,
        };
        let mode = OpenMode { read: true, write: true };
        match store.create(&cred, &dir.file, name, make, attr, mode) {
            Ok(made) => {
                let handle = Handle { fs: dir.fs, file: made.id };
                let file = self.state.writers.count(export.key(&handle), mode, made.file);
                self.opens.keep_file(&handle, &cred, mode, &file, &made.attr, caller.now_ns);
                let (attr, dir, created) = (made.attr, made.dir, made.created);
                Ok(StatelessCreated { handle, attr, dir, created })
            }
            Err(StoreError::Exists) if how == CreateHow::Unchecked => {
                self.existing(caller, export, dir, name, attr)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Handles an unchecked create of an existing file: the file is emptied if the size is zero.
    fn existing(
        &self,
        caller: Caller<'_>,
        export: &Export,
        dir: &Handle,
        name: &[u8],
        attr: &SetAttr,
    ) -> Result<StatelessCreated> {
        let cred = export.map_cred(caller.cred);
        let (file, mut found) = export.store().lookup(&cred, &dir.file, name)?;
        let handle = Handle { fs: dir.fs, file };
        self.fences.check(&caller.subject, &handle)?;
        if found.kind != dafs_store::Kind::Regular {
            return Err(ServiceError::Store(StoreError::Exists));
        }
        if attr.size == Some(0) {
            let change = SetAttr { size: Some(0), ..SetAttr::default() };
            found = self.setattr(caller, &handle, crate::StateRef::ANONYMOUS, &change)?;
        }
        let attr = export.store().getattr(&dir.file)?;
        let change = attr.change;
        let dir = DirChange { before: change, after: change, atomic: true, attr: Some(attr) };
        Ok(StatelessCreated { handle, attr: found, dir, created: false })
    }
}

/// Opens a file. Its owner may do so with any mode of the file.
pub(crate) fn open_as_owner(
    export: &Export,
    cred: &Cred,
    handle: &Handle,
    need: OpenMode,
) -> Result<Arc<dyn OpenFile>> {
    let store = export.store();
    match store.open(cred, &handle.file, need) {
        Err(StoreError::Access) if store.getattr(&handle.file)?.uid == cred.uid => {
            Ok(store.open(&Cred::new(0, 0), &handle.file, need)?)
        }
        file => Ok(file?),
    }
}
