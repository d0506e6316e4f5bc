//! Listings of directories.

use crate::attributes::{DAP_NO_ID, dap_attributes_t};
use crate::boundary::{call, call_plainly};
use crate::error::{DAP_E_NAMETOOLONG, DAP_E_NOTDIR, Failure};
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

impl dap_entry_t {
    /// Describes an object of a listing.
    ///
    /// # Errors
    /// Its name is too long.
    pub(crate) fn of(from: &[u8], attributes: Option<dap_attributes_t>) -> Result<Self, Failure> {
        let mut name = [0; 256];
        if from.len() >= name.len() {
            return Err(Failure::new(DAP_E_NAMETOOLONG, "a name is over 255 bytes long"));
        }
        for (to, from) in name.iter_mut().zip(from) {
            *to = *from as c_char;
        }
        let nothing = dap_attributes_t { owner: DAP_NO_ID, group: DAP_NO_ID, ..Default::default() };
        let has_attributes = attributes.is_some().into();
        Ok(Self { name, has_attributes, reserved: 0, attributes: attributes.unwrap_or(nothing) })
    }
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
        out.set(dap_entry_t::of(&found.name, found.attributes.as_ref().map(Into::into))?);
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
