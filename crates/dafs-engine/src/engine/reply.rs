//! Replies: encoding, credits, sending.
//!
//! Invariants
//! * A reply is sent only after the receives that its credits promise have been posted.
//! * Every request gets exactly one reply, or its session ends.

use super::Tag;
use super::connection::{Channel, Phase, Session};
use super::memory::{Replies, ReplySlot};
use super::request::{Call, Context, Done, Keep};
use crate::limits::{SMALL_REPLY_BYTES, WORK_POSTED_MAX};
use dafs_wire::dafs::{
    ByteOrder, EncodeError, ErrorBody, Procedure, Reply, ResponseHeader, Status, encode_error,
    encode_response, seal,
};

impl Context<'_> {
    pub(crate) fn reply(&mut self, call: &Call, reply: &Reply<'_>) -> Result<(), Status> {
        if let Some(chain) = call.chain {
            self.connection.chains.produce(chain, reply);
        }
        let order = self.connection.order;
        let sent = self.encode(call, |out, header| encode_response(out, order, header, reply));
        if sent.is_err() {
            // The error that is sent instead belongs to a change that was executed.
            self.executed(call);
        }
        sent
    }

    pub(super) fn fail(&mut self, call: &Call, status: Status) {
        self.fail_with(call, status, &ErrorBody::None);
    }

    /// Answers with an error and its body (DAFS O13).
    pub(crate) fn fail_with(&mut self, call: &Call, status: Status, body: &ErrorBody<'_>) {
        debug_assert!(!status.is_ok());
        if let Some(measured) = self.measured(call) {
            measured.failed = true;
        }
        let order = self.connection.order;
        // An unknown procedure has no error body, so any procedure without one stands for it.
        let procedure = call.procedure.unwrap_or(Procedure::Null);
        let mut send = |body: &ErrorBody<'_>| {
            self.encode(call, |out, header| {
                encode_error(out, order, &header.with_status(status), procedure, body)
            })
        };
        let sent = match send(body) {
            // The error is more important than its body.
            Err(Status::TooSmall) => send(&ErrorBody::None),
            sent => sent,
        };
        if let Err(status) = sent {
            self.drop_session(&format!("an error reply could not be sent: {status}"));
        }
    }

    /// Completes a reply whose data is in its slot, and sends it.
    pub(crate) fn send_filled(
        &mut self,
        call: &Call,
        slot: ReplySlot,
        head: impl FnOnce(&mut [u8], ByteOrder, &ResponseHeader) -> Result<usize, EncodeError>,
    ) -> Done {
        let target = self.target(call);
        let header = ResponseHeader::answering(&call.header, target);
        match head(self.link.replies.bytes_mut(slot), self.connection.order, &header) {
            Ok(len) => {
                self.send(call, slot, len, target);
                Ok(())
            }
            Err(_) => {
                self.link.replies.give_back(slot);
                Err(Status::ServerFault)
            }
        }
    }

    /// Encodes into a small slot, or a large one if it does not fit, and sends.
    fn encode(
        &mut self,
        call: &Call,
        write: impl Fn(&mut [u8], &ResponseHeader) -> Result<usize, EncodeError>,
    ) -> Result<(), Status> {
        let target = self.target(call);
        let mut header = ResponseHeader::answering(&call.header, target);
        // The highest supported version that is not above the requested one, or 0 (DAFS O1).
        header.protocol_version = header.protocol_version.min(call.header.protocol_version);
        let max = self.connection.response_bytes_max();
        for room in [SMALL_REPLY_BYTES, max] {
            let slot = self.take_reply(room)?;
            let out = self.link.replies.bytes_mut(slot);
            let room = out.len().min(max);
            match write(&mut out[..room], &header) {
                Ok(len) => {
                    self.send(call, slot, len, target);
                    return Ok(());
                }
                Err(EncodeError::NoRoom { .. }) => self.link.replies.give_back(slot),
                Err(error) => {
                    self.link.replies.give_back(slot);
                    tracing::error!(%error, "a reply could not be encoded");
                    return Err(Status::ServerFault);
                }
            }
        }
        // DAFS O57.
        Err(Status::TooSmall)
    }

    pub(crate) fn replies(&mut self) -> &mut Replies {
        &mut self.link.replies
    }

    pub(crate) fn response_bytes_max(&self) -> usize {
        self.connection.response_bytes_max()
    }

    pub(crate) fn take_reply(&mut self, bytes: usize) -> Result<ReplySlot, Status> {
        let owner = self.connection.owner;
        self.link.replies.take(&mut *self.link.adapter, bytes, owner).map_err(|error| {
            tracing::error!(%error, "no memory for replies");
            Status::Resource
        })
    }

    /// Returns the credits that the next reply aims at.
    fn target(&self, call: &Call) -> u16 {
        let limits = &self.shared.limits;
        let room = limits.credits_total_max.saturating_sub(self.link.credits);
        let agreed = |session: &Session| session.options.max_requests as u16;
        match (self.connection.phase, &self.connection.session) {
            // The reply that begins a session grants the negotiated credits.
            (Phase::Unproven | Phase::Ready, Some(session)) if is_connect(call.procedure) => {
                agreed(session)
            }
            (Phase::Ready, _) => {
                let credits = &self.connection.credits;
                let claim = credits.claim(limits, self.connection.weighed.weight);
                credits.target(&claim, room, self.link.shares.level)
            }
            _ => self.connection.credits.nreq,
        }
    }

    /// Sends an encoded reply and grants `target` credits with it (DAFS 7).
    fn send(&mut self, call: &Call, slot: ReplySlot, len: usize, target: u16) {
        if !self.settle(call, slot, len) {
            self.send_now(call, slot, len, target);
        }
    }

    /// Sends a reply that has waited since it was encoded, with the present credits.
    pub(super) fn send_settled(&mut self, call: &Call, slot: ReplySlot, len: usize) {
        let target = self.target(call);
        let field = &mut self.link.replies.bytes_mut(slot)[8..10];
        match self.connection.order {
            ByteOrder::Big => field.copy_from_slice(&target.to_be_bytes()),
            ByteOrder::Little => field.copy_from_slice(&target.to_le_bytes()),
        }
        self.send_now(call, slot, len, target);
    }

    fn send_now(&mut self, call: &Call, slot: ReplySlot, len: usize, target: u16) {
        if self.connection.checksums() && !is_connect(call.procedure) {
            seal(&mut self.link.replies.bytes_mut(slot)[..len]);
        }
        // The reply is cached even if it may get lost: the client may ask for it on another
        // connection.
        self.keep(call, slot, len);
        if self.connection.phase == Phase::Closing {
            return self.link.replies.give_back(slot);
        }
        let (posts, nreq) = self.connection.credits.step(target);
        if let Err(reason) = self.post_receives(usize::from(posts)) {
            self.link.replies.give_back(slot);
            return self.drop_session(&reason);
        }
        self.count(call);
        if let Some(chain) = call.chain {
            let is_ok = is_ok(&self.link.replies.bytes_mut(slot)[..len]);
            self.connection.chains.complete(chain, is_ok);
        }
        let connection = &mut *self.connection;
        self.link.credits += usize::from(nreq);
        self.link.credits -= usize::from(connection.credits.nreq);
        connection.credits.nreq = nreq;
        connection.credits.in_hand -= 1;
        connection.credits.check();
        connection.streams.ensure(nreq);
        connection.streams.end(call.header.stream_id);
        let segment = self.link.replies.segment(slot, len);
        let work = Tag::Reply(slot).pack();
        match self.link.adapter.post_send(connection.endpoint, work, &[segment]) {
            Ok(()) => connection.count_posted(self.now),
            Err(error) => {
                self.link.replies.give_back(slot);
                self.drop_session(&format!("a reply cannot be sent: {error}"));
            }
        }
        if self.connection.work_posted > WORK_POSTED_MAX {
            // Credits bound requests in progress, not replies that the client does not read.
            self.drop_session("the client does not read its replies");
        }
    }

    /// Caches a reply for a later request of the client (DAFS 12).
    fn keep(&mut self, call: &Call, slot: ReplySlot, len: usize) {
        let Some(replies) = self.connection.kept_replies() else { return };
        let header = &call.header;
        let bytes = match call.keep {
            Keep::Nothing => return,
            Keep::Answered => None,
            Keep::Reply => Some(&self.link.replies.bytes_mut(slot)[..len]),
        };
        replies.reply(header.stream_id, header.seq_number, header.procedure, bytes);
    }

    /// Posts receives, with more memory if needed. There is one slot more than credits, because the
    /// slot of the current request is not free yet.
    pub(super) fn post_receives(&mut self, count: usize) -> Result<(), String> {
        let connection = &mut *self.connection;
        let missing = (count + 1).saturating_sub(connection.receives.free_count());
        if missing > 0 {
            let bytes = match &connection.session {
                // Answers also arrive on a back-control channel.
                Some(session) if connection.channel == Channel::BackControl => {
                    session.options.max_request_size.max(session.options.max_response_size)
                }
                Some(session) => session.options.max_request_size,
                None => crate::limits::FIRST_MESSAGE_BYTES,
            };
            connection
                .receives
                .grow(&mut *self.link.adapter, self.link.domain, missing, bytes as usize)
                .map_err(|error| format!("no memory for receives: {error}"))?;
        }
        for _ in 0..count {
            // INVARIANT: enough slots were made above.
            let (slot, segment) = connection.receives.take().expect("slots were just added");
            let work = Tag::Receive(slot).pack();
            if self.link.adapter.post_receive(connection.endpoint, work, segment).is_err() {
                // The connection has just broken. The counts stay as if the receive had been posted
                // and flushed, because no completion will come.
                connection.receives.give_back(slot);
                return Err("the connection broke".to_owned());
            }
            connection.credits.posted += 1;
        }
        Ok(())
    }
}

/// True if a reply reports success, in either byte order (DAFS 5.3).
pub(super) fn is_ok(reply: &[u8]) -> bool {
    reply.get(28..32).is_some_and(|status| status == [0; 4])
}

/// True for the messages that begin a connection. They carry no checksum, in either direction (DAFS
/// O20).
fn is_connect(procedure: Option<Procedure>) -> bool {
    matches!(
        procedure,
        Some(Procedure::ClientConnect | Procedure::ClientConnectAuth | Procedure::ConnectBind)
    )
}
