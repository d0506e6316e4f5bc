//! The descriptors of this process that represent served files, and the working directory.
//!
//! Invariants
//! * Before a description is used, the table checks that the descriptor still is the one that it
//!   was made for: a program may close descriptors by calls that bypass this library.
//! * A lookup of a descriptor that was never ours takes no lock.
//! * The lock is held for moments only, never while waiting for a server. No signal handler runs in
//!   a thread that holds it.
//! * A number changes its meaning in the kernel and here atomically. An offset is set while its
//!   number cannot change: it is never set in another file.

use crate::descriptor::{Record, kernel};
use crate::failure::{Errno, Result};
use crate::limits::DESCRIPTORS_MAX;
use crate::next::{internal_with_clients, with_signals_deferred};
use crate::signals::Blocked;
use dafs_client::{DirEntry, File};
use dafs_mem::{Mutex, RwLock};
use libc::c_int;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

/// An open file, shared by all descriptors of this process that represent it.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) record: Record,
    /// Another program has opened it.
    pub(crate) was_given: bool,
    /// The device and inode of its descriptors.
    inode: (u64, u64),
    /// The file as this process has opened it at the server, once used.
    pub(crate) file: Mutex<Option<Arc<File>>>,
    /// A second open of it, for `flock`.
    pub(crate) locked: Mutex<Option<Arc<File>>>,
    /// Locked by a thread that uses the offset.
    pub(crate) offset: Mutex<()>,
    /// The entries of a directory, while it is read by its descriptor.
    pub(crate) entries: Mutex<Option<Arc<Vec<DirEntry>>>>,
}

impl Description {
    pub(crate) fn new(record: Record, inode: (u64, u64), file: Option<Arc<File>>) -> Arc<Self> {
        let was_given = file.is_none();
        let (file, locked) = (Mutex::new(file), Mutex::default());
        let (offset, entries) = (Mutex::default(), Mutex::default());
        Arc::new(Self { record, was_given, inode, file, locked, offset, entries })
    }
}

#[derive(Debug, Default)]
struct Table {
    open: BTreeMap<c_int, Arc<Description>>,
    /// The working directory, if it is served.
    directory: Option<Arc<Record>>,
}

static TABLE: RwLock<Table> = RwLock::new(Table { open: BTreeMap::new(), directory: None });

/// A bit for each descriptor that is in the table.
static KNOWN: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];

/// A bit for a served working directory.
static IS_INSIDE: AtomicU64 = AtomicU64::new(0);

fn change() -> RwLockWriteGuard<'static, Table> {
    TABLE.write()
}

fn reading() -> RwLockReadGuard<'static, Table> {
    TABLE.read()
}

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok()?;
    Some((KNOWN.get(at / 64)?, 1 << (at % 64)))
}

/// True if a descriptor may be one of ours.
pub(crate) fn may_know(fd: c_int) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The open file of a descriptor, if it is one of ours.
pub(crate) fn get(fd: c_int) -> Option<Arc<Description>> {
    if !may_know(fd) {
        return None;
    }
    with_signals_deferred(|| {
        let found = reading().open.get(&fd)?.clone();
        if kernel::inode(fd) == Ok(found.inode) {
            return Some(found);
        }
        // Unless another thread has reused the number for a served file meanwhile.
        let (word, bit) = bit(fd)?;
        let mut table = change();
        if table.open.get(&fd).is_some_and(|now| Arc::ptr_eq(now, &found)) {
            word.fetch_and(!bit, Ordering::Relaxed);
            let lost = table.open.remove(&fd);
            drop(table);
            internal_with_clients(|| drop(lost));
        }
        None
    })
}

/// Enters a descriptor of an open file; returns its former one.
pub(crate) fn put(fd: c_int, description: Arc<Description>) -> Result<Option<Arc<Description>>> {
    exchange(fd, Some(description), || Ok(())).map(|((), before)| before)
}

