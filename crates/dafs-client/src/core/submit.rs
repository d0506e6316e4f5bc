//! Outgoing requests.
//!
//! Invariants
//! * An accepted call is in exactly one place until it completes: waiting, outstanding, or in
//!   recovery.
//! * A request is kept as the application made it; names that changed with a lost connection (keys
//!   of memory, state-ids of opens) are filled in each time it is sent.

use super::call::{
    Call, Done, Due, Flight, Purpose, ReadCall, Refused, ReplyMessage, Task, Work, WriteCall,
};
use super::failure::Failure;
use super::memory::{Piece, Pieces};
use super::rewrite::{Nameless, Names};
use super::session::{SessionCore, Stage};
use super::timers::unless_silent;
use crate::limits::{OPERATION_DEADLINE, QUEUED_REQUESTS_MAX};
use dafs_dat::{Adapter, Instant};
use dafs_mem::{CheckedSlice, Gone, Site, count_copy};
use dafs_wire::dafs::{
    APPEND_INLINE_DATA_AT, Analyzer, CHECKSUM_AT, Checksum, ErrorBody, Fletcher32, HEADER_BYTES,
    Procedure, READ_INLINE_REPLY_DATA_AT, ReadDirect, ReadInline, Request, RequestHeader,
    ResponseHeader, Seq, Status, WRITE_INLINE_DATA_AT, WriteDirect, WriteInline, decode_request,
    encode_error, encode_request, encode_write_inline_head, seal,
};
use std::time::Duration;

/// An encoded message that is ready to leave.
pub(super) struct Outgoing {
    pub(super) purpose: Purpose,
    pub(super) due: Due,
    pub(super) procedure: Procedure,
    pub(super) header: RequestHeader,
    pub(super) work: Work,
    /// The part of it in `scratch`.
    pub(super) bytes: usize,
    /// The data that is gathered behind that.
    pub(super) data: Option<Piece>,
}

impl SessionCore {
    /// Accepts any request. `memory` is the memory that the request names for direct transfer, by
    /// [`Piece::direct_buffer`]; it stays registered until the answer. Ends with
    /// [`Done::Answered`].
    ///
    /// # Errors
    /// The reason why it was not accepted.
    pub fn submit(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        request: &Request<'_>,
        memory: impl IntoIterator<Item = Piece>,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        let memory: Pieces = memory.into_iter().collect();
        self.admit(adapter, now, &memory)?;
        match request {
            Request::DelegReturn(args) => drop(self.give_up_delegation(args.state_id)),
            Request::Lock(lock) => self.orphans.wanted(lock),
            _ => {}
        }
        let due = due(now, deadline);
        if self.can_send() {
            return self.send(adapter, now, Purpose::Caller(tag), due, request, memory);
        }
        let header = RequestHeader::default();
        let bytes = encode_request(&mut self.scratch, self.order, &header, request)?;
        let bytes = self.scratch[..bytes].to_vec();
        count_data(request, &[Site::ClientInlineWrite, Site::ClientKept]);
        self.wait(Call { tag, due, task: Task::Message { bytes, memory }, maybe_done: false });
        Ok(())
    }

    /// Accepts a read.
    ///
    /// # Errors
    /// The reason why it was not accepted.
    pub fn submit_read(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        call: ReadCall,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        self.admit(adapter, now, std::slice::from_ref(&call.into))?;
        let due = due(now, deadline);
        if self.can_send() {
            return self.send_read(adapter, now, tag, due, call);
        }
        self.wait(Call { tag, due, task: Task::Read(call), maybe_done: false });
        Ok(())
    }

    /// Accepts a write.
    ///
    /// # Errors
    /// The reason why it was not accepted.
    pub fn submit_write(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        call: WriteCall,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        self.admit(adapter, now, std::slice::from_ref(&call.from))?;
        let due = due(now, deadline);
        if self.can_send() {
            return self.send_write(adapter, now, tag, due, call);
        }
        self.wait(Call { tag, due, task: Task::Write(call), maybe_done: false });
        Ok(())
    }

