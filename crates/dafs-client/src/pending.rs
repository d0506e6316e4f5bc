//! Operations in flight.

use crate::driver::{Driver, Shared, Slot};
use crate::error::{Error, Result};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The result of an operation that has been started. Dropping it gives up the result, not the
/// operation.
#[must_use = "an operation whose result is not looked at may have failed"]
pub struct Pending<T> {
    shared: Arc<Shared>,
    slot: Option<Slot>,
    result: PhantomData<T>,
}

/// What a read or write moved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moved {
    pub(crate) bytes: usize,
    pub(crate) end_of_file: bool,
}

impl Pending<usize> {
    pub(crate) fn submit(
        shared: &Arc<Shared>,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), crate::core::Refused>,
    ) -> Result<Self> {
        let slot = shared.submit(start)?;
        Ok(Self { shared: shared.clone(), slot: Some(slot), result: PhantomData })
    }

    /// As [`submit`](Self::submit); it leaves with [`Shared::send_ahead`], and nobody looks after it before
    /// somebody waits for it.
    pub(crate) fn submit_ahead(
        shared: &Arc<Shared>,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), crate::core::Refused>,
    ) -> Result<Self> {
        let slot = shared.submit_ahead(start)?;
        Ok(Self { shared: shared.clone(), slot: Some(slot), result: PhantomData })
    }

    /// True when [`wait`](Self::wait) will not block. Moves things along without blocking.
    pub fn is_done(&self) -> bool {
        self.slot.as_ref().is_none_or(|slot| self.shared.is_done(slot))
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// That of the operation, or the end of the session.
    pub fn wait(mut self) -> Result<usize> {
        Ok(self.finish(None)?.bytes)
    }

    /// As [`wait_deadline`](Self::wait_deadline).
    pub(crate) fn wait_moved_for(&mut self, time: Duration) -> Result<Moved> {
        self.finish(Some(time))
    }

    /// As [`wait`](Self::wait).
    pub(crate) fn end_moved(&mut self) -> Result<Moved> {
        self.finish(None)
    }

    pub(crate) fn wait_moved(mut self) -> Result<Moved> {
        self.finish(None)
    }

    /// Waits for the result for up to `time`. After [`Error::TimedOut`] it can be asked again.
    ///
    /// # Errors
    /// That of the operation, the end of the session, or [`Error::TimedOut`].
    pub fn wait_deadline(&mut self, time: Duration) -> Result<usize> {
        Ok(self.finish(Some(time))?.bytes)
    }

    /// Gives the operation up if the server cannot reach its memory now: because it has not been sent
    /// yet, or because its connection was lost and is being replaced. Over shared memory that is not
    /// enough for the memory of [`Client::buffer`](crate::Client::buffer). Returns true when the operation
    /// is over; [`wait`](Self::wait) returns at once then, with [`Error::Canceled`] if nothing came
    /// of the operation before. Never blocks; other operations go on.
    ///
    /// False means that the operation is with the server, which cannot be told to forget it, as DAFS has
    /// no such request, or that the server may still move its data. It ends with its answer or with [`ConnectOptions::deadline`]. Wait for that
    /// before the memory is used for something else, or drop this together with the buffer.
    ///
    /// [`ConnectOptions::deadline`]: crate::ConnectOptions::deadline
    pub fn cancel(&mut self) -> bool {
        self.slot.as_ref().is_none_or(|slot| self.shared.cancel(slot))
    }

    fn finish(&mut self, time: Option<Duration>) -> Result<Moved> {
        let Some(slot) = &self.slot else {
            return Err(Error::Argument("the result has been taken already"));
        };
        let result = self.shared.wait_moved(slot, time);
        if !matches!(result, Err(Error::TimedOut(_))) {
            self.slot = None;
        }
        result
    }
}

/// For use in tasks of any executor. A thread of the client's wakes them, which costs some microseconds
/// more than [`wait`](Pending::wait) does. The output is that of `wait`.
impl Future for Pending<usize> {
    type Output = Result<usize>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = &self.slot else {
            return Poll::Ready(Err(Error::Argument("the result has been taken already")));
        };
        let result = std::task::ready!(self.shared.poll_moved(slot, context.waker()));
        if let Some(slot) = self.slot.take()
            && result.is_err()
        {
            // Not all errors are results: where nobody could be had to wake the task, the operation may
            // still be under way.
            self.shared.abandon(slot);
        }
        Poll::Ready(result.map(|moved| moved.bytes))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.shared.abandon(slot);
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.slot.is_some() { "Pending" } else { "Pending(taken)" })
    }
}
