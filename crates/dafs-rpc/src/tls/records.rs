//! Records in user space: the part of a stream that is not whole, and bytes that are sealed and not
//! sent. For either end.
//!
//! Invariants
//! * Data is opened into the record of RPC that it belongs to, or in the block that it was received
//!   in, and sealed into the block that it is sent from.
//! * Bytes that were sealed leave before any other, and completely.
//! * A connection keeps at most what one read has brought.

use crate::limits::TLS_SEND_BYTES;
use crate::memory::{Block, source};
use crate::record::RecordReader;
use dafs_mem::{Site, VolatileSlice, count_copy};
use dafs_tls::{
    Alert, End, HEADER_BYTES, OVERHEAD_BYTES, OpenError, Opened, Opener, PLAIN_BYTES_MAX,
    SealError, Sealer, sealed_bytes,
};
use std::io;

/// The records that come to this end.
#[derive(Debug)]
pub(crate) struct Receiving {
    opener: Opener,
    /// Bytes that were read and wait: a part of a record, or records that could not be served yet.
    kept: Option<Block>,
    /// True if the kept bytes begin with a whole record, or with what is none.
    is_ready: bool,
}

/// The next record of a stream.
#[derive(Debug)]
pub(crate) enum Next<'b> {
    /// It is not whole.
    More,
    /// Data, and the bytes of its record. The data is empty if the reader has it already.
    Data(&'b [u8], usize),
    /// A record without meaning of so many bytes.
    Nothing(usize),
    /// The peer has sent everything.
    Closed,
}

impl Receiving {
    pub(crate) fn new(opener: Opener) -> Self {
        Self { opener, kept: None, is_ready: false }
    }

    /// True if bytes are kept that need no more from the peer.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Memory of a part of a record, if one has come and the rest has not.
    pub(crate) fn part_bytes(&self) -> Option<usize> {
        self.kept.as_ref().filter(|_| !self.is_ready).map(Block::capacity)
    }

    /// Memory of records that wait for this end.
    pub(crate) fn held_bytes(&self) -> usize {
        self.kept.as_ref().filter(|_| self.is_ready).map_or(0, Block::capacity)
    }

    /// The bytes that are kept. A read goes behind their place.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, Block::filled)
    }

    /// Puts the kept bytes to the front of `buffer`, and returns how many.
    pub(crate) fn put_kept(&mut self, buffer: &mut [u8]) -> usize {
        let Some(kept) = self.kept.take() else { return 0 };
        self.is_ready = false;
        let bytes = kept.bytes();
        buffer[..bytes.len()].copy_from_slice(bytes);
        count_copy(Site::TlsRecord, bytes.len());
        bytes.len()
    }

    /// Keeps bytes that could not be used yet.
    pub(crate) fn keep(&mut self, rest: &[u8]) -> io::Result<()> {
        debug_assert!(self.kept.is_none(), "bytes overtake others");
        self.is_ready = match Opener::record_bytes(rest) {
            Ok(whole) => whole.is_some_and(|bytes| bytes <= rest.len()),
            Err(_) => true,
        };
        if !rest.is_empty() {
            let mut block = Block::new(rest.len())?;
            let copied = block.space(rest.len()).copy_from(rest, Site::TlsRecord);
            block.fill(copied);
            self.kept = Some(block);
        }
        Ok(())
    }

    /// Opens the record at the front of `stream`, if it is whole: into the record that `reader`
    /// assembles, where all its data belongs to that, or else in its place.
    pub(crate) fn next<'b>(
        &mut self,
        stream: &'b mut [u8],
        reader: &mut RecordReader,
    ) -> Result<Next<'b>, OpenError> {
        let Some(bytes) = Opener::record_bytes(stream)? else { return Ok(Next::More) };
        let Some(record) = stream.get_mut(..bytes) else { return Ok(Next::More) };
        // The byte behind the data is the content type.
        if let Some(room) = reader.room(bytes.saturating_sub(OVERHEAD_BYTES)) {
            let placed = match self.opener.open_apart(record, room)? {
                Opened::Data(plain) => plain.len(),
                Opened::Nothing => return Ok(Next::Nothing(bytes)),
                Opened::Closed => return Ok(Next::Closed),
            };
            reader.filled(placed);
            return Ok(Next::Data(&[], bytes));
        }
        Ok(match self.opener.open(record)? {
            Opened::Data(plain) => Next::Data(plain, bytes),
            Opened::Nothing => Next::Nothing(bytes),
            Opened::Closed => Next::Closed,
        })
    }

    /// Judges the end of the stream.
    pub(crate) fn end(&self) -> End {
        self.opener.end(self.kept_bytes())
    }

    /// Records so far.
    pub(crate) fn records(&self) -> u64 {
        self.opener.records()
    }
}

