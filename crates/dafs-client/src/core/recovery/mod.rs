//! Recovery: from a lost connection to the next one, without the application (DAFS 12).
//!
//! ```text
//!           connection lost                 connected        proved who we are
//! Ready ------------------> Pause ----> Dial ------> Open ------------------> Check
//!   ^                         ^  any loss on the way   |                        |
//!   |                         +------------------------+------ ... ------+    Fetch
//!   |                                                                    |      |
//!   +----- Anew <---- Opens <---- Server (it has restarted) <------------+-- Discard
//! ```
//!
//! Invariants
//! * An unanswered request that changes state is sent again only if the server has answered that it
//!   was not executed, or if it is idempotent ([`repeat`](super::repeat)).
//! * Calls are sent again in the order in which they were sent first, and before all queued calls.
//! * Each other call ends by its own deadline, whatever recovery is doing; all calls end when
//!   recovery times out.
//! * Memory that a lost connection could reach is withdrawn before the loss is reported. Memory
//!   that the server may have mapped stays lent: its call neither ends, by its deadline or
//!   otherwise, nor is sent again before the server has confirmed the end of the old session.
//! * An answer that breaks the rules ends the session, so recovery does not loop for ever.

mod check;
mod complete;
mod reclaim;

use self::reclaim::Reclaim;
use super::call::{Call, Done, Flight, Purpose, Sent, Task};
use super::calls::Calls;
use super::chain::Chains;
use super::failure::Failure;
use super::link::{Link, new_connection};
use super::orphans::{Orphan, lends_memory, orphan_of};
use super::repeat::{Repeat, repeat};
use super::session::{SessionCore, Stage};
use super::streams::Transaction;
use super::timers::unless_silent;
use crate::limits::{
    RECONNECT_PAUSE_FRACTION, RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, RECOVERY_ANSWER_TIME,
    RECOVERY_RETRY_PAUSE,
};
use dafs_dat::{Adapter, Address, Instant};
use dafs_mem::Inaccessible;
use dafs_wire::dafs::{ByteOrder, ClientId, Procedure, SessionId};
use std::time::Duration;

/// The steps of recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// No attempt before this time.
    Pause(Instant),
    /// The connection is being made and the session opened, up to the proof of identity.
    Open,
    /// CHECK_RESPONSE: the server is asked which requests it has executed.
    Check,
    /// FETCH_RESPONSE: the replies to those are fetched.
    Fetch,
    /// DISCARD_RESPONSES: the server is told to forget them.
    Discard,
    /// If the server has restarted, all earlier questions must be answered first.
    Compare,
    /// It has restarted: credential, root and limits are asked for again, one by one.
    Server,
    /// The opens are reclaimed, and with each its locks.
    Opens,
    /// The server is told that all was reclaimed. Opens that could not be, and that conflict with no
    /// other, are opened anew.
    Anew,
}

/// The fate of an unanswered request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Not known.
    Open,
    /// The server has been asked.
    Asked,
    /// It was executed; the reply has to be fetched.
    Executed,
    /// The reply has been asked for.
    Fetching,
    /// It has to be sent again.
    Again,
    /// The call is over.
    Over,
}

/// A request that was sent and not answered.
#[derive(Debug)]
struct Doubt {
    call: Call,
    sent: Sent,
    verdict: Verdict,
    /// Its call has completed; only its effect at the server matters.
    orphan: bool,
    /// The server may still move its data, for the old session.
    is_lent: bool,
    /// A sending before this one may have been carried out.
    maybe_done_before: bool,
}

impl Doubt {
    /// The doubt about an unanswered request.
    fn new(link: &Link, calls: &mut Calls, (stream, flight): (u16, Flight)) -> Option<Self> {
        let Purpose::Caller(tag) = flight.purpose else { return None };
        let sent = Sent {
            session: link.info.session_id,
            transaction: Transaction { stream, sequence: flight.sequence },
            procedure: flight.procedure,
        };
        let due = match flight.is_slow() {
            true => unless_silent(flight.deadline, link.answered_at),
            false => flight.deadline,
        };
        let is_lent = lends_memory(&flight.work);
        let saved = calls.chains.is_saved(tag);
        let (user, renewed) = (flight.user, flight.renewed);
        let task = calls.chains.task(tag).unwrap_or_else(|| flight.work.into_task());
        let orphan = match calls.orphans.of(tag) {
            None => false,
            // It completes with the others of its chain.
            Some(_) if calls.chains.holds(tag) => false,
            Some(Orphan::Nothing) => {
                calls.orphans.forget(tag);
                return None;
            }
            Some(Orphan::Open | Orphan::Lock(_)) => true,
        };
        let kind = repeat(&task, sent.procedure, link.order);
        let maybe_done_before = flight.maybe_done;
        // A batch that also reads is repeated freely, but its writes may have been done.
        let is_change = kind != Repeat::Free || sent.procedure == Procedure::BatchSubmit;
        let maybe_done = is_change || maybe_done_before;
        let call = Call { tag, due, task, maybe_done, user, renewed };
        let verdict = match kind {
            Repeat::Free if saved => Verdict::Open,
            Repeat::Free => Verdict::Again,
            Repeat::Same | Repeat::Once => Verdict::Open,
        };
        Some(Self { call, sent, verdict, orphan, is_lent, maybe_done_before })
    }

