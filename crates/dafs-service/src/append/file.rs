//! A file whose writers are counted, as every front end gets it.
//!
//! Invariants
//! * Every change of a file's content passes through here, because the service hands out no
//!   writable file that is not wrapped.

use super::Writers;
use super::writers::Closed;
use crate::exposure::Changing;
use crate::handle::Handle;
use dafs_mem::VolatileSlice;
use dafs_store::{
    Advised, AppendFailure, AppendWitness, Attr, CacheAdvice, CopyRange, FileId, OpenFile,
    OpenMode, Result, SeekWhat, Stability, StoreError, Wait, WholeFile, append_before,
};
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, RwLockReadGuard};

/// A writer inside. The exposed blocks come back before the others do.
struct Entered<'a> {
    _changing: Option<Changing>,
    _together: RwLockReadGuard<'a, Closed>,
}

struct CountedFile {
    inner: Arc<dyn OpenFile>,
    /// The key under which opens of the file are compared.
    key: Handle,
    writers: Arc<Writers>,
}

impl Writers {
    /// Returns the file for a front end: wrapped when it can be written to.
    pub(crate) fn count(
        self: &Arc<Self>,
        key: Handle,
        mode: OpenMode,
        inner: Arc<dyn OpenFile>,
    ) -> Arc<dyn OpenFile> {
        match mode.write {
            true => Arc::new(CountedFile { inner, key, writers: self.clone() }),
            false => inner,
        }
    }
}

impl CountedFile {
    /// Counts a writer that changes the bytes from `offset` on, after their pre-image is saved
    /// where that is needed. Until it leaves, clients find none of them without a request.
    fn enter(&self, offset: u64, len: u64, wait: Wait) -> Result<Entered<'_>> {
        let together = self.writers.together(&self.key, wait).ok_or(StoreError::WouldBlock)?;
        together.check(&self.key)?;
        self.writers.undo.before_write(&self.key, offset, len, wait)?;
        self.writers.enter(&self.key);
        let _changing = self.writers.exposure.begin_change(&self.key, offset, len);
        Ok(Entered { _changing, _together: together })
    }

    /// Takes the exposed blocks at the end of the file away, as `enter` does. No other writer is
    /// inside.
    fn append_to_exposed(&self) -> Option<Changing> {
        let end = || self.inner.attr().map_or(0, |attr| attr.size);
        self.writers.exposure.begin_change_from(&self.key, end, u64::MAX)
    }

    /// Undoes an append that could not be made stable, if no writer has come after it: `entered`
    /// counts the writers up to it. A later write is kept. The append is then complete, and its
    /// caller knows only that it may not last.
    fn take_back(&self, offset: u64, len: u64, entered: u64) {
        let _alone = self.writers.alone(&self.key);
        let is_last = self.writers.entered(&self.key) == entered;
        if is_last && self.inner.attr().is_ok_and(|attr| attr.size == offset + len) {
            let _changing = self.writers.exposure.begin_change(&self.key, offset, u64::MAX);
            // If this fails as well, the caller still gets the first error.
            let _ = self.inner.set_size(offset);
        }
    }
}

impl OpenFile for CountedFile {
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn id(&self) -> FileId {
        self.inner.id()
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        self.inner.read_at(views, offset, wait)
    }

    fn read_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.read_descriptor()
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        let len = views.iter().map(|view| view.len() as u64).sum();
        let _entered = self.enter(offset, len, wait)?;
        self.inner.write_at(views, offset, stability, wait)
    }

    /// Exclusive only while the offset is chosen and the data is written. Appends become stable
    /// side by side.
    fn append(&self, views: &[VolatileSlice<'_>], stability: Stability) -> Result<u64> {
        let alone = self.writers.alone(&self.key);
        alone.check(&self.key)?;
        let entered = self.writers.enter(&self.key);
        let changing = self.append_to_exposed();
        let offset = self.inner.append(views, Stability::Unstable)?;
        drop(changing);
        drop(alone);
        let stable = match stability {
            Stability::Unstable => Ok(()),
            Stability::Data => self.inner.commit(offset, 0),
            Stability::File => self.inner.sync(),
        };
        if let Err(error) = stable {
            self.take_back(offset, views.iter().map(|view| view.len() as u64).sum(), entered);
            return Err(error);
        }
        Ok(offset)
    }

    /// Exclusive until the witness has recorded the result. So if the server dies before that, all
    /// data behind the old end of the file belongs to this append.
    fn append_witnessed(
        &self,
        views: &[VolatileSlice<'_>],
        stability: Stability,
        witness: &dyn AppendWitness,
    ) -> Result<u64> {
        let mut alone = self.writers.alone(&self.key);
        alone.check(&self.key)?;
        self.writers.enter(&self.key);
        let _changing = self.append_to_exposed();
        // Closed until the result is known. A panic leaves it closed.
        alone.close(self.key);
        match append_before(&*self.inner, views, stability, witness) {
            Err(AppendFailure::Unknown(error)) => {
                tracing::error!(
                    %error,
                    file = ?self.inner.id(),
                    "the outcome of an append is unknown; the file takes no writes until the \
                    server restarts"
                );
                Err(error)
            }
            known => {
                alone.open(&self.key);
                known.map_err(|failure| failure.error())
            }
        }
    }

    fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.commit(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn check_written_back(&self) -> Result<()> {
        self.inner.check_written_back()
    }

    fn attr(&self) -> Result<Attr> {
        self.inner.attr()
    }
}

impl WholeFile for CountedFile {
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        self.inner.advise(offset, len, advice)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let _entered = self.enter(size, u64::MAX, Wait::Allowed)?;
        self.inner.set_size(size)
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        self.inner.seek(offset, what)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        // It adds only zeros, and those behind the end.
        let _entered = self.enter(offset, 0, Wait::Allowed)?;
        let _changing = self.append_to_exposed();
        self.inner.allocate(offset, len)
    }

    fn deallocate(&self, offset: u64, len: u64) -> Result<()> {
        let _entered = self.enter(offset, len, Wait::Allowed)?;
        self.inner.deallocate(offset, len)
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        let _entered = self.enter(range.offset, range.len, Wait::Allowed)?;
        self.inner.copy_from(source, range)
    }

    fn clone_range_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<()> {
        let whole = source.attr()?.size.saturating_sub(range.source_offset);
        let changed = if range.len == 0 { whole } else { range.len };
        let _entered = self.enter(range.offset, changed, Wait::Allowed)?;
        self.inner.clone_range_from(source, range)
    }
}
