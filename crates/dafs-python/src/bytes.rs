//! New objects of Python's type `bytes`, filled by the server: not cleared before, and copied
//! afterwards only if fewer bytes came than there is room for.
//!
//! Invariants
//! * Only its maker sees the object before it is complete.
//! * Unfilled bytes are never visible.

use crate::memory::Span;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ptr;

/// An object that is being filled.
pub(crate) struct NewBytes<'py> {
    py: Python<'py>,
    /// An owned reference; null after it has been passed on.
    object: *mut ffi::PyObject,
    len: usize,
}

impl<'py> NewBytes<'py> {
    /// Room for `len` bytes.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn new(py: Python<'py>, len: usize) -> PyResult<Self> {
        let size = ffi::Py_ssize_t::try_from(len)
            .map_err(|_| pyo3::exceptions::PyMemoryError::new_err("the read is too long"))?;
        // SAFETY: without a source the object is new, and the caller may write its content. The
        // empty object has none.
        let object = unsafe { ffi::PyBytes_FromStringAndSize(ptr::null(), size) };
        match object.is_null() {
            true => Err(PyErr::fetch(py)),
            false => Ok(Self { py, object, len }),
        }
    }

    fn address(&self) -> *mut u8 {
        // SAFETY: it is an object of this type, as made above.
        unsafe { ffi::PyBytes_AsString(self.object) }.cast()
    }

    pub(crate) fn span(&self) -> Span {
        Span::of_new(self.address(), self.len)
    }

    /// An object of the first `len` bytes, which have been filled.
    pub(crate) fn finish(mut self, len: usize) -> Bound<'py, PyBytes> {
        assert!(len <= self.len, "more was read than there was room for");
        if len < self.len {
            // SAFETY: the first `len` bytes have been filled.
            let filled = unsafe { std::slice::from_raw_parts(self.address(), len) };
            return PyBytes::new(self.py, filled);
        }
        let object = std::mem::replace(&mut self.object, ptr::null_mut());
        // SAFETY: our reference is passed on with it, and it is of this type.
        unsafe { Bound::from_owned_ptr(self.py, object).cast_into_unchecked() }
    }
}

impl Drop for NewBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: our reference, if it is still there; the GIL is held, as `py` shows.
        unsafe { ffi::Py_XDECREF(self.object) };
    }
}
