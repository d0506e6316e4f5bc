//! Completion groups: asynchronous transfers in memory of Python.
//!
//! Invariants
//! * The memory of an operation is exported until its completion has been fetched.
//! * When a group is dropped, the memory of outstanding operations stays exported until these have
//!   ended. Otherwise the server could write to memory that has been reused. No thread waits for
//!   that.

use crate::batch::{self, Batch, Gathered};
use crate::client::Client;
use crate::error::raise;
use crate::file::RawFile;
use crate::memory::{Exported, InUse, release};
use crate::session::{Registered, Session};
use crate::wait::{blocking, limited, slice};
use dafs_client::{Error, OperationId, Stability};
use dafs_mem::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Groups dropped with outstanding operations. Only locked with the GIL held, so that a fork finds
/// it free.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// True if there may be any.
static ANY_LEFT: AtomicBool = AtomicBool::new(false);

/// The rest of a dropped group.
struct Left {
    group: dafs_client::CompletionGroup,
    used: Vec<InUse>,
}

impl Left {
    /// Makes progress. Returns true if no operation is outstanding any more.
    fn is_over(&self, py: Python<'_>) -> bool {
        py.detach(|| {
            let mut fetched = Vec::new();
            self.group.poll(&mut fetched);
            // The memory of each completion is unknown here, so all is marked.
            for completion in fetched {
                self.used.iter().for_each(|used| used.own.note(&completion.result));
            }
            self.group.in_flight() == 0
        })
    }
}

/// Releases the memory of operations that have ended since their group was dropped.
pub(crate) fn sweep(py: Python<'_>) {
    if !ANY_LEFT.swap(false, Ordering::Relaxed) {
        return;
    }
    let left = std::mem::take(&mut *LEFT.lock());
    let (over, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|left| left.is_over(py));
    leave(left);
    release(py, over.into_iter().flat_map(|left| left.used));
}

fn leave(left: impl IntoIterator<Item = Left>) {
    let mut all = LEFT.lock();
    all.extend(left);
    ANY_LEFT.store(!all.is_empty(), Ordering::Relaxed);
}

/// Operations whose results are fetched together.
#[pyclass(frozen, subclass, module = "dafs")]
pub(crate) struct CompletionGroup {
    session: Arc<Session>,
    group: dafs_client::CompletionGroup,
    held: Mutex<HashMap<u64, Held>>,
    /// Fetched by a wait that a signal interrupted.
    ready: Mutex<Vec<Completion>>,
    next: AtomicU64,
}

/// The resources of an operation until it has completed.
pub(crate) struct Held {
    /// `None` when the garbage collector has taken it.
    pub(crate) user_data: Option<Py<PyAny>>,
    pub(crate) used: Vec<InUse>,
}

impl Held {
    /// Ends the use of the memory, and makes the completion.
    pub(crate) fn completed(
        self,
        py: Python<'_>,
        operation: u64,
        result: Result<usize, Error>,
    ) -> Completion {
        self.used.iter().for_each(|used| used.own.note(&result));
        // In a batch, other transfers may have failed in a way that leaves them with the server.
        match result.is_err() && self.used.iter().any(InUse::is_reached) {
            true => std::mem::forget(self.used),
            false => release(py, self.used),
        }
        let user_data = self.user_data.unwrap_or_else(|| py.None());
        Completion { user_data, operation, result }
    }

    /// Ends the use of the memory after a call that failed. Memory that the server may still access
    /// stays exported for good.
    pub(crate) fn failed(self, py: Python<'_>, error: &Error) {
        drop(self.completed(py, 0, Err(error.clone())));
    }
}

/// One completed operation.
#[pyclass(frozen, module = "dafs")]
pub(crate) struct Completion {
    /// The caller's object from the submission.
    #[pyo3(get)]
    user_data: Py<PyAny>,
    /// Its number, from the submission.
    #[pyo3(get)]
    operation: u64,
    result: Result<usize, Error>,
}

#[pymethods]
impl Completion {
    /// The bytes moved, which may be fewer than requested; 0 for a commit; the file offset of an
    /// append. Raises the error of a failed operation.
    fn result(&self) -> PyResult<usize> {
        self.result.clone().map_err(raise)
    }
}

impl CompletionGroup {
    /// Submits an operation and holds its resources.
    fn submit(
        &self,
        py: Python<'_>,
        file: &RawFile,
        user_data: Option<Py<PyAny>>,
        used: Option<InUse>,
        start: impl FnOnce(u64, &dafs_client::File) -> Result<OperationId, Error> + Send,
    ) -> PyResult<u64> {
        let file = file.file()?;
        let user_data = Some(user_data.unwrap_or_else(|| py.None()));
        let key = self.hold(Held { user_data, used: used.into_iter().collect() });
        match blocking(py, || start(key, &file)) {
            Ok(operation) => Ok(operation.to_u64()),
            Err(error) => {
                self.let_go(py, [key]);
                Err(raise(error))
            }
        }
    }

