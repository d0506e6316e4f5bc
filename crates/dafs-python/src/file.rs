//! An open file for Python: offsets are explicit; `dafs.File` adds a position.

use crate::bytes::NewBytes;
use crate::error::{raise, raise_for, raise_lock};
use crate::hint::{self, Hint};
use crate::memory::{Exported, Place};
use crate::path;
use crate::session::Session;
use crate::stat::Stat;
use crate::wait::{blocking, drop_detached, limited, raised, slice};
use dafs_client::{File, LockError, LockRange, Stability};
use dafs_mem::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use std::time::Instant;

/// The longest read for which all of its bytes are allocated at once; a longer one allocates by the
/// file's size.
const ALLOCATE_BYTES_MAX: usize = 64 << 20;

/// Least bytes of such an allocation, because files of `/proc` report size 0.
const ALLOCATE_BYTES_MIN: usize = 64 << 10;

/// An open file without a position.
#[pyclass(frozen, module = "dafs")]
pub(crate) struct RawFile {
    session: Arc<Session>,
    /// `None` when it is closed.
    file: Mutex<Option<Arc<File>>>,
}

impl RawFile {
    pub(crate) fn new(session: Arc<Session>, file: File) -> Self {
        Self { session, file: Mutex::new(Some(Arc::new(file))) }
    }

    pub(crate) fn file(&self) -> PyResult<Arc<File>> {
        let file = self.file.lock();
        file.clone().ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        let file = self.file.get_mut().take();
        // The close is sent to the server.
        drop_detached(file);
    }
}

/// The range of a lock; all from `offset` on without a length.
pub(crate) fn range(exclusive: bool, offset: u64, length: Option<u64>) -> LockRange {
    let range = if exclusive { LockRange::exclusive() } else { LockRange::shared() };
    range.bytes(offset, length.unwrap_or(u64::MAX))
}

#[pymethods]
impl RawFile {
    #[getter]
    fn closed(&self) -> bool {
        self.file().is_err()
    }

