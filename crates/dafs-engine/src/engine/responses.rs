//! CHECK_RESPONSE, FETCH_RESPONSE and DISCARD_RESPONSES (DAFS 12).
//!
//! Invariants
//! * The session in question has ended. If its connection still lives, the session is ended first,
//!   and the answer waits until its work has stopped.
//! * To a client that asks about another client's session it seems that there is none, and the
//!   session is not affected.

use super::request::{Call, Context, Done};
use super::work::{Arrival, JobDone, JobResult, Work};
use crate::limits::SMALL_REPLY_BYTES;
use dafs_service::{Client, Kept, NoReply, RequestKey};
use dafs_wire::dafs::{
    ByteOrder, CheckResponse, DiscardResponses, ErrorBody, FetchResponseReply, HEADER_BYTES, Reply,
    ResponseHeader, SessionId, Status, encode_response,
};
use std::sync::Arc;

impl Context<'_> {
    pub(super) fn check_response(&mut self, call: &Call, args: &CheckResponse) -> Done {
        match self.ended_reply(call, args)? {
            Some(_) => self.reply(call, &Reply::CheckResponse),
            None => Ok(()),
        }
    }

    /// Sends the cached body unchanged, in the byte order of the old session (DAFS 5.1).
    pub(super) fn fetch_response(&mut self, call: &Call, args: &CheckResponse) -> Done {
        let kept = match self.ended_reply(call, args)? {
            Some(Kept::Reply(kept)) => kept,
            Some(Kept::Happened(effect)) => {
                let reply = self.reply_effect(args.procedure, &effect)?;
                let order = self.connection.order;
                return self.fetch_made(call, order, &reply);
            }
            Some(Kept::Failed) => {
                let body = ErrorBody::FetchResponse(FetchResponseReply { body: &[] });
                self.fail_with(call, Status::Io, &body);
                return Ok(());
            }
            None => return Ok(()),
        };
        if kept.bytes.len() > self.connection.response_bytes_max() {
            return Err(Status::TooSmall);
        }
        let order = if kept.little_endian { ByteOrder::Little } else { ByteOrder::Big };
        let header = ResponseHeader::decode(&kept.bytes, order).map_err(|error| {
            tracing::error!(%error, "a kept reply cannot be read");
            Status::ServerFault
        })?;
        let body = FetchResponseReply { body: kept.bytes.get(HEADER_BYTES..).unwrap_or(&[]) };
        if header.status.is_ok() {
            return self.reply(call, &Reply::FetchResponse(body));
        }
        self.fail_with(call, header.status, &ErrorBody::FetchResponse(body));
        Ok(())
    }

    /// Sends the body of a newly built reply as if it had been cached. The client has not restarted
    /// since, so it has the byte order of its old session.
    fn fetch_made(&mut self, call: &Call, order: ByteOrder, reply: &Reply<'_>) -> Done {
        let mut message = [0; SMALL_REPLY_BYTES];
        let header = ResponseHeader::answering(&call.header, 0);
        let len = encode_response(&mut message, order, &header, reply);
        let body = len.ok().and_then(|len| message.get(HEADER_BYTES..len));
        let body = FetchResponseReply { body: body.ok_or(Status::ServerFault)? };
        self.reply(call, &Reply::FetchResponse(body))
    }

    pub(super) fn discard_responses(&mut self, call: &Call, args: &DiscardResponses) -> Done {
        let client = self.asking_client()?;
        if self.await_end(call, args.session_id, &client)? {
            return Ok(());
        }
        if !self.shared.service.replies.discard(&client, args.session_id.0) {
            return Err(Status::UnknownSession);
        }
        self.reply(call, &Reply::DiscardResponses)
    }

    /// Returns the requested reply. `None` when the request waits.
    fn ended_reply(&mut self, call: &Call, args: &CheckResponse) -> Result<Option<Kept>, Status> {
        let client = self.asking_client()?;
        if self.await_end(call, args.session_id, &client)? {
            return Ok(None);
        }
        let key = RequestKey {
            session: args.session_id.0,
            stream: args.stream_id,
            sequence: args.seq_number,
            procedure: args.procedure as u32,
        };
        match self.shared.service.replies.find(&client, &key) {
            Ok(kept) => Ok(Some(kept)),
            Err(NoReply::UnknownSession) => Err(Status::UnknownSession),
            Err(NoReply::NotExecuted) => Err(Status::NoXidMatch),
        }
    }

    /// Returns the client of the request. No credential is needed (DAFS 12).
    fn asking_client(&self) -> Result<Arc<Client>, Status> {
        let client = self.connection.client().ok_or(Status::NotAuthenticated)?;
        if client.is_gone() { Err(Status::StaleClientId) } else { Ok(client.clone()) }
    }

    /// Ends a session of this client that is still in use. Returns true when the request waits for
    /// that.
    fn await_end(&mut self, call: &Call, id: SessionId, client: &Client) -> Result<bool, Status> {
        if self.connection.session.as_ref().is_some_and(|own| own.id == id) {
            // It would wait for its own end.
            return Err(Status::Inval);
        }
        if !self.shared.registry.is_live(id, client) {
            return Ok(false);
        }
        let pending = self.defer(call, Work::Again);
        let inbox = self.inbox.clone();
        let over = move || {
            let result = JobResult::Unit(Ok(()));
            inbox.push(JobDone(Arrival::Result { pending, result }));
        };
        self.shared.registry.end_session(id, client, Box::new(over));
        Ok(true)
    }
}
