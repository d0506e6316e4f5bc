//! The driver's part in the back-control channel: delegations, asynchronous batches and read-ahead.

use super::{Driver, Leader, Shared, Slot, awake_or_not, coarse_now};
use crate::core::{BackStage, BatchCall, BatchHints, Refused, Stage};
use crate::delegation::DelegationHolder;
use crate::error::{Error, Result};
use crate::limits::{BACK_TICK, BACK_WAIT};
use crate::uncommitted::Uncommitted;
use dafs_dat::Instant;
use dafs_wire::dafs::StateId;
use rustc_hash::FxHashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Shared {
    /// Asks for the back-control channel, over which the server can call.
    pub(crate) fn listen(&self) -> Result<()> {
        let mut driver = self.lock()?;
        let inner = &mut *driver;
        if inner.core.back_stage() == BackStage::Off {
            inner.core.want_back(&mut *inner.adapter, coarse_now());
            self.sent(&mut driver);
            self.helper.wake();
        }
        Ok(())
    }

    /// As [`listen`](Self::listen); true when the server may call already. `None` when it never
    /// will.
    pub(crate) fn is_listening(&self) -> Option<bool> {
        self.listen().ok()?;
        match self.lock().ok()?.core.back_stage() {
            BackStage::Off | BackStage::Coming => Some(false),
            BackStage::Bound => Some(true),
            BackStage::Refused(_) => None,
        }
    }

    /// As [`listen`](Self::listen), and waits for it up to [`BACK_WAIT`]. It returns without an
    /// error if there is no channel by then.
    pub(crate) fn await_back(&self) -> Result<()> {
        self.listen()?;
        let driver = self.lock()?;
        let coming = |driver: &Driver| {
            driver.core.back_stage() == BackStage::Coming && driver.core.stage() == Stage::Ready
        };
        match self.wait(driver, Some(BACK_WAIT), |driver| (!coming(driver)).then_some(())) {
            Ok(()) | Err(Error::TimedOut(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns a delegation without a holder, without waiting.
    pub(crate) fn leave_delegation(&self, name: StateId) {
        let Ok(mut driver) = self.lock() else { return };
        driver.holders.remove(name);
        driver.leave_delegation(name);
        driver.leave_all();
        self.sent(&mut driver);
    }

    /// Registers the holder of a delegation; false when that is gone.
    pub(crate) fn hold(
        self: &Arc<Self>,
        name: StateId,
        holder: Weak<dyn DelegationHolder>,
    ) -> Result<bool> {
        let mut driver = self.lock()?;
        if !driver.core.calls.delegations.holds(name) {
            return Ok(false);
        }
        let held = driver.holders.insert(name, holder, self);
        held.map_err(|error| Error::Memory(error.to_string().into()))?;
        self.helper.wake();
        Ok(true)
    }

    /// Removes the holder of a delegation; false when it need not be returned.
    pub(crate) fn release(&self, name: StateId) -> Result<bool> {
        let mut driver = self.lock()?;
        driver.holders.remove(name);
        Ok(driver.core.calls.delegations.returning(name))
    }

    /// Restarts of the server that the holders of delegations have been notified of.
    pub(crate) fn restarts_heard(&self) -> u64 {
        self.restarts.load(Ordering::Acquire)
    }

    pub(crate) fn is_in_lease(&self) -> bool {
        !self.promised().is_zero() && self.pending_notices.load(Ordering::Acquire) == 0
    }

    /// True when a notice has waited for its holder so long that the server may have revoked the
    /// delegation and let others change the file.
    pub(crate) fn is_lease_in_doubt(&self) -> bool {
        if self.pending_notices.load(Ordering::Acquire) == 0 {
            return false;
        }
        let Ok(driver) = self.lock() else { return true };
        driver.holders.oldest_notice_age() > driver.core.info().lease / 3
    }

    /// The time from now on for which the server certainly keeps its promises.
    pub(crate) fn promised(&self) -> Duration {
        // A fork gets no recalls.
        match self.check_process() {
            Ok(()) => Instant(self.lease_until.load(Ordering::Acquire)).since(awake_or_not()),
            Err(_) => Duration::ZERO,
        }
    }

    /// Passes BC_GETATTR questions to the holders, and answers them. Called by the helper thread,
    /// without the lock.
    pub(crate) fn answer_questions(&self) {
        // Without a question it does not take the lock, which would disturb a polling thread every
        // few milliseconds.
        if !self.asked.swap(false, Ordering::Acquire) {
            return;
        }
        loop {
            let next = self.lock_regardless().questions.pop_front();
            let Some((question, holder)) = next else { return };
            let answer = holder.upgrade().and_then(|holder| holder.attributes());
            let mut driver = self.lock_regardless();
            driver.answer(question, answer);
            self.keep_armed(&mut driver);
        }
    }

    /// Makes sure that submitted requests are sent: at once when no other is in flight, no later one
    /// can leave with them for lack of credits, or the leader sleeps; else with the next poll.
    pub(super) fn sent(&self, driver: &mut Driver) {
        match driver.leader {
            Leader::Polling => {}
            Leader::Sleeping => self.hurry(driver),
            Leader::Nobody => {
                if driver.must_send() {
                    driver.adapter.flush();
                }
                self.helper.attend();
            }
        }
    }

    /// Starts a read-ahead operation, whose result is not needed before a thread waits for it.
    /// [`send_ahead`](Self::send_ahead) sends it.
    pub(crate) fn submit_ahead(
        &self,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
    ) -> Result<Slot> {
        let mut driver = self.lock()?;
        let slot = self.start(&mut driver, start)?;
        driver.operations.is_ahead(&slot);
        Ok(slot)
    }

    /// Sends read-ahead, and wakes no thread that polls from time to time anyway.
    pub(crate) fn send_ahead(&self) {
        let Ok(mut driver) = self.lock() else { return };
        match driver.leader {
            Leader::Polling => {}
            Leader::Sleeping => self.hurry(&mut driver),
            Leader::Nobody => {
                driver.adapter.flush();
                if driver.is_unattended() {
                    self.helper.attend();
                }
            }
        }
    }

    /// Polls for calls of the server and for read-ahead, unless a thread has done so lately. For
    /// readers that find their data in memory.
    pub(crate) fn hear_now_and_then(&self) {
        let now = coarse_now();
        if now.since(Instant(self.heard_at.load(Ordering::Relaxed))) < BACK_TICK {
            return;
        }
        self.heard_at.store(now.0, Ordering::Relaxed);
        if self.check_process().is_ok() {
            self.move_along(false);
        }
    }

    /// Sends submitted requests if no other thread is about to: the leader sleeps, and the caller
    /// will wait for the answer.
    pub(super) fn hurry(&self, driver: &mut Driver) {
        if driver.leader == Leader::Sleeping {
            driver.gathering = false;
            driver.adapter.flush();
            self.keep_armed(driver);
        }
    }

    /// Submits an asynchronous batch; `writes` records unstable writes.
    pub(crate) fn submit_batch(
        &self,
        mut calls: Vec<BatchCall>,
        writes: Vec<Option<Arc<Uncommitted>>>,
        hints: BatchHints,
    ) -> Result<Vec<Slot>> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        let slots = self.start_all(driver, calls.len(), |driver, slots| {
            for ((call, slot), writes) in calls.iter_mut().zip(slots).zip(writes) {
                call.tag = slot.tag();
                driver.operations.watch(slot.tag(), writes);
            }
            let (core, adapter) = (&mut driver.core, &mut *driver.adapter);
            core.submit_batch(adapter, coarse_now(), calls, hints, driver.deadline)
        })?;
        self.sent(driver);
        Ok(slots)
    }

    /// Waits until `take` yields the result of some operation.
    pub(crate) fn wait_any<T>(
        &self,
        time: Option<Duration>,
        take: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<T> {
        let driver = self.lock()?;
        self.wait(driver, time, take)
    }

    /// Asks the server not to wait for the window of a transfer.
    pub(crate) fn hurry_transfer(&self, slot: &Slot) -> Result<()> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        driver.core.hurry_transfer(&mut *driver.adapter, coarse_now(), slot.tag());
        self.sent(driver);
        Ok(())
    }

    /// Cancels transfers of a batch that the server does not have, and takes their slots. Returns
    /// their places. The server is asked to take out the others, or to begin with them at once where
    /// that is all that it can do.
    pub(crate) fn cancel_transfers(&self, slots: &mut [Option<Slot>]) -> Result<Vec<usize>> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        let mut left: FxHashSet<u64> = slots.iter().flatten().map(Slot::tag).collect();
        let taken: FxHashSet<u64> = driver.core.cancel_transfers(&mut left).into_iter().collect();
        let mut places = Vec::new();
        for (place, entry) in slots.iter_mut().enumerate() {
            if let Some(slot) = entry.take_if(|slot| taken.contains(&slot.tag())) {
                driver.operations.forget(slot);
                places.push(place);
            }
        }
        let (core, adapter) = (&mut driver.core, &mut *driver.adapter);
        core.cancel_transfers_at_server(adapter, coarse_now(), &mut left);
        for tag in left {
            core.hurry_transfer(adapter, coarse_now(), tag);
        }
        self.sent(driver);
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use super::Leader;
    use crate::served::{Served, TRANSPORTS, connected, open_file, pattern};
    use crate::{CacheOptions, Client, File, OpenOptions, Stability};
    use dafs_testkit::eventually;
    use std::sync::atomic::{AtomicBool, Ordering};

    const PIECE: usize = 32 << 10;

    /// Reads in sequence; true if there was read-ahead without a thread that makes progress.
    fn read(client: &Client, file: &File, want: &[u8]) -> bool {
        let (mut found, mut was_ahead) = (vec![0; PIECE], false);
        for (at, want) in (0..).step_by(PIECE).zip(want.chunks(PIECE)) {
            assert_eq!(file.read_at(&mut found, at).unwrap(), PIECE);
            assert!(found == want);
            let driver = client.shared().lock_regardless();
            was_ahead |= driver.operations.ahead() > 0 && !driver.is_unattended();
        }
        was_ahead
    }

    #[test]
    fn a_reader_ahead_hears_the_server_without_the_helper() {
        let data = pattern(12 << 20);
        for transport in TRANSPORTS {
            let served = Served::new();
            std::fs::write(served.path().join("file"), &data).unwrap();
            let other = served.client(transport);
            let client = served.client_with(|options| {
                options.transport = transport;
                options.cache = Some(CacheOptions::for_readers(4 << 20));
            });
            let file = client.open(b"file", &OpenOptions::read()).unwrap();
            while !read(&client, &file, &data) {}
            client.shared().helper.stop();
            assert!(read(&client, &file, &data), "it goes on");
            let is_written = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let file = other.open(b"file", &OpenOptions::write()).unwrap();
                    // The write changes no byte: it waits until the delegation has been returned.
                    file.write_at(&data[7..8], 7, Stability::Unstable).unwrap();
                    is_written.store(true, Ordering::Release);
                });
                let begun = std::time::Instant::now();
                while !is_written.load(Ordering::Acquire) {
                    read(&client, &file, &data);
                    assert!(
                        begun.elapsed() < client.shared().info().lease,
                        "nobody heard the server"
                    );
                }
            });
        }
    }

    #[test]
    fn submissions_gather_until_no_later_one_can_leave_with_them() {
        const BYTES: usize = 100;
        let (served, client) = connected();
        let (file, buffer) = (open_file(&client), client.buffer(BYTES).unwrap());
        let group = client.completion_group();
        // It would send them soon.
        client.shared().helper.stop();
        let written = || served.content("file").len() / BYTES;
        let mut count = 0;
        while client.stats().queued == 0 {
            let at = (count * BYTES) as u64;
            group.write(7, &file, &buffer, 0..BYTES, at, Stability::Unstable).unwrap();
            count += 1;
            if count == 4 {
                eventually("the first one has left alone", || written() == 1);
            }
        }
        eventually("all that have a credit have left", || written() == count - 1);
        let mut completions = Vec::new();
        assert_eq!(group.wait(&mut completions, usize::MAX, None).unwrap(), count);
        assert!(completions.iter().all(|done| matches!(done.result, Ok(BYTES))));
    }

    #[test]
    fn a_polled_group_gathers_while_a_thread_sleeps_for_it() {
        const BYTES: usize = 100;
        let (served, client) = connected();
        let (file, buffer) = (open_file(&client), client.buffer(BYTES).unwrap());
        let (group, mut completions) = (client.completion_group(), Vec::new());
        group.promise_polls();
        let written = || served.content("file").len() / BYTES;
        let write = |count: usize| {
            let at = (count * BYTES) as u64;
            group.write(7, &file, &buffer, 0..BYTES, at, Stability::Unstable).unwrap();
        };
        let lead = |leader| client.shared().lock_regardless().leader = leader;
        // As while the mover thread sleeps.
        lead(Leader::Sleeping);
        (0..4).for_each(write);
        eventually("the helper has sent what no poll has sent", || written() == 4);
        lead(Leader::Nobody);
        assert_eq!(group.wait(&mut completions, usize::MAX, None).unwrap(), 4);
        client.shared().helper.stop();
        lead(Leader::Sleeping);
        (4..8).for_each(write);
        eventually("the first one has left alone", || written() == 5);
        group.poll(&mut completions);
        eventually("the others have left together", || written() == 8);
        (8..12).for_each(write);
        let time = Some(std::time::Duration::from_millis(1));
        assert!(group.wait(&mut completions, usize::MAX, time).is_err(), "nobody polls");
        eventually("the one who waits has sent them", || written() == 12);
        lead(Leader::Nobody);
        group.wait(&mut completions, usize::MAX, None).unwrap();
        assert_eq!(completions.len(), 12);
    }
}
