//! Outgoing requests.
//!
//! Invariants
//! * An accepted call is in exactly one place until it completes: waiting, outstanding, or in
//!   recovery.
//! * A request is kept as the application made it; names that changed with a lost connection (keys
//!   of memory, state-ids of opens) are filled in each time it is sent. Then inline data is padded,
//!   since the next connection may agree on another place for it.

use super::call::{Call, Done, Due, Purpose, ReadCall, Refused, Task, Work, WriteCall};
use super::calls::Calls;
use super::chain::{ChainMember, form};
use super::failure::Failure;
use super::link::Link;
use super::memory::{Piece, Pieces};
use super::rewrite::{Nameless, Names};
use super::session::{SessionCore, Stage};
use super::timers::unless_silent;
use super::users::User;
use crate::limits::{OPERATION_DEADLINE, QUEUED_REQUESTS_MAX};
use dafs_dat::{Adapter, Instant};
use dafs_mem::{CheckedSlice, Inaccessible, Site, count_copy};
use dafs_wire::dafs::{
    AppendInline, CHECKSUM_AT, Checksum, Fletcher32, Procedure, READ_INLINE_REPLY_DATA_AT,
    ReadDirect, ReadInline, Request, RequestHeader, Seq, Status, WRITE_INLINE_DATA_AT, WriteDirect,
    WriteInline, decode_request, encode_request, encode_write_inline_head,
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
    /// As in [`Call`].
    pub(super) user: Option<User>,
    /// As in [`Call`].
    pub(super) renewed: bool,
}

/// The part of a call that does not depend on its request.
pub(super) struct Terms {
    pub(super) purpose: Purpose,
    pub(super) due: Due,
    pub(super) user: Option<User>,
    pub(super) renewed: bool,
}

impl Terms {
    /// Those of a new call.
    fn new(tag: u64, due: Due, user: Option<User>) -> Self {
        Self { purpose: Purpose::Caller(tag), due, user, renewed: false }
    }

    /// Those of a request of the session's own.
    pub(super) fn own(purpose: Purpose, due: Due) -> Self {
        Self { purpose, due, user: None, renewed: false }
    }

    pub(super) fn outgoing(
        self,
        (procedure, header): (Procedure, RequestHeader),
        work: Work,
        bytes: usize,
        data: Option<Piece>,
    ) -> Outgoing {
        let Self { purpose, due, user, renewed } = self;
        Outgoing { purpose, due, procedure, header, work, bytes, data, user, renewed }
    }
}

/// The reason why a request was not sent.
pub(super) enum SendError {
    /// The call ends like this, without the server.
    Ended(Done),
    /// The request cannot be sent.
    Refused(Refused),
    /// It is outstanding, and the connection has failed.
    Lost(Failure),
}

