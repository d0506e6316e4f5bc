//! From a lost connection to the next one, without the application (DAFS 12).
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
//! * A request that was sent and not answered, and that changes something, is sent again only after
//!   the server has said that it was not executed, or when doing it twice is as good as once
//!   ([`repeat`](super::repeat)).
//! * Calls are sent again in the order in which they were sent first, and before all that waits.
//! * Each other call ends by its own deadline, whatever recovery is doing; all calls end with the time
//!   that recovery may take.
//! * Memory that a lost connection could reach is withdrawn before anybody hears of the loss. What the
//!   server may have mapped stays lent: its call neither ends, by its deadline or otherwise, nor is sent
//!   again before the server has said that the old session is over.
//! * An answer that breaks the rules ends the session; it never makes it try for ever.

mod check;
mod reclaim;

use self::reclaim::Reclaim;
use super::call::{Call, Done, Flight, Purpose, Sent, Task};
use super::failure::Failure;
use super::memory::RegisteredMemory;
use super::orphans::{Orphan, lends_memory, orphan_of};
use super::repeat::{Repeat, repeat};
use super::session::{SessionCore, Stage, new_connection};
use super::streams::Transaction;
use super::timers::unless_silent;
use crate::limits::{
    RECONNECT_PAUSE_FRACTION, RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, RECOVERY_ANSWER_TIME,
    RECOVERY_RETRY_PAUSE,
};
use dafs_dat::{Access, Adapter, Instant};
use dafs_mem::Gone;
use dafs_wire::dafs::{ByteOrder, ClientId, SessionId};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How far recovery has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is tried before this time.
    Pause(Instant),
    /// The connection is being made and the session opened, up to the proof of identity.
    Open,
    /// The server is asked what it has executed.
    Check,
    /// The replies to that are fetched.
    Fetch,
    /// The server is told to forget them.
    Discard,
    /// The server may have restarted, and then all that was asked has to be answered first.
    Compare,
    /// It has restarted: credential, root and limits are asked for again, one by one.
    Server,
    /// The opens are taken back, and with each its locks.
    Opens,
    /// What could not be taken back and need not have been is opened anew.
    Anew,
}

/// What is known of a request that was sent and not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nothing yet.
    Open,
    /// The server has been asked.
    Asked,
    /// It was executed; the reply is wanted.
    Executed,
    /// The reply has been asked for.
    Fetching,
    /// It is to be sent again.
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
    /// Its call has completed; it matters only what the server has made of it.
    orphan: bool,
    /// The server may still move its data, for the old session.
    is_lent: bool,
}

impl Doubt {
    fn is_awaited(&self) -> bool {
        self.verdict != Verdict::Over && !self.orphan
    }

    /// Its caller waits no longer. What is only interesting for its caller is over.
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

/// What is known while a connection is being replaced.
#[derive(Debug)]
pub(crate) struct Recovery {
    step: Step,
    /// Why the last connection, or the last attempt, ended.
    failure: Failure,
    /// When recovery is given up.
    until: Instant,
    /// When the last connection attempt began.
    attempt: Instant,
    /// Nothing is asked before this: the server wants a rest.
    retry_at: Option<Instant>,
    /// The server's name of this client when the session was last in order.
    client_id: ClientId,
    doubts: Vec<Doubt>,
    reclaim: Reclaim,
    /// The old session, whose replies the server may forget.
    discard: SessionId,
    /// It has been told so on this connection.
    discarded: bool,
}

impl Recovery {
    /// The calls that are not over.
    pub(crate) fn into_calls(self) -> impl Iterator<Item = Call> {
        let doubts = self.doubts.into_iter();
        doubts.filter(Doubt::is_awaited).map(|doubt| doubt.call)
    }

    /// Gives up one of the calls; false when it is none of them, over, or lends its memory.
    pub(crate) fn give_up(&mut self, tag: u64) -> bool {
        let mut doubts = self.doubts.iter_mut();
        let doubt = doubts.find(|doubt| doubt.call.tag == tag && doubt.is_awaited());
        doubt.filter(|doubt| !doubt.is_lent).map(|doubt| doubt.verdict = Verdict::Over).is_some()
    }

