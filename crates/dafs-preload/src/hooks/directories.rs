//! Directories: `opendir`, the functions on its streams, and `getdents64`.

use super::{by_descriptor, by_path, served_file};
use crate::failure::{Errno, Result};
use crate::files;
use crate::limits::COPY_BYTES_MAX;
use crate::listing::{self, Stream};
use crate::next::{interpose, serve};
use dafs_client::Error;
use dafs_mem::{CheckedSlice, Site, VolatileSlice};
use libc::{AT_FDCWD, DIR, c_char, c_int, c_long, c_void, dirent64, size_t, ssize_t};

fn open(place: &crate::location::Location) -> Result<*mut DIR> {
    let fd = files::open(place, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
    Stream::open(fd).inspect_err(|_| _ = files::close(fd))
}

/// Reads an entry into a structure of the program.
///
/// # Safety
/// The arguments are as `readdir_r` requires.
unsafe fn read_into(
    stream: *mut DIR,
    entry: *mut dirent64,
    result: *mut *mut dirent64,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(ours) = (unsafe { Stream::of(stream) }) else { return pass() };
    let done: c_int = serve(|| {
        let next = ours.next()?;
        // SAFETY: the caller's promise; the entry is ours until the next call.
        unsafe {
            if !next.is_null() {
                *entry = *next;
            }
            *result = if next.is_null() { next } else { entry };
        }
        Ok(0)
    });
    if done == 0 { 0 } else { Errno::last().0 }
}

/// # Safety
/// As [`Stream::of`].
unsafe fn next(stream: *mut DIR, pass: impl FnOnce() -> *mut dirent64) -> *mut dirent64 {
    // SAFETY: the caller's promise.
    match unsafe { Stream::of(stream) } {
        None => pass(),
        Some(ours) => serve(|| ours.next()),
    }
}

interpose! {
    fn opendir(path: *const c_char) -> *mut DIR, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| open(&place))
    }
    fn fdopendir(fd: c_int) -> *mut DIR, |pass| {
        by_descriptor!(fd, pass, |_directory| Stream::open(fd))
    }
    fn [readdir, readdir64](stream: *mut DIR) -> *mut dirent64, |pass| {
        next(stream, pass)
    }
    fn [readdir_r, readdir64_r]
    (stream: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int, |pass| {
        read_into(stream, entry, result, pass)
    }
    fn closedir(stream: *mut DIR) -> c_int, |pass| {
        if Stream::of(stream).is_none() {
            return pass();
        }
        let fd = Stream::end(stream);
        serve(|| files::close(fd).map(|()| 0))
    }
    fn dirfd(stream: *mut DIR) -> c_int, |pass| {
        match Stream::of(stream) {
            None => pass(),
            Some(ours) => ours.fd(),
        }
    }
    fn rewinddir(stream: *mut DIR) -> (), |pass| {
        match Stream::of(stream) {
            None => pass(),
            Some(ours) => ours.seek(0),
        }
    }
    fn seekdir(stream: *mut DIR, at: c_long) -> (), |pass| {
        match Stream::of(stream) {
            None => pass(),
            Some(ours) => ours.seek(at),
        }
    }
    fn telldir(stream: *mut DIR) -> c_long, |pass| {
        match Stream::of(stream) {
            None => pass(),
            Some(ours) => ours.tell(),
        }
    }
    fn getdents64(fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t, |pass| {
        match served_file(fd) {
            None => pass(),
            Some(_) if to.is_null() => serve(|| Err(Errno(libc::EFAULT))),
            Some(directory) => serve(|| {
                let mut found = vec![0; bytes.min(COPY_BYTES_MAX)];
                let filled = listing::fill(&directory, fd, &mut found)?;
                let target = CheckedSlice::callers(to.cast(), filled);
                let found = VolatileSlice::from_mut(&mut found);
                target.copy_from(found, Site::ClientStaging).map_err(Error::from)?;
                Ok(filled as ssize_t)
            }),
        }
    }
}
