//! Timers: deadlines, keep-alives, giving credits back.

use super::call::{Due, Purpose};
use super::failure::Failure;
use super::session::{SessionCore, Stage};
use crate::limits::{OPERATION_DEADLINE, SHRINK_DELAY, UNPROBED_DEADLINE_FACTOR};
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::Request;
use std::time::Duration;

impl SessionCore {
    /// The time at which [`on_time`](Self::on_time) has work, unless an event comes first.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.stage == Stage::Over {
            return None;
        }
        let back = self.back.timeout(&self.link, &self.calls.delegations, self.stage);
        if let Some(recovery) = &self.recovery {
            let times = [self.link.first_deadline, back, recovery.timeout(self.link.last_reply)];
            return times.into_iter().flatten().min();
        }
        let keep_alive = self.has_room().then(|| self.link.keep_alive_at());
        let shrink = self.link.conn.shrink_at.filter(|_| keep_alive.is_some());
        let calls = [self.link.first_deadline, self.calls.delayed_until(), self.calls.orphans.hold];
        let optimistic = self.optimistic.timeout();
        calls.into_iter().chain([keep_alive, shrink, back, optimistic]).flatten().min()
    }

    /// Does the work that is due.
    pub fn on_time(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.link.now = now;
        let back = self.back.timeout(&self.link, &self.calls.delegations, self.stage);
        if back.is_some_and(|at| at <= now) {
            self.back_on_time(adapter);
        }
        if self.recovery.is_some() {
            return self.recovery_on_time(adapter);
        }
        self.optimistic_on_time(adapter);
        if self.link.first_deadline.is_some_and(|at| at <= now) {
            self.check_deadlines(adapter);
        }
        if self.calls.delayed_until().is_some_and(|at| at <= now) {
            self.calls.queue_due(now);
            self.pump(adapter);
        }
        if self.calls.orphans.hold.is_some_and(|at| at <= now) {
            self.calls.orphans.hold = None;
            self.return_orphans(adapter);
        }
        // A NULL needs a credit; without one, outstanding requests renew the leases.
        if !self.has_room() {
            return;
        }
        if self.link.keep_alive_at() <= now {
            // The credits asked for earlier were not needed: ask for as many as were used since
            // then.
            self.link.desired = self.link.demand_peak.max(1);
            self.link.demand_peak = 0;
            self.send_null(adapter, OPERATION_DEADLINE);
        } else if self.link.conn.shrink_at.is_some_and(|at| at <= now) {
            self.send_null(adapter, OPERATION_DEADLINE);
        }
    }

    /// The time until which the server certainly keeps its promises, opens and delegations: a part
    /// of the lease, from the sending time of a request that it has answered. The answer itself may
    /// have waited here for longer than the lease, as in a process that was stopped. While
    /// delegations are held, the same holds for the back-control channel: the server may have
    /// recalled them there, and it waits for a recall no longer than a lease.
    pub fn promised_until(&self) -> Instant {
        let heard_at = self.back.heard_at(&self.calls.delegations);
        let from = self.link.promised_from;
        match from.map(|at| heard_at.map_or(at, |heard_at| at.min(heard_at))) {
            // `Instant(0)` stands for a time before a suspension longer than the clock.
            Some(at) if self.stage != Stage::Over && at > Instant(0) => {
                at + self.link.info.lease * 2 / 3
            }
            _ => Instant(0),
        }
    }

    /// Accounts for a suspension of the machine, which the clock of the session does not count. The
    /// lease has run on meanwhile.
    pub fn slept(&mut self, time: Duration) {
        self.link.promised_from = self.link.promised_from.map(|at| earlier(at, time));
        for flight in self.link.conn.flights.iter_mut().flatten() {
            flight.sent_at = earlier(flight.sent_at, time);
        }
        self.back.slept(time);
        self.calls.delegations.slept(time, self.link.now, self.link.patience_of_server());
    }

    fn send_null(&mut self, adapter: &mut dyn Adapter, deadline: Duration) {
        self.link.stats.nulls += 1;
        self.send_own_within(adapter, Purpose::Null, &Request::Null, deadline);
    }

    /// Gives the connection up if a request is overdue: DAFS cannot cancel it, and later requests
    /// would wait behind a server that has stopped answering.
    ///
    /// Requests that wait for stable storage may take long on a healthy server, and so may requests
    /// that wait for a credit. They are overdue only when the session is silent as well. Before the
    /// client assumes that, it sends a NULL as a probe.
    fn check_deadlines(&mut self, adapter: &mut dyn Adapter) {
        let prompt = self.link.conn.flights.iter().flatten().filter(|flight| !flight.is_slow());
        let first = prompt.filter_map(|flight| flight.deadline).min_by_key(|(at, _)| *at);
        let slow = self.link.conn.flights.iter().flatten().filter(|flight| flight.is_slow());
        let slow = slow.filter_map(|flight| flight.deadline);
        let waiting = self.calls.waiting.iter().filter_map(|call| call.due);
        let silent =
            slow.chain(waiting).map(|(at, after)| (at.max(self.link.last_reply + after), after));
        let silent = silent.min_by_key(|(at, _)| *at);
        if let Some((at, after)) = first
            && at <= self.link.now
        {
            return self.fail(adapter, Failure::Deadline(after));
        }
        let silent = silent.and_then(|(at, after)| self.patience(adapter, at, after));
        if let Some((at, after)) = silent
            && at <= self.link.now
        {
            return self.fail(adapter, Failure::Deadline(after));
        }
        // A probe may have been sent just now; its deadline is later than `now` in any case.
        let probe = self
            .link
            .conn
            .flights
            .iter()
            .flatten()
            .filter(|flight| flight.purpose == Purpose::Null);
        let probe = probe.filter_map(|flight| flight.deadline);
        self.link.first_deadline =
            first.into_iter().chain(silent).chain(probe).map(|(at, _)| at).min();
    }

    /// The time at which to give up a silent session with a slow request that is due at `at`;
    /// `None` when a probe will tell.
    fn patience(
        &mut self,
        adapter: &mut dyn Adapter,
        at: Instant,
        after: Duration,
    ) -> Option<(Instant, Duration)> {
        if at > self.link.now {
            return Some((at, after));
        }
        if self.link.conn.flights.iter().flatten().any(|flight| flight.purpose == Purpose::Null) {
            return None;
        }
        if self.has_room() {
            self.send_null(adapter, after);
            return None;
        }
        let patience = after.saturating_mul(UNPROBED_DEADLINE_FACTOR - 1);
        Some((at + patience, after + patience))
    }

    /// Updates the shrinking of credits after a reply: a client that must shrink and has no request
    /// to send uses up its extra receives with NULLs (DAFS 7).
    pub(crate) fn after_reply(&mut self, purpose: Purpose) {
        if self.stage == Stage::Ready && self.link.conn.streams.must_shrink() && self.is_idle() {
            // Between two calls of a busy client a delay is fine.
            let delay = if purpose == Purpose::Null { Duration::ZERO } else { SHRINK_DELAY };
            self.link.conn.shrink_at = Some(self.link.now + delay);
        } else {
            self.link.conn.shrink_at = None;
        }
    }
}

/// The deadline of a call that may be slow on a healthy server, because it waits for stable storage
/// or for its turn: not before the server has been silent for as long. Its last answer in a session
/// in order came at `answered_at`.
pub(super) fn unless_silent(due: Due, answered_at: Instant) -> Due {
    due.map(|(at, after)| (at.max(answered_at + after), after))
}

/// The instant moved back by the length of a suspension.
pub(in crate::core) fn earlier(at: Instant, time: Duration) -> Instant {
    Instant(at.0.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}