    pub(super) fn admit(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        memory: &[Piece],
    ) -> Result<(), Refused> {
        self.now = now;
        match (self.stage, &self.failure) {
            (Stage::Ready, _) => {}
            (Stage::Recovering, None) if !self.closing => {}
            (_, Some(failure)) => return Err(Refused::Over(failure.clone())),
            (Stage::Closing | Stage::Recovering, None) => {
                return Err(Refused::Over(Failure::Closed));
            }
            _ => return Err(Refused::NotReady),
        }
        if memory.iter().any(|piece| !piece.memory().belongs_to(&self.graveyard)) {
            return Err(Refused::ForeignMemory);
        }
        if self.waiting.len() >= QUEUED_REQUESTS_MAX {
            return Err(Refused::Full);
        }
        self.reap(adapter);
        Ok(())
    }

    /// True when a new call overtakes no other and has the resources that it needs.
    fn can_send(&self) -> bool {
        self.stage == Stage::Ready && self.waiting.is_empty() && self.conn.has_room()
    }

    pub(super) fn wait(&mut self, call: Call) {
        self.note_deadline(call.due);
        self.waiting.push_back(call);
        // The queue backs up: ask for as many credits as could be used now.
        let wanted = usize::from(self.conn.streams.outstanding()) + self.waiting.len();
        let wanted = u16::try_from(wanted).unwrap_or(u16::MAX).min(self.config.requests_max);
        self.desired = self.desired.max(wanted);
        self.demand_peak = self.demand_peak.max(wanted);
    }

    /// Sends waiting calls, as far as credits reach; then closes the session, if that was asked
    /// for.
    pub(crate) fn pump(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        if self.back.is_wanted() {
            self.back_turn(adapter, now);
            self.return_strays(adapter, now);
            self.pump_batches(adapter, now);
        }
        self.return_orphans(adapter, now);
        while matches!(self.stage, Stage::Ready | Stage::Closing) && self.conn.has_room() {
            if let Some(count) = self.chains.in_front(&self.waiting) {
                if self.send_chain(adapter, now, count) {
                    continue;
                }
                break;
            }
            let Some(Call { tag, due, task, .. }) = self.waiting.pop_front() else { break };
            // It may have waited for a credit for longer than an answer may take.
            let due = unless_silent(due, self.answered_at);
            let result = match task {
                Task::Read(call) => self.send_read(adapter, now, tag, due, call),
                Task::Write(call) => self.send_write(adapter, now, tag, due, call),
                Task::Message { bytes, memory } => {
                    self.send_encoded(adapter, now, tag, due, bytes, memory)
                }
            };
            if let Err(refused) = result {
                // The accepted call must complete. It fitted a message of the connection before
                // this one, or its memory could not be registered again.
                self.finish(Purpose::Caller(tag), Done::Lost(unsendable(refused)));
            }
        }
        if self.stage == Stage::Closing && self.failure.is_none() && self.is_settled(adapter, now) {
            self.send_own(adapter, now, Purpose::Disconnect, &Request::Disconnect);
        }
    }

