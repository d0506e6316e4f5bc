//! Operations in flight.
//!
//! Invariants
//! * The outcome of an operation is reported once, to the caller that takes the result, and not
//!   before. A dropped result was not reported, so the next COMMIT reports a loss again.

use crate::core::Done;
use crate::driver::{Driver, Shared, Slot};
use crate::error::{Error, Result};
use crate::layouts::Flight;
use crate::optimistic::ReadStart;
use crate::outcome::moved;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The result of an operation that has been started: the bytes moved by a read or write, the offset
/// of an append, nothing of a commit. Dropping it abandons the result, not the operation. The
/// client completes through the server the part that a data server has not done. It may do so later
/// than operations started afterwards, but always before the file is closed.
#[must_use = "an operation whose result is not looked at may have failed"]
pub struct Pending<T> {
    shared: Arc<Shared>,
    way: Way,
    tell: Tell<T>,
}

/// The way of an operation.
enum Way {
    Server(Slot),
    DataServers(Box<Flight>),
    /// A read that is over, without a request.
    Hit(Moved),
    /// The result has been taken.
    Over,
}

/// Converts the end of an operation into its result.
type Tell<T> = Box<dyn Fn(Done, &Arc<str>) -> Result<T> + Send + Sync>;

/// The result of a read or write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moved {
    pub(crate) bytes: usize,
    pub(crate) end_of_file: bool,
}

impl Moved {
    /// The result of a read, as the server would have returned it.
    pub(crate) fn into_read(self) -> Done {
        // INVARIANT: it is no longer than the longest transfer that the server takes.
        Done::Read { bytes: self.bytes as u32, end_of_file: self.end_of_file }
    }
}

impl Pending<usize> {
    /// Submits a read to the server, unless it is over.
    pub(crate) fn read(shared: &Arc<Shared>, read: ReadStart) -> Result<Self> {
        match read {
            ReadStart::Hit(moved) => Ok(Self::of(shared, Way::Hit(moved))),
            ReadStart::Request(call) => {
                Self::submit(shared, |driver, tag| driver.submit_read(tag, call))
            }
        }
    }

    /// As [`read`](Self::read), for [read-ahead](Self::submit_ahead).
    pub(crate) fn read_ahead(shared: &Arc<Shared>, read: ReadStart) -> Result<Self> {
        match read {
            ReadStart::Hit(moved) => Ok(Self::of(shared, Way::Hit(moved))),
            ReadStart::Request(call) => {
                Self::submit_ahead(shared, |driver, tag| driver.submit_read(tag, call))
            }
        }
    }

    fn of(shared: &Arc<Shared>, way: Way) -> Self {
        Self { shared: shared.clone(), way, tell: Box::new(bytes) }
    }

    pub(crate) fn submit(
        shared: &Arc<Shared>,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), crate::core::Refused>,
    ) -> Result<Self> {
        Self::submit_to(shared, start, bytes)
    }

    /// As [`submit`](Self::submit), for read-ahead: [`Shared::send_ahead`] sends it, and no thread
    /// makes progress for it before one waits for it.
    pub(crate) fn submit_ahead(
        shared: &Arc<Shared>,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), crate::core::Refused>,
    ) -> Result<Self> {
        Ok(Self::of(shared, Way::Server(shared.submit_ahead(start)?)))
    }

    /// A read or write that was sent to data servers.
    pub(crate) fn at_data_servers(shared: &Arc<Shared>, flight: Flight) -> Self {
        Self::of(shared, Way::DataServers(Box::new(flight)))
    }

    /// As [`wait_deadline`](Self::wait_deadline).
    pub(crate) fn wait_moved_for(&mut self, time: Duration) -> Result<Moved> {
        moved(self.finish(Some(time))?, self.shared.server_name())
    }

    /// As [`wait`](Self::wait).
    pub(crate) fn end_moved(&mut self) -> Result<Moved> {
        moved(self.finish(None)?, self.shared.server_name())
    }

    pub(crate) fn wait_moved(mut self) -> Result<Moved> {
        self.end_moved()
    }
}

const TAKEN: Error = Error::Argument("the result has been taken already");

fn bytes(done: Done, server: &Arc<str>) -> Result<usize> {
    Ok(moved(done, server)?.bytes)
}

