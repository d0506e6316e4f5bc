//! Reads, writes, seeks, truncation, sync, copies and locks.

use super::{by_descriptor, by_path, give, must_be_file, served_file, taken};
use crate::copies::{self, CopyEnd, End};
use crate::descriptor::{Kind, kernel};
use crate::failure::{Errno, Result};
use crate::files;
use crate::limits::{IO_BYTES_MAX, VECTORS_MAX};
use crate::next::{interpose, serve};
use crate::{locks, report, watch};
use dafs_client::Error;
use dafs_mem::{CheckedSlice, Site, VolatileSlice};
use libc::{AT_FDCWD, c_char, c_int, c_uint, c_ulong, c_void, iovec, off_t, size_t, ssize_t};

/// Memory that a call reads into. A bad or read-only address fails with `EFAULT`, as in the kernel.
///
/// # Safety
/// Any memory among `count` bytes at `to` is writable, and no other thread writes it meanwhile.
pub(super) unsafe fn target<'a>(to: *mut c_void, count: size_t) -> CheckedSlice<'a> {
    // SAFETY: the caller's promise.
    unsafe { CheckedSlice::callers(to.cast(), count.min(IO_BYTES_MAX)) }
}

/// Memory that a call writes from.
///
/// # Safety
/// Any memory among `count` bytes at `from` stays unchanged.
pub(super) unsafe fn source<'a>(from: *const c_void, count: size_t) -> CheckedSlice<'a> {
    // SAFETY: the caller's promise; a source is only copied from.
    unsafe { CheckedSlice::callers(from.cast_mut().cast(), count.min(IO_BYTES_MAX)) }
}

/// A list of pieces of memory, as [`target`] or [`source`].
///
/// # Safety
/// As there, for each that the `count` structures at `list` name.
unsafe fn pieces<'a>(list: *const iovec, count: c_int) -> Result<Vec<CheckedSlice<'a>>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= VECTORS_MAX);
    let count = count.ok_or(Errno(libc::EINVAL))?;
    let none = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut own = vec![none; count];
    let bytes = count * size_of::<iovec>();
    // SAFETY: the list is as long, and the caller's promise.
    unsafe {
        let own = VolatileSlice::new(own.as_mut_ptr().cast(), bytes);
        let list = CheckedSlice::callers(list.cast_mut().cast(), bytes);
        list.copy_to(own, Site::ClientStaging).map_err(Error::from)?;
    }
    // SAFETY: the caller's promise.
    Ok(own.iter().map(|one| unsafe { target(one.iov_base, one.iov_len) }).collect())
}

/// The address of the first of the pieces of memory of a call that has succeeded.
///
/// # Safety
/// The kernel has moved bytes for a list of at least one structure at `list`.
unsafe fn first(list: *const iovec) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (*list).iov_base.addr() }
}

/// The offset given to `preadv2` and `pwritev2`; `None` for that of the descriptor.
fn placed(offset: off_t) -> Option<off_t> {
    (offset != -1).then_some(offset)
}

/// Passes on a call about an open file, and counts it.
fn asking(fd: c_int, pass: impl FnOnce() -> c_int) -> c_int {
    let done = pass();
    watch::asked(fd);
    done
}

fn count(bytes: usize) -> ssize_t {
    bytes as ssize_t
}

/// Aborts a program whose buffer is shorter than the length that it passes, as the C library does.
pub(super) fn check(asked: size_t, room: size_t) {
    if asked > room {
        // SAFETY: ends the program, which is about to write over its own memory.
        unsafe { libc::abort() };
    }
}

/// The kind of a copying call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copying {
    Ranges,
    Sending,
    Splicing,
}

/// The error of a copy to a descriptor with `O_APPEND`, as the kernel has it.
fn must_not_append(how: Copying, to: c_int) -> Result<()> {
    if kernel::control(to, libc::F_GETFL, 0)? & libc::O_APPEND == 0 {
        return Ok(());
    }
    match how {
        Copying::Ranges => Err(Errno(libc::EBADF)),
        // `O_APPEND` does not matter for a pipe.
        Copying::Sending | Copying::Splicing if kernel::kind(to) == Ok(libc::S_IFIFO) => Ok(()),
        Copying::Sending | Copying::Splicing => Err(Errno(libc::EINVAL)),
    }
}

