//! One thread that waits: it leads and polls the adapter, or follows the leader.
//!
//! Invariants
//! * The leader's state in the driver is right whenever the lock is free: `Sleeping` while it
//!   sleeps, `Polling` while it only lets others have the lock, `Nobody` after it left, also by a
//!   panic.
//! * No wake-up is lost. A follower is on the list from before it releases the lock until it is
//!   rung. The thread that rings it has removed it from the list under the lock, and always rings
//!   it once the lock is free: a sleep on a bell notices rings after the release of the lock.
//! * A thread that has waited and leaves without a leader removes a follower from the list to lead; a
//!   thread that was removed to lead and leaves at once does the same. So while the list has followers
//!   and there is no leader, a thread that was removed is on its way. A thread whose result is there
//!   when it comes need wake no other.

use super::followed::Followed;
use super::followers::{Bells, ring};
use super::{Driver, Guard, Leader, Shared, coarse_now};
use crate::error::{Error, Result};
use crate::limit;
use crate::limits::{
    CONTENDER_SPINS, SPINS_BEFORE_YIELD, SPINS_BEFORE_YIELD_BY_SYSTEM_CALL, STOP_PERIOD,
};
use crate::options::WaitPolicy;
use dafs_dat::Instant;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Empty polls between readings of the exact clock.
const POLLS_PER_CLOCK: u32 = 64;