    fn has_calls(&self) -> bool {
        self.doubts.iter().any(Doubt::is_awaited)
    }

    /// What was asked on a connection that is gone must be asked again.
    fn forget_questions(&mut self) {
        self.discarded = false;
        for doubt in &mut self.doubts {
            doubt.verdict = match doubt.verdict {
                Verdict::Asked => Verdict::Open,
                Verdict::Fetching => Verdict::Executed,
                known => known,
            };
        }
    }

    fn retry_later(&mut self, now: Instant) {
        self.retry_at = Some(now + RECOVERY_RETRY_PAUSE);
    }
}

/// The recovery while it is at `step`. Each message may find the connection gone, which takes recovery
/// back to its beginning; there is nothing more to ask then.
fn in_step(recovery: &mut Option<Box<Recovery>>, step: Step) -> Option<&mut Recovery> {
    recovery.as_deref_mut().filter(|recovery| recovery.step == step)
}

/// How long to wait before an attempt to connect, if the first of the connections that have come to
/// nothing was lost at `lost_at`.
fn pause(lost_at: Option<Instant>, now: Instant) -> Duration {
    lost_at.map_or(Duration::ZERO, |at| {
        (now.since(at) / RECONNECT_PAUSE_FRACTION).clamp(RECONNECT_PAUSE_MIN, RECONNECT_PAUSE_MAX)
    })
}

impl SessionCore {
    /// The connection has failed: makes another one if that is wanted and may help, else ends the
    /// session.
    pub(crate) fn fail(&mut self, adapter: &mut dyn Adapter, failure: Failure) {
        let wanted = match self.stage {
            Stage::Ready | Stage::Recovering => true,
            Stage::Closing => !self.has_no_calls(),
            Stage::Connecting | Stage::Opening | Stage::Over => false,
        };
        match self.config.recovery {
            Some(limit) if wanted && failure.is_passing() => {
                self.break_off(adapter, failure, limit);
            }
            _ => self.end(adapter, failure),
        }
    }

    /// True when nobody waits for anything.
    pub(crate) fn has_no_calls(&self) -> bool {
        let mut flights = self.conn.flights.iter().flatten();
        self.waiting.is_empty()
            && self.put_off.is_empty()
            && self.back.batches.is_idle()
            && !flights.any(|flight| matches!(flight.purpose, Purpose::Caller(_)))
            && !self.recovery.as_ref().is_some_and(|recovery| recovery.has_calls())
    }

    fn break_off(&mut self, adapter: &mut dyn Adapter, failure: Failure, limit: Duration) {
        let now = self.now;
        self.cut_back(adapter);
        self.orphans.forget_questions();
        let lost = self.conn.cut(adapter);
        if self.conn.established {
            self.withdraw_memory(adapter);
            self.conn.release(adapter);
            self.conn = new_connection(adapter, &self.config);
        }
        if let Some(recovery) = &mut self.recovery {
            tracing::debug!(%failure, step = ?recovery.step, "recovery begins again");
            recovery.forget_questions();
            recovery.step = Step::Pause(now + pause(self.lost_at, now));
            recovery.retry_at = None;
            recovery.failure = failure;
            debug_assert!(lost.iter().all(|(_, flight)| !flight.is_callers()));
        } else {
            tracing::info!(%failure, unanswered = lost.len(), "connection lost, making another");
            let pause = pause(self.lost_at, now);
            let first = *self.lost_at.get_or_insert(now);
            let answered_at = self.answered_at;
            let waiting = self.waiting.iter_mut();
            waiting.for_each(|call| call.due = unless_silent(call.due, answered_at));
            let doubts = lost.into_iter().filter_map(|(stream, flight)| self.doubt(stream, flight));
            let doubts = doubts.collect();
            self.recovery = Some(Box::new(Recovery {
                step: Step::Pause(now + pause),
                failure,
                until: first + limit,
                attempt: now,
                retry_at: None,
                client_id: self.info.client_id,
                doubts,
                reclaim: Reclaim::default(),
                discard: self.info.session_id,
                discarded: false,
            }));
            self.stats.recoveries += 1;
        }
        self.stop_putting_off();
        self.stage = Stage::Recovering;
        self.expire_calls(adapter, now);
    }