    /// Closes it; a second call has no effect. If other threads are using it, the last of them
    /// closes it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file.lock().take();
        match file.and_then(Arc::into_inner) {
            Some(file) => blocking(py, || file.close()).map_err(raise),
            None => Ok(()),
        }
    }

    /// Fills `target` from `offset`, up to the end of the file; returns the number of bytes.
    fn read_into(&self, py: Python<'_>, target: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.file()?;
        let memory = Exported::writable(target)?;
        let place = Place::of(&self.session, memory.span())?;
        // SAFETY: `memory` is kept until the call is over, and is writable.
        blocking(py, || unsafe { place.read(&file, offset) }).map_err(raise)
    }

    /// Up to `count` bytes from `offset`; fewer only at the end of the file.
    fn read<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.file()?;
        let count = match count > ALLOCATE_BYTES_MAX {
            true => {
                let size = blocking(py, || file.attributes()).map_err(raise)?.size;
                // A file longer than the address space does not exist.
                let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(count);
                count.min(left.max(ALLOCATE_BYTES_MIN))
            }
            false => count,
        };
        let bytes = NewBytes::new(py, count)?;
        let place = Place::of(&self.session, bytes.span())?;
        // SAFETY: no other code has the new object, and it stays until the call is over.
        let done = blocking(py, || unsafe { place.read(&file, offset) }).map_err(raise)?;
        Ok(bytes.finish(done))
    }

    /// Writes all of `source` at `offset`; returns its length. `commit` makes it stable.
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.file()?;
        let memory = Exported::readable(source)?;
        let place = Place::of(&self.session, memory.span())?;
        // SAFETY: `memory` is kept until the call is over.
        blocking(py, || unsafe { place.write(&file, offset) }).map_err(raise)
    }

    /// Appends all of `source` atomically and stably; returns its offset.
    fn append(&self, py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<u64> {
        let file = self.file()?;
        let memory = Exported::readable(source)?;
        let span = memory.span();
        blocking(py, || {
            // SAFETY: `memory` is kept until the call is over.
            file.append_checked(unsafe { span.checked() }, Stability::FileSync)
        })
        .map_err(raise)
    }

    /// How much one append takes; `None` where the server does not say.
    fn append_bytes_max(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let file = self.file()?;
        let status = blocking(py, || file.client().fs_status(file.handle()));
        Ok(status.map_err(raise)?.append_bytes_max)
    }

    /// Makes `length` bytes from `offset` stable; 0 for all from there on.
    #[pyo3(signature = (offset = 0, length = 0))]
    fn commit(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        let file = self.file()?;
        blocking(py, || file.commit(offset, length)).map_err(raise)
    }

    /// Gives the server a hint about `length` bytes from `offset`; 0 for all from there on.
    #[pyo3(signature = (offset = 0, length = 0, pattern = None, hint = None))]
    fn hint(
        &self,
        py: Python<'_>,
        offset: u64,
        length: u32,
        pattern: Option<&str>,
        hint: Option<Hint>,
    ) -> PyResult<()> {
        let file = self.file()?;
        let (pattern, word) = (hint::pattern(pattern)?, hint::word(hint)?);
        blocking(py, || file.cache_hint(offset, length, pattern, word)).map_err(raise)
    }

    /// Asks the server to read a range ahead.
    #[pyo3(signature = (offset = 0, length = 0))]
    fn prefetch(&self, py: Python<'_>, offset: u64, length: u32) -> PyResult<()> {
        let file = self.file()?;
        blocking(py, || file.prefetch(offset, length)).map_err(raise)
    }

    /// Sets the hint that rides on later reads and writes.
    #[pyo3(signature = (hint = None))]
    fn set_hint(&self, hint: Option<Hint>) -> PyResult<()> {
        self.file()?.set_hint(hint::word(hint)?);
        Ok(())
    }

    /// Attributes, also after the last name has been removed.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        let file = self.file()?;
        Ok(Stat::new(&blocking(py, || file.attributes()).map_err(raise)?))
    }

    /// Truncates the file, or extends it with zeros.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let file = self.file()?;
        blocking(py, || file.set_size(size)).map_err(raise)
    }

    /// Locks `length` bytes from `offset`, all from there on without a length. Waits for
    /// conflicting locks for `timeout` seconds, `None` for no timeout, then raises `LockedError`.
    #[pyo3(signature = (exclusive = true, offset = 0, length = None, timeout = None, persist = false,
        auto_recovery = false))]
    fn lock(
        &self,
        py: Python<'_>,
        exclusive: bool,
        offset: u64,
        length: Option<u64>,
        timeout: Option<f64>,
        persist: bool,
        auto_recovery: bool,
    ) -> PyResult<()> {
        let file = self.file()?;
        let range = range(exclusive, offset, length).persist(persist).auto_recovery(auto_recovery);
        let until = limited(timeout)?;
        loop {
            let time = slice(until);
            match blocking(py, || file.lock(&range, Some(time))) {
                Err(LockError::Held(_)) if until.is_none_or(|until| Instant::now() < until) => {
                    if let Some(raised) = raised() {
                        return Err(raised);
                    }
                    py.check_signals()?;
                }
                other => return other.map_err(raise_lock),
            }
        }
    }

    /// Locks a range, or raises `LockedError` at once.
    #[pyo3(signature = (exclusive = true, offset = 0, length = None, persist = false,
        auto_recovery = false))]
    fn try_lock(
        &self,
        py: Python<'_>,
        exclusive: bool,
        offset: u64,
        length: Option<u64>,
        persist: bool,
        auto_recovery: bool,
    ) -> PyResult<()> {
        let file = self.file()?;
        let range = range(exclusive, offset, length).persist(persist).auto_recovery(auto_recovery);
        blocking(py, || file.try_lock(&range)).map_err(raise_lock)
    }

    /// Undoes all writes to the file since it was locked with auto-recovery, and unlocks it.
    fn abort_lock(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file()?;
        blocking(py, || file.abort_lock()).map_err(raise)
    }

    /// Gives the file another name, or its first.
    fn link(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let file = self.file()?;
        let name = path::path(target, &self.session.base)?;
        blocking(py, || {
            let client = file.client();
            let place = client.resolve_new_from(&client.root(), &name)?;
            file.link(&place.dir, &place.name)
        })
        .map_err(raise_for(target))
    }

    /// Takes over the broken locks of a range, to repair the data; `unlock` ends the repair.
    #[pyo3(signature = (offset = 0, length = None))]
    fn lock_for_repair(&self, py: Python<'_>, offset: u64, length: Option<u64>) -> PyResult<()> {
        let file = self.file()?;
        let length = length.unwrap_or(u64::MAX);
        blocking(py, || file.lock_for_repair(offset, length)).map_err(raise_lock)
    }

    /// Releases the locks of this file in a range.
    #[pyo3(signature = (offset = 0, length = None))]
    fn unlock(&self, py: Python<'_>, offset: u64, length: Option<u64>) -> PyResult<()> {
        let file = self.file()?;
        blocking(py, || file.unlock(offset, length.unwrap_or(u64::MAX))).map_err(raise)
    }
}
