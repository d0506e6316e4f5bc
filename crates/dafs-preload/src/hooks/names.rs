//! Names: making, removing, renaming, linking, permissions, times, and the working directory.

use super::io::check;
use super::special::unsupported;
use super::{At, at, by_descriptor, by_path, bytes, give_bytes, named_descriptor, served_file};
use crate::config;
use crate::descriptor::{Kind, Record};
use crate::failure::{Errno, Result};
use crate::limits::PATH_BYTES_MAX;
use crate::location::{self, Location};
use crate::next::{interpose, serve};
use crate::table::Description;
use crate::{names, session, table};
use dafs_client::{AccessMask, Follow, SetAttributes, Status};
use libc::{
    AT_FDCWD, c_char, c_int, c_uint, gid_t, mode_t, size_t, ssize_t, timespec, timeval, uid_t,
    utimbuf,
};
use std::ffi::{CStr, CString};

/// The variable in which started programs find their working directory.
pub(super) const DIRECTORY: &CStr = c"DAFS_RUN_DIRECTORY";

fn follow(flags: c_int) -> Follow {
    if flags & libc::AT_SYMLINK_NOFOLLOW == 0 { Follow::Yes } else { Follow::No }
}

/// Serves a call with two places if either is served. A served and an unserved place are on
/// different devices.
///
/// # Safety
/// As [`bytes`] for both.
unsafe fn pair(
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    pass: impl FnOnce() -> c_int,
    work: impl FnOnce(&Location, &Location) -> Result<()>,
) -> c_int {
    // SAFETY: the caller's promise.
    let is_empty = unsafe { bytes(from).is_empty() || bytes(to).is_empty() };
    // SAFETY: the caller's promise.
    match unsafe { (at(from_dir, from), at(to_dir, to)) } {
        (At::Local, At::Local) => pass(),
        // An empty path does not exist.
        (At::Served(_), At::Local) | (At::Local, At::Served(_)) if is_empty => {
            serve(|| Err(Errno(libc::ENOENT)))
        }
        (At::Served(from), At::Served(to)) => serve(|| work(&from, &to).map(|()| 0)),
        (At::Invalid(errno), _) | (_, At::Invalid(errno)) => serve(|| Err(errno)),
        _ => serve(|| Err(Errno(libc::EXDEV))),
    }
}

/// `linkat`, which can also name an open file.
///
/// # Safety
/// As [`bytes`] for both.
unsafe fn link_either(
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    flags: c_int,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let text = unsafe { bytes(from) };
    let open = match text.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
        true => served_file(from_dir),
        false => named_descriptor(text).filter(|_| flags & libc::AT_SYMLINK_FOLLOW != 0),
    };
    let Some(open) = open else {
        let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { Follow::Yes } else { Follow::No };
        // SAFETY: the caller's promise.
        return unsafe {
            pair((from_dir, from), (to_dir, to), pass, |from, to| names::link(from, to, follow))
        };
    };
    // SAFETY: the caller's promise.
    match unsafe { at(to_dir, to) } {
        At::Served(to) if session::number(to.mount) == open.record.mount => serve(|| {
            let client = session::client(open.record.mount)?;
            let is_directory = open.record.kind == Kind::Directory;
            names::link_found(&client, &open.record.handle, is_directory, &to).map(|()| 0)
        }),
        At::Invalid(errno) => serve(|| Err(errno)),
        _ => serve(|| Err(Errno(libc::EXDEV))),
    }
}

/// # Safety
/// As [`give_bytes`], for `room` bytes.
unsafe fn read_link(place: &Location, to: *mut c_char, room: size_t) -> Result<ssize_t> {
    // SAFETY: the caller's promise.
    unsafe { give_text(names::read_link(place)?, to, room) }
}

/// `readlinkat` of an open symbolic link itself.
///
/// # Safety
/// As [`read_link`].
unsafe fn read_open_link(file: &Description, to: *mut c_char, room: size_t) -> Result<ssize_t> {
    let client = session::client(file.record.mount)?;
    // The kernel's error for objects other than links.
    let none = Errno(libc::ENOENT);
    if file.record.kind != Kind::Place || !client.attributes(&file.record.handle)?.is_symlink() {
        return Err(none);
    }
    // SAFETY: the caller's promise.
    unsafe { give_text(client.readlink(&file.record.handle)?, to, room) }
}

