//! Open files of a disk.

use super::{Plug, Shared};
use dafs_mem::VolatileSlice;
use dafs_store::{
    Advised, Attr, CacheAdvice, CopyRange, FileId, OpenFile, Result, SeekWhat, Stability,
    StoreError, Wait, WholeFile,
};
use std::any::Any;
use std::sync::Arc;

/// A file of the memory store that records its unstable changes.
pub(super) struct DiskFile {
    inner: Arc<dyn OpenFile>,
    shared: Arc<Shared>,
    plug: Plug,
}

impl DiskFile {
    pub(super) fn wrap(
        inner: Arc<dyn OpenFile>,
        shared: &Arc<Shared>,
        plug: &Plug,
    ) -> Arc<dyn OpenFile> {
        Arc::new(Self { inner, shared: shared.clone(), plug: plug.clone() })
    }

    /// Changes the data within a range.
    fn change<T>(
        &self,
        offset: u64,
        len: u64,
        apply: impl FnOnce(&dyn OpenFile) -> Result<T>,
    ) -> Result<T> {
        self.plug.effect()?;
        let value = apply(self.inner.as_ref())?;
        self.shared.data_changed(&self.id(), offset, offset.saturating_add(len))?;
        Ok(value)
    }
}

impl OpenFile for DiskFile {
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn id(&self) -> FileId {
        self.inner.id()
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        self.plug.look()?;
        self.inner.read_at(views, offset, wait)
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        let len = views.iter().map(VolatileSlice::len).sum::<usize>() as u64;
        let write = |file: &dyn OpenFile| file.write_at(views, offset, Stability::Unstable, wait);
        let written = self.change(offset, len, write)?;
        if stability != Stability::Unstable && written > 0 {
            self.plug.effect()?;
            self.shared.settle_data(&self.id(), offset, written as u64);
        }
        Ok(written)
    }

    fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.plug.effect()?;
        self.inner.commit(offset, len)?;
        self.shared.settle_data(&self.id(), offset, len);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.commit(0, 0)
    }

    fn attr(&self) -> Result<Attr> {
        self.plug.look()?;
        self.inner.attr()
    }
}

impl WholeFile for DiskFile {
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        self.plug.look()?;
        self.inner.advise(offset, len, advice)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.change(size, 0, |file| file.set_size(size))
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        self.plug.look()?;
        self.inner.seek(offset, what)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.change(offset, len, |file| file.allocate(offset, len))
    }

    fn deallocate(&self, offset: u64, len: u64) -> Result<()> {
        self.change(offset, len, |file| file.deallocate(offset, len))
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        self.change(range.offset, range.len, |file| file.copy_from(source, range))
    }

    fn clone_range_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<()> {
        let rest =
            || Ok::<u64, StoreError>(source.attr()?.size.saturating_sub(range.source_offset));
        let changed = if range.len == 0 { rest()? } else { range.len };
        let clone = |file: &dyn OpenFile| file.clone_range_from(source, range);
        self.change(range.offset, changed, clone)
    }
}
