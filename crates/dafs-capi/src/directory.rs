//! Listings of directories.

use crate::attributes::{DAP_NO_ID, dap_attributes_t};
use crate::boundary::{call, call_plainly};
use crate::error::{DAP_E_NOTDIR, Failure};
use crate::handle::{dap_dir_t, dap_session_t, tables};
use crate::pointer::Out;
use crate::session::session;
use dafs_client::{Follow, ReadDir};
use dafs_mem::Mutex;
use std::ffi::c_char;

/// The object behind a directory handle.
pub(crate) struct Directory(Mutex<ReadDir>);

/// One entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_entry_t {
    /// The name, with a zero at its end: any bytes but zero and a slash.
    pub name: [c_char; 256],
    /// 1 when `attributes` is known.
    pub has_attributes: u32,
    /// 0.
    pub reserved: u32,
    /// The attributes.
    pub attributes: dap_attributes_t,
}

/// Begins to list the directory at `path`.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `directory` null or good for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_opendir(
    handle: dap_session_t,
    path: *const c_char,
    directory: *mut dap_dir_t,
) -> i32 {
    call_plainly(|| {
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let (out, (from, path)) = unsafe { (Out::new(directory)?, session.path(path)?) };
        let found = session.client.resolve_from(&from, path, Follow::Yes)?;
        if !found.attributes.is_directory() {
            return Err(Failure::new(DAP_E_NOTDIR, "the object is no directory"));
        }
        let listing = Directory(Mutex::new(session.client.read_dir(&found.handle)));
        out.set(dap_dir_t { id: tables().directories.add(listing)? });
        Ok(())
    })
}

/// Returns the next entry, without "." and "..": 1, or 0 at the end. An error ends the listing.
///
/// Threads: any; each entry goes to one of them.
///
/// # Safety
/// `entry` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_readdir(directory: dap_dir_t, entry: *mut dap_entry_t) -> i32 {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(entry) }?;
        let listing = tables().directories.get(directory.id)?;
        let next = listing.0.lock().next();
        let Some(found) = next.transpose()? else { return Ok(0) };
        let mut name = [0; 256];
        // The client has checked that it is at most 255 bytes long.
        for (to, from) in name[..255].iter_mut().zip(&found.name) {
            *to = *from as c_char;
        }
        let nothing = dap_attributes_t { owner: DAP_NO_ID, group: DAP_NO_ID, ..Default::default() };
        out.set(dap_entry_t {
            name,
            has_attributes: found.attributes.is_some().into(),
            reserved: 0,
            attributes: found.attributes.as_ref().map_or(nothing, Into::into),
        });
        Ok(1)
    }) as i32
}

/// Ends a listing.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names it.
#[unsafe(no_mangle)]
pub extern "C" fn dap_closedir(directory: dap_dir_t) -> i32 {
    call_plainly(|| tables().directories.remove(directory.id, |_| Ok(())).map(drop))
}
