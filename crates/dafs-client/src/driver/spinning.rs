//! The number of polls before a waiter sleeps, learnt from earlier waits.
//!
//! A thread that waits all the time is served best by polling. A thread with much work between two
//! answers gains little by an earlier answer, and pays for polling with a part of its time: it
//! sleeps.

use crate::limits::{SPIN_GAP_MAX, SPIN_POLLS_MIN, SPIN_WORTH};
use dafs_dat::{Instant, YieldCost};

#[derive(Debug)]
pub(super) struct Spinning {
    polls: u32,
    yield_cost: YieldCost,
    /// The time of the last wait that was not over at once.
    waited_at: Instant,
}

impl Default for Spinning {
    fn default() -> Self {
        Self { polls: u32::MAX, yield_cost: YieldCost::default(), waited_at: Instant(0) }
    }
}

impl Spinning {
    /// The number of polls before sleeping, `most` at most. `now` may be some milliseconds late.
    pub(super) fn polls(&mut self, most: u32, now: Instant) -> u32 {
        self.polls = self.polls.min(most);
        if self.yield_cost.is_high(now) { 0 } else { self.polls }
    }

    /// An event came while polling.
    pub(super) fn helped(&mut self) {
        self.polls = self.polls.saturating_mul(2);
    }

    /// True when the last wait was so long ago that this one should sleep.
    pub(super) fn is_seldom(&self, now: Instant) -> bool {
        now.since(self.waited_at) > SPIN_GAP_MAX
    }

    /// The CPU was yielded between two polls.
    pub(super) fn offered(&mut self, before: Instant, after: Instant) {
        self.yield_cost.record(after.since(before), after);
        self.waited_at = after;
    }

    /// All polling was in vain, and the sleep after it took so long.
    pub(super) fn slept(&mut self, before: Instant, after: Instant) {
        self.waited_at = after;
        let time = after.since(before);
        self.polls = match time < SPIN_WORTH {
            true => u32::MAX,
            // Answers take longer than polling lasts, for instance because polling keeps other work
            // of this CPU waiting.
            false => (self.polls / 2).max(SPIN_POLLS_MIN),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const START: Instant = Instant(1_000_000_000_000);

    #[test]
    fn polling_stops_where_it_does_not_help_and_begins_again_where_it_would() {
        let mut spinning = Spinning::default();
        assert_eq!(spinning.polls(100, START), 100);
        let slept = |spinning: &mut Spinning, time| spinning.slept(START, START + time);
        slept(&mut spinning, SPIN_WORTH);
        assert_eq!(spinning.polls(100, START), 50);
        for _ in 0..10 {
            slept(&mut spinning, SPIN_WORTH);
        }
        assert_eq!(spinning.polls(100, START), SPIN_POLLS_MIN);
        spinning.helped();
        assert_eq!(spinning.polls(100, START), 2 * SPIN_POLLS_MIN);
        slept(&mut spinning, SPIN_WORTH / 2);
        assert_eq!(spinning.polls(100, START), 100);
        assert_eq!(spinning.polls(3, START), 3, "the policy has the last word");
    }

    #[test]
    fn a_thread_that_lost_the_cpu_does_not_poll() {
        let mut spinning = Spinning::default();
        spinning.offered(Instant(START.0 - 4_000_000), START);
        assert_eq!(spinning.polls(100, START), 0);
        assert_eq!(spinning.polls(100, START + Duration::from_secs(3600)), 100);
    }

    #[test]
    fn a_thread_that_waits_seldom_sleeps() {
        let mut spinning = Spinning::default();
        assert!(spinning.is_seldom(START));
        spinning.offered(START, START);
        assert!(!spinning.is_seldom(START + SPIN_GAP_MAX));
        let later = START + 2 * SPIN_GAP_MAX;
        assert!(spinning.is_seldom(later));
        spinning.slept(START, later);
        assert!(!spinning.is_seldom(later));
    }
}
