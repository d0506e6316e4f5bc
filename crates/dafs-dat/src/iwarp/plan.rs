//! Cuts queued work and read responses into FPDUs.
//!
//! Invariants
//! * A message is planned completely before the next begins; read responses and own work take
//!   turns.
//! * The chunks of one call never exceed `SEND_CHUNK_COUNT_MAX`.
//! * The header area never exceeds `HEADER_AREA_BYTES_MAX` by more than the headers of one call, or
//!   one answer that is copied there.
//! * An answer is copied only when no memory has still to be read for an earlier one.

use super::limits::{
    COPIED_ANSWER_BYTES_MAX, DIRECT_BYTES_MIN, HEADER_AREA_BYTES_MAX, LARGE_SEND_CHUNK_COUNT_MAX,
    SEND_BATCH_BYTES, SEND_CHUNK_COUNT_MAX,
};
use super::receive::{PostedRead, Receiver};
use super::transmit::{
    Chunk, Finished, Kind, Message, REQUEST_SENT, SendFailure, Source, Transmitter, Work,
    source_view,
};
use crate::{Operation, RegionTable};
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::iwarp::ddp::{self, Header, Place, Queue};
use dafs_wire::iwarp::mpa;
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest};

impl Transmitter {
    /// Builds FPDUs until a call is full or no more may be sent.
    pub(super) fn plan(
        &mut self,
        table: &RegionTable,
        receiver: &mut Receiver,
    ) -> Result<(), SendFailure> {
        let full = self.one_per_call || self.headers.len() > HEADER_AREA_BYTES_MAX;
        if full && !self.chunks.is_empty() {
            return Ok(());
        }
        let mut planned = 0;
        // An FPDU takes a header, a trailer, a mark, and as many pieces as its work has.
        let is_small = self.segment_bytes_max < DIRECT_BYTES_MIN;
        let most = if is_small { SEND_CHUNK_COUNT_MAX } else { LARGE_SEND_CHUNK_COUNT_MAX };
        let room = most - crate::GATHER_SEGMENTS_MAX - 3;
        while self.chunks.len() <= room && planned < SEND_BATCH_BYTES {
            let message = match self.message.take() {
                Some(message) => message,
                None => match self.next_message(receiver) {
                    Some(message) => message,
                    None => break,
                },
            };
            if self.is_held_back(&message) {
                self.message = Some(message);
                break;
            }
            planned += self.plan_fpdu(message, table)?;
            if self.one_per_call {
                break;
            }
        }
        Ok(())
    }

    /// True for an answer that is copied when it is planned: with a CRC, out of memory that may
    /// change before it is sent.
    fn is_copied(&self, message: &Message) -> bool {
        self.crc.is_some()
            && self.granted.is_some()
            && matches!(message.source, Source::Answer(_))
            && message.len as usize <= COPIED_ANSWER_BYTES_MAX
    }

    /// True while an answer that is copied must wait: for answers before it whose memory has still
    /// to be read, and for the room of copies.
    fn is_held_back(&self, message: &Message) -> bool {
        let mut chunks = self.chunks.iter();
        self.is_copied(message)
            && (self.headers.len() > HEADER_AREA_BYTES_MAX && !self.chunks.is_empty()
                || chunks.any(|chunk| matches!(chunk, Chunk::Remote { .. })))
    }

