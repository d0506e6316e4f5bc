//! Open files.

use super::checked;
use super::mount::Mount;
use super::table::Functions;
use super::types::{Fh, MountInfo};
use crate::limits::VIEWS_MAX;
use dafs_mem::VolatileSlice;
use dafs_store::{Result, StoreError};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// An open file of a mount.
pub struct Handle {
    mount: Arc<Mount>,
    raw: NonNull<Fh>,
}

// SAFETY: the library locks open files with their mount; any thread may call it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Takes over an open file of the library.
    pub(super) fn new(mount: &Arc<Mount>, raw: *mut Fh) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or(StoreError::Io)?;
        Ok(Self { mount: mount.clone(), raw })
    }

    /// Returns what every call takes: the functions, the mount and the file.
    fn call(&self) -> (&'static Functions, *mut MountInfo, *mut Fh) {
        (self.mount.calls(), self.mount.raw(), self.raw.as_ptr())
    }

    /// Reads into the first views, and returns the number of bytes; 0 at the end of the file.
    pub(crate) fn read(&self, views: &[VolatileSlice<'_>], offset: u64) -> io::Result<usize> {
        let ((lib, mount, file), (offset, count)) = (self.call(), vector(views, offset)?);
        // SAFETY: the file is one of this mount. A view is laid out as an iovec, and its memory is
        // valid for writes while it lives; `count` is at most their number.
        transferred(unsafe {
            (lib.ceph_ll_readv)(mount, file, views.as_ptr().cast(), count, offset)
        })
    }

    /// Writes the first views, and returns the number of bytes. The data is at the storage daemons
    /// when this returns; the size may be known to this process alone.
    pub(crate) fn write(&self, views: &[VolatileSlice<'_>], offset: u64) -> io::Result<usize> {
        let ((lib, mount, file), (offset, count)) = (self.call(), vector(views, offset)?);
        // SAFETY: as for reading; memory that others change meanwhile is copied in any state.
        transferred(unsafe {
            (lib.ceph_ll_writev)(mount, file, views.as_ptr().cast(), count, offset)
        })
    }

    /// Makes data and attributes stable.
    pub(crate) fn sync(&self) -> Result<()> {
        let (lib, mount, file) = self.call();
        // SAFETY: the file is one of this mount.
        checked(unsafe { (lib.ceph_ll_fsync)(mount, file, 0) }).map(drop)
    }
}

fn vector(views: &[VolatileSlice<'_>], offset: u64) -> io::Result<(i64, i32)> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    let count = i32::try_from(views.len().min(VIEWS_MAX)).unwrap_or(i32::MAX);
    Ok((offset, count))
}

fn transferred(answer: i64) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| {
        io::Error::from_raw_os_error(i32::try_from(answer.saturating_neg()).unwrap_or(libc::EIO))
    })
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (lib, mount, file) = self.call();
        // SAFETY: the open file is ours, and is closed once.
        let closed = unsafe { (lib.ceph_ll_close)(mount, file) };
        if closed < 0 {
            tracing::warn!(errno = -closed, "closing a file of CephFS failed");
        }
    }
}
