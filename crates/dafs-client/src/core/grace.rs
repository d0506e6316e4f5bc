//! Requests that a restarted server answers with GRACE until its former clients are back (DAFS
//! 9.1).
//!
//! Invariants
//! * Such a call is retried before its deadline, or its caller gets GRACE.
//! * The pauses grow from one call to the next, so the retries are due in the order in which the
//!   calls were answered.

use super::call::{Call, Flight, Purpose};
use super::calls::Calls;
use super::link::Link;
use crate::limits::{GRACE_PAUSE_FRACTION, GRACE_PAUSE_MAX, GRACE_PAUSE_MIN};
use dafs_dat::Instant;
use dafs_wire::dafs::Status;

impl Calls {
    /// Schedules a retry of a request that was answered with GRACE, which says that it was not
    /// done. Returns it if it was answered otherwise or has no time left.
    pub(crate) fn delay(&mut self, link: &Link, flight: Flight, status: Status) -> Option<Flight> {
        let since = *self.grace_since.get_or_insert(link.now);
        let pause = link.now.since(since) / GRACE_PAUSE_FRACTION;
        let again = link.now + pause.clamp(GRACE_PAUSE_MIN, GRACE_PAUSE_MAX);
        let in_time = flight.deadline.is_none_or(|(at, _)| again < at);
        match flight.purpose {
            // A member that was answered with GRACE has broken its chain, so those behind it are
            // answered already.
            Purpose::Caller(tag)
                if status == Status::Grace
                    && !self.chains.holds(tag)
                    && self.orphans.of(tag).is_none()
                    && link.config.recovery.is_some()
                    && in_time =>
            {
                let Flight { deadline: due, user, renewed, work, maybe_done, .. } = flight;
                let task = work.into_task();
                let call = Call { tag, due, task, maybe_done, user, renewed };
                self.delayed.push_back((again, call));
                None
            }
            _ => Some(flight),
        }
    }

    /// The time of the next retry.
    pub(crate) fn delayed_until(&self) -> Option<Instant> {
        self.delayed.front().map(|(at, _)| *at)
    }

    /// Queues the calls whose retry is due.
    pub(crate) fn queue_due(&mut self, now: Instant) {
        while self.delayed_until().is_some_and(|at| at <= now) {
            self.waiting.extend(self.delayed.pop_front().map(|(_, call)| call));
        }
    }

    /// Queues all of these calls, as if they were new.
    pub(crate) fn queue_delayed(&mut self) {
        self.grace_since = None;
        let delayed = std::mem::take(&mut self.delayed);
        self.waiting.extend(delayed.into_iter().map(|(_, call)| call));
    }
}
