//! Transfer memory in pieces: one for each worker, and some that all share, for large files.
//!
//! Invariants
//! * A piece becomes free only when its transfer is over, also after an error. Otherwise a late
//!   transfer would write into the next file.
//! * A piece is dropped only after its transfer, because memory of two connections relies on that.

use super::error::{CopyError, Outcome, remote};
use super::report::Report;
use crate::limits::{HOLE_BYTES, PIECE_BYTES, PIECES_PER_FILE_MAX, SHARED_PIECES};
use crate::remote::{Buffer, Error, File, Pending, Remote, Stability};
use dafs_mem::{Mutex, Site, VolatileSlice};
use std::collections::VecDeque;
use std::ops::Range;

/// The transfer memory of a copy.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    client: &'a Remote,
    /// The server of the originals, if the copies are on another one.
    source: Option<&'a Remote>,
    /// The length of every piece, in bytes.
    pub(super) bytes: usize,
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    free: Vec<Piece>,
    /// How many more may be allocated.
    unused: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(client: &'a Remote) -> Self {
        Self::between(client, None)
    }

    /// Memory for transfers from `source`, too.
    pub(super) fn between(client: &'a Remote, source: Option<&'a Remote>) -> Self {
        let longest = client.read_bytes_max().min(client.write_bytes_max()).min(PIECE_BYTES);
        let longest = source.map_or(longest, |source| longest.min(source.read_bytes_max()));
        let bytes = (longest / HOLE_BYTES * HOLE_BYTES).max(HOLE_BYTES);
        let shared = Mutex::new(Shared { free: Vec::new(), unused: SHARED_PIECES });
        Self { client, source, bytes, shared }
    }

    /// New memory, if possible one for both servers.
    fn allocate(&self) -> Result<Piece, Error> {
        let buffer = self.client.buffer(self.bytes)?;
        let Some(source) = self.source else {
            return Ok(Piece { buffer, of_source: None, is_apart: false });
        };
        if let Some(shared) = source.share(&buffer)? {
            return Ok(Piece { buffer, of_source: Some(shared), is_apart: false });
        }
        let memory = source.buffer(self.bytes)?;
        let shared = self.client.share(&memory)?;
        let is_apart = shared.is_none();
        let buffer = shared.unwrap_or(buffer);
        Ok(Piece { buffer, of_source: Some(memory), is_apart })
    }

    fn borrow(&self) -> Option<Piece> {
        let mut shared = self.shared.lock();
        if let Some(piece) = shared.free.pop() {
            return Some(piece);
        }
        shared.unused = shared.unused.checked_sub(1)?;
        drop(shared);
        // Without memory for more pieces the transfer goes on with fewer.
        let piece = self.allocate().ok();
        if piece.is_none() {
            self.shared.lock().unused += 1;
        }
        piece
    }
}

#[derive(Debug)]
pub(super) struct Worker<'a> {
    pub(super) pieces: &'a Pieces<'a>,
    own: Option<Piece>,
}

/// Memory for a part of a file.
#[derive(Debug)]
pub(super) struct Piece {
    buffer: Buffer,
    /// For transfers from another server: the same memory, or some of its own.
    of_source: Option<Buffer>,
    /// It is memory of its own, from which data is copied.
    is_apart: bool,
}

impl Piece {
    /// The whole memory.
    pub(super) fn view(&self) -> VolatileSlice<'_> {
        self.buffer.view()
    }

    /// A part of it, if it lies inside.
    pub(super) fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.buffer.slice(offset, len)
    }

    /// The memory for reads.
    fn for_reads(&self, from_source: bool) -> &Buffer {
        self.of_source.as_ref().filter(|_| from_source).unwrap_or(&self.buffer)
    }
}

impl<'a> Worker<'a> {
    pub(super) fn new(pieces: &'a Pieces<'a>) -> Self {
        Self { pieces, own: None }
    }

    /// Begins to transfer a file of about `size` bytes.
    pub(super) fn ring(&mut self, size: u64) -> Outcome<Ring<'_, 'a>> {
        let first = match self.own.take() {
            Some(piece) => piece,
            None => {
                self.pieces.allocate().map_err(|error| remote("memory for transfers", &error))?
            }
        };
        let wanted = size.div_ceil(self.pieces.bytes as u64).min(PIECES_PER_FILE_MAX as u64);
        let more = (1..wanted).map_while(|_| self.pieces.borrow());
        let free: Vec<Piece> = std::iter::once(first).chain(more).collect();
        let (reads, writes) = (VecDeque::new(), VecDeque::new());
        Ok(Ring { worker: self, free, from_source: false, reads, writes })
    }
}

/// An outstanding transfer.
#[derive(Debug)]
struct Flight {
    pending: Pending,
    piece: Piece,
    offset: u64,
    bytes: usize,
}

/// A part of a file in memory.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) piece: Piece,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// Fewer bytes were there than requested.
    pub(super) is_last: bool,
}

/// The transfers of one file, in order.
#[derive(Debug)]
pub(super) struct Ring<'w, 'a> {
    worker: &'w mut Worker<'a>,
    free: Vec<Piece>,
    /// Reads are from the server of the originals.
    from_source: bool,
    reads: VecDeque<Flight>,
    writes: VecDeque<Flight>,
}

impl Ring<'_, '_> {
    pub(super) fn piece_bytes(&self) -> usize {
        self.worker.pieces.bytes
    }

