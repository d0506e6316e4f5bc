//! Locks: those of `fcntl`, which belong to the process, and those of the open file.
//!
//! A lock at the server belongs to an open file. For locks of `fcntl` the process therefore opens
//! each file a second time. So does an open file for `flock`. The access mode of the program's own
//! open does not matter then. `F_OFD_SETLK` locks the open file itself.
//!
//! Open files that another program has passed on are locked by a separate process ([`holder`]). The
//! same holds for those that a child has from a fork: its parent shares that lock, and can release
//! it.
//!
//! A conflicting lock is reported by the name of the open that holds it: the name contains the
//! number of its process and a mark of its host.
//! process in it, and a mark of this host.
//!
//! * Closing any descriptor of a file releases the process's locks in it, as POSIX requires. A lock
//!   that is granted after that is held.
//! * The program's signal handlers interrupt a waiting lock request.

use crate::descriptor::{Kind, Record, kernel};
use crate::failure::{Errno, Result};
use crate::limits::{LOCK_WAIT_TIME, OWNERS_TRIES_MAX};
use crate::session::process;
use crate::signals;
use crate::table::Description;
use crate::{files, holder};
use dafs_client::{File, LockError, LockRange};
use libc::{c_int, flock};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The open that owns this process's locks in a file.
fn owner(description: &Description) -> Result<Arc<File>> {
    let record = &description.record;
    if let Some(file) = process().owners.lock().get(&record.handle) {
        return Ok(file.clone());
    }
    let file = Arc::new(files::open_for_locks(record.mount, &record.handle, new_owner())?);
    Ok(process().owners.lock().entry(record.handle).or_insert(file).clone())
}

/// A descriptor of a file was closed.
pub(crate) fn closed(record: &Record) {
    let owner = process().owners.lock().remove(&record.handle);
    if let Some(file) = owner.and_then(Arc::into_inner) {
        let _ = file.close();
    }
}

/// The first byte of a lock, and the number of bytes.
fn range(description: &Description, fd: c_int, lock: &flock) -> Result<(u64, u64)> {
    let base = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => kernel::seek(fd, 0, libc::SEEK_CUR)?,
        libc::SEEK_END => i64::try_from(description.size()?).map_err(|_| Errno(libc::EOVERFLOW))?,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let overflow = Errno(libc::EOVERFLOW);
    let start = base.checked_add(lock.l_start).ok_or(overflow)?;
    // A negative length means the bytes before the start.
    let (start, length) = match lock.l_len {
        length if length < 0 => {
            let before = length.checked_neg().ok_or(overflow)?;
            (start.checked_add(length).ok_or(overflow)?, before)
        }
        length => (start, length),
    };
    let first = u64::try_from(start).map_err(|_| Errno(libc::EINVAL))?;
    let last = match length {
        0 => i64::MAX,
        length => start.checked_add(length - 1).ok_or(overflow)?,
    };
    Ok((first, last.abs_diff(start) + 1))
}

/// `fcntl` with `F_SETLK` and its relatives.
pub(crate) fn control(
    description: &Description,
    fd: c_int,
    command: c_int,
    lock: &mut flock,
) -> Result<c_int> {
    if description.record.is_name() {
        return Err(Errno(libc::EBADF));
    }
    let (first, length) = range(description, fd, lock)?;
    let of_file = matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW);
    if of_file && lock.l_pid != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let kind = c_int::from(lock.l_type);
    if description.record.kind == Kind::Directory {
        return of_directory(command, kind, lock);
    }
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        let range = asked(kind, first, length)?;
        let file = if of_file { description.file()? } else { owner(description)? };
        return test(&file, &range, lock);
    }
    if kind == libc::F_UNLCK {
        let file = if of_file { description.file()? } else { owner(description)? };
        file.unlock(first, length)?;
        return Ok(0);
    }
    let range = asked(kind, first, length)?;
    let right_mode = match kind {
        libc::F_RDLCK => description.record.reads(),
        _ => description.record.writes(),
    };
    if !right_mode {
        return Err(Errno(libc::EBADF));
    }
    let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    let take = |file: &File| if waits { wait(file, &range) } else { Ok(file.try_lock(&range)?) };
    if of_file {
        take(&*description.file()?)?;
        return Ok(0);
    }
    for _ in 0..OWNERS_TRIES_MAX {
        let file = owner(description)?;
        take(&file)?;
        // Another thread may have closed a descriptor meanwhile, and the owner with it.
        let kept = process()
            .owners
            .lock()
            .entry(description.record.handle)
            .or_insert(file.clone())
            .clone();
        if Arc::ptr_eq(&kept, &file) {
            return Ok(0);
        }
        file.unlock(first, length)?;
    }
    Err(Errno(libc::ENOLCK))
}

/// The same for a directory. No process has a directory open for writing, so locks do not conflict.
fn of_directory(command: c_int, kind: c_int, lock: &mut flock) -> Result<c_int> {
    let asks = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    match kind {
        libc::F_RDLCK | libc::F_WRLCK if asks => lock.l_type = libc::F_UNLCK as _,
        libc::F_RDLCK | libc::F_UNLCK if !asks => {}
        libc::F_WRLCK => return Err(Errno(libc::EBADF)),
        _ => return Err(Errno(libc::EINVAL)),
    }
    Ok(0)
}