    /// What an unanswered request leaves to be found out.
    fn doubt(&mut self, stream: u16, flight: Flight) -> Option<Doubt> {
        let Purpose::Caller(tag) = flight.purpose else { return None };
        let sent = Sent {
            session: self.info.session_id,
            transaction: Transaction { stream, sequence: flight.sequence },
            procedure: flight.procedure,
        };
        let due = match flight.is_slow() {
            true => unless_silent(flight.deadline, self.answered_at),
            false => flight.deadline,
        };
        let is_lent = lends_memory(&flight.work);
        let saved = self.chains.is_saved(tag);
        let task = self.chains.task(tag).unwrap_or_else(|| flight.work.into_task());
        let orphan = match self.orphans.of(tag) {
            None => false,
            // It completes with the others of its chain.
            Some(_) if self.chains.holds(tag) => false,
            Some(Orphan::Nothing) => {
                self.orphans.forget(tag);
                return None;
            }
            Some(Orphan::Open | Orphan::Lock(_)) => true,
        };
        let kind = repeat(&task, sent.procedure, self.order);
        let call = Call { tag, due, task, maybe_done: kind != Repeat::Free };
        let verdict = match kind {
            Repeat::Free if saved => Verdict::Open,
            Repeat::Free => Verdict::Again,
            Repeat::Same | Repeat::Once => Verdict::Open,
        };
        Some(Doubt { call, sent, verdict, orphan, is_lent })
    }

    /// Ends the calls whose time is over, which nothing on the way will be answered for.
    fn expire_calls(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        let Some(recovery) = &mut self.recovery else { return };
        let overdue = |call: &Call| call.due.filter(|(at, _)| *at <= now).map(|(_, after)| after);
        let (mut over, mut orphans) = (Vec::new(), Vec::new());
        let free = |doubt: &&mut Doubt| doubt.is_awaited() && !doubt.is_lent;
        for doubt in recovery.doubts.iter_mut().filter(free) {
            let Some(after) = overdue(&doubt.call) else { continue };
            let tag = doubt.call.tag;
            // Members of chains complete together, and only when all is known of each.
            let orphan = match self.chains.holds(tag) {
                true => Orphan::Nothing,
                false => doubt.let_go(self.order),
            };
            match orphan {
                Orphan::Nothing => {
                    doubt.verdict = Verdict::Over;
                    over.push((tag, Failure::Deadline(after)));
                }
                orphan => orphans.push((tag, orphan, after)),
            }
        }
        self.waiting.retain(|call| match overdue(call) {
            Some(after) => {
                over.push((call.tag, super::orphans::overdue(call, after)));
                false
            }
            None => true,
        });
        for (tag, failure) in over {
            self.finish(Purpose::Caller(tag), Done::Lost(failure));
        }
        for (tag, orphan, after) in orphans {
            self.let_go(tag, orphan, after);
        }
        let doubts = self.recovery.iter().flat_map(|recovery| &recovery.doubts);
        let open = doubts.filter(|doubt| doubt.is_awaited() && !doubt.is_lent);
        let open = open.map(|doubt| &doubt.call);
        let calls = open.chain(&self.waiting);
        self.first_deadline = calls.filter_map(|call| call.due).map(|(at, _)| at).min();
        if self.closing && self.has_no_calls() {
            self.end(adapter, Failure::Closed);
        }
    }

    /// A call waits no longer that ends when the server has let go of its memory; false if it is none of
    /// those.
    pub(super) fn lent_is_overdue(&mut self, tag: u64, after: Duration) -> bool {
        let doubts = self.recovery.iter_mut().flat_map(|recovery| &mut recovery.doubts);
        let lent = |doubt: &&mut Doubt| doubt.is_lent && doubt.is_awaited();
        let doubt = doubts.filter(lent).find(|doubt| doubt.call.tag == tag);
        doubt.map(|doubt| doubt.call.due = Some((self.now, after))).is_some()
    }

