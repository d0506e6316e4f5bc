//! Where a program that is to be started lies. The kernel starts programs of this machine alone: what is
//! served is not there for it, also where this machine has something else at the same path.

use super::exec::location_is_ours;
use crate::config;
use crate::failure::Errno;
use crate::next::{is_serving, serve};
use libc::{AT_FDCWD, X_OK, c_char, c_int};
use std::ffi::{CStr, CString};

/// What is found for a name.
enum Found {
    /// The C library finds what we would.
    Anywhere,
    /// Here, behind a place that is served.
    Here(CString),
    /// Nowhere but in places that are served.
    Served,
}

/// # Safety
/// `path` is a C string.
unsafe fn is_served(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { location_is_ours(AT_FDCWD, path) }
}

/// # Safety
/// `file` is null or a C string.
unsafe fn looked_for(file: *const c_char) -> Found {
    if file.is_null() || config::get().is_none() || is_serving() {
        return Found::Anywhere;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        // SAFETY: as above.
        return if unsafe { is_served(file) } { Found::Served } else { Found::Anywhere };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut some_are_served = false;
    for place in path.as_encoded_bytes().split(|&byte| byte == b':') {
        let place = if place.is_empty() { b"." } else { place };
        let Ok(path) = CString::new([place, name].join(&b'/')) else { continue };
        // SAFETY: a C string; the kernel takes no other memory.
        unsafe {
            if is_served(path.as_ptr()) {
                some_are_served = true;
            } else if libc::syscall(libc::SYS_faccessat, AT_FDCWD, path.as_ptr(), X_OK) == 0 {
                return if some_are_served { Found::Here(path) } else { Found::Anywhere };
            }
        }
    }
    if some_are_served { Found::Served } else { Found::Anywhere }
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

/// Has `start` start a program by a name that is looked for in `$PATH`, or by what was found for it.
///
/// # Safety
/// `file` is null or a C string.
pub(super) unsafe fn by_name(
    file: *const c_char,
    start: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { looked_for(file) } {
        Found::Served => serve(|| Err(Errno(libc::ENOENT))),
        Found::Anywhere => start(file),
        Found::Here(path) => start(path.as_ptr()),
    }
}
