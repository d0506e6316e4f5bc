//! What it costs to offer the CPU to others.
//!
//! Whoever polls for an answer offers the CPU between two polls (`sched_yield`), because the other side may
//! need it to answer. Where others have work of their own the offer costs a whole turn of theirs: some
//! milliseconds, in which the answer lies there unseen. A thread that sleeps would be woken at once then,
//! because it has used so little. So after such a loss nobody should poll for a while.
//!
//! Invariants
//! * Where others take the CPU again and again, little time is lost: the pauses grow until losses are rare.

use crate::time::Instant;
use std::time::Duration;

/// An offer that was taken for so long was taken by somebody who had other things to do than to answer.
/// Schedulers let such a one run for some milliseconds; an answer of 1 MiB takes some tenths of one.
const LOSS_MIN: Duration = Duration::from_millis(1);

/// How long not to poll after a loss, at first.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// How long not to poll after a loss when there is one after the other.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Whether the CPU can be offered without losing it.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOffers {
    paused_until: Instant,
    /// How long the last pause was.
    pause: Duration,
}

impl CpuOffers {
    /// The CPU was offered, and was back after `time`, which is `now`.
    pub fn made(&mut self, time: Duration, now: Instant) {
        if time < LOSS_MIN {
            return;
        }
        // A rare loss, as when something else begins, does not count with those before it.
        let is_rare = now.since(self.paused_until) > PAUSE_MAX;
        let pause = if is_rare { Duration::ZERO } else { self.pause.saturating_mul(2) };
        self.pause = pause.clamp(PAUSE_MIN, PAUSE_MAX);
        self.paused_until = now + self.pause;
    }

    /// True while it is better to sleep at once than to poll. `now` may be some milliseconds late.
    pub fn are_dear(&self, now: Instant) -> bool {
        now < self.paused_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1_000_000_000_000);

    #[test]
    fn an_answer_on_the_same_cpu_is_no_loss() {
        let mut offers = CpuOffers::default();
        offers.made(LOSS_MIN / 2, START);
        assert!(!offers.are_dear(START));
        offers.made(LOSS_MIN, START);
        assert!(offers.are_dear(START));
        assert!(!offers.are_dear(START + PAUSE_MIN));
    }

    #[test]
    fn little_time_is_lost_where_others_take_every_offer() {
        let loss = Duration::from_millis(4);
        let (mut offers, mut now, mut lost) = (CpuOffers::default(), START, Duration::ZERO);
        while now < START + Duration::from_secs(60) {
            if !offers.are_dear(now) {
                (now, lost) = (now + loss, lost + loss);
                offers.made(loss, now);
            }
            now = now + Duration::from_millis(1);
        }
        assert!(lost < Duration::from_millis(300), "{lost:?} of a minute");
        // When they are gone one loss counts little again.
        now = now + 2 * PAUSE_MAX;
        assert!(!offers.are_dear(now));
        offers.made(loss, now);
        assert!(!offers.are_dear(now + PAUSE_MIN));
    }
}
