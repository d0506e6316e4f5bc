//! The number of polls before a waiter sleeps, learnt from earlier waits.
//!
//! A thread that waits all the time is served best by polling. A thread with much work between two
//! answers gains little by an earlier answer, and pays for polling with a part of its time: it
//! sleeps.

use crate::limits::SPIN_GAP_MAX;
use dafs_dat::{Instant, PollBudget, YieldCost};

#[derive(Debug)]
pub(super) struct Spinning {
    budget: PollBudget,
    yield_cost: YieldCost,
    /// The time of the last wait that was not over at once.
    waited_at: Instant,
}

impl Default for Spinning {
    fn default() -> Self {
        Self {
            budget: PollBudget::default(),
            yield_cost: YieldCost::default(),
            waited_at: Instant(0),
        }
    }
}

impl Spinning {
    /// The number of polls before sleeping, `most` at most. `now` may be some milliseconds late.
    pub(super) fn polls(&mut self, most: u32, now: Instant) -> u32 {
        let polls = self.budget.polls(most);
        if self.yield_cost.is_high(now) { 0 } else { polls }
    }

    /// An event came while polling.
    pub(super) fn helped(&mut self) {
        self.budget.helped();
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
        self.budget.slept(after.since(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const START: Instant = Instant(1_000_000_000_000);

    #[test]
    fn the_policy_bounds_the_polls() {
        let mut spinning = Spinning::default();
        assert_eq!(spinning.polls(100, START), 100);
        spinning.slept(START, START + Duration::from_millis(1));
        assert_eq!(spinning.polls(100, START), 50);
        spinning.helped();
        assert_eq!(spinning.polls(3, START), 3);
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