    /// Chooses the server of further reads: that of the originals, or that of the copies.
    pub(super) fn read_from_source(&mut self, from_source: bool) {
        self.from_source = from_source;
    }

    /// True while a read is outstanding.
    pub(super) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// True while a write is outstanding.
    pub(super) fn is_writing(&self) -> bool {
        !self.writes.is_empty()
    }

    /// True while a piece is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// A free piece; `None` while all are in use.
    pub(super) fn take(&mut self) -> Option<Piece> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, piece: Piece) {
        self.free.push(piece);
    }

    /// Starts to read `bytes` at `offset`.
    pub(super) fn read(
        &mut self,
        file: &File,
        piece: Piece,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        let memory = piece.for_reads(self.from_source);
        let pending = file.submit_read(memory, 0..bytes, offset)?;
        self.reads.push_back(Flight { pending, piece, offset, bytes });
        file.remote().flush()
    }

    /// Waits for the oldest read; `None` if there is none. A short answer up to `end`, the reported
    /// size, is accepted as the end.
    pub(super) fn next_read(&mut self, file: &File, end: u64) -> Result<Option<Part>, Error> {
        let Some(flight) = self.reads.pop_front() else { return Ok(None) };
        let Flight { pending, piece, offset, bytes } = flight;
        let memory = piece.for_reads(self.from_source);
        let mut done = match pending.wait() {
            Err(error) if error.is_delay() => file.read_into(memory, 0..bytes, offset)?,
            result => result?,
        };
        while done > 0 && done < bytes && offset + done as u64 != end {
            // Short answers are allowed; only an empty one means the end of the file.
            match file.read_into(memory, done..bytes, offset + done as u64)? {
                0 => break,
                more => done += more,
            }
        }
        if self.from_source
            && piece.is_apart
            && let Some(data) = memory.slice(0, done)
        {
            piece.view().copy_from_volatile(data, Site::ClientStaging);
        }
        Ok(Some(Part { piece, offset, bytes: done, is_last: done < bytes }))
    }

    /// Starts to write the first `bytes` of `piece` at `offset`.
    pub(super) fn write(
        &mut self,
        file: &File,
        piece: Piece,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        let pending = file.submit_write(&piece.buffer, 0..bytes, offset, Stability::Unstable)?;
        self.writes.push_back(Flight { pending, piece, offset, bytes });
        file.remote().flush()
    }

    /// Waits for the oldest write, if there is one; returns its length.
    pub(super) fn finish_write(&mut self, file: &File) -> Result<usize, Error> {
        let Some(flight) = self.writes.pop_front() else { return Ok(0) };
        let Flight { pending, piece, offset, bytes } = flight;
        let done = match pending.wait() {
            // The write had no effect; the call below retries it.
            Err(error) if error.is_delay() => 0,
            result => result?,
        };
        if done < bytes {
            let offset = offset + done as u64;
            file.write_from(&piece.buffer, done..bytes, offset, Stability::Unstable)?;
        }
        self.free.push(piece);
        Ok(bytes)
    }

    /// Reads a run of a file of the reported `size`, with as many pieces outstanding as there are,
    /// and passes the parts to `take` in order, until that returns false. `take` gives pieces back, or
    /// leaves some read outstanding. Returns true if the file ended in the run, or `take` ended it.
    pub(super) fn read_run(
        &mut self,
        report: &Report,
        (source, size): (&File, u64),
        run: Range<u64>,
        failed: impl Fn(&Error) -> CopyError,
        mut take: impl FnMut(&mut Self, Part) -> Outcome<bool>,
    ) -> Outcome<bool> {
        let failed = |error: Error| failed(&error);
        let mut next = run.start;
        loop {
            // One byte beyond the size tests for the end. Mostly there is no more data, so later
            // pieces are requested one by one. Each is a whole piece, as some files of /proc have
            // content only for a read at their start.
            while next < run.end
                && (next < size || !self.is_reading())
                && let Some(piece) = self.take()
            {
                let rest = size.checked_sub(next).filter(|&rest| rest > 0);
                let wanted = rest.map_or(u64::MAX, |rest| rest.saturating_add(1));
                let bytes = wanted.min(run.end - next).min(self.piece_bytes() as u64) as usize;
                self.read(source, piece, next, bytes).map_err(failed)?;
                next += bytes as u64;
            }
            let Some(part) = self.next_read(source, size).map_err(failed)? else {
                return Ok(false);
            };
            let is_last = part.is_last;
            if !take(self, part)? || is_last {
                self.drain_reads();
                return Ok(true);
            }
            report.go_on()?;
        }
    }
}

/// The next run of data of a sparse file; `None` where there is only a hole up to the end.
pub(super) fn next_run(source: &File, from: u64) -> Result<Option<Range<u64>>, Error> {
    let Some(start) = source.seek_data(from)? else { return Ok(None) };
    let Some(end) = source.seek_hole(start)? else { return Ok(None) };
    Ok((from <= start && start < end).then_some(start..end))
}

impl Ring<'_, '_> {
    /// Waits for all outstanding reads, and ignores their results.
    fn drain_reads(&mut self) {
        for flight in self.reads.drain(..) {
            let _ = flight.pending.wait();
            self.free.push(flight.piece);
        }
    }
}

impl Drop for Ring<'_, '_> {
    fn drop(&mut self) {
        self.reads.append(&mut self.writes);
        self.drain_reads();
        self.worker.own = self.worker.own.take().or_else(|| self.free.pop());
        self.worker.pieces.shared.lock().free.append(&mut self.free);
    }
}
