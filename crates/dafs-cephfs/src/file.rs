//! Open files.

use crate::id::Object;
use crate::sys::{Handle, Inode};
use crate::{Home, Shared, server};
use dafs_mem::Shrinking as _;
use dafs_mem::VolatileSlice;
use dafs_store::backend::{
    FILE_BYTES_MAX, check_advice, check_size, check_write, continued, copy_pieces, read_through,
    seek_dense,
};
use dafs_store::inode::Inode as _;
use dafs_store::{
    Advised, Attr, CacheAdvice, CopyRange, FileId, OpenFile, OpenMode, Result, SeekWhat, Stability,
    StoreError, Wait, WholeFile,
};
use std::any::Any;
use std::sync::Arc;

/// An open of a file.
pub(crate) struct CephFile {
    shared: Arc<Shared>,
    object: Object,
    mode: OpenMode,
    handle: Handle,
    inode: Inode,
}

impl CephFile {
    /// Takes over an open file. The mount of the handle becomes the home of the file, unless it is
    /// open at another one.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        object: Object,
        mode: OpenMode,
        inode: Inode,
        handle: Handle,
    ) -> Self {
        let at = shared.mounts.iter().position(|mount| Arc::ptr_eq(mount, inode.mount()));
        let home = Home { mount: at.unwrap_or(0), opens: 0 };
        shared.homes().entry(object).or_insert(home).opens += 1;
        Self { shared: shared.clone(), object, mode, handle, inode }
    }
}

impl Drop for CephFile {
    fn drop(&mut self) {
        let mut homes = self.shared.homes();
        if let Some(home) = homes.get_mut(&self.object) {
            home.opens -= 1;
            if home.opens == 0 {
                homes.remove_and_shrink(&self.object);
            }
        }
    }
}

impl OpenFile for CephFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.shared.ids.seal(self.object)
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        if !self.mode.read {
            return Err(StoreError::Access);
        }
        if wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        if offset > FILE_BYTES_MAX {
            return Ok(0);
        }
        continued(views, offset, |views, offset| self.handle.read(views, offset))
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        if check_write(self.mode, views, offset)? == 0 {
            return Ok(0);
        }
        if wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        let count = continued(views, offset, |views, offset| self.handle.write(views, offset))?;
        if stability != Stability::Unstable {
            self.handle.sync()?;
        }
        Ok(count)
    }

    fn sync(&self) -> Result<()> {
        // Commits do this, too, because the size must be stable.
        self.handle.sync()
    }

    fn attr(&self) -> Result<Attr> {
        self.inode.stat()
    }
}

impl WholeFile for CephFile {
    /// The library keeps no content, and has no call for advice. A read brings content into the
    /// memory of the storage daemons.
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        check_advice(offset, len)?;
        match advice {
            CacheAdvice::WillNeed if self.mode.read => read_through(self, offset, len),
            _ => Ok(Advised::Ignored),
        }
    }

    fn set_size(&self, size: u64) -> Result<()> {
        check_size(self.mode, size)?;
        // The open has proved that the caller may write.
        self.inode.truncate(size, &server())
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        seek_dense(self.attr()?.size, offset, what)
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn deallocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        copy_pieces(self, source, range)
    }

    fn clone_range_from(&self, _source: &dyn OpenFile, _range: CopyRange) -> Result<()> {
        Err(StoreError::NotSupported)
    }
}
