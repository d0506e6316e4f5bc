//! The file descriptors of this process's connections, for a library inside a program that does not
//! know of them. They lie above the numbers that programs use, and are recorded, so that the
//! program can be kept from closing them.
//!
//! A program that closes all open descriptors may still close them; then the session must notice.
//! [`Guarded`] detects that.
//!
//! Invariants
//! * Unless [`keep_from`] was called, no descriptor is moved or recorded.
//! * A guarded descriptor is neither used nor closed once its number is found to belong to another
//!   file.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Descriptors above this number are not recorded.
const NUMBERS_MAX: usize = 1 << 16;

static FIRST: AtomicI32 = AtomicI32::new(0);

/// A bit for each recorded descriptor.
static KEPT: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok()?;
    Some((KEPT.get(at / 64)?, 1 << (at % 64)))
}

/// Moves descriptors that are made from now on to `first` or above, where there is room.
pub fn keep_from(first: RawFd) {
    FIRST.store(first, Ordering::Relaxed);
}

/// True if the descriptor is recorded.
pub fn is_kept(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The recorded descriptors from `first` to `last`, in order.
pub fn kept_between(first: RawFd, last: RawFd) -> Vec<RawFd> {
    let last = last.min(NUMBERS_MAX as RawFd - 1);
    (first.max(0)..=last).filter(|fd| is_kept(*fd)).collect()
}

/// Records a descriptor.
pub fn note(fd: RawFd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Removes the record of a descriptor that its owner is about to close.
pub fn release(fd: RawFd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Removes all records, as in a child process that uses no descriptor of its parent.
pub fn release_all() {
    KEPT.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

/// Moves a new descriptor to the recorded range and records it.
///
/// # Errors
/// The error of the system call. Too many descriptors is no error: then the descriptor keeps its
/// number.
pub fn kept(fd: OwnedFd) -> io::Result<OwnedFd> {
    let first = FIRST.load(Ordering::Relaxed);
    if first == 0 {
        return Ok(fd);
    }
    // SAFETY: takes no memory.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first) };
    let fd = match moved {
        // SAFETY: the call has just returned this descriptor, and it has no other owner.
        0.. => unsafe { OwnedFd::from_raw_fd(moved) },
        _ => {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EMFILE | libc::EINVAL) => fd,
                _ => return Err(error),
            }
        }
    };
    note(fd.as_raw_fd());
    Ok(fd)
}

/// The signal that marks guarded files (`F_SETSIG`). The kernel would raise it for asynchronous
/// I/O, which is not enabled on them. So the number is free to serve as a mark. Reading it is among
/// the cheapest system calls. It belongs to the file and not to the descriptor number, which may be
/// reused.
const MARK: libc::c_int = 61;

/// The kernel's constants, which the libc crate lacks.
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;

/// Turns between two checks of descriptors that are not checked on each use.
const TURNS_PER_LOOK: u32 = 16;

/// The name of the watch that guards each descriptor number; zero for none.
static GUARDS: [AtomicU32; NUMBERS_MAX] = [const { AtomicU32::new(0) }; NUMBERS_MAX];

static WATCHES: AtomicU32 = AtomicU32::new(0);

/// Reports whether a group of descriptors still refers to its own files.
#[derive(Debug, Clone, Default)]
pub struct Watch(Option<Arc<Watched>>);

#[derive(Debug)]
struct Watched {
    name: u32,
    lost: AtomicBool,
    turns: AtomicU32,
}

impl Watch {
    /// The error for a descriptor that other code than its session has closed.
    pub const LOST: &'static str = "the program has closed descriptors of the session, whose numbers \
                                    may be those of other files by now";

    /// Makes a watch for a process in which other code may close descriptors. The default has no
    /// watch: it checks nothing and costs nothing.
    pub fn new() -> Self {
        // Zero means no watch.
        let name = WATCHES.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        Self(Some(Arc::new(Watched {
            name,
            lost: AtomicBool::new(false),
            turns: AtomicU32::new(0),
        })))
    }

    /// True once a descriptor was found to be closed, or to belong to another file. Makes no system
    /// call.
    pub fn is_lost(&self) -> bool {
        self.0.as_ref().is_some_and(|watched| watched.lost.load(Ordering::Relaxed))
    }

    /// True once in every few calls. It schedules checks of descriptors that are not checked on
    /// each use: only a program that closes single numbers of a session would close them alone.
    pub fn is_due(&self) -> bool {
        self.0.as_ref().is_some_and(|watched| {
            watched.turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(TURNS_PER_LOOK)
        })
    }

    /// Records that a descriptor no longer refers to its file.
    pub fn lose(&self) {
        if let Some(watched) = &self.0 {
            watched.lost.store(true, Ordering::Relaxed);
        }
    }
}

/// A descriptor, or its owner, in a process in which other code may close it.
#[derive(Debug)]
pub struct Guarded<T: AsRawFd> {
    inner: ManuallyDrop<T>,
    watch: Watch,
}

impl<T: AsRawFd> Guarded<T> {
    /// Marks the file behind `inner`, which no other process may share. If the kernel refuses the
    /// mark, the descriptor is not guarded.
    pub fn new(inner: T, watch: &Watch) -> Self {
        let mut watch = watch.clone();
        if let Some(watched) = &watch.0 {
            // SAFETY: takes no memory.
            match unsafe { libc::fcntl(inner.as_raw_fd(), F_SETSIG, MARK) } {
                0 => {
                    if let Some(guard) = guard(inner.as_raw_fd()) {
                        guard.store(watched.name, Ordering::Relaxed);
                    }
                }
                _ => watch = Watch::default(),
            }
        }
        Self { inner: ManuallyDrop::new(inner), watch }
    }

    /// True if the descriptor still refers to its own file. Makes one system call if it is watched.
    pub fn is_ours(&self) -> bool {
        let Some(watched) = &self.watch.0 else { return true };
        #[cfg(test)]
        CHECKS.set(CHECKS.get() + 1);
        let fd = self.inner.as_raw_fd();
        // Another session of this process marks its files too, but records its own name.
        let named = guard(fd).is_none_or(|it| it.load(Ordering::Relaxed) == watched.name);
        // SAFETY: takes no memory.
        let ours = named && unsafe { libc::fcntl(fd, F_GETSIG) } == MARK;
        if !ours {
            self.watch.lose();
        }
        ours
    }

    /// As [`Guarded::is_ours`], as a result.
    ///
    /// # Errors
    /// When the descriptor refers to another file or to none.
    pub fn check(&self) -> io::Result<()> {
        if self.is_ours() { Ok(()) } else { Err(io::Error::other(Watch::LOST)) }
    }
}

#[cfg(test)]
thread_local! {
    /// The checks of watched descriptors that this thread has made.
    pub(crate) static CHECKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn guard(fd: RawFd) -> Option<&'static AtomicU32> {
    GUARDS.get(usize::try_from(fd).ok()?)
}

impl<T: AsRawFd + AsFd> AsFd for Guarded<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: AsRawFd> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: AsRawFd> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: AsRawFd> Drop for Guarded<T> {
    fn drop(&mut self) {
        // A number that belongs to another file by now must not be closed.
        if self.is_ours() {
            if self.watch.0.is_some()
                && let Some(guard) = guard(self.inner.as_raw_fd())
            {
                guard.store(0, Ordering::Relaxed);
            }
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn guarded(watch: &Watch) -> Guarded<OwnedFd> {
        Guarded::new(OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()), watch)
    }

    /// Puts another file at the number, as a program that closes and opens does. One system call,
    /// so that other tests of this process take no number in between.
    fn replace(fd: RawFd, by: &impl AsRawFd) {
        // SAFETY: takes no memory; the number is that of a descriptor of this test.
        assert_eq!(unsafe { libc::dup2(by.as_raw_fd(), fd) }, fd);
    }

    #[test]
    fn a_number_that_is_another_files_is_neither_used_nor_closed() {
        let watch = Watch::new();
        let socket = guarded(&watch);
        assert!(socket.is_ours() && !watch.is_lost());
        let fd = socket.as_raw_fd();
        replace(fd, &File::open("/dev/null").unwrap());
        assert!(socket.check().is_err() && watch.is_lost());
        drop(socket);
        // SAFETY: the descriptor was left open, and is this test's now.
        let left = unsafe { OwnedFd::from_raw_fd(fd) };
        assert!(left.as_fd().try_clone_to_owned().is_ok());
    }

    #[test]
    fn a_session_is_told_from_another_one() {
        let (first, second) = (Watch::new(), Watch::new());
        let socket = guarded(&first);
        let fd = socket.as_raw_fd();
        replace(fd, &File::open("/dev/null").unwrap());
        // SAFETY: the number is that of the file that has just been put there.
        let other = Guarded::new(unsafe { OwnedFd::from_raw_fd(fd) }, &second);
        assert!(other.is_ours() && !socket.is_ours());
        drop(socket);
        assert!(other.is_ours() && first.is_lost() && !second.is_lost());
    }

    #[test]
    fn without_a_watch_nothing_is_looked_at() {
        let socket = guarded(&Watch::default());
        let fd = socket.as_raw_fd();
        replace(fd, &File::open("/dev/null").unwrap());
        assert!(socket.is_ours());
    }
}
