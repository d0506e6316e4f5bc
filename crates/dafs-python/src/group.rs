//! Completion groups: asynchronous transfers in memory of Python's.
//!
//! Invariants
//! * The memory of an operation is exported until its completion has been fetched.
//! * A group that goes away leaves the memory of what is still in flight exported for good, rather than
//!   let the server write to what is something else by then.

use crate::client::Client;
use crate::error::raise;
use crate::file::RawFile;
use crate::memory::Exported;
use crate::session::Session;
use crate::wait::{moment, slice};
use dafs_client::{Error, IoBuffer, OperationId, Stability};
use dafs_mem::Site;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a group that goes away waits for what is in flight.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Operations whose results are fetched together.
#[pyclass(frozen, subclass, module = "dafs")]
pub(crate) struct CompletionGroup {
    session: Arc<Session>,
    group: dafs_client::CompletionGroup,
    held: Mutex<HashMap<u64, Held>>,
    /// Fetched for somebody whose waiting a signal ended.
    ready: Mutex<Vec<Completion>>,
    next: AtomicU64,
}

/// What an operation needs until it is over.
struct Held {
    user_data: Py<PyAny>,
    // Dropped before `_memory`, which it may be.
    _registered: Option<IoBuffer>,
    _memory: Option<Exported>,
}

/// One operation that is over.
#[pyclass(frozen, module = "dafs")]
pub(crate) struct Completion {
    /// What was given with the operation.
    #[pyo3(get)]
    user_data: Py<PyAny>,
    /// Its number, as it was returned when it was submitted.
    #[pyo3(get)]
    operation: u64,
    result: Result<usize, Error>,
}

#[pymethods]
impl Completion {
    /// The bytes moved, which may be fewer than asked for; 0 for a commit. Raises what went wrong.
    fn result(&self) -> PyResult<usize> {
        self.result.clone().map_err(raise)
    }
}

impl CompletionGroup {
    fn held(&self) -> MutexGuard<'_, HashMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self) -> MutexGuard<'_, Vec<Completion>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits an operation and holds what it needs.
    fn submit(
        &self,
        py: Python<'_>,
        file: &RawFile,
        held: Held,
        start: impl FnOnce(u64, &dafs_client::File) -> Result<OperationId, Error> + Send,
    ) -> PyResult<u64> {
        let file = file.file()?;
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        // Before it is under way: another thread may fetch its completion at once.
        self.held().insert(key, held);
        match py.detach(|| start(key, &file)) {
            Ok(operation) => Ok(operation.to_u64()),
            Err(error) => {
                let held = self.held().remove(&key);
                drop(held);
                Err(raise(error))
            }
        }
    }

    fn done(&self, fetched: Vec<dafs_client::Completion>) -> Vec<Completion> {
        let mut done = Vec::with_capacity(fetched.len());
        for completion in fetched {
            let held = self.held().remove(&completion.user_data);
            if let Some(held) = held {
                done.push(Completion {
                    user_data: held.user_data,
                    operation: completion.operation.to_u64(),
                    result: completion.result,
                });
            }
        }
        done
    }

    fn prepare(&self, memory: Exported) -> PyResult<(Exported, IoBuffer, Range<usize>)> {
        let span = memory.span();
        // SAFETY: `memory` goes with the result to where both are held until the operation is over.
        let (buffer, range) = unsafe { span.register(&self.session) }.map_err(raise)?;
        Ok((memory, buffer, range))
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
    /// completion has been fetched the memory can be neither resized nor freed, and what is in it is
    /// anybody's guess.
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
        let (memory, buffer, range) = self.prepare(memory)?;
        let held = Held {
            user_data: user_data.unwrap_or_else(|| py.None()),
            _registered: Some(buffer.clone()),
            _memory: Some(memory),
        };
        self.submit(py, file, held, |key, file| self.group.read(key, file, &buffer, range, offset))
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
        let span = memory.span();
        if span.len() == 0 {
            return Err(PyValueError::new_err("nothing to write: the buffer is empty"));
        }
        let (memory, buffer, range) = if span.is_read_only() {
            let copy = py.detach(|| -> Result<_, Error> {
                let copy = self.session.client.buffer(span.len())?;
                // SAFETY: `memory` is kept until the copy is done.
                copy.view().copy_from(unsafe { span.bytes() }, Site::ClientStaging);
                Ok(copy)
            });
            (None, copy.map_err(raise)?, 0..span.len())
        } else {
            let (memory, buffer, range) = self.prepare(memory)?;
            (Some(memory), buffer, range)
        };
        let held = Held {
            user_data: user_data.unwrap_or_else(|| py.None()),
            _registered: Some(buffer.clone()),
            _memory: memory,
        };
        self.submit(py, file, held, |key, file| {
            self.group.write(key, file, &buffer, range, offset, Stability::Unstable)
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
        let user_data = user_data.unwrap_or_else(|| py.None());
        let held = Held { user_data, _registered: None, _memory: None };
        self.submit(py, file, held, |key, file| self.group.commit(key, file, offset, length))
    }

    /// What has completed. Never waits.
    fn poll(&self, py: Python<'_>) -> Vec<Completion> {
        let fetched = py.detach(|| {
            let mut fetched = Vec::new();
            self.group.poll(&mut fetched);
            fetched
        });
        let mut done = std::mem::take(&mut *self.ready());
        done.extend(self.done(fetched));
        done
    }

    /// Waits until `count` have completed (`None`: all), nothing is in flight any more, or `timeout`
    /// seconds have passed; returns what there is.
    #[pyo3(signature = (count = 1, timeout = None))]
    fn wait(
        &self,
        py: Python<'_>,
        count: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Completion>> {
        let until = moment(timeout)?;
        let count = count.unwrap_or(usize::MAX);
        let mut done = std::mem::take(&mut *self.ready());
        loop {
            let (time, wanted) = (slice(until), count.saturating_sub(done.len()));
            let (result, fetched) = py.detach(|| {
                let mut fetched = Vec::new();
                let result = self.group.wait(&mut fetched, wanted, Some(time));
                (result, fetched)
            });
            done.extend(self.done(fetched));
            match result {
                Ok(_) => return Ok(done),
                Err(Error::TimedOut(_)) => {
                    if until.is_some_and(|until| Instant::now() >= until) || done.len() >= count {
                        return Ok(done);
                    }
                    if let Err(error) = py.check_signals() {
                        // What has been fetched is for the next one who asks.
                        self.ready().extend(done);
                        return Err(error);
                    }
                }
                Err(error) if done.is_empty() => return Err(raise(error)),
                Err(_) => return Ok(done),
            }
        }
    }

    /// Operations in flight; those that wait to be fetched are not among them.
    #[getter]
    fn in_flight(&self) -> usize {
        self.group.in_flight()
    }

    /// Gives an operation up if the server cannot reach its memory now; true when it is over. Its
    /// completion comes as always.
    fn cancel(&self, py: Python<'_>, operation: u64) -> bool {
        py.detach(|| self.group.cancel(OperationId::from_u64(operation)))
    }

    /// A descriptor that is readable while completions wait to be fetched. It must not be read.
    fn fileno(&self) -> PyResult<i32> {
        self.group.descriptor().map(|descriptor| descriptor.as_raw_fd()).map_err(raise)
    }
}

impl Drop for CompletionGroup {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *self.held());
        if held.is_empty() {
            return;
        }
        Python::attach(|py| {
            let over =
                py.detach(|| self.group.wait(&mut Vec::new(), usize::MAX, Some(LAST_WAIT)).is_ok());
            if !over {
                std::mem::forget(held);
            }
        });
    }
}