    fn is_awaited(&self) -> bool {
        self.verdict != Verdict::Over && !self.orphan
    }

    /// Its caller has timed out. A request without a lasting effect is over.
    fn let_go(&mut self, order: ByteOrder) -> Orphan {
        let orphan = match &self.call.task {
            Task::Message { bytes, .. } => orphan_of(bytes, order),
            Task::Read(_) | Task::Write(_) => Orphan::Nothing,
        };
        match orphan {
            Orphan::Nothing => self.verdict = Verdict::Over,
            Orphan::Open | Orphan::Lock(_) => self.orphan = true,
        }
        orphan
    }
}

/// The state of recovery.
#[derive(Debug)]
pub(crate) struct Recovery {
    step: Step,
    /// The reason why the last connection, or the last attempt, ended.
    failure: Failure,
    /// The timeout of recovery.
    until: Instant,
    /// The start of the last connection attempt.
    attempt: Instant,
    /// Attempts that have failed over this transport. A connection that was lost before any call was
    /// answered counts as one.
    failed_attempts: u32,
    /// No question before this: the server has answered DELAY.
    retry_at: Option<Instant>,
    /// The server's id of this client when the session was last in order.
    client_id: ClientId,
    doubts: Vec<Doubt>,
    reclaim: Reclaim,
    /// The old session, whose replies the server may forget.
    discard: SessionId,
    /// The server was told so on this connection.
    discarded: bool,
}

impl Recovery {
    /// The calls that are not over.
    pub(crate) fn into_calls(self) -> impl Iterator<Item = Call> {
        let doubts = self.doubts.into_iter();
        doubts.filter(Doubt::is_awaited).map(|doubt| doubt.call)
    }

    /// Cancels one of the calls; false when there is none of this tag, it is over, or its memory is
    /// lent.
    pub(crate) fn give_up(&mut self, tag: u64) -> bool {
        let mut doubts = self.doubts.iter_mut();
        let doubt = doubts.find(|doubt| doubt.call.tag == tag && doubt.is_awaited());
        doubt.filter(|doubt| !doubt.is_lent).map(|doubt| doubt.verdict = Verdict::Over).is_some()
    }

    fn has_calls(&self) -> bool {
        self.doubts.iter().any(Doubt::is_awaited)
    }

    /// Resets questions whose connection is gone, so that they are asked again. That a request was
    /// executed is asked again, too: a refusal counts as executed, and no restart of the server keeps
    /// the reply.
    fn forget_questions(&mut self) {
        self.discarded = false;
        for doubt in &mut self.doubts {
            doubt.verdict = match doubt.verdict {
                Verdict::Asked | Verdict::Executed | Verdict::Fetching => Verdict::Open,
                known @ (Verdict::Open | Verdict::Again | Verdict::Over) => known,
            };
        }
    }

    /// Ends the calls that have timed out, which cannot be answered now.
    fn expire_calls(&mut self, link: &mut Link, calls: &mut Calls) {
        let (now, order) = (link.now, link.order);
        let overdue = |call: &Call| call.due.filter(|(at, _)| *at <= now).map(|(_, after)| after);
        let (mut over, mut orphans) = (Vec::new(), Vec::new());
        let free = |doubt: &&mut Doubt| doubt.is_awaited() && !doubt.is_lent;
        for doubt in self.doubts.iter_mut().filter(free) {
            let Some(after) = overdue(&doubt.call) else { continue };
            let tag = doubt.call.tag;
            // Members of chains complete together, and only when the fate of each is known.
            let orphan = match calls.chains.holds(tag) {
                true => Orphan::Nothing,
                false => doubt.let_go(order),
            };
            match orphan {
                Orphan::Nothing => {
                    doubt.verdict = Verdict::Over;
                    over.push((tag, Failure::Deadline(after)));
                }
                orphan => orphans.push((tag, orphan, after)),
            }
        }
        calls.waiting.retain(|call| match overdue(call) {
            Some(after) => {
                over.push((call.tag, super::orphans::overdue(call, after)));
                false
            }
            None => true,
        });
        for (tag, failure) in over {
            calls.finish(link, Purpose::Caller(tag), Done::Lost(failure));
        }
        for (tag, orphan, after) in orphans {
            calls.let_go(tag, orphan, after);
        }
        let open = self.doubts.iter().filter(|doubt| doubt.is_awaited() && !doubt.is_lent);
        let open = open.map(|doubt| &doubt.call).chain(&calls.waiting);
        link.first_deadline = open.filter_map(|call| call.due).map(|(at, _)| at).min();
    }

