//! The number of polls before a waiter sleeps, learnt from earlier waits.
//!
//! A thread that waits all the time is served best by polling. A thread with much work between two
//! answers gains little by an earlier answer, and pays for polling with a part of its time: it
//! sleeps, unless answers come in less time than a sleep takes.
//!
//! Invariants
//! * Where answers take longer than that, a thread that waits seldom polls in few waits alone.
//! * A wait that sleeps without polling says nothing about whether polling helps.

use crate::limits::{SPIN_ANSWER_MAX, SPIN_GAP_MAX, SPIN_PROBE_WAITS};
use dafs_dat::{Instant, PollBudget, YieldCost};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Spinning {
    budget: PollBudget,
    yield_cost: YieldCost,
    /// The time of the last wait that was not over at once.
    waited_at: Instant,
    /// The time at which this wait began to yield the CPU between polls.
    began: Option<Instant>,
    /// The moving average of the times from there to an answer.
    answer: Option<Duration>,
    /// Waits that were to sleep in place of that.
    seldom: u32,
    /// This one sleeps.
    is_asleep_at_once: bool,
}

impl Default for Spinning {
    fn default() -> Self {
        Self {
            budget: PollBudget::default(),
            yield_cost: YieldCost::default(),
            waited_at: Instant(0),
            began: None,
            answer: None,
            seldom: 0,
            is_asleep_at_once: false,
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
        if let Some(began) = self.began.take() {
            self.answered(self.waited_at.since(began));
        }
    }

    /// Notes that a wait is about to yield the CPU between its polls. Returns true if it should sleep instead:
    /// the last wait was long ago, and answers take longer than a sleep.
    pub(super) fn sleeps_at_once(&mut self, now: Instant) -> bool {
        let is_seldom = now.since(self.waited_at) > SPIN_GAP_MAX;
        let is_quick = self.answer.is_some_and(|answer| answer < SPIN_ANSWER_MAX);
        self.is_asleep_at_once = is_seldom && !is_quick && {
            self.seldom = self.seldom.wrapping_add(1);
            !self.seldom.is_multiple_of(SPIN_PROBE_WAITS)
        };
        self.began = (!self.is_asleep_at_once).then_some(now);
        self.is_asleep_at_once
    }

    /// The CPU was yielded between two polls.
    pub(super) fn offered(&mut self, before: Instant, after: Instant) {
        self.yield_cost.record(after.since(before), after);
        self.waited_at = after;
        self.is_asleep_at_once = false;
    }

    /// All polling was in vain, and the sleep after it took so long.
    pub(super) fn slept(&mut self, before: Instant, after: Instant) {
        self.waited_at = after;
        if let Some(began) = self.began.take() {
            self.answered(after.since(began));
        }
        if !std::mem::take(&mut self.is_asleep_at_once) {
            self.budget.slept(after.since(before));
        }
    }

    /// Takes the time of an answer into the average. A single late one counts little.
    fn answered(&mut self, time: Duration) {
        let time = time.min(2 * SPIN_ANSWER_MAX);
        self.answer = Some(self.answer.map_or(time, |mean| (3 * mean + time) / 4));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(spinning.sleeps_at_once(START));
        spinning.offered(START, START);
        assert!(!spinning.sleeps_at_once(START + SPIN_GAP_MAX));
        let later = START + 2 * SPIN_GAP_MAX;
        assert!(spinning.sleeps_at_once(later));
        spinning.slept(START, later);
        assert!(!spinning.sleeps_at_once(later));
    }

    const QUICK: Duration = Duration::from_micros(20);
    const SLOW: Duration = Duration::from_millis(1);

    /// A wait long after the one before, whose answer takes so long. Returns true if it polls.
    fn polls(spinning: &mut Spinning, now: &mut Instant, time: Duration) -> bool {
        let began = *now + 10 * SPIN_GAP_MAX;
        *now = began + time;
        if spinning.sleeps_at_once(began) {
            spinning.slept(began, *now);
            return false;
        }
        spinning.offered(*now, *now);
        spinning.helped();
        true
    }

    #[test]
    fn a_thread_that_waits_seldom_polls_while_answers_are_quick() {
        let (mut spinning, mut now) = (Spinning::default(), START);
        for _ in 1..SPIN_PROBE_WAITS {
            assert!(!polls(&mut spinning, &mut now, QUICK));
        }
        // This wait finds it out.
        assert!((0..10).all(|_| polls(&mut spinning, &mut now, QUICK)));
        assert!((0..2).all(|_| polls(&mut spinning, &mut now, SLOW)), "one late answer is no rule");
        assert!(!polls(&mut spinning, &mut now, SLOW));
    }

    #[test]
    fn few_of_many_waits_find_out_the_time_of_slow_answers() {
        let (mut spinning, mut now) = (Spinning::default(), START);
        let waits = 10 * SPIN_PROBE_WAITS;
        let polling = (0..waits).filter(|_| polls(&mut spinning, &mut now, SLOW));
        assert_eq!(polling.count(), 10);
    }

    #[test]
    fn sleeps_without_polling_leave_the_number_of_polls() {
        let (mut spinning, mut now) = (Spinning::default(), START);
        assert_eq!(spinning.polls(100, now), 100);
        for _ in 1..SPIN_PROBE_WAITS {
            assert!(!polls(&mut spinning, &mut now, SLOW));
        }
        assert_eq!(spinning.polls(100, now), 100);
    }
}
