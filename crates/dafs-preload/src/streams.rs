//! Streams of `stdio` over served files. The C library's own streams read and write by calls that
//! nobody can stand before, so ours are made with `fopencookie`.
//!
//! Invariants
//! * `stdin`, `stdout` and `stderr` are streams of ours exactly while their descriptors stand for
//!   served files, and the C library's own otherwise.

use crate::config;
use crate::failure::{Errno, Failed, Result};
use crate::next::{aside, is_serving, serve};
use crate::{files, table};
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Where the C library's streams have their descriptor, for `fileno`: part of its binary interface.
const FILENO_AT: usize = 112;

#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

fn descriptor(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

/// Whether there is any stream of ours.
static ANY: AtomicBool = AtomicBool::new(false);

pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// As `serve`, also where a stream is written out while a call is served.
fn within_stream<T: Failed>(work: impl FnOnce() -> Result<T>) -> T {
    if !is_serving() {
        return serve(work);
    }
    work().unwrap_or_else(|errno| {
        errno.set();
        T::FAILED
    })
}

unsafe extern "C" fn read(cookie: *mut c_void, to: *mut c_char, count: size_t) -> ssize_t {
    within_stream(|| {
        let fd = descriptor(cookie);
        let description = table::get(fd).ok_or(Errno(libc::EBADF))?;
        // SAFETY: the C library gives its buffer of that length.
        let target = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), count) };
        Ok(description.read(fd, &mut [target])? as ssize_t)
    })
}

/// Returns zero for an error: that is what the C library wants of a writer.
unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, count: size_t) -> ssize_t {
    let written: ssize_t = within_stream(|| {
        let fd = descriptor(cookie);
        let description = table::get(fd).ok_or(Errno(libc::EBADF))?;
        // SAFETY: the C library gives its buffer of that length.
        let source = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count) };
        Ok(description.write(fd, &[source])? as ssize_t)
    });
    written.max(0)
}

unsafe extern "C" fn seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    within_stream(|| {
        let fd = descriptor(cookie);
        let description = table::get(fd).ok_or(Errno(libc::EBADF))?;
        // SAFETY: the C library gives its own variable.
        let offset = unsafe { &mut *offset };
        *offset = description.seek(fd, *offset, whence)?;
        Ok(0)
    })
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    within_stream(|| files::close(descriptor(cookie)).map(|()| 0))
}

/// Does not close what the program still has.
unsafe extern "C" fn keep(_cookie: *mut c_void) -> c_int {
    0
}

/// A stream over a descriptor. It closes it at its end if `owned`.
pub(crate) fn open(fd: c_int, mode: *const c_char, owned: bool) -> Result<*mut FILE> {
    let close = if owned { close } else { keep };
    let functions =
        Functions { read: Some(read), write: Some(write), seek: Some(seek), close: Some(close) };
    ANY.store(true, Ordering::Relaxed);
    // SAFETY: the mode is a C string of the caller's; the functions take the cookie as it is.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if stream.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: a stream of the C library's, which has its descriptor there and does not use that of
    // streams with functions of their own.
    unsafe { stream.byte_add(FILENO_AT).cast::<c_int>().write(fd) };
    Ok(stream)
}

/// The flags of `open` for a mode of `fopen`.
pub(crate) fn flags(mode: &[u8]) -> Result<c_int> {
    let plus = mode.iter().take_while(|&&byte| byte != b',').any(|&byte| byte == b'+');
    let access = |alone| if plus { libc::O_RDWR } else { alone };
    let mut flags = match mode.first() {
        Some(b'r') => access(libc::O_RDONLY),
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(Errno(libc::EINVAL)),
    };
    for letter in mode.iter().take_while(|&&byte| byte != b',') {
        match letter {
            b'e' => flags |= libc::O_CLOEXEC,
            b'x' => flags |= libc::O_EXCL,
            _ => {}
        }
    }
    Ok(flags)
}

/// The streams of the C library's that were replaced, and those that replace them.
static BEFORE: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];
static OURS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

fn standard(fd: c_int) -> Option<(usize, *mut *mut FILE)> {
    match fd {
        0 => Some((0, &raw mut stdin)),
        1 => Some((1, &raw mut stdout)),
        2 => Some((2, &raw mut stderr)),
        _ => None,
    }
}

/// A descriptor has got to stand for a served file.
pub(crate) fn replaced(fd: c_int) {
    let Some((at, variable)) = standard(fd) else { return };
    if config::get().is_none() || !BEFORE[at].load(Ordering::Acquire).is_null() {
        return;
    }
    let mode = if fd == 0 { c"r" } else { c"w" };
    let known = OURS[at].load(Ordering::Acquire);
    let ours = match known.is_null() {
        false => known,
        true => {
            let Ok(stream) = open(fd, mode.as_ptr(), false) else { return };
            if fd == 2 {
                // SAFETY: a stream that nobody has seen yet.
                unsafe { libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0) };
            }
            OURS[at].store(stream, Ordering::Release);
            stream
        }
    };
    // SAFETY: the C library lets programs assign these variables.
    unsafe {
        BEFORE[at].store(*variable, Ordering::Release);
        *variable = ours;
    }
}

/// A descriptor is about to stand for a served file no longer.
pub(crate) fn restored(fd: c_int) {
    let Some((at, variable)) = standard(fd) else { return };
    let before = BEFORE[at].swap(std::ptr::null_mut(), Ordering::AcqRel);
    if before.is_null() {
        return;
    }
    // SAFETY: as above. What was written so far belongs to the file, which is still known.
    unsafe {
        if fd != 0 {
            aside(|| libc::fflush(OURS[at].load(Ordering::Acquire)));
        }
        *variable = before;
    }
}

/// The standard stream of a descriptor as it is now.
pub(crate) fn current(fd: c_int) -> *mut FILE {
    // SAFETY: reads a variable of the C library's, which programs may assign.
    standard(fd).map_or(std::ptr::null_mut(), |(_, variable)| unsafe { *variable })
}

/// The descriptor of a standard stream of ours.
pub(crate) fn standard_of(stream: *mut FILE) -> Option<c_int> {
    let is_it = |at: &usize| {
        let ours = OURS[*at].load(Ordering::Acquire);
        !ours.is_null() && ours == stream && !BEFORE[*at].load(Ordering::Acquire).is_null()
    };
    (0..3_usize).find(is_it).map(|at| at as c_int)
}
