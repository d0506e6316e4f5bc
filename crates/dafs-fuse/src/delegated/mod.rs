//! Files that the kernel may keep content of, by right of a delegation: the server asks before anybody
//! else changes them.
//!
//! Who reads such a file again costs the server nothing: its name and attributes are answered from here,
//! it is opened without the server, and the kernel has the pages. The server hears of an open file only
//! when something is to be read through it that the kernel has not, or before the delegation goes back.
//!
//! | file | what it does |
//! |---|---|
//! | `table` | which files, and what is known of them; no I/O |
//! | `dropping` | lets the kernel drop much at once |
//! | `watch` | gives all up when the server's promises may be over |
//! | `serve/delegated` | what the kernel asks about them, and recalls |
//!
//! Invariants
//! * Before a delegation goes back for which others ask, or that makes room for another one, the kernel has
//!   dropped what it keeps of the file, and the server knows all that the kernel has open of it, as far as
//!   it lets that be opened.
//! * No thread that answers the kernel waits for it to drop something: that may wait for reads which only
//!   these threads answer.
//! * The kernel itself believes nothing for longer than it would without: what is known here is asked for
//!   again, and the promise is looked at each time. Only pages stay, and `watch` sees to these.

mod dropping;
mod table;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use watch::Watch;

use crate::limits::DELEGATED_FILES_MAX;
use dafs_client::{Attributes, FileHandle, Keeper, ReadDelegation};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
pub(crate) use table::{Opening, Promised};
use table::{Right, Table};

impl Right for ReadDelegation {
    fn is_good(&self) -> bool {
        Self::is_good(self)
    }
}

/// The files of a mount.
#[derive(Debug)]
pub(crate) struct Delegated {
    table: Mutex<Table<ReadDelegation>>,
    /// Open files whose use the table is to be told of, for a look without the lock.
    cleaning: AtomicUsize,
    /// Somebody gives files up because there are so many.
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

/// A question to the server that may be answered from here the next time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked(u64);

impl Delegated {
    fn table(&self) -> MutexGuard<'_, Table<ReadDelegation>> {
        // Nothing between two changes of the table can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a name stands for, if that is known.
    pub(crate) fn lookup(&self, dir: &FileHandle, name: &[u8]) -> Option<Attributes> {
        let mut table = self.table();
        let handle = table.named(dir, name)?;
        table.attributes(&handle)
    }

    /// The file that a name is known to stand for.
    pub(crate) fn named(&self, dir: &FileHandle, name: &[u8]) -> Option<FileHandle> {
        self.table().named(dir, name)
    }

    /// The attributes of a file, if they are known.
    pub(crate) fn attributes(&self, handle: &FileHandle) -> Option<Attributes> {
        self.table().attributes(handle)
    }

    /// The server is about to be asked.
    pub(crate) fn asking(&self) -> Asked {
        Asked(self.table().asking())
    }

    /// What it answered, to a question for this name or for a file.
    pub(crate) fn learn(
        &self,
        asked: Asked,
        name: Option<(&FileHandle, &[u8])>,
        found: &Attributes,
    ) {
        self.table().learn(asked.0, name, found);
    }

    /// Something of a file was changed here, or may have been.
    pub(crate) fn changed(&self, handle: &FileHandle) {
        self.table().changed(handle);
    }

    /// Names are about to be changed here; they are when this ends, or may be.
    pub(crate) fn naming(&self) -> Naming<'_> {
        self.table().begin_names();
        Naming(self)
    }

    /// How to open a file to read it, under this number of the kernel's.
    pub(crate) fn open(&self, number: u64, promised: Promised) -> Opening {
        let mut table = self.table();
        let opening = table.open(number, promised);
        self.count(&table);
        opening
    }