    /// True while the server may move data for the old session.
    fn lends(&self) -> bool {
        let mut doubts = self.recovery.iter().flat_map(|recovery| &recovery.doubts);
        doubts.any(|doubt| doubt.is_lent) || self.back.batches.has_lent()
    }

    /// The server has said that nothing is done for the old session any more.
    fn take_memory_back(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        let doubts = self.recovery.iter_mut().flat_map(|recovery| &mut recovery.doubts);
        let mut lent = false;
        doubts.for_each(|doubt| lent |= std::mem::take(&mut doubt.is_lent));
        self.back.batches.settle();
        if lent {
            self.expire_calls(adapter, now);
        }
    }

    /// The caller of a request that recovery has in hand waits no longer; `None` if it has no such
    /// request.
    pub(super) fn recovery_lets_go(&mut self, tag: u64) -> Option<Orphan> {
        let order = self.order;
        let mut doubts = self.recovery.as_mut()?.doubts.iter_mut();
        let doubt = doubts.find(|doubt| doubt.call.tag == tag && doubt.is_awaited())?;
        if self.chains.holds(tag) {
            return None;
        }
        Some(doubt.let_go(order))
    }

    /// When recovery has something to do by itself.
    pub(crate) fn recovery_timeout(&self) -> Option<Instant> {
        let recovery = self.recovery.as_ref()?;
        let step = match recovery.step {
            Step::Pause(until) => until,
            _ => self.answer_due(recovery),
        };
        let first = [self.first_deadline, recovery.retry_at, self.back_timeout()];
        let first = first.into_iter().flatten();
        first.chain([step, recovery.until]).min()
    }

    /// When an attempt to connect, or a server that has stopped answering, is given up.
    fn answer_due(&self, recovery: &Recovery) -> Instant {
        let rest = recovery.retry_at.unwrap_or(recovery.attempt);
        recovery.attempt.max(self.last_reply).max(rest) + RECOVERY_ANSWER_TIME
    }

    /// Does what is due.
    pub(crate) fn recovery_on_time(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        if self.first_deadline.is_some_and(|at| at <= now) {
            self.expire_calls(adapter, now);
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
                if let Err(error) = self.dial(adapter) {
                    self.fail(adapter, Failure::lost(error));
                }
            }
            Step::Pause(_) => {}
            _ => {
                if recovery.retry_at.is_some_and(|at| at <= now) {
                    recovery.retry_at = None;
                    self.advance(adapter, now);
                    self.pump(adapter, now);
                }
                if let Some(recovery) = &self.recovery
                    && !matches!(recovery.step, Step::Pause(_))
                    && self.answer_due(recovery) <= now
                {
                    self.fail(adapter, Failure::Deadline(RECOVERY_ANSWER_TIME));
                }
            }
        }
    }

    /// The server knows us again: goes on with what it did before.
    pub(crate) fn on_known_again(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        if let Some(recovery) = &mut self.recovery {
            recovery.step = Step::Check;
        }
        self.advance(adapter, now);
    }

    /// Credential, root and limits of a restarted server are known.
    pub(crate) fn on_server_known(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        if let Some(recovery) = &mut self.recovery {
            recovery.step = Step::Opens;
        }
        self.begin_opens();
        self.advance(adapter, now);
    }

