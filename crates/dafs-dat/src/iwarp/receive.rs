//! The receiving half of a connection: bytes in, placement and messages out, without sockets.
//!
//! Invariants
//! * [`Receiver::consume`] uses every byte that it gets. Between calls the receiver keeps only a
//!   partial header, control payload or trailer, in a fixed array.
//! * Payload is placed as it arrives, but no part of a segment is reported before its CRC, if one
//!   was agreed, has been verified.
//! * The receiver validates a segment completely from its header, before it places the first byte.
//!   It looks memory up by key again for every piece.
//! * Message sequence numbers grow by one, offsets are contiguous, and a tagged message is not
//!   interleaved with another one (RFC 5041 5, RFC 5040 5).
//! * A key that a message invalidates is checked with each of its segments and becomes invalid with
//!   the last, before the message is reported.
//! * After an error or a Terminate the receiver ignores all further input.
//! * Writes of the peer into memory that is no longer accessible are discarded, and the buffer
//!   remembers that: the stream continues. A message, or an own read, into such memory ends the
//!   connection.

use super::expect::LargeData;
use super::limits::DIRECT_BYTES_MIN;
use super::violation::Violation;
use crate::{Access, ProtectionDomain, RegionTable, RemoteBuffer};
use dafs_mem::{Buffer, CheckedSlice, Inaccessible, Site, VolatileSlice};
use dafs_wire::iwarp::crc::Crc32c;
use dafs_wire::iwarp::ddp::{self, Header};
use dafs_wire::iwarp::mpa;
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest, Terminate};
use std::collections::VecDeque;
use std::sync::Arc;

/// A posted receive.
#[derive(Debug, Clone)]
pub struct PostedReceive {
    /// The caller's work tag.
    pub work: u64,
    /// The memory, kept alive.
    pub buffer: Arc<Buffer>,
    /// Offset in the buffer, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// An own read whose request was sent.
#[derive(Debug, Clone)]
pub struct PostedRead {
    /// The caller's work tag.
    pub work: u64,
    /// The memory, kept alive.
    pub buffer: Arc<Buffer>,
    /// Offset in the buffer, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub len: u32,
    /// The tag that the response must carry; its offsets count from zero.
    pub sink_stag: u32,
}

/// A received item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inbound {
    /// A complete message, in the receive with this tag.
    Received {
        /// The caller's work tag.
        work: u64,
        /// Length in bytes.
        bytes: u32,
        /// The key that the message has invalidated.
        invalidated: Option<u32>,
    },
    /// An own read is complete.
    ReadDone {
        /// The caller's work tag.
        work: u64,
        /// Length in bytes.
        bytes: u32,
    },
    /// A read request of the peer; its source was checked.
    ReadRequested(ReadRequest),
    /// The Terminate of the peer.
    Terminated(Terminate),
}

/// The target of the payload of the segment in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The first posted receive, from this offset of the message; also the key that the message
    /// invalidates.
    Receive { offset: u32, invalidate: Option<u32> },
    /// Registered memory, from this address.
    Write { stag: u32, address: u64 },
    /// The sink of the first outstanding read, from this offset.
    Read(u32),
    /// The scratch array: read requests, Terminate.
    Control,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Header,
    Payload,
    Trailer,
    Ended,
}

/// The segment in progress.
#[derive(Debug, Clone, Copy)]
struct Segment {
    opcode: Opcode,
    target: Target,
    last: bool,
    /// True for a tagged segment that arrived while large data was expected.
    announced: bool,
    /// True if its memory is no longer accessible: the rest of it is discarded.
    lost: bool,
    payload: usize,
    done: usize,
    /// Padding and CRC.
    trailer: usize,
}

/// Bytes of a partial header, control payload or trailer.
const SCRATCH_BYTES: usize = Terminate::BYTES_MAX;