    /// Called before the submission: another thread may fetch the completion at once.
    fn hold(&self, held: Held) -> u64 {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        self.held.lock().insert(key, held);
        key
    }

    /// Releases the resources of operations that were not submitted.
    fn let_go(&self, py: Python<'_>, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            let held = self.held.lock().remove(&key);
            if let Some(held) = held {
                release(py, held.used);
            }
        }
    }

    fn done(&self, py: Python<'_>, fetched: Vec<dafs_client::Completion>) -> Vec<Completion> {
        let mut done = Vec::with_capacity(fetched.len());
        let mut used = Vec::new();
        for completion in fetched {
            let held = self.held.lock().remove(&completion.user_data);
            if let Some(held) = held {
                held.used.iter().for_each(|used| used.own.note(&completion.result));
                used.extend(held.used);
                done.push(Completion {
                    user_data: held.user_data.unwrap_or_else(|| py.None()),
                    operation: completion.operation.to_u64(),
                    result: completion.result,
                });
            }
        }
        release(py, used);
        done
    }
}

#[pymethods]
impl CompletionGroup {
    #[new]
    fn new(py: Python<'_>, client: &Client) -> PyResult<Self> {
        let session = client.session(py)?;
        let group = session.client.completion_group();
        Ok(Self {
            session,
            group,
            held: Mutex::default(),
            ready: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// Starts a read into `target` from `offset`; returns the number of the operation. Until its
    /// completion has been fetched the memory can be neither resized nor freed, and its content is
    /// undefined.
    #[pyo3(signature = (file, target, offset, user_data = None))]
    fn read_into(
        &self,
        py: Python<'_>,
        file: &RawFile,
        target: &Bound<'_, PyAny>,
        offset: u64,
        user_data: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let memory = Exported::writable(target)?;
        if memory.span().len() == 0 {
            return Err(PyValueError::new_err("nothing to read into: the buffer is empty"));
        }
        let used = InUse::in_place(py, &self.session, memory)?;
        let Registered { buffer, range, .. } = used.own.clone();
        self.submit(py, file, user_data, Some(used), |key, file| {
            self.group.read(key, file, &buffer, range, offset)
        })
    }

    /// Starts a write of `source` at `offset`; returns the number of the operation. Read-only memory
    /// is copied first.
    #[pyo3(signature = (file, source, offset, user_data = None))]
    fn write(
        &self,
        py: Python<'_>,
        file: &RawFile,
        source: &Bound<'_, PyAny>,
        offset: u64,
        user_data: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let memory = Exported::readable(source)?;
        if memory.span().len() == 0 {
            return Err(PyValueError::new_err("nothing to write: the buffer is empty"));
        }
        let used = InUse::source(py, &self.session, memory)?;
        let Registered { buffer, range, .. } = used.own.clone();
        self.submit(py, file, user_data, Some(used), |key, file| {
            self.group.write(key, file, &buffer, range, offset, Stability::Unstable)
        })
    }

    /// Starts an atomic, stable append of `source`; returns the number of the operation, whose
    /// result is the offset. Read-only memory is copied first.
    #[pyo3(signature = (file, source, user_data = None))]
    fn append(
        &self,
        py: Python<'_>,
        file: &RawFile,
        source: &Bound<'_, PyAny>,
        user_data: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let memory = Exported::readable(source)?;
        if memory.span().len() == 0 {
            return Err(PyValueError::new_err("nothing to append: the buffer is empty"));
        }
        let used = InUse::source(py, &self.session, memory)?;
        let Registered { buffer, range, .. } = used.own.clone();
        self.submit(py, file, user_data, Some(used), |key, file| {
            self.group.append(key, file, &buffer, range, Stability::FileSync)
        })
    }

    /// Starts to make `length` bytes from `offset` stable; 0 for all from there on.
    #[pyo3(signature = (file, offset = 0, length = 0, user_data = None))]
    fn commit(
        &self,
        py: Python<'_>,
        file: &RawFile,
        offset: u64,
        length: u64,
        user_data: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        self.submit(py, file, user_data, None, |key, file| {
            self.group.commit(key, file, offset, length)
        })
    }

    /// Sends a batch; each of its transfers has a completion of its own. With a `window`, in
    /// seconds, the server may gather and order them for that time, and reports each by itself.
    /// Returns their numbers.
    #[pyo3(signature = (batch, window = None))]
    fn submit_batch(
        &self,
        py: Python<'_>,
        batch: &Batch,
        window: Option<f64>,
    ) -> PyResult<Vec<u64>> {
        let Gathered { batch, held } = batch.take()?;
        let batch = batch::window(batch, window)?;
        let keys: Vec<_> = held.into_iter().map(|held| self.hold(held)).collect();
        match blocking(py, || self.group.batch(batch, |place| keys[place])) {
            Ok(operations) => Ok(operations.into_iter().map(OperationId::to_u64).collect()),
            Err(error) => {
                self.let_go(py, keys);
                Err(raise(error))
            }
        }
    }

    /// The completions that have come. Never waits.
    fn poll(&self, py: Python<'_>) -> Vec<Completion> {
        let fetched = py.detach(|| {
            let mut fetched = Vec::new();
            self.group.poll(&mut fetched);
            fetched
        });
        let mut done = std::mem::take(&mut *self.ready.lock());
        done.extend(self.done(py, fetched));
        done
    }

    /// Waits until `count` have completed (`None`: all), no operation is outstanding any more, or
    /// `timeout` seconds have passed; returns the completions.
    #[pyo3(signature = (count = 1, timeout = None))]
    fn wait(
        &self,
        py: Python<'_>,
        count: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Completion>> {
        let until = limited(timeout)?;
        let count = count.unwrap_or(usize::MAX);
        let mut done = std::mem::take(&mut *self.ready.lock());
        loop {
            let (time, wanted) = (slice(until), count.saturating_sub(done.len()));
            let (result, fetched) = py.detach(|| {
                let mut fetched = Vec::new();
                let result = self.group.wait(&mut fetched, wanted, Some(time));
                (result, fetched)
            });
            done.extend(self.done(py, fetched));
            match result {
                Ok(_) => return Ok(done),
                Err(Error::TimedOut(_)) => {
                    if until.is_some_and(|until| Instant::now() >= until) || done.len() >= count {
                        return Ok(done);
                    }
                    if let Err(error) = py.check_signals() {
                        // The next call returns the fetched completions.
                        self.ready.lock().extend(done);
                        return Err(error);
                    }
                }
                Err(error) if done.is_empty() => return Err(raise(error)),
                Err(_) => return Ok(done),
            }
        }
    }

    /// Number of outstanding operations, without completions that wait to be fetched.
    #[getter]
    fn in_flight(&self) -> usize {
        self.group.in_flight()
    }

    /// Cancels an operation if the server cannot access its memory now; true if it is cancelled.
    /// Else the server is asked to take it out if it has not begun. Its completion comes in any
    /// case: `errno.ECANCELED` says that nothing of it has happened, unless the connection was lost
    /// meanwhile.
    fn cancel(&self, py: Python<'_>, operation: u64) -> bool {
        py.detach(|| self.group.cancel(OperationId::from_u64(operation)))
    }

    /// Asks the server not to wait any longer for the window of an asynchronous batch, for one of
    /// its transfers.
    fn expedite(&self, py: Python<'_>, operation: u64) -> PyResult<()> {
        blocking(py, || self.group.expedite(OperationId::from_u64(operation))).map_err(raise)
    }

    /// Promises a poll soon after submissions, which gather until then.
    fn _promise_polls(&self) {
        self.group.promise_polls();
    }

    /// A descriptor that is readable while completions wait to be fetched. It must not be read.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        py.detach(|| self.group.descriptor().map(|descriptor| descriptor.as_raw_fd()))
            .map_err(raise)
    }

    // A caller's object may refer back to the group, as the futures of tasks do.

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Locked only for a few instructions that collect no garbage, but the collector must never
        // wait.
        if let Some(held) = self.held.try_lock() {
            held.values().try_for_each(|held| visit.call(&held.user_data))?;
        }
        if let Some(ready) = self.ready.try_lock() {
            ready.iter().try_for_each(|completion| visit.call(&completion.user_data))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let given: Vec<_> =
            self.held.lock().values_mut().map(|held| held.user_data.take()).collect();
        let ready = std::mem::take(&mut *self.ready.lock());
        // Dropped without the lock: their destructors may run any code.
        drop((given, ready));
    }
}

impl Drop for CompletionGroup {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *self.held.lock());
        if held.is_empty() {
            return;
        }
        let mut held = Some(held);
        Python::try_attach(|py| {
            let held = held.take().into_iter().flatten();
            let used = held.flat_map(|(_, held)| held.used).collect();
            let left = Left { group: self.group.clone(), used };
            leave([left]);
            sweep(py);
        });
        // At interpreter shutdown, Python can no longer release memory.
        std::mem::forget(held);
    }
}
