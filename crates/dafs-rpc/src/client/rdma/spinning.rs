//! The number of polls before a leader sleeps, learnt from earlier waits. Data that comes from a slow
//! link wakes the leader with each segment, and polling for the next one is in vain.

use crate::limits::{SPIN_POLLS_MIN, SPIN_WORTH};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Spinning {
    polls: u32,
}

impl Default for Spinning {
    fn default() -> Self {
        Self { polls: u32::MAX }
    }
}

impl Spinning {
    /// The number of polls before a sleep, `most` at most.
    pub(super) fn polls(&mut self, most: u32) -> u32 {
        self.polls = self.polls.min(most);
        self.polls
    }

    /// A call ended while the leader polled.
    pub(super) fn helped(&mut self) {
        self.polls = self.polls.saturating_mul(2);
    }

    /// All polling was in vain, and the sleep after it took so long.
    pub(super) fn slept(&mut self, time: Duration) {
        self.polls = match time < SPIN_WORTH {
            true => u32::MAX,
            false => (self.polls / 2).max(SPIN_POLLS_MIN),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_stops_where_it_does_not_help_and_begins_again_where_it_would() {
        let mut spinning = Spinning::default();
        assert_eq!(spinning.polls(100), 100);
        spinning.slept(SPIN_WORTH);
        assert_eq!(spinning.polls(100), 50);
        for _ in 0..10 {
            spinning.slept(SPIN_WORTH);
        }
        assert_eq!(spinning.polls(100), SPIN_POLLS_MIN);
        spinning.helped();
        assert_eq!(spinning.polls(100), 2 * SPIN_POLLS_MIN);
        spinning.slept(SPIN_WORTH / 2);
        assert_eq!(spinning.polls(100), 100);
        assert_eq!(spinning.polls(3), 3, "the policy has the last word");
    }
}
