//! Files that the kernel may cache under a delegation, which the server recalls before anybody else
//! changes them.
//!
//! Reading such a file again costs the server nothing: the mount answers its name and attributes,
//! opens it without the server, and the kernel has the pages. The server gets a deferred open only
//! when a read goes through it to the server, or before the delegation is returned.
//!
//! | file | what it does |
//! |---|---|
//! | `table` | the delegated files, and their known names and attributes; no I/O |
//! | `dropping` | page invalidation of many files at once |
//! | `watch` | gives all up when the lease may be over |
//! | `serve/delegated` | the kernel's requests about them, and recalls |
//!
//! Invariants
//! * Before a delegation is returned because of a recall, or to make room for another one, the
//!   kernel has dropped its pages of the file, and the server knows all opens of the kernel, as far
//!   as it accepts them.
//! * No thread that answers the kernel waits for a drop of pages, which would be a deadlock: the
//!   drop may wait for reads that only these threads answer.
//! * In a mount that acts as each program, only a user that the server has let open the file since
//!   the delegation came, and since the last change here, opens it without the server.
//! * The kernel itself caches names and attributes no longer than it would without: it asks the
//!   mount again, which checks the delegation each time. Only pages stay longer, and `watch` covers
//!   these.

mod dropping;
mod table;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use watch::Watch;

use crate::limits::DELEGATED_FILES_MAX;
use dafs_client::{Attributes, FileHandle, Keeper, ReadDelegation, User};
use dafs_mem::Mutex;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(crate) use table::{DeferredOpen, Opening};
use table::{Right, Table};

impl Right for ReadDelegation {
    fn is_good(&self) -> bool {
        Self::is_good(self)
    }
}

/// The delegated files of a mount.
#[derive(Debug)]
pub(crate) struct Delegated {
    table: Mutex<Table<ReadDelegation>>,
    /// The number of open files whose use the table must see, to be read without the lock.
    cleaning: AtomicUsize,
    /// A thread is giving files up because there are too many.
    is_making_room: AtomicBool,
    pub(crate) watch: Watch,
}

impl Default for Delegated {
    fn default() -> Self {
        let table = Mutex::new(Table::new(DELEGATED_FILES_MAX));
        let (cleaning, is_making_room) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { table, cleaning, is_making_room, watch: Watch::default() }
    }
}

/// The time of a request to the server whose answer the table may store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked(u64);

impl Delegated {
    /// The attributes of the object of a name, if they are known.
    pub(crate) fn lookup(&self, dir: &FileHandle, name: &[u8]) -> Option<Attributes> {
        let mut table = self.table.lock();
        let handle = table.named(dir, name)?;
        table.attributes(&handle)
    }

    /// The object of a name, if it is known.
    pub(crate) fn named(&self, dir: &FileHandle, name: &[u8]) -> Option<FileHandle> {
        self.table.lock().named(dir, name)
    }

    /// The attributes of a file, if they are known.
    pub(crate) fn attributes(&self, handle: &FileHandle) -> Option<Attributes> {
        self.table.lock().attributes(handle)
    }

    /// Called before a request to the server.
    pub(crate) fn asking(&self) -> Asked {
        Asked(self.table.lock().asking())
    }

    /// Stores the answer to a request for this name, or for a file.
    pub(crate) fn learn(
        &self,
        asked: Asked,
        name: Option<(&FileHandle, &[u8])>,
        found: &Attributes,
    ) {
        self.table.lock().learn(asked.0, name, found);
    }

    /// Records that a file was changed here, or may have been.
    pub(crate) fn changed(&self, handle: &FileHandle) {
        self.table.lock().changed(handle);
    }

