//! Validation of each segment, from its header alone and before its first byte is placed.
//!
//! Invariants
//! * Message sequence numbers grow by one, offsets are contiguous, and a tagged message is not
//!   interleaved with another one (RFC 5041 5, RFC 5040 5).
//! * Memory named by a key is looked up for the whole segment.

use super::receive::{Receiver, Target};
use super::violation::Violation;
use crate::{Access, RegionTable, RemoteBuffer};
use dafs_wire::iwarp::ddp::{Header, Place, Queue};
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest, Terminate};

impl Receiver {
    /// Decides from the header alone whether the segment is valid, and the target of its payload.
    pub(super) fn validate(
        &mut self,
        header: &Header,
        table: &RegionTable,
    ) -> Result<Target, Violation> {
        match header.place {
            Place::Tagged { stag, offset } => {
                let payload = u64::from(header.payload_bytes);
                let next = offset.checked_add(payload).ok_or(Violation::TaggedOrder)?;
                if let Some(open) = self.tagged
                    && open != (header.opcode, stag, offset)
                {
                    return Err(Violation::TaggedOrder);
                }
                self.tagged = (!header.last).then_some((header.opcode, stag, next));
                if header.opcode == Opcode::ReadResponse {
                    self.validate_read_response(header, stag, offset)
                } else {
                    self.validate_write(stag, offset, payload, table)
                }
            }
            Place::Untagged { invalidate_stag, queue, msn, offset } => {
                self.validate_order(queue, msn, offset)?;
                match queue {
                    Queue::Send => self.validate_send(header, invalidate_stag, table),
                    Queue::ReadRequest => self.validate_read_request(header),
                    Queue::Terminate => {
                        let fits = usize::from(header.payload_bytes) >= Terminate::BYTES;
                        let fits = fits && header.last;
                        fits.then_some(Target::Control).ok_or(Violation::Malformed("Terminate"))
                    }
                }
            }
        }
    }

    fn validate_write(
        &mut self,
        stag: u32,
        address: u64,
        payload: u64,
        table: &RegionTable,
    ) -> Result<Target, Violation> {
        // A zero-length write names no memory; some peers send one as their ready-to-receive frame.
        if payload > 0 {
            // The payload of one segment is below 2^16.
            let remote = RemoteBuffer { key: stag, address, len: payload as u32 };
            table.remote(self.domain, remote, Access::REMOTE_WRITE).map_err(|reason| {
                Violation::Write { key: stag, address, bytes: payload, reason }
            })?;
            self.large.write_seen(payload);
        }
        Ok(Target::Write { stag, address })
    }

    fn validate_read_response(
        &mut self,
        header: &Header,
        stag: u32,
        offset: u64,
    ) -> Result<Target, Violation> {
        let read = self.reads.front().ok_or(Violation::ReadResponse)?;
        let rest = read.len - self.read_offset;
        let payload = u32::from(header.payload_bytes);
        let fits = stag == read.sink_stag
            && offset == u64::from(self.read_offset)
            && payload <= rest
            && header.last == (payload == rest);
        if !fits {
            return Err(Violation::ReadResponse);
        }
        self.large.read_seen(u64::from(payload));
        Ok(Target::Read(self.read_offset))
    }

    fn validate_order(&self, queue: Queue, msn: u32, offset: u32) -> Result<(), Violation> {
        let (expected_msn, expected_offset) = match queue {
            Queue::Send => (self.send_msn, self.send_offset),
            Queue::ReadRequest => (self.read_msn, 0),
            Queue::Terminate => (1, 0),
        };
        let order = |what, found: u32, expected: u32| {
            let (found, expected) = (u64::from(found), u64::from(expected));
            Err(Violation::MessageOrder { what, queue: queue as u32, found, expected })
        };
        if msn != expected_msn {
            return order("message number", msn, expected_msn);
        }
        if offset != expected_offset {
            return order("message offset", offset, expected_offset);
        }
        Ok(())
    }

    fn validate_send(
        &self,
        header: &Header,
        invalidate_stag: u32,
        table: &RegionTable,
    ) -> Result<Target, Violation> {
        let invalidates =
            matches!(header.opcode, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate);
        let invalidate = invalidates.then_some(invalidate_stag);
        if let Some(key) = invalidate {
            let found = table.find_invalidatable(self.domain, key);
            found.map_err(|reason| Violation::Invalidate { key, reason })?;
        }
        let receive = self.receives.front().ok_or(Violation::NoReceive)?;
        let bytes = u64::from(self.send_offset) + u64::from(header.payload_bytes);
        if bytes > receive.len as u64 || bytes > u64::from(u32::MAX) {
            return Err(Violation::MessageTooLong { bytes, posted: receive.len });
        }
        Ok(Target::Receive { offset: self.send_offset, invalidate })
    }

    fn validate_read_request(&self, header: &Header) -> Result<Target, Violation> {
        if usize::from(header.payload_bytes) != ReadRequest::BYTES || !header.last {
            return Err(Violation::Malformed("RDMA read request"));
        }
        if self.inbound_reads >= self.inbound_reads_max {
            return Err(Violation::ReadDepth(self.inbound_reads_max));
        }
        Ok(Target::Control)
    }

    /// Checks that the peer may read the source of its request.
    pub(super) fn check_source(
        &self,
        request: &ReadRequest,
        table: &RegionTable,
    ) -> Result<(), Violation> {
        // A zero-length read names no memory (RFC 5040 5.2.1).
        if request.length == 0 {
            return Ok(());
        }
        let (key, address) = (request.source_stag, request.source_offset);
        let remote = RemoteBuffer { key, address, len: request.length };
        table.readable((self.domain, self.granted), remote).map(|_| ()).map_err(|reason| {
            Violation::Read { key, address, bytes: u64::from(request.length), reason }
        })
    }
}
