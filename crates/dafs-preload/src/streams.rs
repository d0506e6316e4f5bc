//! Streams of `stdio` over served files. The C library's own streams use internal calls that cannot
//! be interposed, so ours are made with `fopencookie`.
//!
//! Invariants
//! * A stream belongs to a descriptor number, as the C library's do. It reads and writes the
//!   present file of that number, also a file of this machine after `freopen`.
//! * `stdin`, `stdout` and `stderr` are streams of ours exactly while their descriptors are served,
//!   and the C library's own otherwise.

use crate::config;
use crate::descriptor::kernel;
use crate::failure::{Errno, Failed, Result};
use crate::next::{internal_with_clients, is_serving, serve, with_signals_deferred};
use crate::{files, table};
use dafs_mem::{CheckedSlice, Mutex};
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The place of the descriptor in the C library's streams, for `fileno`, and of their orientation,
/// for `fwide`. Both are parts of its binary interface, as are the flags, which come first.
const FILENO_AT: usize = 112;
const ORIENTATION_AT: usize = 192;
const NO_READS: c_int = 4;
const NO_WRITES: c_int = 8;
const HAS_FAILED: c_int = 0x20;

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

/// The streams of ours, by their addresses.
static ALL: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Their number: a program without any takes no lock when it closes a stream.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The list, locked over a fork so that the child finds it intact.
static HELD: Mutex<Held> = Mutex::new(Held(None));

struct Held(Option<MutexGuard<'static, Vec<usize>>>);

// SAFETY: a guard must be dropped by the thread that took it. It is put there and taken out again by
// the thread that forks, between the handlers that run before and after its fork.
unsafe impl Send for Held {}

/// Call it after the table is locked.
pub(crate) fn before_fork() {
    let guard = ALL.lock();
    HELD.lock().0 = Some(guard);
}

/// Call it in the parent and in the child.
pub(crate) fn after_fork() {
    let guard = HELD.lock().0.take();
    drop(guard);
}

pub(crate) fn is_ours(stream: *mut FILE) -> bool {
    COUNT.load(Ordering::Acquire) != 0
        && with_signals_deferred(|| ALL.lock().contains(&(stream as usize)))
}

/// As [`is_ours`], for calls by which a stream of the C library becomes wide: from then on such a
/// stream costs no lock. Ours stay byte streams to the C library.
pub(crate) fn is_ours_and_wide(stream: *mut FILE) -> bool {
    // SAFETY: a stream that is open.
    COUNT.load(Ordering::Acquire) != 0
        && unsafe { stream.byte_add(ORIENTATION_AT).cast::<c_int>().read() } < 0
        && is_ours(stream)
}

/// Sets or clears the error flag of a stream, for `ferror`; returns the former one.
pub(crate) fn set_error(stream: *mut FILE, has_failed: bool) -> bool {
    let state = stream.cast::<c_int>();
    // SAFETY: an open stream, whose lock is held.
    unsafe {
        let before = state.read();
        state.write(if has_failed { before | HAS_FAILED } else { before & !HAS_FAILED });
        before & HAS_FAILED != 0
    }
}

/// Call it before a stream is closed.
pub(crate) fn forget(stream: *mut FILE) {
    if is_ours(stream) {
        with_signals_deferred(|| {
            let mut all = ALL.lock();
            all.retain(|known| *known != stream as usize);
            COUNT.store(all.len(), Ordering::Release);
        });
    }
}

unsafe extern "C" {
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
}

/// Flushes our streams. A stream that another thread is using is left to the C library.
pub(crate) fn write_out() {
    let all = with_signals_deferred(|| ALL.lock().clone());
    for stream in all {
        let stream = stream as *mut FILE;
        // SAFETY: a stream that is open; its functions are ours.
        unsafe {
            if ftrylockfile(stream) == 0 {
                libc::fflush(stream);
                funlockfile(stream);
            }
        }
    }
}

/// As `serve`, also for a flush while a call is served.
fn within_stream<T: Failed>(work: impl FnOnce() -> Result<T>) -> T {
    if !is_serving() {
        return serve(work);
    }
    work().unwrap_or_else(|errno| {
        errno.set();
        T::FAILED
    })
}

fn returned(value: libc::c_long) -> Result<ssize_t> {
    if value < 0 { Err(Errno::last()) } else { Ok(value as ssize_t) }
}

unsafe extern "C" fn read(cookie: *mut c_void, to: *mut c_char, count: size_t) -> ssize_t {
    within_stream(|| {
        let fd = descriptor(cookie);
        let Some(description) = table::get(fd) else {
            // SAFETY: the C library gives its buffer of that length.
            return returned(unsafe { libc::syscall(libc::SYS_read, fd, to, count) });
        };
        // SAFETY: as above; of a long read it is the program's own.
        let target = unsafe { CheckedSlice::callers(to.cast::<u8>(), count) };
        Ok(description.read(fd, &[target])? as ssize_t)
    })
}

/// Writes all bytes, as the C library requires of a writer: it treats a short write as an error.
unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, count: size_t) -> ssize_t {
    let mut done = 0;
    while done < count {
        // SAFETY: the C library's buffer, from its first byte that is not written yet.
        match unsafe { write_some(descriptor(cookie), from.add(done), count - done) } {
            ..=0 => break,
            written => done += written as usize,
        }
    }
    done as ssize_t
}

