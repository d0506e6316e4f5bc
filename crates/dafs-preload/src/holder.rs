//! Locks of `flock` on an open file that another program has opened and passed to this one, as in
//! `exec 9>FILE; flock 9`. They belong to the open file description, and outlive this program as
//! long as any process has a descriptor of it. A separate process, the holder, therefore has the
//! lock: of a file at the server, of a directory on this host ([`host_locks`]).
//!
//! The kernel tells the holder when to end. All descriptors of the open file share one description
//! of a memfd, which is locked by `flock` in the kernel as well. The holder opens the memfd again
//! and waits for the same lock. It gets that when the open file is unlocked, or its last descriptor
//! is closed.
//!
//! Invariants
//! * An open file has at most one holder. The holder has one `fcntl` lock on the memfd for its
//!   lifetime, and another while it has the server's lock. A second holder waits until the
//!   first has got the lock.
//! * The holder keeps no descriptor of the program, and only `SIGKILL` ends it.

use crate::descriptor::{Kind, Record, kernel};
use crate::failure::{Errno, Result};
use crate::limits::{HOLDER_LOOK_MILLISECONDS, HOST_LOCK_MILLISECONDS, LOCK_WAIT_TIME};
use crate::{files, host_locks, locks, next, session, signals};
use dafs_client::{File, LockError, LockRange};
use libc::{c_int, c_long};
use std::os::fd::OwnedFd;

/// The holder got the lock after another process had unlocked the open file, while this process
/// waited.
const UNLOCKED_MEANWHILE: Errno = Errno(libc::ECANCELED);

fn flock(fd: c_int, operation: c_int) -> Result<()> {
    loop {
        // SAFETY: takes no memory.
        match unsafe { libc::syscall(libc::SYS_flock, fd, operation) } {
            0 => return Ok(()),
            _ if Errno::last() == Errno(libc::EINTR) => {}
            _ => return Err(Errno::last()),
        }
    }
}

/// Bytes of the memfd that a holder locks: one for its lifetime, and one of the others, by kind,
/// while it has the lock.
#[derive(Clone, Copy)]
struct Bytes(libc::off_t, libc::off_t);

const IS_THERE: Bytes = Bytes(0, 1);
const IS_SHARED: Bytes = Bytes(1, 1);
const IS_EXCLUSIVE: Bytes = Bytes(2, 1);
const HAS_LOCK: Bytes = Bytes(1, 2);

fn has_lock(range: &LockRange) -> Bytes {
    if range.is_exclusive() { IS_EXCLUSIVE } else { IS_SHARED }
}

/// Locks bytes of the memfd until `fd` is closed. With a `command` that does not wait, a conflict
/// fails with EAGAIN.
fn lock_bytes(fd: c_int, bytes: Bytes, command: c_int) -> Result<()> {
    command_of_bytes(fd, bytes, command).map(drop)
}

/// True if another open file description has any of these bytes locked.
fn is_taken(fd: c_int, bytes: Bytes) -> Result<bool> {
    Ok(command_of_bytes(fd, bytes, libc::F_OFD_GETLK)? != libc::F_UNLCK as _)
}

fn command_of_bytes(fd: c_int, Bytes(start, len): Bytes, command: c_int) -> Result<libc::c_short> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as _, start, len);
    loop {
        // SAFETY: the kernel reads the structure, and may write what it has found.
        let done = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, &raw mut lock) };
        match done {
            0 => return Ok(lock.l_type),
            _ if Errno::last() == Errno(libc::EINTR) => {}
            _ => return Err(Errno::last()),
        }
    }
}

/// Releases the lock of an open file, and waits until its holder has released it too, unless another
/// process has locked the open file meanwhile. A holder that still waits for the lock notices when it
/// gets it.
pub(crate) fn unlock(fd: c_int) -> Result<()> {
    flock(fd, libc::LOCK_UN)?;
    // Without a descriptor the holder ends by itself all the same.
    let Ok(memory) = kernel::again(fd, libc::O_WRONLY) else { return Ok(()) };
    // The test locks the memfd, so no other process can lock the open file again while this one waits.
    // If one has done so before the holder noticed the unlock, the holder goes on with that lock.
    let done = match is_unlocked(memory) {
        true => lock_bytes(memory, HAS_LOCK, libc::F_OFD_SETLKW),
        false => Ok(()),
    };
    kernel::close(memory);
    done
}

