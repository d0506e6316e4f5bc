//! One thread that waits: it leads and polls the adapter, or follows whoever does.
//!
//! Invariants
//! * The leader's state in the driver is right whenever the lock is free: `Sleeping` while it
//!   sleeps, `Polling` while it only lent the lock, `Nobody` after it left.

use super::{Driver, Guard, Leader, Shared, coarse_now};
use crate::error::{Error, Result};
use crate::limits::{CONTENDER_SPINS, SPINS_BEFORE_YIELD};
use crate::options::WaitPolicy;
use dafs_dat::Instant;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Empty polls between looks at the exact clock.
const POLLS_PER_CLOCK: u32 = 64;

/// One thread that waits.
pub(super) struct Waiter<'a> {
    shared: &'a Shared,
    time: Option<Duration>,
    /// When to give up; set with the first look at the clock.
    until: Option<Instant>,
    leading: bool,
    spins: u32,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(shared: &'a Shared, time: Option<Duration>) -> Self {
        Self { shared, time, until: None, leading: false, spins: 0 }
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
                let now = Instant::now();
                if now >= *self.until.get_or_insert(now + time) {
                    self.leave(&mut driver);
                    return Err(Error::TimedOut(time));
                }
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
            WaitPolicy::Adaptive { spin } => self.spins < spin,
        };
        if !spin && driver.adapter.descriptor().is_some() {
            return self.sleep(driver);
        }
        self.spins = self.spins.wrapping_add(1);
        if self.shared.contenders.load(Ordering::Relaxed) > 0 {
            drop(driver);
            for _ in 0..CONTENDER_SPINS {
                if self.shared.contenders.load(Ordering::Relaxed) == 0 {
                    break;
                }
                std::hint::spin_loop();
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
        let until = [driver.next_timeout(), self.until].into_iter().flatten().min();
        let time = until.map(|at| at.since(now));
        let Some(descriptor) = driver.adapter.descriptor() else { return Ok(driver) };
        let descriptor = self.shared.wakeup.sleeper(descriptor);
        driver.leader = Leader::Sleeping;
        drop(driver);
        if descriptor.sleep(time) {
            self.shared.wakeup.clear();
        }
        let mut driver = self.shared.lock_regardless();
        driver.leader = Leader::Polling;
        self.spins = 0;
        Ok(driver)
    }

    fn follow(&mut self, mut driver: Guard<'a>) -> Guard<'a> {
        driver.followers += 1;
        let time = self.until.map(|at| at.since(Instant::now()));
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
        if self.leading {
            driver.leader = Leader::Nobody;
        }
        if driver.leader == Leader::Nobody && driver.followers > 0 {
            self.shared.turn.notify_one();
        }
    }
}
