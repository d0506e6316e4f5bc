//! One waiting thread: as the leader it polls the adapter, as a follower it waits for the leader.
//!
//! Invariants
//! * The leader's state in the driver is right whenever the lock is free. It is `Sleeping` while
//!   the leader sleeps, `Polling` while the leader only yielded the lock, `Nobody` after it left.
//! * A leader that stops leading wakes a follower, if there is one.

use super::driver::{Driver, Leader};
use super::port::{Guard, Shared, coarse_now};
use crate::client::options::WaitPolicy;
use crate::limits::{CONTENDER_SPINS, SPINS_BEFORE_YIELD, SPINS_BEFORE_YIELD_BY_SYSTEM_CALL};
use dafs_dat::EndpointId;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Empty polls between looks at the exact clock.
const POLLS_PER_CLOCK: u32 = 64;

pub(super) struct Waiter<'a> {
    shared: &'a Shared,
    until: Instant,
    /// The call that this thread waits for.
    call: Option<(EndpointId, u32)>,
    is_leading: bool,
    spins: u32,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(shared: &'a Shared, until: Instant, call: Option<(EndpointId, u32)>) -> Self {
        Self { shared, until, call, is_leading: false, spins: 0 }
    }

    pub(super) fn run<T>(mut self, mut done: impl FnMut(&mut Driver) -> Option<T>) -> Option<T> {
        let mut driver = self.shared.lock();
        loop {
            let result = done(&mut driver);
            let is_late =
                || self.spins.is_multiple_of(POLLS_PER_CLOCK) && Instant::now() >= self.until;
            if result.is_some() || is_late() {
                self.leave(&mut driver);
                return result;
            }
            if !self.is_leading && driver.leader != Leader::Nobody {
                driver = self.follow(driver);
                continue;
            }
            self.is_leading = true;
            driver.leader = Leader::Polling;
            let ended = driver.progress(coarse_now());
            driver = self.shared.take_back_calls(driver);
            if ended > 0 {
                if self.spins > 0 {
                    driver.budget.helped();
                }
                self.spins = 0;
                driver = self.lend(driver);
            } else if let Some(result) = done(&mut driver) {
                self.leave(&mut driver);
                return Some(result);
            } else {
                driver = self.pause(driver);
            }
        }
    }

    /// Spins or sleeps, as the policy says.
    fn pause(&mut self, mut driver: Guard<'a>) -> Guard<'a> {
        let spin = match self.shared.policy {
            WaitPolicy::Poll => true,
            WaitPolicy::Sleep => false,
            WaitPolicy::Adaptive { spin } => self.spins < driver.budget.polls(spin),
        };
        if !spin && driver.base.adapter.descriptor().is_some() {
            return self.sleep(driver);
        }
        self.spins = self.spins.wrapping_add(1);
        if self.shared.contenders.load(Ordering::Relaxed) > 0 {
            return self.lend(driver);
        }
        let before_yield = match driver.base.adapter.polls_by_system_call() {
            true => SPINS_BEFORE_YIELD_BY_SYSTEM_CALL,
            false => SPINS_BEFORE_YIELD,
        };
        if self.shared.policy == WaitPolicy::Poll || self.spins < before_yield {
            std::hint::spin_loop();
        } else {
            // The server may need this CPU.
            thread::yield_now();
        }
        driver
    }

    /// Yields the lock to threads that want it, if there are any.
    fn lend(&self, driver: Guard<'a>) -> Guard<'a> {
        if self.shared.contenders.load(Ordering::Relaxed) == 0 {
            return driver;
        }
        drop(driver);
        for spins in 0..CONTENDER_SPINS {
            if self.shared.contenders.load(Ordering::Relaxed) == 0 {
                break;
            }
            // Those threads have been woken, but may need this CPU.
            if spins < SPINS_BEFORE_YIELD {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        self.shared.lock()
    }

    fn sleep(&mut self, mut driver: Guard<'a>) -> Guard<'a> {
        let adapter = &mut *driver.base.adapter;
        adapter.flush();
        self.spins = 0;
        let Some(transport) = self.shared.sleep.transport(adapter) else {
            thread::yield_now();
            return driver;
        };
        if !matches!(adapter.arm(), Ok(true)) {
            // There are events to poll, or the descriptor is of no use: poll again.
            return self.lend(driver);
        }
        let timeout = adapter.next_timeout();
        let mut time = self.until.saturating_duration_since(Instant::now());
        if let Some(at) = timeout {
            time = time.min(at.since(dafs_dat::Instant::now()));
        }
        driver.leader = Leader::Sleeping;
        drop(driver);
        let began = Instant::now();
        self.shared.sleep.sleep(&transport, time);
        let slept = began.elapsed();
        let mut driver = self.shared.lock();
        driver.leader = Leader::Polling;
        driver.budget.slept(slept);
        driver
    }

    fn follow(&mut self, mut driver: Guard<'a>) -> Guard<'a> {
        let this = thread::current();
        if let Some((endpoint, xid)) = self.call
            && let Some((connection, _)) = driver.on(endpoint)
        {
            connection.wait(xid, this.clone());
        }
        let id = this.id();
        driver.followers.push(this);
        drop(driver);
        thread::park_timeout(self.until.saturating_duration_since(Instant::now()));
        let mut driver = self.shared.lock();
        if let Some(at) = driver.followers.iter().position(|thread| thread.id() == id) {
            driver.followers.remove(at);
        }
        driver
    }

    /// Stops waiting. If no thread leads then, a follower must. A thread that was woken to lead but
    /// leaves at once, because its result has arrived, wakes the next follower here.
    fn leave(&mut self, driver: &mut Driver) {
        if std::mem::take(&mut self.is_leading) {
            driver.leader = Leader::Nobody;
        }
        if driver.leader == Leader::Nobody
            && let Some(follower) = driver.followers.first()
        {
            follower.unpark();
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // A callback handler has panicked; other threads must not wait for this one.
        if self.is_leading {
            let mut driver = self.shared.lock();
            self.leave(&mut driver);
        }
    }
}

/// The deadline of a wait that has none of its own.
pub(super) fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
}