/// The state machine.
#[derive(Debug)]
pub struct Receiver {
    pub(super) domain: ProtectionDomain,
    /// The domain of memory that is granted to this peer alone.
    pub(super) granted: Option<ProtectionDomain>,
    crc: Option<Box<Crc32c>>,
    phase: Phase,
    segment: Segment,
    scratch: [u8; SCRATCH_BYTES],
    filled: usize,
    /// The tagged message in progress: its opcode, key and next address.
    pub(super) tagged: Option<(Opcode, u32, u64)>,
    pub(super) send_msn: u32,
    pub(super) send_offset: u32,
    pub(super) read_msn: u32,
    /// Bytes received of the read response in progress.
    pub(super) read_offset: u32,
    pub(super) inbound_reads: u16,
    pub(super) inbound_reads_max: u16,
    pub(super) receives: VecDeque<PostedReceive>,
    pub(super) reads: VecDeque<PostedRead>,
    pub(super) large: LargeData,
    segment_count: u64,
    /// The copy site of payload that [`Receiver::consume`] places.
    pub(super) site: Site,
    /// True if the peer cuts tagged messages into pieces that do not pay for a system call each.
    cuts_small: bool,
}

impl Receiver {
    /// A receiver for a new connection. `inbound_reads_max` is the most reads of the peer in
    /// progress (IRD).
    pub fn new(domain: ProtectionDomain, crc: bool, inbound_reads_max: u16) -> Self {
        Self {
            domain,
            granted: None,
            crc: crc.then(Box::default),
            phase: Phase::Header,
            segment: Segment {
                opcode: Opcode::Send,
                target: Target::Control,
                last: false,
                announced: false,
                lost: false,
                payload: 0,
                done: 0,
                trailer: 0,
            },
            scratch: [0; SCRATCH_BYTES],
            filled: 0,
            tagged: None,
            send_msn: 1,
            send_offset: 0,
            read_msn: 1,
            read_offset: 0,
            inbound_reads: 0,
            inbound_reads_max,
            receives: VecDeque::new(),
            reads: VecDeque::new(),
            large: LargeData::default(),
            segment_count: 0,
            site: Site::IwarpStaging,
            cuts_small: false,
        }
    }

    /// Applies the result of the handshake, before the first byte.
    pub fn agree(&mut self, crc: bool, inbound_reads_max: u16) {
        debug_assert!(self.segment_count == 0 && self.at_boundary());
        self.crc = crc.then(Box::default);
        self.inbound_reads_max = inbound_reads_max;
    }

    /// Adds a receive.
    pub fn post_receive(&mut self, receive: PostedReceive) {
        self.receives.push_back(receive);
    }

    /// Adds a read whose request is sent now.
    pub fn post_read(&mut self, read: PostedRead) {
        self.large.read_posted(u64::from(read.len));
        self.reads.push_back(read);
    }

    /// Receives that are posted and unused.
    pub fn receive_count(&self) -> usize {
        self.receives.len()
    }

    /// Own reads in progress on the wire.
    pub fn read_count(&self) -> usize {
        self.reads.len()
    }

    /// Records that a read of the peer was answered completely.
    pub fn read_answered(&mut self) {
        debug_assert!(self.inbound_reads > 0);
        self.inbound_reads = self.inbound_reads.saturating_sub(1);
    }

    /// The next outstanding read to flush.
    pub fn take_read(&mut self) -> Option<PostedRead> {
        self.reads.pop_front()
    }

    /// The next posted receive to flush.
    pub fn take_receive(&mut self) -> Option<PostedReceive> {
        self.receives.pop_front()
    }

    /// Segments received completely.
    pub fn segment_count(&self) -> u64 {
        self.segment_count
    }

    /// True if the stream may end here without cutting a segment or a message.
    pub fn at_boundary(&self) -> bool {
        let between_messages =
            self.send_offset == 0 && self.read_offset == 0 && self.tagged.is_none();
        self.phase == Phase::Ended
            || (self.phase == Phase::Header && self.filled == 0 && between_messages)
    }

    /// Announces the bytes that the peer may still write; see
    /// [`Adapter::expect_remote_writes`](crate::Adapter::expect_remote_writes).
    pub fn expect_writes(&mut self, bytes: u64) {
        self.large.announce(bytes);
    }