/// Lets `act` change a descriptor, and notes its new open file atomically with that. Returns the
/// former one.
pub(crate) fn exchange<T>(
    fd: c_int,
    to: Option<Arc<Description>>,
    act: impl FnOnce() -> Result<T>,
) -> Result<(T, Option<Arc<Description>>)> {
    let (word, bit) = bit(fd).ok_or(Errno(libc::EMFILE))?;
    with_signals_deferred(|| {
        let mut table = change();
        let done = act()?;
        let before = match to {
            Some(description) => {
                word.fetch_or(bit, Ordering::Relaxed);
                table.open.insert(fd, description)
            }
            None => {
                word.fetch_and(!bit, Ordering::Relaxed);
                table.open.remove(&fd)
            }
        };
        Ok((done, before))
    })
}

/// Reads or sets the offset of an open file, which is that of its descriptors. `fd` is one of them,
/// unless another thread has closed it meanwhile: then another descriptor of the file is used, if
/// there is one.
pub(crate) fn seek(of: &Description, fd: c_int, offset: i64, whence: c_int) -> Result<i64> {
    with_signals_deferred(|| {
        let table = reading();
        let stands = |other: &Arc<Description>| std::ptr::eq(Arc::as_ptr(other), of);
        let fd = match table.open.get(&fd).is_some_and(stands) {
            true => fd,
            false => {
                *table.open.iter().find(|(_, other)| stands(other)).ok_or(Errno(libc::EBADF))?.0
            }
        };
        // The table is locked meanwhile, so that the number keeps its meaning.
        kernel::seek(fd, offset, whence)
    })
}

/// The descriptors from `first` to `last`.
pub(crate) fn between(first: c_int, last: c_int) -> Vec<c_int> {
    if first > last {
        return Vec::new();
    }
    with_signals_deferred(|| reading().open.range(first..=last).map(|(fd, _)| *fd).collect())
}

/// All open files.
pub(crate) fn all() -> Vec<Arc<Description>> {
    with_signals_deferred(|| reading().open.values().cloned().collect())
}

/// The working directory, if it is served.
pub(crate) fn working_directory() -> Option<Arc<Record>> {
    if IS_INSIDE.load(Ordering::Relaxed) == 0 {
        return None;
    }
    with_signals_deferred(|| reading().directory.clone())
}

/// True if a relative path may begin in a served directory. Takes no lock.
pub(crate) fn may_be_inside(dir: c_int) -> bool {
    match dir {
        libc::AT_FDCWD => IS_INSIDE.load(Ordering::Relaxed) != 0,
        dir => may_know(dir),
    }
}

pub(crate) fn set_working_directory(directory: Option<Record>) {
    with_signals_deferred(|| {
        let mut table = change();
        IS_INSIDE.store(directory.is_some().into(), Ordering::Relaxed);
        table.directory = directory.map(Arc::new);
    });
}

/// The table, locked over a fork so that the child finds it intact.
static HELD: Mutex<Held> = Mutex::new(Held(None));

struct Held(Option<(RwLockWriteGuard<'static, Table>, Blocked)>);

// SAFETY: a guard must be dropped by the thread that took it. It is put there and taken out again by
// the thread that forks, between the handlers that run before and after its fork.
unsafe impl Send for Held {}

pub(crate) fn before_fork() {
    // A handler in this thread would deadlock on the lock.
    let blocked = Blocked::all();
    let guard = change();
    HELD.lock().0 = Some((guard, blocked));
}

pub(crate) fn after_fork_in_parent() {
    let held = HELD.lock().0.take();
    let Some((guard, blocked)) = held else { return };
    drop(guard);
    blocked.end();
}

/// Gives the child the same files, none of them opened at a server yet.
pub(crate) fn after_fork_in_child() {
    let held = HELD.lock().0.take();
    let Some((mut table, blocked)) = held else { return };
    let mut made: Vec<(ManuallyDrop<Arc<Description>>, Arc<Description>)> = Vec::new();
    let open = std::mem::take(&mut table.open);
    for (fd, old) in open {
        // Never dropped: its file is the parent's, and threads of the parent may hold its locks.
        let old = ManuallyDrop::new(old);
        let known = made.iter().find(|(known, _)| Arc::ptr_eq(known, &old));
        let new = match known {
            Some((_, new)) => new.clone(),
            None => {
                let new = Description::new(old.record.clone(), old.inode, None);
                made.push((old, new.clone()));
                new
            }
        };
        table.open.insert(fd, new);
    }
    drop(table);
    blocked.end();
}