    fn send_encoded(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        due: Due,
        bytes: Vec<u8>,
        memory: Pieces,
    ) -> Result<(), Refused> {
        match decode_request(&bytes, self.order, 0) {
            Ok((_, request)) => {
                self.send(adapter, now, Purpose::Caller(tag), due, &request, memory)
            }
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
        if let Err(refused) = self.send(adapter, now, purpose, due, request, Pieces::new()) {
            self.end(adapter, Failure::refused(refused));
        }
    }

    /// Encodes a request of the session's own; the caller has made sure that there is a credit.
    pub(super) fn encode_own(
        &mut self,
        request: &Request<'_>,
    ) -> Result<(RequestHeader, usize), Refused> {
        let header = self.next_header(request.procedure())?;
        let bytes = encode_request(&mut self.scratch, self.order, &header, request)?;
        Ok((header, bytes))
    }

    /// Sends what has just been encoded.
    pub(super) fn send_encoded_own(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        purpose: Purpose,
        procedure: Procedure,
        header: RequestHeader,
        bytes: usize,
    ) {
        if self.info.checksums {
            seal(&mut self.scratch[..bytes]);
        }
        let (due, work) = (due(now, Some(OPERATION_DEADLINE)), Work::own());
        let message = Outgoing { purpose, due, procedure, header, work, bytes, data: None };
        self.transmit(adapter, now, message);
    }

    fn send(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        purpose: Purpose,
        due: Due,
        request: &Request<'_>,
        memory: Pieces,
    ) -> Result<(), Refused> {
        let procedure = request.procedure();
        let header = self.next_header(procedure)?;
        let mut bytes = encode_request(&mut self.scratch, self.order, &header, request)?;
        let mut work = Work::own();
        if matches!(purpose, Purpose::Caller(_)) {
            // A client with a back-control channel tracks delegations, too.
            let keep = self.config.recovery.is_some() || self.back.is_wanted();
            let kept = if keep { self.scratch[..bytes].to_vec() } else { Vec::new() };
            // One copy into the message, and one into the memory that it is sent from.
            count_data(request, &[Site::ClientInlineWrite; 2]);
            count_data(request, if keep { &[Site::ClientKept] } else { &[] });
            if self.stats.recoveries > 0 {
                let server = self.info.client_id;
                let delegations = &self.back.delegations;
                let names = Names { memory: &memory, opens: &self.opens, delegations, server };
                let (order, out) = (self.order, &mut self.scratch);
                let encoded =
                    names.apply(request, |request| encode_request(out, order, &header, request));
                bytes = match encoded {
                    Ok(encoded) => encoded?,
                    Err(Nameless::Memory(failure)) => return Err(Refused::Over(failure)),
                    Err(Nameless::Open(status)) => {
                        self.refuse_here(purpose, request, status)?;
                        return Ok(());
                    }
                };
            }
            work = Work::Message { bytes: kept, memory };
        }
        if self.info.checksums {
            seal(&mut self.scratch[..bytes]);
        }
        let message = Outgoing { purpose, due, procedure, header, work, bytes, data: None };
        self.transmit(adapter, now, message);
        Ok(())
    }

    /// Answers a request that names a lost open, in place of the server: there, the state-id may
    /// denote another open.
    fn refuse_here(
        &mut self,
        purpose: Purpose,
        request: &Request<'_>,
        status: Status,
    ) -> Result<(), Refused> {
        let procedure = request.procedure();
        if let Request::Close(close) = request {
            self.opens.closed(close.state_id);
        }
        let reply = self.reply_here(procedure, status)?;
        self.finish(purpose, Done::Answered(reply));
        Ok(())
    }

    /// The answer that the server would give.
    pub(super) fn reply_here(
        &self,
        procedure: Procedure,
        status: Status,
    ) -> Result<ReplyMessage, Refused> {
        let header = ResponseHeader::answering(&RequestHeader::default(), 1).with_status(status);
        let mut bytes = vec![0; HEADER_BYTES];
        encode_error(&mut bytes, self.order, &header, procedure, &ErrorBody::None)?;
        Ok(ReplyMessage { procedure, order: self.order, status, bytes })
    }

    fn send_read(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        due: Due,
        call: ReadCall,
    ) -> Result<(), Refused> {
        let ReadCall { handle: fh, offset, .. } = call;
        let state_id = match self.opens.current(call.state_id) {
            Ok(state_id) => state_id,
            Err(status) => {
                let procedure = Procedure::ReadDirect;
                self.finish(Purpose::Caller(tag), Done::Refused { procedure, status });
                return Ok(());
            }
        };
        let byte_count = call.into.len();
        let inline =
            self.fits_inline(byte_count, READ_INLINE_REPLY_DATA_AT, self.info.response_bytes);
        let buffers = [call.into.current_buffer().map_err(Refused::Over)?];
        let request = if inline {
            Request::ReadInline(ReadInline { fh, state_id, offset, byte_count, cache_hint: 0 })
        } else {
            let buffers = Seq::new(&buffers);
            let cache_hint = 0;
            Request::ReadDirect(ReadDirect {
                fh,
                state_id,
                offset,
                byte_count,
                cache_hint,
                buffers,
            })
        };
        let procedure = request.procedure();
        let header = self.next_header(procedure)?;
        let bytes = encode_request(&mut self.scratch, self.order, &header, &request)?;
        if self.info.checksums {
            seal(&mut self.scratch[..bytes]);
        }
        let work = if inline { Work::ReadInline(call) } else { Work::ReadDirect(call) };
        self.count_transfer(inline);
        let purpose = Purpose::Caller(tag);
        let message = Outgoing { purpose, due, procedure, header, work, bytes, data: None };
        self.transmit(adapter, now, message);
        Ok(())
    }

    fn send_write(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tag: u64,
        due: Due,
        call: WriteCall,
    ) -> Result<(), Refused> {
        let WriteCall { handle: fh, offset, stability: stable, delegation, .. } = call;
        let patience = self.patience_of_server();
        if delegation.is_some_and(|name| !self.back.delegations.may_write(name, now, patience)) {
            self.finish(Purpose::Caller(tag), Done::Lost(Failure::DelegationLost));
            return Ok(());
        }
        let state_id = match self.opens.current(call.state_id) {
            Ok(state_id) => state_id,
            Err(status) => {
                let procedure = Procedure::WriteDirect;
                self.finish(Purpose::Caller(tag), Done::Refused { procedure, status });
                return Ok(());
            }
        };
        let byte_count = call.from.len();
        let padding = self.info.inline_write_header_bytes;
        let padded_to = (self.config.pad_writes && padding != 0).then_some(padding);
        let data_at = padded_to.map_or(WRITE_INLINE_DATA_AT, |at| at as usize);
        let inline = self.fits_inline(byte_count, data_at, self.info.request_bytes);
        // Detect unmapped memory while it does not cost the connection; a checksum of the message
        // touches every byte, too.
        let sum = match inline {
            true if self.info.checksums => Ok(Checksum::ZERO),
            true => call.from.checked().look().map(|()| Checksum::ZERO),
            false => self.data_checksum(call.from.checked()),
        };
        let sum = match sum {
            Ok(sum) => sum,
            Err(gone) => {
                self.finish(Purpose::Caller(tag), Done::Lost(gone.into()));
                return Ok(());
            }
        };
        let (procedure, header, bytes);
        let mut data = None;
        if inline {
            procedure = Procedure::WriteInline;
            header = self.next_header(procedure)?;
            let request =
                WriteInline { fh, state_id, offset, stable, padded_to, cache_hint: 0, data: &[] };
            let (order, out) = (self.order, &mut self.scratch);
            bytes = encode_write_inline_head(out, order, &header, &request, byte_count as usize)?;
            if self.info.checksums
                && let Err(gone) = seal_volatile(&mut self.scratch[..bytes], call.from.checked())
            {
                self.finish(Purpose::Caller(tag), Done::Lost(gone.into()));
                return Ok(());
            }
            data = Some(call.from.clone());
        } else {
            procedure = Procedure::WriteDirect;
            header = self.next_header(procedure)?;
            let buffers = [call.from.current_buffer().map_err(Refused::Over)?];
            let request = Request::WriteDirect(WriteDirect {
                fh,
                state_id,
                offset,
                byte_count,
                stable,
                cache_hint: 0,
                direct_checksum: sum,
                buffers: Seq::new(&buffers),
            });
            bytes = encode_request(&mut self.scratch, self.order, &header, &request)?;
            if self.info.checksums {
                seal(&mut self.scratch[..bytes]);
            }
        }
        self.count_transfer(inline);
        let (purpose, work) = (Purpose::Caller(tag), Work::Write(call));
        let message = Outgoing { purpose, due, procedure, header, work, bytes, data };
        self.transmit(adapter, now, message);
        Ok(())
    }

    fn count_transfer(&mut self, inline: bool) {
        if inline {
            self.stats.inline_transfers += 1;
        } else {
            self.stats.direct_transfers += 1;
        }
    }

    fn fits_inline(&self, bytes: u32, data_at: usize, message_bytes: u32) -> bool {
        !self.config.always_direct
            && bytes <= self.config.inline_bytes
            && data_at + bytes as usize <= message_bytes as usize
    }

    /// True when data of this length can be appended within a message.
    pub(crate) fn appends_inline(&self, bytes: usize) -> bool {
        let message_bytes = self.info.request_bytes;
        let short = u32::try_from(bytes).ok();
        short.is_some_and(|bytes| self.fits_inline(bytes, APPEND_INLINE_DATA_AT, message_bytes))
    }

    /// The checksum that travels with direct data, when checksums are on (DAFS O20).
    ///
    /// # Errors
    /// The data is unmapped.
    pub(crate) fn data_checksum(&self, data: CheckedSlice<'_>) -> Result<Checksum, Gone> {
        self.checksum_of(std::iter::once(data))
    }

    /// As [`data_checksum`](Self::data_checksum), for data in several pieces, one behind the other.
    ///
    /// # Errors
    /// The data is unmapped.
    pub(crate) fn checksum_of<'a>(
        &self,
        data: impl IntoIterator<Item = CheckedSlice<'a>>,
    ) -> Result<Checksum, Gone> {
        if !self.info.checksums {
            return Ok(Checksum::ZERO);
        }
        let mut sums = Fletcher32::new();
        data.into_iter().try_for_each(|part| part.scan(|bytes| sums.update(bytes)))?;
        Ok(sums.finish())
    }

