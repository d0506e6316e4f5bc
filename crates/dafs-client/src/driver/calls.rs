//! Requests of threads that wait for the answers, and the ends of operations.

use super::waiter::Waiter;
use super::{Driver, Guard, Shared, Slot, coarse_now};
use crate::acting;
use crate::backoff::{Backoff, is_passing};
use crate::core::{ChainMember, Done, Piece, Refused, ReplyMessage};
use crate::error::{Error, Result};
use crate::limit::Limit;
use crate::outcome::{failure_of, moved};
use crate::pending::Moved;
use dafs_dat::Instant;
use dafs_wire::dafs::{ChainFlags, Request, Status};
use std::time::Duration;

impl Shared {
    /// Sends one request and waits for its answer. Retries while the server answers DELAY or GRACE.
    pub(crate) fn call(&self, request: &Request<'_>) -> Result<ReplyMessage> {
        self.call_with(request, None)
    }

    /// As [`call`](Self::call), for a request that names memory for direct transfer.
    pub(crate) fn call_with(
        &self,
        request: &Request<'_>,
        memory: Option<Piece>,
    ) -> Result<ReplyMessage> {
        self.call_keeping(request, memory, false)
    }

    /// Opens a file; with `keep` the caller keeps the delegation that may come along.
    pub(crate) fn call_open(&self, request: &Request<'_>, keep: bool) -> Result<ReplyMessage> {
        if keep {
            self.await_back()?;
        }
        self.call_keeping(request, None, keep)
    }

    fn call_keeping(
        &self,
        request: &Request<'_>,
        memory: Option<Piece>,
        keep: bool,
    ) -> Result<ReplyMessage> {
        let mut backoff = Backoff::new(self.deadline);
        loop {
            let memory = memory.clone();
            let mut driver = self.lock()?;
            let slot = self.start(&mut driver, |driver, tag| {
                driver.submit(tag, request, memory)?;
                if keep {
                    driver.keeping.insert(tag);
                }
                Ok(())
            })?;
            self.hurry(&mut driver);
            match self.wait_slot(driver, &slot, None)? {
                Done::Answered(reply) if is_passing(reply.status()) && backoff.pause() => {}
                Done::Answered(reply) => return Ok(reply),
                done => return Err(failure_of(done, &self.server)),
            }
        }
    }

