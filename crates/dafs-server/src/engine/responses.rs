//! CHECK_RESPONSE, FETCH_RESPONSE and DISCARD_RESPONSES (DAFS 12).
//!
//! Invariants
//! * The session asked about has ended: if its connection still lives, it is ended first, and the
//!   answer waits until the work of that session has stopped.
//! * To a client that asks about a session of another one it looks as if there were no such session,
//!   and nothing happens to it.

use super::request::{Call, Context, Done};
use super::work::{Arrival, JobDone, JobResult, Work};
use dafs_service::{Client, KeptReply, NoReply, RequestKey};
use dafs_wire::dafs::{
    ByteOrder, CheckResponse, DiscardResponses, ErrorBody, FetchResponseReply, HEADER_BYTES, Reply,
    ResponseHeader, SessionId, Status,
};
use std::sync::Arc;

impl Context<'_> {
    pub(super) fn check_response(&mut self, call: &Call, args: &CheckResponse) -> Done {
        match self.ended_reply(call, args)? {
            Some(_) => self.reply(call, &Reply::CheckResponse),
            None => Ok(()),
        }
    }

    /// The body goes out as it was, in the byte order of the old session (DAFS 5.1).
    pub(super) fn fetch_response(&mut self, call: &Call, args: &CheckResponse) -> Done {
        let Some(kept) = self.ended_reply(call, args)? else { return Ok(()) };
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

    pub(super) fn discard_responses(&mut self, call: &Call, args: &DiscardResponses) -> Done {
        let client = self.asking_client()?;
        if self.await_end(call, args.session_id, &client)? {
            return Ok(());
        }
        if !self.shared.service.discard_replies(&client, args.session_id.0) {
            return Err(Status::UnknownSession);
        }
        self.reply(call, &Reply::DiscardResponses)
    }

    /// The reply that is asked for; `None` when the request waits.
    fn ended_reply(
        &mut self,
        call: &Call,
        args: &CheckResponse,
    ) -> Result<Option<KeptReply>, Status> {
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
        match self.shared.service.kept_reply(&client, &key) {
            Ok(kept) => Ok(Some(kept)),
            Err(NoReply::UnknownSession) => Err(Status::UnknownSession),
            Err(NoReply::NotExecuted) => Err(Status::NoXidMatch),
        }
    }

    /// Who asks. No credential is needed (DAFS 12).
    fn asking_client(&self) -> Result<Arc<Client>, Status> {
        let client = self.connection.client().ok_or(Status::NotAuthenticated)?;
        if client.is_gone() { Err(Status::StaleClientId) } else { Ok(client.clone()) }
    }

    /// Ends a session of this client that is still in use; true when the request waits for that.
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
