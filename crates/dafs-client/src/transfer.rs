//! Blocking reads and writes: short ones are continued, long ones are cut into pieces of which
//! several are in flight, and memory that is not registered is staged.
//!
//! Invariants
//! * No part of a transfer is in flight any more when its function returns, whatever it returns.
//! * A staging buffer goes back to the pool only when its transfer is over, so that late data never
//!   lands in a buffer of another transfer.

use crate::attributes::Stability;
use crate::buffer::{self, IoBuffer};
use crate::driver::Shared;
use crate::error::{Error, Result};
use crate::file::File;
use crate::layouts::{DataServerTransfer, begin_read, begin_retained, begin_write};
use crate::limits::{PIPELINE_BYTES, PIPELINE_DEPTH, STAGING_BUFFERS_KEPT, STAGING_BYTES};
use crate::opened::Opened;
use crate::pending::{Moved, Pending};
use crate::span::{OUTSIDE, Span};
use crate::uncommitted::Uncommitted;
use crate::write_state::Retained;
use dafs_mem::{CheckedSlice, Site};
use std::collections::VecDeque;
use std::sync::Arc;

/// Reads until the range is full or the file ends.
pub(crate) fn read_buffer(file: &File, span: &Span<'_>) -> Result<usize> {
    match file.opened().read_shown(span)? {
        Some(bytes) => Ok(bytes),
        None => read_requested(file, span),
    }
}

/// As [`read_buffer`], by requests.
fn read_requested(file: &File, span: &Span<'_>) -> Result<usize> {
    let piece_bytes = PIPELINE_BYTES.min(file.client().read_bytes_max());
    if span.len()? > piece_bytes {
        return read_pieces(file, span, piece_bytes);
    }
    match begin_read(file.opened(), span) {
        Some(transfer) => Ok(transfer.wait()?.bytes),
        None => read_through(file.opened(), span),
    }
}

/// Reads through the server, until the range is full or the file ends.
pub(crate) fn read_through(file: &Opened, span: &Span<'_>) -> Result<usize> {
    let shared = file.client.shared();
    let len = span.len()?;
    let mut done = 0;
    loop {
        let moved = shared.patiently(|| {
            let call = file.read_call(&span.rest(done))?;
            shared.transfer(|driver, tag| driver.submit_read(tag, call))
        })?;
        done += moved.bytes;
        if done == len || moved.end_of_file {
            return Ok(done);
        }
    }
}

/// Writes all of the range.
pub(crate) fn write_buffer(file: &File, span: &Span<'_>, stability: Stability) -> Result<usize> {
    let piece_bytes = PIPELINE_BYTES.min(file.client().write_bytes_max());
    if span.len()? > piece_bytes {
        return write_pieces(file, span, stability, piece_bytes);
    }
    match begin_write(file.opened(), span, stability) {
        Some(transfer) => Ok(transfer.wait()?.bytes),
        None => {
            let writes = file.opened().watch(stability);
            write_short(file.opened(), span, stability, writes.as_ref())
        }
    }
}

/// Writes all of the range unstably; `retained` records the write instead of the file. If the
/// server's verifier is not known, a write through the server finds out.
pub(crate) fn write_watched(
    file: &Arc<Opened>,
    span: &Span<'_>,
    retained: &Retained,
) -> Result<usize> {
    let len = span.len()?;
    let piece_bytes = PIPELINE_BYTES.min(file.client.write_bytes_max());
    for at in (0..len).step_by(piece_bytes.max(1)) {
        let piece = span.part(at, piece_bytes.min(len - at));
        let transfer = match retained.verifier {
            Some(_) => begin_retained(file, &piece, retained),
            None => None,
        };
        match transfer {
            Some(transfer) => drop(transfer.wait()?),
            None => {
                let writes = Some(&retained.through);
                write_short(file, &piece, Stability::Unstable, writes)?;
            }
        }
    }
    Ok(len)
}

/// Writes as much as the server takes at a time, and then the rest of it.
pub(crate) fn write_short(
    file: &Opened,
    span: &Span<'_>,
    stability: Stability,
    writes: Option<&Arc<Uncommitted>>,
) -> Result<usize> {
    let shared = file.client.shared();
    let len = span.len()?;
    let mut done = 0;
    while done < len {
        let moved = shared.patiently(|| {
            let call = file.write_call(&span.rest(done), stability)?;
            let writes = writes.cloned();
            shared.transfer(|driver, tag| driver.submit_write(tag, call, writes))
        })?;
        if moved.bytes == 0 {
            return Err(Error::WriteZero);
        }
        done += moved.bytes;
    }
    Ok(done)
}

