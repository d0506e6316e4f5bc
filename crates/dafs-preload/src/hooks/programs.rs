//! Where a program that is to be started lies. The kernel starts programs of this machine alone: what is
//! served is not there for it, also where this machine has something else at the same path.

use super::exec::location_is_ours;
use super::{At, looked_at, note_passed};
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

/// Whether a path of the many that a name may stand for is served.
pub(super) fn is_served(path: &CStr) -> bool {
    // SAFETY: a C string.
    !matches!(unsafe { looked_at(AT_FDCWD, path.as_ptr()) }, At::Elsewhere)
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

/// With which error nothing is started at a path, if there certainly is nothing. A relative one begins where the
/// program is started from, which need not be here.
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

/// Has `start` start a program by its path, unless that is served.
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
        // `posix_spawn` makes a process for each that it tries.
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