fn asked(kind: c_int, first: u64, length: u64) -> Result<LockRange> {
    match kind {
        libc::F_RDLCK => Ok(LockRange::shared().bytes(first, length)),
        libc::F_WRLCK => Ok(LockRange::exclusive().bytes(first, length)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Waits until a lock is granted or a signal must be handled.
fn wait(file: &File, range: &LockRange) -> Result<()> {
    loop {
        match file.lock(range, Some(LOCK_WAIT_TIME)) {
            Err(LockError::Held(_)) if !signals::is_waiting() => {}
            Err(LockError::Held(_)) => return Err(Errno(libc::EINTR)),
            other => return Ok(other?),
        }
    }
}

fn test(file: &File, range: &LockRange, lock: &mut flock) -> Result<c_int> {
    // The owner's own locks do not conflict.
    let holder = match file.test_own_lock(range) {
        Ok(None) => {
            lock.l_type = libc::F_UNLCK as _;
            return Ok(0);
        }
        Ok(Some(holder)) | Err(LockError::Held(holder)) => holder,
        Err(error) => return Err(error.into()),
    };
    lock.l_type = if holder.exclusive { libc::F_WRLCK as _ } else { libc::F_RDLCK as _ };
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = i64::try_from(holder.offset).unwrap_or(i64::MAX);
    // Length zero means up to the end.
    let is_short = holder.offset.checked_add(holder.length).is_some_and(|end| end < FLOCK_FROM);
    lock.l_len = if is_short { holder.length as i64 } else { 0 };
    lock.l_pid = process_of(&holder.owner);
    Ok(0)
}

/// Position of the process number in an owner's name, and of the mark of the host behind it. The
/// highest bit distinguishes these names from others.
const PROCESS_AT: u32 = 20;
const HOST_AT: u32 = 42;

/// A name for an open that holds locks of this process.
pub(crate) fn new_owner() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) % (1 << PROCESS_AT);
    let process = u64::from(std::process::id()) % (1 << (HOST_AT - PROCESS_AT));
    1 << 63 | mark_of_host() << HOST_AT | process << PROCESS_AT | count
}

/// The process with this owner's name; -1 for one of another host or with another kind of name.
fn process_of(owner: &[u8]) -> libc::pid_t {
    let Ok(name) = owner.try_into().map(u64::from_be_bytes) else { return -1 };
    match name >> HOST_AT == 1 << (63 - HOST_AT) | mark_of_host() {
        true => (name >> PROCESS_AT) as libc::pid_t & ((1 << (HOST_AT - PROCESS_AT)) - 1),
        false => -1,
    }
}

/// A mark of this host and its process name space, in 21 bits.
fn mark_of_host() -> u64 {
    static MARK: OnceLock<u64> = OnceLock::new();
    *MARK.get_or_init(|| {
        let (boot, space) = crate::next::internal(|| {
            let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            (boot, std::fs::read_link("/proc/self/ns/pid").unwrap_or_default())
        });
        let mut hash = DefaultHasher::new();
        (boot, space).hash(&mut hash);
        hash.finish() >> (HOST_AT + 1)
    })
}

/// The range that `flock` locks: beyond all that `fcntl` can lock, as the two are independent. A
/// lock on all bytes of a file, such as an NFS client's `flock`, conflicts with both.
const FLOCK_FROM: u64 = 1 << 63;

/// `flock`: owned by the open file, independent of its access mode.
pub(crate) fn whole(description: &Description, fd: c_int, operation: c_int) -> Result<()> {
    let record = &description.record;
    if record.is_name() {
        return Err(Errno(libc::EBADF));
    }
    // A directory is locked on this host, by a process that lives as long as the directory is open.
    let by_holder = description.was_given || record.kind == Kind::Directory;
    let range = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => LockRange::shared().bytes(FLOCK_FROM, u64::MAX),
        libc::LOCK_EX => LockRange::exclusive().bytes(FLOCK_FROM, u64::MAX),
        libc::LOCK_UN if by_holder => return holder::unlock(fd),
        libc::LOCK_UN => {
            let file = description.locked.lock().clone();
            let unlocked = file.map_or(Ok(()), |file| file.unlock(FLOCK_FROM, u64::MAX));
            holder::unlock(fd)?;
            return Ok(unlocked?);
        }
        _ => return Err(Errno(libc::EINVAL)),
    };
    if by_holder {
        return holder::lock(fd, record, &range, operation & libc::LOCK_NB == 0);
    }
    // A child shares the open file, and so its lock.
    holder::unlock(fd)?;
    let mut kept = description.locked.lock();
    let file = match &*kept {
        Some(file) => file.clone(),
        None => {
            let opened = match files::open_for_locks(record.mount, &record.handle, new_owner()) {
                // Permissions may have been withdrawn since the program's open.
                Err(Errno(libc::EACCES | libc::EPERM)) => description.file()?,
                opened => Arc::new(opened?),
            };
            kept.insert(opened).clone()
        }
    };
    drop(kept);
    match operation & libc::LOCK_NB {
        0 => wait(&file, &range),
        _ => Ok(file.try_lock(&range)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_by_the_name_of_its_open() {
        let (first, second) = (new_owner(), new_owner());
        assert_ne!(first, second);
        let own = std::process::id() as libc::pid_t;
        assert_eq!(process_of(&first.to_be_bytes()), own);
        let elsewhere = first ^ 1 << HOST_AT;
        for other in [&elsewhere.to_be_bytes()[..], &7_u64.to_be_bytes(), b"", b"an owner"] {
            assert_eq!(process_of(other), -1, "{other:?}");
        }
    }
}
