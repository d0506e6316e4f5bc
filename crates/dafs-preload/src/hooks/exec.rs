//! Starting programs, and ending.
//!
//! What is started gets the variables that have it served, whatever environment it is given, and is
//! told the working directory. Its open files it finds by itself.

use crate::config;
use crate::life;
use crate::next::{interpose, is_serving};
use crate::table;
use libc::{c_char, c_int, pid_t};
use std::ffi::{CStr, CString};

unsafe extern "C" {
    static environ: *const *const c_char;
    fn fork() -> pid_t;
}

type Environment = *const *const c_char;

/// An environment for another program.
struct Given {
    /// What the pointers point to that is not the program's.
    _own: Vec<CString>,
    pointers: Vec<*const c_char>,
}

/// The environment with what is missing in it.
///
/// # Safety
/// `from` is null or a list of C strings that ends with null.
unsafe fn completed(from: Environment) -> Option<Given> {
    let config = config::get()?;
    let mut pointers = Vec::new();
    let mut at = from;
    // SAFETY: the caller's promise.
    while !at.is_null() && !unsafe { *at }.is_null() {
        // SAFETY: as above.
        unsafe {
            pointers.push(*at);
            at = at.add(1);
        }
    }
    let has = |name: &str| {
        pointers.iter().any(|&text| {
            // SAFETY: the caller's promise.
            let text = unsafe { CStr::from_ptr(text) }.to_bytes();
            text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
        })
    };
    let mut own = Vec::new();
    let mut set = |name: &str, value: &[u8]| {
        let mut text = format!("{name}=").into_bytes();
        text.extend_from_slice(value);
        own.extend(CString::new(text));
    };
    for (name, value) in config.environment.iter().filter(|(name, _)| !has(name)) {
        set(name, value);
    }
    if let Some(directory) = table::working_directory() {
        set("DAFS_RUN_DIRECTORY", &directory);
    }
    pointers.extend(own.iter().map(|text| text.as_ptr()));
    pointers.push(std::ptr::null());
    Some(Given { _own: own, pointers })
}

/// # Safety
/// As [`completed`].
unsafe fn with_environment<T>(from: Environment, work: impl FnOnce(Environment) -> T) -> T {
    // SAFETY: the caller's promise.
    match unsafe { completed(from) } {
        Some(given) => work(given.pointers.as_ptr()),
        None => work(from),
    }
}

/// Runs `work`, which replaces this program unless it fails. Its sessions end before: they could not
/// be ended in order afterwards.
///
/// # Safety
/// As [`completed`].
unsafe fn replacing(from: Environment, work: impl FnOnce(Environment) -> c_int) -> c_int {
    if config::get().is_none() || is_serving() {
        return work(from);
    }
    life::leave(false);
    // SAFETY: the caller's promise.
    unsafe { with_environment(from, work) }
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

type Exec = unsafe extern "C" fn(*const c_char, Environment, Environment) -> c_int;
type Fexec = unsafe extern "C" fn(c_int, Environment, Environment) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    Environment,
    Environment,
) -> c_int;

interpose! {
    fn execve(path: *const c_char, arguments: Environment, environment: Environment) -> c_int, |_pass| {
        let next = next!(c"execve" as Exec);
        replacing(environment, |environment| next(path, arguments, environment))
    }
    fn execvpe(file: *const c_char, arguments: Environment, environment: Environment) -> c_int, |_pass| {
        let next = next!(c"execvpe" as Exec);
        replacing(environment, |environment| next(file, arguments, environment))
    }
    fn execv(path: *const c_char, arguments: Environment) -> c_int, |_pass| {
        let next = next!(c"execve" as Exec);
        replacing(environ, |environment| next(path, arguments, environment))
    }
    fn execvp(file: *const c_char, arguments: Environment) -> c_int, |_pass| {
        let next = next!(c"execvpe" as Exec);
        replacing(environ, |environment| next(file, arguments, environment))
    }
    fn fexecve(fd: c_int, arguments: Environment, environment: Environment) -> c_int, |_pass| {
        let next = next!(c"fexecve" as Fexec);
        replacing(environment, |environment| next(fd, arguments, environment))
    }
    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Environment,
        environment: Environment,
    ) -> c_int, |_pass| {
        let next = next!(c"posix_spawn" as Spawn);
        with_environment(environment, |environment| {
            next(pid, path, actions, attributes, arguments, environment)
        })
    }
    fn posix_spawnp(
        pid: *mut pid_t,
        file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Environment,
        environment: Environment,
    ) -> c_int, |_pass| {
        let next = next!(c"posix_spawnp" as Spawn);
        with_environment(environment, |environment| {
            next(pid, file, actions, attributes, arguments, environment)
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
}
