//! Operations on names.

use crate::attributes::{dap_attributes_t, dap_fs_status_t, dap_set_attributes_t};
use crate::boundary::{call, call_plainly};
use crate::error::{DAP_E_SHORT, Failure, invalid};
use crate::file::stability;
use crate::handle::dap_session_t;
use crate::limits::WHOLE_FILE_BYTES_MAX;
use crate::pointer::{Out, array, check_write, text};
use crate::session::session;
use crate::transfer::{copy_in, copy_out};
use dafs_client::{AccessMask, Follow, SetAttributes};
use std::ffi::{c_char, c_void};

/// The symbolic link itself, not its target.
pub const DAP_NO_FOLLOW: u32 = 1;

/// May read, or list.
pub const DAP_ACCESS_READ: u32 = 0x01;
/// May look up names.
pub const DAP_ACCESS_LOOKUP: u32 = 0x02;
/// May overwrite, or change entries.
pub const DAP_ACCESS_MODIFY: u32 = 0x04;
/// May lengthen, or add entries.
pub const DAP_ACCESS_EXTEND: u32 = 0x08;
/// May delete entries.
pub const DAP_ACCESS_DELETE: u32 = 0x10;
/// May execute.
pub const DAP_ACCESS_EXECUTE: u32 = 0x20;

pub(crate) fn follow(flags: u32) -> Result<Follow, Failure> {
    match flags {
        0 => Ok(Follow::Yes),
        DAP_NO_FOLLOW => Ok(Follow::No),
        _ => Err(invalid("there is no such flag")),
    }
}

/// The attributes of the object at a path. `flags`: 0 or DAP_NO_FOLLOW.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `attributes` null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_stat(
    handle: dap_session_t,
    path: *const c_char,
    flags: u32,
    attributes: *mut dap_attributes_t,
) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let (out, (from, path)) = unsafe { (Out::new(attributes)?, session.path(path)?) };
        let found = session.client.resolve_from(&from, path, follow(flags)?)?;
        out.set((&found.attributes).into());
        Ok(())
    })
}

/// Changes attributes of the object at a path. `flags`: 0 or DAP_NO_FOLLOW. If it fails, some may
/// have been changed.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `change` null or one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_set_attributes(
    handle: dap_session_t,
    path: *const c_char,
    flags: u32,
    change: *const dap_set_attributes_t,
) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let (change, (from, path)) = unsafe { (array(change, 1, 1)?, session.path(path)?) };
        let change = change[0].parse()?;
        let found = session.client.resolve_from(&from, path, follow(flags)?)?;
        Ok(session.client.set_attributes(&found.handle, &change)?)
    })
}

/// Space and limits of the file system of the object at a path.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `status` null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_statfs(
    handle: dap_session_t,
    path: *const c_char,
    status: *mut dap_fs_status_t,
) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let (out, (from, path)) = unsafe { (Out::new(status)?, session.path(path)?) };
        let found = session.client.resolve_from(&from, path, Follow::Yes)?;
        out.set((&session.client.fs_status(&found.handle)?).into());
        Ok(())
    })
}

/// Returns the rights among `wanted` (DAP_ACCESS_...) that the caller has on the object at a path.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_access(
    handle: dap_session_t,
    path: *const c_char,
    wanted: u32,
) -> i32 {
    call(|| {
        let session = session(handle)?;
        let wanted = AccessMask::from_bits(wanted & 0x3f).filter(|mask| mask.bits() == wanted);
        let wanted = wanted.ok_or(invalid("there is no such right"))?;
        // SAFETY: as the caller promises.
        let (from, path) = unsafe { session.path(path) }?;
        let found = session.client.resolve_from(&from, path, Follow::Yes)?;
        Ok(session.client.access(&found.handle, wanted)?.bits().into())
    }) as i32
}

/// Makes a directory with the permission bits `mode`.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mkdir(handle: dap_session_t, path: *const c_char, mode: u32) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let (from, path) = unsafe { session.path(path) }?;
        let place = session.client.resolve_new_directory_from(&from, path)?;
        session.client.mkdir(&place.dir, &place.name, &SetAttributes::mode(mode & 0o7777))?;
        Ok(())
    })
}

/// Removes an empty directory.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_rmdir(handle: dap_session_t, path: *const c_char) -> i32 {
    // SAFETY: as the caller promises.
    call_plainly(|| unsafe { remove(handle, path, true) })
}

/// Removes a name other than a directory's. An open file stays usable.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_remove(handle: dap_session_t, path: *const c_char) -> i32 {
    // SAFETY: as the caller promises.
    call_plainly(|| unsafe { remove(handle, path, false) })
}

