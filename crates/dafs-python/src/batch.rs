//! Batches: many transfers in few messages.
//!
//! Invariants
//! * The memory of a batch is exported until all of its transfers are over.

use crate::error::raise;
use crate::file::RawFile;
use crate::group::{Completion, Held};
use crate::memory::{Exported, InUse, release};
use crate::session::Session;
use crate::wait::{blocking, seconds};
use dafs_client::{Error, IoBuffer};
use dafs_mem::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Reads and writes that are sent together, made by `Client.batch`.
#[pyclass(frozen, subclass, module = "dafs")]
pub(crate) struct Batch {
    session: Arc<Session>,
    /// `None` when it has been sent.
    gathered: Mutex<Option<Gathered>>,
}

/// The added transfers.
pub(crate) struct Gathered {
    pub(crate) batch: dafs_client::Batch,
    pub(crate) held: Vec<Held>,
}

const SENT: &str = "the batch has been sent; begin another one";

type Ranges = Vec<(u64, usize)>;

impl Batch {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        let gathered = Gathered { batch: session.client.batch(), held: Vec::new() };
        Self { session, gathered: Mutex::new(Some(gathered)) }
    }

    /// Takes the added transfers, to send them.
    pub(crate) fn take(&self) -> PyResult<Gathered> {
        let gathered = self.gathered.lock().take();
        gathered.ok_or_else(|| PyValueError::new_err(SENT))
    }

    fn put_back(&self, gathered: Gathered) {
        *self.gathered.lock() = Some(gathered);
    }

    fn add(
        &self,
        py: Python<'_>,
        used: Vec<InUse>,
        user_data: Option<Py<PyAny>>,
        add: impl FnOnce(&mut dafs_client::Batch, &[(&IoBuffer, Range<usize>)]) -> Result<usize, Error>
        + Send,
    ) -> PyResult<usize> {
        // Taken out meanwhile: adding may send a request to the server.
        let mut gathered = self.take()?;
        let memory: Vec<_> =
            used.iter().map(|used| (&used.own.buffer, used.own.range.clone())).collect();
        let added = blocking(py, || add(&mut gathered.batch, &memory));
        drop(memory);
        let result = match added {
            Ok(place) => {
                let user_data = Some(user_data.unwrap_or_else(|| py.None()));
                gathered.held.push(Held { user_data, used });
                Ok(place)
            }
            Err(error) => {
                release(py, used);
                Err(raise(error))
            }
        };
        self.put_back(gathered);
        result
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        let gathered = self.gathered.lock();
        gathered.as_ref().map_or(0, |gathered| gathered.held.len())
    }

    /// Adds a read of `ranges` of a file, as offset and length, into `targets`.
    #[pyo3(signature = (file, ranges, targets, user_data = None))]
    fn read(
        &self,
        py: Python<'_>,
        file: &RawFile,
        ranges: Ranges,
        targets: Vec<Bound<'_, PyAny>>,
        user_data: Option<Py<PyAny>>,
    ) -> PyResult<usize> {
        let file = file.file()?;
        let mut used = Vec::with_capacity(targets.len());
        for target in &targets {
            let memory = Exported::writable(target)?;
            used.push(InUse::in_place(py, &self.session, memory)?);
        }
        self.add(py, used, user_data, |batch, memory| batch.read(&file, &ranges, memory))
    }

    /// Adds a write of `sources` to `ranges` of a file.
    #[pyo3(signature = (file, ranges, sources, user_data = None))]
    fn write(
        &self,
        py: Python<'_>,
        file: &RawFile,
        ranges: Ranges,
        sources: Vec<Bound<'_, PyAny>>,
        user_data: Option<Py<PyAny>>,
    ) -> PyResult<usize> {
        let file = file.file()?;
        let mut used = Vec::with_capacity(sources.len());
        for source in &sources {
            let memory = Exported::readable(source)?;
            used.push(InUse::source(py, &self.session, memory)?);
        }
        self.add(py, used, user_data, |batch, memory| batch.write(&file, &ranges, memory))
    }

    /// Sends all and waits; returns a completion for each, in the order in which they were added.
    fn run(&self, py: Python<'_>) -> PyResult<Vec<Completion>> {
        let Gathered { batch, held } = self.take()?;
        match blocking(py, || batch.run()) {
            Ok(results) => {
                let mut done = Vec::with_capacity(held.len());
                for (place, (held, result)) in held.into_iter().zip(results).enumerate() {
                    done.push(held.completed(py, place as u64, result));
                }
                Ok(done)
            }
            Err(error) => {
                for held in held {
                    held.failed(py, &error);
                }
                Err(raise(error))
            }
        }
    }
}

/// Sets the time in which the server may gather and order the transfers of a batch; `None` for
/// none.
pub(crate) fn window(
    batch: dafs_client::Batch,
    window: Option<f64>,
) -> PyResult<dafs_client::Batch> {
    let Some(time) = window else { return Ok(batch) };
    let time = seconds(time)?.ok_or_else(|| PyValueError::new_err("the window is too long"))?;
    Ok(batch.asynchronous(time, 0))
}
