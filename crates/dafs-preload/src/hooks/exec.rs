//! Becoming another program, and ending.
//!
//! What is started gets the variables that have it served, whatever environment it is given, and is
//! told the working directory. Its open files it finds by itself.

use super::{At, at, programs};
use crate::config;
use crate::failure::Errno;
use crate::life;
use crate::next::{interpose, is_serving};
use crate::table;
use libc::{c_char, c_int, pid_t};
use std::ffi::{CStr, CString};

unsafe extern "C" {
    static environ: *const *const c_char;
    fn fork() -> pid_t;
}

/// How the path of this library ends.
const LIBRARY: &[u8] = b"/libdafs_preload.so";

pub(super) type Environment = *const *const c_char;

/// An environment for another program.
struct Given {
    /// What the pointers point to that is not the program's.
    _own: Vec<CString>,
    pointers: Vec<*const c_char>,
}

/// The environment with what is missing in it. The program starts in this process's working directory,
/// unless it does not keep that.
///
/// # Safety
/// `from` is null or a list of C strings that ends with null.
unsafe fn completed(from: Environment, keeps_directory: bool) -> Option<Given> {
    let config = config::get()?;
    let mut pointers = Vec::new();
    let mut at = from;
    // SAFETY: the caller's promise.
    while !at.is_null() && !unsafe { *at }.is_null() {
        // SAFETY: as above. What is said of the directory is ours to say.
        unsafe {
            if !CStr::from_ptr(*at).to_bytes().starts_with(b"DAFS_RUN_DIRECTORY=") {
                pointers.push(*at);
            }
            at = at.add(1);
        }
    }
    let mut own = Vec::new();
    for pointer in &mut pointers {
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(*pointer) }.to_bytes();
        if let Some(text) = preload(config, text) {
            *pointer = text.as_ptr();
            own.push(text);
        }
    }
    let has = |name: &str| {
        pointers.iter().any(|&text| {
            // SAFETY: the caller's promise.
            let text = unsafe { CStr::from_ptr(text) }.to_bytes();
            text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
        })
    };
    let mut set = |name: &str, value: &[u8]| {
        let mut text = format!("{name}=").into_bytes();
        text.extend_from_slice(value);
        own.extend(CString::new(text));
    };
    for (name, value) in config.environment.iter().filter(|(name, _)| !has(name)) {
        set(name, value);
    }
    let directory = table::working_directory().filter(|_| keeps_directory);
    if let Some(text) = directory.and_then(|directory| directory.write(config)) {
        set("DAFS_RUN_DIRECTORY", &text);
    }
    pointers.extend(own.iter().map(|text| text.as_ptr()));
    pointers.push(std::ptr::null());
    Some(Given { _own: own, pointers })
}

/// The variable `LD_PRELOAD` with us in it, if `text` is one without.
fn preload(config: &config::Config, text: &[u8]) -> Option<CString> {
    let given = text.strip_prefix(b"LD_PRELOAD=")?;
    let (_, ours) = config.environment.iter().find(|(name, _)| *name == "LD_PRELOAD")?;
    let is_separator = |byte: &u8| matches!(byte, b':' | b' ');
    let ours = ours.split(is_separator).find(|library| library.ends_with(LIBRARY))?;
    if given.split(is_separator).any(|library| library == ours) {
        return None;
    }
    CString::new([b"LD_PRELOAD=", ours, b":", given].concat()).ok()
}

/// # Safety
/// As [`completed`].
pub(super) unsafe fn with_environment<T>(
    from: Environment,
    keeps_directory: bool,
    work: impl FnOnce(Environment) -> T,
) -> T {
    // SAFETY: the caller's promise.
    match unsafe { completed(from, keeps_directory) } {
        Some(given) => work(given.pointers.as_ptr()),
        None => work(from),
    }
}

/// Whether the kernel would start a file, as far as can be seen.
fn may_start(path: &CStr) -> bool {
    // SAFETY: a C string; takes no other memory.
    unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::X_OK) == 0 }
}

/// # Safety
/// `text` is null or a C string.
unsafe fn is(text: *const c_char, what: fn(&CStr) -> bool) -> bool {
    // SAFETY: the caller's promise.
    !text.is_null() && config::get().is_some() && what(unsafe { CStr::from_ptr(text) })
}

