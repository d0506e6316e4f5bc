//! Where the descriptors of this process's connections are, for a library in a process whose program
//! has not asked for them: above the numbers that programs use, and known, so that the program can be
//! kept from closing them.
//!
//! Invariants
//! * Unless [`keep_from`] was called nothing is moved and nothing noted.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Descriptors above this number are not noted.
const NUMBERS_MAX: usize = 1 << 16;

static FIRST: AtomicI32 = AtomicI32::new(0);

/// A bit for each descriptor that is kept.
static KEPT: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok()?;
    Some((KEPT.get(at / 64)?, 1 << (at % 64)))
}

/// Has descriptors that are made from now on moved to `first` or above, where there is room.
pub fn keep_from(first: RawFd) {
    FIRST.store(first, Ordering::Relaxed);
}

/// Whether a descriptor is kept.
pub fn is_kept(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The kept descriptors from `first` to `last`, in order.
pub fn kept_between(first: RawFd, last: RawFd) -> Vec<RawFd> {
    let last = last.min(NUMBERS_MAX as RawFd - 1);
    (first.max(0)..=last).filter(|fd| is_kept(*fd)).collect()
}

/// Notes a descriptor as one that is kept.
pub fn note(fd: RawFd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A kept descriptor is about to be closed by whoever keeps it.
pub fn release(fd: RawFd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Nothing is kept any more, as in a child that uses nothing of its parent's.
pub fn release_all() {
    KEPT.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

/// A new descriptor, at the place where it is kept.
///
/// # Errors
/// What the system says; too many descriptors is no error, it stays where it is then.
pub fn kept(fd: OwnedFd) -> io::Result<OwnedFd> {
    let first = FIRST.load(Ordering::Relaxed);
    if first == 0 {
        return Ok(fd);
    }
    // SAFETY: takes no memory.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first) };
    let fd = match moved {
        // SAFETY: the call has just given us this descriptor, and nobody else has it.
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
