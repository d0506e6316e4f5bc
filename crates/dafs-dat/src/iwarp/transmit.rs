//! The sending half of a connection: posted work in, FPDUs out.
//!
//! Invariants
//! * FPDUs point straight at registered memory; only headers and trailers are built, in one small
//!   area that is reused once everything in it was handed over.
//! * A message is sent whole before the next begins. Answers to the peer's reads and our own work
//!   take turns between messages, and answers never wait for our own reads: two peers that read
//!   from each other make progress.
//! * Work is complete when its last byte was handed to the kernel; a read moves to the receiver
//!   when its request is built.
//! * Memory that the peer reads is looked up by its key each time it is handed to the kernel.

use super::limits::{FPDU_BYTES_MIN, IDLE_QUEUE_CAPACITY, SEND_BATCH_BYTES, SEND_CHUNK_COUNT_MAX};
use super::receive::{PostedRead, Receiver};
use super::violation::Violation;
use crate::{Access, Operation, ProtectionDomain, RegionTable, RemoteBuffer};
use dafs_mem::{Buffer, VolatileSlice};
use dafs_wire::iwarp::crc::Crc32c;
use dafs_wire::iwarp::ddp::{self, Header, Place, Queue};
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

/// What posted work does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Send,
    Write {
        stag: u32,
        address: u64,
    },
    /// The source; its one piece is the sink.
    Read {
        stag: u32,
        address: u64,
    },
}

#[derive(Debug, Clone, Copy)]
struct Work {
    work: u64,
    kind: Kind,
    len: u32,
    pieces: u16,
}

/// Work that is over, in whatever way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) work: u64,
    pub(super) operation: Operation,
    pub(super) bytes: u32,
}

/// The message that is being cut into FPDUs.
#[derive(Debug, Clone, Copy)]
struct Message {
    opcode: Opcode,
    len: u32,
    done: u32,
    source: Source,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    /// Posted work: its tag, and where it writes if it does.
    Work { work: u64, operation: Operation, stag: u32, address: u64, pieces: u16 },
    /// The peer's memory request.
    Answer(ReadRequest),
    /// A read request of ours, which has no further report.
    Request(ReadRequest),
}

/// What has been built and waits for the kernel, in order.
#[derive(Debug, Clone, Copy)]
enum Chunk {
    /// Bytes of the header area.
    Header { start: usize, end: usize },
    /// Bytes of a piece, by its number.
    Piece { number: u64, offset: usize, len: usize },
    /// Bytes of memory that the peer reads.
    Remote { key: u32, address: u64, len: usize },
    /// All before this belongs to finished work.
    Done { finished: Finished, pieces: u16 },
    /// All before this is a finished answer.
    Answered,
}

/// How far sending got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing is left that may be sent.
    Idle,
    /// The socket takes no more for now.
    Blocked,
    /// There is more, but others are due.
    Budget,
}

/// Why sending failed.
#[derive(Debug)]
pub(super) enum SendFailure {
    Io(io::Error),
    Violation(Violation),
}

/// The transmitter.
#[derive(Debug)]
pub(super) struct Transmitter {
    domain: ProtectionDomain,
    works: VecDeque<Work>,
    answers: VecDeque<ReadRequest>,
    /// Pieces of all unfinished work, oldest first; the first has the number `piece_base`.
    pieces: VecDeque<Piece>,
    piece_base: u64,
    /// The piece and the offset in it that the next FPDU starts with.
    next_piece: u64,
    next_offset: usize,
    message: Option<Message>,
    answer_was_last: bool,
    chunks: VecDeque<Chunk>,
    headers: Vec<u8>,
    crc: Option<Box<Crc32c>>,
    segment_bytes_max: usize,
    one_per_call: bool,
    send_msn: u32,
    read_msn: u32,
    next_sink_stag: u32,
    outbound_reads_max: u16,
}

