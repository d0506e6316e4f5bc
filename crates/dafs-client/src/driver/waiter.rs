//! One thread that waits: it leads and polls the adapter, or follows whoever does.
//!
//! Invariants
//! * The leader's state in the driver is right whenever the lock is free: `Sleeping` while it
//!   sleeps, `Polling` while it only lent the lock, `Nobody` after it left, also by a panic.

use super::{Driver, Guard, Leader, Shared, coarse_now};
use crate::error::{Error, Result};
use crate::limit;
use crate::limits::{CONTENDER_SPINS, SPIN_POLLS_MIN, SPIN_WORTH, SPINS_BEFORE_YIELD, STOP_PERIOD};
use crate::options::WaitPolicy;
use dafs_dat::Instant;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Empty polls between looks at the exact clock.
const POLLS_PER_CLOCK: u32 = 64;

/// How long it is worth polling before sleeping, learnt from how it went.
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
    /// Polls before sleeping, `most` at most.
    fn polls(&mut self, most: u32) -> u32 {
        self.polls = self.polls.min(most);
        self.polls
    }

    /// Something came while polling.
    fn helped(&mut self) {
        self.polls = self.polls.saturating_mul(2);
    }

    /// All polling was in vain, and then it took so long.
    fn slept(&mut self, time: Duration) {
        self.polls = match time < SPIN_WORTH {
            true => u32::MAX,
            // Answers take longer than polling lasts, for instance because this CPU has others to
            // serve, whom polling keeps waiting.
            false => (self.polls / 2).max(SPIN_POLLS_MIN),
        };
    }
}

