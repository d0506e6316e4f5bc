//! The sending half of a connection: posted work in, FPDUs out.
//!
//! Invariants
//! * FPDUs point straight at registered memory; inside TLS they are copied into records. Only
//!   headers and trailers are built, in one small area that restarts once all of it was sent.
//! * A message is sent completely before the next begins. Read responses and own work take turns
//!   between messages, and read responses never wait for own reads: two peers that read from each
//!   other cannot deadlock.
//! * Work completes when the kernel has its last byte, or inside TLS its last record; a read moves
//!   to the receiver when its request is built.
//! * Memory that the peer reads is looked up by its key each time it is passed to the kernel.
//! * The CRC of an FPDU is computed when it is planned, before the kernel reads the payload. An
//!   application that changes a buffer in between, one of its own or one that the peer reads,
//!   invalidates the CRC, and the peer ends the connection. A short answer out of memory that is
//!   granted to the peer is copied, because such memory changes while the peer reads it.
//! * Memory is read for an answer when all bytes of earlier answers have left theirs.

use super::limits::{
    COALESCE_BYTES_MAX, FPDU_BYTES_MIN, IDLE_HEADER_BYTES, IDLE_QUEUE_CAPACITY,
    LARGE_SEND_CHUNK_COUNT_MAX,
};
use super::receive::Receiver;
use super::violation::Violation;
use crate::memory::Readable;
use crate::{Operation, ProtectionDomain, RegionTable, RemoteBuffer};
use dafs_mem::{Buffer, CheckedSlice, Inaccessible, Site, VolatileSlice};
use dafs_wire::iwarp::crc::Crc32c;
use dafs_wire::iwarp::ddp::{Header, Place, Queue};
use dafs_wire::iwarp::mpa;
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest, Terminate};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A piece of memory of posted work.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) buffer: Arc<Buffer>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// The kind of posted work.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Send {
        /// The peer's key to invalidate.
        invalidate: Option<u32>,
    },
    Write {
        stag: u32,
        address: u64,
    },
    /// A read; its one piece is the sink.
    Read {
        stag: u32,
        address: u64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) work: u64,
    pub(super) kind: Kind,
    pub(super) len: u32,
    pub(super) pieces: u16,
}

/// Work that has ended, with or without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) work: u64,
    pub(super) operation: Operation,
    pub(super) bytes: u32,
}

/// The message that is being cut into FPDUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) opcode: Opcode,
    pub(super) len: u32,
    pub(super) done: u32,
    pub(super) source: Source,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// Posted work: its tag, and the target of a write or the key to invalidate.
    Work { work: u64, operation: Operation, stag: u32, address: u64, pieces: u16 },
    /// A read request of the peer, to be answered.
    Answer(ReadRequest),
    /// An own read request, which is not reported itself.
    Request(ReadRequest),
    /// A zero-length write, which prompts the peer.
    Nudge,
}

/// A planned piece of output that waits for the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Chunk {
    /// Bytes of the header area.
    Header { start: usize, end: usize },
    /// Bytes of a piece, by its number.
    Piece { number: u64, offset: usize, len: usize },
    /// Bytes of memory that the peer reads.
    Remote { key: u32, address: u64, len: usize },
    /// The end of finished work.
    Done { finished: Finished, pieces: u16 },
    /// The end of a finished read response.
    Answered,
}

impl Chunk {
    /// Bytes of output.
    pub(super) fn len(&self) -> usize {
        match *self {
            Chunk::Header { start, end } => end - start,
            Chunk::Piece { len, .. } | Chunk::Remote { len, .. } => len,
            Chunk::Done { .. } | Chunk::Answered => 0,
        }
    }
}

/// The progress of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// No more work may be sent now.
    Idle,
    /// The socket is full for now.
    Blocked,
    /// The turn is used up, and more work remains.
    Budget,
}

/// The reason why sending failed.
#[derive(Debug)]
pub(super) enum SendFailure {
    /// Memory to send is no longer accessible: the application has changed its mapping.
    Inaccessible(Inaccessible),
    Io(io::Error),
    Violation(Violation),
}

