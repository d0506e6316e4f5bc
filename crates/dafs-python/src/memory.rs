//! Memory of Python's: exported buffers, and transfers between them and files.
//!
//! Invariants
//! * [`Exported`] keeps the memory where it is: its owner can neither resize nor free it.
//! * Nothing is written to memory that was exported read-only.

use crate::session::Session;
use dafs_client::{Error, File, IoBuffer, Result, Stability};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use std::ops::Range;

/// From here on registering the memory of a caller costs less than a copy. In bytes.
const REGISTER_BYTES_MIN: usize = 32 << 10;

/// The memory of an object that is not resized or freed while this is there. To be dropped with
/// Python's lock held.
pub(crate) struct Exported(PyUntypedBuffer);

/// Where exported memory lies. Whoever has one keeps the [`Exported`], too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    address: *mut u8,
    len: usize,
    read_only: bool,
}

// SAFETY: an address and a length; using them is what needs care.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Exported {
    /// Memory to be read from.
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

    /// Memory to be written to.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let this = Self::readable(object)?;
        if this.0.readonly() {
            return Err(PyTypeError::new_err("the buffer is read-only; give one that is writable"));
        }
        Ok(this)
    }

    pub(crate) fn span(&self) -> Span {
        let read_only = self.0.readonly();
        Span { address: self.0.buf_ptr().cast(), len: self.0.len_bytes(), read_only }
    }
}

impl Span {
    /// The memory of a new object that nobody else has seen yet.
    pub(crate) fn of_new(bytes: &mut [u8]) -> Self {
        Self { address: bytes.as_mut_ptr(), len: bytes.len(), read_only: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The bytes, to be read.
    ///
    /// # Safety
    /// What it was made of is kept, and not resized.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the export says that `len` bytes are there. Another thread of Python's may change
        // them meanwhile, as under every `write` of Python's; what is copied then is anybody's guess,
        // and nothing here depends on it.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    /// The bytes, to be written.
    ///
    /// # Safety
    /// As [`bytes`](Self::bytes); the memory is writable.
    pub(crate) unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as for `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }

    /// The memory, registered: what the client allocated as it is, else for as long as the result is
    /// there. It must be writable, because a peer could write to it.
    ///
    /// # Safety
    /// What it was made of is kept, and not resized, until the result and all operations on it are
    /// gone.
    pub(crate) unsafe fn register(self, session: &Session) -> Result<(IoBuffer, Range<usize>)> {
        if let Some(own) = session.own_buffer(self.address as usize, self.len) {
            return Ok(own);
        }
        if self.read_only {
            return Err(Error::Argument("memory that is read-only cannot be registered"));
        }
        // SAFETY: the caller's promise; nobody here holds a reference into it.
        let buffer = unsafe { session.client.register(self.address, self.len)? };
        Ok((buffer, 0..self.len))
    }

    /// Whether a transfer is better made in the memory itself than through a copy.
    fn wants_registration(&self, session: &Session) -> bool {
        if self.len == 0 || session.is_cached {
            return false;
        }
        session.own_buffer(self.address as usize, self.len).is_some()
            || (!self.read_only
                && self.len >= REGISTER_BYTES_MIN
                && !session.copies_foreign_memory())
    }
}

/// Fills `target` from `offset`, or as far as the file goes.
///
/// # Safety
/// What `target` was made of is kept, not resized, and writable.
pub(crate) unsafe fn read(
    session: &Session,
    file: &File,
    target: Span,
    offset: u64,
) -> Result<usize> {
    if target.wants_registration(session) {
        // SAFETY: the caller keeps the memory; nothing of a call that has returned reaches it.
        let (buffer, range) = unsafe { target.register(session)? };
        return file.read_into(&buffer, range, offset);
    }
    // SAFETY: the caller's promise.
    file.read_at(unsafe { target.bytes_mut() }, offset)
}

/// Writes all of `source` at `offset`.
///
/// # Safety
/// What `source` was made of is kept and not resized.
pub(crate) unsafe fn write(
    session: &Session,
    file: &File,
    source: Span,
    offset: u64,
) -> Result<usize> {
    if source.wants_registration(session) {
        // SAFETY: as in `read`.
        let (buffer, range) = unsafe { source.register(session)? };
        return file.write_from(&buffer, range, offset, Stability::Unstable);
    }
    // SAFETY: the caller's promise.
    file.write_at(unsafe { source.bytes() }, offset, Stability::Unstable)
}
