//! The number of polls before a waiter sleeps, learnt from earlier waits.
//!
//! Invariants
//! * While polling is in vain, it takes a small part of a waiter's time.
//! * It begins again once answers are quick, also where each sleep is long because a sleeping
//!   processor takes long to wake up.

use std::time::Duration;

/// The lower bound of polls before an adaptive waiter sleeps, however little polling has helped.
const SPIN_POLLS_MIN: u32 = 4;

/// A sleep shorter than this would have been better spent polling: sleeping and waking up take
/// about as long.
const SPIN_WORTH: Duration = Duration::from_micros(50);

/// Sleeps after which one wait polls as long as the policy permits.
const PROBE_INTERVAL_SLEEPS: u32 = 32;

/// The polls that a waiter may spend.
#[derive(Debug)]
pub struct PollBudget {
    polls: u32,
    /// The number to return to if this wait polls in vain.
    before_probe: Option<u32>,
    sleeps: u32,
}

impl Default for PollBudget {
    fn default() -> Self {
        Self { polls: u32::MAX, before_probe: None, sleeps: 0 }
    }
}

impl PollBudget {
    /// The number of polls before a sleep, `most` at most.
    pub fn polls(&mut self, most: u32) -> u32 {
        self.polls = self.polls.min(most);
        self.polls
    }

    /// An answer came while polling.
    pub fn helped(&mut self) {
        self.before_probe = None;
        self.polls = self.polls.saturating_mul(2);
    }

    /// All polling was in vain, and the sleep after it took so long.
    pub fn slept(&mut self, time: Duration) {
        let polls = self.before_probe.take().unwrap_or(self.polls);
        if time < SPIN_WORTH {
            self.polls = u32::MAX;
            return;
        }
        // Answers take longer than polling lasts, for instance because polling keeps other work of
        // this CPU waiting.
        self.polls = (polls / 2).max(SPIN_POLLS_MIN);
        self.sleeps = self.sleeps.wrapping_add(1);
        if self.sleeps.is_multiple_of(PROBE_INTERVAL_SLEEPS) {
            self.before_probe = Some(self.polls);
            self.polls = u32::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A budget after so many sleeps that polling could not have spared.
    fn tired(sleeps: u32) -> PollBudget {
        let mut budget = PollBudget::default();
        assert_eq!(budget.polls(100), 100);
        for _ in 0..sleeps {
            budget.slept(SPIN_WORTH);
        }
        budget
    }

    #[test]
    fn polling_stops_where_it_does_not_help_and_begins_again_where_it_would() {
        assert_eq!(tired(1).polls(100), 50);
        let mut budget = tired(11);
        assert_eq!(budget.polls(100), SPIN_POLLS_MIN);
        budget.helped();
        assert_eq!(budget.polls(100), 2 * SPIN_POLLS_MIN);
        budget.slept(SPIN_WORTH / 2);
        assert_eq!(budget.polls(100), 100);
        assert_eq!(budget.polls(3), 3, "the policy has the last word");
    }

    #[test]
    fn a_wait_now_and_then_finds_out_whether_polling_helps() {
        let mut budget = tired(PROBE_INTERVAL_SLEEPS - 1);
        assert_eq!(budget.polls(100), SPIN_POLLS_MIN);
        budget.slept(SPIN_WORTH);
        assert_eq!(budget.polls(100), 100);
        // In vain.
        budget.slept(SPIN_WORTH);
        assert_eq!(budget.polls(100), SPIN_POLLS_MIN);
        for _ in 1..PROBE_INTERVAL_SLEEPS {
            budget.slept(SPIN_WORTH);
        }
        assert_eq!(budget.polls(100), 100);
        // Answers have become quick.
        budget.helped();
        budget.slept(SPIN_WORTH);
        assert_eq!(budget.polls(100), 100, "doubled and halved");
    }
}