/// # Safety
/// As [`text`].
unsafe fn remove(handle: dap_session_t, path: *const c_char, dirs: bool) -> Result<(), Failure> {
    let session = session(handle)?;
    // SAFETY: as the caller promises.
    let (from, path) = unsafe { session.path(path) }?;
    Ok(session.client.remove_from(&from, path, dirs)?)
}

/// Renames, replacing an object of the name `to` if it is of the same kind.
///
/// Threads: any.
///
/// # Safety
/// Both are texts or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_rename(
    handle: dap_session_t,
    from: *const c_char,
    to: *const c_char,
) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let ((from_dir, from), (to_dir, to)) = unsafe { (session.path(from)?, session.path(to)?) };
        let (from, to) = session.client.resolve_rename((&from_dir, from), (&to_dir, to))?;
        Ok(session.client.rename(&from.dir, &from.name, &to.dir, &to.name)?)
    })
}

/// Gives the file at `path` another name. A symbolic link gets the name itself.
///
/// Threads: any.
///
/// # Safety
/// Both are texts or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_link(
    handle: dap_session_t,
    path: *const c_char,
    other: *const c_char,
) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let ((from, path), (dir, other)) = unsafe { (session.path(path)?, session.path(other)?) };
        Ok(session.client.link_from((&from, path), (&dir, other))?)
    })
}

/// Makes a symbolic link at `path` with the text `to`.
///
/// Threads: any.
///
/// # Safety
/// Both are texts or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_symlink(
    handle: dap_session_t,
    to: *const c_char,
    path: *const c_char,
) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let (to, (from, path)) = unsafe { (text(to)?, session.path(path)?) };
        let place = session.client.resolve_new_from(&from, path)?;
        session.client.symlink(&place.dir, &place.name, to)?;
        Ok(())
    })
}

/// The text of a symbolic link, with a zero at its end; returns its length without that.
/// DAP_E_SHORT if `size` is too small.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `target` null or good for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_readlink(
    handle: dap_session_t,
    path: *const c_char,
    target: *mut c_char,
    size: usize,
) -> i64 {
    call(|| {
        let session = session(handle)?;
        check_write(target.cast(), size)?;
        // SAFETY: as the caller promises.
        let (from, path) = unsafe { session.path(path) }?;
        let found = session.client.resolve_from(&from, path, Follow::No)?;
        let mut says = session.client.readlink(&found.handle)?;
        let len = says.len();
        says.push(0);
        if says.len() > size {
            return Err(Failure::new(DAP_E_SHORT, "the text of the link does not fit"));
        }
        // SAFETY: as the caller promises.
        unsafe { copy_out(&mut says, target.cast()) }?;
        Ok(len as i64)
    })
}

/// Makes a file with the permission bits `mode` and `len` bytes in it, and closes it: in one round
/// trip if they fit a message and `path` is a name without directories. DAP_E_EXIST if the name
/// exists. `stable` is as for dap_write(). If it fails the file may exist, with fewer bytes.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `memory` null, unmapped, or good for `len` bytes that no other thread
/// changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_create_file(
    handle: dap_session_t,
    path: *const c_char,
    mode: u32,
    memory: *const c_void,
    len: usize,
    stable: u32,
) -> i32 {
    call_plainly(|| {
        let (session, stable) = (session(handle)?, stability(stable)?);
        if mode > 0o7777 {
            return Err(invalid("a mode has bits beyond 07777"));
        }
        if len > WHOLE_FILE_BYTES_MAX {
            return Err(invalid("over 64 MiB; open the file to write that"));
        }
        // SAFETY: as the caller promises.
        let (data, (from, path)) = unsafe { (copy_in(memory, len)?, session.path(path)?) };
        let place = session.client.resolve_new_from(&from, path)?;
        let attributes = SetAttributes::mode(mode);
        session.client.create_file(&place.dir, &place.name, &attributes, &data, stable)?;
        Ok(())
    })
}

/// Reads up to `size` bytes from the start of the file at `path` without opening it: in one round
/// trip if that fits a message. Returns the number of bytes.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `memory` null, unmapped, or good for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_read_file(
    handle: dap_session_t,
    path: *const c_char,
    memory: *mut c_void,
    size: usize,
) -> i64 {
    call(|| {
        let session = session(handle)?;
        check_write(memory, size)?;
        if size > WHOLE_FILE_BYTES_MAX {
            return Err(invalid("over 64 MiB; open the file to read that"));
        }
        // SAFETY: as the caller promises.
        let (from, path) = unsafe { session.path(path) }?;
        let mut data = session.client.read_file_from(&from, path, size)?.data;
        data.truncate(size);
        // SAFETY: as the caller promises.
        unsafe { copy_out(&mut data, memory.cast()) }?;
        Ok(data.len() as i64)
    })
}