/// The sending state machine.
#[derive(Debug)]
pub(super) struct Transmitter {
    pub(super) domain: ProtectionDomain,
    /// The domain of memory that is granted to this peer alone.
    pub(super) granted: Option<ProtectionDomain>,
    pub(super) works: VecDeque<Work>,
    pub(super) answers: VecDeque<ReadRequest>,
    /// Pieces of all unfinished work, oldest first; the first has the number `piece_base`.
    pub(super) pieces: VecDeque<Piece>,
    pub(super) piece_base: u64,
    /// The piece and the offset in it that the next FPDU starts with.
    pub(super) next_piece: u64,
    pub(super) next_offset: usize,
    pub(super) message: Option<Message>,
    pub(super) answer_was_last: bool,
    /// True if a zero-length write is to be sent.
    pub(super) nudge: bool,
    /// True once the kernel took any bytes.
    said: bool,
    pub(super) chunks: VecDeque<Chunk>,
    pub(super) headers: Vec<u8>,
    pub(super) crc: Option<Box<Crc32c>>,
    pub(super) segment_bytes_max: usize,
    pub(super) one_per_call: bool,
    pub(super) send_msn: u32,
    pub(super) read_msn: u32,
    pub(super) next_sink_stag: u32,
    pub(super) outbound_reads_max: u16,
}

impl Transmitter {
    pub(super) fn new(domain: ProtectionDomain, first_sink_stag: u32) -> Self {
        Self {
            domain,
            granted: None,
            works: VecDeque::new(),
            answers: VecDeque::new(),
            pieces: VecDeque::new(),
            piece_base: 0,
            next_piece: 0,
            next_offset: 0,
            message: None,
            answer_was_last: false,
            nudge: false,
            said: false,
            chunks: VecDeque::new(),
            headers: Vec::new(),
            crc: None,
            segment_bytes_max: 0,
            one_per_call: false,
            send_msn: 1,
            read_msn: 1,
            next_sink_stag: first_sink_stag,
            outbound_reads_max: 0,
        }
    }

    /// Applies the result of the handshake. With `one_per_call` each FPDU is a record of its own
    /// for TCP, so that its trailer never straddles two segments.
    pub(super) fn agree(&mut self, crc: bool, one_per_call: bool, outbound_reads_max: u16) {
        self.crc = crc.then(Box::default);
        self.one_per_call = one_per_call;
        self.outbound_reads_max = outbound_reads_max;
    }

    /// Sets the largest FPDU, in bytes.
    pub(super) fn limit_fpdu(&mut self, fpdu_bytes: usize) {
        // A read request must fit in one, however small the path's segments are.
        self.segment_bytes_max = mpa::segment_bytes_within(fpdu_bytes.max(FPDU_BYTES_MIN));
    }

    pub(super) fn outbound_reads_max(&self) -> u16 {
        self.outbound_reads_max
    }

    /// Queues work; `pieces` are its memory in order.
    pub(super) fn post(
        &mut self,
        work: u64,
        kind: Kind,
        len: u32,
        pieces: impl Iterator<Item = Piece>,
    ) {
        let before = self.pieces.len();
        // An empty piece would never be consumed; only a zero-length read keeps its one piece.
        let is_read = matches!(kind, Kind::Read { .. });
        self.pieces.extend(pieces.filter(|piece| piece.len > 0 || is_read));
        // At most GATHER_SEGMENTS_MAX.
        let pieces = (self.pieces.len() - before) as u16;
        self.works.push_back(Work { work, kind, len, pieces });
    }

    /// Queues the response to a read of the peer.
    pub(super) fn answer(&mut self, request: ReadRequest) {
        self.answers.push_back(request);
    }

    /// Queues a zero-length write.
    pub(super) fn nudge(&mut self) {
        self.nudge = true;
    }

    /// Records that bytes are on their way.
    pub(super) fn note_said(&mut self) {
        self.said = true;
    }

    /// True if anything was sent.
    pub(super) fn has_said(&self) -> bool {
        self.said
    }

    pub(super) fn work_count(&self) -> usize {
        self.works.len()
    }

    /// True if the kernel has all output, or inside TLS the records have it.
    pub(super) fn is_empty(&self) -> bool {
        !self.nudge
            && self.works.is_empty()
            && self.answers.is_empty()
            && self.message.is_none()
            && self.chunks.is_empty()
    }