    /// The target memory of the next bytes of the stream, if they are payload and enough of it to
    /// receive in place.
    ///
    /// # Errors
    /// When the memory became inaccessible since the segment began.
    pub fn direct_view<'a>(
        &'a self,
        table: &'a RegionTable,
    ) -> Result<Option<VolatileSlice<'a>>, Violation> {
        if !self.is_direct() {
            return Ok(None);
        }
        let rest = self.segment.payload - self.segment.done;
        self.payload_view(table, rest).map(|view| Some(view.view()))
    }

    /// The most bytes to receive after the memory of [`Receiver::direct_view`], or, without it,
    /// from here on. `None` means no limit. When large data is expected the socket is read exactly
    /// up to the next header, so that its payload does not land in the staging area.
    pub fn stage_bytes_max(&self) -> Option<usize> {
        if !self.expects_large() {
            return None;
        }
        Some(match self.phase {
            Phase::Header | Phase::Ended => {
                ddp::fpdu_header_bytes(&self.scratch[..self.filled]) - self.filled
            }
            Phase::Payload => {
                let rest = self.segment.payload - self.segment.done;
                let staged = if self.is_direct() { 0 } else { rest };
                staged + self.segment.trailer + ddp::TAGGED_FPDU_HEADER_BYTES
            }
            Phase::Trailer => {
                let rest = self.control_bytes() + self.segment.trailer - self.filled;
                rest + ddp::TAGGED_FPDU_HEADER_BYTES
            }
        })
    }

    /// True if the payload in progress is received straight into place.
    fn is_direct(&self) -> bool {
        let rest = self.segment.payload - self.segment.done;
        self.phase == Phase::Payload
            && !self.segment.lost
            && self.segment.target != Target::Control
            && (rest >= DIRECT_BYTES_MIN || self.segment.announced)
    }

    /// True if the stream is read exactly: announced data is missing, or the last segment is a
    /// large one of a message that continues. A peer that cuts its messages into Ethernet packets
    /// would cost a system call for each; a copy costs less.
    fn expects_large(&self) -> bool {
        let goes_on = !self.segment.last && self.segment.payload >= DIRECT_BYTES_MIN;
        goes_on || (self.large.is_coming() && !self.cuts_small)
    }

    /// Records that the caller has received `bytes` straight into the memory of
    /// [`Receiver::direct_view`].
    ///
    /// # Errors
    /// When the memory is no longer accessible.
    pub fn placed(&mut self, bytes: usize, table: &RegionTable) -> Result<(), Violation> {
        debug_assert!(bytes <= self.segment.payload - self.segment.done);
        if let Some(mut crc) = self.crc.take() {
            let summed = self.payload_view(table, bytes)?.scan(|piece| crc.update(piece));
            self.crc = Some(crc);
            self.check_loss(summed.err())?;
        }
        self.advance(bytes);
        Ok(())
    }

    /// Records that the kernel could not access the memory of [`Receiver::direct_view`].
    ///
    /// # Errors
    /// When the stream cannot continue, or the memory is no longer registered.
    pub fn lose(&mut self, table: &RegionTable) -> Result<(), Violation> {
        let rest = self.segment.payload - self.segment.done;
        self.payload_view(table, rest)?.note_inaccessible();
        self.check_loss(Some(Inaccessible))
    }

    fn check_loss(&mut self, gone: Option<Inaccessible>) -> Result<(), Violation> {
        match (gone, self.segment.target) {
            (None, _) => Ok(()),
            (Some(_), Target::Write { .. }) => {
                self.segment.lost = true;
                Ok(())
            }
            (Some(gone), _) => Err(gone.into()),
        }
    }

    /// Takes the next bytes of the stream, places their payload and appends complete items to
    /// `inbound`.
    ///
    /// # Errors
    /// The rule that the peer broke; the connection must end.
    pub fn consume(
        &mut self,
        mut bytes: &[u8],
        table: &mut RegionTable,
        inbound: &mut Vec<Inbound>,
    ) -> Result<(), Violation> {
        while !bytes.is_empty() && self.phase != Phase::Ended {
            let step = match self.phase {
                Phase::Header => self.take_header(bytes, table),
                Phase::Payload => self.take_payload(bytes, table),
                Phase::Trailer => self.take_trailer(bytes, table, inbound),
                Phase::Ended => Ok(bytes.len()),
            };
            match step {
                Ok(used) => bytes = &bytes[used..],
                Err(violation) => {
                    self.phase = Phase::Ended;
                    return Err(violation);
                }
            }
            #[cfg(test)]
            if !inbound.is_empty() {
                crate::confine::fault::strike();
            }
        }
        Ok(())
    }

    /// Copies bytes into the scratch array, up to `need` bytes in it; returns the bytes used.
    fn gather(&mut self, bytes: &[u8], need: usize) -> usize {
        let take = bytes.len().min(need - self.filled);
        self.scratch[self.filled..self.filled + take].copy_from_slice(&bytes[..take]);
        self.filled += take;
        take
    }

    fn take_header(&mut self, bytes: &[u8], table: &RegionTable) -> Result<usize, Violation> {
        let mut used = self.gather(bytes, ddp::TAGGED_FPDU_HEADER_BYTES.max(self.filled));
        let need = ddp::fpdu_header_bytes(&self.scratch[..self.filled]);
        if self.filled >= ddp::TAGGED_FPDU_HEADER_BYTES && self.filled < need {
            used += self.gather(&bytes[used..], need);
        }
        let Some(header) = Header::decode(&self.scratch[..self.filled])? else {
            return Ok(used);
        };
        if let Some(crc) = &mut self.crc {
            crc.update(&self.scratch[..self.filled]);
        }
        let payload = usize::from(header.payload_bytes);
        if header.opcode.is_tagged() && !header.last {
            self.cuts_small = payload < DIRECT_BYTES_MIN;
        }
        let announced = header.opcode.is_tagged() && self.expects_large();
        let target = self.validate(&header, table)?;
        self.segment = Segment {
            opcode: header.opcode,
            target,
            last: header.last,
            announced,
            lost: false,
            payload,
            done: 0,
            trailer: mpa::padding_bytes(header.segment_bytes()) + mpa::FPDU_CRC_BYTES,
        };
        self.filled = 0;
        self.phase = if header.payload_bytes == 0 { Phase::Trailer } else { Phase::Payload };
        Ok(used)
    }

    /// The memory of the next `len` payload bytes.
    fn payload_view<'a>(
        &'a self,
        table: &'a RegionTable,
        len: usize,
    ) -> Result<CheckedSlice<'a>, Violation> {
        let done = self.segment.done;
        let view = match self.segment.target {
            Target::Receive { offset, .. } => self.receives.front().and_then(|receive| {
                receive.buffer.checked(receive.offset + offset as usize + done, len)
            }),
            Target::Read(offset) => self
                .reads
                .front()
                .and_then(|read| read.buffer.checked(read.offset + offset as usize + done, len)),
            Target::Write { stag, address } => {
                // The segment has at most 2^16 bytes and its end was checked for overflow.
                let address = address + done as u64;
                let remote = RemoteBuffer { key: stag, address, len: len as u32 };
                let found = table.remote(self.domain, remote, Access::REMOTE_WRITE);
                return found.map(|(_, view)| view).map_err(|reason| Violation::Write {
                    key: stag,
                    address,
                    bytes: len as u64,
                    reason,
                });
            }
            Target::Control => None,
        };
        debug_assert!(view.is_some(), "validated from the header");
        view.ok_or(Violation::Malformed("segment"))
    }

    fn advance(&mut self, bytes: usize) {
        self.segment.done += bytes;
        if self.segment.done == self.segment.payload {
            self.phase = Phase::Trailer;
            // Control payload stays in the scratch array; the trailer follows it there.
            if self.segment.target != Target::Control {
                self.filled = 0;
            }
        }
    }

    fn take_payload(&mut self, bytes: &[u8], table: &RegionTable) -> Result<usize, Violation> {
        let take = bytes.len().min(self.segment.payload - self.segment.done);
        let bytes = &bytes[..take];
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
        if self.segment.target == Target::Control {
            // A Terminate may be longer than this code needs; the rest is discarded.
            let room = (SCRATCH_BYTES - self.filled).saturating_sub(CONTROL_RESERVE_BYTES);
            let keep = take.min(room);
            self.gather(&bytes[..keep], self.filled + keep);
        } else if !self.segment.lost {
            // SAFETY: it is only copied from.
            let source = unsafe { CheckedSlice::from_ref(bytes) }.view();
            let copied = self.payload_view(table, take)?.copy_from(source, self.site);
            self.check_loss(copied.err())?;
        }
        self.advance(take);
        Ok(take)
    }

    fn take_trailer(
        &mut self,
        bytes: &[u8],
        table: &mut RegionTable,
        inbound: &mut Vec<Inbound>,
    ) -> Result<usize, Violation> {
        let control = self.control_bytes();
        let used = self.gather(bytes, control + self.segment.trailer);
        if self.filled < control + self.segment.trailer {
            return Ok(used);
        }
        let padding_end = control + self.segment.trailer - mpa::FPDU_CRC_BYTES;
        if let Some(crc) = &mut self.crc {
            crc.update(&self.scratch[control..padding_end]);
            let is_right = crc.finish() == self.scratch[padding_end..self.filled];
            // The CRC of discarded payload cannot match.
            if !is_right && !self.segment.lost {
                return Err(Violation::Crc);
            }
        }
        self.filled = 0;
        self.phase = Phase::Header;
        self.segment_count += 1;
        self.complete(control, table, inbound)?;
        Ok(used)
    }

    /// Bytes of control payload at the start of the scratch array.
    fn control_bytes(&self) -> usize {
        match self.segment.target {
            Target::Control => self.segment.payload.min(SCRATCH_BYTES - CONTROL_RESERVE_BYTES),
            _ => 0,
        }
    }

    /// Handles a segment that is complete and verified.
    fn complete(
        &mut self,
        control: usize,
        table: &mut RegionTable,
        inbound: &mut Vec<Inbound>,
    ) -> Result<(), Violation> {
        // A segment has less than 2^16 bytes, and the sums were checked from the header.
        let payload = self.segment.payload as u32;
        match self.segment.opcode {
            Opcode::Write => {}
            Opcode::ReadResponse => {
                self.read_offset += payload;
                if self.segment.last
                    && let Some(read) = self.reads.pop_front()
                {
                    self.read_offset = 0;
                    if self.reads.is_empty() {
                        self.large.reads_done();
                    }
                    inbound.push(Inbound::ReadDone { work: read.work, bytes: read.len });
                }
            }
            Opcode::ReadRequest => {
                let request = ReadRequest::decode(&self.scratch[..control])
                    .ok_or(Violation::Malformed("RDMA read request"))?;
                self.check_source(&request, table)?;
                self.read_msn = self.read_msn.wrapping_add(1);
                self.inbound_reads += 1;
                inbound.push(Inbound::ReadRequested(request));
            }
            Opcode::Terminate => {
                let codes = Terminate::decode(&self.scratch[..control])
                    .ok_or(Violation::Malformed("Terminate"))?;
                self.phase = Phase::Ended;
                inbound.push(Inbound::Terminated(codes));
            }
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => {
                self.send_offset += payload;
                if !self.segment.last {
                    return Ok(());
                }
                let invalidated = match self.segment.target {
                    Target::Receive { invalidate, .. } => invalidate,
                    _ => None,
                };
                if let Some(key) = invalidated {
                    let died = table.invalidate(self.domain, key);
                    died.map_err(|reason| Violation::Invalidate { key, reason })?;
                }
                if let Some(receive) = self.receives.pop_front() {
                    let bytes = std::mem::take(&mut self.send_offset);
                    self.send_msn = self.send_msn.wrapping_add(1);
                    inbound.push(Inbound::Received { work: receive.work, bytes, invalidated });
                }
            }
        }
        Ok(())
    }
}

/// Room reserved in the scratch array for a trailer after control payload.
const CONTROL_RESERVE_BYTES: usize = 8;

const _: () = assert!(SCRATCH_BYTES >= ReadRequest::BYTES + CONTROL_RESERVE_BYTES);
