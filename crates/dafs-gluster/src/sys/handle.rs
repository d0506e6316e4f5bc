//! Open files.

use super::mount::{Mount, moved};
use super::table::Functions;
use super::types::{RawFd, Stat, no_stat};
use super::{checked_int, errno, failure};
use crate::limits::VIEWS_MAX;
use dafs_mem::VolatileSlice;
use dafs_store::{Result, SeekWhat, StoreError};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// An open file of a volume. The rights were checked at the open, so all calls use the server's
/// identity.
pub struct Handle {
    mount: Arc<Mount>,
    raw: NonNull<RawFd>,
}

// SAFETY: the library locks open files; any thread may call it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Takes over an open file of the library; null means a failure.
    pub(super) fn new(mount: &Arc<Mount>, raw: *mut RawFd) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(failure)?;
        Ok(Self { mount: mount.clone(), raw })
    }

    /// Returns what every call takes: the functions, with the server's identity, and the file.
    fn call(&self) -> Result<(&'static Functions, *mut RawFd)> {
        Ok((self.mount.calls_as(&crate::server())?, self.raw.as_ptr()))
    }

    /// Reads into the first views, and returns the number of bytes; 0 at the end of the file.
    pub(crate) fn read(&self, views: &[VolatileSlice<'_>], offset: u64) -> io::Result<usize> {
        let (offset, count) = vector(views, offset)?;
        let (lib, file) = self.call().map_err(|_| busy())?;
        // SAFETY: the file is one of this volume. A view is laid out as an iovec, and its memory is
        // valid for writes while it lives; `count` is at most their number.
        moved(unsafe { (lib.glfs_preadv)(file, views.as_ptr().cast(), count, offset, 0) })
    }

    /// Writes the first views, and returns the number of bytes. The data is at the brick when this
    /// returns.
    pub(crate) fn write(&self, views: &[VolatileSlice<'_>], offset: u64) -> io::Result<usize> {
        let (offset, count) = vector(views, offset)?;
        let (lib, file) = self.call().map_err(|_| busy())?;
        // SAFETY: as for reading; memory that others change meanwhile is copied in any state.
        moved(unsafe { (lib.glfs_pwritev)(file, views.as_ptr().cast(), count, offset, 0) })
    }

    /// Makes data and attributes stable.
    pub(crate) fn sync(&self) -> Result<()> {
        let (lib, file) = self.call()?;
        // SAFETY: the file is one of this volume; no attributes are asked for.
        checked_int(unsafe { (lib.glfs_fsync)(file, null_mut(), null_mut()) }).map(drop)
    }

    /// Changes the size.
    pub(crate) fn truncate(&self, size: u64) -> Result<()> {
        let size = i64::try_from(size).map_err(|_| StoreError::FileTooBig)?;
        let (lib, file) = self.call()?;
        // SAFETY: the file is one of this volume; no attributes are asked for.
        checked_int(unsafe { (lib.glfs_ftruncate)(file, size, null_mut(), null_mut()) }).map(drop)
    }

    /// Returns all attributes, also of a file without a name.
    pub(crate) fn stat(&self) -> Result<Stat> {
        let (lib, file) = self.call()?;
        let mut stat = no_stat();
        // SAFETY: the file is one of this volume; `stat` takes the answer.
        checked_int(unsafe { (lib.glfs_fstat)(file, &mut stat) })?;
        Ok(stat)
    }

    /// Allocates space, and extends the file if necessary.
    pub(crate) fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let (offset, len) = range(offset, len)?;
        let (lib, file) = self.call()?;
        // SAFETY: the file is one of this volume.
        checked_int(unsafe { (lib.glfs_fallocate)(file, 0, offset, len) }).map(drop)
    }

    /// Deallocates space; the size does not change.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let (offset, len) = range(offset, len)?;
        let (lib, file) = self.call()?;
        // SAFETY: the file is one of this volume.
        checked_int(unsafe { (lib.glfs_discard)(file, offset, len) }).map(drop)
    }

    /// Returns the first data or hole from an offset on; `None` if there is none.
    pub(crate) fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        let offset = i64::try_from(offset).map_err(|_| StoreError::PastEnd)?;
        let whence = match what {
            SeekWhat::Data => libc::SEEK_DATA,
            SeekWhat::Hole => libc::SEEK_HOLE,
        };
        let (lib, file) = self.call()?;
        // SAFETY: the file is one of this volume. No call here depends on its position.
        let found = unsafe { (lib.glfs_lseek)(file, offset, whence) };
        match u64::try_from(found) {
            Ok(at) => Ok(Some(at)),
            Err(_) if errno() == libc::ENXIO => Ok(None),
            Err(_) => Err(failure()),
        }
    }
}

fn busy() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

fn range(offset: u64, len: u64) -> Result<(i64, usize)> {
    let offset = i64::try_from(offset).map_err(|_| StoreError::FileTooBig)?;
    Ok((offset, usize::try_from(len).map_err(|_| StoreError::FileTooBig)?))
}

fn vector(views: &[VolatileSlice<'_>], offset: u64) -> io::Result<(i64, i32)> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    let count = i32::try_from(views.len().min(VIEWS_MAX)).unwrap_or(i32::MAX);
    Ok((offset, count))
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the open file is ours, and is closed once.
        let closed = unsafe { (self.mount.calls().glfs_close)(self.raw.as_ptr()) };
        if closed < 0 {
            tracing::warn!(errno = errno(), "closing a file of GlusterFS failed");
        }
    }
}
