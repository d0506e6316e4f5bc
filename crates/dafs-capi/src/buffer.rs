//! Memory that the server reads and writes itself.

use crate::border::cross_plainly;
use crate::error::{DAP_E_BUSY, DAP_E_INVALID, Failure};
use crate::handle::{dap_buffer_t, dap_session_t, tables};
use crate::pointer::{Out, check_len, check_write};
use crate::session::session;
use dafs_client::IoBuffer;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// What a buffer handle stands for.
pub(crate) struct Buffer {
    pub(crate) io: IoBuffer,
    range: Range<usize>,
    /// The registration is the cache's.
    is_lent: bool,
}

pub(crate) fn buffer(handle: dap_buffer_t) -> Result<Arc<Buffer>, Failure> {
    tables().buffers.get(handle.id)
}

impl Buffer {
    /// Where `len` bytes from `at` are in the registration.
    pub(crate) fn part(&self, at: usize, len: usize) -> Result<Range<usize>, Failure> {
        let end = at.checked_add(len).filter(|end| *end <= self.range.len());
        let end = end.ok_or(Failure::new(DAP_E_INVALID, "the range leaves the buffer"))?;
        Ok(self.range.start + at..self.range.start + end)
    }
}

fn some(bytes: usize) -> Result<(), Failure> {
    match bytes {
        0 => Err(Failure::new(DAP_E_INVALID, "a buffer has at least one byte")),
        _ => check_len(bytes),
    }
}

/// Makes a buffer of zeros where this session's transport moves data fastest, and tells its address.
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
    cross_plainly(|| {
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

/// Registers memory of the caller's, for use in place: DAP_E_FAULT if it is not mapped or may not be
/// written. It must stay mapped until dap_unregister() has succeeded.
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
    cross_plainly(|| {
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

/// As dap_register(), where the registration is kept for the next time: cheap for memory that was lent
/// before. dap_unregister() closes the handle; the memory may be unmapped when dap_forget_memory()
/// has succeeded. A block of a heap may be freed and used for something else without that, if the
/// heap keeps it mapped.
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
    cross_plainly(|| {
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

/// Ends what dap_lend() and the functions on any memory have registered of this memory, so that it can
/// be unmapped: when it succeeds the server cannot reach it any more. DAP_E_BUSY while an operation or a
/// buffer handle uses it.
///
/// Threads: any.
///
/// # Safety
/// The memory is not touched: any pointer will do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_forget_memory(
    handle: dap_session_t,
    memory: *const c_void,
    bytes: usize,
) -> i32 {
    cross_plainly(|| Ok(session(handle)?.client.forget_memory(memory.cast(), bytes)?))
}

/// Where a buffer is, and how long.
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
    cross_plainly(|| {
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

/// Ends a registration, or frees what dap_buffer_alloc() has made. When it succeeds the server cannot
/// reach the memory any more. DAP_E_BUSY while an operation uses it: the buffer stays as it is.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn dap_unregister(handle: dap_buffer_t) -> i32 {
    cross_plainly(|| {
        let unused = |buffer: &Buffer| match buffer.io.is_shared() && !buffer.is_lent {
            true => {
                Err(Failure::new(DAP_E_BUSY, "an operation uses the buffer; wait for it first"))
            }
            false => Ok(()),
        };
        tables().buffers.remove(handle.id, unused).map(drop)
    })
}