impl<E: Into<Refused>> From<E> for SendError {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
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
        let user = self.admit(adapter, now, &memory)?;
        match request {
            Request::DelegReturn(args) => drop(self.calls.delegations.returning(args.state_id)),
            Request::Lock(lock) => self.calls.orphans.wanted(lock),
            Request::Close(close) => self.optimistic.closed(close.state_id),
            _ => {}
        }
        let due = due(now, deadline);
        if self.can_send(user.as_ref()) {
            let (link, purpose) = (&mut self.link, Purpose::Caller(tag));
            let terms = Terms::new(tag, due, user);
            let sent = self.calls.send(link, adapter, terms, request, memory);
            return self.sent(adapter, purpose, sent);
        }
        let task = Task::Message { bytes: self.link.encoded(request)?, memory };
        self.queue(adapter, Call { tag, due, task, maybe_done: false, user, renewed: false });
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
        let mut user = self.admit(adapter, now, std::slice::from_ref(&call.into))?;
        let due = due(now, deadline);
        let may_hit = self.may_hit(&call);
        let call = if may_hit {
            let left = self.read_optimistically(adapter, (tag, due), &mut user, call);
            let Some(call) = left else { return Ok(()) };
            call
        } else {
            call
        };
        if self.can_send(user.as_ref()) {
            let terms = Terms::new(tag, due, user);
            let sent = self.calls.send_read(&mut self.link, adapter, terms, call);
            let sent = self.sent(adapter, Purpose::Caller(tag), sent);
            if may_hit {
                self.after_miss(adapter);
            }
            return sent;
        }
        let task = Task::Read(call);
        self.queue(adapter, Call { tag, due, task, maybe_done: false, user, renewed: false });
        if may_hit {
            self.after_miss(adapter);
        }
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
        let user = self.admit(adapter, now, std::slice::from_ref(&call.from))?;
        let due = due(now, deadline);
        if self.can_send(user.as_ref()) {
            let terms = Terms::new(tag, due, user);
            let sent = self.calls.send_write(&mut self.link, adapter, terms, call);
            return self.sent(adapter, Purpose::Caller(tag), sent);
        }
        let task = Task::Write(call);
        self.queue(adapter, Call { tag, due, task, maybe_done: false, user, renewed: false });
        Ok(())
    }

    /// Submits requests that are carried out in their order, each only if the one before it has
    /// succeeded; those behind a failure are answered with `CHAIN_BROKEN`. They leave together as
    /// soon as there are credits for all of them. Each ends with [`Done::Answered`].
    ///
    /// # Errors
    /// The reason why none of them was accepted.
    pub fn submit_chain(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        members: &[ChainMember<'_>],
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        let user = self.admit(adapter, now, &[])?;
        form(members)?;
        let credits = match self.stage {
            Stage::Ready => self.link.conn.streams.usable(),
            // The credits of the next connection are not known yet.
            _ => self.link.config.requests_max,
        };
        if members.len() > usize::from(credits) {
            let credits = credits.into();
            return Err(Refused::ChainTooLong { members: members.len(), credits });
        }
        if self.calls.waiting.len() + members.len() > QUEUED_REQUESTS_MAX {
            return Err(Refused::Full);
        }
        self.calls.add_chain(&mut self.link, members, due(now, deadline), user.as_ref())?;
        self.pump(adapter);
        Ok(())
    }

    /// Checks that a call can be accepted; returns the user that it runs as.
    pub(super) fn admit(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        memory: &[Piece],
    ) -> Result<Option<User>, Refused> {
        let user = self.calls.acting.take();
        self.link.now = now;
        match (self.stage, &self.failure) {
            (Stage::Ready, _) => {}
            (Stage::Recovering, None) if !self.closing => {}
            (_, Some(failure)) => return Err(Refused::Over(failure.clone())),
            (Stage::Closing | Stage::Recovering, None) => {
                return Err(Refused::Over(Failure::Closed));
            }
            _ => return Err(Refused::NotReady),
        }
        if memory.iter().any(|piece| !self.memories.own(piece.memory())) {
            return Err(Refused::ForeignMemory);
        }
        if self.calls.waiting.len() >= QUEUED_REQUESTS_MAX {
            return Err(Refused::Full);
        }
        if user.is_some() && !self.link.info.trusted {
            return Err(Refused::NotTrusted);
        }
        self.reap(adapter);
        Ok(user)
    }

    /// True when a new request overtakes no other and has the resources that it needs.
    pub(super) fn has_room(&self) -> bool {
        self.stage == Stage::Ready && self.calls.waiting.is_empty() && self.link.conn.has_room()
    }

    /// The same, for a call of this user.
    fn can_send(&self, user: Option<&User>) -> bool {
        self.has_room() && self.link.users.is_ready(user)
    }

    /// Queues a new call.
    fn queue(&mut self, adapter: &mut dyn Adapter, call: Call) {
        let is_first = self.calls.waiting.is_empty();
        self.calls.wait(&mut self.link, call);
        if is_first && self.stage == Stage::Ready && self.link.conn.has_room() {
            // No answer may be under way that would begin the registration of its user.
            self.pump(adapter);
        }
    }

    /// Sends waiting calls, as far as credits reach; then closes the session, if that was asked
    /// for. Cancels go first: they may free what all others wait for.
    pub(crate) fn pump(&mut self, adapter: &mut dyn Adapter) {
        self.send_cancels(adapter);
        self.tell_completion(adapter);
        if self.back.wanted {
            self.back_turn(adapter);
            self.return_strays(adapter);
            self.pump_batches(adapter);
        }
        self.return_orphans(adapter);
        while matches!(self.stage, Stage::Ready | Stage::Closing) && self.link.conn.has_room() {
            if !self.admit_first(adapter) {
                break;
            }
            let (calls, link) = (&mut self.calls, &mut self.link);
            if let Some(count) = calls.chains.in_front(&calls.waiting) {
                match calls.send_chain(link, adapter, count) {
                    Ok(true) => continue,
                    Ok(false) => break,
                    Err(failure) => {
                        self.fail(adapter, failure);
                        continue;
                    }
                }
            }
            let next = calls.waiting.pop_front();
            let Some(Call { tag, due, task, maybe_done, user, renewed }) = next else {
                break;
            };
            // It may have waited for a credit for longer than an answer may take.
            let due = unless_silent(due, link.answered_at);
            let terms = Terms { renewed, ..Terms::new(tag, due, user) };
            let sent = match task {
                Task::Read(call) => calls.send_read(link, adapter, terms, call),
                Task::Write(call) => calls.send_write(link, adapter, terms, call),
                Task::Message { bytes, memory } => {
                    calls.send_encoded(link, adapter, terms, bytes, memory)
                }
            };
            if maybe_done {
                link.conn.note_maybe_done(tag);
            }
            if let Err(refused) = self.sent(adapter, Purpose::Caller(tag), sent) {
                // The accepted call must complete. It fitted a message of the connection before
                // this one, or its memory could not be registered again.
                self.finish(Purpose::Caller(tag), Done::Lost(unsendable(refused)));
            }
        }
        if self.stage == Stage::Closing && self.failure.is_none() && self.is_settled(adapter) {
            self.send_own(adapter, Purpose::Disconnect, &Request::Disconnect);
        }
    }

    /// Processes the outcome of a send: a failure ends the connection, and the call with it.
    fn sent(
        &mut self,
        adapter: &mut dyn Adapter,
        purpose: Purpose,
        sent: Result<(), SendError>,
    ) -> Result<(), Refused> {
        match sent {
            Err(SendError::Ended(done)) => self.finish(purpose, done),
            Err(SendError::Refused(refused)) => return Err(refused),
            Err(SendError::Lost(failure)) => self.fail(adapter, failure),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Sends a request of the session's own.
    pub(crate) fn send_own(
        &mut self,
        adapter: &mut dyn Adapter,
        purpose: Purpose,
        request: &Request<'_>,
    ) {
        self.send_own_within(adapter, purpose, request, OPERATION_DEADLINE);
    }

    pub(crate) fn send_own_within(
        &mut self,
        adapter: &mut dyn Adapter,
        purpose: Purpose,
        request: &Request<'_>,
        deadline: Duration,
    ) {
        let due = due(self.link.now, Some(deadline));
        self.send_own_on(adapter, Terms::own(purpose, due), request);
    }

    /// Sends a request of the session's own that runs as a user, who is registered.
    pub(crate) fn send_own_as(
        &mut self,
        adapter: &mut dyn Adapter,
        purpose: Purpose,
        request: &Request<'_>,
        user: Option<User>,
    ) {
        let due = due(self.link.now, Some(OPERATION_DEADLINE));
        self.send_own_on(adapter, Terms { user, ..Terms::own(purpose, due) }, request);
    }

    fn send_own_on(&mut self, adapter: &mut dyn Adapter, terms: Terms, request: &Request<'_>) {
        let (purpose, link) = (terms.purpose, &mut self.link);
        let sent = self.calls.send(link, adapter, terms, request, Pieces::new());
        if let Err(refused) = self.sent(adapter, purpose, sent) {
            self.end(adapter, Failure::refused(refused));
        }
    }
}

impl Calls {
    fn send_encoded(
        &mut self,
        link: &mut Link,
        adapter: &mut dyn Adapter,
        terms: Terms,
        bytes: Vec<u8>,
        memory: Pieces,
    ) -> Result<(), SendError> {
        let (_, request) = decode_request(&bytes, link.order, 0)
            .map_err(|error| Refused::Over(Failure::protocol(error)))?;
        self.send(link, adapter, terms, &request, memory)
    }

    fn send(
        &mut self,
        link: &mut Link,
        adapter: &mut dyn Adapter,
        terms: Terms,
        request: &Request<'_>,
        memory: Pieces,
    ) -> Result<(), SendError> {
        let procedure = request.procedure();
        let header = link.next_header(procedure, terms.user.as_ref())?;
        let is_callers = matches!(terms.purpose, Purpose::Caller(_));
        let keep = is_callers && self.keeps_requests;
        let padded_to = if is_callers { link.padding_of(request) } else { None };
        let first = if keep { *request } else { padded(request, padded_to) };
        let mut bytes = encode_request(&mut link.scratch, link.order, &header, &first)?;
        let mut work = Work::own();
        if is_callers {
            let kept = if keep { link.scratch[..bytes].to_vec() } else { Vec::new() };
            // One copy into the message, and one into the memory that it is sent from.
            count_data(request, &[Site::ClientInlineWrite; 2]);
            count_data(request, if keep { &[Site::ClientKept] } else { &[] });
            let is_kept_plain = keep && padded_to.is_some();
            count_data(request, if is_kept_plain { &[Site::ClientInlineWrite] } else { &[] });
            if link.stats.recoveries > 0 || is_kept_plain {
                let server = link.info.client_id;
                let delegations = &self.delegations;
                let names = Names { memory: &memory, opens: &self.opens, delegations, server };
                let (order, out) = (link.order, &mut link.scratch);
                let encoded = names.apply(request, |request| {
                    encode_request(out, order, &header, &padded(request, padded_to))
                });
                bytes = match encoded {
                    Ok(encoded) => encoded?,
                    Err(Nameless::Memory(failure)) => return Err(Refused::Over(failure).into()),
                    Err(Nameless::Open(status)) => {
                        return Err(self.refuse_here(link, request, status));
                    }
                };
            }
            work = Work::Message { bytes: kept, memory };
        }
        let message = terms.outgoing((procedure, header), work, bytes, None);
        link.transmit(adapter, message).map_err(SendError::Lost)
    }

    /// Answers a request that names a lost open, in place of the server: there, the state-id may
    /// denote another open.
    fn refuse_here(&mut self, link: &Link, request: &Request<'_>, status: Status) -> SendError {
        if let Request::Close(close) = request {
            self.opens.closed(close.state_id);
        }
        let reply = link.reply_here(request.procedure(), status);
        reply.map_or_else(SendError::Refused, |reply| SendError::Ended(Done::Answered(reply)))
    }

    fn send_read(
        &self,
        link: &mut Link,
        adapter: &mut dyn Adapter,
        terms: Terms,
        call: ReadCall,
    ) -> Result<(), SendError> {
        let ReadCall { handle: fh, offset, hint: cache_hint, .. } = call;
        let refused = |status| Done::Refused { procedure: Procedure::ReadDirect, status };
        let state_id = self.opens.current(call.state_id);
        let state_id = state_id.map_err(|status| SendError::Ended(refused(status)))?;
        let byte_count = call.into.len();
        let inline =
            link.fits_inline(byte_count, READ_INLINE_REPLY_DATA_AT, link.info.response_bytes);
        let buffers = [call.into.current_buffer().map_err(Refused::Over)?];
        let request = if inline {
            Request::ReadInline(ReadInline { fh, state_id, offset, byte_count, cache_hint })
        } else {
            let buffers = Seq::new(&buffers);
            let args = ReadDirect { fh, state_id, offset, byte_count, cache_hint, buffers };
            Request::ReadDirect(args)
        };
        let procedure = request.procedure();
        let header = link.next_header(procedure, terms.user.as_ref())?;
        let bytes = encode_request(&mut link.scratch, link.order, &header, &request)?;
        let work = if inline { Work::ReadInline(call) } else { Work::ReadDirect(call) };
        link.count_transfer(inline);
        let message = terms.outgoing((procedure, header), work, bytes, None);
        link.transmit(adapter, message).map_err(SendError::Lost)
    }

    fn send_write(
        &self,
        link: &mut Link,
        adapter: &mut dyn Adapter,
        terms: Terms,
        call: WriteCall,
    ) -> Result<(), SendError> {
        let WriteCall {
            handle: fh, offset, stability: stable, delegation, hint: cache_hint, ..
        } = call;
        let patience = link.patience_of_server();
        if delegation.is_some_and(|name| !self.delegations.may_write(name, link.now, patience)) {
            return Err(SendError::Ended(Done::Lost(Failure::DelegationLost)));
        }
        let refused = |status| Done::Refused { procedure: Procedure::WriteDirect, status };
        let state_id = self.opens.current(call.state_id);
        let state_id = state_id.map_err(|status| SendError::Ended(refused(status)))?;
        let byte_count = call.from.len();
        let padded_to = link.padding(byte_count as usize);
        let data_at = padded_to.map_or(WRITE_INLINE_DATA_AT, |at| at as usize);
        let inline = link.fits_inline(byte_count, data_at, link.info.request_bytes);
        // Detect unmapped memory while it does not cost the connection; a checksum of the message
        // touches every byte, too.
        let sum = match inline {
            true if link.info.checksums => Ok(Checksum::ZERO),
            true => call.from.checked().look().map(|()| Checksum::ZERO),
            false => link.data_checksum(call.from.checked()),
        };
        let lost = |gone: Inaccessible| SendError::Ended(Done::Lost(gone.into()));
        let sum = sum.map_err(lost)?;
        let (procedure, header, bytes);
        let mut data = None;
        if inline {
            procedure = Procedure::WriteInline;
            header = link.next_header(procedure, terms.user.as_ref())?;
            let request =
                WriteInline { fh, state_id, offset, stable, padded_to, cache_hint, data: &[] };
            let (order, out) = (link.order, &mut link.scratch);
            bytes = encode_write_inline_head(out, order, &header, &request, byte_count as usize)?;
            if link.info.checksums {
                let head = &mut link.scratch[..bytes];
                seal_volatile(head, call.from.checked()).map_err(lost)?;
            }
            data = Some(call.from.clone());
        } else {
            procedure = Procedure::WriteDirect;
            header = link.next_header(procedure, terms.user.as_ref())?;
            let buffers = [call.from.current_buffer().map_err(Refused::Over)?];
            let request = Request::WriteDirect(WriteDirect {
                fh,
                state_id,
                offset,
                byte_count,
                stable,
                cache_hint,
                direct_checksum: sum,
                buffers: Seq::new(&buffers),
            });
            bytes = encode_request(&mut link.scratch, link.order, &header, &request)?;
        }
        link.count_transfer(inline);
        let message = terms.outgoing((procedure, header), Work::Write(call), bytes, data);
        link.transmit(adapter, message).map_err(SendError::Lost)
    }
}

/// The request with its inline data at this place.
pub(super) fn padded<'a>(request: &Request<'a>, padded_to: Option<u32>) -> Request<'a> {
    match *request {
        Request::AppendInline(args) => Request::AppendInline(AppendInline { padded_to, ..args }),
        Request::WriteInline(args) => Request::WriteInline(WriteInline { padded_to, ..args }),
        other => other,
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

pub(super) fn due(now: Instant, deadline: Option<Duration>) -> Due {
    deadline.map(|after| (now + after, after))
}

/// Fills in the checksum of a message whose data is gathered from volatile memory behind `head`,
/// whose checksum field is zero.
///
/// # Errors
/// The data is unmapped.
fn seal_volatile(head: &mut [u8], data: CheckedSlice<'_>) -> Result<(), Inaccessible> {
    let mut sums = Fletcher32::new();
    sums.update(head);
    data.scan(|bytes| sums.update(bytes))?;
    head[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sums.finish().0);
    Ok(())
}