/// As [`may_start`], for a name that is looked for in `$PATH`.
fn may_find(file: &CStr) -> bool {
    if file.to_bytes().contains(&b'/') {
        return may_start(file);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut places = path.as_encoded_bytes().split(|&byte| byte == b':');
    places.any(|place| {
        let place = if place.is_empty() { b"." } else { place };
        CString::new([place, file.to_bytes()].join(&b'/')).is_ok_and(|path| may_start(&path))
    })
}

/// Runs `work`, which replaces this program unless it fails. Its sessions end before: they could not
/// be ended in order afterwards. They stay where it is seen that there is nothing to start.
///
/// # Safety
/// As [`completed`].
unsafe fn replacing(
    may_succeed: bool,
    from: Environment,
    work: impl FnOnce(Environment) -> c_int,
) -> c_int {
    if config::get().is_none() || is_serving() {
        return work(from);
    }
    if may_succeed {
        life::leave(false);
    }
    // SAFETY: the caller's promise.
    unsafe { with_environment(from, true, work) }
}

/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn location_is_ours(dir: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && !matches!(unsafe { at(dir, path) }, At::Elsewhere)
}

/// Finds the next function of a name, for calls with other arguments than the program's.
macro_rules! next {
    ($name:literal as $type:ty) => {{
        static NEXT: crate::next::Next = crate::next::Next::new($name);
        let next = NEXT.get();
        if next.is_null() {
            crate::failure::Errno(libc::ENOSYS).set();
            return -1;
        }
        // SAFETY: the C function of that name has this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, $type>(next) }
    }};
}
pub(super) use next;

type Exec = unsafe extern "C" fn(*const c_char, Environment, Environment) -> c_int;
type ExecAt = unsafe extern "C" fn(c_int, *const c_char, Environment, Environment, c_int) -> c_int;
type Fexec = unsafe extern "C" fn(c_int, Environment, Environment) -> c_int;

interpose! {
    fn execve(path: *const c_char, arguments: Environment, environment: Environment) -> c_int, |_pass| {
        let next = next!(c"execve" as Exec);
        programs::by_path(path, || {
            replacing(is(path, may_start), environment, |environment| next(path, arguments, environment))
        })
    }
    fn execvpe(file: *const c_char, arguments: Environment, environment: Environment) -> c_int, |_pass| {
        let next = next!(c"execvpe" as Exec);
        programs::by_name(file, |file| {
            replacing(is(file, may_find), environment, |environment| next(file, arguments, environment))
        })
    }
    fn execv(path: *const c_char, arguments: Environment) -> c_int, |_pass| {
        let next = next!(c"execve" as Exec);
        programs::by_path(path, || {
            replacing(is(path, may_start), environ, |environment| next(path, arguments, environment))
        })
    }
    fn execvp(file: *const c_char, arguments: Environment) -> c_int, |_pass| {
        let next = next!(c"execvpe" as Exec);
        programs::by_name(file, |file| {
            replacing(is(file, may_find), environ, |environment| next(file, arguments, environment))
        })
    }
    fn fexecve(fd: c_int, arguments: Environment, environment: Environment) -> c_int, |_pass| {
        let next = next!(c"fexecve" as Fexec);
        replacing(true, environment, |environment| next(fd, arguments, environment))
    }
    fn execveat(
        dir: c_int,
        path: *const c_char,
        arguments: Environment,
        environment: Environment,
        flags: c_int,
    ) -> c_int, |_pass| {
        let next = next!(c"execveat" as ExecAt);
        let found = location_is_ours(dir, path);
        if found {
            return crate::next::serve(|| Err(Errno(libc::ENOENT)));
        }
        replacing(!path.is_null(), environment, |environment| {
            next(dir, path, arguments, environment, flags)
        })
    }
    // A child that shares our memory must not change what it shares.
    fn vfork() -> pid_t, |_pass| {
        fork()
    }
    fn _exit(status: c_int) -> (), |pass| {
        life::goodbye(status);
        pass()
    }
    fn _Exit(status: c_int) -> (), |pass| {
        life::goodbye(status);
        pass()
    }
    fn quick_exit(status: c_int) -> (), |pass| {
        life::goodbye(status);
        pass()
    }
}