/// A read or write that was sent, to the server or to data servers, by a thread that waits for it.
enum Begun {
    Through(Pending<usize>),
    AtDataServers(DataServerTransfer),
}

impl Begun {
    fn read(file: &File, span: &Span<'_>) -> Result<Self> {
        match begin_read(file.opened(), span) {
            Some(transfer) => Ok(Self::AtDataServers(transfer)),
            None => file.read_at_server(span).map(Self::Through),
        }
    }

    fn write(file: &File, span: &Span<'_>, stability: Stability) -> Result<Self> {
        match begin_write(file.opened(), span, stability) {
            Some(transfer) => Ok(Self::AtDataServers(transfer)),
            None => file.write_at_server(span, stability).map(Self::Through),
        }
    }

    fn wait(self) -> Result<Moved> {
        match self {
            Self::Through(pending) => pending.wait_moved(),
            Self::AtDataServers(transfer) => transfer.wait(),
        }
    }
}

/// One piece of a long transfer in flight.
struct Part<Held> {
    begun: Begun,
    /// Its offset in the transfer, in bytes.
    at: usize,
    len: usize,
    /// A resource that it needs until it is over.
    held: Held,
}

/// The pieces of one long transfer, oldest first. Its end waits for all of them, also when that end
/// is an error or a panic: a late piece would write to memory, or to a part of the file, that the
/// caller has gone on to use.
struct Pipeline<Held> {
    parts: VecDeque<Part<Held>>,
    /// The length of the transfer and of each piece, in bytes.
    len: usize,
    piece_bytes: usize,
    /// Where the next piece begins.
    next: usize,
}

impl<Held> Pipeline<Held> {
    fn new(len: usize, piece_bytes: usize) -> Self {
        Self { parts: VecDeque::with_capacity(PIPELINE_DEPTH), len, piece_bytes, next: 0 }
    }

    /// Begins pieces, by their offset and length, while there is room.
    fn fill(&mut self, mut begin: impl FnMut(usize, usize) -> Result<(Begun, Held)>) -> Result<()> {
        while self.parts.len() < PIPELINE_DEPTH && self.next < self.len {
            let (at, len) = (self.next, self.piece_bytes.min(self.len - self.next));
            let (begun, held) = begin(at, len)?;
            self.parts.push_back(Part { begun, at, len, held });
            self.next += len;
        }
        Ok(())
    }

    /// Waits for the oldest piece: its offset, its length, the bytes moved, its resource. A piece
    /// that was answered with DELAY has moved nothing, and the caller retries all of it.
    fn next(&mut self) -> Option<Result<(usize, usize, Moved, Held)>> {
        let Part { begun, at, len, held } = self.parts.pop_front()?;
        let moved = match begun.wait() {
            Err(error) if error.is_passing() => Ok(Moved { bytes: 0, end_of_file: false }),
            result => result,
        };
        Some(moved.map(|moved| (at, len, moved, held)))
    }
}

impl<Held> Drop for Pipeline<Held> {
    fn drop(&mut self) {
        for part in self.parts.drain(..) {
            // The transfer has its result already.
            let _ = part.begun.wait();
        }
    }
}

fn read_pieces(file: &File, span: &Span<'_>, piece_bytes: usize) -> Result<usize> {
    let len = span.len()?;
    let mut pipeline = Pipeline::new(len, piece_bytes);
    loop {
        pipeline.fill(|at, len| Ok((Begun::read(file, &span.part(at, len))?, ())))?;
        let Some(part) = pipeline.next() else { return Ok(len) };
        let (at, asked, Moved { mut bytes, end_of_file }, ()) = part?;
        if bytes < asked && !end_of_file {
            bytes += read_buffer(file, &span.part(at + bytes, asked - bytes))?;
        }
        if bytes < asked {
            return Ok(at + bytes);
        }
    }
}