/// One thread that waits.
pub(super) struct Waiter<'a> {
    shared: &'a Shared,
    time: Option<Duration>,
    /// A timeout that is some milliseconds late is fine.
    coarse: bool,
    /// The timeout; set with the first reading of the clock.
    until: Option<Instant>,
    /// The time at which to ask the interruption callback.
    look: Option<Instant>,
    /// The operation whose end it waits for, if it is one.
    tag: Option<u64>,
    leading: bool,
    /// Its result was not there when it came.
    waited: bool,
    /// It has its result, or has given up.
    left: bool,
    spins: u32,
    /// To be rung when it releases the lock.
    bells: Bells,
    /// To be called then.
    followed: Followed,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(shared: &'a Shared, time: Option<Duration>, tag: Option<u64>) -> Self {
        let look = limit::can_be_stopped().then(|| coarse_now() + STOP_PERIOD);
        Self {
            shared,
            time,
            coarse: false,
            until: None,
            look,
            tag,
            leading: false,
            waited: false,
            left: false,
            spins: 0,
            bells: Bells::new(),
            followed: Followed::default(),
        }
    }

    /// For a timeout that is long, or not the caller's concern.
    pub(super) fn coarse(mut self) -> Self {
        self.coarse = true;
        self
    }

    pub(super) fn run<T>(
        mut self,
        mut driver: Guard<'a>,
        mut done: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<T> {
        if let Some(result) = done(&mut driver) {
            self.leave(driver);
            return Ok(result);
        }
        self.waited = true;
        loop {
            if let Some(time) = self.time {
                let now = if self.coarse { coarse_now() } else { Instant::now() };
                if now >= *self.until.get_or_insert(now + time) {
                    self.leave(driver);
                    return Err(Error::TimedOut(time));
                }
            }
            if self.look.is_some_and(|look| coarse_now() >= look) {
                // The interruption callback may need locks of this thread or another one.
                self.leave(driver);
                let stopped = limit::is_stopped();
                driver = self.shared.lock_regardless();
                self.left = false;
                if let Some(result) = done(&mut driver) {
                    self.leave(driver);
                    return Ok(result);
                }
                if stopped {
                    self.leave(driver);
                    return Err(Error::TimedOut(self.time.unwrap_or_default()));
                }
                self.look = Some(coarse_now() + STOP_PERIOD);
            }
            if !self.leading && driver.leader != Leader::Nobody {
                driver = self.follow(driver);
                if let Some(result) = done(&mut driver) {
                    self.leave(driver);
                    return Ok(result);
                }
                continue;
            }
            self.leading = true;
            driver.leader = Leader::Polling;
            // The exact time matters rarely: deadlines are seconds away.
            let now = match self.spins % POLLS_PER_CLOCK {
                n if n == POLLS_PER_CLOCK - 1 => Instant::now(),
                _ => coarse_now(),
            };
            let completed = driver.progress(now);
            self.followed.append(&mut driver.followed);
            if completed > 0 {
                if self.spins > 0 {
                    driver.spinning.helped();
                }
                self.spins = 0;
                driver.call_done(&mut self.bells);
            }
            // It must not sleep over an effect of its own poll.
            if let Some(result) = done(&mut driver) {
                self.leave(driver);
                return Ok(result);
            }
            driver = match completed == 0 && self.followed.is_empty() {
                true => self.pause(driver),
                false => self.lend(driver),
            };
        }
    }

    /// Spins or sleeps, as the policy says.
    fn pause(&mut self, mut driver: Guard<'a>) -> Guard<'a> {
        let spin = match self.shared.policy {
            WaitPolicy::Poll => true,
            WaitPolicy::Sleep => false,
            WaitPolicy::Adaptive { spin } => self.spins < driver.spinning.polls(spin, coarse_now()),
        };
        if !spin && driver.adapter.descriptor().is_some() {
            return self.sleep(driver);
        }
        self.spins = self.spins.wrapping_add(1);
        let before_yield = match driver.adapter.polls_by_system_call() {
            true => SPINS_BEFORE_YIELD_BY_SYSTEM_CALL,
            false => SPINS_BEFORE_YIELD,
        };
        if self.shared.policy == WaitPolicy::Poll || self.spins < before_yield {
            drop(driver);
            std::hint::spin_loop();
            return self.lock();
        }
        let before = Instant::now();
        let is_first = self.spins == before_yield;
        let sleeps = is_first && driver.spinning.sleeps_at_once(before);
        if sleeps && driver.adapter.descriptor().is_some() {
            return self.sleep(driver);
        }
        drop(driver);
        // The server may be waiting for this CPU.
        std::thread::yield_now();
        let after = Instant::now();
        let mut driver = self.lock();
        driver.spinning.offered(before, after);
        driver
    }

    /// Takes the lock after others had an opportunity to.
    fn lock(&self) -> Guard<'a> {
        for _ in 0..CONTENDER_SPINS {
            if self.shared.contenders.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        self.shared.lock_regardless()
    }

    /// Releases the lock for threads that have completions to see or requests to submit, and for
    /// continuations.
    fn lend(&mut self, driver: Guard<'a>) -> Guard<'a> {
        let is_needed = !self.bells.is_empty() || !self.followed.is_empty();
        if !is_needed && self.shared.contenders.load(Ordering::Relaxed) == 0 {
            return driver;
        }
        drop(driver);
        ring(&mut self.bells);
        self.followed.call();
        self.lock()
    }

    fn sleep(&mut self, mut driver: Guard<'a>) -> Guard<'a> {
        driver.adapter.flush();
        if !matches!(driver.adapter.arm(), Ok(true)) {
            // There are events to poll, or the descriptor is of no use: poll again.
            return self.lend(driver);
        }
        let now = Instant::now();
        let until = [driver.next_timeout(), self.until, self.look].into_iter().flatten().min();
        let time = until.map(|at| at.since(now));
        if !self.shared.wakeup.is_intact() {
            driver.lose_descriptors();
            return driver;
        }
        let Some(descriptor) = driver.adapter.descriptor() else { return driver };
        let descriptor = self.shared.wakeup.sleeper(descriptor);
        driver.leader = Leader::Sleeping;
        drop(driver);
        if descriptor.sleep(time) {
            self.shared.wakeup.clear();
        }
        let mut driver = self.shared.lock_regardless();
        driver.leader = Leader::Polling;
        driver.spinning.slept(now, Instant::now());
        self.spins = 0;
        driver
    }

    fn follow(&mut self, mut driver: Guard<'a>) -> Guard<'a> {
        if driver.is_gathering() {
            // This thread waits in place of its poll.
            self.shared.hurry(&mut driver);
        }
        let bell = driver.followers.enter(self.tag);
        let until = [self.until, self.look].into_iter().flatten().min();
        let time = until.map(|at| at.since(Instant::now()));
        let mut driver = match time {
            Some(time) => {
                let result = bell.wait_timeout(driver, time);
                result.0
            }
            None => bell.wait(driver),
        };
        driver.followers.depart(bell);
        driver
    }

    /// Leaves. Without another leader a follower must lead; a thread that was woken to lead and
    /// leaves at once, because its result is there, passes the lead on here.
    fn leave(&mut self, mut driver: Guard<'a>) {
        if std::mem::take(&mut self.leading) {
            driver.leader = Leader::Nobody;
        }
        let mut is_followed = false;
        self.followed.append(&mut driver.followed);
        let passes_on = self.waited || driver.followers.is_empty();
        if driver.leader == Leader::Nobody && passes_on {
            driver.followers.take_next(&mut self.bells);
            is_followed = self.bells.is_empty() && driver.is_followed();
            if self.bells.is_empty() && !is_followed && driver.is_unattended() {
                // It may have seen that there was a leader, and gone to sleep.
                self.shared.helper.attend();
            }
        }
        self.left = true;
        drop(driver);
        ring(&mut self.bells);
        if is_followed {
            self.shared.mover.attend();
        }
        self.followed.call();
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // Only a panic gets here without having left; its frames have released the lock. The thread
        // may have led, or have been removed from the list to lead.
        if !self.left {
            let driver = self.shared.lock_regardless();
            self.leave(driver);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::BackStage;
    use crate::served::{Served, Wire, connected};
    use crate::{Client, Result};
    use std::sync::mpsc::{Receiver, channel};

    /// A timeout that is reached only by a deadlock.
    const STUCK: Duration = Duration::from_secs(20);

    /// A client to be driven by this thread and another one that does `work` and sends its result,
    /// and the driver under its lock: the other one follows, and there is no leader.
    fn followed<T: Send + 'static>(
        client: &Client,
        work: impl FnOnce(&Client) -> T + Send + 'static,
    ) -> (Guard<'_>, Receiver<T>) {
        let shared = client.shared();
        // The other thread sees this one as the leader.
        shared.lock_regardless().leader = Leader::Polling;
        let (said, hears) = channel();
        let other = client.clone();
        std::thread::spawn(move || {
            let _ = said.send(work(&other));
            // This one may sleep.
            other.shared().wakeup.ring();
        });
        loop {
            let mut driver = shared.lock_regardless();
            if !driver.followers.is_empty() {
                driver.leader = Leader::Nobody;
                return (driver, hears);
            }
            drop(driver);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_leader_hands_over_however_it_leaves() {
        type Leave = fn(&Shared, Guard<'_>);
        let ways: [(&str, Leave); 4] = [
            ("result", |shared, driver| {
                let mut looks = 0;
                let left = Waiter::new(shared, None, None).run(driver, |_| {
                    looks += 1;
                    (looks > 1).then_some(())
                });
                left.unwrap();
            }),
            ("time", |shared, driver| {
                let time = Some(Duration::from_millis(1));
                let left = Waiter::new(shared, time, None).run(driver, |_| -> Option<()> { None });
                assert!(matches!(left, Err(Error::TimedOut(_))));
            }),
            ("panic", |shared, driver| {
                let mut looks = 0;
                let wait = std::panic::AssertUnwindSafe(|| {
                    Waiter::new(shared, None, None).run(driver, |_| -> Option<()> {
                        looks += 1;
                        assert!(looks < 2, "as planned");
                        None
                    })
                });
                assert!(std::panic::catch_unwind(wait).is_err());
            }),
            ("stop", |shared, driver| {
                let left = limit::interruptible(
                    || true,
                    || Waiter::new(shared, None, None).run(driver, |_| -> Option<()> { None }),
                );
                assert!(matches!(left, Err(Error::TimedOut(_))));
            }),
        ];
        let served = Served::new();
        for (way, leave) in ways {
            let wire = Wire::new(served.address, || None);
            let client = wire.client();
            // The helper would lead sooner or later.
            client.shared().helper.stop();
            let held = wire.held.lock().unwrap();
            let (driver, hears) = followed(&client, |client| client.ping());
            leave(client.shared(), driver);
            drop(held);
            let answered: Result<_> = hears.recv_timeout(STUCK).expect(way);
            answered.unwrap();
        }
    }

    #[test]
    fn a_thread_whose_result_is_there_wakes_no_follower() {
        let served = Served::new();
        let wire = Wire::new(served.address, || None);
        let client = wire.client();
        client.shared().helper.stop();
        let held = wire.held.lock().unwrap();
        let (driver, hears) = followed(&client, |client| client.ping());
        let shared = client.shared();
        Waiter::new(shared, None, None).run(driver, |_| Some(())).unwrap();
        let driver = shared.lock_regardless();
        assert!(!driver.followers.is_empty());
        let mut looks = 0;
        let waited = Waiter::new(shared, None, None).run(driver, |_| {
            looks += 1;
            (looks > 1).then_some(())
        });
        waited.unwrap();
        drop(held);
        let answered: Result<_> = hears.recv_timeout(STUCK).unwrap();
        answered.unwrap();
    }

    #[test]
    fn a_change_of_stage_wakes_who_waits_for_no_single_operation() {
        let (_served, client) = connected();
        let shared = client.shared();
        let (driver, hears) = followed(&client, |client| {
            let is_bound = |driver: &mut Driver| driver.core.back_stage() == BackStage::Bound;
            client.shared().wait_any(None, |driver| is_bound(driver).then_some(()))
        });
        drop(driver);
        shared.listen().unwrap();
        let driver = shared.lock_regardless();
        // Leads until the other thread, which only this one can wake, has its result.
        let waiter = Waiter::new(shared, Some(STUCK), None);
        waiter.run(driver, |_| hears.try_recv().ok()).unwrap().unwrap();
    }

    #[test]
    fn a_panic_gives_up_the_lead() {
        let (_served, client) = connected();
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
        let (_served, client) = connected();
        thread_local! {
            static CLIENT: std::cell::RefCell<Option<Client>> =
                const { std::cell::RefCell::new(None) };
        }
        CLIENT.set(Some(client.clone()));
        // The interruption callback may use the client.
        let stop = || CLIENT.take().unwrap().ping().is_ok();
        let waited = limit::interruptible(stop, || {
            client.shared().wait_any(None, |_| -> Option<()> { None })
        });
        assert!(matches!(waited, Err(Error::TimedOut(_))));
        assert!(!client.shared().lock_regardless().is_led());
        client.ping().unwrap();
    }
}
