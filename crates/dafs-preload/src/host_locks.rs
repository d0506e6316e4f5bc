//! Locks of `flock` on directories. A server locks files only. This host alone knows these locks,
//! as on a mount: they are shared by all programs of one user that `dafs run` has started.
//!
//! Each lock is a byte of one empty file of the user; the offset is a hash of the directory's
//! handle.
//!
//! Invariants
//! * The file is the user's own, and no other user can open it.

use crate::failure::{Errno, Result};
use dafs_client::FileHandle;
use libc::c_int;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The directory of the file: not `/tmp`, where old files are removed.
const PLACE: &str = "/dev/shm";

/// The byte of a directory (FNV-1a, the same in every version).
fn byte(handle: &FileHandle) -> i64 {
    let all = handle.fs.iter().chain(&handle.file);
    let sum = all.fold(0xcbf2_9ce4_8422_2325, |sum: u64, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // A lock's last byte is at most the highest offset.
    (sum >> 1) as i64
}

fn open() -> Result<OwnedFd> {
    // SAFETY: takes no memory.
    let user = unsafe { libc::geteuid() };
    let path = CString::new(format!("{PLACE}/dafs-run-{user}.locks"));
    let path = path.map_err(|_| Errno(libc::ENOLCK))?;
    let flags =
        libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: a path that ends with a zero byte.
    let fd =
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(Errno(libc::ENOLCK))?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zero is a valid value of this plain structure, which the call fills.
    let (done, found) = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::syscall(libc::SYS_fstat, fd, &raw mut found), found)
    };
    // Another user may have made a file of this name.
    let is_own = done == 0 && found.st_uid == user && found.st_mode & libc::S_IFMT == libc::S_IFREG;
    if !is_own {
        return Err(Errno(libc::ENOLCK));
    }
    // Independent of the umask with which the file was made.
    // SAFETY: takes no memory.
    unsafe { libc::syscall(libc::SYS_fchmod, fd, 0o600) };
    Ok(file)
}

/// Locks a directory until the result is dropped. While another process has the lock, `is_given_up`
/// is called again and again, and sleeps.
pub(crate) fn take(
    handle: &FileHandle,
    exclusive: bool,
    waits: bool,
    mut is_given_up: impl FnMut() -> bool,
) -> Result<OwnedFd> {
    let file = open()?;
    // SAFETY: all zero is a valid value of this plain structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    let kind: c_int = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as _, byte(handle), 1);
    loop {
        let (fd, command) = (file.as_raw_fd(), libc::F_OFD_SETLK);
        // SAFETY: the kernel reads the structure.
        if unsafe { libc::syscall(libc::SYS_fcntl, fd, command, &raw const lock) } == 0 {
            return Ok(file);
        }
        match Errno::last() {
            Errno(libc::EAGAIN | libc::EACCES) if waits && !is_given_up() => {}
            Errno(libc::EACCES) => return Err(Errno(libc::EAGAIN)),
            other => return Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_locked_on_this_host() {
        let directory = |byte| FileHandle { fs: [1; 16], file: [byte; 48] };
        let take = |byte, exclusive| take(&directory(byte), exclusive, false, || true);
        let first = take(77, false).unwrap();
        let second = take(77, false).unwrap();
        assert_eq!(take(77, true).unwrap_err(), Errno(libc::EAGAIN));
        let _other = take(78, true).unwrap();
        drop((first, second));
        let _alone = take(77, true).unwrap();
        assert_eq!(take(77, false).unwrap_err(), Errno(libc::EAGAIN));
    }
}
