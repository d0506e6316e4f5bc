//! Requests on their way out.

use super::call::{Flight, Purpose, ReadCall, Refused, Work, WriteCall};
use super::failure::Failure;
use super::memory::Piece;
use super::session::{SessionCore, Stage, Waiting};
use super::streams::Transaction;
use crate::limits::{OPERATION_DEADLINE, QUEUED_REQUESTS_MAX};
use dafs_dat::{Adapter, Instant};
use dafs_mem::VolatileSlice;
use dafs_wire::dafs::{
    Analyzer, CHECKSUM_AT, Checksum, EncodeError, Fletcher32, Procedure, READ_INLINE_REPLY_DATA_AT,
    ReadDirect, ReadInline, Request, RequestHeader, Seq, WRITE_INLINE_DATA_AT, WriteDirect,
    WriteInline, decode_request, encode_request, encode_write_inline_head, seal,
};
use std::time::Duration;

/// When a call must have been answered, and after which time that is.
pub(crate) type Due = Option<(Instant, Duration)>;

impl SessionCore {
    /// Takes any request. `memory` is what the request names for direct transfer; it stays
    /// registered until the answer. Ends with [`Done::Answered`](super::Done::Answered).
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        request: &Request<'_>,
        memory: Option<Piece>,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        self.admit(adapter, memory.as_ref())?;
        let due = due(now, deadline);
        if self.can_send() {
            return self.send(adapter, now, Purpose::Caller(tag), due, request, memory);
        }
        let header = RequestHeader::default();
        let bytes = encode_request(&mut self.scratch, self.order, &header, request)?;
        let bytes = self.scratch[..bytes].to_vec();
        self.wait(due, Waiting::Message { tag, bytes, keep: memory });
        Ok(())
    }

    /// Takes a read.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit_read(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        call: ReadCall,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        self.admit(adapter, Some(&call.into))?;
        let due = due(now, deadline);
        if self.can_send() {
            return self.send_read(adapter, now, tag, due, call);
        }
        self.wait(due, Waiting::Read(tag, call));
        Ok(())
    }

    /// Takes a write.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit_write(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        call: WriteCall,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        self.admit(adapter, Some(&call.from))?;
        let due = due(now, deadline);
        if self.can_send() {
            return self.send_write(adapter, now, tag, due, call);
        }
        self.wait(due, Waiting::Write(tag, call));
        Ok(())
    }

    fn admit(&mut self, adapter: &mut dyn Adapter, memory: Option<&Piece>) -> Result<(), Refused> {
        match (self.stage, &self.failure) {
            (Stage::Ready, _) => {}
            (_, Some(failure)) => return Err(Refused::Over(failure.clone())),
            (Stage::Closing, None) => return Err(Refused::Over(Failure::Closed)),
            _ => return Err(Refused::NotReady),
        }
        if memory.is_some_and(|piece| !piece.memory().belongs_to(&self.graveyard)) {
            return Err(Refused::ForeignMemory);
        }
        if self.waiting.len() >= QUEUED_REQUESTS_MAX {
            return Err(Refused::Full);
        }
        self.reap(adapter);
        Ok(())
    }

    /// True when a new call may overtake nothing and has what it needs.
    fn can_send(&self) -> bool {
        self.waiting.is_empty() && self.has_room()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.streams.available() && self.sends.available() && self.receives.available()
    }

    fn wait(&mut self, due: Due, waiting: Waiting) {
        self.waiting.push_back((due, waiting));
        self.note_deadline(due);
        // The queue backs up: ask for as many credits as could be used now.
        let wanted = usize::from(self.streams.outstanding()) + self.waiting.len();
        let wanted = u16::try_from(wanted).unwrap_or(u16::MAX).min(self.config.requests_max);
        self.desired = self.desired.max(wanted);
        self.demand_peak = self.demand_peak.max(wanted);
    }

    /// Sends what waits, as far as credits reach; then closes, if that is wanted.
    pub(crate) fn pump(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        while self.stage != Stage::Over && self.has_room() {
            let Some((due, waiting)) = self.waiting.pop_front() else { break };
            let tag = match &waiting {
                Waiting::Read(tag, _) | Waiting::Write(tag, _) => *tag,
                Waiting::Message { tag, .. } => *tag,
            };
            let result = match waiting {
                Waiting::Read(tag, call) => self.send_read(adapter, now, tag, due, call),
                Waiting::Write(tag, call) => self.send_write(adapter, now, tag, due, call),
                Waiting::Message { tag, bytes, keep } => {
                    self.send_encoded(adapter, now, tag, due, &bytes, keep)
                }
            };
            if let Err(refused) = result {
                // The call had been taken, so it must complete; only the end of the session or
                // the lack of memory, which ends it, can be the reason.
                let failure = match refused {
                    Refused::Over(failure) => failure,
                    other => Failure::protocol(other),
                };
                self.finish(Purpose::Caller(tag), super::Done::Lost(failure.clone()));
                self.end(adapter, failure);
            }
        }
        if self.stage == Stage::Closing && self.is_idle() && self.failure.is_none() {
            self.send_own(adapter, now, Purpose::Disconnect, &Request::Disconnect);
        }
    }

    fn send_encoded(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        due: Due,
        bytes: &[u8],
        keep: Option<Piece>,
    ) -> Result<(), Refused> {
        match decode_request(bytes, self.order, 0) {
            Ok((_, request)) => self.send(adapter, now, Purpose::Caller(tag), due, &request, keep),
            Err(error) => Err(Refused::Over(Failure::protocol(error))),
        }
    }

    /// Sends a request of the session's own.
    pub(crate) fn send_own(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        purpose: Purpose,
        request: &Request<'_>,
    ) {
        self.send_own_within(adapter, now, purpose, request, OPERATION_DEADLINE);
    }

    pub(crate) fn send_own_within(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        purpose: Purpose,
        request: &Request<'_>,
        deadline: Duration,
    ) {
        let due = due(now, Some(deadline));
        if let Err(refused) = self.send(adapter, now, purpose, due, request, None) {
            self.end(adapter, Failure::refused(refused));
        }
    }

    fn send(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        purpose: Purpose,
        due: Due,
        request: &Request<'_>,
        memory: Option<Piece>,
    ) -> Result<(), Refused> {
        let work = Work::Message { _keep: memory };
        self.transmit_plain(adapter, now, purpose, due, work, request)
    }

    fn send_read(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        due: Due,
        call: ReadCall,
    ) -> Result<(), Refused> {
        let purpose = Purpose::Caller(tag);
        let ReadCall { handle: fh, state_id, offset, into } = call;
        let byte_count = into.len();
        if self.fits_inline(byte_count, READ_INLINE_REPLY_DATA_AT, self.info.response_bytes) {
            self.stats.inline_transfers += 1;
            let request =
                Request::ReadInline(ReadInline { fh, state_id, offset, byte_count, cache_hint: 0 });
            let work = Work::ReadInline(into);
            return self.transmit_plain(adapter, now, purpose, due, work, &request);
        }
        self.stats.direct_transfers += 1;
        let buffers = [into.direct_buffer()];
        let request = Request::ReadDirect(ReadDirect {
            fh,
            state_id,
            offset,
            byte_count,
            cache_hint: 0,
            buffers: Seq::new(&buffers),
        });
        self.transmit_plain(adapter, now, purpose, due, Work::ReadDirect(into), &request)
    }

    fn send_write(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        due: Due,
        call: WriteCall,
    ) -> Result<(), Refused> {
        let purpose = Purpose::Caller(tag);
        let WriteCall { handle: fh, state_id, offset, stability: stable, from } = call;
        let byte_count = from.len();
        let padding = self.info.inline_write_header_bytes;
        let padded_to = (self.config.pad_writes && padding != 0).then_some(padding);
        let data_at = padded_to.map_or(WRITE_INLINE_DATA_AT, |at| at as usize);
        if !self.fits_inline(byte_count, data_at, self.info.request_bytes) {
            self.stats.direct_transfers += 1;
            let direct_checksum = self.data_checksum(from.view());
            let buffers = [from.direct_buffer()];
            let request = Request::WriteDirect(WriteDirect {
                fh,
                state_id,
                offset,
                byte_count,
                stable,
                cache_hint: 0,
                direct_checksum,
                buffers: Seq::new(&buffers),
            });
            let work = Work::Write { from, stability: stable };
            return self.transmit_plain(adapter, now, purpose, due, work, &request);
        }
        self.stats.inline_transfers += 1;
        let request =
            WriteInline { fh, state_id, offset, stable, padded_to, cache_hint: 0, data: &[] };
        let data = from.clone();
        let work = Work::Write { from, stability: stable };
        self.transmit(
            adapter,
            now,
            purpose,
            due,
            work,
            Procedure::WriteInline,
            move |core, header| {
                let out = &mut core.scratch;
                let head = encode_write_inline_head(
                    out,
                    core.order,
                    header,
                    &request,
                    data.len() as usize,
                )?;
                if core.info.checksums {
                    seal_volatile(&mut core.scratch[..head], data.view());
                }
                Ok((head, Some(data)))
            },
        )
    }

    fn fits_inline(&self, bytes: u32, data_at: usize, message_bytes: u32) -> bool {
        !self.config.always_direct
            && bytes <= self.config.inline_bytes
            && data_at + bytes as usize <= message_bytes as usize
    }

    /// The checksum that travels with direct data, when checksums are on (DAFS O20).
    pub(crate) fn data_checksum(&self, data: VolatileSlice<'_>) -> Checksum {
        if !self.info.checksums {
            return Checksum::ZERO;
        }
        let mut sums = Fletcher32::new();
        update_volatile(&mut sums, data);
        sums.finish()
    }

    fn transmit_plain(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        purpose: Purpose,
        due: Due,
        work: Work,
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let procedure = request.procedure();
        self.transmit(adapter, now, purpose, due, work, procedure, |core, header| {
            let bytes = encode_request(&mut core.scratch, core.order, header, request)?;
            if core.info.checksums {
                seal(&mut core.scratch[..bytes]);
            }
            Ok((bytes, None))
        })
    }

    /// Sends one request: a receive first, then the message. The caller has made sure that there
    /// is a credit. `encode` fills `scratch` and returns the bytes to send from it, and the data
    /// to gather behind them.
    fn transmit(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        purpose: Purpose,
        due: Due,
        work: Work,
        procedure: Procedure,
        encode: impl FnOnce(&mut Self, &RequestHeader) -> Result<(usize, Option<Piece>), EncodeError>,
    ) -> Result<(), Refused> {
        let analyzer = self.next_analyzer;
        let mut header = RequestHeader {
            desired_nreq: self.desired,
            analyzer: Analyzer(analyzer.to_ne_bytes()),
            cred_handle: self.credential_for(procedure),
            ..RequestHeader::default()
        };
        let Some(Transaction { stream, sequence }) = self.streams.peek() else {
            return Err(Refused::Full);
        };
        header.stream_id = stream;
        header.seq_number = sequence;
        // Nothing has been taken yet, so a request that does not fit changes nothing.
        let (bytes, data) = encode(self, &header)?;
        if let Err(failure) = self.post(adapter, bytes, data) {
            self.end(adapter, failure.clone());
            return Err(Refused::Over(failure));
        }
        let taken = self.streams.take();
        debug_assert_eq!(taken, Some(Transaction { stream, sequence }));
        self.next_analyzer += 1;
        self.last_request = now;
        self.shrink_at = None;
        self.demand_peak = self.demand_peak.max(self.streams.outstanding());
        self.note_deadline(due);
        let expected = work.expected_bytes();
        self.flights[usize::from(stream)] =
            Some(Flight { purpose, procedure, sequence, analyzer, deadline: due, work });
        self.expect(adapter, expected, 0);
        Ok(())
    }

    /// Posts a receive for the reply, if none is left over, and the message in `scratch`.
    fn post(
        &mut self,
        adapter: &mut dyn Adapter,
        bytes: usize,
        data: Option<Piece>,
    ) -> Result<(), Failure> {
        if self.posted <= usize::from(self.streams.outstanding()) {
            let slot = self.receives.take(adapter)?.ok_or_else(no_slot)?;
            let segment = self.receives.segment(slot, self.receives.message_bytes());
            adapter.post_receive(self.endpoint, slot.into(), segment).map_err(Failure::lost)?;
            self.posted += 1;
        }
        let slot = self.sends.take(adapter)?.ok_or_else(no_slot)?;
        self.sends.store(slot, &self.scratch[..bytes]);
        let head = self.sends.segment(slot, bytes);
        let posted = match data {
            Some(data) => adapter.post_send(self.endpoint, slot.into(), &[head, data.local()]),
            None => adapter.post_send(self.endpoint, slot.into(), &[head]),
        };
        posted.map_err(Failure::lost)
    }

    pub(crate) fn note_deadline(&mut self, due: Due) {
        if let Some((at, _)) = due {
            self.first_deadline = Some(self.first_deadline.map_or(at, |first| first.min(at)));
        }
    }
}

fn no_slot() -> Failure {
    Failure::memory("the message pool is used up")
}

fn due(now: Instant, deadline: Option<Duration>) -> Due {
    deadline.map(|after| (now + after, after))
}

/// Adds volatile memory to a checksum, through a small private copy.
fn update_volatile(sums: &mut Fletcher32, data: VolatileSlice<'_>) {
    const CHUNK_BYTES: usize = 4096;
    let mut chunk = [0; CHUNK_BYTES];
    let mut at = 0;
    while at < data.len() {
        let len = (data.len() - at).min(CHUNK_BYTES);
        super::messages::fetch_volatile(data, at, &mut chunk[..len]);
        sums.update(&chunk[..len]);
        at += len;
    }
}

/// Fills in the checksum of a message whose data is gathered from volatile memory behind `head`,
/// whose checksum field is zero.
fn seal_volatile(head: &mut [u8], data: VolatileSlice<'_>) {
    let mut sums = Fletcher32::new();
    sums.update(head);
    update_volatile(&mut sums, data);
    head[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sums.finish().0);
}