/// # Safety
/// As [`give_bytes`], for `room` bytes.
unsafe fn give_text(mut text: Vec<u8>, to: *mut c_char, room: size_t) -> Result<ssize_t> {
    if room == 0 {
        return Err(Errno(libc::EINVAL));
    }
    text.truncate(room);
    // SAFETY: the caller's promise.
    unsafe { give_bytes(to, &mut text)? };
    Ok(text.len() as ssize_t)
}

/// # Safety
/// As [`bytes`] and [`give_bytes`].
unsafe fn read_link_at(
    dir: c_int,
    path: *const c_char,
    to: *mut c_char,
    room: size_t,
    pass: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match bytes(path).is_empty() {
            true => by_descriptor!(dir, pass, |file| read_open_link(&file, to, room)),
            false => by_path!(dir, path, pass, |place| read_link(&place, to, room)),
        }
    }
}

fn change_open(file: &Description, change: &SetAttributes) -> Result<c_int> {
    let client = session::client(file.record.mount)?;
    client.set_attributes(&file.record.handle, change)?;
    Ok(0)
}

fn access_open(file: &Description, mode: c_int) -> Result<c_int> {
    let client = session::client(file.record.mount)?;
    let is_directory = file.record.kind == Kind::Directory;
    names::access_found(&client, &file.record.handle, is_directory, mode).map(|()| 0)
}

fn own_open(file: &Description, owners: &SetAttributes) -> Result<c_int> {
    names::own(&session::client(file.record.mount)?, &file.record.handle, owners).map(|()| 0)
}

fn own(place: &Location, follow: Follow, owners: &SetAttributes) -> Result<c_int> {
    let (client, found) = names::find(place, follow)?;
    names::own(&client, &found.handle, owners).map(|()| 0)
}

fn change(place: &Location, follow: Follow, change: &SetAttributes) -> Result<c_int> {
    names::change(place, follow, change).map(|()| 0)
}

/// # Safety
/// `times` is null or two such structures.
unsafe fn times(times: *const timespec) -> Result<SetAttributes> {
    // SAFETY: the caller's promise.
    names::times((!times.is_null()).then(|| unsafe { [*times, *times.add(1)] }))
}

/// # Safety
/// `times` is null or two such structures.
unsafe fn old_times(times: *const timeval) -> Result<SetAttributes> {
    let one = |time: timeval| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 };
    // SAFETY: the caller's promise.
    names::times((!times.is_null()).then(|| unsafe { [one(*times), one(*times.add(1))] }))
}

/// Makes a place the working directory.
fn enter(place: &Location) -> Result<c_int> {
    let names::Real { client, attributes, shown } = names::real(place)?;
    if !attributes.is_directory() {
        return Err(Errno(libc::ENOTDIR));
    }
    let handle = attributes.handle;
    if !client.access(&handle, AccessMask::LOOKUP)?.contains(AccessMask::LOOKUP) {
        return Err(Errno(libc::EACCES));
    }
    let (mount, kind, flags) = (session::number(place.mount), Kind::Directory, libc::O_RDONLY);
    go(Record { mount, kind, handle, flags, shown })?;
    Ok(0)
}

/// The record of an open directory, under its real path if it was opened through links.
fn by_own_name(opened: &Record) -> Record {
    let place = location::find(AT_FDCWD, &opened.shown);
    let real = place.ok().flatten().and_then(|place| names::real(&place).ok());
    let real = real.filter(|real| real.attributes.handle == opened.handle);
    match real {
        Some(names::Real { shown, .. }) => Record { shown, ..opened.clone() },
        None => opened.clone(),
    }
}

/// Moves the kernel's working directory to a removed directory: a relative path that bypasses this
/// library finds nothing there. Started programs find the directory in the environment.
fn go(to: Record) -> Result<()> {
    let config = config::get().ok_or(Errno(libc::EIO))?;
    let text = to.write(config).and_then(|text| CString::new(text).ok());
    let text = text.ok_or(Errno(libc::ENAMETOOLONG))?;
    let nowhere = new_directory(&temporary_places())?;
    // SAFETY: C strings; the directory is new, empty and ours.
    unsafe {
        let gone = libc::syscall(libc::SYS_chdir, nowhere.as_ptr());
        let errno = Errno::last();
        libc::rmdir(nowhere.as_ptr().cast());
        if gone != 0 {
            return Err(errno);
        }
        libc::setenv(DIRECTORY.as_ptr(), text.as_ptr(), 1);
    }
    table::set_working_directory(Some(to));
    Ok(())
}

