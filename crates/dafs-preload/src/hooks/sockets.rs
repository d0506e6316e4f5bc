//! Calls by which the kernel would use a served path on this machine. Unix sockets, watches and
//! `chroot` are refused. Keys (`ftok`) are made from a file's attributes.

use super::exec::location_is_ours;
use super::{by_path, taken};
use crate::failure::{Errno, Failed};
use crate::limits::VECTORS_MAX;
use crate::next::{interpose, is_serving, serve};
use crate::{config, names, report};
use dafs_client::Follow;
use dafs_mem::{CheckedSlice, Site, VolatileSlice};
use libc::{
    AT_FDCWD, c_char, c_int, c_uint, c_void, key_t, mmsghdr, msghdr, sa_family_t, size_t, sockaddr,
    sockaddr_un, socklen_t, ssize_t,
};
use std::ffi::CStr;

/// A Unix socket's address, with a zero byte behind it.
const ADDRESS_BYTES: usize = size_of::<sockaddr_un>();
type Room = [u8; ADDRESS_BYTES + 1];

/// The path of a Unix socket's address, if it is served. Allocates nothing for other addresses: a
/// signal handler that has interrupted any code may connect.
///
/// # Safety
/// Any memory among `bytes` at `address` stays unchanged.
unsafe fn served_path(
    address: *const sockaddr,
    bytes: socklen_t,
    room: &mut Room,
) -> Option<&CStr> {
    // The sockets of our own sessions are this machine's. A connected socket sends without an
    // address.
    if address.is_null() || config::get().is_none() || is_serving() {
        return None;
    }
    let count = (bytes as usize).min(ADDRESS_BYTES);
    if count < size_of::<sa_family_t>() {
        return None;
    }
    // SAFETY: the caller's promise; any two bytes are a family.
    let family: sa_family_t = unsafe { taken(address.cast()) }.ok()?;
    if c_int::from(family) != libc::AF_UNIX {
        return None;
    }
    // SAFETY: the caller's promise.
    let address = unsafe { CheckedSlice::callers(address.cast_mut().cast(), count) };
    let own = VolatileSlice::from_mut(&mut room[..count]);
    address.copy_to(own, Site::ClientStaging).ok()?;
    let path = &room[std::mem::offset_of!(sockaddr_un, sun_path)..];
    let path = CStr::from_bytes_until_nul(path).ok().filter(|path| !path.is_empty())?;
    // SAFETY: a C string.
    unsafe { location_is_ours(AT_FDCWD, path.as_ptr()) }.then_some(path)
}

/// Refuses a call with the address of a Unix socket at a served path.
///
/// # Safety
/// As [`served_path`].
unsafe fn refused<T: Failed>(
    name: &'static str,
    address: *const sockaddr,
    bytes: socklen_t,
) -> Option<T> {
    let mut room: Room = [0; ADDRESS_BYTES + 1];
    // SAFETY: the caller's promise.
    let path = unsafe { served_path(address, bytes, &mut room) }?;
    report::refused(name, path.to_bytes());
    Some(serve(|| Err(Errno(libc::EOPNOTSUPP))))
}

/// As [`refused`], for the address of a message.
///
/// # Safety
/// Any memory at `message`, and where that points to, stays unchanged.
unsafe fn refused_message<T: Failed>(name: &'static str, message: *const msghdr) -> Option<T> {
    if config::get().is_none() || is_serving() {
        return None;
    }
    // SAFETY: the caller's promise; any bytes are such a structure. The kernel reports a bad
    // address.
    unsafe {
        let message = taken(message).ok()?;
        refused(name, message.msg_name.cast(), message.msg_namelen)
    }
}

interpose! {
    fn sendto(
        socket: c_int,
        from: *const c_void,
        count: size_t,
        flags: c_int,
        address: *const sockaddr,
        bytes: socklen_t,
    ) -> ssize_t, |pass| {
        refused("sendto", address, bytes).unwrap_or_else(pass)
    }
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t, |pass| {
        refused_message("sendmsg", message).unwrap_or_else(pass)
    }
    fn sendmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, |pass| {
        // If one message cannot be sent, none is.
        let count = (count as usize).min(VECTORS_MAX);
        let message = |at| messages.wrapping_add(at).cast::<msghdr>();
        let mut all = (0..count).map(message);
        all.find_map(|message| refused_message("sendmmsg", message)).unwrap_or_else(pass)
    }
    fn bind(socket: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int, |pass| {
        refused("bind", address, bytes).unwrap_or_else(pass)
    }
    fn connect(socket: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int, |pass| {
        refused("connect", address, bytes).unwrap_or_else(pass)
    }
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| {
            report::refused("inotify_add_watch", &place.shown);
            Err(Errno(libc::EOPNOTSUPP))
        })
    }
    fn ftok(path: *const c_char, id: c_int) -> key_t, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| {
            let found = names::stat(&place, Follow::Yes)?;
            Ok((found.st_ino & 0xffff | (found.st_dev & 0xff) << 16 | (id as u64 & 0xff) << 24) as key_t)
        })
    }
    fn chroot(path: *const c_char) -> c_int, |pass| {
        by_path!(AT_FDCWD, path, pass, |place| {
            report::refused("chroot", &place.shown);
            Err(Errno(libc::EOPNOTSUPP))
        })
    }
}
