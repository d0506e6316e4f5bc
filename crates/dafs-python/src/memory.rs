//! Memory of Python: exported buffers, and transfers between them and files.
//!
//! Invariants
//! * [`Exported`] pins the memory: its owner can neither resize nor free it.
//! * Memory that was exported read-only is never written.
//! * Addresses are looked up with the GIL held; calls that may wait run without it.

use crate::error::raise;
use crate::session::{Registered, Session};
use dafs_client::{Error, File, IoBuffer, Result, Stability};
use dafs_mem::{CheckedSlice, Site};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

/// Length from which on registering the memory of a caller costs less than a copy. In bytes.
const REGISTER_BYTES_MIN: usize = 32 << 10;

/// The memory of an object that is not resized or freed while this exists. Drop it with the GIL
/// held.
pub(crate) struct Exported(PyUntypedBuffer);

/// The address of exported memory. Its holder keeps the [`Exported`], too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    address: *mut u8,
    len: usize,
    read_only: bool,
}

// SAFETY: an address and a length; only their use is unsafe.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Exported {
    /// Memory for reads of its content.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = match PyUntypedBuffer::get(object) {
            Ok(buffer) => buffer,
            // Tensors of torch have no buffer of their own, but share one with an array.
            Err(error) => match object.getattr("numpy") {
                Ok(method) => PyUntypedBuffer::get(&method.call0()?)?,
                Err(_) => return Err(error),
            },
        };
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not one contiguous piece of memory"));
        }
        Ok(Self(buffer))
    }

    /// Memory for writes to it.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let this = Self::readable(object)?;
        if this.0.readonly() {
            return Err(PyTypeError::new_err("the buffer is read-only; give one that is writable"));
        }
        if !this.is_of(object) {
            let text = "the array that the object gives may be a copy; give one with a buffer";
            return Err(PyTypeError::new_err(text));
        }
        Ok(this)
    }

    /// True if this is the object's memory, and not a copy made by it.
    fn is_of(&self, object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the object exists; the call only checks whether it has a buffer.
        let has_buffer = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1;
        if has_buffer || self.0.len_bytes() == 0 {
            return true;
        }
        let address = object.call_method0("data_ptr").and_then(|at| at.extract::<usize>());
        address.is_ok_and(|address| address == self.0.buf_ptr() as usize)
    }

    pub(crate) fn span(&self) -> Span {
        let read_only = self.0.readonly();
        Span { address: self.0.buf_ptr().cast(), len: self.0.len_bytes(), read_only }
    }
}

impl Span {
    /// The memory of a new object that no other code has seen yet.
    pub(crate) fn of_new(address: *mut u8, len: usize) -> Self {
        Self { address, len, read_only: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> usize {
        self.address as usize
    }

    /// The memory. In a mapping of a file that is truncated meanwhile, an access fails with an
    /// error.
    ///
    /// # Safety
    /// The source object is kept, and not resized; for writes it is writable.
    pub(crate) unsafe fn checked<'a>(self) -> CheckedSlice<'a> {
        // SAFETY: the export guarantees `len` bytes. Another thread of Python may change them
        // meanwhile, as under every `write` of Python. The copied content is undefined then, and no
        // code here depends on it.
        unsafe { CheckedSlice::callers(self.address, self.len) }
    }

    /// The memory, registered for the lifetime of the result. It must be writable, because a peer
    /// could write to it.
    ///
    /// # Safety
    /// The source object is kept, and not resized, until the result and all operations on it are
    /// gone.
    pub(crate) unsafe fn register(self, session: &Session) -> Result<IoBuffer> {
        if self.read_only {
            return Err(Error::Argument("memory that is read-only cannot be registered"));
        }
        // SAFETY: the caller's promise; no code here holds a reference into it.
        unsafe { session.client.register(self.address, self.len) }
    }
}

/// Memory of one synchronous transfer, and its registration.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    session: &'a Session,
    span: Span,
    /// Set if the client has registered it.
    own: Option<Registered>,
}

impl<'a> Place<'a> {
    /// Call it with the GIL held.
    pub(crate) fn of(session: &'a Session, span: Span) -> PyResult<Self> {
        let own = match session.is_cached {
            // Cached data is better copied out of the cache.
            true => Session::check(span).map(|()| None)?,
            false => session.own(span)?,
        };
        Ok(Self { session, span, own })
    }