/// True if the open file of this memfd is not locked in the kernel. Concurrent tests do not disturb
/// each other, because they take a shared lock.
fn is_unlocked(memory: c_int) -> bool {
    flock(memory, libc::LOCK_SH | libc::LOCK_NB).is_ok()
}

/// True if there may be a holder, perhaps of another process. Without a descriptor to test with,
/// the lock in the kernel may belong to another process, and stays.
fn may_have_holder(fd: c_int) -> bool {
    let Ok(memory) = kernel::again(fd, libc::O_WRONLY) else { return true };
    let found = is_taken(memory, IS_THERE);
    kernel::close(memory);
    found.unwrap_or(true)
}

/// True if another process with this open file has already taken such a lock.
fn is_locked(fd: c_int, range: &LockRange) -> Result<bool> {
    let memory = kernel::again(fd, libc::O_WRONLY)?;
    // A holder that releases its lock keeps its byte until the release is complete.
    let found = is_taken(memory, has_lock(range)).map(|is_taken| is_taken && !is_unlocked(memory));
    kernel::close(memory);
    found
}

/// Locks an open file, for all processes that have it.
pub(crate) fn lock(fd: c_int, record: &Record, range: &LockRange, waits: bool) -> Result<()> {
    loop {
        if is_locked(fd, range)? {
            return Ok(());
        }
        unlock(fd)?;
        flock(fd, libc::LOCK_EX)?;
        match start(fd, record, range, waits) {
            Err(UNLOCKED_MEANWHILE) => {}
            Err(error) => {
                // The lock in the kernel also belongs to another process that waits.
                if !may_have_holder(fd) {
                    flock(fd, libc::LOCK_UN)?;
                }
                return Err(error);
            }
            Ok(()) => return Ok(()),
        }
    }
}

fn start(fd: c_int, record: &Record, range: &LockRange, waits: bool) -> Result<()> {
    let mut ends = [0; 2];
    // SAFETY: the kernel fills the array.
    if unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Errno::last());
    }
    let [report_end, report_pipe] = ends;
    // SAFETY: the child uses nothing but what a fork may have here, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above. The system reaps a process whose parent has ended.
        match unsafe { libc::fork() } {
            0 => hold(fd, record, range, waits, report_pipe),
            _ => exit(),
        }
    }
    let failed = Errno::last();
    kernel::close(report_pipe);
    let done = match child {
        -1 => Err(failed),
        child => {
            let null = std::ptr::null_mut::<c_int>();
            // SAFETY: a child of ours, which ends at once; its status is not asked for.
            while unsafe { libc::syscall(libc::SYS_wait4, child, null, 0, null) } < 0
                && Errno::last() == Errno(libc::EINTR)
            {}
            hear(report_end)
        }
    };
    kernel::close(report_end);
    done
}

/// True if an event occurs at one end of a pipe before a timeout.
fn is_ready(end: c_int, events: i16, milliseconds: c_int) -> bool {
    let mut poll = libc::pollfd { fd: end, events, revents: 0 };
    // SAFETY: one such structure.
    let done = unsafe { libc::poll(&mut poll, 1, milliseconds) };
    done == 1 && poll.revents != 0
}

/// Waits for the holder's report on the lock.
fn hear(end: c_int) -> Result<()> {
    while !is_ready(end, libc::POLLIN, LOCK_WAIT_TIME.as_millis() as c_int) {
        // The holder notices that this end is closed.
        if signals::is_waiting() {
            return Err(Errno(libc::EINTR));
        }
    }
    let mut number = [0; 4];
    // SAFETY: fills the array.
    let read = unsafe { libc::syscall(libc::SYS_read, end, number.as_mut_ptr(), number.len()) };
    match (read, c_int::from_ne_bytes(number)) {
        (4, 0) => Ok(()),
        (4, number) => Err(Errno(number)),
        // The holder has ended.
        _ => Err(Errno(libc::ENOLCK)),
    }
}

