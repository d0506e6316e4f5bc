//! How long a reactor without work polls before it sleeps. RPC and DAFS servers share this policy.
//!
//! Polling occupies the core; sleeping and waking cost some microseconds of the core and of the
//! peer's latency. So the adaptive policy polls about as long as it has lately paid off.
//!
//! Invariants
//! * The time spent in vain polling falls to zero if it never pays.

use crate::{Instant, YieldCost};
use std::str::FromStr;
use std::time::Duration;

/// The longest time to poll; a wake-up costs about as much.
const SPIN_NS_MAX: u64 = 50_000;

/// Shorter polling is skipped; the system call that sleeps checks once too.
const SPIN_NS_MIN: u64 = 1_000;

/// Polling restarts with this time when a sleep turns out to have been short.
const SPIN_NS_STEP: u64 = 10_000;

/// A shorter sleep would better have been spent polling: a part of it was the wake-up.
const SHORT_SLEEP_NS: u64 = 100_000;

/// The way in which a reactor waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wake {
    /// Poll without sleeping: the lowest latency, at the price of a core.
    Poll,
    /// Poll for some microseconds before sleeping.
    #[default]
    Adaptive,
    /// Sleep whenever there is no work.
    Sleep,
}

impl FromStr for Wake {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "adaptive" => Ok(Self::Adaptive),
            "poll" => Ok(Self::Poll),
            "sleep" => Ok(Self::Sleep),
            _ => Err("use adaptive, poll or sleep".to_owned()),
        }
    }
}

/// Decides between polling and sleeping.
#[derive(Debug)]
pub struct Spin {
    wake: Wake,
    /// How long to poll now.
    spin_ns: u64,
    idle_since_ns: Option<u64>,
    /// Time of the last switch from polling to sleeping.
    asleep_since_ns: u64,
    /// Time at which the CPU was yielded, until the time of its return is known.
    offered_at_ns: Option<u64>,
    yield_cost: YieldCost,
}

impl Spin {
    /// Begins with the longest polling time. All times are of one monotonic clock, in nanoseconds.
    pub fn new(wake: Wake) -> Self {
        Self {
            wake,
            spin_ns: SPIN_NS_MAX,
            idle_since_ns: None,
            asleep_since_ns: 0,
            offered_at_ns: None,
            yield_cost: YieldCost::default(),
        }
    }

    /// Records a turn that began at `now_ns` and found work if `busy`.
    pub fn turned(&mut self, busy: bool, now_ns: u64) {
        if let Some(at_ns) = self.offered_at_ns.take() {
            let time = Duration::from_nanos(now_ns.saturating_sub(at_ns));
            self.yield_cost.record(time, Instant(now_ns));
        }
        if !busy {
            self.idle_since_ns.get_or_insert(now_ns);
        } else if let Some(since_ns) = self.idle_since_ns.take() {
            // Polling paid off, if there was any; twice the time will suffice again.
            let looked_ns = now_ns.saturating_sub(since_ns);
            if self.asleep_since_ns < since_ns {
                self.spin_ns = self.spin_ns.max(2 * looked_ns).min(SPIN_NS_MAX);
            }
        }
    }

    /// True when it is time to sleep. May yield the CPU if it is not.
    pub fn is_over(&mut self, now_ns: u64) -> bool {
        match self.wake {
            Wake::Poll => {
                std::hint::spin_loop();
                false
            }
            Wake::Sleep => true,
            Wake::Adaptive => {
                let Some(since_ns) = self.idle_since_ns else {
                    let over = self.spin_ns < SPIN_NS_MIN;
                    if over {
                        self.asleep_since_ns = now_ns;
                    }
                    return over;
                };
                let is_dear = self.yield_cost.is_high(Instant(now_ns));
                if !is_dear && now_ns.saturating_sub(since_ns) < self.spin_ns {
                    // A client on the same core may use it at once.
                    self.offered_at_ns = Some(now_ns);
                    std::thread::yield_now();
                    return false;
                }
                if !is_dear && self.asleep_since_ns < since_ns {
                    self.spin_ns = self.spin_ns / 4 * 3;
                }
                self.asleep_since_ns = now_ns;
                true
            }
        }
    }

    /// Records the end of a sleep.
    pub fn slept(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.asleep_since_ns) < SHORT_SLEEP_NS {
            self.spin_ns = (self.spin_ns + SPIN_NS_STEP).min(SPIN_NS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Idles for `gap_ns` repeatedly; returns how long it polled before the last sleep.
    fn looked_ns(gap_ns: u64) -> u64 {
        let mut spin = Spin::new(Wake::Adaptive);
        let mut now_ns = 1_000_000;
        let mut looked_ns = 0;
        for _ in 0..100 {
            spin.turned(true, now_ns);
            let until_ns = now_ns + gap_ns;
            spin.turned(false, now_ns);
            let start_ns = now_ns;
            while now_ns < until_ns && !spin.is_over(now_ns) {
                now_ns += 500;
                spin.turned(now_ns >= until_ns, now_ns);
            }
            looked_ns = now_ns - start_ns;
            if now_ns < until_ns {
                now_ns = until_ns;
                spin.slept(now_ns);
            }
        }
        looked_ns
    }

    #[test]
    fn looking_goes_on_only_while_it_pays() {
        assert_eq!(looked_ns(10_000), 10_000);
        assert_eq!(looked_ns(200_000), 0);
        assert_eq!(looked_ns(10_000_000), 0);
    }

    #[test]
    fn a_thread_does_not_poll_after_it_lost_the_cpu() {
        let mut spin = Spin::new(Wake::Adaptive);
        let mut now_ns = 1_000_000;
        spin.turned(false, now_ns);
        assert!(!spin.is_over(now_ns));
        // Another thread had the CPU for that time, and then there was work.
        now_ns += 4_000_000;
        spin.turned(true, now_ns);
        spin.turned(false, now_ns);
        assert!(spin.is_over(now_ns));
        now_ns += 3_600_000_000_000;
        spin.slept(now_ns);
        spin.turned(true, now_ns);
        spin.turned(false, now_ns);
        assert!(!spin.is_over(now_ns), "they may be gone");
    }

    #[test]
    fn polling_never_sleeps_and_sleepers_never_look() {
        let mut poll = Spin::new(Wake::Poll);
        poll.turned(false, 1);
        assert!(!poll.is_over(u64::MAX));
        let mut sleep = Spin::new(Wake::Sleep);
        sleep.turned(true, 1);
        assert!(sleep.is_over(1));
    }
}
