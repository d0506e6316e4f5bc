//! Vectored system calls on volatile memory. The kernel copies, and user space does not.

use crate::volatile::VolatileSlice;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most segments of one call. Longer lists are cut, to a short transfer.
pub const IOV_COUNT_MAX: usize = 1024;

/// A view has the layout of an `iovec`, so that no list has to be built per call.
const _: () = {
    assert!(size_of::<VolatileSlice<'_>>() == size_of::<libc::iovec>());
    assert!(align_of::<VolatileSlice<'_>>() == align_of::<libc::iovec>());
    assert!(std::mem::offset_of!(libc::iovec, iov_base) == 0);
};

/// The kernel's vector of the views.
fn with_iovecs<T>(
    views: &[VolatileSlice<'_>],
    call: impl FnOnce(*const libc::iovec, usize) -> T,
) -> T {
    call(views.as_ptr().cast(), views.len().min(IOV_COUNT_MAX))
}

fn result(returned: isize) -> io::Result<usize> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned as usize) }
}

/// `preadv2`: reads from `offset` of the file into `views`. `flags` are `RWF_*`.
///
/// # Errors
/// The error of the call; `EAGAIN` when `RWF_NOWAIT` is set and the data is not in memory.
pub fn preadv2(
    fd: BorrowedFd<'_>,
    views: &[VolatileSlice<'_>],
    offset: u64,
    flags: i32,
) -> io::Result<usize> {
    // SAFETY: every iovec names memory that its view keeps mapped and writable for the call.
    result(with_iovecs(views, |list, count| unsafe {
        if flags == 0 && count == 1 {
            libc::pread((fd).as_raw_fd(), (*list).iov_base, (*list).iov_len, offset as i64)
        } else {
            libc::preadv2(fd.as_raw_fd(), list, count as i32, offset as i64, flags)
        }
    }))
}

/// `pwritev2`: writes `views` to the file from `offset`. `flags` are `RWF_*`.
///
/// # Errors
/// The error of the call.
pub fn pwritev2(
    fd: BorrowedFd<'_>,
    views: &[VolatileSlice<'_>],
    offset: u64,
    flags: i32,
) -> io::Result<usize> {
    // SAFETY: every iovec names memory that its view keeps mapped for the call.
    result(with_iovecs(views, |list, count| unsafe {
        if flags == 0 && count == 1 {
            libc::pwrite(fd.as_raw_fd(), (*list).iov_base, (*list).iov_len, offset as i64)
        } else {
            libc::pwritev2(fd.as_raw_fd(), list, count as i32, offset as i64, flags)
        }
    }))
}

/// `readv` from a socket or pipe.
///
/// # Errors
/// The error of the call.
pub fn readv(fd: BorrowedFd<'_>, views: &[VolatileSlice<'_>]) -> io::Result<usize> {
    // SAFETY: as `preadv2`.
    result(with_iovecs(views, |list, count| unsafe {
        libc::readv(fd.as_raw_fd(), list, count as i32)
    }))
}

/// `writev` to a socket, pipe or file.
///
/// # Errors
/// The error of the call.
pub fn writev(fd: BorrowedFd<'_>, views: &[VolatileSlice<'_>]) -> io::Result<usize> {
    // SAFETY: as `pwritev2`.
    result(with_iovecs(views, |list, count| unsafe {
        libc::writev(fd.as_raw_fd(), list, count as i32)
    }))
}

/// `sendmsg` with `flags` (`MSG_*`) and no control data.
///
/// # Errors
/// The error of the call.
pub fn sendmsg(fd: BorrowedFd<'_>, views: &[VolatileSlice<'_>], flags: i32) -> io::Result<usize> {
    if let [view] = views {
        // SAFETY: the view keeps its memory mapped for the call; the kernel only reads it.
        return result(unsafe {
            libc::send(fd.as_raw_fd(), view.as_ptr().cast(), view.len(), flags)
        });
    }
    result(with_iovecs(views, |list, count| {
        // SAFETY: msghdr is plain data for which all zero is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = list.cast_mut();
        message.msg_iovlen = count;
        // SAFETY: the message points at `count` iovecs of memory that stays mapped for the call;
        // the kernel does not write through them.
        unsafe { libc::sendmsg(fd.as_raw_fd(), &message, flags) }
    }))
}

/// `recvmsg` without control data: does [`readv`], from a socket only.
///
/// # Errors
/// The error of the call. `ENOTSOCK` for another file, and then no data is read.
pub fn recvmsg(fd: BorrowedFd<'_>, views: &[VolatileSlice<'_>]) -> io::Result<usize> {
    result(with_iovecs(views, |list, count| {
        // SAFETY: msghdr is plain data for which all zero is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = list.cast_mut();
        message.msg_iovlen = count;
        // SAFETY: the message points at `count` iovecs of memory that each view keeps mapped and
        // writable for the call.
        unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, 0) }
    }))
}

/// The bytes that a socket has sent and its peer has not acknowledged, with the end of the stream as
/// one more (SIOCOUTQ). A socket that cannot tell has none.
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which has the number of TIOCOUTQ (tcp(7)), writes one int to `bytes`, which
    // lives for the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 { 0 } else { usize::try_from(bytes).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Site};
    use std::os::fd::AsFd;

    #[test]
    fn files_scatter_and_gather() {
        let path = std::env::temp_dir().join(format!("dafs-mem-io-{}", std::process::id()));
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let buffer = Buffer::zeroed(64).unwrap();
        buffer.view().copy_from(b"hello, direct access", Site::Inspect);
        let parts = [buffer.slice(0, 5).unwrap(), buffer.slice(5, 15).unwrap()];
        assert_eq!(pwritev2(file.as_fd(), &parts, 3, 0).unwrap(), 20);
        let back = Buffer::zeroed(64).unwrap();
        let parts = [back.slice(0, 7).unwrap(), back.slice(32, 32).unwrap()];
        assert_eq!(preadv2(file.as_fd(), &parts, 3, 0).unwrap(), 20);
        assert_eq!(back.slice(32, 13).unwrap().to_vec(Site::Inspect), b"direct access");
        std::fs::remove_file(path).unwrap();
    }
}
