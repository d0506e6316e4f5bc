//! The transfers of an asynchronous batch, each with a result of its own.

use crate::core::{BatchCall, BatchHints};
use crate::driver::{Driver, Shared, Slot};
use crate::error::{Error, Result};
use crate::limit::{self, Limit};
use crate::outcome::moved;
use std::sync::Arc;
use std::time::Duration;

use super::Transfer;

/// The transfers as calls of the session, without their tags.
pub(super) fn calls_of(transfers: &[Transfer]) -> Vec<BatchCall> {
    let call = |transfer: &Transfer| BatchCall {
        tag: 0,
        handle: transfer.handle,
        state_id: transfer.state_id,
        chunks: transfer.chunks.to_vec(),
        pieces: transfer.pieces.to_vec(),
        write: transfer.writes.as_ref().map(|(_, verifier)| *verifier),
    };
    transfers.iter().map(call).collect()
}

/// Transfers under way, in the order in which they were added to their batch.
pub(super) struct Flights {
    shared: Arc<Shared>,
    /// `None` once the result has been taken.
    slots: Vec<Option<Slot>>,
    /// Transfers whose result has not been taken.
    left: usize,
    /// The index at which the search for results begins: they come about in order.
    next: usize,
}

impl Flights {
    /// Hands the transfers to the session.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        transfers: &[Transfer],
        hints: BatchHints,
    ) -> Result<Self> {
        let calls = calls_of(transfers);
        let writes = transfers
            .iter()
            .map(|transfer| transfer.writes.as_ref().map(|(writes, _)| writes.clone()));
        let slots = shared.submit_batch(calls, writes.collect(), hints)?;
        let left = slots.len();
        let slots = slots.into_iter().map(Some).collect();
        Ok(Self { shared: shared.clone(), slots, left, next: 0 })
    }

    /// Transfers without a result, or with one that has not been taken.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// True when all results are there.
    pub(super) fn is_done(&self) -> bool {
        self.slots.iter().flatten().all(|slot| self.shared.is_done(slot))
    }

    /// The next result, with the index of its transfer; `None` when all have been taken.
    pub(super) fn next(
        &mut self,
        time: Option<Duration>,
    ) -> Result<Option<(usize, Result<usize>)>> {
        if self.left == 0 {
            return Ok(None);
        }
        let (first, count) = (self.next, self.slots.len());
        if time.is_none() && (Limit::current().is_some() || limit::can_be_stopped()) {
            self.hold_to_limit()?;
        }
        let slots = &mut self.slots;
        let take = |driver: &mut Driver| {
            (first..first + count).map(|place| place % count).find_map(|place| {
                let done = driver.take(slots[place].as_ref()?)?;
                slots[place] = None;
                Some((place, done))
            })
        };
        // The rest of the wait is short, and the caller may not reuse the memory before its end.
        let (place, done) = match time {
            None => limit::without(|| self.shared.wait_any(None, take))?,
            time => self.shared.wait_any(time, take)?,
        };
        self.left -= 1;
        self.next = place + 1;
        let result = moved(done, self.shared.server_name()).map(|moved| moved.bytes);
        Ok(Some((place, result)))
    }

    /// Waits for the next result until the limit of this thread; after that, all transfers end as
    /// soon as the server has released their memory.
    fn hold_to_limit(&self) -> Result<()> {
        let any_done = |driver: &mut Driver| {
            let mut slots = self.slots.iter().flatten();
            slots.any(|slot| driver.is_done(slot)).then_some(())
        };
        match (self.shared.wait_any(None, any_done), Limit::current()) {
            (Err(Error::TimedOut(_)), Some(limit)) => {
                let mut slots = self.slots.iter().flatten();
                slots.try_for_each(|slot| self.shared.end_soon(slot, limit.after))
            }
            (other, _) => other,
        }
    }

    /// Asks the server not to wait for the window any longer (HURRY_UP).
    pub(super) fn hurry(&self, place: usize) -> Result<()> {
        match self.slots.get(place) {
            Some(Some(slot)) => self.shared.hurry_transfer(slot),
            _ => Ok(()),
        }
    }

    /// Cancels the transfers that have not been handed to the server, and asks it to take the
    /// others out; returns the indexes of those cancelled.
    pub(super) fn cancel(&mut self) -> Result<Vec<usize>> {
        let taken = self.shared.cancel_transfers(&mut self.slots)?;
        self.left -= taken.len();
        Ok(taken)
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        for slot in self.slots.drain(..).flatten() {
            self.shared.abandon(slot);
        }
    }
}

/// The result of a cancelled transfer.
pub(super) fn canceled() -> Result<usize> {
    Err(Error::Canceled)
}