    /// Chooses the next message; read responses and own work take turns.
    fn next_message(&mut self, receiver: &mut Receiver) -> Option<Message> {
        if std::mem::take(&mut self.nudge) {
            let (opcode, source) = (Opcode::Write, Source::Nudge);
            return Some(Message { opcode, len: 0, done: 0, source });
        }
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
            Kind::Send { invalidate } => Message {
                opcode: match invalidate {
                    Some(_) => Opcode::SendInvalidate,
                    None => Opcode::Send,
                },
                len,
                done: 0,
                source: source(Operation::Send, invalidate.unwrap_or(0), 0),
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

    /// Moves a read to the receiver, which will take the response.
    fn start_read(
        &mut self,
        work: u64,
        len: u32,
        stag: u32,
        address: u64,
        receiver: &mut Receiver,
    ) -> Option<ReadRequest> {
        // The sink's piece stays among the pieces until the request is sent, so that they keep
        // their order; the receiver has a reference of its own.
        let piece = &self.pieces[(self.next_piece - self.piece_base) as usize];
        let sink_stag = self.next_sink_stag;
        // The sink has a tag of its own for each read, so the peer learns neither a key nor an
        // address.
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

    /// Builds the next FPDU of `message`; keeps the message if more FPDUs follow. Returns payload
    /// bytes.
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
            Source::Work { .. } => self.plan_pieces(payload)?,
            Source::Answer(request) if self.is_copied(&message) => {
                self.copy_answer(&request, message.done, payload, table)?;
            }
            Source::Answer(request) => self.plan_answer(&request, message.done, payload, table)?,
            Source::Request(_) | Source::Nudge => {}
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
        let done = u64::from(message.done);
        match message.source {
            Source::Answer(request) => Place::Tagged {
                stag: request.sink_stag,
                // The peer checks its own offsets; the addition must only not overflow here.
                offset: request.sink_offset.wrapping_add(done),
            },
            Source::Work { operation: Operation::RdmaWrite, stag, address, .. } => {
                Place::Tagged { stag, offset: address.wrapping_add(done) }
            }
            Source::Nudge => Place::Tagged { stag: 0, offset: 0 },
            Source::Work { stag, .. } => Place::Untagged {
                invalidate_stag: stag,
                queue: Queue::Send,
                msn: self.send_msn,
                offset: message.done,
            },
            Source::Request(_) => Place::Untagged {
                invalidate_stag: 0,
                queue: Queue::ReadRequest,
                msn: self.read_msn,
                offset: 0,
            },
        }
    }

    fn plan_pieces(&mut self, mut payload: usize) -> Result<(), SendFailure> {
        while payload > 0 {
            // INVARIANT: the work's length is the sum of its pieces, so they do not run out.
            let piece = &self.pieces[(self.next_piece - self.piece_base) as usize];
            let len = payload.min(piece.len - self.next_offset);
            if let (Some(crc), Some(view)) =
                (&mut self.crc, piece.buffer.checked(piece.offset + self.next_offset, len))
            {
                view.scan(|bytes| crc.update(bytes)).map_err(SendFailure::Inaccessible)?;
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
        Ok(())
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
        // The whole source range was checked for overflow when the request arrived.
        let (key, address) = (request.source_stag, request.source_offset + u64::from(done));
        if let Some(crc) = &mut self.crc {
            let view = source_view((self.domain, self.granted), table, key, address, len)?;
            view.scan(|bytes| crc.update(bytes)).map_err(SendFailure::Inaccessible)?;
        }
        self.chunks.push_back(Chunk::Remote { key, address, len });
        Ok(())
    }

    /// Copies a part of an answer behind its header.
    fn copy_answer(
        &mut self,
        request: &ReadRequest,
        done: u32,
        len: usize,
        table: &RegionTable,
    ) -> Result<(), SendFailure> {
        if len == 0 {
            return Ok(());
        }
        // The whole source range was checked for overflow when the request arrived.
        let (key, address) = (request.source_stag, request.source_offset + u64::from(done));
        let view = source_view((self.domain, self.granted), table, key, address, len)?;
        let start = self.headers.len();
        self.headers.resize(start + len, 0);
        let target = VolatileSlice::from_mut(&mut self.headers[start..]);
        view.copy_to(target, Site::IwarpAnswer).map_err(SendFailure::Inaccessible)?;
        let end = self.headers.len();
        if let Some(crc) = &mut self.crc {
            crc.update(&self.headers[start..end]);
        }
        self.chunks.push_back(Chunk::Header { start, end });
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
            Source::Nudge => {}
            Source::Request(_) => {
                self.read_msn = self.read_msn.wrapping_add(1);
                // The receiver reports the read; only its piece is released here.
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
}

#[cfg(test)]
mod tests {
    use super::super::transmit::{Piece, Progress};
    use super::*;
    use crate::ProtectionDomain;
    use dafs_mem::Buffer;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    #[test]
    fn a_short_answer_with_a_crc_is_copied_when_longer_ones_before_it_are_sent() {
        const BYTES: usize = 64 << 10;
        let (domain, granted) = (ProtectionDomain(1), ProtectionDomain(2));
        let mut tx = Transmitter::new(domain, 1);
        tx.agree(true, false, 1);
        tx.limit_fpdu(super::super::limits::OWN_FPDU_BYTES);
        tx.granted = Some(granted);
        let mut table = RegionTable::new();
        let buffer = Arc::new(Buffer::zeroed(BYTES).unwrap());
        let access = crate::Access::REMOTE_READ;
        let region = table.register(granted, buffer.clone(), access, || 7).unwrap();
        let request = |length| ReadRequest {
            sink_stag: 9,
            sink_offset: 0,
            length,
            source_stag: region.key,
            source_offset: region.address,
        };
        let mut rx = Receiver::new(domain, true, 4);
        let is_remote = |chunk: &Chunk| matches!(chunk, Chunk::Remote { .. });
        [16, 8192, 8].into_iter().for_each(|length| tx.answer(request(length)));
        buffer.view().copy_from(&[3; 16], Site::Inspect);
        tx.plan(&table, &mut rx).unwrap();
        // The last one waits, because the memory for the one before is still to be read.
        assert_eq!(tx.chunks.iter().filter(|chunk| is_remote(chunk)).count(), 1);
        assert!(tx.message.is_some() && tx.answers.is_empty());
        tx.chunks.clear();
        tx.headers.clear();
        tx.plan(&table, &mut rx).unwrap();
        assert!(tx.message.is_none() && !tx.chunks.iter().any(is_remote));
        buffer.view().copy_from(&[4; 16], Site::Inspect);
        assert!(tx.headers.windows(8).any(|bytes| bytes == [3; 8]), "it is a copy");
        // Others than those with grants have no copies.
        tx.chunks.clear();
        tx.headers.clear();
        tx.granted = None;
        let own = table.register(domain, buffer, access, || 8).unwrap();
        tx.answer(ReadRequest { source_stag: own.key, ..request(8) });
        tx.plan(&table, &mut rx).unwrap();
        assert!(tx.chunks.iter().any(is_remote));
    }

    /// The socket always has less room than is queued, so chunks remain after every call.
    #[test]
    fn headers_of_a_congested_connection_do_not_pile_up() {
        const MESSAGE_BYTES: usize = 1 << 20;
        const MESSAGES: usize = 32;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        socket2::SockRef::from(&ours).set_send_buffer_size(16 << 10).unwrap();
        let domain = ProtectionDomain(1);
        let mut tx = Transmitter::new(domain, 1);
        tx.agree(false, false, 1);
        tx.limit_fpdu(4096);
        let buffer = Arc::new(Buffer::zeroed(MESSAGE_BYTES).unwrap());
        for work in 0..MESSAGES as u64 {
            let piece = Piece { buffer: buffer.clone(), offset: 0, len: MESSAGE_BYTES };
            tx.post(
                work,
                Kind::Send { invalidate: None },
                MESSAGE_BYTES as u32,
                std::iter::once(piece),
            );
        }
        let table = RegionTable::new();
        let mut rx = Receiver::new(domain, false, 0);
        let (mut finished, mut longest, mut blocked) = (Vec::new(), 0, 0);
        let mut sink = vec![0; 16 << 10];
        while !tx.is_empty() {
            let progress = tx.pump(&ours, &table, &mut rx, &mut finished, usize::MAX).unwrap();
            blocked += usize::from(progress == Progress::Blocked);
            longest = longest.max(tx.headers.len());
            let _ = theirs.read(&mut sink).unwrap();
        }
        assert!(blocked > 500, "the connection was not congested: {blocked}");
        assert!(longest > HEADER_AREA_BYTES_MAX / 2, "{longest}");
        assert!(longest < HEADER_AREA_BYTES_MAX + SEND_CHUNK_COUNT_MAX * 32, "{longest}");
        assert_eq!(finished.len(), MESSAGES);
    }
}
