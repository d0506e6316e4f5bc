//! The `stat` family, in the forms of old and new programs.

use super::{by_descriptor, by_path, bytes, served_file};
use crate::attributes;
use crate::failure::Result;
use crate::next::{interpose, serve};
use crate::table::Description;
use crate::{files, names, session, watch};
use dafs_client::Follow;
use libc::{AT_FDCWD, c_char, c_int, c_uint};

/// # Safety
/// As [`super::give`].
unsafe fn give<T: Copy>(out: *mut T, value: T) -> Result<c_int> {
    // SAFETY: the caller's promise.
    unsafe { super::give(out, value) }.map(|()| 0)
}

fn follow(flags: c_int) -> Follow {
    if flags & libc::AT_SYMLINK_NOFOLLOW == 0 { Follow::Yes } else { Follow::No }
}

/// # Safety
/// As [`give`] and [`bytes`].
unsafe fn by_name(
    path: *const c_char,
    follow: Follow,
    out: *mut libc::stat,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { by_path!(AT_FDCWD, path, pass, |place| give(out, names::stat(&place, follow)?)) }
}

/// # Safety
/// As [`give`].
unsafe fn by_number(fd: c_int, out: *mut libc::stat, pass: impl FnOnce() -> c_int) -> c_int {
    let pass = || {
        watch::asked(fd);
        pass()
    };
    // SAFETY: the caller's promise.
    unsafe { by_descriptor!(fd, pass, |file| give(out, files::stat(&file)?)) }
}

/// The open file that `fstatat` and `statx` ask about, if it is served.
///
/// # Safety
/// As [`bytes`].
unsafe fn itself(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
) -> Option<std::sync::Arc<Description>> {
    // SAFETY: the caller's promise.
    match flags & libc::AT_EMPTY_PATH != 0 && unsafe { bytes(path) }.is_empty() {
        true => served_file(dir),
        false => None,
    }
}

/// # Safety
/// As [`give`] and [`bytes`].
unsafe fn from_directory(
    dir: c_int,
    path: *const c_char,
    out: *mut libc::stat,
    flags: c_int,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(file) = itself(dir, path, flags) {
            return serve(|| give(out, files::stat(&file)?));
        }
        by_path!(dir, path, pass, |place| give(out, names::stat(&place, follow(flags))?))
    }
}

fn space(file: &Description) -> Result<dafs_client::FsStatus> {
    Ok(session::client(file.record.mount)?.fs_status(&file.record.handle)?)
}

interpose! {
    fn [stat, stat64](path: *const c_char, out: *mut libc::stat) -> c_int, |pass| {
        by_name(path, Follow::Yes, out, pass)
    }
    fn [lstat, lstat64](path: *const c_char, out: *mut libc::stat) -> c_int, |pass| {
        by_name(path, Follow::No, out, pass)
    }
    fn [fstat, fstat64](fd: c_int, out: *mut libc::stat) -> c_int, |pass| {
        by_number(fd, out, pass)
    }
    fn [fstatat, fstatat64]
    (dir: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int, |pass| {
        from_directory(dir, path, out, flags, pass)
    }
    fn [__xstat, __xstat64]
    (version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int, |pass| {
        by_name(path, Follow::Yes, out, pass)
    }
    fn [__lxstat, __lxstat64]
    (version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int, |pass| {
        by_name(path, Follow::No, out, pass)
    }
    fn [__fxstat, __fxstat64](version: c_int, fd: c_int, out: *mut libc::stat) -> c_int, |pass| {
        by_number(fd, out, pass)
    }
    fn [__fxstatat, __fxstatat64]
    (version: c_int, dir: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int, |pass| {
        from_directory(dir, path, out, flags, pass)
    }
    fn [statfs, statfs64](path: *const c_char, out: *mut libc::statfs) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| give(out, attributes::statfs(&names::space(&place)?)))
    }
    fn [fstatfs, fstatfs64](fd: c_int, out: *mut libc::statfs) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| give(out, attributes::statfs(&space(&file)?)))
    }
    fn [statvfs, statvfs64](path: *const c_char, out: *mut libc::statvfs) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| give(out, attributes::statvfs(&names::space(&place)?)))
    }
    fn [fstatvfs, fstatvfs64](fd: c_int, out: *mut libc::statvfs) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| give(out, attributes::statvfs(&space(&file)?)))
    }
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int, |pass| {
        match itself(dir, path, flags) {
            Some(file) => serve(|| {
                let client = session::client(file.record.mount)?;
                give(out, attributes::statx(&client.attributes(&file.record.handle)?))
            }),
            None => by_path!(dir, path, pass, |place| {
                give(out, attributes::statx(&names::attributes(&place, follow(flags))?))
            }),
        }
    }
}
