//! The cost of yielding the CPU.
//!
//! A thread that polls for an answer yields the CPU between two polls (`sched_yield`), because the
//! other side may need it to answer. Where other threads have work of their own, a yield costs a
//! whole time slice of theirs: some milliseconds, in which an arrived answer waits. The scheduler
//! would wake a sleeping thread at once instead, because it has used little CPU time. So after such
//! a loss a thread should not poll for a while.
//!
//! Invariants
//! * Where other threads take the CPU repeatedly, little time is lost: the pauses grow until losses
//!   are rare.

use crate::time::Instant;
use std::time::Duration;

/// A yield that lasted this long gave the CPU to a thread with work other than the answer.
/// Schedulers let such a thread run for some milliseconds; an answer of 1 MiB takes some tenths of
/// one.
const LOSS_MIN: Duration = Duration::from_millis(1);

/// The pause of polling after a first loss.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest pause of polling after consecutive losses.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Tracks whether a thread can yield the CPU without losing it.
#[derive(Debug, Clone, Copy, Default)]
pub struct YieldCost {
    paused_until: Instant,
    /// The length of the last pause.
    pause: Duration,
}

impl YieldCost {
    /// Records a yield that lasted `time` and ended at `now`.
    pub fn record(&mut self, time: Duration, now: Instant) {
        if time < LOSS_MIN {
            return;
        }
        // A rare loss, as when another program starts, does not count with those before it.
        let is_rare = now.since(self.paused_until) > PAUSE_MAX;
        let pause = if is_rare { Duration::ZERO } else { self.pause.saturating_mul(2) };
        self.pause = pause.clamp(PAUSE_MIN, PAUSE_MAX);
        self.paused_until = now + self.pause;
    }

    /// True while it is better to sleep at once than to poll. `now` may be some milliseconds late.
    pub fn is_high(&self, now: Instant) -> bool {
        now < self.paused_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1_000_000_000_000);

    #[test]
    fn an_answer_on_the_same_cpu_is_no_loss() {
        let mut yield_cost = YieldCost::default();
        yield_cost.record(LOSS_MIN / 2, START);
        assert!(!yield_cost.is_high(START));
        yield_cost.record(LOSS_MIN, START);
        assert!(yield_cost.is_high(START));
        assert!(!yield_cost.is_high(START + PAUSE_MIN));
    }

    #[test]
    fn little_time_is_lost_where_others_take_every_offer() {
        let loss = Duration::from_millis(4);
        let (mut yield_cost, mut now, mut lost) = (YieldCost::default(), START, Duration::ZERO);
        while now < START + Duration::from_secs(60) {
            if !yield_cost.is_high(now) {
                (now, lost) = (now + loss, lost + loss);
                yield_cost.record(loss, now);
            }
            now = now + Duration::from_millis(1);
        }
        assert!(lost < Duration::from_millis(300), "{lost:?} of a minute");
        // After the losses have ended, one loss counts little again.
        now = now + 2 * PAUSE_MAX;
        assert!(!yield_cost.is_high(now));
        yield_cost.record(loss, now);
        assert!(!yield_cost.is_high(now + PAUSE_MIN));
    }
}