impl<T> Pending<T> {
    /// Starts an operation whose result `tell` makes.
    pub(crate) fn submit_to(
        shared: &Arc<Shared>,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), crate::core::Refused>,
        tell: impl Fn(Done, &Arc<str>) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        let slot = shared.submit(start)?;
        Ok(Self { shared: shared.clone(), way: Way::Server(slot), tell: Box::new(tell) })
    }

    /// True when [`wait`](Self::wait) will not block, unless data servers have left a part undone
    /// that the server is still to do. Makes progress without blocking.
    pub fn is_done(&self) -> bool {
        match &self.way {
            Way::Server(slot) => self.shared.is_done(slot),
            Way::DataServers(flight) => flight.is_done(),
            Way::Hit(_) | Way::Over => true,
        }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// That of the operation, or the end of the session.
    pub fn wait(mut self) -> Result<T> {
        let done = self.finish(None)?;
        (self.tell)(done, self.shared.server_name())
    }

    /// Waits for the result for up to `time`. After [`Error::TimedOut`] the caller may wait again.
    ///
    /// # Errors
    /// That of the operation, the end of the session, or [`Error::TimedOut`].
    pub fn wait_deadline(&mut self, time: Duration) -> Result<T> {
        let done = self.finish(Some(time))?;
        (self.tell)(done, self.shared.server_name())
    }

    /// Cancels the operation if the server cannot reach its memory now: because it has not been
    /// sent yet, or because its connection was lost and is being replaced. Over shared memory a
    /// lost connection is not enough for the memory of [`Client::buffer`](crate::Client::buffer).
    /// Returns true when the operation is over; [`wait`](Self::wait) returns at once then, with
    /// [`Error::Canceled`] if the operation had no result before. Never blocks; other operations go
    /// on.
    ///
    /// False means that the server has the operation, or may still move its data. A server with the
    /// extension X_CANCEL is asked to take the operation out if it has not begun; then it ends with
    /// [`Error::Canceled`], and nothing of it has happened. An operation that was sent again after the
    /// loss of a connection, and may have been carried out before, is not taken out. The question
    /// waits while stuck operations hold all credits of the session. Otherwise it ends with its answer or with
    /// [`ConnectOptions::deadline`]. Wait for that before the memory is used for something else, or
    /// drop this together with the buffer.
    ///
    /// [`ConnectOptions::deadline`]: crate::ConnectOptions::deadline
    pub fn cancel(&mut self) -> bool {
        match &mut self.way {
            Way::Server(slot) => self.shared.cancel(slot),
            // The parts at data servers may have begun, so they are not cancelled one by one.
            Way::DataServers(flight) => flight.cancel(),
            Way::Hit(_) | Way::Over => true,
        }
    }

    fn finish(&mut self, time: Option<Duration>) -> Result<Done> {
        let result = match &mut self.way {
            Way::Server(slot) => self.shared.wait_done(slot, time),
            Way::DataServers(flight) => flight.wait(time).map(Moved::into_read),
            Way::Hit(moved) => Ok(moved.into_read()),
            Way::Over => Err(TAKEN),
        };
        if !matches!(result, Err(Error::TimedOut(_))) {
            self.way = Way::Over;
        }
        result
    }
}

/// For use in tasks of any executor. The mover thread wakes them, which costs some microseconds
/// more than [`wait`](Pending::wait) does. The output is that of `wait`.
impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, way, .. } = &mut *self;
        let result = std::task::ready!(match way {
            Way::Server(slot) => shared.poll_done(slot, context.waker()),
            Way::DataServers(flight) => flight.poll(context.waker()).map_ok(Moved::into_read),
            Way::Hit(moved) => Poll::Ready(Ok(moved.into_read())),
            Way::Over => Poll::Ready(Err(TAKEN)),
        });
        if let Way::Server(slot) = std::mem::replace(way, Way::Over)
            && result.is_err()
        {
            // Not every error is a result: the operation may still be in flight when no thread
            // could be started to wake the task.
            shared.abandon(slot);
        }
        Poll::Ready(result.and_then(|done| (self.tell)(done, self.shared.server_name())))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Way::Server(slot) = std::mem::replace(&mut self.way, Way::Over) {
            self.shared.abandon(slot);
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_taken = matches!(self.way, Way::Over);
        f.write_str(if is_taken { "Pending(taken)" } else { "Pending" })
    }
}