impl Transmitter {
    pub(super) fn new(domain: ProtectionDomain, first_sink_stag: u32) -> Self {
        Self {
            domain,
            works: VecDeque::new(),
            answers: VecDeque::new(),
            pieces: VecDeque::new(),
            piece_base: 0,
            next_piece: 0,
            next_offset: 0,
            message: None,
            answer_was_last: false,
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

    /// Sets what the handshake has agreed on. With `one_per_call` each FPDU is a record of its own
    /// for TCP, so that its trailer never straddles two segments.
    pub(super) fn agree(&mut self, crc: bool, one_per_call: bool, outbound_reads_max: u16) {
        self.crc = crc.then(Box::default);
        self.one_per_call = one_per_call;
        self.outbound_reads_max = outbound_reads_max;
    }

    /// Sets the largest FPDU, in bytes.
    pub(super) fn limit_fpdu(&mut self, fpdu_bytes: usize) {
        // A read request must fit in one, however small the segments of the path are.
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
        // An empty piece would never be passed by; only a read of nothing keeps its one.
        let is_read = matches!(kind, Kind::Read { .. });
        self.pieces.extend(pieces.filter(|piece| piece.len > 0 || is_read));
        // At most GATHER_SEGMENTS_MAX.
        let pieces = (self.pieces.len() - before) as u16;
        self.works.push_back(Work { work, kind, len, pieces });
    }

    /// Queues the answer to a read of the peer.
    pub(super) fn answer(&mut self, request: ReadRequest) {
        self.answers.push_back(request);
    }

    pub(super) fn work_count(&self) -> usize {
        self.works.len()
    }

    /// Whether everything was handed to the kernel.
    pub(super) fn is_empty(&self) -> bool {
        self.works.is_empty()
            && self.answers.is_empty()
            && self.message.is_none()
            && self.chunks.is_empty()
    }

    /// Hands as much as possible to the kernel and appends what is complete to `finished`.
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
                Err(error) => return Err(SendFailure::Io(error)),
            }
        }
    }

    /// One `sendmsg` of what has been built. Returns the bytes offered and the result.
    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        table: &RegionTable,
        flags: i32,
    ) -> Result<(usize, io::Result<usize>), SendFailure> {
        let headers = VolatileSlice::from_mut(&mut self.headers);
        let mut views: SmallVec<[VolatileSlice<'_>; SEND_CHUNK_COUNT_MAX]> = SmallVec::new();
        let mut total = 0;
        // The range of the last view, if it lies in the header area: neighbours are joined.
        let mut joined: Option<(usize, usize)> = None;
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
                    headers.slice(start, end - start)
                }
                Chunk::Piece { number, offset, len } => {
                    (total, joined) = (total + len, None);
                    // INVARIANT: `plan` made the chunk from a piece that is kept until `Done`.
                    let piece = &self.pieces[(number - self.piece_base) as usize];
                    piece.buffer.slice(piece.offset + offset, len)
                }
                Chunk::Remote { key, address, len } => {
                    (total, joined) = (total + len, None);
                    Some(source_view(self.domain, table, key, address, len)?)
                }
                Chunk::Done { .. } | Chunk::Answered => continue,
            };
            debug_assert!(view.is_some(), "chunks lie inside their memory");
            views.extend(view);
        }
        Ok((total, dafs_mem::sendmsg(socket, &views, flags)))
    }

    /// Drops `bytes` from the front of what was built.
    fn consume(&mut self, mut bytes: usize, rx: &mut Receiver, finished: &mut Vec<Finished>) {
        while let Some(chunk) = self.chunks.front_mut() {
            let len = match chunk {
                Chunk::Header { start, end } => *end - *start,
                Chunk::Piece { len, .. } | Chunk::Remote { len, .. } => *len,
                Chunk::Done { .. } | Chunk::Answered => 0,
            };
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

    /// Builds FPDUs until a call is full or nothing more may be sent.
    fn plan(&mut self, table: &RegionTable, receiver: &mut Receiver) -> Result<(), SendFailure> {
        if self.one_per_call && !self.chunks.is_empty() {
            return Ok(());
        }
        let mut planned = 0;
        // An FPDU takes a header, a trailer, a mark, and as many pieces as the work has.
        let room = SEND_CHUNK_COUNT_MAX - crate::GATHER_SEGMENTS_MAX - 3;
        while self.chunks.len() <= room && planned < SEND_BATCH_BYTES {
            let message = match self.message.take() {
                Some(message) => message,
                None => match self.next_message(receiver) {
                    Some(message) => message,
                    None => break,
                },
            };
            planned += self.plan_fpdu(message, table)?;
            if self.one_per_call {
                break;
            }
        }
        Ok(())
    }

    /// Chooses the next message; answers and own work take turns.
    fn next_message(&mut self, receiver: &mut Receiver) -> Option<Message> {
        let answer_first = !self.answer_was_last;
        if answer_first && let Some(message) = self.next_answer() {
            return Some(message);
        }
        match self.next_work(receiver) {
            Some(message) => {
                self.answer_was_last = false;
                Some(message)
            }
            None if answer_first => None,
            None => self.next_answer(),
        }
    }

    fn next_answer(&mut self) -> Option<Message> {
        let request = self.answers.pop_front()?;
        self.answer_was_last = true;
        let (len, source) = (request.length, Source::Answer(request));
        Some(Message { opcode: Opcode::ReadResponse, len, done: 0, source })
    }

    fn next_work(&mut self, receiver: &mut Receiver) -> Option<Message> {
        let Work { work, kind, len, pieces } = *self.works.front()?;
        let source =
            |operation, stag, address| Source::Work { work, operation, stag, address, pieces };
        let message = match kind {
            Kind::Send => Message {
                opcode: Opcode::Send,
                len,
                done: 0,
                source: source(Operation::Send, 0, 0),
            },
            Kind::Write { stag, address } => Message {
                opcode: Opcode::Write,
                len,
                done: 0,
                source: source(Operation::RdmaWrite, stag, address),
            },
            Kind::Read { stag, address } => {
                if receiver.read_count() >= usize::from(self.outbound_reads_max) {
                    return None;
                }
                let request = self.start_read(work, len, stag, address, receiver)?;
                Message {
                    opcode: Opcode::ReadRequest,
                    len: ReadRequest::BYTES as u32,
                    done: 0,
                    source: Source::Request(request),
                }
            }
        };
        self.works.pop_front();
        Some(message)
    }

    /// Moves a read to the receiver, which will see the answer.
    fn start_read(
        &mut self,
        work: u64,
        len: u32,
        stag: u32,
        address: u64,
        receiver: &mut Receiver,
    ) -> Option<ReadRequest> {
        // The sink's piece stays in its place among the pieces until the request is handed over,
        // so that they keep their order; the receiver has a share of its own.
        let piece = &self.pieces[(self.next_piece - self.piece_base) as usize];
        let sink_stag = self.next_sink_stag;
        // The sink is named by a tag that means nothing but this read, so the peer learns neither
        // a key nor an address.
        self.next_sink_stag = self.next_sink_stag.wrapping_add(1).max(1);
        receiver.post_read(PostedRead {
            work,
            buffer: piece.buffer.clone(),
            offset: piece.offset,
            len,
            sink_stag,
        });
        self.next_piece += 1;
        Some(ReadRequest {
            sink_stag,
            sink_offset: 0,
            length: len,
            source_stag: stag,
            source_offset: address,
        })
    }

    /// Builds the next FPDU of `message`; keeps the message if it goes on. Returns payload bytes.
    fn plan_fpdu(
        &mut self,
        mut message: Message,
        table: &RegionTable,
    ) -> Result<usize, SendFailure> {
        let header_bytes = if message.opcode.is_tagged() {
            ddp::TAGGED_HEADER_BYTES
        } else {
            ddp::UNTAGGED_HEADER_BYTES
        };
        let room = self.segment_bytes_max - header_bytes;
        // Below 2^16, as the segment is.
        let payload = room.min((message.len - message.done) as usize);
        let last = message.done as usize + payload == message.len as usize;
        let header = Header {
            opcode: message.opcode,
            last,
            place: self.place(&message),
            payload_bytes: payload as u16,
        };
        let start = self.headers.len();
        header.encode(&mut self.headers);
        if let Source::Request(request) = message.source {
            request.encode(&mut self.headers);
        }
        let end = self.headers.len();
        self.chunks.push_back(Chunk::Header { start, end });
        if let Some(crc) = &mut self.crc {
            crc.update(&self.headers[start..end]);
        }
        match message.source {
            Source::Work { .. } => self.plan_pieces(payload),
            Source::Answer(request) => self.plan_answer(&request, message.done, payload, table)?,
            Source::Request(_) => {}
        }
        self.plan_trailer(header.segment_bytes());
        message.done += payload as u32;
        if last {
            self.plan_end(&message);
        } else {
            self.message = Some(message);
        }
        Ok(payload)
    }

    fn place(&self, message: &Message) -> Place {
        let untagged =
            |queue, msn| Place::Untagged { invalidate_stag: 0, queue, msn, offset: message.done };
        let done = u64::from(message.done);
        match message.source {
            Source::Answer(request) => Place::Tagged {
                stag: request.sink_stag,
                // The peer checks its own offsets; ours must only not overflow.
                offset: request.sink_offset.wrapping_add(done),
            },
            Source::Work { operation: Operation::RdmaWrite, stag, address, .. } => {
                Place::Tagged { stag, offset: address.wrapping_add(done) }
            }
            Source::Work { .. } => untagged(Queue::Send, self.send_msn),
            Source::Request(_) => Place::Untagged {
                invalidate_stag: 0,
                queue: Queue::ReadRequest,
                msn: self.read_msn,
                offset: 0,
            },
        }
    }

    fn plan_pieces(&mut self, mut payload: usize) {
        while payload > 0 {
            // INVARIANT: the work's length is the sum of its pieces, so they do not run out.
            let piece = &self.pieces[(self.next_piece - self.piece_base) as usize];
            let len = payload.min(piece.len - self.next_offset);
            if let (Some(crc), Some(view)) =
                (&mut self.crc, piece.buffer.slice(piece.offset + self.next_offset, len))
            {
                view.scan(|bytes| crc.update(bytes));
            }
            let ends = self.next_offset + len == piece.len;
            if len > 0 {
                let (number, offset) = (self.next_piece, self.next_offset);
                self.chunks.push_back(Chunk::Piece { number, offset, len });
            }
            payload -= len;
            if ends {
                self.next_piece += 1;
                self.next_offset = 0;
            } else {
                self.next_offset += len;
            }
        }
    }

    fn plan_answer(
        &mut self,
        request: &ReadRequest,
        done: u32,
        len: usize,
        table: &RegionTable,
    ) -> Result<(), SendFailure> {
        if len == 0 {
            return Ok(());
        }
        // The whole source range was checked for overflow when the request came.
        let (key, address) = (request.source_stag, request.source_offset + u64::from(done));
        if let Some(crc) = &mut self.crc {
            let view = source_view(self.domain, table, key, address, len)?;
            view.scan(|bytes| crc.update(bytes));
        }
        self.chunks.push_back(Chunk::Remote { key, address, len });
        Ok(())
    }

    fn plan_trailer(&mut self, segment_bytes: usize) {
        let start = self.headers.len();
        let padding = mpa::padding_bytes(segment_bytes);
        self.headers.resize(start + padding, 0);
        let trailer = match &mut self.crc {
            Some(crc) => {
                crc.update(&[0; 4][..padding]);
                crc.finish()
            }
            None => [0; mpa::FPDU_CRC_BYTES],
        };
        self.headers.extend_from_slice(&trailer);
        self.chunks.push_back(Chunk::Header { start, end: self.headers.len() });
    }

    fn plan_end(&mut self, message: &Message) {
        match message.source {
            Source::Answer(_) => self.chunks.push_back(Chunk::Answered),
            Source::Request(_) => {
                self.read_msn = self.read_msn.wrapping_add(1);
                // The read is reported by the receiver; only its piece is let go here.
                self.chunks.push_back(Chunk::Done { finished: REQUEST_SENT, pieces: 1 });
            }
            Source::Work { work, operation, pieces, .. } => {
                debug_assert_eq!(self.next_offset, 0, "a message ends with its last piece");
                if operation == Operation::Send {
                    self.send_msn = self.send_msn.wrapping_add(1);
                }
                let finished = Finished { work, operation, bytes: message.len };
                self.chunks.push_back(Chunk::Done { finished, pieces });
            }
        }
    }

    /// Gives memory back that a burst has grown.
    fn shrink(&mut self) {
        if self.works.capacity() > IDLE_QUEUE_CAPACITY && self.works.is_empty() {
            self.works.shrink_to(IDLE_QUEUE_CAPACITY);
            self.pieces.shrink_to(IDLE_QUEUE_CAPACITY);
        }
    }

    /// A Terminate as one FPDU, if the stream is between two of them; else there is no place for
    /// one and the connection can only be closed.
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

    /// Takes back all unfinished work in the order it was posted; nothing is sent any more.
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
                Kind::Send => Operation::Send,
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

/// The mark behind a read request; the read itself is reported when its data is here.
const REQUEST_SENT: Finished = Finished { work: 0, operation: Operation::Receive, bytes: 0 };

impl Finished {
    /// Whether anybody is to be told.
    pub(super) fn is_reported(&self) -> bool {
        self.operation != Operation::Receive
    }
}

fn source_view<'a>(
    domain: ProtectionDomain,
    table: &'a RegionTable,
    key: u32,
    address: u64,
    len: usize,
) -> Result<VolatileSlice<'a>, SendFailure> {
    let remote = RemoteBuffer { key, address, len: len as u32 };
    let found = table.remote(domain, remote, Access::REMOTE_READ);
    found.map(|(_, view)| view).map_err(|reason| {
        SendFailure::Violation(Violation::Read { key, address, bytes: len as u64, reason })
    })
}