/// # Safety
/// `count` bytes at `from` stay as they are.
unsafe fn write_some(fd: c_int, from: *const c_char, count: size_t) -> ssize_t {
    within_stream(|| {
        let Some(description) = table::get(fd) else {
            // SAFETY: the C library gives its buffer of that length.
            return returned(unsafe { libc::syscall(libc::SYS_write, fd, from, count) });
        };
        // SAFETY: as above.
        let source = unsafe { CheckedSlice::callers(from.cast_mut().cast::<u8>(), count) };
        Ok(description.write(fd, &[source])? as ssize_t)
    })
}

unsafe extern "C" fn seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    within_stream(|| {
        let fd = descriptor(cookie);
        // SAFETY: the C library gives its own variable.
        let offset = unsafe { &mut *offset };
        *offset = match table::get(fd) {
            Some(description) => description.seek(fd, *offset, whence)?,
            None => kernel::seek(fd, *offset, whence)?,
        };
        Ok(0)
    })
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    within_stream(|| {
        let fd = descriptor(cookie);
        match table::get(fd) {
            Some(_) => files::close(fd).map(|()| 0),
            // SAFETY: the stream's own descriptor.
            None => returned(unsafe { libc::syscall(libc::SYS_close, fd) }).map(|_| 0),
        }
    })
}

/// Leaves open a descriptor that the program still has.
unsafe extern "C" fn keep(_cookie: *mut c_void) -> c_int {
    0
}

/// Makes a stream over a descriptor, which it closes at its end if `owned`.
pub(crate) fn open(fd: c_int, mode: *const c_char, owned: bool) -> Result<*mut FILE> {
    let close = if owned { close } else { keep };
    let functions =
        Functions { read: Some(read), write: Some(write), seek: Some(seek), close: Some(close) };
    // SAFETY: the mode is a C string of the caller's; the functions take the cookie as it is.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if stream.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: a stream of the C library's, which has its descriptor there and does not use that of
    // streams with functions of their own.
    unsafe { stream.byte_add(FILENO_AT).cast::<c_int>().write(fd) };
    with_signals_deferred(|| {
        let mut all = ALL.lock();
        all.push(stream as usize);
        COUNT.store(all.len(), Ordering::Release);
    });
    Ok(stream)
}

/// Resets a stream of ours whose descriptor has become another file, as if just opened with `mode`.
///
/// # Safety
/// An open stream of ours, which no other thread uses meanwhile, and a C string.
pub(crate) unsafe fn start_anew(stream: *mut FILE, mode: *const c_char) {
    // SAFETY: the caller's promise.
    unsafe {
        libc::rewind(stream);
        libc::clearerr(stream);
        let Ok(flags) = flags(std::ffi::CStr::from_ptr(mode).to_bytes()) else { return };
        let state = stream.cast::<c_int>();
        let allowed = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => NO_WRITES,
            libc::O_WRONLY => NO_READS,
            _ => 0,
        };
        state.write(state.read() & !(NO_READS | NO_WRITES) | allowed);
    }
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
    // The C library would ignore it in a stream of ours.
    if mode.windows(5).any(|part| part == b",ccs=") {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    for letter in mode.iter().take_while(|&&byte| byte != b',') {
        match letter {
            b'e' => flags |= libc::O_CLOEXEC,
            b'x' => flags |= libc::O_EXCL,
            _ => {}
        }
    }
    Ok(flags)
}

/// The replaced streams of the C library, and our streams in their place.
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

/// Installs a stream of ours for a standard descriptor that has become a served file's.
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
                // SAFETY: a stream that is not published yet.
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

/// Restores the C library's stream for a standard descriptor that is about to change.
pub(crate) fn restored(fd: c_int) {
    let Some((at, variable)) = standard(fd) else { return };
    let before = BEFORE[at].swap(std::ptr::null_mut(), Ordering::AcqRel);
    if before.is_null() {
        return;
    }
    // SAFETY: as above. Data written so far belongs to the file, which is still known.
    unsafe {
        if fd != 0 {
            internal_with_clients(|| libc::fflush(OURS[at].load(Ordering::Acquire)));
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
