//! Fences: allow lists of files and file systems.

use crate::boundary::{call, call_plainly};
use crate::error::{DAP_E_SHORT, Failure, invalid};
use crate::handle::dap_session_t;
use crate::limits::FENCE_NAMES_MAX;
use crate::pointer::{array, check_write, text};
use crate::session::session;
use crate::transfer::copy_out;
use dafs_client::{FenceChange, FenceObject, Follow};
use std::ffi::c_char;

/// The file itself.
pub const DAP_FENCE_FILE: u32 = 1;
/// The file system that holds it.
pub const DAP_FENCE_FILE_SYSTEM: u32 = 2;

/// Removes the list: all clients have access.
pub const DAP_FENCE_CLEAR: u32 = 0;
/// Replaces the list by these names.
pub const DAP_FENCE_SET: u32 = 1;
/// Adds these names to the list.
pub const DAP_FENCE_ADD: u32 = 2;
/// Removes these names from the list.
pub const DAP_FENCE_REMOVE: u32 = 3;

fn object(what: u32) -> Result<FenceObject, Failure> {
    match what {
        DAP_FENCE_FILE => Ok(FenceObject::File),
        DAP_FENCE_FILE_SYSTEM => Ok(FenceObject::FileSystem),
        _ => Err(invalid("a fence is of a file or of a file system")),
    }
}

/// Changes the fence of the object at a path (DAP_FENCE_FILE or DAP_FENCE_FILE_SYSTEM) by
/// DAP_FENCE_CLEAR, _SET, _ADD or _REMOVE and `count` names. After success, no request of an
/// excluded client is under way any more.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `names` null or `count` texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_set_fence(
    handle: dap_session_t,
    path: *const c_char,
    what: u32,
    change: u32,
    names: *const *const c_char,
    count: usize,
) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let ((from, path), names) =
            unsafe { (session.path(path)?, array(names, count, FENCE_NAMES_MAX)?) };
        // SAFETY: as the caller promises.
        let names = names.iter().map(|name| unsafe { text(*name) });
        let names = names.collect::<Result<Vec<&[u8]>, _>>()?;
        let change = match change {
            DAP_FENCE_CLEAR => FenceChange::Clear,
            DAP_FENCE_SET => FenceChange::Set(&names),
            DAP_FENCE_ADD => FenceChange::Add(&names),
            DAP_FENCE_REMOVE => FenceChange::Remove(&names),
            _ => return Err(invalid("there is no such change of a fence")),
        };
        let found = session.client.resolve_from(&from, path, Follow::Yes)?;
        Ok(session.client.set_fence(&found.handle, object(what)?, change)?)
    })
}

/// The names on a fence, each with a zero at its end, one after the other. Returns their number; 0
/// if all clients are excluded. DAP_E_NOT_FOUND if there is no fence and all clients have access.
/// DAP_E_SHORT if they do not fit.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `target` null or good for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_fence(
    handle: dap_session_t,
    path: *const c_char,
    what: u32,
    target: *mut c_char,
    size: usize,
) -> i64 {
    call(|| {
        let session = session(handle)?;
        check_write(target.cast(), size)?;
        // SAFETY: as the caller promises.
        let (from, path) = unsafe { session.path(path) }?;
        let found = session.client.resolve_from(&from, path, Follow::Yes)?;
        let Some(names) = session.client.fence_list(&found.handle, object(what)?)? else {
            return Err(Failure::new(crate::error::DAP_E_NOT_FOUND, "there is no fence"));
        };
        let mut all = Vec::new();
        for name in &names {
            all.extend_from_slice(name);
            all.push(0);
        }
        if all.len() > size {
            return Err(Failure::new(DAP_E_SHORT, "the names do not fit"));
        }
        // SAFETY: as the caller promises.
        unsafe { copy_out(&mut all, target.cast()) }?;
        Ok(names.len() as i64)
    })
}
