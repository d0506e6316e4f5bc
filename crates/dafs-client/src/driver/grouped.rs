//! The driver's part in completion groups and tasks.

use super::{Driver, Guard, Leader, Shared, Slot, coarse_now};
use crate::cache::DirectUse;
use crate::core::{BatchCall, BatchHints, Done, Refused};
use crate::error::{Error, Result};
use crate::group::{Completion, GroupState, OperationId};
use crate::operations::GroupedKind;
use crate::uncommitted::Uncommitted;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};

impl Shared {
    /// Starts an operation whose result goes to a group.
    pub(crate) fn submit_in(
        &self,
        group: &Arc<GroupState>,
        kind: GroupedKind,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
    ) -> Result<OperationId> {
        let count = kind.count();
        group.reserve(count)?;
        let started = self.start_in(group, kind, start);
        if started.is_err() {
            group.give_back(count);
        }
        started
    }

    /// As [`submit_in`](Self::submit_in), in room that has been reserved and stays so.
    pub(crate) fn start_in(
        &self,
        group: &Arc<GroupState>,
        kind: GroupedKind,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
    ) -> Result<OperationId> {
        let mut driver = self.lock()?;
        let slot = driver.operations.open_grouped(group, kind).ok_or(Error::TooMany)?;
        let operation = OperationId(slot.tag());
        if let Err(refused) = start(&mut driver, operation.0) {
            driver.operations.forget(slot);
            return Err(self.refused(refused));
        }
        self.tell(&mut driver);
        self.leave_soon(driver, group);
        Ok(operation)
    }

    /// Completes operations that were not started, in room that has been reserved for them.
    pub(crate) fn refuse_in(&self, group: &GroupState, user_data: &[u64], error: &Error) {
        let mut driver = self.lock_regardless();
        group.refuse(user_data, error);
        self.wake_waiters(&mut driver);
    }

    /// Puts completions of a group back.
    pub(crate) fn put_back_in(&self, group: &GroupState, completions: Vec<Completion>) {
        let mut driver = self.lock_regardless();
        group.put_back(completions);
        self.wake_waiters(&mut driver);
    }

    /// Makes sure that operations of a group are sent: at once if no other is in flight, else with
    /// the next poll, which sends all at once. If a leader sleeps, only a program that has promised
    /// that poll has them wait for it, and the helper polls in its place if need be.
    fn leave_soon(&self, mut driver: Guard<'_>, group: &GroupState) {
        if driver.leader == Leader::Sleeping && group.is_polled() && !driver.must_send() {
            driver.gathering = true;
            self.helper.attend();
        } else {
            self.sent(&mut driver);
        }
        drop(driver);
        if group.is_watched() {
            self.mover.attend();
        }
    }

