//! Memory that the server reads and writes directly.

use crate::boundary::call_plainly;
use crate::error::{DAP_E_BUSY, Failure, invalid};
use crate::handle::{dap_buffer_t, dap_session_t, tables};
use crate::pointer::{Out, check_len, check_write};
use crate::session::session;
use dafs_client::IoBuffer;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// The object behind a buffer handle.
pub(crate) struct Buffer {
    pub(crate) io: IoBuffer,
    range: Range<usize>,
    /// The registration belongs to the cache.
    is_lent: bool,
}

pub(crate) fn buffer(handle: dap_buffer_t) -> Result<Arc<Buffer>, Failure> {
    tables().buffers.get(handle.id)
}

impl Buffer {
    /// The range of `len` bytes from `at` in the registration.
    pub(crate) fn part(&self, at: usize, len: usize) -> Result<Range<usize>, Failure> {
        let end = at.checked_add(len).filter(|end| *end <= self.range.len());
        let end = end.ok_or(invalid("the range leaves the buffer"))?;
        Ok(self.range.start + at..self.range.start + end)
    }
}

fn some(bytes: usize) -> Result<(), Failure> {
    match bytes {
        0 => Err(invalid("a buffer has at least one byte")),
        _ => check_len(bytes),
    }
}

/// Makes a buffer of zeros where this session's transport moves data fastest, and returns its
/// address.
///
/// Threads: any.
///
/// # Safety
/// `buffer` is null or good for a handle, `address` for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_buffer_alloc(
    handle: dap_session_t,
    bytes: usize,
    buffer: *mut dap_buffer_t,
    address: *mut *mut c_void,
) -> i32 {
    call_plainly(|| {
        some(bytes)?;
        // SAFETY: as the caller promises.
        let (out, start) = unsafe { (Out::new(buffer)?, Out::new(address)?) };
        let io = session(handle)?.client.buffer(bytes)?;
        let at = io.view().as_ptr();
        let buffer = Buffer { io, range: 0..bytes, is_lent: false };
        out.set(dap_buffer_t { id: tables().buffers.add(buffer)? });
        start.set(at.cast());
        Ok(())
    })
}

/// Registers memory of the caller, for use in place: DAP_E_FAULT if it is not mapped or not
/// writable. It must stay mapped until dap_unregister() has succeeded.
///
/// Threads: any.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_register(
    handle: dap_session_t,
    memory: *mut c_void,
    bytes: usize,
    buffer: *mut dap_buffer_t,
) -> i32 {
    call_plainly(|| {
        some(bytes)?;
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(buffer) }?;
        let session = session(handle)?;
        check_write(memory, bytes)?;
        // SAFETY: found to be writable, and the caller keeps it.
        let io = unsafe { session.client.register(memory.cast(), bytes) }?;
        let buffer = Buffer { io, range: 0..bytes, is_lent: false };
        out.set(dap_buffer_t { id: tables().buffers.add(buffer)? });
        Ok(())
    })
}

/// As dap_register(), but the registration is cached: cheap for memory that was lent before.
/// dap_unregister() closes the handle; the memory may be unmapped after dap_forget_memory() has
/// succeeded. A heap block may be freed and used for another purpose without that, if the heap
/// keeps it mapped.
///
/// Threads: any.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_lend(
    handle: dap_session_t,
    memory: *mut c_void,
    bytes: usize,
    buffer: *mut dap_buffer_t,
) -> i32 {
    call_plainly(|| {
        some(bytes)?;
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(buffer) }?;
        let session = session(handle)?;
        // SAFETY: as the caller promises.
        let lent = unsafe { session.client.lend(memory.cast(), bytes) }?;
        let buffer = Buffer { io: lent.buffer, range: lent.range, is_lent: true };
        out.set(dap_buffer_t { id: tables().buffers.add(buffer)? });
        Ok(())
    })
}

/// Ends the cached registrations of this memory, from dap_lend() and the functions on any memory,
/// so that it can be unmapped: after success the server cannot access it any more. DAP_E_BUSY while
/// an operation or a buffer handle uses it.
///
/// Threads: any.
///
/// # Safety
/// The memory is not accessed: any pointer will do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_forget_memory(
    handle: dap_session_t,
    memory: *const c_void,
    bytes: usize,
) -> i32 {
    call_plainly(|| Ok(session(handle)?.client.forget_memory(memory.cast(), bytes)?))
}

/// The address and the length of a buffer.
///
/// Threads: any.
///
/// # Safety
/// `address` is null or good for a pointer, `bytes` for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_buffer_memory(
    handle: dap_buffer_t,
    address: *mut *mut c_void,
    bytes: *mut usize,
) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let (start, len) = unsafe { (Out::optional(address)?, Out::optional(bytes)?) };
        let buffer = buffer(handle)?;
        if let Some(start) = start {
            start.set(buffer.io.view().as_ptr().wrapping_add(buffer.range.start).cast());
        }
        if let Some(len) = len {
            len.set(buffer.range.len());
        }
        Ok(())
    })
}

/// Ends a registration, or frees a buffer of dap_buffer_alloc(). After success the server cannot
/// access the memory any more. DAP_E_BUSY while an operation uses it: the buffer stays as it is.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn dap_unregister(handle: dap_buffer_t) -> i32 {
    call_plainly(|| {
        let unused = |buffer: &Buffer| match buffer.io.is_shared() && !buffer.is_lent {
            true => {
                Err(Failure::new(DAP_E_BUSY, "an operation uses the buffer; wait for it first"))
            }
            false => Ok(()),
        };
        tables().buffers.remove(handle.id, unused).map(drop)
    })
}
