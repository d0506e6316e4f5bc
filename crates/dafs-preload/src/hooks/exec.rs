//! `exec` and exit.
//!
//! A started program gets the variables that make it served, whatever its environment, and the
//! working directory. It recognises its open files by itself. A program that cannot be served is
//! started all the same, and the report says so.

use super::{At, at, programs};
use crate::config;
use crate::failure::Errno;
use crate::life;
use crate::next::{internal, interpose, is_serving};
use crate::{report, table, watch};
use dafs_client::program::{Unserved, User, unserved};
use dafs_client::watch::Total;
use libc::{c_char, c_int, pid_t};
use std::ffi::{CStr, CString, OsStr};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

unsafe extern "C" {
    static environ: *const *const c_char;
    fn fork() -> pid_t;
}

/// True if files are served to this process, or it is watched.
fn is_on() -> bool {
    config::get().is_some() || watch::is_on()
}

/// True if the start of a program that sees no prefix, or is not watched, is noted.
pub(super) fn is_noted() -> bool {
    report::is_wanted() || watch::is_on()
}

/// The end of this library's path.
const LIBRARY: &[u8] = b"/libdafs_preload.so";

pub(super) type Environment = *const *const c_char;

/// An environment for another program.
struct Given {
    /// The strings that the pointers refer to and that this library owns.
    _own: Vec<CString>,
    pointers: Vec<*const c_char>,
}

/// The environment, completed with the missing variables. The program starts in this process's
/// working directory unless `keeps_directory` is false.
///
/// # Safety
/// `from` is null or a list of C strings that ends with null.
unsafe fn completed(from: Environment, keeps_directory: bool) -> Option<Given> {
    let config = config::get();
    let variables = config.map_or(watch::environment(), |config| config.environment.as_slice());
    if variables.is_empty() {
        return None;
    }
    let mut pointers = Vec::new();
    let mut at = from;
    // SAFETY: the caller's promise.
    while !at.is_null() && !unsafe { *at }.is_null() {
        // SAFETY: as above. This library alone sets the variable of the directory.
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
        if let Some(text) = preload(variables, text) {
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
    for (name, value) in variables.iter().filter(|(name, _)| !has(name)) {
        set(name, value);
    }
    let directory = table::working_directory().filter(|_| keeps_directory);
    if let Some(text) = directory.and_then(|directory| directory.write(config?)) {
        set("DAFS_RUN_DIRECTORY", &text);
    }
    pointers.extend(own.iter().map(|text| text.as_ptr()));
    pointers.push(std::ptr::null());
    Some(Given { _own: own, pointers })
}

/// The variable `LD_PRELOAD` with this library in it, if `text` is one without.
fn preload(variables: &[(&str, Vec<u8>)], text: &[u8]) -> Option<CString> {
    let given = text.strip_prefix(b"LD_PRELOAD=")?;
    let (_, ours) = variables.iter().find(|(name, _)| *name == "LD_PRELOAD")?;
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

/// True if the kernel would start a file, as far as this process can see.
fn may_start(path: &CStr) -> bool {
    // SAFETY: a C string; takes no other memory.
    let is_allowed = unsafe {
        libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::X_OK) == 0
    };
    is_allowed && internal(|| leads_to_a_program(Path::new(OsStr::from_bytes(path.to_bytes()))))
}

/// True if a path leads to an executable program. A directory may be executable, too, and so may be
/// a script whose interpreter does not exist.
fn leads_to_a_program(path: &Path) -> bool {
    // The kernel checks set-id bits and capabilities; they do not prevent a start.
    let anybody = User { uid: 0, gid: 0, has_capabilities: |_| false };
    path.is_file()
        && match unserved(path, anybody) {
            Ok(found) => !matches!(found, Some((_, Unserved::Nested))),
            Err((_, error)) => {
                !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
            }
        }
}

/// The file of the program to start, if the kernel would start it.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn program(
    text: *const c_char,
    find: impl FnOnce(&CStr) -> Option<CString>,
) -> Option<CString> {
    if text.is_null() || !is_on() {
        return None;
    }
    // SAFETY: the caller's promise.
    find(unsafe { CStr::from_ptr(text) })
}

pub(super) fn at_path(path: &CStr) -> Option<CString> {
    may_start(path).then(|| path.to_owned())
}

/// As [`at_path`], for a name that is searched in `$PATH`.
pub(super) fn in_path(file: &CStr) -> Option<CString> {
    if file.to_bytes().contains(&b'/') {
        return at_path(file);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut places = path.as_encoded_bytes().split(|&byte| byte == b':');
    places.find_map(|place| {
        let place = if place.is_empty() { b"." } else { place };
        at_path(&CString::new([place, file.to_bytes()].join(&b'/')).ok()?)
    })
}

/// The path of a file that a descriptor, and a path from there if not empty, names.
fn by_descriptor(fd: c_int, path: &CStr) -> Option<CString> {
    let path = path.to_bytes();
    if path.first() == Some(&b'/') || fd == libc::AT_FDCWD {
        return CString::new(path).ok();
    }
    let mut whole = format!("/proc/self/fd/{fd}").into_bytes();
    if !path.is_empty() {
        whole.push(b'/');
        whole.extend_from_slice(path);
    }
    CString::new(whole).ok()
}

/// Notes the start of a program that sees no prefix. A file that cannot be examined is not
/// reported.
pub(super) fn note_start(program: &CStr) {
    if !is_noted() {
        return;
    }
    internal(|| {
        let has_capabilities = |path: &Path| {
            let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
            let (name, none) = (c"security.capability", std::ptr::null_mut());
            // SAFETY: two C strings; nothing is written where there is room for nothing.
            unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), none, 0) > 0 }
        };
        // SAFETY: these take no memory.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let path = Path::new(OsStr::from_bytes(program.to_bytes()));
        let found = unserved(path, User { uid, gid, has_capabilities });
        let Ok(found) = found else { return };
        let Some((path, why)) = found else { return watch::started(Total::Starts) };
        // A descriptor's number means nothing in a report.
        let told = path.starts_with("/proc/self/fd").then(|| path.canonicalize().ok()).flatten();
        let (why, total) = match why {
            Unserved::Static => ("linked statically", Total::Static),
            Unserved::Rights => ("with other rights", Total::Rights),
            Unserved::Foreign => ("for another kind of machine", Total::Foreign),
            // The kernel does not start it.
            Unserved::Nested => return,
        };
        watch::started(total);
        report::started(why, told.unwrap_or(path).as_os_str().as_bytes());
    });
}