    /// Submits an asynchronous batch whose results go to a group, which has room for them; `writes`
    /// records unstable writes.
    pub(crate) fn submit_batch_in(
        &self,
        group: &Arc<GroupState>,
        user_data: Vec<u64>,
        mut calls: Vec<BatchCall>,
        writes: Vec<Option<Arc<Uncommitted>>>,
        hints: BatchHints,
        used: &Option<Arc<DirectUse>>,
    ) -> Result<Vec<OperationId>> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        let mut slots = Vec::with_capacity(calls.len());
        for ((call, user_data), writes) in calls.iter_mut().zip(user_data).zip(writes) {
            let kind = GroupedKind::Transfer(user_data);
            let Some(slot) = driver.operations.open_grouped(group, kind) else { break };
            call.tag = slot.tag();
            driver.operations.watch(slot.tag(), writes);
            driver.operations.keep(slot.tag(), used.clone());
            slots.push(slot);
        }
        let operations = slots.iter().map(|slot| OperationId(slot.tag())).collect();
        let taken = if slots.len() == calls.len() {
            let (core, adapter) = (&mut driver.core, &mut *driver.adapter);
            core.submit_batch(adapter, coarse_now(), calls, hints, driver.deadline)
        } else {
            Err(Refused::Full)
        };
        if let Err(refused) = taken {
            slots.into_iter().for_each(|slot| driver.operations.forget(slot));
            return Err(self.refused(refused));
        }
        self.tell(driver);
        self.leave_soon(guard, group);
        Ok(operations)
    }

    /// Polls once, unless another thread does. With `patient` it waits for the lock of that thread.
    pub(crate) fn move_along(&self, patient: bool) {
        let driver = match self.lock_if_free() {
            None if patient => Some(self.lock_regardless()),
            driver => driver,
        };
        if let Some(mut driver) = driver {
            self.poll_once(&mut driver);
        }
    }

    /// Cancels an operation of a group if that is possible now, else asks the server to take it out;
    /// true when it is over.
    pub(crate) fn cancel_tag(&self, tag: u64) -> bool {
        let Ok(mut guard) = self.lock() else { return true };
        let driver = &mut *guard;
        if !driver.operations.is_in_flight(tag) {
            return true;
        }
        self.cancel_by_tag(driver, tag);
        !driver.operations.is_in_flight(tag)
    }

    /// Asks the server not to wait for the window of a transfer.
    pub(crate) fn hurry_tag(&self, tag: u64) -> Result<()> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        driver.core.hurry_transfer(&mut *driver.adapter, coarse_now(), tag);
        self.sent(driver);
        Ok(())
    }

    /// Marks a group as watched: a thread sleeps on its descriptor.
    pub(crate) fn watch_group(&self, group: &Arc<GroupState>) {
        let mut driver = self.lock_regardless();
        driver.operations.watch_group(group);
        let watched = driver.is_watched();
        drop(driver);
        if watched {
            self.mover.attend();
        }
    }

    /// Makes sure that the mover thread runs.
    pub(crate) fn start_mover(self: &Arc<Self>) -> Result<()> {
        self.mover.start(self).map_err(|error| Error::Memory(error.to_string().into()))
    }

    /// True if `work` wakes a leader that sleeps.
    #[cfg(test)]
    pub(crate) fn wakes_a_sleeper(&self, work: impl FnOnce(&Self)) -> bool {
        use std::os::fd::AsRawFd;
        self.lock_regardless().leader = Leader::Sleeping;
        work(self);
        self.lock_regardless().leader = Leader::Nobody;
        let fd = self.wakeup.descriptor().as_raw_fd();
        let mut wait = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        // SAFETY: the list is valid for the call.
        unsafe { libc::poll(wait.as_mut_ptr(), 1, 0) == 1 }
    }

    /// Makes the start of the mover thread fail.
    #[cfg(test)]
    pub(crate) fn break_mover(&self) {
        self.mover.break_it();
    }

    #[cfg(test)]
    pub(crate) fn hold_mover(&self) -> impl Sized {
        self.mover.hold()
    }

    /// The result of an operation, if it is over; else `waker` is called when it is. After an error
    /// the operation may still be in flight.
    pub(crate) fn poll_done(self: &Arc<Self>, slot: &Slot, waker: &Waker) -> Poll<Result<Done>> {
        let done = |done: Done| Poll::Ready(Ok(done));
        let mut driver = match self.lock() {
            Ok(driver) => driver,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if let Some(result) = driver.operations.take(slot) {
            return done(result);
        }
        self.poll_once(&mut driver);
        if let Some(result) = driver.operations.take(slot) {
            return done(result);
        }
        drop(driver);
        if let Err(error) = self.start_mover() {
            return Poll::Ready(Err(error));
        }
        // Wakers are the application's: they are cloned and dropped without the lock.
        let waker = waker.clone();
        let mut driver = self.lock_regardless();
        if let Some(result) = driver.operations.take(slot) {
            drop(driver);
            return done(result);
        }
        let unneeded = driver.operations.wake(slot, waker);
        self.hurry(&mut driver);
        drop(driver);
        drop(unneeded);
        self.mover.attend();
        Poll::Pending
    }

    /// Makes progress for watched operations, and for those with a continuation while no other
    /// thread leads. Called by the mover thread.
    pub(crate) fn move_watched(&self) {
        loop {
            let mut wakers = Vec::new();
            let driver = self.lock_regardless();
            if !driver.is_watched() && driver.wakers.is_empty() && driver.is_led() {
                // A leader that stops while continuations are left wakes this thread again.
                return;
            }
            let waited = self.wait(driver, None, |driver| {
                wakers.append(&mut driver.wakers);
                let needed = driver.is_watched() || driver.is_followed();
                (!wakers.is_empty() || !needed).then_some(needed)
            });
            for waker in wakers.drain(..) {
                // The panic has been reported, and the other wakers must still be called.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
            if !matches!(waited, Ok(true)) {
                return;
            }
        }
    }
}