    /// A delegation has come with an open file. What it says is heard by `keeper`. True when there is
    /// little room left, and nobody makes any: then [`made_room`](Self::made_room) is to be called, some
    /// time after [`crowd`](Self::crowd).
    pub(crate) fn came(
        &self,
        number: u64,
        handle: FileHandle,
        delegation: ReadDelegation,
        keeper: Weak<dyn Keeper>,
    ) -> bool {
        // A recall that comes at once waits for the table, and finds the file in it.
        let hear = |delegation: &mut ReadDelegation| match delegation.hear(keeper) {
            Ok(is_there) => is_there,
            Err(error) => {
                tracing::warn!(%error, "a file is not kept because nobody would hear of a recall");
                false
            }
        };
        let mut table = self.table();
        let back = table.came(number, handle, delegation, hear);
        self.count(&table);
        let is_crowded = table.is_crowded();
        drop(table);
        drop(back);
        is_crowded && !self.is_making_room.swap(true, Ordering::SeqCst)
    }

    /// No delegation has come with an open file. Answers as [`came`](Self::came).
    pub(crate) fn refused(&self) -> bool {
        self.table().refused() && !self.is_making_room.swap(true, Ordering::SeqCst)
    }

    /// The files to give up so that there is room for others.
    pub(crate) fn crowd(&self) -> Vec<FileHandle> {
        self.table().crowd()
    }

    /// They are given up.
    pub(crate) fn made_room(&self) {
        self.is_making_room.store(false, Ordering::SeqCst);
    }

    fn count(&self, table: &Table<ReadDelegation>) {
        self.cleaning.store(table.cleaning(), Ordering::Release);
    }

    /// The kernel uses an open file, so it has dropped what it had when that was opened.
    pub(crate) fn used(&self, number: u64) {
        // Every read comes by.
        if self.cleaning.load(Ordering::Acquire) > 0 {
            let mut table = self.table();
            table.used(number);
            self.count(&table);
        }
    }

    /// The kernel closes an open file.
    pub(crate) fn closed(&self, number: u64) {
        if self.cleaning.load(Ordering::Acquire) > 0 {
            let mut table = self.table();
            table.closed(number);
            self.count(&table);
        }
    }

    /// An open file that the server does not know.
    pub(crate) fn promised(&self, number: u64) -> Option<Promised> {
        self.table().promised(number)
    }

    /// True when there are any.
    pub(crate) fn has_promised(&self) -> bool {
        self.table().has_promised()
    }

    /// Those of a file.
    pub(crate) fn promised_of(&self, handle: &FileHandle) -> Vec<u64> {
        self.table().promised_of(handle)
    }

    /// All of them.
    pub(crate) fn all_promised(&self) -> Vec<u64> {
        self.table().all_promised()
    }

    /// The server knows an open file now, or the kernel has closed it: then `then` is done in one step
    /// with it. False when that was so before.
    pub(crate) fn settle(&self, number: u64, then: impl FnOnce()) -> bool {
        let mut table = self.table();
        let is_first = table.settle(number);
        if is_first {
            then();
        }
        is_first
    }

    /// Nothing more is to be kept of a file; false when there is nothing, or somebody is at it already.
    pub(crate) fn leave(&self, handle: &FileHandle) -> bool {
        self.table().leave(handle)
    }

    /// Takes a file out, to give its delegation back.
    pub(crate) fn remove(&self, handle: &FileHandle) -> Option<ReadDelegation> {
        self.table().remove(handle)
    }

    /// The kernel has forgotten a file: its delegation goes back, unless it `is_known` again.
    pub(crate) fn forget(&self, handle: &FileHandle, is_known: impl FnOnce() -> bool) {
        let back = self.table().forget(handle, is_known);
        // Without the lock.
        drop(back);
    }

    /// A file is opened to write, or about to lose its name, or who may read it is about to change, until
    /// [`end_write`](Self::end_write).
    pub(crate) fn begin_write(&self, handle: FileHandle) {
        self.table().begin_write(handle);
    }

    pub(crate) fn end_write(&self, handle: &FileHandle) {
        self.table().end_write(handle);
    }

    /// Keeps nothing new, or again.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.table().is_paused = is_paused;
    }

    /// All files that are kept.
    pub(crate) fn all(&self) -> Vec<FileHandle> {
        self.table().all()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table().is_empty()
    }
}

/// Names are being changed here, until this ends.
pub(crate) struct Naming<'a>(&'a Delegated);

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        self.0.table().end_names();
    }
}

/// Whether who opens a file like this only reads it.
pub(crate) fn only_reads(flags: i32) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_TRUNC | libc::O_APPEND) == 0
}

/// Whether who has a file open like this may write to it.
pub(crate) fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}