/// Places for a temporary directory: `/tmp` is not writable everywhere.
fn temporary_places() -> Vec<Vec<u8>> {
    let wanted = std::env::var_os("TMPDIR").map(|place| place.into_encoded_bytes());
    let others = [&b"/tmp"[..], b"/dev/shm", b"/var/tmp"].map(<[u8]>::to_vec);
    wanted.into_iter().chain(others).filter(|place| place.starts_with(b"/")).collect()
}

/// Makes an empty directory in the first of the places that allows it.
fn new_directory(places: &[Vec<u8>]) -> Result<CString> {
    let mut failure = Errno(libc::ENOENT);
    for place in places {
        let Ok(path) = CString::new([place, &b"/dafs-run-XXXXXX"[..]].concat()) else { continue };
        let path = path.into_raw();
        // SAFETY: a C string that may be written, which keeps its length.
        let (made, path) = unsafe { (!libc::mkdtemp(path).is_null(), CString::from_raw(path)) };
        if made {
            return Ok(path);
        }
        failure = Errno::last();
    }
    Err(failure)
}

fn left(done: c_int) -> c_int {
    if done == 0 && table::working_directory().is_some() {
        table::set_working_directory(None);
        // SAFETY: a C string.
        unsafe { libc::unsetenv(DIRECTORY.as_ptr()) };
    }
    done
}

/// The path of a working directory, unless it has been removed.
fn still_there(directory: &Record) -> Result<&[u8]> {
    // A server that is unreachable, or that this program has not used so far, is not waited for.
    let Some(client) = session::connected(directory.mount) else { return Ok(&directory.shown) };
    match client.attributes(&directory.handle) {
        Err(error) if error.status() == Some(Status::Stale) => Err(Errno(libc::ENOENT)),
        _ => Ok(&directory.shown),
    }
}

/// Returns a path to a program: in `to`, or in allocated memory.
///
/// # Safety
/// `to` is null, or as [`give_bytes`] for `room` bytes.
unsafe fn give_path(path: &[u8], to: *mut c_char, room: size_t) -> Result<*mut c_char> {
    let mut target = to;
    if to.is_null() {
        let bytes = if room == 0 { path.len() + 1 } else { room };
        if bytes <= path.len() {
            return Err(Errno(libc::ERANGE));
        }
        // SAFETY: takes no memory.
        target = unsafe { libc::malloc(bytes) }.cast();
        if target.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
    } else if room <= path.len() {
        return Err(Errno(if room == 0 { libc::EINVAL } else { libc::ERANGE }));
    }
    // SAFETY: there is room for the path and a zero byte, or the caller's promise.
    unsafe { give_bytes(target, &mut [path, b"\0"].concat())? };
    Ok(target)
}

