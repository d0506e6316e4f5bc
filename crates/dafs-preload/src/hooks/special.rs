//! Special files and extended attributes, which are not served: the errors of calls for them.

use super::{by_descriptor, by_path};
use crate::failure::{Errno, Result};
use crate::location::Location;
use crate::next::interpose;
use crate::{names, report};
use libc::{AT_FDCWD, c_char, c_int, mode_t, size_t, ssize_t};

/// `mknod` and `mkfifo`: only regular files are served.
fn make_node(name: &'static str, place: &Location, mode: mode_t) -> Result<c_int> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => names::make_file(place, mode).map(|()| 0),
        libc::S_IFCHR | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFSOCK => {
            let error = names::cannot_make(place)?;
            report::refused(name, &place.shown);
            Err(error)
        }
        libc::S_IFDIR => Err(Errno(libc::EPERM)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// The error for extended attributes, which are not served.
pub(super) fn unsupported<T>(name: &'static str, path: &[u8]) -> Result<T> {
    report::refused(name, path);
    Err(Errno(libc::EOPNOTSUPP))
}

interpose! {
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| make_node("mkfifo", &place, libc::S_IFIFO | mode))
    }
    fn mkfifoat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int, |pass| {
        by_path!(dir, path, pass, |place| make_node("mkfifoat", &place, libc::S_IFIFO | mode))
    }
    fn mknod(path: *const c_char, mode: mode_t, device: libc::dev_t) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| make_node("mknod", &place, mode))
    }
    fn mknodat(dir: c_int, path: *const c_char, mode: mode_t, device: libc::dev_t) -> c_int, |pass| {
        by_path!(dir, path, pass, |place| make_node("mknodat", &place, mode))
    }
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut libc::c_void, room: size_t) -> ssize_t, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| unsupported("getxattr", &place.shown))
    }
    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut libc::c_void, room: size_t) -> ssize_t, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| unsupported("lgetxattr", &place.shown))
    }
    fn listxattr(path: *const c_char, list: *mut c_char, room: size_t) -> ssize_t, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| unsupported("listxattr", &place.shown))
    }
    fn llistxattr(path: *const c_char, list: *mut c_char, room: size_t) -> ssize_t, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| unsupported("llistxattr", &place.shown))
    }
    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut libc::c_void, room: size_t) -> ssize_t, |pass| {
        by_descriptor!(fd, pass, |file| unsupported("fgetxattr", &file.record.shown))
    }
    fn flistxattr(fd: c_int, list: *mut c_char, room: size_t) -> ssize_t, |pass| {
        by_descriptor!(fd, pass, |file| unsupported("flistxattr", &file.record.shown))
    }
    fn setxattr(path: *const c_char, name: *const c_char, value: *const libc::c_void, count: size_t, flags: c_int) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| unsupported("setxattr", &place.shown))
    }
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const libc::c_void, count: size_t, flags: c_int) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| unsupported("lsetxattr", &place.shown))
    }
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const libc::c_void, count: size_t, flags: c_int) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| unsupported("fsetxattr", &file.record.shown))
    }
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| unsupported("removexattr", &place.shown))
    }
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| unsupported("lremovexattr", &place.shown))
    }
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int, |pass| {
        by_descriptor!(fd, pass, |file| unsupported("fremovexattr", &file.record.shown))
    }
}
