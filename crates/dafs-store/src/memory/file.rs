//! Open files of the memory store.

use super::Inner;
use super::content::Content;
use super::object::{Body, Object, State};
use crate::ranges::{check_advice, check_range, check_ranges, copy_pieces};
use crate::{
    Advised, Attr, CacheAdvice, CopyRange, Cred, FileId, OpenFile, OpenMode, Result, SeekWhat,
    Stability, StoreError, Wait, WholeFile,
};
use dafs_mem::VolatileSlice;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An open of a file, counted in its object.
pub(super) struct MemoryFile {
    inner: Arc<Inner>,
    object: Arc<Object>,
    cred: Cred,
    mode: OpenMode,
}

impl MemoryFile {
    /// Opens an object. The caller holds the world, so that the object cannot be reaped in between.
    pub(super) fn open(
        inner: &Arc<Inner>,
        object: Arc<Object>,
        cred: &Cred,
        mode: OpenMode,
    ) -> Arc<dyn OpenFile> {
        object.opens.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self { inner: inner.clone(), object, cred: cred.clone(), mode })
    }

    fn change<T>(&self, apply: impl FnOnce(&mut Content) -> Result<T>) -> Result<T> {
        if !self.mode.write {
            return Err(StoreError::Access);
        }
        self.inner.change_content(&self.cred, &mut self.object.state_mut(), apply)
    }

    fn content_size(&self) -> u64 {
        self.object.attr().size
    }
}

impl Inner {
    /// Changes the content of a regular file or named attribute, with all side effects.
    pub(super) fn change_content<T>(
        &self,
        cred: &Cred,
        state: &mut State,
        apply: impl FnOnce(&mut Content) -> Result<T>,
    ) -> Result<T> {
        let Body::File(content) = &mut state.body else { return Err(StoreError::BadType) };
        let value = apply(content)?;
        state.drop_privileges(cred);
        // As in stores that keep the verifier in times: it is lost with the first write.
        state.verifier = None;
        self.touch(state, true);
        Ok(value)
    }
}

impl OpenFile for MemoryFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.object.id
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, _wait: Wait) -> Result<usize> {
        if !self.mode.read {
            return Err(StoreError::Access);
        }
        match &self.object.state().body {
            Body::File(content) => Ok(content.read(views, offset)),
            _ => Err(StoreError::BadType),
        }
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        _stability: Stability,
        _wait: Wait,
    ) -> Result<usize> {
        if views.iter().all(VolatileSlice::is_empty) {
            return if self.mode.write { Ok(0) } else { Err(StoreError::Access) };
        }
        self.change(|content| content.write(views, offset))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.object.attr())
    }
}

impl WholeFile for MemoryFile {
    /// Content has no place but memory: none of it can be brought there, and none can leave.
    fn advise(&self, offset: u64, len: u64, _advice: CacheAdvice) -> Result<Advised> {
        check_advice(offset, len)?;
        Ok(Advised::Ignored)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.change(|content| content.set_size(size))
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        match &self.object.state().body {
            Body::File(content) => content.seek(offset, what),
            _ => Err(StoreError::BadType),
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let end = check_range(offset, len)?;
        self.change(|content| content.allocate(offset, end))
    }

    fn deallocate(&self, offset: u64, len: u64) -> Result<()> {
        let end = check_range(offset, len)?;
        self.change(|content| {
            content.punch(offset, end);
            Ok(())
        })
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        copy_pieces(self, source, range)
    }

    fn clone_range_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<()> {
        let Some(other) = source.as_any().downcast_ref::<Self>() else {
            return Err(StoreError::NotSupported);
        };
        if !Arc::ptr_eq(&other.inner, &self.inner) {
            return Err(StoreError::CrossDevice);
        }
        if !other.mode.read || !self.mode.write {
            return Err(StoreError::Access);
        }
        let CopyRange { source_offset, offset, len } = range;
        let rest = other.content_size().checked_sub(source_offset).ok_or(StoreError::Invalid)?;
        let len = if len == 0 { rest } else { len };
        check_ranges(self.id() == other.id(), CopyRange { len, ..range })?;
        if len > rest {
            return Err(StoreError::Invalid);
        }
        let copy = match &other.object.state().body {
            Body::File(content) => content.copy_of(source_offset, len)?,
            _ => return Err(StoreError::BadType),
        };
        if len == 0 {
            return Ok(());
        }
        self.change(|content| content.take_over(copy, offset, len))
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let last = self.object.opens.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && self.object.state().links == 0 {
            self.inner.world_mut().reap(&self.object);
        }
    }
}
