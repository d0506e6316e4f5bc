//! How long a reactor without work looks for some before it sleeps.
//!
//! Looking burns the core; sleeping and waking costs some microseconds of it and of the peer's
//! time. So the adaptive way looks about as long as it has lately paid off.
//!
//! Invariants
//! * The time spent looking in vain falls to nothing if it never pays.

use super::config::Wake;

/// Never looks longer than this; a wake-up costs about as much.
const SPIN_NS_MAX: u64 = 50_000;

/// Looking for less time than this is left out; the system call that sleeps looks once too.
const SPIN_NS_MIN: u64 = 1_000;

/// Begins to look for so long again when a sleep turns out to have been short.
const SPIN_NS_STEP: u64 = 10_000;

/// A sleep shorter than this would better have been spent looking.
const SHORT_SLEEP_NS: u64 = 30_000;

/// Decides between looking and sleeping.
#[derive(Debug)]
pub(super) struct Spin {
    wake: Wake,
    /// How long to look now.
    spin_ns: u64,
    idle_since_ns: Option<u64>,
    /// When it last gave up looking.
    asleep_since_ns: u64,
}

impl Spin {
    pub(super) fn new(wake: Wake) -> Self {
        Self { wake, spin_ns: SPIN_NS_MAX, idle_since_ns: None, asleep_since_ns: 0 }
    }

    /// Takes note of a turn, in which there was something to do if `busy`.
    pub(super) fn turned(&mut self, busy: bool, now_ns: u64) {
        if !busy {
            self.idle_since_ns.get_or_insert(now_ns);
        } else if let Some(since_ns) = self.idle_since_ns.take() {
            // Looking paid off, if it was looked at all; with twice the time it will again.
            let looked_ns = now_ns.saturating_sub(since_ns);
            if self.asleep_since_ns < since_ns {
                self.spin_ns = self.spin_ns.max(2 * looked_ns).min(SPIN_NS_MAX);
            }
        }
    }

    /// True when it is time to sleep.
    pub(super) fn is_over(&mut self, now_ns: u64) -> bool {
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
                if now_ns.saturating_sub(since_ns) < self.spin_ns {
                    // A client on the same core may have it at once.
                    std::thread::yield_now();
                    return false;
                }
                if self.asleep_since_ns < since_ns {
                    self.spin_ns = self.spin_ns / 4 * 3;
                }
                self.asleep_since_ns = now_ns;
                true
            }
        }
    }

    /// Takes note of the end of a sleep.
    pub(super) fn slept(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.asleep_since_ns) < SHORT_SLEEP_NS {
            self.spin_ns = (self.spin_ns + SPIN_NS_STEP).min(SPIN_NS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Idle for `gap_ns` again and again; how long it looked before it slept, the last time.
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
    fn polling_never_sleeps_and_sleepers_never_look() {
        let mut poll = Spin::new(Wake::Poll);
        poll.turned(false, 1);
        assert!(!poll.is_over(u64::MAX));
        let mut sleep = Spin::new(Wake::Sleep);
        sleep.turned(true, 1);
        assert!(sleep.is_over(1));
    }
}