/// Returns a path for `getwd`, whose buffer has room for the longest path.
///
/// # Safety
/// `to` is null or has that room.
unsafe fn give_where_it_fits(path: &[u8], to: *mut c_char) -> Result<*mut c_char> {
    if to.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    if path.len() >= PATH_BYTES_MAX {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    // SAFETY: the caller's promise.
    unsafe { give_path(path, to, PATH_BYTES_MAX) }
}

/// # Safety
/// As [`give`] and [`bytes`].
unsafe fn real_path(
    path: *const c_char,
    to: *mut c_char,
    pass: impl FnOnce() -> *mut c_char,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe {
        by_path!(AT_FDCWD, path, pass, |place| {
            let names::Real { shown, .. } = names::real(&place)?;
            let room = if to.is_null() { 0 } else { libc::PATH_MAX as usize };
            give_path(&shown, to, room)
        })
    }
}

interpose! {
    fn [access, euidaccess, eaccess](path: *const c_char, mode: c_int) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| names::access(&place, mode, Follow::Yes).map(|()| 0))
    }
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, |pass| {
        if flags & libc::AT_EMPTY_PATH != 0 && bytes(path).is_empty() {
            return by_descriptor!(dir, pass, |file| access_open(&file, mode));
        }
        by_path!(dir, path, pass, |place| names::access(&place, mode, follow(flags)).map(|()| 0))
    }
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| names::make_directory(&place, mode).map(|()| 0))
    }
    fn mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int, |pass| {
        by_path!(dir, path, pass, |place| names::make_directory(&place, mode).map(|()| 0))
    }
    fn rmdir(path: *const c_char) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| names::remove(&place, true).map(|()| 0))
    }
    fn unlink(path: *const c_char) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| names::remove(&place, false).map(|()| 0))
    }
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int, |pass| {
        by_path!(dir, path, pass, |place| {
            names::remove(&place, flags & libc::AT_REMOVEDIR != 0).map(|()| 0)
        })
    }
    fn remove(path: *const c_char) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| {
            match names::remove(&place, false) {
                Err(Errno(libc::EISDIR)) => names::remove(&place, true).map(|()| 0),
                other => other.map(|()| 0),
            }
        })
    }
    fn rename(from: *const c_char, to: *const c_char) -> c_int, |pass| {
        pair((AT_FDCWD, from), (AT_FDCWD, to), pass, |from, to| names::rename(from, to, 0))
    }
    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int, |pass| {
        pair((from_dir, from), (to_dir, to), pass, |from, to| names::rename(from, to, 0))
    }
    fn renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int, |pass| {
        pair((from_dir, from), (to_dir, to), pass, |from, to| names::rename(from, to, flags))
    }
    fn link(from: *const c_char, to: *const c_char) -> c_int, |pass| {
        link_either((AT_FDCWD, from), (AT_FDCWD, to), 0, pass)
    }
    fn linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int, |pass| {
        link_either((from_dir, from), (to_dir, to), flags, pass)
    }
    fn symlink(text: *const c_char, path: *const c_char) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| names::symlink(bytes(text), &place).map(|()| 0))
    }
    fn symlinkat(text: *const c_char, dir: c_int, path: *const c_char) -> c_int, |pass| {
        by_path!(dir, path, pass, |place| names::symlink(bytes(text), &place).map(|()| 0))
    }
    fn readlink(path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| read_link(&place, to, room))
    }
    fn __readlink_chk(path: *const c_char, to: *mut c_char, asked: size_t, room: size_t) -> ssize_t, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| {
            check(asked, room);
            read_link(&place, to, asked)
        })
    }
    fn readlinkat(dir: c_int, path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t, |pass| {
        read_link_at(dir, path, to, room, pass)
    }
    fn __readlinkat_chk(dir: c_int, path: *const c_char, to: *mut c_char, asked: size_t, room: size_t) -> ssize_t, |pass| {
        check(asked, room);
        read_link_at(dir, path, to, asked, pass)
    }

    fn chmod(path: *const c_char, mode: mode_t) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| change(&place, Follow::Yes, &SetAttributes::mode(mode & 0o7777)))
    }
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| {
            if names::attributes(&place, Follow::No)?.is_symlink() {
                return unsupported("lchmod", &place.shown);
            }
            change(&place, Follow::No, &SetAttributes::mode(mode & 0o7777))
        })
    }
    fn fchmod(fd: c_int, mode: mode_t) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| change_open(&file, &SetAttributes::mode(mode & 0o7777)))
    }
    fn fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int, |pass| {
        by_path!(dir, path, pass, |place| match follow(flags) {
            // A link has no permissions of its own; Linux returns the same error.
            Follow::No if names::attributes(&place, Follow::No)?.is_symlink() => {
                unsupported("fchmodat", &place.shown)
            }
            follow => change(&place, follow, &SetAttributes::mode(mode & 0o7777)),
        })
    }
    fn chown(path: *const c_char, owner: uid_t, group: gid_t) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| own(&place, Follow::Yes, &names::owners(owner, group)))
    }
    fn lchown(path: *const c_char, owner: uid_t, group: gid_t) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| own(&place, Follow::No, &names::owners(owner, group)))
    }
    fn fchown(fd: c_int, owner: uid_t, group: gid_t) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| own_open(&file, &names::owners(owner, group)))
    }
    fn fchownat(dir: c_int, path: *const c_char, owner: uid_t, group: gid_t, flags: c_int) -> c_int, |pass| {
        if flags & libc::AT_EMPTY_PATH != 0 && bytes(path).is_empty() {
            by_descriptor!(dir, pass, |file| own_open(&file, &names::owners(owner, group)))
        } else {
            by_path!(dir, path, pass, |place| own(&place, follow(flags), &names::owners(owner, group)))
        }
    }
    fn utimensat(dir: c_int, path: *const c_char, when: *const timespec, flags: c_int) -> c_int, |pass| {
        if path.is_null() {
            by_descriptor!(dir, pass, |file| change_open(&file, &times(when)?))
        } else {
            by_path!(dir, path, pass, |place| change(&place, follow(flags), &times(when)?))
        }
    }
    fn futimens(fd: c_int, when: *const timespec) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| change_open(&file, &times(when)?))
    }
    fn utimes(path: *const c_char, when: *const timeval) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| change(&place, Follow::Yes, &old_times(when)?))
    }
    fn lutimes(path: *const c_char, when: *const timeval) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| change(&place, Follow::No, &old_times(when)?))
    }
    fn futimesat(dir: c_int, path: *const c_char, when: *const timeval) -> c_int, |pass| {
        by_path!(dir, path, pass, |place| change(&place, Follow::Yes, &old_times(when)?))
    }
    fn futimes(fd: c_int, when: *const timeval) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| change_open(&file, &old_times(when)?))
    }
    fn utime(path: *const c_char, when: *const utimbuf) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| {
            let one = |tv_sec| timespec { tv_sec, tv_nsec: 0 };
            let when = when.as_ref().map(|when| [one(when.actime), one(when.modtime)]);
            change(&place, Follow::Yes, &names::times(when)?)
        })
    }
    fn umask(mask: mode_t) -> mode_t, |pass| {
        names::set_mask(mask);
        pass()
    }

    fn chdir(path: *const c_char) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, || left(pass()), |place| enter(&place))
    }
    fn fchdir(fd: c_int) -> c_int, |pass| {
        by_descriptor!(fd, || left(pass()), |file| {
            if file.record.kind != Kind::Directory {
                return Err(Errno(libc::ENOTDIR));
            }
            go(by_own_name(&file.record)).map(|()| 0)
        })
    }
    fn getcwd(to: *mut c_char, room: size_t) -> *mut c_char, |pass| {
        match table::working_directory() {
            Some(directory) => serve(|| give_path(still_there(&directory)?, to, room)),
            None => pass(),
        }
    }
    fn __getcwd_chk(to: *mut c_char, asked: size_t, room: size_t) -> *mut c_char, |pass| {
        match table::working_directory() {
            Some(directory) => {
                check(asked, room);
                serve(|| give_path(still_there(&directory)?, to, asked))
            }
            None => pass(),
        }
    }
    fn getwd(to: *mut c_char) -> *mut c_char, |pass| {
        match table::working_directory() {
            Some(directory) => serve(|| give_where_it_fits(still_there(&directory)?, to)),
            None => pass(),
        }
    }
    fn __getwd_chk(to: *mut c_char, room: size_t) -> *mut c_char, |pass| {
        match table::working_directory() {
            Some(directory) => {
                check(directory.shown.len() + 1, room);
                serve(|| give_where_it_fits(still_there(&directory)?, to))
            }
            None => pass(),
        }
    }
    fn get_current_dir_name() -> *mut c_char, |pass| {
        match table::working_directory() {
            Some(directory) => serve(|| give_path(still_there(&directory)?, std::ptr::null_mut(), 0)),
            None => pass(),
        }
    }
    fn daemon(stay: c_int, keep: c_int) -> c_int, |pass| {
        let done = pass();
        if stay == 0 { left(done) } else { done }
    }
    fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char, |pass| {
        real_path(path, to, pass)
    }
    fn __realpath_chk(path: *const c_char, to: *mut c_char, room: size_t) -> *mut c_char, |pass| {
        check(libc::PATH_MAX as size_t, room);
        real_path(path, to, pass)
    }
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char, |pass| {
        real_path(path, std::ptr::null_mut(), pass)
    }
    fn pathconf(path: *const c_char, name: c_int) -> libc::c_long, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| names::find(&place, Follow::Yes).map(|_| limit(name)))
    }
    fn fpathconf(fd: c_int, name: c_int) -> libc::c_long, |pass| {
        by_descriptor!(fd, pass, |_file| Ok(limit(name)))
    }
}

/// The result of `pathconf`; -1 for no limit.
fn limit(name: c_int) -> libc::c_long {
    match name {
        libc::_PC_NAME_MAX => 255,
        libc::_PC_PATH_MAX => libc::PATH_MAX.into(),
        libc::_PC_LINK_MAX => 32000,
        libc::_PC_NO_TRUNC | libc::_PC_CHOWN_RESTRICTED => 1,
        libc::_PC_FILESIZEBITS => 64,
        libc::_PC_PIPE_BUF => 4096,
        libc::_PC_2_SYMLINKS => 1,
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_directory_is_made_where_it_can_be() {
        let here = std::env::temp_dir().into_os_string().into_encoded_bytes();
        let made =
            new_directory(&[b"/dev/null".to_vec(), b"/none".to_vec(), here.clone()]).unwrap();
        assert!(made.to_bytes().starts_with(&here));
        std::fs::remove_dir(OsStr::from_bytes(made.to_bytes())).unwrap();
        assert_eq!(new_directory(&[b"/dev/null".to_vec()]), Err(Errno(libc::ENOTDIR)));
    }
}