    /// The header of the next request. The caller has made sure that there is a credit. No credit
    /// is used yet, so a request that does not fit changes nothing.
    pub(super) fn next_header(&self, procedure: Procedure) -> Result<RequestHeader, Refused> {
        let next = self.conn.streams.peek().ok_or(Refused::Full)?;
        Ok(RequestHeader {
            desired_nreq: self.desired,
            analyzer: Analyzer(self.next_analyzer.to_ne_bytes()),
            cred_handle: self.credential_for(procedure),
            stream_id: next.stream,
            seq_number: next.sequence,
            ..RequestHeader::default()
        })
    }

    /// Sends one request: a receive first, then the message. It is outstanding in any case, so a
    /// failure ends it with its connection.
    pub(super) fn transmit(&mut self, adapter: &mut dyn Adapter, now: Instant, message: Outgoing) {
        let Outgoing { purpose, due: deadline, procedure, header, work, bytes, data } = message;
        let taken = self.conn.streams.take();
        debug_assert_eq!(taken.map(|taken| taken.stream), Some(header.stream_id));
        let (analyzer, expected) = (self.next_analyzer, work.expected_bytes());
        self.next_analyzer += 1;
        self.last_request = now;
        self.conn.shrink_at = None;
        self.demand_peak = self.demand_peak.max(self.conn.streams.outstanding());
        self.note_deadline(deadline);
        let sequence = header.seq_number;
        self.conn.flights[usize::from(header.stream_id)] =
            Some(Flight { purpose, procedure, sequence, analyzer, sent_at: now, deadline, work });
        match self.post(adapter, bytes, data) {
            Ok(()) => self.expect(adapter, expected, 0),
            Err(failure) => self.fail(adapter, failure),
        }
    }

