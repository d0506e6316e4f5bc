//! `fopen`, `fdopen` and `freopen`.

use super::{At, at, by_descriptor, by_path, bytes, known};
use crate::failure::Result;
use crate::files;
use crate::location::Location;
use crate::next::{interpose, serve};
use crate::streams;
use libc::{AT_FDCWD, FILE, c_char, c_int};

/// # Safety
/// `mode` is a C string.
unsafe fn open(place: &Location, mode: *const c_char) -> Result<*mut FILE> {
    // SAFETY: the caller's promise.
    let flags = streams::flags(unsafe { bytes(mode) })?;
    let fd = files::open(place, flags, 0o666)?;
    streams::open(fd, mode, true).inspect_err(|_| _ = files::close(fd))
}

/// A stream of the program's gets another file. One of the standard streams becomes ours by its
/// descriptor; any other is closed and a new one is returned.
///
/// # Safety
/// The arguments are as `freopen` wants them.
unsafe fn reopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    pass: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's promise.
    let place = match unsafe { at(AT_FDCWD, path) } {
        _ if path.is_null() => return pass(),
        At::Elsewhere => return pass(),
        At::Wrong(errno) => return serve(|| Err(errno)),
        At::Here(place) => place,
    };
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::fileno(stream) };
    if !(0..=2).contains(&fd) {
        // SAFETY: the caller's promise: it uses only what is returned.
        unsafe { libc::fclose(stream) };
        // SAFETY: the caller's promise.
        return serve(|| unsafe { open(&place, mode) });
    }
    // SAFETY: the caller's promise.
    unsafe { libc::fflush(stream) };
    // SAFETY: the caller's promise.
    let opened: c_int =
        serve(|| files::open(&place, streams::flags(unsafe { bytes(mode) })?, 0o666));
    if opened < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: two descriptors of the program's; these calls come to us again.
    unsafe {
        let done = libc::dup2(opened, fd);
        libc::close(opened);
        if done < 0 { std::ptr::null_mut() } else { streams::current(fd) }
    }
}

interpose! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| open(&place, mode))
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| open(&place, mode))
    }
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, |pass| {
        by_descriptor!(fd, pass, |_file| streams::open(fd, mode, true))
    }
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, |pass| {
        reopen(path, mode, stream, pass)
    }
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, |pass| {
        reopen(path, mode, stream, pass)
    }
    fn fclose(stream: *mut FILE) -> c_int, |pass| {
        // A standard stream of ours is closed with the descriptor that it leaves to the program.
        match streams::standard_of(stream).filter(|fd| known(*fd).is_some()) {
            None => pass(),
            Some(fd) => {
                libc::fflush(stream);
                serve(|| files::close(fd).map(|()| 0))
            }
        }
    }
}
