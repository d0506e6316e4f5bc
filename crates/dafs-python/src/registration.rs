//! Memory of Python with a lasting registration.
//!
//! Invariants
//! * The memory is exported for as long as it is registered.

use crate::memory::{Exported, InUse, Span, release};
use crate::session::Session;
use dafs_mem::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// The registration of an object's memory, made by `Client.register`: for any number of operations
/// on any part of it.
#[pyclass(frozen, module = "dafs")]
pub(crate) struct Registration {
    session: Arc<Session>,
    /// `None` after its end.
    used: Mutex<Option<(InUse, Span)>>,
}

impl Registration {
    pub(crate) fn new(
        py: Python<'_>,
        session: Arc<Session>,
        memory: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let memory = Exported::writable(memory)?;
        let span = memory.span();
        let used = InUse::in_place(py, &session, memory)?;
        session.add(span.address(), &used.own);
        Ok(Self { session, used: Mutex::new(Some((used, span))) })
    }

    fn end(&self, py: Python<'_>) {
        let used = self.used.lock().take();
        if let Some((used, span)) = used {
            let known = self.session.remove(span.address(), &used.own);
            py.detach(|| drop(known));
            release(py, [used]);
        }
    }
}

#[pymethods]
impl Registration {
    /// Ends it; outstanding operations go on. A second call has no effect.
    fn close(&self, py: Python<'_>) {
        self.end(py);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.end(py);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Python exists, because it drops this.
        Python::try_attach(|py| self.end(py));
    }
}
