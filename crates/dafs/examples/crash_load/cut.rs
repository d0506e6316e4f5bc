//! A power cut for one mounted file system (ext4, xfs, f2fs).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The request that ends a file system, `_IOR('X', 125, u32)`.
const SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;

/// The file system flushes neither data nor the log first.
const NOTHING_FLUSHED: u32 = 2;

/// Shuts down the file system that holds `directory` at once; afterwards it can only be unmounted.
pub(crate) fn power(directory: &Path) -> io::Result<()> {
    let directory = File::open(directory)?;
    // SAFETY: the request reads one u32, which lives until the call returns.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), SHUTDOWN, &NOTHING_FLUSHED) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