    /// Posts a receive for the reply, if none is left over, and the message in `scratch`.
    fn post(
        &mut self,
        adapter: &mut dyn Adapter,
        bytes: usize,
        data: Option<Piece>,
    ) -> Result<(), Failure> {
        let conn = &mut self.conn;
        let endpoint = conn.endpoint.ok_or_else(|| Failure::lost("there is no connection"))?;
        if conn.posted < usize::from(conn.streams.outstanding()) {
            let slot = conn.receives.take(adapter)?.ok_or_else(no_slot)?;
            let segment = conn.receives.segment(slot, conn.receives.message_bytes());
            adapter.post_receive(endpoint, slot.into(), segment).map_err(Failure::lost)?;
            conn.posted += 1;
        }
        let slot = conn.sends.take(adapter)?.ok_or_else(no_slot)?;
        conn.sends.store(slot, &self.scratch[..bytes]);
        let head = conn.sends.segment(slot, bytes);
        let posted = match data {
            Some(data) => adapter.post_send(endpoint, slot.into(), &[head, data.local()?]),
            None => adapter.post_send(endpoint, slot.into(), &[head]),
        };
        posted.map_err(Failure::lost)
    }

    pub(crate) fn note_deadline(&mut self, due: Due) {
        if let Some((at, _)) = due {
            self.first_deadline = Some(self.first_deadline.map_or(at, |first| first.min(at)));
        }
    }
}

/// Counts copies of the file data that a request carries.
pub(super) fn count_data(request: &Request<'_>, sites: &[Site]) {
    let data = match request {
        Request::AppendInline(args) => args.data,
        Request::WriteInline(args) => args.data,
        _ => return,
    };
    sites.iter().for_each(|site| count_copy(*site, data.len()));
}

/// The end of an accepted call that cannot be sent.
pub(super) fn unsendable(refused: Refused) -> Failure {
    match refused {
        Refused::Over(failure) => failure,
        refused => Failure::unsendable(refused),
    }
}

fn no_slot() -> Failure {
    Failure::memory("the message pool is used up")
}

pub(super) fn due(now: Instant, deadline: Option<Duration>) -> Due {
    deadline.map(|after| (now + after, after))
}

/// Fills in the checksum of a message whose data is gathered from volatile memory behind `head`,
/// whose checksum field is zero.
///
/// # Errors
/// The data is unmapped.
fn seal_volatile(head: &mut [u8], data: CheckedSlice<'_>) -> Result<(), Gone> {
    let mut sums = Fletcher32::new();
    sums.update(head);
    data.scan(|bytes| sums.update(bytes))?;
    head[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sums.finish().0);
    Ok(())
}