/// Runs `work`, which replaces this program unless it fails. It ends the sessions first, because
/// later they could not be ended in order. They stay if there evidently is no program to start.
///
/// # Safety
/// As [`completed`].
unsafe fn replacing(
    program: Option<CString>,
    from: Environment,
    work: impl FnOnce(Environment) -> c_int,
) -> c_int {
    if !is_on() || is_serving() {
        return work(from);
    }
    if let Some(program) = program {
        note_start(&program);
        life::leave(false);
    }
    // SAFETY: the caller's promise.
    unsafe { with_environment(from, true, work) }
}

/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn location_is_ours(dir: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && !matches!(unsafe { at(dir, path) }, At::Local)
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
            replacing(program(path, at_path), environment, |environment| next(path, arguments, environment))
        })
    }
    fn execvpe(file: *const c_char, arguments: Environment, environment: Environment) -> c_int, |_pass| {
        let next = next!(c"execvpe" as Exec);
        programs::by_name(file, programs::is_served, |file| {
            replacing(program(file, in_path), environment, |environment| next(file, arguments, environment))
        })
    }
    fn execv(path: *const c_char, arguments: Environment) -> c_int, |_pass| {
        let next = next!(c"execve" as Exec);
        programs::by_path(path, || {
            replacing(program(path, at_path), environ, |environment| next(path, arguments, environment))
        })
    }
    fn execvp(file: *const c_char, arguments: Environment) -> c_int, |_pass| {
        let next = next!(c"execvpe" as Exec);
        programs::by_name(file, programs::is_served, |file| {
            replacing(program(file, in_path), environ, |environment| next(file, arguments, environment))
        })
    }
    fn fexecve(fd: c_int, arguments: Environment, environment: Environment) -> c_int, |_pass| {
        let next = next!(c"fexecve" as Fexec);
        replacing(by_descriptor(fd, c""), environment, |environment| next(fd, arguments, environment))
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
        let program = program(path, |path| by_descriptor(dir, path));
        replacing(program, environment, |environment| {
            next(dir, path, arguments, environment, flags)
        })
    }
    // A `vfork` child must not change the memory that it shares with its parent, so it is forked.
    fn vfork() -> pid_t, |_pass| {
        fork()
    }
    fn [_exit, _Exit, quick_exit](status: c_int) -> (), |pass| {
        life::goodbye(status);
        pass()
    }
}