/// One thread that waits.
pub(super) struct Waiter<'a> {
    shared: &'a Shared,
    time: Option<Duration>,
    /// Some milliseconds more do not matter.
    coarse: bool,
    /// When to give up; set with the first look at the clock.
    until: Option<Instant>,
    /// When to look whether to stop.
    look: Option<Instant>,
    leading: bool,
    spins: u32,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(shared: &'a Shared, time: Option<Duration>) -> Self {
        let look = limit::can_be_stopped().then(|| coarse_now() + STOP_PERIOD);
        Self { shared, time, coarse: false, until: None, look, leading: false, spins: 0 }
    }

    /// For a time that is long, or not the caller's concern.
    pub(super) fn coarse(self) -> Self {
        Self { coarse: true, ..self }
    }

    pub(super) fn run<T>(
        mut self,
        mut driver: Guard<'a>,
        mut done: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<T> {
        if let Some(result) = done(&mut driver) {
            self.leave(&mut driver);
            return Ok(result);
        }
        loop {
            if let Some(time) = self.time {
                let now = if self.coarse { coarse_now() } else { Instant::now() };
                if now >= *self.until.get_or_insert(now + time) {
                    self.leave(&mut driver);
                    return Err(Error::TimedOut(time));
                }
            }
            if self.look.is_some_and(|look| coarse_now() >= look) {
                // Whoever is asked may need what this thread or another one holds.
                self.leave(&mut driver);
                drop(driver);
                let stopped = limit::is_stopped();
                driver = self.shared.lock_regardless();
                if let Some(result) = done(&mut driver) {
                    self.leave(&mut driver);
                    return Ok(result);
                }
                if stopped {
                    self.leave(&mut driver);
                    return Err(Error::TimedOut(self.time.unwrap_or_default()));
                }
                self.look = Some(coarse_now() + STOP_PERIOD);
            }
            if !self.leading && driver.leader != Leader::Nobody {
                driver = self.follow(driver);
                if let Some(result) = done(&mut driver) {
                    self.leave(&mut driver);
                    return Ok(result);
                }
                continue;
            }
            self.leading = true;
            driver.leader = Leader::Polling;
            // The exact time matters only now and then: deadlines are seconds away.
            let now = match self.spins % POLLS_PER_CLOCK {
                n if n == POLLS_PER_CLOCK - 1 => Instant::now(),
                _ => coarse_now(),
            };
            let completed = driver.progress(now);
            if completed > 0 {
                if self.spins > 0 {
                    driver.spinning.helped();
                }
                self.spins = 0;
                if driver.followers > 0 {
                    self.shared.turn.notify_all();
                }
            }
            // Not all that a waiter waits for is the completion of an operation: the end of the
            // session is none. It must not be slept over.
            if let Some(result) = done(&mut driver) {
                self.leave(&mut driver);
                return Ok(result);
            }
            if completed == 0 {
                driver = self.pause(driver)?;
            }
        }
    }

    /// Spins or sleeps, as the policy says.
    fn pause(&mut self, mut driver: Guard<'a>) -> Result<Guard<'a>> {
        let spin = match self.shared.policy {
            WaitPolicy::Poll => true,
            WaitPolicy::Sleep => false,
            WaitPolicy::Adaptive { spin } => self.spins < driver.spinning.polls(spin),
        };
        if !spin && driver.adapter.descriptor().is_some() {
            return self.sleep(driver);
        }
        self.spins = self.spins.wrapping_add(1);
        if self.shared.contenders.load(Ordering::Relaxed) > 0 {
            drop(driver);
            for spins in 0..CONTENDER_SPINS {
                if self.shared.contenders.load(Ordering::Relaxed) == 0 {
                    break;
                }
                // They have been woken, but may need this CPU.
                if spins < SPINS_BEFORE_YIELD {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
            driver = self.shared.lock_regardless();
        } else if self.shared.policy == WaitPolicy::Poll || self.spins < SPINS_BEFORE_YIELD {
            std::hint::spin_loop();
        } else {
            // The server may be waiting for this CPU.
            std::thread::yield_now();
        }
        Ok(driver)
    }

    fn sleep(&mut self, mut driver: Guard<'a>) -> Result<Guard<'a>> {
        driver.adapter.flush();
        if !matches!(driver.adapter.arm(), Ok(true)) {
            // There is something to poll for, or the descriptor is of no use: look again.
            return Ok(driver);
        }
        let now = Instant::now();
        let until = [driver.next_timeout(), self.until, self.look].into_iter().flatten().min();
        let time = until.map(|at| at.since(now));
        if !self.shared.wakeup.is_intact() {
            driver.lose_descriptors();
            return Ok(driver);
        }
        let Some(descriptor) = driver.adapter.descriptor() else { return Ok(driver) };
        let descriptor = self.shared.wakeup.sleeper(descriptor);
        driver.leader = Leader::Sleeping;
        drop(driver);
        if descriptor.sleep(time) {
            self.shared.wakeup.clear();
        }
        let mut driver = self.shared.lock_regardless();
        driver.leader = Leader::Polling;
        driver.spinning.slept(Instant::now().since(now));
        self.spins = 0;
        Ok(driver)
    }

    fn follow(&mut self, mut driver: Guard<'a>) -> Guard<'a> {
        driver.followers += 1;
        let until = [self.until, self.look].into_iter().flatten().min();
        let time = until.map(|at| at.since(Instant::now()));
        let mut driver = match time {
            Some(time) => {
                let result = self.shared.turn.wait_timeout(driver, time);
                result.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.shared.turn.wait(driver).unwrap_or_else(PoisonError::into_inner),
        };
        driver.followers -= 1;
        driver
    }

    /// Leaves. If nobody leads then, a follower has to; one that was woken and leaves at once
    /// because its result is there passes the turn on here.
    fn leave(&mut self, driver: &mut Driver) {
        if std::mem::take(&mut self.leading) {
            driver.leader = Leader::Nobody;
        }
        if driver.leader == Leader::Nobody && driver.followers > 0 {
            self.shared.turn.notify_one();
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // By now only a panic can have left the lead taken; its frames have given up the lock.
        if self.leading {
            let mut driver = self.shared.lock_regardless();
            self.leave(&mut driver);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::TransportChoice;
    use crate::served::Served;

    #[test]
    fn a_panic_gives_up_the_lead() {
        let served = Served::new();
        let client = served.client(TransportChoice::Iwarp);
        let mut looks = 0;
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            client.shared().wait_any(None, |_| -> Option<()> {
                looks += 1;
                assert!(looks < 2, "as planned");
                None
            })
        }));
        assert!(waited.is_err());
        assert!(!client.shared().lock_regardless().is_led());
        client.ping().unwrap();
    }

    #[test]
    fn a_wait_is_stopped_without_the_lock_and_others_go_on() {
        let served = Served::new();
        let client = served.client(TransportChoice::Iwarp);
        thread_local! {
            static CLIENT: std::cell::RefCell<Option<crate::Client>> =
                const { std::cell::RefCell::new(None) };
        }
        CLIENT.set(Some(client.clone()));
        // Whoever is asked may use the client.
        let stop = || CLIENT.take().unwrap().ping().is_ok();
        let waited = limit::interruptible(stop, || {
            client.shared().wait_any(None, |_| -> Option<()> { None })
        });
        assert!(matches!(waited, Err(Error::TimedOut(_))));
        assert!(!client.shared().lock_regardless().is_led());
        client.ping().unwrap();
    }

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