    /// Asks what can be asked now, step by step.
    pub(crate) fn advance(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        while let Some((step, None)) = self.recovery.as_ref().map(|now| (now.step, now.retry_at)) {
            let next = match step {
                Step::Pause(_) | Step::Open | Step::Server => return,
                Step::Check if self.check_some(adapter, now) => Step::Fetch,
                Step::Fetch if self.fetch_some(adapter, now) => Step::Discard,
                Step::Discard if self.discard_some(adapter, now) => Step::Compare,
                // The answer to DISCARD_RESPONSES comes when the old session is over.
                Step::Compare if self.lends() && self.conn.streams.outstanding() == 0 => {
                    self.take_memory_back(adapter, now);
                    continue;
                }
                Step::Compare if self.lends() => return,
                Step::Compare if !self.has_restarted() => return self.finish_recovery(),
                Step::Compare if self.conn.streams.outstanding() == 0 => Step::Server,
                Step::Opens if self.reclaim_some(adapter, now, step) => Step::Anew,
                Step::Anew if self.reclaim_some(adapter, now, step) => {
                    return self.finish_recovery();
                }
                Step::Check | Step::Fetch | Step::Discard => return,
                Step::Compare | Step::Opens | Step::Anew => return,
            };
            let Some(recovery) = &mut self.recovery else { return };
            recovery.step = next;
            if next == Step::Server {
                self.stats.restarts += 1;
                self.meet_server(adapter, now);
            }
        }
    }

    /// A server that has restarted knows this client by another name (DAFS 4.1).
    fn has_restarted(&self) -> bool {
        let recovery = self.recovery.as_ref();
        recovery.is_some_and(|recovery| recovery.client_id != self.info.client_id)
    }

    /// Everything is as it was: what was not done is sent again, then what has waited.
    fn finish_recovery(&mut self) {
        let Some(recovery) = self.recovery.take() else { return };
        // The server has not done these, and nobody wants them any more.
        for doubt in recovery.doubts.iter().filter(|doubt| doubt.orphan) {
            self.orphans.forget(doubt.call.tag);
        }
        // What was to be sent out of memory that is gone would cost each connection, and there may be more of
        // it among what waits.
        let (mut gone, again): (Vec<Call>, Vec<Call>) =
            recovery.into_calls().partition(|call| call.task.is_gone());
        if !gone.is_empty() {
            // Members of chains end together, when they are sent.
            let alone = |call: &Call| !self.chains.holds(call.tag);
            let (more, waiting): (Vec<Call>, Vec<Call>) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|call| alone(call) && call.task.is_gone());
            self.waiting = waiting.into();
            gone.extend(more);
        }
        for call in gone {
            self.finish(Purpose::Caller(call.tag), Done::Lost(Gone.into()));
        }
        tracing::info!(again = again.len(), waiting = self.waiting.len(), "session recovered");
        for call in again.into_iter().rev() {
            self.waiting.push_front(call);
        }
        self.mend_chains();
        self.settle_delegations();
        if self.waiting.is_empty() {
            // Nothing is left that could take this connection down, too.
            self.lost_at = None;
        }
        self.stage = if self.closing { Stage::Closing } else { Stage::Ready };
        // The rest of the server's silence counts from here.
        self.last_reply = self.now;
        self.first_deadline =
            self.waiting.iter().filter_map(|call| call.due).map(|due| due.0).min();
    }

    /// Keeps memory in mind for the next connection.
    pub(crate) fn remember(&mut self, memory: &Arc<RegisteredMemory>) {
        if self.config.recovery.is_none() {
            return;
        }
        if self.memories.len() == self.memories.capacity() {
            self.memories.retain(|memory| memory.strong_count() > 0);
        }
        self.memories.push(Arc::downgrade(memory));
    }

    fn withdraw_memory(&mut self, adapter: &mut dyn Adapter) {
        for memory in self.memories.iter().filter_map(Weak::upgrade) {
            if let Some(region) = memory.withdraw() {
                adapter.deregister(region);
            }
        }
        self.reap(adapter);
    }

    /// Registers for this connection what the application holds.
    pub(crate) fn renew_memory(&mut self, adapter: &mut dyn Adapter) -> Result<(), Failure> {
        self.conn.established = true;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        for memory in self.memories.iter().filter_map(Weak::upgrade) {
            if !memory.is_registered() {
                let region = adapter.register(self.conn.domain, memory.buffer().clone(), access);
                memory.renew(region.map_err(Failure::memory)?);
            }
        }
        Ok(())
    }
}