/// The errors of a copy between files without byte ranges, and of access that the opens do not
/// allow.
fn must_be_ranges(from: c_int, to: c_int) -> Result<()> {
    let kind = |fd| match served_file(fd) {
        Some(file) => match file.record.kind {
            Kind::File => Ok(libc::S_IFREG),
            Kind::Directory => Ok(libc::S_IFDIR),
            Kind::Place => Err(Errno(libc::EBADF)),
        },
        None => kernel::kind(fd),
    };
    let kinds = [kind(from)?, kind(to)?];
    if kinds.contains(&libc::S_IFDIR) {
        return Err(Errno(libc::EISDIR));
    }
    if kinds != [libc::S_IFREG; 2] {
        return Err(Errno(libc::EINVAL));
    }
    let may = served_file(from).is_none_or(|file| file.record.reads())
        && served_file(to).is_none_or(|file| file.record.writes());
    if may { Ok(()) } else { Err(Errno(libc::EBADF)) }
}

/// The size of a copy within one file. Overlapping ranges are an error.
fn must_not_overlap((from, to): (i64, i64), bytes: size_t, size: u64) -> Result<size_t> {
    let invalid = Errno(libc::EINVAL);
    let from = u64::try_from(from).map_err(|_| invalid)?;
    let to = u64::try_from(to).map_err(|_| invalid)?;
    let bytes = (bytes as u64).min(size.saturating_sub(from));
    match from < to.saturating_add(bytes) && to < from.saturating_add(bytes) {
        true => Err(invalid),
        false => Ok(bytes as size_t),
    }
}

/// # Safety
/// The offsets are null or, wherever there is memory, variables of the program's.
unsafe fn copy(
    how: Copying,
    (from, from_offset): (c_int, *mut i64),
    (to, to_offset): (c_int, *mut i64),
    bytes: size_t,
    pass: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if served_file(from).is_none() && served_file(to).is_none() {
        return watch::copy(from, to, pass);
    }
    let end = |fd| served_file(fd).map_or(End::Other, End::Served);
    serve(|| {
        if how == Copying::Ranges {
            must_be_ranges(from, to)?;
        }
        must_not_append(how, to)?;
        // SAFETY: the caller's promise.
        let read = |at: *mut i64| (!at.is_null()).then(|| unsafe { taken(at) }).transpose();
        let (mut from_at, mut to_at) = (read(from_offset)?, read(to_offset)?);
        let mut bytes = bytes;
        if how == Copying::Ranges
            && let (Some(source), Some(target)) = (served_file(from), served_file(to))
            && source.record.mount == target.record.mount
            && source.record.handle == target.record.handle
        {
            let here = |fd, at: Option<i64>| match at {
                Some(at) => Ok(at),
                None => kernel::seek(fd, 0, libc::SEEK_CUR),
            };
            let places = (here(from, from_at)?, here(to, to_at)?);
            bytes = must_not_overlap(places, bytes, source.size()?)?;
        }
        let source = CopyEnd { fd: from, end: end(from), offset: from_at.as_mut() };
        let target = CopyEnd { fd: to, end: end(to), offset: to_at.as_mut() };
        let done = copies::copy(source, target, bytes)?;
        for (at, now) in [(from_offset, from_at), (to_offset, to_at)] {
            if let Some(now) = now {
                // SAFETY: the caller's promise.
                unsafe { give(at, now)? };
            }
        }
        Ok(count(done))
    })
}