    /// True if a transfer is faster in the memory itself than through a copy.
    fn wants_registration(&self) -> bool {
        !self.session.is_cached
            && !self.span.read_only
            && self.span.len >= REGISTER_BYTES_MIN
            && !self.session.copies_foreign_memory()
    }

    /// Fills it from `offset`, up to the end of the file.
    ///
    /// # Safety
    /// The source object is kept, not resized, and writable.
    pub(crate) unsafe fn read(self, file: &File, offset: u64) -> Result<usize> {
        if let Some(own) = self.own {
            let result = file.read_into(&own.buffer, own.range.clone(), offset);
            own.note(&result);
            return result;
        }
        if self.wants_registration() {
            // SAFETY: the caller keeps the memory; no access remains after the call has returned.
            let buffer = unsafe { self.span.register(self.session)? };
            return file.read_into(&buffer, 0..self.span.len, offset);
        }
        // SAFETY: the caller's promise.
        file.read_checked(unsafe { self.span.checked() }, offset)
    }

    /// Writes all of it at `offset`.
    ///
    /// # Safety
    /// The source object is kept and not resized.
    pub(crate) unsafe fn write(self, file: &File, offset: u64) -> Result<usize> {
        if let Some(own) = self.own {
            let result =
                file.write_from(&own.buffer, own.range.clone(), offset, Stability::Unstable);
            own.note(&result);
            return result;
        }
        if self.wants_registration() {
            // SAFETY: as in `read`.
            let buffer = unsafe { self.span.register(self.session)? };
            return file.write_from(&buffer, 0..self.span.len, offset, Stability::Unstable);
        }
        // SAFETY: the caller's promise.
        file.write_checked(unsafe { self.span.checked() }, offset, Stability::Unstable)
    }
}

/// Memory of an asynchronous operation: registered and exported until this is dropped.
pub(crate) struct InUse {
    pub(crate) own: Registered,
    /// `None` where `own` is a copy.
    memory: Option<Exported>,
}

impl InUse {
    /// Memory for writes to it, or for reads in place.
    pub(crate) fn in_place(py: Python<'_>, session: &Session, memory: Exported) -> PyResult<Self> {
        let span = memory.span();
        if let Some(own) = session.own(span)? {
            return Ok(Self { own, memory: Some(memory) });
        }
        // SAFETY: `memory` goes with the result, which holds both until the operation is over.
        let buffer = py.detach(|| unsafe { span.register(session) });
        let own = Registered::borrowed(buffer.map_err(raise)?, 0..span.len);
        Ok(Self { own, memory: Some(memory) })
    }

    /// Memory for reads; a copy if it is read-only.
    pub(crate) fn source(py: Python<'_>, session: &Session, memory: Exported) -> PyResult<Self> {
        let span = memory.span();
        if !span.read_only {
            return Self::in_place(py, session, memory);
        }
        let copy = py.detach(|| -> Result<_> {
            let copy = session.client.buffer(span.len)?;
            // SAFETY: `memory` is kept until the copy is done.
            unsafe { span.checked() }.copy_to(copy.view(), Site::ClientStaging)?;
            Ok(copy)
        });
        let own = Registered::borrowed(copy.map_err(raise)?, 0..span.len);
        Ok(Self { own, memory: None })
    }

    /// True if an operation may still access memory other than the client's.
    pub(crate) fn is_reached(&self) -> bool {
        self.memory.is_some() && self.own.buffer.is_shared()
    }
}

/// Ends the use of memory. The end of a registration may wait, so it runs without the GIL; the
/// export ends afterwards.
pub(crate) fn release(py: Python<'_>, used: impl IntoIterator<Item = InUse>) {
    let (own, memory): (Vec<_>, Vec<_>) =
        used.into_iter().map(|used| (used.own, used.memory)).unzip();
    if !own.is_empty() {
        py.detach(|| drop(own));
    }
    drop(memory);
}