/// The records that this end sends.
#[derive(Debug)]
pub(crate) struct Sending {
    sealer: Sealer,
    sealed: Option<Sealed>,
}

/// Records that have been made and are not sent completely.
#[derive(Debug)]
struct Sealed {
    block: Block,
    sent: usize,
    /// Bytes of their data.
    plain_bytes: usize,
}

impl Sending {
    pub(crate) fn new(sealer: Sealer) -> Self {
        Self { sealer, sealed: None }
    }

    /// True while sealed bytes wait.
    pub(crate) fn is_pending(&self) -> bool {
        self.sealed.is_some()
    }

    /// Memory of sealed bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.sealed.as_ref().map_or(0, |sealed| sealed.block.capacity())
    }

    /// Seals `plain_bytes` of data in chunks that follow each other. Only when nothing is pending.
    pub(crate) fn seal(&mut self, chunks: &[&[u8]], plain_bytes: usize) -> io::Result<()> {
        debug_assert!(!self.is_pending(), "records overtake others");
        let len = sealed_bytes(plain_bytes);
        let mut block = Block::new(len)?;
        let made = self.sealer.seal(chunks, block.spare(len)).map_err(failed)?;
        block.fill(made);
        self.sealed = Some(Sealed { block, sent: 0, plain_bytes });
        Ok(())
    }

    /// The same for memory that may change meanwhile: it is copied first. Takes as much of the
    /// views as one turn seals.
    pub(crate) fn seal_views(&mut self, views: &[VolatileSlice<'_>]) -> io::Result<()> {
        debug_assert!(!self.is_pending(), "records overtake others");
        let all = views.iter().map(VolatileSlice::len).sum::<usize>();
        let plain_bytes = all.min(TLS_SEND_BYTES);
        let mut block = Block::new(sealed_bytes(plain_bytes))?;
        let (mut views, mut taken, mut left) = (views.iter(), 0, plain_bytes);
        let mut view = views.next();
        while left > 0 {
            let here = left.min(PLAIN_BYTES_MAX);
            let record = block.spare(here + OVERHEAD_BYTES);
            let mut filled = HEADER_BYTES;
            while let Some(from) = view.filter(|_| filled < HEADER_BYTES + here) {
                let count = (from.len() - taken).min(HEADER_BYTES + here - filled);
                let Some(part) = from.slice(taken, count) else { break };
                part.copy_to(&mut record[filled..filled + count], Site::TlsRecord);
                (filled, taken) = (filled + count, taken + count);
                if taken == from.len() {
                    (view, taken) = (views.next(), 0);
                }
            }
            self.sealer.seal_in_place(record).map_err(failed)?;
            block.fill(here + OVERHEAD_BYTES);
            left -= here;
        }
        self.sealed = Some(Sealed { block, sent: 0, plain_bytes });
        Ok(())
    }

    /// The sealed bytes that have not been sent.
    pub(crate) fn rest(&self) -> Option<VolatileSlice<'_>> {
        self.sealed.as_ref().map(|sealed| source(&sealed.block.bytes()[sealed.sent..]))
    }

    /// Marks bytes as sent. Returns the bytes of data when all of it has left.
    pub(crate) fn sent(&mut self, count: usize) -> Option<usize> {
        let sealed = self.sealed.as_mut()?;
        sealed.sent += count;
        let is_over = sealed.sent >= sealed.block.filled();
        is_over.then(|| self.sealed.take().map_or(0, |sealed| sealed.plain_bytes))
    }

    /// Makes the last record, unless another is on its way in part.
    pub(crate) fn close(&mut self, alert: Alert) -> Option<[u8; OVERHEAD_BYTES + 2]> {
        if self.is_pending() {
            return None;
        }
        self.sealer.close(alert).ok()
    }

    /// Records so far.
    pub(crate) fn records(&self) -> u64 {
        self.sealer.records()
    }
}

fn failed(error: SealError) -> io::Error {
    io::Error::other(error)
}
