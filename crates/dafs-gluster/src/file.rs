//! Open files.

use crate::Shared;
use crate::attr::attr;
use crate::limits::PRIVILEGE_BITS;
use crate::sys::{Gfid, Handle};
use dafs_mem::Shrinking as _;
use dafs_mem::VolatileSlice;
use dafs_store::backend::{
    FILE_BYTES_MAX, check_advice, check_range, check_size, check_write, continued, copy_pieces,
    read_through,
};
use dafs_store::{
    Advised, Attr, CacheAdvice, CopyRange, Cred, FileId, OpenFile, OpenMode, Result, SeekWhat,
    Stability, StoreError, Wait, WholeFile,
};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open of a file.
pub(crate) struct GlusterFile {
    shared: Arc<Shared>,
    gfid: Gfid,
    mode: OpenMode,
    handle: Arc<Handle>,
    /// True if the file may have setuid or setgid, which must be cleared before a write.
    privileged: Arc<AtomicBool>,
    /// True for root, whose writes do not clear them.
    is_root: bool,
}

#[derive(Default)]
pub(crate) struct Opens {
    count: usize,
    /// One open file, with the widest mode so far: the only access to a file without a name.
    handle: Option<(Arc<Handle>, OpenMode)>,
    privileged: Arc<AtomicBool>,
}

impl Opens {
    /// Adds an open. The caller must drop the returned handle, which closes it.
    fn add(&mut self, handle: &Arc<Handle>, mode: OpenMode) -> Option<(Arc<Handle>, OpenMode)> {
        self.count += 1;
        let more = |known: &OpenMode| mode.read >= known.read && mode.write >= known.write;
        match self.handle.as_ref().is_none_or(|(_, known)| more(known)) {
            true => self.handle.replace((handle.clone(), mode)),
            false => None,
        }
    }

    /// Records that the file has got setuid or setgid.
    pub(crate) fn note_privileged(&self) {
        self.privileged.store(true, Ordering::SeqCst);
    }

    /// Returns an open file for a later open.
    pub(crate) fn handle(&self, mode: OpenMode) -> Option<Arc<Handle>> {
        let (handle, known) = self.handle.as_ref()?;
        (known.read >= mode.read && known.write >= mode.write).then(|| handle.clone())
    }
}

impl GlusterFile {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        gfid: Gfid,
        mode: OpenMode,
        handle: Arc<Handle>,
        cred: &Cred,
        privileged: bool,
    ) -> Self {
        let mut opens = shared.opens();
        let known = opens.entry(gfid).or_default();
        let gone = known.add(&handle, mode);
        if privileged {
            known.note_privileged();
        }
        let (privileged, is_root) = (known.privileged.clone(), cred.uid == 0);
        drop(opens);
        drop(gone);
        Self { shared: shared.clone(), gfid, mode, handle, privileged, is_root }
    }

    /// Prepares the file for a change. Fails without an open for writing.
    fn as_writer(&self) -> Result<&Handle> {
        if !self.mode.write {
            return Err(StoreError::Access);
        }
        if !self.is_root && self.privileged.load(Ordering::SeqCst) {
            // Before the read of the mode, so that a concurrent change of the mode sets it again.
            self.privileged.store(false, Ordering::SeqCst);
            let attr = attr(&self.handle.stat()?)?;
            // A removed file cannot be executed any more.
            if attr.links > 0 && attr.mode & PRIVILEGE_BITS != 0 {
                let object = self.shared.mount.object(&self.gfid)?;
                let ended = crate::layouts::end_privilege(&object, attr.mode);
                ended.inspect_err(|_| self.privileged.store(true, Ordering::SeqCst))?;
            }
        }
        Ok(&self.handle)
    }

    /// Updates the times after a change for which GlusterFS does not.
    fn touch(&self) -> Result<()> {
        match self.shared.mount.object(&self.gfid).and_then(|object| crate::layouts::touch(&object))
        {
            // The times of a file without a name do not matter.
            Err(StoreError::Stale | StoreError::NotFound) => Ok(()),
            done => done,
        }
    }
}

impl Drop for GlusterFile {
    fn drop(&mut self) {
        let mut opens = self.shared.opens();
        let Some(known) = opens.get_mut(&self.gfid) else { return };
        known.count -= 1;
        let gone = if known.count == 0 { opens.remove_and_shrink(&self.gfid) } else { None };
        // A close asks a brick, so it is done after the lock is released.
        drop(opens);
        drop(gone);
    }
}

impl OpenFile for GlusterFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.shared.ids.seal(self.gfid)
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        if !self.mode.read {
            return Err(StoreError::Access);
        }
        if wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        // Some bricks refuse ranges beyond the longest file, where there is no data.
        let room = usize::try_from(FILE_BYTES_MAX.saturating_sub(offset)).unwrap_or(usize::MAX);
        if room == 0 {
            return Ok(0);
        }
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        if wanted > room && offset >= self.attr()?.size {
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
        let handle = self.as_writer()?;
        let count = continued(views, offset, |views, offset| handle.write(views, offset))?;
        if stability != Stability::Unstable {
            handle.sync()?;
        }
        Ok(count)
    }

    fn sync(&self) -> Result<()> {
        self.handle.sync()
    }

    fn attr(&self) -> Result<Attr> {
        attr(&self.handle.stat()?)
    }
}

impl WholeFile for GlusterFile {
    /// The library has no call for advice. A read brings content into the memory of the bricks'
    /// machines.
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        check_advice(offset, len)?;
        match advice {
            CacheAdvice::WillNeed if self.mode.read => read_through(self, offset, len),
            _ => Ok(Advised::Ignored),
        }
    }

    fn set_size(&self, size: u64) -> Result<()> {
        check_size(self.mode, size)?;
        self.as_writer()?.truncate(size)
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        let size = self.attr()?.size;
        if offset >= size {
            return Err(StoreError::PastEnd);
        }
        match (self.handle.seek(offset, what)?, what) {
            // The file was truncated meanwhile.
            (None, SeekWhat::Hole) => Err(StoreError::PastEnd),
            (found, _) => Ok(found),
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let handle = self.as_writer()?;
        check_range(offset, len)?;
        handle.allocate(offset, len)?;
        self.touch()
    }

    fn deallocate(&self, offset: u64, len: u64) -> Result<()> {
        let handle = self.as_writer()?;
        check_range(offset, len)?;
        // There is no data behind the end, and bricks refuse ranges that no file can have.
        let len = len.min(self.attr()?.size.saturating_sub(offset));
        if len > 0 {
            handle.discard(offset, len)?;
            self.touch()?;
        }
        Ok(())
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        copy_pieces(self, source, range)
    }

    fn clone_range_from(&self, _source: &dyn OpenFile, _range: CopyRange) -> Result<()> {
        Err(StoreError::NotSupported)
    }
}
