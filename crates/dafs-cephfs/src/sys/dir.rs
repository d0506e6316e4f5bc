//! Open directories.

use super::checked;
use super::inode::Inode;
use super::mount::Mount;
use super::types::{DirResult, STATX_ALL, StatX};
use crate::attr::attr;
use crate::id::Object;
use crate::object;
use dafs_store::inode::{Listed, Listing};
use dafs_store::{Result, StoreError};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// An open directory of a mount.
pub struct DirStream {
    mount: Arc<Mount>,
    raw: NonNull<DirResult>,
}

// SAFETY: the library locks open directories with their mount; any thread may call it.
unsafe impl Send for DirStream {}

impl DirStream {
    /// Takes over an open directory of the library.
    pub(super) fn new(mount: &Arc<Mount>, raw: *mut DirResult) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or(StoreError::Io)?;
        Ok(Self { mount: mount.clone(), raw })
    }
}

impl Listing<Object> for DirStream {
    fn seek(&mut self, position: i64) -> Result<()> {
        if position < 0 {
            return Err(StoreError::BadCookie);
        }
        // SAFETY: the directory is one of this mount and is used by one thread at a time.
        unsafe { (self.mount.calls().ceph_seekdir)(self.mount.raw(), self.raw.as_ptr(), position) };
        Ok(())
    }

    fn next(&mut self, stat: bool) -> Result<Option<Listed<Object>>> {
        /// Attributes are not needed (`AT_STATX_DONT_SYNC`).
        const DONT_SYNC: u32 = 0x4000;
        let mut entry = MaybeUninit::<libc::dirent>::zeroed();
        let mut found = StatX::empty();
        let mut raw = null_mut();
        let (want, flags) = if stat { (STATX_ALL, 0) } else { (0, DONT_SYNC) };
        let inode = if stat { &raw mut raw } else { null_mut() };
        // SAFETY: the directory is one of this mount and is used by one thread at a time; the rest
        // takes answers, or is null for no answer.
        let count = checked(unsafe {
            (self.mount.calls().ceph_readdirplus_r)(
                self.mount.raw(),
                self.raw.as_ptr(),
                entry.as_mut_ptr(),
                &mut found,
                want,
                flags,
                inode,
            )
        })?;
        // We own the reference even if it is not needed.
        drop((!raw.is_null()).then(|| Inode::new(&self.mount, raw)));
        if count == 0 {
            return Ok(None);
        }
        // SAFETY: it is made of numbers, for which zero is a value.
        let entry = unsafe { entry.assume_init() };
        // SAFETY: the library has put a zero behind the name.
        let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes().to_vec();
        let attr = if stat { attr(&found).ok() } else { None };
        let object = attr.map(|attr| (object(&found), attr));
        Ok(Some(Listed { name, file_id: entry.d_ino, next: entry.d_off, object }))
    }
}

impl Drop for DirStream {
    fn drop(&mut self) {
        // SAFETY: the open directory is ours, and is closed once.
        unsafe { (self.mount.calls().ceph_ll_releasedir)(self.mount.raw(), self.raw.as_ptr()) };
    }
}
