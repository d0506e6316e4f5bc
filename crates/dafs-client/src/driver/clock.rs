//! A clock for those who look at it all the time.

use dafs_dat::Instant;

/// The machine's monotonic clock as the kernel last noted it: some milliseconds late, very cheap.
pub(crate) fn coarse_now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