    /// The caller of a call with lent memory has timed out; the call ends when the server has
    /// released the memory. False if there is no such call.
    pub(super) fn lent_is_overdue(&mut self, tag: u64, due: (Instant, Duration)) -> bool {
        let mut lent = self.doubts.iter_mut().filter(|doubt| doubt.is_lent && doubt.is_awaited());
        let doubt = lent.find(|doubt| doubt.call.tag == tag);
        doubt.map(|doubt| doubt.call.due = Some(due)).is_some()
    }

    /// The caller of a request has timed out; `None` if there is no such request.
    pub(super) fn let_go(&mut self, tag: u64, chains: &Chains, order: ByteOrder) -> Option<Orphan> {
        let mut doubts = self.doubts.iter_mut();
        let doubt = doubts.find(|doubt| doubt.call.tag == tag && doubt.is_awaited())?;
        (!chains.holds(tag)).then(|| doubt.let_go(order))
    }

    /// The time at which recovery has work, unless an event comes first.
    pub(super) fn timeout(&self, last_reply: Instant) -> Option<Instant> {
        let step = match self.step {
            Step::Pause(until) => until,
            _ => self.answer_due(last_reply),
        };
        self.retry_at.into_iter().chain([step, self.until]).min()
    }

    /// The timeout of an attempt to connect, or of a server that has stopped answering.
    fn answer_due(&self, last_reply: Instant) -> Instant {
        let rest = self.retry_at.unwrap_or(self.attempt);
        self.attempt.max(last_reply).max(rest) + RECOVERY_ANSWER_TIME
    }

    fn retry_later(&mut self, now: Instant) {
        self.retry_at = Some(now + RECOVERY_RETRY_PAUSE);
    }
}

/// The recovery while it is at `step`. Each message may find the connection gone, which takes
/// recovery back to its beginning; then there are no more questions to ask.
fn in_step(recovery: &mut Option<Box<Recovery>>, step: Step) -> Option<&mut Recovery> {
    recovery.as_deref_mut().filter(|recovery| recovery.step == step)
}

/// The pause before an attempt to connect, if the first connection of the current row of failures
/// was lost at `lost_at`.
fn pause(lost_at: Option<Instant>, now: Instant) -> Duration {
    lost_at.map_or(Duration::ZERO, |at| {
        (now.since(at) / RECONNECT_PAUSE_FRACTION).clamp(RECONNECT_PAUSE_MIN, RECONNECT_PAUSE_MAX)
    })
}

impl SessionCore {
    /// The connection has failed: recovers if that was asked for and may help, else ends the
    /// session.
    pub(crate) fn fail(&mut self, adapter: &mut dyn Adapter, failure: Failure) {
        let wanted = match self.stage {
            Stage::Ready | Stage::Recovering => true,
            Stage::Closing => !self.has_no_calls(),
            Stage::Connecting | Stage::Opening | Stage::Over => false,
        };
        match self.link.config.recovery {
            Some(limit) if wanted && failure.is_passing() => {
                self.break_off(adapter, failure, limit);
            }
            _ => self.end(adapter, failure),
        }
    }

    /// True when there is no call of the application.
    pub(crate) fn has_no_calls(&self) -> bool {
        let mut flights = self.link.conn.flights.iter().flatten();
        self.calls.waiting.is_empty()
            && self.calls.delayed.is_empty()
            && self.back.batches.is_idle()
            && self.optimistic.reads_under_way() == 0
            && !flights.any(|flight| matches!(flight.purpose, Purpose::Caller(_)))
            && !self.recovery.as_ref().is_some_and(|recovery| recovery.has_calls())
    }

