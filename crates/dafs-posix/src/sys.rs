//! System calls that no library wraps in the form needed here.
//!
//! All act on descriptors that the caller holds and on the calling thread alone.

use crate::limits::DIRECTORY_BUFFER_BYTES;
use dafs_store::CopyRange;
use rustix::io::Errno;
use rustix::path::DecInt;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The smallest page of any processor that Linux runs on.
const PAGE_BYTES_MIN: u64 = 4096;

/// The longest kernel file handle that fits into an id.
pub(super) const HANDLE_BYTES_MAX: usize = 36;

/// A kernel file handle: the file system's own name of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelHandle {
    pub(super) kind: u8,
    pub(super) len: u8,
    pub(super) bytes: [u8; HANDLE_BYTES_MAX],
}

/// The kernel's `struct file_handle` with room for our longest handle.
#[repr(C)]
struct RawHandle {
    handle_bytes: u32,
    handle_type: i32,
    bytes: [u8; HANDLE_BYTES_MAX],
}

#[cfg(test)]
thread_local! {
    /// Counts the calls of `name_to_handle` by this thread.
    pub(super) static HANDLES_ASKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn check(returned: libc::c_long) -> Result<libc::c_long, Errno> {
    if returned < 0 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(returned)
    }
}

/// Returns the handle of `name` below `dir` (of `dir` itself if empty), and the id of its mount.
/// Does not follow symlinks. `None` when the file system has no handles or too long ones.
pub(super) fn name_to_handle(
    dir: BorrowedFd<'_>,
    name: &CStr,
) -> Result<Option<(KernelHandle, u64)>, Errno> {
    #[cfg(test)]
    HANDLES_ASKED.set(HANDLES_ASKED.get() + 1);
    let mut raw = RawHandle {
        handle_bytes: HANDLE_BYTES_MAX as u32,
        handle_type: 0,
        bytes: [0; HANDLE_BYTES_MAX],
    };
    let mut mount_id: libc::c_int = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: the name is a C string, `raw` has the layout of `struct file_handle` with the room
    // that it declares, and both out pointers are valid for the call.
    let returned = check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags,
        )
    });
    match returned {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP | Errno::OVERFLOW | Errno::NOSYS) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    let (Ok(kind), Ok(len)) = (u8::try_from(raw.handle_type), u8::try_from(raw.handle_bytes))
    else {
        return Ok(None);
    };
    if usize::from(len) > HANDLE_BYTES_MAX {
        return Ok(None);
    }
    let handle = KernelHandle { kind, len, bytes: raw.bytes };
    Ok(Some((handle, u64::from(mount_id.cast_unsigned()))))
}

/// Opens the inode behind a handle with `O_PATH`. Needs CAP_DAC_READ_SEARCH.
pub(super) fn open_by_handle(
    mount: BorrowedFd<'_>,
    handle: &KernelHandle,
) -> Result<OwnedFd, Errno> {
    let mut raw = RawHandle {
        handle_bytes: u32::from(handle.len),
        handle_type: i32::from(handle.kind),
        bytes: handle.bytes,
    };
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `raw` has the layout of `struct file_handle` and holds at least the bytes that it
    // declares, because `len` is at most HANDLE_BYTES_MAX by construction.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags)
    })?;
    // SAFETY: the kernel has just returned this descriptor, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Checks that the thread's file-system identity may do `mode` (`R_OK`, ...) with the open object.
pub(super) fn may_access(fd: BorrowedFd<'_>, mode: i32) -> Result<(), Errno> {
    // AT_EACCESS makes the kernel check the effective user id instead of the real one.
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is an empty C string; the call has no out pointers.
    check(unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), mode, flags) })
        .map(drop)
}

/// Reads directory entries into `buffer`, whose length becomes that of the entries.
pub(super) fn read_directory(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    buffer.resize(DIRECTORY_BUFFER_BYTES, 0);
    // SAFETY: the buffer is valid for writes of its length.
    let read = check(unsafe {
        libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
    });
    buffer.truncate(*read.as_ref().unwrap_or(&0) as usize);
    read.map(drop)
}

/// Fails if the kernel could not write content of this open file back, once for each failure.
pub(super) fn check_written_back(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // The call waits for the write-back of a range, here one without content, and tells of all errors.
    let (offset, flags) = (i64::MAX - 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE);
    // SAFETY: the call takes plain numbers.
    let returned = unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, 1, flags) };
    check(libc::c_long::from(returned)).map(drop)
}

/// Makes a range of `target` share the content of `source`. A length of 0 means up to the end of the
/// source.
pub(super) fn clone_range(
    target: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    range: CopyRange,
) -> Result<(), Errno> {
    let raw = libc::file_clone_range {
        src_fd: i64::from(source.as_raw_fd()),
        src_offset: range.source_offset,
        src_length: range.len,
        dest_offset: range.offset,
    };
    // SAFETY: the request reads one structure of this type, which lives until the call returns.
    let returned = unsafe { libc::ioctl(target.as_raw_fd(), libc::FICLONERANGE, &raw const raw) };
    check(libc::c_long::from(returned)).map(drop)
}

