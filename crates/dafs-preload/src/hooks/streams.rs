//! `fopen`, `fdopen` and `freopen`.

use super::{At, at, by_descriptor, by_path, bytes, served_file};
use crate::descriptor::kernel;
use crate::failure::{Errno, Result};
use crate::files;
use crate::location::Location;
use crate::next::{interpose, serve};
use crate::report;
use crate::streams;
use crate::table::Description;
use crate::watch;
use libc::{AT_FDCWD, FILE, c_char, c_int};

/// # Safety
/// `mode` is a C string.
unsafe fn open(place: &Location, mode: *const c_char) -> Result<*mut FILE> {
    // SAFETY: the caller's promise.
    let flags = streams::flags(unsafe { bytes(mode) })?;
    let fd = files::open(place, flags, 0o666)?;
    streams::open(fd, mode, true).inspect_err(|_| _ = files::close(fd))
}

/// Makes a stream over an open file, with no more access than the open has, at its end if it
/// appends.
///
/// # Safety
/// As [`open`].
unsafe fn over(file: &Description, fd: c_int, mode: *const c_char) -> Result<*mut FILE> {
    // SAFETY: the caller's promise.
    let wanted = streams::flags(unsafe { bytes(mode) })?;
    let suits = |access: c_int| access == libc::O_RDWR || access == wanted & libc::O_ACCMODE;
    if !suits(file.record.flags & libc::O_ACCMODE) {
        return Err(Errno(libc::EINVAL));
    }
    let status = kernel::control(fd, libc::F_GETFL, 0)?;
    if wanted & libc::O_APPEND != 0 && status & libc::O_APPEND == 0 {
        kernel::control(fd, libc::F_SETFL, (status | libc::O_APPEND).into())?;
        file.seek(fd, 0, libc::SEEK_END)?;
    }
    streams::open(fd, mode, true)
}

/// Replaces the file of a stream through its descriptor. This works for the standard streams, which
/// are ours while their descriptors are served, and for our own streams. Any other stream remains
/// the C library's, which cannot use a served file; the program keeps its old stream then.
///
/// # Safety
/// The arguments are as `freopen` requires.
unsafe fn reopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    pass: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    let is_ours = streams::is_ours(stream);
    // SAFETY: the caller's promise.
    let place = match unsafe { at(AT_FDCWD, path) } {
        // The C library would reopen the descriptor's memfd.
        _ if path.is_null() && is_ours => {
            report::refused("freopen", b"");
            return serve(|| Err(Errno(libc::EOPNOTSUPP)));
        }
        _ if path.is_null() => return pass(),
        At::Local if is_ours => None,
        At::Local => return pass(),
        At::Invalid(errno) => return serve(|| Err(errno)),
        At::Served(place) => Some(place),
    };
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::fileno(stream) };
    if !is_ours && !(0..=2).contains(&fd) {
        report::refused("freopen", place.as_ref().map_or(b"", |place| &place.shown));
        return serve(|| Err(Errno(libc::EOPNOTSUPP)));
    }
    // SAFETY: the caller's promise.
    unsafe { libc::fflush(stream) };
    let opened: c_int = serve(|| {
        // SAFETY: the caller's promise.
        let flags = streams::flags(unsafe { bytes(mode) })?;
        match &place {
            Some(place) => files::open(place, flags, 0o666),
            // SAFETY: as above; while a call is served this is the C library's.
            None => match unsafe { libc::open(path, flags, 0o666) } {
                opened @ 0.. => Ok(opened),
                _ => Err(Errno::last()),
            },
        }
    });
    if opened < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: two descriptors of the program's; these calls come to us again.
    unsafe {
        let done = libc::dup2(opened, fd);
        libc::close(opened);
        match done {
            ..0 => std::ptr::null_mut(),
            _ if is_ours => {
                streams::start_anew(stream, mode);
                stream
            }
            _ => streams::current(fd),
        }
    }
}

interpose! {
    fn [fopen, fopen64](path: *const c_char, mode: *const c_char) -> *mut FILE, |pass| {
        let pass = || watch::open_stream(pass);
        by_path!(AT_FDCWD, path, pass, |place| open(&place, mode))
    }
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, |pass| {
        by_descriptor!(fd, pass, |file| over(&file, fd, mode))
    }
    fn [freopen, freopen64]
    (path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, |pass| {
        reopen(path, mode, stream, pass)
    }
    fn fclose(stream: *mut FILE) -> c_int, |pass| {
        // A standard stream of ours is closed with the program's descriptor.
        match streams::standard_of(stream).filter(|fd| served_file(*fd).is_some()) {
            None => {
                streams::forget(stream);
                watch::close_stream(stream);
                pass()
            }
            Some(fd) => {
                libc::fflush(stream);
                serve(|| files::close(fd).map(|()| 0))
            }
        }
    }
}
