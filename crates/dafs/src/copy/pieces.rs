//! Transfer memory in pieces: one for each worker, and some that all share, for large files.
//!
//! Invariants
//! * A piece becomes free only when its transfer is over, also after an error. Otherwise a late
//!   transfer would write into the next file.

use super::error::{Outcome, remote};
use crate::limits::{HOLE_BYTES, PIECE_BYTES, PIECES_PER_FILE_MAX, SHARED_PIECES};
use crate::remote::{Buffer, Error, File, Pending, Remote, Stability};
use dafs_mem::Mutex;
use std::collections::VecDeque;
use std::ops::Range;

/// The transfer memory of a copy.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    client: &'a Remote,
    /// The length of every piece, in bytes.
    pub(super) bytes: usize,
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    free: Vec<Buffer>,
    /// How many more may be allocated.
    unused: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(client: &'a Remote) -> Self {
        let longest = client.read_bytes_max().min(client.write_bytes_max()).min(PIECE_BYTES);
        let bytes = (longest / HOLE_BYTES * HOLE_BYTES).max(HOLE_BYTES);
        let shared = Mutex::new(Shared { free: Vec::new(), unused: SHARED_PIECES });
        Self { client, bytes, shared }
    }

    fn borrow(&self) -> Option<Buffer> {
        let mut shared = self.shared.lock();
        if let Some(piece) = shared.free.pop() {
            return Some(piece);
        }
        shared.unused = shared.unused.checked_sub(1)?;
        drop(shared);
        // Without memory for more pieces the transfer goes on with fewer.
        let piece = self.client.buffer(self.bytes).ok();
        if piece.is_none() {
            self.shared.lock().unused += 1;
        }
        piece
    }
}

#[derive(Debug)]
pub(super) struct Worker<'a> {
    pub(super) pieces: &'a Pieces<'a>,
    own: Option<Buffer>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(pieces: &'a Pieces<'a>) -> Self {
        Self { pieces, own: None }
    }

    /// Begins to transfer a file of about `size` bytes.
    pub(super) fn ring(&mut self, size: u64) -> Outcome<Ring<'_, 'a>> {
        let first = match self.own.take() {
            Some(piece) => piece,
            None => self
                .pieces
                .client
                .buffer(self.pieces.bytes)
                .map_err(|error| remote("memory for transfers", &error))?,
        };
        let wanted = size.div_ceil(self.pieces.bytes as u64).min(PIECES_PER_FILE_MAX as u64);
        let more = (1..wanted).map_while(|_| self.pieces.borrow());
        let free: Vec<Buffer> = std::iter::once(first).chain(more).collect();
        Ok(Ring { worker: self, free, flying: VecDeque::new() })
    }
}

/// An outstanding transfer.
#[derive(Debug)]
struct Flight {
    pending: Pending,
    piece: Buffer,
    offset: u64,
    bytes: usize,
}

/// A part of a file in memory.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) piece: Buffer,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// Fewer bytes were there than requested.
    pub(super) is_last: bool,
}

/// The transfers of one file, in order.
#[derive(Debug)]
pub(super) struct Ring<'w, 'a> {
    worker: &'w mut Worker<'a>,
    free: Vec<Buffer>,
    flying: VecDeque<Flight>,
}

impl Ring<'_, '_> {
    pub(super) fn piece_bytes(&self) -> usize {
        self.worker.pieces.bytes
    }

    /// True while a transfer is outstanding.
    pub(super) fn is_busy(&self) -> bool {
        !self.flying.is_empty()
    }

    /// A free piece; `None` while all are in use.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, piece: Buffer) {
        self.free.push(piece);
    }

    /// Starts to read `bytes` at `offset`.
    pub(super) fn read(
        &mut self,
        file: &File,
        piece: Buffer,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        let pending = file.submit_read(&piece, 0..bytes, offset)?;
        file.remote().flush()?;
        self.flying.push_back(Flight { pending, piece, offset, bytes });
        Ok(())
    }

    /// Waits for the oldest read; `None` if there is none. A short answer up to `end`, the reported
    /// size, is accepted as the end.
    pub(super) fn next_read(&mut self, file: &File, end: u64) -> Result<Option<Part>, Error> {
        let Some(flight) = self.flying.pop_front() else { return Ok(None) };
        let Flight { pending, piece, offset, bytes } = flight;
        let mut done = match pending.wait() {
            Err(error) if error.is_delay() => file.read_into(&piece, 0..bytes, offset)?,
            result => result?,
        };
        while done > 0 && done < bytes && offset + done as u64 != end {
            // Short answers are allowed; only an empty one means the end of the file.
            match file.read_into(&piece, done..bytes, offset + done as u64)? {
                0 => break,
                more => done += more,
            }
        }
        Ok(Some(Part { piece, offset, bytes: done, is_last: done < bytes }))
    }

    /// Starts to write the first `bytes` of `piece` at `offset`.
    pub(super) fn write(
        &mut self,
        file: &File,
        piece: Buffer,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        let pending = file.submit_write(&piece, 0..bytes, offset, Stability::Unstable)?;
        file.remote().flush()?;
        self.flying.push_back(Flight { pending, piece, offset, bytes });
        Ok(())
    }

    /// Waits for the oldest write, if there is one; returns its length.
    pub(super) fn finish_write(&mut self, file: &File) -> Result<usize, Error> {
        let Some(flight) = self.flying.pop_front() else { return Ok(0) };
        let Flight { pending, piece, offset, bytes } = flight;
        let done = match pending.wait() {
            // The write had no effect; the call below retries it.
            Err(error) if error.is_delay() => 0,
            result => result?,
        };
        if done < bytes {
            let offset = offset + done as u64;
            file.write_from(&piece, done..bytes, offset, Stability::Unstable)?;
        }
        self.free.push(piece);
        Ok(bytes)
    }
}

/// The next run of data of a sparse file; `None` where there is only a hole up to the end.
pub(super) fn next_run(source: &File, from: u64) -> Result<Option<Range<u64>>, Error> {
    let Some(start) = source.seek_data(from)? else { return Ok(None) };
    let Some(end) = source.seek_hole(start)? else { return Ok(None) };
    Ok((from <= start && start < end).then_some(start..end))
}

impl Ring<'_, '_> {
    /// Waits for all outstanding transfers, and ignores their results.
    pub(super) fn drain(&mut self) {
        for flight in self.flying.drain(..) {
            let _ = flight.pending.wait();
            self.free.push(flight.piece);
        }
    }
}

impl Drop for Ring<'_, '_> {
    fn drop(&mut self) {
        self.drain();
        self.worker.own = self.worker.own.take().or_else(|| self.free.pop());
        self.worker.pieces.shared.lock().free.append(&mut self.free);
    }
}
