//! Many transfers in few messages, scattered in files and in memory.

use crate::boundary::{call, call_plainly};
use crate::buffer::{Buffer, buffer};
use crate::error::{DAP_E_BAD_HANDLE, DAP_E_TOO_MANY, Failure, code};
use crate::file::file;
use crate::group::group;
use crate::handle::{dap_batch_t, dap_buffer_t, dap_file_t, dap_group_t, dap_session_t, tables};
use crate::limits::{BATCH_PIECES_MAX, BATCH_TRANSFERS_MAX};
use crate::pointer::{Out, array, check_write};
use crate::session::session;
use dafs_mem::Mutex;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// The object behind a batch handle. It holds a batch until that is sent.
pub(crate) struct Batch(Mutex<Option<dafs_client::Batch>>);

/// A range of a file.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_range_t {
    /// The offset of its first byte.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

/// A piece of a buffer.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_piece_t {
    /// The buffer.
    pub buffer: dap_buffer_t,
    /// The offset in the buffer.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

impl Batch {
    fn open(&self) -> MutexGuard<'_, Option<dafs_client::Batch>> {
        self.0.lock()
    }
}

fn sent() -> Failure {
    Failure::new(DAP_E_BAD_HANDLE, "the batch has been sent already")
}

/// Begins a batch.
///
/// Threads: any.
///
/// # Safety
/// `batch` is null or good for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_batch_create(handle: dap_session_t, batch: *mut dap_batch_t) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(batch) }?;
        let batch = Batch(Mutex::new(Some(session(handle)?.client.batch())));
        out.set(dap_batch_t { id: tables().batches.add(batch)? });
        Ok(())
    })
}

/// # Safety
/// The arrays are null or as long as said.
unsafe fn add(
    handle: dap_batch_t,
    of: dap_file_t,
    ranges: (*const dap_range_t, usize),
    pieces: (*const dap_piece_t, usize),
    write: bool,
) -> Result<i64, Failure> {
    let (batch, file) = (tables().batches.get(handle.id)?, file(of)?);
    // SAFETY: as the caller promises.
    let (ranges, pieces) = unsafe {
        (array(ranges.0, ranges.1, BATCH_PIECES_MAX)?, array(pieces.0, pieces.1, BATCH_PIECES_MAX)?)
    };
    let ranges: Vec<_> = ranges.iter().map(|range| (range.offset, range.len)).collect();
    let part = |piece: &dap_piece_t| {
        let buffer = buffer(piece.buffer)?;
        let range = buffer.part(piece.at, piece.len)?;
        Ok((buffer, range))
    };
    let parts =
        pieces.iter().map(part).collect::<Result<Vec<(Arc<Buffer>, Range<usize>)>, Failure>>()?;
    let memory: Vec<_> = parts.iter().map(|(buffer, range)| (&buffer.io, range.clone())).collect();
    let mut open = batch.open();
    let batch = open.as_mut().ok_or_else(sent)?;
    if batch.len() >= BATCH_TRANSFERS_MAX {
        return Err(Failure::new(DAP_E_TOO_MANY, "the batch has as many transfers as it can have"));
    }
    let place = match write {
        true => batch.write(&file.0, &ranges, &memory)?,
        false => batch.read(&file.0, &ranges, &memory)?,
    };
    Ok(place as i64)
}

/// Adds a read of ranges of a file into pieces of buffers. The two may be divided differently, but
/// must have the same total length. Returns its index in the batch.
///
/// Threads: any.
///
/// # Safety
/// The arrays are null or as long as said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_batch_read(
    handle: dap_batch_t,
    file: dap_file_t,
    ranges: *const dap_range_t,
    range_count: usize,
    pieces: *const dap_piece_t,
    piece_count: usize,
) -> i64 {
    // SAFETY: as the caller promises.
    call(|| unsafe { add(handle, file, (ranges, range_count), (pieces, piece_count), false) })
}

/// Adds a write of pieces of buffers to ranges of a file, as dap_batch_read() does. It is unstable:
/// dap_commit() makes it stable.
///
/// Threads: any.
///
/// # Safety
/// The arrays are null or as long as said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_batch_write(
    handle: dap_batch_t,
    file: dap_file_t,
    ranges: *const dap_range_t,
    range_count: usize,
    pieces: *const dap_piece_t,
    piece_count: usize,
) -> i64 {
    // SAFETY: as the caller promises.
    call(|| unsafe { add(handle, file, (ranges, range_count), (pieces, piece_count), true) })
}

/// Allows the server to take up to so many microseconds to gather and order the transfers, and to
/// report them separately, `together` at a time (0: as before).
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_batch_window(handle: dap_batch_t, microseconds: u32, together: u32) -> i32 {
    call_plainly(|| {
        let batch = tables().batches.get(handle.id)?;
        let mut open = batch.open();
        let window = Duration::from_micros(microseconds.into());
        *open = Some(open.take().ok_or_else(sent)?.asynchronous(window, together));
        Ok(())
    })
}

/// Sends a batch and closes its handle. The completion of each transfer comes to the group.
/// `user_data` and `operations` have an element for each transfer; `operations`, for their names,
/// may be null. If this fails no transfer was sent, and the handle is closed, except after
/// DAP_E_BUSY. If only a part could be sent it succeeds, and the completions of the others have the
/// reason.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the batch.
///
/// # Safety
/// The arrays are null or as long as said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_batch_submit(
    handle: dap_batch_t,
    to: dap_group_t,
    user_data: *const u64,
    operations: *mut u64,
) -> i32 {
    call_plainly(|| {
        let group = group(to)?;
        let batch = take(handle)?;
        let count = batch.len();
        // SAFETY: as the caller promises.
        let user_data = unsafe { array(user_data, count, BATCH_TRANSFERS_MAX) }?;
        if !operations.is_null() {
            check_write(operations.cast(), count * size_of::<u64>())?;
        }
        let names = group.0.batch(batch, |place| user_data[place])?;
        if !operations.is_null() {
            for (place, name) in names.iter().enumerate().take(count) {
                // SAFETY: found writable above, and the caller keeps it.
                unsafe { operations.add(place).write_unaligned(name.to_u64()) };
            }
        }
        Ok(())
    })
}

/// Sends a batch, waits for all of it, and closes its handle. `results` has an element for each
/// transfer: the bytes, or a negative DAP_E_...
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the batch.
///
/// # Safety
/// `results` is null or as long as said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_batch_run(handle: dap_batch_t, results: *mut i64) -> i32 {
    call_plainly(|| {
        let batch = take(handle)?;
        check_write(results.cast(), batch.len() * size_of::<i64>())?;
        for (place, result) in batch.run()?.into_iter().enumerate() {
            let result = result.map_or_else(|error| code(&error).into(), |bytes| bytes as i64);
            // SAFETY: found writable above, and the caller keeps it.
            unsafe { results.add(place).write_unaligned(result) };
        }
        Ok(())
    })
}

/// Closes the handle of a batch without sending it.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the batch.
#[unsafe(no_mangle)]
pub extern "C" fn dap_batch_discard(handle: dap_batch_t) -> i32 {
    call_plainly(|| take(handle).map(drop))
}

fn take(handle: dap_batch_t) -> Result<dafs_client::Batch, Failure> {
    tables().batches.remove(handle.id, |_| Ok(()))?.open().take().ok_or_else(sent)
}