/// Sets the mode of the object of a descriptor, which may be opened with `O_PATH`.
pub(super) fn change_mode(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    /// The number is the same on every processor.
    const FCHMODAT2: libc::c_long = 452;
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: the path is an empty C string; the call has no out pointers.
    check(unsafe { libc::syscall(FCHMODAT2, fd.as_raw_fd(), c"".as_ptr(), mode, flags) }).map(drop)
}

/// Makes a group of fanotify marks that names objects by handle, and whose reads do not block.
pub(super) fn fanotify_init() -> Result<OwnedFd, Errno> {
    let flags =
        libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    // SAFETY: the call takes plain numbers.
    let fd = check(libc::c_long::from(unsafe { libc::fanotify_init(flags, 0) }))?;
    // SAFETY: the kernel has just returned this descriptor, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A change of the events that a fanotify group gets of an object.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mark {
    Add(u64),
    Remove(u64),
}

/// Changes the mark of the object that the link `link` in `dir` leads to.
pub(super) fn fanotify_mark(
    group: BorrowedFd<'_>,
    mark: Mark,
    dir: BorrowedFd<'_>,
    link: &DecInt,
) -> Result<(), Errno> {
    let (flags, mask) = match mark {
        Mark::Add(mask) => (libc::FAN_MARK_ADD, mask),
        Mark::Remove(mask) => (libc::FAN_MARK_REMOVE, mask),
    };
    let name = link.as_c_str().as_ptr();
    // SAFETY: the name is a C string that lives until the call returns; the rest are numbers.
    let returned =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, dir.as_raw_fd(), name) };
    check(libc::c_long::from(returned)).map(drop)
}

/// The files that are charged to a quota: those of a user, or those of a project.
#[derive(Debug, Clone, Copy)]
pub(super) enum QuotaOf {
    User(u32),
    Project(u32),
}

/// Reads a quota of the file system of a descriptor. Needs CAP_SYS_ADMIN, but for the quota of the
/// process's own user. Fails with `SRCH` where there are no such quotas, and with `NOSYS` before
/// Linux 5.14.
pub(super) fn quota(fd: BorrowedFd<'_>, of: QuotaOf) -> Result<libc::dqblk, Errno> {
    /// The kinds USRQUOTA and PRJQUOTA.
    const KINDS: [libc::c_int; 2] = [0, 2];
    let (kind, id) = match of {
        QuotaOf::User(id) => (KINDS[0], id),
        QuotaOf::Project(id) => (KINDS[1], id),
    };
    let command = libc::QCMD(libc::Q_GETQUOTA, kind);
    // SAFETY: the structure has numbers alone, for which zero bytes are valid.
    let mut block: libc::dqblk = unsafe { std::mem::zeroed() };
    // SAFETY: this command writes one structure of this type, which lives until the call returns.
    check(unsafe {
        libc::syscall(libc::SYS_quotactl_fd, fd.as_raw_fd(), command, id, &raw mut block)
    })?;
    Ok(block)
}

/// The kernel's `struct fsxattr`.
#[repr(C)]
struct ExtendedFlags {
    flags: u32,
    extent_bytes: u32,
    extents: u32,
    project: u32,
    copy_extent_bytes: u32,
    reserved: [u8; 8],
}

/// Returns the project of a directory if what is made in it belongs to the same project. Project 0
/// has all files without a project, and no limits.
pub(super) fn project(dir: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
    /// FS_XFLAG_PROJINHERIT.
    const INHERITED: u32 = 0x200;
    /// FS_IOC_FSGETXATTR.
    const REQUEST: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<ExtendedFlags>(b'X', 31);
    // SAFETY: this request writes one structure of this type.
    let request = unsafe { rustix::ioctl::Getter::<REQUEST, ExtendedFlags>::new() };
    // SAFETY: the request only reads properties of the directory.
    let found = unsafe { rustix::ioctl::ioctl(dir, request) }?;
    let is_inherited = found.flags & INHERITED != 0 && found.project != 0;
    Ok(is_inherited.then_some(found.project))
}

/// Gives the calling thread its own umask, a copy of that of the process. The thread also gets its
/// own working directory and root directory.
pub(super) fn separate_umask() -> Result<(), Errno> {
    // SAFETY: the call takes a plain number and changes the calling thread only.
    check(libc::c_long::from(unsafe { libc::unshare(libc::CLONE_FS) })).map(drop)
}

/// Returns the size of a page of the page cache.
pub(super) fn page_bytes() -> u64 {
    static PAGE_BYTES: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *PAGE_BYTES.get_or_init(|| {
        // SAFETY: the call takes a plain number and only reads.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes).unwrap_or(0).max(PAGE_BYTES_MIN)
    })
}
