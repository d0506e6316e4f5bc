//! Memory for transfers without any copy, with Python's buffer protocol.

use crate::session::{Registered, Session};
use crate::wait::drop_detached;
use dafs_client::IoBuffer;
use dafs_mem::VolatileSlice;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Arc;

/// Registered memory of a client, made by `Client.buffer`. Operations of that client on any part of
/// it, also through a memoryview or an array over it, move data without a copy.
#[pyclass(frozen, module = "dafs")]
pub(crate) struct Buffer {
    /// Taken out by `drop`.
    own: Option<Registered>,
    session: Arc<Session>,
}

impl Buffer {
    pub(crate) fn new(session: Arc<Session>, io: IoBuffer) -> Self {
        let own = match session.copies_foreign_memory() {
            true => Registered::shared(io),
            false => {
                let range = 0..io.len();
                Registered::borrowed(io, range)
            }
        };
        let address = own.buffer.view().as_ptr() as usize;
        session.add(address, &own);
        Session::remember(address, &own);
        Self { own: Some(own), session }
    }

    fn view(&self) -> VolatileSlice<'_> {
        // INVARIANT: only `drop` takes it out.
        self.own.as_ref().expect("there until the end").buffer.view()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            let address = own.buffer.view().as_ptr() as usize;
            let known = self.session.remove(address, &own);
            Session::forget(address);
            drop_detached((own, known));
        }
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.view().len()
    }

    /// # Safety
    /// Python gives a structure to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no room for the view"));
        }
        let memory = slf.get().view();
        let Ok(len) = ffi::Py_ssize_t::try_from(memory.len()) else {
            return Err(PyBufferError::new_err("the buffer is too long"));
        };
        // SAFETY: `view` is Python's to be filled; the memory stays while the object does, on which the
        // view takes a reference.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.as_ptr().cast(), len, 0, flags)
        };
        match result {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
