//! One back-control channel: the server calls, the client answers (DAFS 7 with roles reversed).
//!
//! Invariants
//! * Outstanding calls never exceed the credits that the client grants. Each has a stream of its
//!   own, and a receive for the answer is posted before the call is sent.
//! * Receives posted for answers count among the connection's credits, so the counts of
//!   [`Credits`](super::super::connection::Credits) are valid on this channel too.
//! * A call is answered, or fails with the connection. One without an answer in time ends the
//!   connection.

use super::super::Tag;
use super::super::connection::Phase;
use super::super::registry::Registry;
use super::super::request::Context;
use super::{Address, Callback};
use crate::limits::{
    BACK_ANSWER_SECONDS, BACK_CALLS_PER_LEASE, BACK_CREDITS_MAX, BACK_WAITING_MAX,
    SMALL_REPLY_BYTES, WORK_POSTED_MAX,
};
use crate::ops::batch::{Batches, Queue, completions_max};
use dafs_dat::Instant;
use dafs_service::{AttrAnswer, Client, Service};
use dafs_store::TimeSpec;
use dafs_wire::dafs::{
    ByteOrder, Outcome, REPLY_MAGIC, Reply, RequestHeader, ResponseHeader, SessionId, Status,
    decode_response, encode_request, seal, verify,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The additional state of a bound connection.
pub(in crate::engine) struct Back {
    session: SessionId,
    client: Arc<Client>,
    address: Address,
    checksums: bool,
    /// The number of calls that the client allows to be outstanding.
    credits: u16,
    outstanding: u16,
    /// The time of the last call to the client.
    called_at: Instant,
    streams: Vec<Stream>,
    waiting: VecDeque<Callback>,
}

struct Stream {
    next_seq: u16,
    flight: Option<Flight>,
}

/// A call without an answer.
struct Flight {
    callback: Callback,
    sequence: u16,
    due: Instant,
}

/// True if a message is an answer. On this channel requests may arrive too, which are refused.
pub(in crate::engine) fn is_reply(bytes: &[u8], order: ByteOrder) -> bool {
    let magic = match order {
        ByteOrder::Big => REPLY_MAGIC.to_be_bytes(),
        ByteOrder::Little => REPLY_MAGIC.to_le_bytes(),
    };
    bytes.starts_with(&magic)
}

impl Back {
    pub(in crate::engine) fn new(
        session: SessionId,
        client: Arc<Client>,
        address: Address,
        checksums: bool,
        credits: u16,
    ) -> Self {
        Self {
            session,
            client,
            address,
            checksums,
            credits: credits.clamp(1, BACK_CREDITS_MAX),
            outstanding: 0,
            called_at: Instant::default(),
            streams: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    pub(in crate::engine) fn checksums(&self) -> bool {
        self.checksums
    }

    /// True when an answer of the client is overdue.
    pub(in crate::engine) fn is_overdue(&self, now: Instant) -> bool {
        let flights = self.streams.iter().filter_map(|stream| stream.flight.as_ref());
        flights.into_iter().any(|flight| flight.due <= now)
    }

    /// True when a client with delegations or layouts has got no call for so long that it would
    /// soon doubt that it can be recalled.
    pub(in crate::engine) fn is_silent(&self, lease: Duration, now: Instant) -> bool {
        self.client.holds_recallable()
            && self.waiting.is_empty()
            && now.since(self.called_at) >= lease / BACK_CALLS_PER_LEASE
    }

    pub(in crate::engine) fn end(self, service: &Service, registry: &Registry) {
        registry.unbind_back(self.session, &self.address);
        let flights = self.streams.into_iter().filter_map(|stream| stream.flight);
        let unanswered = flights.map(|flight| flight.callback).chain(self.waiting);
        unanswered.for_each(|callback| callback.failed(service));
        say_elsewhere(service, registry, &self.client);
    }

    /// Returns the lowest stream without a call, or a new one. Credits bound their number.
    fn idle_stream(&mut self) -> u16 {
        let idle = self.streams.iter().position(|stream| stream.flight.is_none());
        let idle = idle.unwrap_or(self.streams.len());
        if idle == self.streams.len() {
            self.streams.push(Stream { next_seq: 1, flight: None });
        }
        idle as u16
    }
}

/// Makes the service repeat the calls that have just failed, if the client can be called. The
/// service must first see the channel go, because it repeats calls only on a new one.
pub(super) fn say_elsewhere(service: &Service, registry: &Registry, client: &Client) {
    service.set_back_channel(client, false);
    tell_path(service, registry, client);
}

/// Tells the service if the client can be called. A race: other reactors may be doing the same, so
/// the last value is checked.
fn tell_path(service: &Service, registry: &Registry, client: &Client) {
    loop {
        let up = registry.is_callable(client.key());
        service.set_back_channel(client, up);
        if registry.is_callable(client.key()) == up {
            return;
        }
    }
}

impl Context<'_> {
    pub(in crate::engine) fn start_back(&mut self, back: Back) {
        self.connection.back = Some(Box::new(back));
        self.call_client(Callback::Null);
    }

    /// Assures the client that it can be recalled.
    pub(in crate::engine) fn assure_client(&mut self) {
        let lease = self.shared.service.config().lease_time;
        if self.connection.back.as_ref().is_some_and(|back| back.is_silent(lease, self.now)) {
            self.call_client(Callback::Null);
        }
    }

    /// Calls the client, as soon as there is a credit.
    pub(in crate::engine) fn call_client(&mut self, callback: Callback) {
        match &mut self.connection.back {
            Some(back) if back.waiting.len() < BACK_WAITING_MAX => {
                back.waiting.push_back(callback);
                self.pump_back();
            }
            _ => callback.failed(&self.shared.service),
        }
    }

    /// Sends waiting calls, as far as credits allow.
    pub(crate) fn pump_back(&mut self) {
        while self.connection.phase == Phase::Bound
            && let Some(back) = &mut self.connection.back
            && back.outstanding < back.credits
        {
            let waiting = back.waiting.pop_front();
            let Some(callback) = waiting.or_else(|| self.take_report()) else { return };
            if let Err(reason) = self.send_call(callback) {
                return self.drop_session(&reason);
            }
        }
    }

    /// Returns the back-control channel of the session, which executes its batches, with their
    /// ledger.
    pub(crate) fn session_batches(&self) -> Option<(Address, Arc<Batches>)> {
        self.shared.registry.batches(self.connection.session.as_ref()?.id)
    }

    /// Returns the work of this channel for batches, once there has been some.
    pub(crate) fn queue(&mut self) -> &mut Option<Box<Queue>> {
        &mut self.connection.batch
    }

    /// Sets the time of the next check of its batches.
    pub(crate) fn set_queue_due(&mut self, due: Option<Instant>) {
        let endpoint = self.connection.endpoint;
        match due {
            Some(due) => self.link.batches_due.insert(endpoint, due),
            None => self.link.batches_due.remove(&endpoint),
        };
    }

    /// Notes the end of the last batch work for a session that has ended.
    pub(crate) fn batches_settled(&self) {
        if let Some(session) = &self.connection.session {
            self.shared.registry.settled(session.id);
        }
    }

    /// Takes the completions of batches to report, as many as fit a message.
    fn take_report(&mut self) -> Option<Callback> {
        let options = self.connection.session.as_ref().map(|session| session.options)?;
        let bytes = (options.max_request_size as usize).min(self.link.replies.bytes_max());
        let queue = self.connection.batch.as_mut()?;
        let report = queue.take_report(completions_max(bytes))?;
        Some(Callback::Completions(report.iter().map(|finished| finished.completion).collect()))
    }

    fn send_call(&mut self, callback: Callback) -> Result<(), String> {
        let Some(back) = &mut self.connection.back else {
            return Err("a call on a connection that is not bound".to_owned());
        };
        let stream = back.idle_stream();
        let sequence = back.streams[usize::from(stream)].next_seq;
        let due = self.now + Duration::from_secs(BACK_ANSWER_SECONDS);
        let wish = usize::from(back.outstanding) + 1 + back.waiting.len();
        let header = RequestHeader {
            desired_nreq: wish.min(usize::from(BACK_CREDITS_MAX)) as u16,
            stream_id: stream,
            seq_number: sequence,
            ..RequestHeader::default()
        };
        let (order, checksums) = (self.connection.order, back.checksums);
        let options = self.connection.session.as_ref().map(|session| session.options);
        let max = options.map_or(0, |options| options.max_request_size as usize);
        let bytes = if let Callback::Completions(_) = &callback { max } else { SMALL_REPLY_BYTES };
        let slot = self
            .take_reply(bytes.min(self.link.replies.bytes_max()))
            .map_err(|status| format!("no memory: {status}"))?;
        let out = self.link.replies.bytes_mut(slot);
        let room = out.len().min(max);
        let encoded = encode_request(&mut out[..room], order, &header, &callback.request());
        let sent = match encoded {
            Ok(len) => {
                if checksums {
                    seal(&mut out[..len]);
                }
                self.post_call(slot, len)
            }
            Err(error) => Err(format!("a call could not be encoded: {error}")),
        };
        // The unsent call fails with the connection, which ends now.
        if let Some(back) = &mut self.connection.back {
            let stream = &mut back.streams[usize::from(stream)];
            stream.next_seq = sequence.wrapping_add(1);
            stream.flight = Some(Flight { callback, sequence, due });
            back.outstanding += 1;
            back.called_at = self.now;
        }
        if sent.is_err() {
            self.link.replies.give_back(slot);
        }
        sent
    }

    /// Posts a receive for the answer, then the call.
    fn post_call(
        &mut self,
        slot: super::super::memory::ReplySlot,
        len: usize,
    ) -> Result<(), String> {
        self.connection.credits.nreq += 1;
        self.link.credits += 1;
        if let Err(reason) = self.post_receives(1) {
            self.connection.credits.nreq -= 1;
            self.link.credits -= 1;
            return Err(reason);
        }
        self.connection.credits.check();
        let segment = self.link.replies.segment(slot, len);
        let (endpoint, work) = (self.connection.endpoint, Tag::Reply(slot).pack());
        let posted = self.link.adapter.post_send(endpoint, work, &[segment]);
        posted.map_err(|error| format!("a call cannot be sent: {error}"))?;
        self.connection.count_posted(self.now);
        if self.connection.work_posted > WORK_POSTED_MAX {
            return Err("the client does not read what it is told".to_owned());
        }
        Ok(())
    }

    /// Handles an answer. Its receive is not posted again.
    ///
    /// # Errors
    /// The reason why the connection must be dropped.
    pub(in crate::engine) fn back_reply(&mut self, bytes: &[u8]) -> Result<(), String> {
        let order = self.connection.order;
        let header = ResponseHeader::decode(bytes, order).map_err(|error| error.to_string())?;
        let Some(back) = &mut self.connection.back else {
            return Err("an answer came where nothing is asked".to_owned());
        };
        if back.checksums && !verify(bytes) {
            return Err("the checksum of an answer does not match its content".to_owned());
        }
        let stream = back.streams.get_mut(usize::from(header.stream_id));
        let asked = |flight: &mut Flight| flight.sequence == header.seq_number;
        let flight = stream.and_then(|stream| stream.flight.take_if(asked));
        let Some(Flight { callback, .. }) = flight else {
            return Err(format!("an answer came on stream {} unasked", header.stream_id));
        };
        back.outstanding -= 1;
        let target = header.target_nreq.clamp(1, BACK_CREDITS_MAX);
        back.credits = target.max(back.credits - 1);
        let client = back.client.clone();
        // One receive fewer is posted than before the call.
        self.connection.credits.nreq -= 1;
        self.link.credits -= 1;
        self.connection.credits.check();
        let outcome = decode_response(bytes, order, callback.procedure());
        self.answered(callback, &client, outcome.ok().map(|(_, outcome)| outcome));
        self.pump_back();
        Ok(())
    }

    /// Handles the content of an answer. `None` for one that cannot be decoded.
    fn answered(&mut self, callback: Callback, client: &Client, outcome: Option<Outcome<'_>>) {
        let (service, registry) = (&self.shared.service, &self.shared.registry);
        match (callback, outcome) {
            (Callback::Null, Some(Outcome::Ok(_))) => {
                if let Some(back) = &self.connection.back {
                    registry.set_listening(back.session, &back.address);
                }
                tell_path(service, registry, client);
            }
            (
                Callback::Recall { .. }
                | Callback::RecallLayout { .. }
                | Callback::RecallLayouts { .. },
                Some(Outcome::Ok(_)),
            ) => {}
            (
                Callback::RecallLayout { client, state, .. },
                Some(Outcome::Error { status: Status::NotFound, .. }),
            ) => service.layouts.forgotten(client.key(), state),
            (
                Callback::RecallLayouts { client, of, form },
                Some(Outcome::Error { status: Status::NotFound, .. }),
            ) => service.layouts.wide_forgotten(client.key(), of.as_ref(), form),
            // The report has reached the client, whatever the answer is.
            (Callback::Completions(_), _) => {}
            (
                Callback::GetAttr { client, query, .. },
                Some(Outcome::Ok(Reply::BcGetAttr(reply))),
            ) => {
                let found = &reply.attributes;
                let answer = found.change.zip(found.object_size).map(|(change, size)| AttrAnswer {
                    change,
                    size,
                    atime: None,
                    mtime: found
                        .time_modify
                        .map(|time| TimeSpec { seconds: time.seconds, nanoseconds: time.nseconds }),
                });
                service.delegations.attr_answer(&client, query, answer);
            }
            (callback, _) => callback.failed(service),
        }
    }
}