    /// Passes as much as possible to the kernel and appends complete work to `finished`.
    pub(super) fn pump(
        &mut self,
        socket: &impl AsFd,
        table: &RegionTable,
        receiver: &mut Receiver,
        finished: &mut Vec<Finished>,
        budget_bytes: usize,
    ) -> Result<Progress, SendFailure> {
        let mut sent = 0;
        loop {
            self.plan(table, receiver)?;
            if self.chunks.is_empty() {
                self.shrink();
                return Ok(Progress::Idle);
            }
            let flags = libc::MSG_NOSIGNAL
                | libc::MSG_DONTWAIT
                | if self.one_per_call { libc::MSG_EOR } else { 0 };
            let (total, result) = self.send(socket.as_fd(), table, flags)?;
            match result {
                Ok(bytes) => {
                    self.said = true;
                    self.consume(bytes, receiver, finished);
                    sent += bytes;
                    if bytes < total {
                        return Ok(Progress::Blocked);
                    }
                    if sent >= budget_bytes {
                        return Ok(if self.is_empty() { Progress::Idle } else { Progress::Budget });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    self.note_inaccessible(table);
                    return Err(SendFailure::Inaccessible(Inaccessible));
                }
                Err(error) => return Err(SendFailure::Io(error)),
            }
        }
    }

    /// Marks the buffers of unsent pieces whose memory is no longer accessible.
    fn note_inaccessible(&self, table: &RegionTable) {
        for chunk in &self.chunks {
            if let Ok(Some(view)) = self.payload(chunk, table) {
                let _ = view.look();
            }
        }
    }

    /// The memory of a chunk, unless it is a header or a mark.
    pub(super) fn payload<'a>(
        &'a self,
        chunk: &Chunk,
        table: &'a RegionTable,
    ) -> Result<Option<CheckedSlice<'a>>, SendFailure> {
        Ok(match *chunk {
            Chunk::Piece { number, offset, len } => {
                // INVARIANT: `plan` made the chunk from a piece that is kept until `Done`.
                let piece = &self.pieces[(number - self.piece_base) as usize];
                piece.buffer.checked(piece.offset + offset, len)
            }
            Chunk::Remote { key, address, len } => {
                Some(source_view((self.domain, self.granted), table, key, address, len)?)
            }
            Chunk::Header { .. } | Chunk::Done { .. } | Chunk::Answered => None,
        })
    }

    /// Makes one `sendmsg` of the planned output. Returns the bytes offered and the result.
    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        table: &RegionTable,
        flags: i32,
    ) -> Result<(usize, io::Result<usize>), SendFailure> {
        let headers = VolatileSlice::from_mut(&mut self.headers);
        let mut views: SmallVec<[VolatileSlice<'_>; LARGE_SEND_CHUNK_COUNT_MAX]> = SmallVec::new();
        let mut total = 0;
        // The range of the last view, if it lies in the header area: adjacent ranges are joined.
        let mut joined: Option<(usize, usize)> = None;
        // Only the kernel accesses memory that may become inaccessible.
        let mut may_be_unmapped = false;
        for chunk in &self.chunks {
            let view = match *chunk {
                Chunk::Header { start, end } => {
                    total += end - start;
                    let start = match joined {
                        Some((first, last)) if last == start => {
                            views.pop();
                            first
                        }
                        _ => start,
                    };
                    joined = Some((start, end));
                    headers.slice(start, end - start).map(CheckedSlice::ours)
                }
                Chunk::Piece { number, offset, len } => {
                    (total, joined) = (total + len, None);
                    // INVARIANT: `plan` made the chunk from a piece that is kept until `Done`.
                    let piece = &self.pieces[(number - self.piece_base) as usize];
                    piece.buffer.checked(piece.offset + offset, len)
                }
                Chunk::Remote { key, address, len } => {
                    (total, joined) = (total + len, None);
                    Some(source_view((self.domain, self.granted), table, key, address, len)?)
                }
                Chunk::Done { .. } | Chunk::Answered => continue,
            };
            debug_assert!(view.is_some(), "chunks lie inside their memory");
            may_be_unmapped |= view.is_some_and(|view| view.may_be_unmapped());
            views.extend(view.map(|view| view.view()));
        }
        if total > COALESCE_BYTES_MAX || views.len() == 1 || may_be_unmapped {
            return Ok((total, dafs_mem::sendmsg(socket, &views, flags)));
        }
        // One piece costs the kernel less than three small ones.
        let mut together = [0; COALESCE_BYTES_MAX];
        let mut filled = 0;
        for view in &views {
            filled += view.copy_to(&mut together[filled..], Site::IwarpSmallSend);
        }
        let view = VolatileSlice::from_mut(&mut together[..filled]);
        Ok((total, dafs_mem::sendmsg(socket, &[view], flags)))
    }

    /// Removes `bytes` from the front of the planned output.
    pub(super) fn consume(
        &mut self,
        mut bytes: usize,
        rx: &mut Receiver,
        finished: &mut Vec<Finished>,
    ) {
        while let Some(chunk) = self.chunks.front_mut() {
            let len = chunk.len();
            if bytes < len {
                match chunk {
                    Chunk::Header { start, .. } => *start += bytes,
                    Chunk::Piece { offset, len, .. } => {
                        (*offset, *len) = (*offset + bytes, *len - bytes);
                    }
                    Chunk::Remote { address, len, .. } => {
                        (*address, *len) = (*address + bytes as u64, *len - bytes);
                    }
                    Chunk::Done { .. } | Chunk::Answered => {}
                }
                return;
            }
            bytes -= len;
            match *chunk {
                Chunk::Done { finished: done, pieces } => {
                    self.drop_pieces(pieces);
                    finished.push(done);
                }
                Chunk::Answered => rx.read_answered(),
                _ => {}
            }
            self.chunks.pop_front();
        }
        self.headers.clear();
    }

    fn drop_pieces(&mut self, count: u16) {
        for _ in 0..count {
            self.pieces.pop_front();
        }
        self.piece_base += u64::from(count);
    }

    /// Frees memory that a burst has allocated.
    pub(super) fn shrink(&mut self) {
        if self.works.capacity() > IDLE_QUEUE_CAPACITY && self.works.is_empty() {
            self.works.shrink_to(IDLE_QUEUE_CAPACITY);
            self.pieces.shrink_to(IDLE_QUEUE_CAPACITY);
        }
        if self.chunks.capacity() > 2 * IDLE_QUEUE_CAPACITY {
            self.chunks.shrink_to(2 * IDLE_QUEUE_CAPACITY);
            self.headers.shrink_to(IDLE_HEADER_BYTES);
        }
    }

    /// A Terminate as one FPDU, if the stream is between two FPDUs; otherwise it has no place, and
    /// the connection can only be closed.
    pub(super) fn terminate(&mut self, codes: Terminate) -> Option<Vec<u8>> {
        if !self.chunks.is_empty() || self.message.is_some() || self.segment_bytes_max == 0 {
            return None;
        }
        let place =
            Place::Untagged { invalidate_stag: 0, queue: Queue::Terminate, msn: 1, offset: 0 };
        let payload_bytes = Terminate::BYTES as u16;
        let header = Header { opcode: Opcode::Terminate, last: true, place, payload_bytes };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        codes.encode(&mut bytes);
        bytes.resize(bytes.len() + mpa::padding_bytes(header.segment_bytes()), 0);
        let trailer = match &mut self.crc {
            Some(crc) => {
                crc.update(&bytes);
                crc.finish()
            }
            None => [0; mpa::FPDU_CRC_BYTES],
        };
        bytes.extend_from_slice(&trailer);
        Some(bytes)
    }

    /// Takes back all unfinished work in posting order; no more is sent.
    pub(super) fn flush(&mut self, finished: &mut Vec<Finished>) {
        for chunk in self.chunks.drain(..) {
            if let Chunk::Done { finished: done, .. } = chunk {
                finished.push(done);
            }
        }
        if let Some(Message { source: Source::Work { work, operation, .. }, len, .. }) =
            self.message.take()
        {
            finished.push(Finished { work, operation, bytes: len });
        }
        for Work { work, kind, len, .. } in self.works.drain(..) {
            let operation = match kind {
                Kind::Send { .. } => Operation::Send,
                Kind::Write { .. } => Operation::RdmaWrite,
                Kind::Read { .. } => Operation::RdmaRead,
            };
            finished.push(Finished { work, operation, bytes: len });
        }
        self.answers.clear();
        self.pieces.clear();
        self.headers.clear();
    }
}

/// The mark after a read request; the read itself is reported when its data has arrived.
pub(super) const REQUEST_SENT: Finished =
    Finished { work: 0, operation: Operation::Receive, bytes: 0 };

impl Finished {
    /// True if the caller gets a completion.
    pub(super) fn is_reported(&self) -> bool {
        self.operation != Operation::Receive
    }
}

pub(super) fn source_view<'a>(
    domains: Readable,
    table: &'a RegionTable,
    key: u32,
    address: u64,
    len: usize,
) -> Result<CheckedSlice<'a>, SendFailure> {
    let remote = RemoteBuffer { key, address, len: len as u32 };
    table.readable(domains, remote).map_err(|reason| {
        SendFailure::Violation(Violation::Read { key, address, bytes: len as u64, reason })
    })
}
