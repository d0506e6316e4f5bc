//! CHECK_RESPONSE and FETCH_RESPONSE: the fate of unanswered requests (DAFS 12).

use super::super::call::{Done, Purpose, ReplyMessage, Task};
use super::super::repeat::{Repeat, repeat};
use super::{Calls, Failure, Link, Recovery, Step, Verdict};
use dafs_wire::dafs::{CheckResponse, DiscardResponses, HEADER_BYTES, Request, Status};

impl Recovery {
    /// The next question of this step, if there is one and there is room for it.
    pub(super) fn question(&mut self, room: bool) -> Option<(Purpose, Request<'static>)> {
        // The loss of the connection resets what is noted here.
        let (before, after) = match self.step {
            Step::Check => (Verdict::Open, Verdict::Asked),
            Step::Fetch => (Verdict::Executed, Verdict::Fetching),
            _ => {
                // DISCARD_RESPONSES tells the server to forget the old session. The answer does not
                // matter: the server forgets the replies in time by itself.
                let session_id = self.discard;
                let request = Request::DiscardResponses(DiscardResponses { session_id });
                let is_due = room && !self.discarded;
                self.discarded |= is_due;
                return is_due.then_some((Purpose::Discard, request));
            }
        };
        let index = self.doubts.iter().position(|doubt| doubt.verdict == before);
        let index = index.filter(|_| room)?;
        let doubt = &mut self.doubts[index];
        doubt.verdict = after;
        let question = CheckResponse {
            session_id: doubt.sent.session,
            stream_id: doubt.sent.transaction.stream,
            seq_number: doubt.sent.transaction.sequence,
            procedure: doubt.sent.procedure,
        };
        Some(match before {
            Verdict::Open => (Purpose::Check(index), Request::CheckResponse(question)),
            _ => (Purpose::Fetch(index), Request::FetchResponse(question)),
        })
    }

    /// True when no question of this step is left, nor unanswered.
    pub(super) fn is_answered(&self) -> bool {
        let open: &[Verdict] = match self.step {
            Step::Check => &[Verdict::Open, Verdict::Asked],
            Step::Fetch => &[Verdict::Executed, Verdict::Fetching],
            _ => return self.discarded,
        };
        !self.doubts.iter().any(|doubt| open.contains(&doubt.verdict))
    }

    /// Processes the answer to one of the questions of recovery.
    pub(in crate::core) fn on_answer(
        &mut self,
        link: &mut Link,
        calls: &mut Calls,
        purpose: Purpose,
        reply: &ReplyMessage,
    ) -> Result<(), Failure> {
        match purpose {
            Purpose::Check(index) => self.on_checked(link, calls, index, reply.status),
            Purpose::Fetch(index) => self.on_fetched(link, calls, index, reply)?,
            Purpose::Reclaim(number) => self.on_reclaimed(link, calls, number, reply),
            _ => {}
        }
        Ok(())
    }

    /// Processes the answer to a CHECK_RESPONSE.
    fn on_checked(&mut self, link: &Link, calls: &mut Calls, index: usize, status: Status) {
        let Some(doubt) = self.doubts.get_mut(index) else { return };
        if doubt.verdict != Verdict::Asked {
            // It timed out while the answer was on the way.
            return;
        }
        match status {
            Status::Ok => doubt.verdict = Verdict::Executed,
            Status::NoXidMatch => {
                doubt.verdict = Verdict::Again;
                doubt.call.maybe_done = doubt.maybe_done_before;
            }
            Status::Delay | Status::Grace => {
                doubt.verdict = Verdict::Open;
                self.retry_later(link.now);
            }
            // UNKNOWN_SESSION, or a server without a replay cache.
            _ => {
                let procedure = doubt.sent.procedure;
                if repeat(&doubt.call.task, procedure, link.order) == Repeat::Once {
                    doubt.verdict = Verdict::Over;
                    let tag = doubt.call.tag;
                    calls.finish(link, Purpose::Caller(tag), Done::InDoubt(procedure));
                } else {
                    doubt.verdict = Verdict::Again;
                }
            }
        }
    }

    /// Processes the answer to a FETCH_RESPONSE: the original status and body.
    fn on_fetched(
        &mut self,
        link: &mut Link,
        calls: &mut Calls,
        index: usize,
        reply: &ReplyMessage,
    ) -> Result<(), Failure> {
        let Some(doubt) = self.doubts.get_mut(index) else { return Ok(()) };
        if doubt.verdict != Verdict::Fetching {
            return Ok(());
        }
        let (tag, procedure) = (doubt.call.tag, doubt.sent.procedure);
        let user = doubt.call.user.as_ref();
        if is_without_reply(reply.status) {
            // It was executed, but its reply is not available: the reply, or the client's record,
            // went away between the two questions, or the reply does not fit this connection. The
            // status is that of the question, and not a failure of the request.
            doubt.verdict = Verdict::Asked;
            self.on_checked(link, calls, index, Status::UnknownSession);
            return Ok(());
        }
        doubt.verdict = Verdict::Over;
        let done = match &doubt.call.task {
            Task::Message { bytes, .. } => {
                let mut reply = ReplyMessage { procedure, ..reply.clone() };
                if calls.notes_now(Purpose::Caller(tag), procedure) {
                    calls.take_note(link, bytes, &mut reply, self.client_id, user);
                }
                Done::Answered(reply)
            }
            _ if !reply.status.is_ok() => Done::Refused { procedure, status: reply.status },
            Task::Write(call) => {
                let body = reply.bytes.get(HEADER_BYTES..).unwrap_or_default();
                match link.take_write(procedure, body, call) {
                    Ok(done) => done,
                    Err(failure) => {
                        let done = Done::Lost(failure.clone());
                        calls.finish(link, Purpose::Caller(tag), done);
                        return Err(failure);
                    }
                }
            }
            // INVARIANT: reads are never checked.
            Task::Read(_) => Done::InDoubt(procedure),
        };
        calls.finish(link, Purpose::Caller(tag), done);
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
