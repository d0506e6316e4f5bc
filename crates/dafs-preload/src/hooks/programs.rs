//! Where a program that is to be started lies. The kernel starts programs of this machine alone: what is
//! served is not there for it, also where this machine has something else at the same path.

use super::exec::location_is_ours;
use crate::config;
use crate::failure::Errno;
use crate::limits::PATH_BYTES_MAX;
use crate::next::serve;
use libc::{AT_FDCWD, c_char, c_int};
use std::ffi::{CStr, CString};

/// Where a name is to be looked for.
enum Places {
    /// Where the C library looks.
    All,
    /// At these paths in turn; `None` stands for one that is served.
    Each(Vec<Option<CString>>),
}

/// # Safety
/// `path` is a C string.
pub(super) unsafe fn is_served(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { location_is_ours(AT_FDCWD, path) }
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
    // The C library passes by what can be no path.
    let places = places.filter(|place| place.len() < PATH_BYTES_MAX).filter_map(|place| {
        let place = if place.is_empty() { b"." } else { place };
        let path = CString::new([place, name].join(&b'/')).ok()?;
        Some(if is_served(&path) { None } else { Some(path) })
    });
    let places: Vec<_> = places.collect();
    if places.iter().any(Option::is_none) { Places::Each(places) } else { Places::All }
}

/// Has `start` start a program by its path, unless that is served.
///
/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn by_path(path: *const c_char, start: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    match !path.is_null() && unsafe { is_served(path) } {
        true => serve(|| Err(Errno(libc::ENOENT))),
        false => start(),
    }
}

/// Has `start` start a program by a name that is looked for in `$PATH`, or, where a place of that is
/// served, at each of the others. Those cannot be judged beforehand: a directory, or a script for a program that
/// is not there, may be executable too. What goes on and what it ends with is as in the C library.
///
/// # Safety
/// `file` is null or a C string; `start` returns an error, or -1 and sets `errno`, unless it started something.
pub(super) unsafe fn by_name(
    file: *const c_char,
    is_served: impl Fn(&CStr) -> bool,
    start: impl Fn(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let places = match unsafe { places(file, is_served) } {
        Places::All => return start(file),
        Places::Each(places) => places,
    };
    let (mut last, mut is_denied) = (libc::ENOENT, false);
    for place in places {
        last = libc::ENOENT;
        let Some(path) = place else { continue };
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