    /// Sends requests as a chain and waits for the answers to all of them. Sends them once more if
    /// the server did not know the credential of the first, and so has executed none.
    pub(crate) fn call_chain(
        &self,
        members: &[(Request<'_>, ChainFlags)],
    ) -> Result<Vec<Result<ReplyMessage>>> {
        let replies = self.call_chain_once(members)?;
        match replies.first() {
            Some(Ok(first)) if first.status() == Status::CrHandConflict => {
                self.call_chain_once(members)
            }
            _ => Ok(replies),
        }
    }

    fn call_chain_once(
        &self,
        members: &[(Request<'_>, ChainFlags)],
    ) -> Result<Vec<Result<ReplyMessage>>> {
        Ok(self.wait_replies(&self.start_chain(members)?))
    }

    /// Sends requests as a chain. Each has an answer of its own.
    pub(crate) fn start_chain(&self, members: &[(Request<'_>, ChainFlags)]) -> Result<Vec<Slot>> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        let slots = self.start_all(driver, members.len(), |driver, slots| {
            let chain: Vec<_> = members
                .iter()
                .zip(slots)
                .map(|(&(request, takes), slot)| ChainMember { tag: slot.tag(), request, takes })
                .collect();
            let (core, adapter) = (&mut driver.core, &mut *driver.adapter);
            core.act_as(acting::current());
            core.submit_chain(adapter, coarse_now(), &chain, driver.deadline)
        })?;
        self.hurry(driver);
        Ok(slots)
    }

    /// Runs a read or write and waits for its end.
    pub(crate) fn transfer(
        &self,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
    ) -> Result<Moved> {
        let mut driver = self.lock()?;
        let slot = self.start(&mut driver, start)?;
        self.hurry(&mut driver);
        moved(self.wait_slot(driver, &slot, None)?, &self.server)
    }

    pub(crate) fn wait_done(&self, slot: &Slot, time: Option<Duration>) -> Result<Done> {
        let driver = self.lock()?;
        self.wait_slot(driver, slot, time)
    }

    /// Waits for the answer to any request but a read or write.
    pub(crate) fn wait_reply(&self, slot: &Slot, time: Option<Duration>) -> Result<ReplyMessage> {
        match self.wait_done(slot, time)? {
            Done::Answered(reply) => Ok(reply),
            done => Err(failure_of(done, &self.server)),
        }
    }

    /// Waits for the answers to the members of a chain. They complete together, so that the lock is
    /// most often taken once for all.
    pub(crate) fn wait_replies(&self, slots: &[Slot]) -> Vec<Result<ReplyMessage>> {
        let Some((first, rest)) = slots.split_first() else { return Vec::new() };
        let mut taken = Vec::new();
        let first = self.lock().and_then(|driver| {
            self.wait_slot_and(driver, first, None, |driver| {
                taken.extend(rest.iter().map(|slot| driver.operations.take(slot)));
            })
        });
        let reply = |done: Result<Done>| -> Result<ReplyMessage> {
            match done? {
                Done::Answered(reply) => Ok(reply),
                done => Err(failure_of(done, &self.server)),
            }
        };
        let mut replies = vec![reply(first)];
        let mut taken = taken.into_iter();
        for slot in rest {
            replies.push(match taken.next().flatten() {
                Some(done) => reply(Ok(done)),
                None => self.wait_reply(slot, None),
            });
        }
        replies
    }

    /// Waits for the end of an operation, for up to `time`. Without a time it is over afterwards in
    /// any case: the operation times out with its caller.
    fn wait_slot(&self, driver: Guard<'_>, slot: &Slot, time: Option<Duration>) -> Result<Done> {
        self.wait_slot_and(driver, slot, time, |_| {})
    }

    /// As [`wait_slot`](Self::wait_slot). Calls `also` with the lock when the operation has ended in
    /// time.
    fn wait_slot_and(
        &self,
        driver: Guard<'_>,
        slot: &Slot,
        time: Option<Duration>,
        mut also: impl FnMut(&mut Driver),
    ) -> Result<Done> {
        let take = |driver: &mut Driver| {
            let done = driver.operations.take(slot)?;
            also(driver);
            Some(done)
        };
        if time.is_some() {
            return self.wait_of(driver, time, Some(slot.tag()), take);
        }
        let (left, after) = self.patience();
        let waited = Waiter::new(self, left, Some(slot.tag())).coarse().run(driver, take);
        // An interruption sets a limit.
        match (waited, Limit::current().map(|limit| limit.after).or(after)) {
            (Err(Error::TimedOut(_)), Some(after)) => self.give_up(slot, after),
            (waited, _) => waited,
        }
    }

    /// The longest wait for one operation of a caller that passes no time, and the timeout to
    /// report.
    fn patience(&self) -> (Option<Duration>, Option<Duration>) {
        match Limit::current() {
            Some(Limit { at, after }) => (Some(at.since(coarse_now())), Some(after)),
            None => (self.patience, self.patience),
        }
    }

    /// Ends an operation whose caller has timed out.
    fn give_up(&self, slot: &Slot, after: Duration) -> Result<Done> {
        self.end_soon(slot, after)?;
        let driver = self.lock()?;
        // The server may have to release its memory first.
        let waiter = Waiter::new(self, None, Some(slot.tag()));
        waiter.run(driver, |driver| driver.operations.take(slot))
    }

    /// Ends an operation whose caller has timed out: now, or as soon as the server has released its
    /// memory.
    pub(crate) fn end_soon(&self, slot: &Slot, after: Duration) -> Result<()> {
        let mut driver = self.lock()?;
        if driver.operations.is_done(slot) {
            return Ok(());
        }
        let inner = &mut *driver;
        inner.core.give_up(&mut *inner.adapter, Instant::now(), slot.tag(), after);
        self.tell(&mut driver);
        self.sent(&mut driver);
        Ok(())
    }

    pub(crate) fn is_done(&self, slot: &Slot) -> bool {
        let Ok(mut driver) = self.lock() else { return true };
        if !driver.operations.is_done(slot) {
            self.poll_once(&mut driver);
        }
        driver.operations.is_done(slot)
    }

    /// Cancels an operation if that is possible now, else asks the server to take it out; true when
    /// it is over.
    pub(crate) fn cancel(&self, slot: &Slot) -> bool {
        // A fork has no operations of its own.
        let Ok(mut driver) = self.lock() else { return true };
        self.cancel_by_tag(&mut driver, slot.tag());
        driver.operations.is_done(slot)
    }

    /// Does the same; true when it was cancelled now.
    pub(crate) fn cancel_unsent(&self, slot: &Slot) -> bool {
        self.lock().is_ok_and(|mut driver| self.cancel_by_tag(&mut driver, slot.tag()))
    }

    pub(super) fn cancel_by_tag(&self, driver: &mut Driver, tag: u64) -> bool {
        let is_canceled = driver.core.cancel(&mut *driver.adapter, Instant::now(), tag);
        if is_canceled {
            self.tell(driver);
            self.keep_armed(driver);
        } else {
            self.sent(driver);
        }
        is_canceled
    }

    pub(crate) fn abandon(&self, slot: Slot) {
        if let Ok(mut driver) = self.lock() {
            let waker = driver.operations.abandon(slot);
            // The waker may drop an object that takes the lock.
            drop(driver);
            drop(waker);
        }
    }
}