fn write_pieces(
    file: &File,
    span: &Span<'_>,
    stability: Stability,
    piece_bytes: usize,
) -> Result<usize> {
    let len = span.len()?;
    let mut pipeline = Pipeline::new(len, piece_bytes);
    loop {
        pipeline.fill(|at, len| Ok((Begun::write(file, &span.part(at, len), stability)?, ())))?;
        let Some(part) = pipeline.next() else { return Ok(len) };
        let (at, asked, Moved { bytes, .. }, ()) = part?;
        if bytes < asked {
            write_buffer(file, &span.part(at + bytes, asked - bytes), stability)?;
        }
    }
}

/// Reads into any memory. Requests go through staging buffers.
pub(crate) fn read_slice(file: &File, target: CheckedSlice<'_>, offset: u64) -> Result<usize> {
    if let Some(bytes) = file.opened().read_optimistically(target, offset) {
        return Ok(bytes);
    }
    let shared = file.client().shared();
    let len = target.len();
    if len <= STAGING_BYTES {
        // The common case needs no queue.
        let staging = take_staging(shared)?;
        let bytes = read_requested(file, &Span { buffer: &staging, range: 0..len, offset })?;
        let copied = fill(target, 0, &staging, bytes);
        put_staging(shared, staging);
        return copied.map(|()| bytes);
    }
    let mut pipeline = Pipeline::new(len, STAGING_BYTES);
    loop {
        pipeline.fill(|at, len| {
            let staging = take_staging(shared)?;
            let span = Span { buffer: &staging, range: 0..len, offset: offset + at as u64 };
            Ok((Begun::read(file, &span)?, staging))
        })?;
        let Some(part) = pipeline.next() else { return Ok(len) };
        let (at, asked, Moved { mut bytes, end_of_file }, staging) = part?;
        if bytes < asked && !end_of_file {
            let offset = offset + (at + bytes) as u64;
            bytes += read_buffer(file, &Span { buffer: &staging, range: bytes..asked, offset })?;
        }
        let copied = fill(target, at, &staging, bytes);
        put_staging(shared, staging);
        copied?;
        if bytes < asked {
            return Ok(at + bytes);
        }
    }
}

/// Copies data to its place in the caller's memory.
fn fill(target: CheckedSlice<'_>, at: usize, staging: &IoBuffer, bytes: usize) -> Result<()> {
    let part = target.slice(at, bytes).ok_or(OUTSIDE)?;
    part.copy_from(staging.view(), Site::ClientStaging)?;
    Ok(())
}

/// Writes through staging buffers.
pub(crate) fn write_slice(
    file: &File,
    source: CheckedSlice<'_>,
    offset: u64,
    stability: Stability,
) -> Result<usize> {
    let shared = file.client().shared();
    let len = source.len();
    let mut pipeline = Pipeline::new(len, STAGING_BYTES);
    loop {
        pipeline.fill(|at, len| {
            let staging = take_staging(shared)?;
            let part = source.slice(at, len).ok_or(OUTSIDE)?;
            if let Err(gone) = part.copy_to(staging.view(), Site::ClientStaging) {
                put_staging(shared, staging);
                return Err(gone.into());
            }
            let span = Span { buffer: &staging, range: 0..len, offset: offset + at as u64 };
            Ok((Begun::write(file, &span, stability)?, staging))
        })?;
        let Some(part) = pipeline.next() else { return Ok(len) };
        let (at, asked, Moved { bytes, .. }, staging) = part?;
        if bytes < asked {
            let offset = offset + (at + bytes) as u64;
            let rest = Span { buffer: &staging, range: bytes..asked, offset };
            write_buffer(file, &rest, stability)?;
        }
        put_staging(shared, staging);
    }
}

/// A registered buffer of `STAGING_BYTES`.
pub(crate) fn take_staging(shared: &Shared) -> Result<IoBuffer> {
    let retained = shared.staging.lock()?.pop();
    match retained {
        Some(buffer) => Ok(buffer),
        None => {
            let buffer = buffer::allocate(shared, STAGING_BYTES)?;
            buffer.memory().keep_private();
            Ok(buffer)
        }
    }
}

/// Returns a buffer to the pool; no transfer uses it any more.
pub(crate) fn put_staging(shared: &Shared, buffer: IoBuffer) {
    let Ok(mut retained) = shared.staging.lock() else { return };
    if retained.len() < STAGING_BUFFERS_KEPT {
        retained.push(buffer);
    }
}