interpose! {
    fn read(fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t, |pass| {
        let pass = || watch::read(fd, None, || to.addr(), pass);
        by_descriptor!(fd, pass, |file| file.read(fd, &[target(to, bytes)]).map(count))
    }
    fn __read_chk(fd: c_int, to: *mut c_void, bytes: size_t, room: size_t) -> ssize_t, |pass| {
        let pass = || watch::read(fd, None, || to.addr(), pass);
        by_descriptor!(fd, pass, |file| {
            check(bytes, room);
            file.read(fd, &[target(to, bytes)]).map(count)
        })
    }
    fn write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t, |pass| {
        let pass = || watch::write(fd, None, || from.addr(), pass);
        by_descriptor!(fd, pass, |file| file.write(fd, &[source(from, bytes)]).map(count))
    }
    fn [pread, pread64]
    (fd: c_int, to: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t, |pass| {
        let pass = || watch::read(fd, Some(offset), || to.addr(), pass);
        by_descriptor!(fd, pass, |file| {
            file.read_vectored(&[target(to, bytes)], offset).map(count)
        })
    }
    fn [__pread_chk, __pread64_chk]
    (fd: c_int, to: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t, |pass| {
        let pass = || watch::read(fd, Some(offset), || to.addr(), pass);
        by_descriptor!(fd, pass, |file| {
            check(bytes, room);
            file.read_vectored(&[target(to, bytes)], offset).map(count)
        })
    }
    fn [pwrite, pwrite64]
    (fd: c_int, from: *const c_void, bytes: size_t, offset: off_t) -> ssize_t, |pass| {
        let pass = || watch::write(fd, Some(offset), || from.addr(), pass);
        by_descriptor!(fd, pass, |file| file.write_vectored(&[source(from, bytes)], offset).map(count))
    }
    fn readv(fd: c_int, list: *const iovec, number: c_int) -> ssize_t, |pass| {
        let pass = || watch::read(fd, None, || first(list), pass);
        by_descriptor!(fd, pass, |file| file.read(fd, &pieces(list, number)?).map(count))
    }
    fn writev(fd: c_int, list: *const iovec, number: c_int) -> ssize_t, |pass| {
        let pass = || watch::write(fd, None, || first(list), pass);
        by_descriptor!(fd, pass, |file| file.write(fd, &pieces(list, number)?).map(count))
    }
    fn [preadv, preadv64]
    (fd: c_int, list: *const iovec, number: c_int, offset: off_t) -> ssize_t, |pass| {
        let pass = || watch::read(fd, Some(offset), || first(list), pass);
        by_descriptor!(fd, pass, |file| file.read_vectored(&pieces(list, number)?, offset).map(count))
    }
    fn [pwritev, pwritev64]
    (fd: c_int, list: *const iovec, number: c_int, offset: off_t) -> ssize_t, |pass| {
        let pass = || watch::write(fd, Some(offset), || first(list), pass);
        by_descriptor!(fd, pass, |file| file.write_vectored(&pieces(list, number)?, offset).map(count))
    }
    fn [preadv2, preadv64v2]
    (fd: c_int, list: *const iovec, number: c_int, offset: off_t, flags: c_int) -> ssize_t, |pass| {
        let pass = || watch::read(fd, placed(offset), || first(list), pass);
        by_descriptor!(fd, pass, |file| read_as_asked(&file, fd, &pieces(list, number)?, offset, flags))
    }
    fn [pwritev2, pwritev64v2]
    (fd: c_int, list: *const iovec, number: c_int, offset: off_t, flags: c_int) -> ssize_t, |pass| {
        let pass = || watch::write(fd, placed(offset), || first(list), pass);
        by_descriptor!(fd, pass, |file| write_as_asked(&file, fd, &pieces(list, number)?, offset, flags))
    }

    fn [lseek, lseek64](fd: c_int, offset: off_t, whence: c_int) -> off_t, |pass| {
        let pass = || watch::seek(fd, pass);
        by_descriptor!(fd, pass, |file| file.seek(fd, offset, whence))
    }
    fn [ftruncate, ftruncate64](fd: c_int, size: off_t) -> c_int, |pass| {
        let pass = || asking(fd, pass);
        by_descriptor!(fd, pass, |file| file.set_size(size).map(|()| 0))
    }
    fn [truncate, truncate64](path: *const c_char, size: off_t) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| files::truncate(&place, size).map(|()| 0))
    }
    fn [fsync, fdatasync](fd: c_int) -> c_int, |pass| {
        let pass = || watch::sync(fd, pass);
        by_descriptor!(fd, pass, |file| file.sync().map(|()| 0))
    }
    fn syncfs(fd: c_int) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| files::sync_all(file.record.mount).map(|()| 0))
    }
    fn sync_file_range(fd: c_int, offset: i64, bytes: i64, flags: c_uint) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| file.sync().map(|()| 0))
    }

    fn [sendfile, sendfile64]
    (to: c_int, from: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t, |pass| {
        copy(Copying::Sending, (from, offset), (to, std::ptr::null_mut()), bytes, pass)
    }
    fn copy_file_range(
        from: c_int,
        from_offset: *mut i64,
        to: c_int,
        to_offset: *mut i64,
        bytes: size_t,
        flags: c_uint,
    ) -> ssize_t, |pass| {
        match flags {
            0 => copy(Copying::Ranges, (from, from_offset), (to, to_offset), bytes, pass),
            _ if served_file(from).is_none() && served_file(to).is_none() => {
                watch::copy(from, to, pass)
            }
            // The kernel knows no other operation.
            _ => serve(|| Err(Errno(libc::EINVAL))),
        }
    }
    fn splice(
        from: c_int,
        from_offset: *mut i64,
        to: c_int,
        to_offset: *mut i64,
        bytes: size_t,
        flags: c_uint,
    ) -> ssize_t, |pass| {
        copy(Copying::Splicing, (from, from_offset), (to, to_offset), bytes, pass)
    }
    fn flock(fd: c_int, operation: c_int) -> c_int, |pass| {
        let pass = || asking(fd, pass);
        by_descriptor!(fd, pass, |file| locks::whole(&file, fd, operation).map(|()| 0))
    }
    fn [lockf, lockf64](fd: c_int, command: c_int, bytes: off_t) -> c_int, |pass| {
        let pass = || asking(fd, pass);
        by_descriptor!(fd, pass, |file| lock_here(&file, fd, command, bytes))
    }

    fn [posix_fadvise, posix_fadvise64]
    (fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int, |pass| {
        if served_file(fd).is_some() { 0 } else { pass() }
    }
    fn readahead(fd: c_int, offset: i64, bytes: size_t) -> ssize_t, |pass| {
        by_descriptor!(fd, pass, |file| must_be_file(&file).map(|()| 0))
    }
    fn [fallocate, fallocate64]
    (fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| reserve(&file, mode, offset, bytes).map(|()| 0))
    }
    fn [posix_fallocate, posix_fallocate64]
    (fd: c_int, offset: off_t, bytes: off_t) -> c_int, |pass| {
        preallocate(fd, offset, bytes, pass)
    }
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| {
            match request {
                libc::FIOCLEX | libc::FIONCLEX => Ok(pass()),
                // FICLONE and its relatives: programs that use them fall back to copying.
                _ => {
                    report::refused("ioctl", &file.record.shown);
                    Err(Errno(libc::ENOTTY))
                }
            }
        })
    }
}

