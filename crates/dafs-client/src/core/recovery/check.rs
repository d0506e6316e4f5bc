//! CHECK_RESPONSE and FETCH_RESPONSE: the fate of unanswered requests (DAFS 12).

use super::super::call::{Done, Purpose, ReplyMessage, Task};
use super::super::repeat::{Repeat, repeat};
use super::{Failure, SessionCore, Step, Verdict, in_step};
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{CheckResponse, DiscardResponses, HEADER_BYTES, Request, Status};

impl SessionCore {
    /// Asks about as many requests as there are credits for; true when the fate of all is known.
    pub(super) fn check_some(&mut self, adapter: &mut dyn Adapter, now: Instant) -> bool {
        self.ask_some(adapter, now, Step::Check, Verdict::Open, Verdict::Asked)
    }

    /// Fetches as many replies as there are credits for; true when all are here.
    pub(super) fn fetch_some(&mut self, adapter: &mut dyn Adapter, now: Instant) -> bool {
        self.ask_some(adapter, now, Step::Fetch, Verdict::Executed, Verdict::Fetching)
    }

    fn ask_some(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        step: Step,
        before: Verdict,
        after: Verdict,
    ) -> bool {
        while let Some(recovery) = in_step(&mut self.recovery, step) {
            let Some(index) = recovery.doubts.iter().position(|doubt| doubt.verdict == before)
            else {
                return !recovery.doubts.iter().any(|doubt| doubt.verdict == after);
            };
            if !self.conn.has_room() {
                return false;
            }
            let doubt = &mut recovery.doubts[index];
            // The loss of the connection resets it.
            doubt.verdict = after;
            let question = CheckResponse {
                session_id: doubt.sent.session,
                stream_id: doubt.sent.transaction.stream,
                seq_number: doubt.sent.transaction.sequence,
                procedure: doubt.sent.procedure,
            };
            let (purpose, request) = match before {
                Verdict::Open => (Purpose::Check(index), Request::CheckResponse(question)),
                _ => (Purpose::Fetch(index), Request::FetchResponse(question)),
            };
            self.send_own(adapter, now, purpose, &request);
        }
        false
    }

    /// Tells the server to forget the old session (DISCARD_RESPONSES); true when that was sent.
    pub(super) fn discard_some(&mut self, adapter: &mut dyn Adapter, now: Instant) -> bool {
        while let Some(recovery) = in_step(&mut self.recovery, Step::Discard) {
            if recovery.discarded {
                return true;
            }
            if !self.conn.has_room() {
                return false;
            }
            let session_id = recovery.discard;
            recovery.discarded = true;
            let request = Request::DiscardResponses(DiscardResponses { session_id });
            // The answer does not matter: the server forgets the replies in time by itself.
            self.send_own(adapter, now, Purpose::Discard, &request);
        }
        false
    }

    /// Processes the answer to a CHECK_RESPONSE.
    pub(in crate::core) fn on_checked(&mut self, index: usize, status: Status) {
        let (now, order) = (self.now, self.order);
        let Some(recovery) = &mut self.recovery else { return };
        let Some(doubt) = recovery.doubts.get_mut(index) else { return };
        if doubt.verdict != Verdict::Asked {
            // It timed out while the answer was on the way.
            return;
        }
        match status {
            Status::Ok => doubt.verdict = Verdict::Executed,
            Status::NoXidMatch => {
                doubt.verdict = Verdict::Again;
                doubt.call.maybe_done = false;
            }
            Status::Delay | Status::Grace => {
                doubt.verdict = Verdict::Open;
                recovery.retry_later(now);
            }
            // UNKNOWN_SESSION, or a server without a replay cache.
            _ => {
                let procedure = doubt.sent.procedure;
                if repeat(&doubt.call.task, procedure, order) == Repeat::Once {
                    doubt.verdict = Verdict::Over;
                    let tag = doubt.call.tag;
                    self.finish(Purpose::Caller(tag), Done::InDoubt(procedure));
                } else {
                    doubt.verdict = Verdict::Again;
                }
            }
        }
    }

    /// Processes the answer to a FETCH_RESPONSE: the original status and body.
    pub(in crate::core) fn on_fetched(
        &mut self,
        index: usize,
        reply: &ReplyMessage,
    ) -> Result<(), Failure> {
        let Some(recovery) = &mut self.recovery else { return Ok(()) };
        let Some(doubt) = recovery.doubts.get_mut(index) else { return Ok(()) };
        if doubt.verdict != Verdict::Fetching {
            return Ok(());
        }
        let (tag, procedure) = (doubt.call.tag, doubt.sent.procedure);
        if is_without_reply(reply.status) {
            // It was executed, but its reply is not available: the reply, or the client's record,
            // went away between the two questions, or the reply does not fit this connection. The
            // status is that of the question, and not a failure of the request.
            doubt.verdict = Verdict::Asked;
            self.on_checked(index, Status::UnknownSession);
            return Ok(());
        }
        doubt.verdict = Verdict::Over;
        let done = match &doubt.call.task {
            Task::Message { bytes, .. } => {
                let mut reply = ReplyMessage { procedure, ..reply.clone() };
                let (bytes, server) = (bytes.clone(), recovery.client_id);
                if self.notes_now(Purpose::Caller(tag), procedure) {
                    self.take_note(&bytes, &mut reply, server);
                }
                Done::Answered(reply)
            }
            _ if !reply.status.is_ok() => Done::Refused { procedure, status: reply.status },
            Task::Write(call) => {
                let call = call.clone();
                let body = reply.bytes.get(HEADER_BYTES..).unwrap_or_default();
                match self.take_write(procedure, body, &call) {
                    Ok(done) => done,
                    Err(failure) => {
                        self.finish(Purpose::Caller(tag), Done::Lost(failure.clone()));
                        return Err(failure);
                    }
                }
            }
            // INVARIANT: reads are never checked.
            Task::Read(_) => Done::InDoubt(procedure),
        };
        self.finish(Purpose::Caller(tag), done);
        Ok(())
    }
}

/// True when the status is the server's answer to FETCH_RESPONSE itself: no request that changes
/// state is answered like this.
fn is_without_reply(status: Status) -> bool {
    matches!(
        status,
        Status::NoXidMatch
            | Status::UnknownSession
            | Status::StaleClientId
            | Status::NotAuthenticated
            | Status::TooSmall
    )
}
