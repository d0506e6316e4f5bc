//! `posix_spawn`, and the actions of a child before its program starts.
//!
//! The C library performs the actions with direct system calls, which see no prefix. An action with
//! a served path is therefore refused when it is added. A path is resolved from the child's
//! directory at that point.

use super::exec::{
    Environment, at_path, in_path, location_is_ours, next, note_start, with_environment,
};
use super::{bytes, exec, programs, served_file};
use crate::failure::Errno;
use crate::limits::SPAWN_PLACES_MAX;
use crate::next::{internal, interpose};
use crate::report;
use libc::{AT_FDCWD, c_char, c_int, mode_t, pid_t, posix_spawn_file_actions_t as Actions};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    Environment,
    Environment,
) -> c_int;

thread_local! {
    /// The directories that children go to, by the address of their actions. Thread-local, so that
    /// a fork finds no lock held: threads do not share incomplete actions.
    static PLACES: RefCell<BTreeMap<usize, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

fn forget(actions: *mut Actions) {
    // The map of an ended thread is gone.
    let _ = PLACES.try_with(|places| places.borrow_mut().remove(&actions.addr()));
}

/// Notes a child's directory; false if there is no room for it.
fn note(actions: *mut Actions, place: Vec<u8>) -> bool {
    let noted = PLACES.try_with(|places| {
        let mut places = places.borrow_mut();
        let has_room = places.len() < SPAWN_PLACES_MAX || places.contains_key(&actions.addr());
        if has_room {
            places.insert(actions.addr(), place);
        }
        has_room
    });
    noted.unwrap_or(false)
}

/// True if a child changes its directory before it starts.
fn is_noted(actions: *const Actions) -> bool {
    PLACES.try_with(|places| places.borrow().contains_key(&actions.addr())).unwrap_or(false)
}

/// A child's path, relative to this process.
///
/// # Safety
/// As [`bytes`].
unsafe fn seen_from_here(actions: *const Actions, path: *const c_char) -> Vec<u8> {
    // SAFETY: the caller's promise.
    let path = unsafe { bytes(path) };
    let place = PLACES.try_with(|places| places.borrow().get(&actions.addr()).cloned());
    match place.ok().flatten().filter(|_| path.first() != Some(&b'/')) {
        Some(place) => [&place, path].join(&b'/'),
        None => path.to_vec(),
    }
}

fn is_ours(path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    // SAFETY: a C string.
    unsafe { location_is_ours(AT_FDCWD, path.as_ptr()) }
}

fn refused(name: &'static str, path: &[u8]) -> c_int {
    report::refused(name, path);
    libc::EOPNOTSUPP
}

/// Lets `pass` add a change of directory to `place`, unless that is served.
fn goes_to(actions: *mut Actions, place: Vec<u8>, pass: impl FnOnce() -> c_int) -> c_int {
    if is_ours(&place) {
        return refused("posix_spawn_file_actions_addchdir_np", &place);
    }
    match pass() {
        0 if note(actions, place) => 0,
        // Later opens from there could not be checked, so the actions are unusable.
        0 => libc::ENOMEM,
        error => error,
    }
}

/// Notes the start of a child by path or by a searched name, unless `error` is set.
///
/// # Safety
/// As [`bytes`].
unsafe fn started(
    error: c_int,
    actions: *const Actions,
    path: *const c_char,
    is_looked_for: bool,
) -> c_int {
    if error != 0 || !exec::is_noted() {
        return error;
    }
    let before = Errno::last();
    // SAFETY: the caller's promise.
    let (text, seen) = unsafe { (bytes(path), seen_from_here(actions, path)) };
    let is_name = is_looked_for && !text.contains(&b'/');
    let program = CString::new(if is_name { text.to_vec() } else { seen }).ok();
    if let Some(program) =
        program.and_then(|path| if is_name { in_path(&path) } else { at_path(&path) })
    {
        note_start(&program);
    }
    before.set();
    error
}

interpose! {
    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: Environment,
        environment: Environment,
    ) -> c_int, |_pass| {
        let next = next!(c"posix_spawn" as Spawn);
        if is_ours(&seen_from_here(actions, path)) {
            return libc::ENOENT;
        }
        let error = with_environment(environment, !is_noted(actions), |environment| {
            next(pid, path, actions, attributes, arguments, environment)
        });
        started(error, actions, path, false)
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
        let is_served = |path: &CStr| {
            CString::new(seen_from_here(actions, path.as_ptr()))
                .is_ok_and(|path| programs::is_served(&path))
        };
        let error = programs::by_name(file, is_served, |file| {
            let error = with_environment(environment, !is_noted(actions), |environment| {
                next(pid, file, actions, attributes, arguments, environment)
            });
            started(error, actions, file, true)
        });
        if error < 0 { Errno::last().0 } else { error }
    }
    fn [posix_spawn_file_actions_init, posix_spawn_file_actions_destroy]
    (actions: *mut Actions) -> c_int, |pass| {
        forget(actions);
        pass()
    }
    fn posix_spawn_file_actions_addopen(
        actions: *mut Actions,
        fd: c_int,
        path: *const c_char,
        flags: c_int,
        mode: mode_t,
    ) -> c_int, |pass| {
        let path = seen_from_here(actions, path);
        match is_ours(&path) {
            true => refused("posix_spawn_file_actions_addopen", &path),
            false => pass(),
        }
    }
    fn posix_spawn_file_actions_addchdir_np(actions: *mut Actions, path: *const c_char) -> c_int, |pass| {
        goes_to(actions, seen_from_here(actions, path), pass)
    }
    fn posix_spawn_file_actions_addfchdir_np(actions: *mut Actions, fd: c_int) -> c_int, |pass| {
        if let Some(directory) = served_file(fd) {
            return refused("posix_spawn_file_actions_addfchdir_np", &directory.record.shown);
        }
        let link = format!("/proc/self/fd/{fd}");
        match internal(|| std::fs::read_link(link)) {
            Ok(place) => goes_to(actions, place.into_os_string().into_encoded_bytes(), pass),
            Err(_) => pass(),
        }
    }
}
