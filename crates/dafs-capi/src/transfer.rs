//! Synchronous reads and writes.
//!
//! The functions check memory before any other work. Memory that is unmapped meanwhile is an error
//! all the same.

use crate::boundary::{call, call_plainly};
use crate::buffer::buffer;
use crate::error::Failure;
use crate::file::{file, stability};
use crate::handle::{dap_buffer_t, dap_file_t};
use crate::pointer::{Out, check_read, check_write};
use dafs_client::Error;
use dafs_mem::{CheckedSlice, Site, VolatileSlice};
use std::ffi::c_void;

/// # Safety
/// As many bytes at `target` as there are in `data` belong to the caller, or are unmapped.
pub(crate) unsafe fn copy_out(data: &mut [u8], target: *mut u8) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    let target = unsafe { CheckedSlice::callers(target, data.len()) };
    target.copy_from(VolatileSlice::from_mut(data), Site::ClientStaging).map_err(Error::from)?;
    Ok(())
}

/// The target of a read.
///
/// # Safety
/// `memory` is null, unmapped, or good for `len` bytes, which no other thread uses meanwhile.
pub(crate) unsafe fn target<'a>(
    memory: *mut c_void,
    len: usize,
) -> Result<CheckedSlice<'a>, Failure> {
    check_write(memory, len)?;
    // SAFETY: as the caller promises.
    Ok(unsafe { CheckedSlice::callers(memory.cast(), len) })
}

/// The source of a write.
///
/// # Safety
/// `memory` is null, unmapped, or good for `len` bytes, which no other thread changes meanwhile.
pub(crate) unsafe fn source<'a>(
    memory: *const c_void,
    len: usize,
) -> Result<CheckedSlice<'a>, Failure> {
    check_read(memory, len)?;
    // SAFETY: as the caller promises; a source is only copied from.
    Ok(unsafe { CheckedSlice::callers(memory.cast_mut().cast(), len) })
}

/// A copy of the source of a write.
///
/// # Safety
/// As [`source`].
pub(crate) unsafe fn copy_in(memory: *const c_void, len: usize) -> Result<Vec<u8>, Failure> {
    // SAFETY: as the caller promises.
    let source = unsafe { source(memory, len) }?;
    Ok(source.to_vec(Site::ClientStaging).map_err(Error::from)?)
}

/// Reads up to `len` bytes from `offset` into any memory; returns the number of bytes, fewer only
/// at the end of the file. Copies once; dap_read_buffer() does not.
///
/// Threads: any.
///
/// # Safety
/// `memory` is null, unmapped, or good for `len` bytes that no other thread uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_read(
    handle: dap_file_t,
    memory: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    call(|| {
        let file = file(handle)?;
        // SAFETY: as the caller promises.
        let target = unsafe { target(memory, len) }?;
        Ok(file.0.read_checked(target, offset)? as i64)
    })
}

/// Writes `len` bytes at `offset` from any memory; returns `len`. `stable` is DAP_UNSTABLE,
/// DAP_DATA_SYNC or DAP_FILE_SYNC. Copies once; dap_write_buffer() does not.
///
/// Threads: any.
///
/// # Safety
/// `memory` is null, unmapped, or good for `len` bytes that no other thread changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_write(
    handle: dap_file_t,
    memory: *const c_void,
    len: usize,
    offset: u64,
    stable: u32,
) -> i64 {
    call(|| {
        let file = file(handle)?;
        let stable = stability(stable)?;
        // SAFETY: as the caller promises.
        let source = unsafe { source(memory, len) }?;
        Ok(file.0.write_checked(source, offset, stable)? as i64)
    })
}

/// Writes `len` bytes at the end of the file, atomically and contiguously; returns their offset in
/// `offset`, if that is not null. `stable` is not DAP_UNSTABLE.
///
/// Threads: any.
///
/// # Safety
/// As dap_write(); `offset` is null or good for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_append(
    handle: dap_file_t,
    memory: *const c_void,
    len: usize,
    stable: u32,
    offset: *mut u64,
) -> i32 {
    call_plainly(|| {
        let file = file(handle)?;
        let stable = stability(stable)?;
        // SAFETY: as the caller promises.
        let (source, out) = unsafe { (source(memory, len)?, Out::optional(offset)?) };
        let at = file.0.append_checked(source, stable)?;
        if let Some(out) = out {
            out.set(at);
        }
        Ok(())
    })
}

/// As dap_append(), for `len` bytes of a buffer from `at` on, which the server fetches directly.
///
/// Threads: any.
///
/// # Safety
/// `offset` is null or good for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_append_buffer(
    handle: dap_file_t,
    memory: dap_buffer_t,
    at: usize,
    len: usize,
    stable: u32,
    offset: *mut u64,
) -> i32 {
    call_plainly(|| {
        let (file, buffer) = (file(handle)?, buffer(memory)?);
        let (range, stable) = (buffer.part(at, len)?, stability(stable)?);
        // SAFETY: as the caller promises.
        let out = unsafe { Out::optional(offset) }?;
        let at = file.0.append_from(&buffer.io, range, stable)?;
        if let Some(out) = out {
            out.set(at);
        }
        Ok(())
    })
}

/// Reads up to `len` bytes from `offset` into a buffer, `at` bytes from its start, where the server
/// stores them directly; returns the number of bytes, fewer only at the end of the file.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_read_buffer(
    handle: dap_file_t,
    memory: dap_buffer_t,
    at: usize,
    len: usize,
    offset: u64,
) -> i64 {
    call(|| {
        let (file, buffer) = (file(handle)?, buffer(memory)?);
        Ok(file.0.read_into(&buffer.io, buffer.part(at, len)?, offset)? as i64)
    })
}

/// Writes `len` bytes at `offset` from a buffer, `at` bytes from its start; returns `len`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_write_buffer(
    handle: dap_file_t,
    memory: dap_buffer_t,
    at: usize,
    len: usize,
    offset: u64,
    stable: u32,
) -> i64 {
    call(|| {
        let (file, buffer) = (file(handle)?, buffer(memory)?);
        let stable = stability(stable)?;
        Ok(file.0.write_from(&buffer.io, buffer.part(at, len)?, offset, stable)? as i64)
    })
}