    fn break_off(&mut self, adapter: &mut dyn Adapter, failure: Failure, limit: Duration) {
        let now = self.link.now;
        self.back.cut(&self.link, &mut self.calls.delegations, adapter);
        self.cut_optimistic(adapter);
        self.calls.orphans.forget_questions();
        let lost = self.link.conn.cut(adapter);
        self.link.users.forget_all();
        if self.link.conn.established {
            self.memories.withdraw(adapter);
            self.link.conn.release(adapter);
            self.link.conn = new_connection(adapter, &self.link.config);
        }
        if let Some(recovery) = &mut self.recovery {
            tracing::debug!(%failure, step = ?recovery.step, "recovery begins again");
            recovery.forget_questions();
            recovery.failed_attempts = recovery.failed_attempts.saturating_add(1);
            recovery.step = Step::Pause(now + pause(self.lost_at, now));
            recovery.retry_at = None;
            recovery.failure = failure;
            debug_assert!(lost.iter().all(|(_, flight)| !flight.is_callers()));
        } else {
            tracing::info!(%failure, unanswered = lost.len(), "connection lost, making another");
            let pause = pause(self.lost_at, now);
            let failed_attempts = u32::from(self.lost_at.is_some());
            let first = *self.lost_at.get_or_insert(now);
            let answered_at = self.link.answered_at;
            let waiting = self.calls.waiting.iter_mut();
            waiting.for_each(|call| call.due = unless_silent(call.due, answered_at));
            let (link, calls) = (&self.link, &mut self.calls);
            let doubts =
                lost.into_iter().filter_map(|lost| Doubt::new(link, calls, lost)).collect();
            self.recovery = Some(Box::new(Recovery {
                step: Step::Pause(now + pause),
                failure,
                until: first + limit,
                attempt: now,
                failed_attempts,
                retry_at: None,
                client_id: self.link.info.client_id,
                doubts,
                reclaim: Reclaim::default(),
                discard: self.link.info.session_id,
                discarded: false,
            }));
            self.link.stats.recoveries += 1;
        }
        self.calls.queue_delayed();
        self.stage = Stage::Recovering;
        self.expire_calls(adapter);
    }

    /// True between two attempts to connect, when the server has been away for so long and an attempt
    /// over this transport has failed.
    pub(crate) fn is_stuck(&self, now: Instant, patience: Duration) -> bool {
        let failed = self.recovery.as_ref().is_some_and(|recovery| {
            recovery.failed_attempts > 0 && matches!(recovery.step, Step::Pause(_))
        });
        failed && self.lost_at.is_some_and(|at| now.since(at) >= patience)
    }

    /// Makes the next attempt to connect over another transport of the same server. Called between
    /// two attempts, with the adapter so far and the next one.
    pub(crate) fn change_transport(
        &mut self,
        old: &mut dyn Adapter,
        new: &mut dyn Adapter,
        address: Address,
    ) {
        debug_assert!(self.link.conn.endpoint.is_none(), "there is a connection");
        self.memories.change_sides(old);
        self.link.conn.release(old);
        self.link.conn = new_connection(new, &self.link.config);
        self.link.address = address;
        if let Some(recovery) = &mut self.recovery {
            recovery.failed_attempts = 0;
        }
    }

    /// Ends the calls that have timed out, which cannot be answered now.
    fn expire_calls(&mut self, adapter: &mut dyn Adapter) {
        if let Some(recovery) = &mut self.recovery {
            recovery.expire_calls(&mut self.link, &mut self.calls);
            if self.closing && self.has_no_calls() {
                self.end(adapter, Failure::Closed);
            }
        }
    }

    /// Does the work that is due.
    pub(crate) fn recovery_on_time(&mut self, adapter: &mut dyn Adapter) {
        let now = self.link.now;
        if self.link.first_deadline.is_some_and(|at| at <= now) {
            self.expire_calls(adapter);
        }
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.until <= now {
            let failure = recovery.failure.clone();
            return self.end(adapter, failure);
        }
        match recovery.step {
            Step::Pause(until) if until <= now => {
                recovery.step = Step::Open;
                recovery.attempt = now;
                if let Err(error) = self.link.dial(adapter) {
                    self.fail(adapter, Failure::lost(error));
                }
            }
            Step::Pause(_) => {}
            _ => {
                if recovery.retry_at.is_some_and(|at| at <= now) {
                    recovery.retry_at = None;
                    self.advance(adapter);
                    self.pump(adapter);
                }
                if let Some(recovery) = &self.recovery
                    && !matches!(recovery.step, Step::Pause(_))
                    && recovery.answer_due(self.link.last_reply) <= now
                {
                    self.fail(adapter, Failure::Deadline(RECOVERY_ANSWER_TIME));
                }
            }
        }
    }