/// `preadv2`. Of the flags, only the one for high priority is a plain read; others fail.
fn read_as_asked(
    file: &crate::table::Description,
    fd: c_int,
    to: &[CheckedSlice<'_>],
    offset: off_t,
    flags: c_int,
) -> Result<ssize_t> {
    match offset {
        _ if flags & !libc::RWF_HIPRI != 0 => Err(Errno(libc::EOPNOTSUPP)),
        -1 => file.read(fd, to).map(count),
        offset => file.read_vectored(to, offset).map(count),
    }
}

/// `pwritev2`, likewise.
fn write_as_asked(
    file: &crate::table::Description,
    fd: c_int,
    from: &[CheckedSlice<'_>],
    offset: off_t,
    flags: c_int,
) -> Result<ssize_t> {
    match offset {
        _ if flags & !libc::RWF_HIPRI != 0 => Err(Errno(libc::EOPNOTSUPP)),
        -1 => file.write(fd, from).map(count),
        offset => file.write_vectored(from, offset).map(count),
    }
}

fn lock_here(
    file: &crate::table::Description,
    fd: c_int,
    command: c_int,
    bytes: off_t,
) -> Result<c_int> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_whence, lock.l_len) = (libc::SEEK_CUR as _, bytes);
    lock.l_type = match command {
        libc::F_ULOCK => libc::F_UNLCK as _,
        // As in the C library: a read lock of another owner does not conflict.
        libc::F_TEST => libc::F_RDLCK as _,
        _ => libc::F_WRLCK as _,
    };
    let control = match command {
        libc::F_LOCK => libc::F_SETLKW,
        libc::F_TEST => libc::F_GETLK,
        libc::F_TLOCK | libc::F_ULOCK => libc::F_SETLK,
        _ => return Err(Errno(libc::EINVAL)),
    };
    locks::control(file, fd, control, &mut lock)?;
    match command == libc::F_TEST && c_int::from(lock.l_type) != libc::F_UNLCK {
        true => Err(Errno(libc::EACCES)),
        false => Ok(0),
    }
}

/// `fallocate`, which may be unsupported: programs then do without, or write zeros.
fn reserve(
    file: &crate::table::Description,
    _mode: c_int,
    _offset: off_t,
    _bytes: off_t,
) -> Result<()> {
    report::refused("fallocate", &file.record.shown);
    Err(Errno(libc::EOPNOTSUPP))
}

/// `posix_fallocate`, which returns its error. A server reserves no space. To extend the file would
/// race with appends of others.
fn preallocate(fd: c_int, offset: off_t, bytes: off_t, pass: impl FnOnce() -> c_int) -> c_int {
    let Some(file) = served_file(fd) else { return pass() };
    match () {
        () if offset < 0 || bytes <= 0 => libc::EINVAL,
        () if !file.record.writes() => libc::EBADF,
        () => {
            report::refused("posix_fallocate", &file.record.shown);
            libc::EOPNOTSUPP
        }
    }
}
