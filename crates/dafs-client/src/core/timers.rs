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
        if self.recovery.is_some() {
            return self.recovery_timeout();
        }
        let keep_alive = self.can_send_null().then(|| self.keep_alive_at());
        let shrink = self.conn.shrink_at.filter(|_| keep_alive.is_some());
        let times =
            [keep_alive, shrink, self.first_deadline, self.delayed_until(), self.back_timeout()];
        times.into_iter().flatten().chain(self.orphans_timeout()).min()
    }

    /// Does the work that is due.
    pub fn on_time(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.now = now;
        if self.back_timeout().is_some_and(|at| at <= now) {
            self.back_on_time(adapter, now);
        }
        if self.recovery.is_some() {
            return self.recovery_on_time(adapter, now);
        }
        if self.first_deadline.is_some_and(|at| at <= now) {
            self.check_deadlines(adapter, now);
        }
        if self.delayed_until().is_some_and(|at| at <= now) {
            self.ask_again(adapter, now);
        }
        if self.orphans_timeout().is_some_and(|at| at <= now) {
            self.orphans_on_time(adapter, now);
        }
        if !self.can_send_null() {
            return;
        }
        if self.keep_alive_at() <= now {
            // The credits asked for earlier were not needed: ask for as many as were used since
            // then.
            self.desired = self.demand_peak.max(1);
            self.demand_peak = 0;
            self.send_null(adapter, now, OPERATION_DEADLINE);
        } else if self.conn.shrink_at.is_some_and(|at| at <= now) {
            self.send_null(adapter, now, OPERATION_DEADLINE);
        }
    }

    /// A NULL needs a credit; without one, outstanding requests renew the leases.
    fn can_send_null(&self) -> bool {
        self.stage == Stage::Ready && self.waiting.is_empty() && self.conn.has_room()
    }

    /// The time until which the server certainly keeps its promises, opens and delegations: a part
    /// of the lease, from the sending time of a request that it has answered. The answer itself may
    /// have waited here for longer than the lease, as in a process that was stopped. While
    /// delegations are held, the same holds for the back-control channel: the server may have
    /// recalled them there, and it waits for a recall no longer than a lease.
    pub fn promised_until(&self) -> Instant {
        let heard_at = self.back.heard_at();
        let from = self.promised_from;
        match from.map(|at| heard_at.map_or(at, |heard_at| at.min(heard_at))) {
            // `Instant(0)` stands for a time before a suspension longer than the clock.
            Some(at) if self.stage != Stage::Over && at > Instant(0) => {
                at + self.info.lease * 2 / 3
            }
            _ => Instant(0),
        }
    }

    /// Accounts for a suspension of the machine, which the clock of the session does not count. The
    /// lease has run on meanwhile.
    pub fn slept(&mut self, time: Duration) {
        self.promised_from = self.promised_from.map(|at| earlier(at, time));
        for flight in self.conn.flights.iter_mut().flatten() {
            flight.sent_at = earlier(flight.sent_at, time);
        }
        self.back.slept(time, self.now, self.patience_of_server());
    }

    /// The time that the server waits for the return of a delegation before it revokes it, less a
    /// part for the transmission.
    pub(super) fn patience_of_server(&self) -> Duration {
        self.info.lease * 2 / 3
    }

    /// Any request renews all leases (DAFS 7), so only silence needs a keep-alive; a third of the
    /// lease leaves room for two that fail.
    fn keep_alive_at(&self) -> Instant {
        const INTERVAL_MIN: Duration = Duration::from_secs(1);
        self.last_request + (self.info.lease / 3).max(INTERVAL_MIN)
    }

    fn send_null(&mut self, adapter: &mut dyn Adapter, now: Instant, deadline: Duration) {
        self.stats.nulls += 1;
        self.send_own_within(adapter, now, Purpose::Null, &Request::Null, deadline);
    }

    /// Gives the connection up if a request is overdue: DAFS cannot cancel it, and later requests
    /// would wait behind a server that has stopped answering.
    ///
    /// Requests that wait for stable storage may take long on a healthy server, and so may requests
    /// that wait for a credit. They are overdue only when the session is silent as well. Before the
    /// client assumes that, it sends a NULL as a probe.
    fn check_deadlines(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        let prompt = self.conn.flights.iter().flatten().filter(|flight| !flight.is_slow());
        let first = prompt.filter_map(|flight| flight.deadline).min_by_key(|(at, _)| *at);
        let slow = self.conn.flights.iter().flatten().filter(|flight| flight.is_slow());
        let slow = slow.filter_map(|flight| flight.deadline);
        let waiting = self.waiting.iter().filter_map(|call| call.due);
        let silent =
            slow.chain(waiting).map(|(at, after)| (at.max(self.last_reply + after), after));
        let silent = silent.min_by_key(|(at, _)| *at);
        if let Some((at, after)) = first
            && at <= now
        {
            return self.fail(adapter, Failure::Deadline(after));
        }
        let silent = silent.and_then(|(at, after)| self.patience(adapter, now, at, after));
        if let Some((at, after)) = silent
            && at <= now
        {
            return self.fail(adapter, Failure::Deadline(after));
        }
        // A probe may have been sent just now; its deadline is later than `now` in any case.
        let probe =
            self.conn.flights.iter().flatten().filter(|flight| flight.purpose == Purpose::Null);
        let probe = probe.filter_map(|flight| flight.deadline);
        self.first_deadline = first.into_iter().chain(silent).chain(probe).map(|(at, _)| at).min();
    }

    /// The time at which to give up a silent session with a slow request that is due at `at`;
    /// `None` when a probe will tell.
    fn patience(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        at: Instant,
        after: Duration,
    ) -> Option<(Instant, Duration)> {
        if at > now {
            return Some((at, after));
        }
        if self.conn.flights.iter().flatten().any(|flight| flight.purpose == Purpose::Null) {
            return None;
        }
        if self.can_send_null() {
            self.send_null(adapter, now, after);
            return None;
        }
        let patience = after.saturating_mul(UNPROBED_DEADLINE_FACTOR - 1);
        Some((at + patience, after + patience))
    }

    /// Updates the shrinking of credits after a reply: a client that must shrink and has no request
    /// to send uses up its extra receives with NULLs (DAFS 7).
    pub(crate) fn after_reply(&mut self, purpose: Purpose, now: Instant) {
        if self.stage == Stage::Ready && self.conn.streams.must_shrink() && self.is_idle() {
            // Between two calls of a busy client a delay is fine.
            let delay = if purpose == Purpose::Null { Duration::ZERO } else { SHRINK_DELAY };
            self.conn.shrink_at = Some(now + delay);
        } else {
            self.conn.shrink_at = None;
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