    /// Called before names are changed here; dropping the result records the change.
    pub(crate) fn naming(&self) -> Naming<'_> {
        self.table.lock().begin_names();
        Naming(self)
    }

    /// The way to open a file for reading, under this number of the kernel.
    pub(crate) fn open(&self, number: u64, deferred: DeferredOpen) -> Opening {
        let mut table = self.table.lock();
        let opening = table.open(number, deferred);
        self.count(&table);
        opening
    }

    /// From now on the server lets each user open a file for itself.
    pub(crate) fn judge_users(&self) {
        self.table.lock().judges_users = true;
    }

    /// Records that the server has let a user open a file, under this number, after
    /// [`asking`](Self::asking). Later opens of this user may be deferred.
    pub(crate) fn admit(
        &self,
        asked: Asked,
        number: u64,
        handle: &FileHandle,
        user: &Option<User>,
    ) {
        self.table.lock().admit(asked.0, number, handle, user);
    }

    /// Adds the delegation that came with an open file. `keeper` is notified of its recall. True
    /// when there is little room left, and no thread makes any: then the caller calls
    /// [`made_room`](Self::made_room), some time after [`crowd`](Self::crowd).
    pub(crate) fn came(
        &self,
        number: u64,
        handle: FileHandle,
        delegation: ReadDelegation,
        keeper: Weak<dyn Keeper>,
    ) -> bool {
        // An immediate recall waits for the table, and finds the file in it.
        let hear = |delegation: &mut ReadDelegation| match delegation.hear(keeper) {
            Ok(is_there) => is_there,
            Err(error) => {
                tracing::warn!(%error, "a file is not kept because nobody would hear of a recall");
                false
            }
        };
        let mut table = self.table.lock();
        let back = table.came(number, handle, delegation, hear);
        self.count(&table);
        let is_crowded = table.is_crowded();
        drop(table);
        drop(back);
        is_crowded && !self.is_making_room.swap(true, Ordering::SeqCst)
    }

    /// Records that an open came without a delegation. Answers as [`came`](Self::came).
    pub(crate) fn refused(&self) -> bool {
        self.table.lock().refused() && !self.is_making_room.swap(true, Ordering::SeqCst)
    }

    /// The files to give up so that there is room for others.
    pub(crate) fn crowd(&self) -> Vec<FileHandle> {
        self.table.lock().crowd()
    }

    /// Called when they have been given up.
    pub(crate) fn made_room(&self) {
        self.is_making_room.store(false, Ordering::SeqCst);
    }

    fn count(&self, table: &Table<ReadDelegation>) {
        self.cleaning.store(table.cleaning(), Ordering::Release);
    }

    /// The kernel uses an open file, so it has dropped the pages that it had at the open.
    pub(crate) fn used(&self, number: u64) {
        // Every read passes here.
        if self.cleaning.load(Ordering::Acquire) > 0 {
            let mut table = self.table.lock();
            table.used(number);
            self.count(&table);
        }
    }

    /// The kernel closes an open file.
    pub(crate) fn closed(&self, number: u64) {
        if self.cleaning.load(Ordering::Acquire) > 0 {
            let mut table = self.table.lock();
            table.closed(number);
            self.count(&table);
        }
    }

    /// A deferred open, which the server does not know.
    pub(crate) fn deferred(&self, number: u64) -> Option<DeferredOpen> {
        self.table.lock().deferred(number)
    }

    /// True when there are deferred opens.
    pub(crate) fn has_promised(&self) -> bool {
        self.table.lock().has_promised()
    }

    /// The deferred opens of a file.
    pub(crate) fn deferred_of(&self, handle: &FileHandle) -> Vec<u64> {
        self.table.lock().deferred_of(handle)
    }

    /// All deferred opens.
    pub(crate) fn all_promised(&self) -> Vec<u64> {
        self.table.lock().all_promised()
    }

    /// Ends a deferred open, because the server knows it now or the kernel has closed it; runs
    /// `then` atomically with that. False when it had ended before.
    pub(crate) fn settle(&self, number: u64, then: impl FnOnce()) -> bool {
        let mut table = self.table.lock();
        let is_first = table.settle(number);
        if is_first {
            then();
        }
        is_first
    }

    /// Stops caching of a file; false when it is not delegated, or another thread does so already.
    pub(crate) fn leave(&self, handle: &FileHandle) -> bool {
        self.table.lock().leave(handle)
    }

    /// Removes a file, to return its delegation.
    pub(crate) fn remove(&self, handle: &FileHandle) -> Option<ReadDelegation> {
        self.table.lock().remove(handle)
    }

    /// The kernel has forgotten a file: its delegation is returned, unless it `is_known` again.
    pub(crate) fn forget(&self, handle: &FileHandle, is_known: impl FnOnce() -> bool) {
        let back = self.table.lock().forget(handle, is_known);
        // Dropped without the lock.
        drop(back);
    }

    /// Excludes a file from delegation until [`end_write`](Self::end_write): it is opened for
    /// writing, or about to lose its name, or its permissions are about to change.
    pub(crate) fn begin_write(&self, handle: FileHandle) {
        self.table.lock().begin_write(handle);
    }

    pub(crate) fn end_write(&self, handle: &FileHandle) {
        self.table.lock().end_write(handle);
    }

    /// Stops new deferred opens and new delegations, or allows them again.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.table.lock().is_paused = is_paused;
    }

    /// All delegated files.
    pub(crate) fn all(&self) -> Vec<FileHandle> {
        self.table.lock().all()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().is_empty()
    }
}

/// A change of names under way, which ends when this is dropped.
pub(crate) struct Naming<'a>(&'a Delegated);

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        self.0.table.lock().end_names();
    }
}

/// True when an open with these flags is for reading only.
pub(crate) fn only_reads(flags: i32) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_TRUNC | libc::O_APPEND) == 0
}

/// True when an open with these flags can write.
pub(crate) fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}
