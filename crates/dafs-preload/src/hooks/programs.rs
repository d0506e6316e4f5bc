//! The place of a program to be started. The kernel starts programs of this machine alone. A served
//! program does not exist for it, even if this machine has another file at the same path.

use super::exec::location_is_ours;
use super::{At, looked_at, note_passed};
use crate::config;
use crate::failure::Errno;
use crate::limits::PATH_BYTES_MAX;
use crate::next::serve;
use libc::{AT_FDCWD, c_char, c_int};
use std::ffi::{CStr, CString};

/// The places in which to search a name.
enum Places {
    /// The search of the C library.
    All,
    /// These paths in turn; `None` is a served one.
    Each(Vec<Option<CString>>),
}

/// True if a path of the many that a name may resolve to is served.
pub(super) fn is_served(path: &CStr) -> bool {
    // SAFETY: a C string.
    !matches!(unsafe { looked_at(AT_FDCWD, path.as_ptr()) }, At::Local)
}

/// # Safety
/// `file` is null or a C string.
unsafe fn places(file: *const c_char, is_served: impl Fn(&CStr) -> bool) -> Places {
    if file.is_null() || config::get().is_none() {
        return Places::All;
    }
    // SAFETY: the caller's promise.
    let file = unsafe { CStr::from_ptr(file) };
    let name = file.to_bytes();
    if name.contains(&b'/') {
        return if is_served(file) { Places::Each(vec![None]) } else { Places::All };
    }
    if name.is_empty() {
        return Places::All;
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let places = path.as_encoded_bytes().split(|&byte| byte == b':');
    // The C library skips places that cannot be paths.
    let places = places.filter(|place| place.len() < PATH_BYTES_MAX).filter_map(|place| {
        let place = if place.is_empty() { b"." } else { place };
        let path = CString::new([place, name].join(&b'/')).ok()?;
        Some(if is_served(&path) { None } else { Some(path) })
    });
    let places: Vec<_> = places.collect();
    if places.iter().any(Option::is_none) { Places::Each(places) } else { Places::All }
}

/// The error of a start at an absolute path, if there certainly is no program. A relative path
/// begins at the working directory of the started process, which may differ from this one's.
fn absence(path: &CStr) -> Option<c_int> {
    let before = Errno::last();
    // SAFETY: all zero is a valid value of this plain structure.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a C string, and the structure that the call fills.
    let looked =
        unsafe { libc::syscall(libc::SYS_newfstatat, AT_FDCWD, path.as_ptr(), &raw mut found, 0) };
    let error = (looked < 0).then(|| Errno::last().0);
    before.set();
    let is_absolute = path.to_bytes().starts_with(b"/");
    error.filter(|error| is_absolute && matches!(*error, libc::ENOENT | libc::ENOTDIR))
}

/// Calls `start` to start a program by its path, unless that is served.
///
/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn by_path(path: *const c_char, start: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { location_is_ours(AT_FDCWD, path) } {
        true => serve(|| Err(Errno(libc::ENOENT))),
        false => start(),
    }
}

/// Calls `start` with a name to search in `$PATH` or, where a place of that is served, with each of
/// the other paths. These cannot be judged beforehand: a directory, or a script whose interpreter
/// does not exist, may be executable too. The errors that end the search are those of the C
/// library.
///
/// # Safety
/// `file` is null or a C string. `start` returns an error, or -1 and sets `errno`, unless it
/// started a program.
pub(super) unsafe fn by_name(
    file: *const c_char,
    is_served: impl Fn(&CStr) -> bool,
    start: impl Fn(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let places = match unsafe { places(file, is_served) } {
        Places::All => {
            note_passed();
            return start(file);
        }
        Places::Each(places) => places,
    };
    if places.iter().any(Option::is_some) {
        note_passed();
    }
    let (mut last, mut is_denied) = (libc::ENOENT, false);
    for place in places {
        last = libc::ENOENT;
        let Some(path) = place else { continue };
        // `posix_spawn` makes a process for each attempt.
        if let Some(error) = absence(&path) {
            last = error;
            continue;
        }
        let done = start(path.as_ptr());
        last = if done < 0 { Errno::last().0 } else { done };
        match last {
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            libc::EACCES => is_denied = true,
            _ => return done,
        }
    }
    serve(|| Err(Errno(if is_denied { libc::EACCES } else { last })))
}