/// The main function of a holder.
fn hold(fd: c_int, record: &Record, range: &LockRange, waits: bool, report_pipe: c_int) -> ! {
    next::internal_from_now_on();
    let mut memory = -1;
    let taken = alone(fd, report_pipe, waits).and_then(|own| {
        memory = own;
        let file = take(record, range, waits, report_pipe)?;
        if is_ready(report_pipe, 0, 0) {
            // The waiting process is gone, so no process would release the lock.
            let _ = file.close();
            return Err(Errno(libc::EINTR));
        }
        lock_bytes(memory, has_lock(range), libc::F_OFD_SETLKW)?;
        // A lock without a process to release it is not reported.
        if !is_unlocked(memory) {
            return Ok(file);
        }
        let _ = file.close();
        Err(UNLOCKED_MEANWHILE)
    });
    if taken.is_err() {
        // Closed before the report, so that the next attempt finds no holder.
        kernel::close(memory);
    }
    let number = taken.as_ref().map_or_else(|errno| errno.0, |_| 0).to_ne_bytes();
    // SAFETY: reads the array.
    let told =
        unsafe { libc::syscall(libc::SYS_write, report_pipe, number.as_ptr(), number.len()) };
    kernel::close(report_pipe);
    if let Ok(file) = taken {
        if told == number.len() as c_long {
            let _ = flock(memory, libc::LOCK_SH);
            let _ = file.close();
            kernel::close(memory);
        } else {
            // The caller did not get the report, so no process may consider the open file locked.
            kernel::close(memory);
            let _ = file.close();
        }
    }
    for client in session::take_all() {
        let _ = client.disconnect();
    }
    exit()
}

/// Drops the resources inherited from the program, and opens the memfd of the open file again.
fn alone(fd: c_int, report_pipe: c_int, waits: bool) -> Result<c_int> {
    let all = u64::MAX;
    let memory = kernel::again(fd, libc::O_WRONLY)?;
    // SAFETY: the kernel reads the set; a path that ends with a zero byte.
    unsafe {
        let null = std::ptr::null_mut::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, null, 8);
        libc::syscall(libc::SYS_setsid);
        libc::syscall(libc::SYS_chdir, c"/".as_ptr());
    }
    let (low, high) = (memory.min(report_pipe), memory.max(report_pipe));
    for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, c_int::MAX)] {
        if first <= last {
            kernel::close_range(first, last, 0)?;
        }
    }
    for _ in 0..3 {
        let path = c"/dev/null".as_ptr();
        // SAFETY: a path that ends with a zero byte.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDWR, 0) };
    }
    loop {
        match lock_bytes(memory, IS_THERE, libc::F_OFD_SETLK) {
            Ok(()) => return Ok(memory),
            // The other holder has got the lock, for all processes that have the open file.
            Err(_) if is_taken(memory, HAS_LOCK)? => return Err(UNLOCKED_MEANWHILE),
            Err(error) if !waits || is_ready(report_pipe, 0, HOLDER_LOOK_MILLISECONDS) => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
}

/// A lock that a holder has.
enum Held {
    /// Of a file, at the server.
    Served(File),
    /// Of a directory, on this host.
    OfHost(OwnedFd),
}

impl Held {
    fn close(self) -> Result<()> {
        match self {
            Self::Served(file) => Ok(file.close()?),
            Self::OfHost(file) => {
                drop(file);
                Ok(())
            }
        }
    }
}

fn take(record: &Record, range: &LockRange, waits: bool, report_pipe: c_int) -> Result<Held> {
    if record.kind == Kind::Directory {
        let is_given_up = || is_ready(report_pipe, 0, HOST_LOCK_MILLISECONDS);
        return host_locks::take(&record.handle, range.is_exclusive(), waits, is_given_up)
            .map(Held::OfHost);
    }
    take_served(record, range, waits, report_pipe).map(Held::Served)
}

fn take_served(
    record: &Record,
    range: &LockRange,
    waits: bool,
    report_pipe: c_int,
) -> Result<File> {
    let file = files::open_for_locks(record.mount, &record.handle, locks::new_owner())?;
    if !waits {
        file.try_lock(range)?;
        return Ok(file);
    }
    loop {
        match file.lock(range, Some(LOCK_WAIT_TIME)) {
            Ok(()) => return Ok(file),
            Err(LockError::Held(_)) if !is_ready(report_pipe, 0, 0) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn exit() -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}