    /// Goes on with a step: the server has authenticated the client again, or credential, root and
    /// limits of a restarted server are known.
    pub(crate) fn enter_step(&mut self, adapter: &mut dyn Adapter, step: Step) {
        if let Some(recovery) = &mut self.recovery {
            recovery.step = step;
            if step == Step::Opens {
                recovery.begin_opens(&self.link, &self.calls);
            }
        }
        self.advance(adapter);
    }

    /// Sends the questions that can be asked now, step by step.
    pub(crate) fn advance(&mut self, adapter: &mut dyn Adapter) {
        while let Some(recovery) = self.recovery.as_deref().filter(|it| it.retry_at.is_none()) {
            let step = recovery.step;
            let lent = recovery.doubts.iter().any(|doubt| doubt.is_lent);
            let lends = lent || self.back.batches.has_lent();
            let has_restarted = recovery.client_id != self.link.info.client_id;
            let next = match step {
                Step::Pause(_) | Step::Open | Step::Server => return,
                Step::Check if self.ask_some(adapter, step) => Step::Fetch,
                Step::Fetch if self.ask_some(adapter, step) => Step::Discard,
                Step::Discard if self.ask_some(adapter, step) => Step::Compare,
                // The answer to DISCARD_RESPONSES comes when the old session is over: the server
                // has confirmed that all work for it has ended.
                Step::Compare if lends && self.link.conn.streams.outstanding() == 0 => {
                    let doubts = self.recovery.iter_mut().flat_map(|recovery| &mut recovery.doubts);
                    doubts.for_each(|doubt| doubt.is_lent = false);
                    self.back.batches.settle();
                    if lent {
                        self.expire_calls(adapter);
                    }
                    continue;
                }
                Step::Compare if lends => return,
                Step::Compare if !has_restarted => return self.finish_recovery(),
                Step::Compare if self.link.conn.streams.outstanding() == 0 => Step::Server,
                Step::Opens if self.reclaim_some(adapter, step) => Step::Anew,
                Step::Anew if self.reclaim_some(adapter, step) => {
                    return self.finish_recovery();
                }
                Step::Check | Step::Fetch | Step::Discard => return,
                Step::Compare | Step::Opens | Step::Anew => return,
            };
            let Some(recovery) = &mut self.recovery else { return };
            recovery.step = next;
            if next == Step::Server {
                self.link.stats.restarts += 1;
                self.meet_server(adapter);
            } else if next == Step::Anew {
                self.reclaims_are_over(adapter);
            }
        }
    }

    /// Asks as many questions of a step as there are credits for; true when all are answered.
    fn ask_some(&mut self, adapter: &mut dyn Adapter, step: Step) -> bool {
        while let Some(recovery) = in_step(&mut self.recovery, step) {
            let Some((purpose, request)) = recovery.question(self.link.conn.has_room()) else {
                return recovery.is_answered();
            };
            self.send_own(adapter, purpose, &request);
        }
        false
    }

    /// Ends recovery: calls that were not done are sent again, then queued ones.
    fn finish_recovery(&mut self) {
        let Some(recovery) = self.recovery.take() else { return };
        // The server has not done these, and they have no caller any more.
        for doubt in recovery.doubts.iter().filter(|doubt| doubt.orphan) {
            self.calls.orphans.forget(doubt.call.tag);
        }
        // A call that sends unmapped memory would cost each connection, and there may be more of
        // them in the queue.
        let (mut gone, again): (Vec<Call>, Vec<Call>) =
            recovery.into_calls().partition(|call| call.task.is_gone());
        if !gone.is_empty() {
            // Members of chains end together, when they are sent.
            let alone = |call: &Call| !self.calls.chains.holds(call.tag);
            let (more, waiting): (Vec<Call>, Vec<Call>) = std::mem::take(&mut self.calls.waiting)
                .into_iter()
                .partition(|call| alone(call) && call.task.is_gone());
            self.calls.waiting = waiting.into();
            gone.extend(more);
        }
        for call in gone {
            self.finish(Purpose::Caller(call.tag), Done::Lost(Inaccessible.into()));
        }
        tracing::info!(
            again = again.len(),
            waiting = self.calls.waiting.len(),
            "session recovered"
        );
        for call in again.into_iter().rev() {
            self.calls.waiting.push_front(call);
        }
        self.calls.mend_chains(&self.link);
        self.calls.delegations.settle(self.link.info.client_id);
        if self.calls.waiting.is_empty() {
            // No call is left that could take this connection down, too.
            self.lost_at = None;
        }
        self.stage = if self.closing { Stage::Closing } else { Stage::Ready };
        // The server's silence counts from here again.
        self.link.last_reply = self.link.now;
        self.link.first_deadline =
            self.calls.waiting.iter().filter_map(|call| call.due).map(|due| due.0).min();
    }
}
