//! Transfers at data servers, with or without a task or a later call that waits for them.
//!
//! A thread that waits does through the server what a data server has not done. A task cannot do
//! that, and a caller that drops the result does not: the finisher thread does it for them, and
//! ends when its queue is empty. The close of a file ends the rest of its transfers first.
//!
//! Invariants
//! * Every transfer ends, and the file knows what it wrote, with or without a caller that takes the
//!   result.
//! * One thread ends a transfer, before its file is closed: afterwards there is no way through the
//!   server.

use super::io::DataServerTransfer;
use crate::cache::DirectUse;
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use crate::limit::without;
use crate::pending::Moved;
use dafs_mem::Condvar;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// A transfer under way, for its starter.
#[derive(Debug)]
pub(crate) struct Flight {
    transfer: Arc<Transfer>,
}

/// The state of a transfer, shared by all threads that may end it.
#[derive(Debug)]
struct Transfer {
    inner: DataServerTransfer,
    state: ForkMutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// The waker of a task that waits for the end.
    waker: Option<Waker>,
    /// Dropped when the transfer ends.
    used: Option<Arc<DirectUse>>,
}

#[derive(Debug)]
enum Stage {
    /// Data servers are at work, or no thread has looked at their answers.
    UnderWay,
    /// The finisher thread is going to end it, unless another thread does so before.
    Left,
    /// A thread ends it.
    Ending,
    Over(Result<Moved>),
    Taken,
}

/// The transfers of an open file that may not be over.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    begun: ForkMutex<Vec<Weak<Transfer>>>,
}

/// Transfers without a waiting caller, and the state of the thread that ends them.
#[derive(Debug, Default)]
pub(super) struct Finisher {
    queue: Arc<ForkMutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Transfer>>,
    is_served: bool,
}

impl Flight {
    /// Lets threads of the sessions drive the transfer from now on.
    pub(crate) fn new(inner: DataServerTransfer, used: Option<Arc<DirectUse>>) -> Self {
        inner.attend();
        let state = State { stage: Stage::UnderWay, waker: None, used };
        let (state, changed) = (ForkMutex::new(state), Condvar::new());
        let transfer = Arc::new(Transfer { inner, state, changed });
        transfer.inner.transfers().begun(&transfer);
        Self { transfer }
    }

    /// True if data servers have answered all of it and no thread does the rest, or if it is over.
    pub(crate) fn is_done(&self) -> bool {
        let Transfer { inner, state, .. } = &*self.transfer;
        // A fork gets its error when it asks for the result.
        let Ok(state) = state.lock() else { return true };
        match state.stage {
            Stage::UnderWay => {
                drop(state);
                inner.is_answered(None)
            }
            Stage::Left | Stage::Ending => false,
            Stage::Over(_) | Stage::Taken => true,
        }
    }

    /// True if the transfer is over and does not use its memory any more. A part that data servers
    /// have refused, or have not done in full, is not over: it still goes through the server.
    pub(crate) fn cancel(&mut self) -> bool {
        let inner = &self.transfer.inner;
        if self.transfer.is_under_way() {
            if !inner.is_answered(None) {
                return false;
            }
            // If another thread has begun to end it meanwhile, neither call does anything.
            if inner.is_good() {
                self.transfer.end();
            } else {
                self.transfer.leave();
            }
        }
        self.is_done()
    }

    /// Waits for the result, and for up to `time` for the answers of data servers.
    ///
    /// # Errors
    /// The transfer's; [`Error::TimedOut`], after which the caller can wait again.
    pub(crate) fn wait(&mut self, time: Option<Duration>) -> Result<Moved> {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        let inner = &self.transfer.inner;
        if self.transfer.is_under_way() {
            inner.settle(until)?;
            if until.is_some() && !inner.is_good() {
                // The rest goes through the server, which may take longer than `time`.
                self.transfer.leave();
            } else {
                self.transfer.end();
            }
        } else if until.is_none() {
            // The finisher thread may take long to come to it.
            self.transfer.end();
        }
        self.transfer.take(until)
    }

    /// Returns the result; if there is none yet, `waker` is called when there is.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<Moved>> {
        let (transfer, inner) = (&self.transfer, &self.transfer.inner);
        if let Poll::Ready(result) = transfer.poll(waker) {
            return Poll::Ready(result);
        }
        // Another thread may end it in between, and then calls the waker.
        if transfer.is_under_way() {
            if !inner.is_answered(Some(waker)) {
                return Poll::Pending;
            }
            if inner.is_good() {
                transfer.end();
            } else {
                transfer.leave();
            }
        }
        transfer.poll(waker)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let (transfer, inner) = (&self.transfer, &self.transfer.inner);
        // In a fork it is never under way.
        if !transfer.is_under_way() {
            return;
        }
        if inner.is_answered(None) && inner.is_good() {
            // This notes what it wrote.
            transfer.end();
        } else {
            transfer.leave();
        }
    }
}

impl Transfer {
    /// True if no thread has begun to end it; never so in a fork.
    fn is_under_way(&self) -> bool {
        self.state.lock().is_ok_and(|state| matches!(state.stage, Stage::UnderWay))
    }

    /// Lets the finisher thread end it, or ends it here if there is no such thread.
    fn leave(self: &Arc<Self>) {
        let Ok(mut state) = self.state.lock() else { return };
        if !matches!(state.stage, Stage::UnderWay) {
            return;
        }
        state.stage = Stage::Left;
        drop(state);
        match self.inner.layouts() {
            Some(layouts) => layouts.finisher.finish(self.clone()),
            None => self.end(),
        }
    }

    /// Waits for data servers, and does through the server what they have not done. Does nothing if
    /// another thread is at it.
    fn end(&self) {
        let Ok(mut state) = self.state.lock() else { return };
        if !matches!(state.stage, Stage::UnderWay | Stage::Left) {
            return;
        }
        state.stage = Stage::Ending;
        drop(state);
        // The guard sets a result even after a panic, so that no thread waits for ever.
        let mut ending = Ending { transfer: self, result: Err(Error::Canceled) };
        ending.result = self.inner.wait();
    }

    /// Ends it, and returns when it is over, whichever thread has ended it.
    fn await_end(&self) {
        // A task may poll it meanwhile.
        self.inner.settle_for_sender();
        self.end();
        let Ok(mut state) = self.state.lock() else { return };
        while !matches!(state.stage, Stage::Over(_) | Stage::Taken) {
            state = self.changed.wait(state);
        }
    }

    /// Waits for the result.
    fn take(&self, until: Option<Instant>) -> Result<Moved> {
        let begun = Instant::now();
        let mut state = self.state.lock()?;
        loop {
            if let Some(result) = state.take() {
                return result;
            }
            state = match until {
                None => self.changed.wait(state),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Error::TimedOut(begun.elapsed()));
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.0
                }
            };
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<Result<Moved>> {
        // Wakers are the application's, so no lock is held while one is cloned or dropped.
        let mut waker = Some(waker.clone());
        let mut state = match self.state.lock() {
            Ok(state) => state,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let result = state.take();
        if result.is_none() {
            std::mem::swap(&mut state.waker, &mut waker);
        }
        drop(state);
        result.map_or(Poll::Pending, Poll::Ready)
    }
}

impl State {
    fn take(&mut self) -> Option<Result<Moved>> {
        if !matches!(self.stage, Stage::Over(_) | Stage::Taken) {
            return None;
        }
        match std::mem::replace(&mut self.stage, Stage::Taken) {
            Stage::Over(result) => Some(result),
            _ => Some(Err(Error::Argument("the result has been taken already"))),
        }
    }
}

/// The guard of a thread that ends a transfer, which is over when this is dropped.
struct Ending<'a> {
    transfer: &'a Transfer,
    result: Result<Moved>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Err(Error::Canceled));
        let Ok(mut state) = self.transfer.state.lock() else { return };
        state.stage = Stage::Over(result);
        let (waker, used) = (state.waker.take(), state.used.take());
        drop(state);
        self.transfer.changed.notify_all();
        drop(used);
        if let Some(waker) = waker {
            // A panic of the waker concerns its task alone.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl Transfers {
    fn begun(&self, transfer: &Arc<Transfer>) {
        let Ok(mut begun) = self.begun.lock() else { return };
        if begun.len() == begun.capacity() {
            begun.retain(|transfer| transfer.strong_count() > 0);
            // The spare room makes the next scan rare.
            let room = begun.len();
            begun.reserve(room + 1);
        }
        begun.push(Arc::downgrade(transfer));
    }

    /// Waits until all of them are over. The deadline of this thread does not abort transfers of
    /// others.
    pub(super) fn await_all(&self) {
        let begun = match self.begun.lock() {
            Ok(mut begun) => std::mem::take(&mut *begun),
            Err(_) => return,
        };
        without(|| {
            for transfer in begun.iter().filter_map(Weak::upgrade) {
                // A panic of one must not keep the file open.
                let _ = catch_unwind(AssertUnwindSafe(|| transfer.await_end()));
            }
        });
    }
}

impl Finisher {
    fn finish(&self, transfer: Arc<Transfer>) {
        let Ok(mut queue) = self.queue.lock() else { return };
        queue.waiting.push_back(transfer);
        if std::mem::replace(&mut queue.is_served, true) {
            return;
        }
        drop(queue);
        let queue = self.queue.clone();
        let thread = std::thread::Builder::new().name("dafs-finisher".to_owned());
        if thread.spawn(move || finish_all(&queue)).is_err() {
            finish_all(&self.queue);
        }
    }
}

fn finish_all(queue: &ForkMutex<Queue>) {
    loop {
        let Ok(mut locked) = queue.lock() else { return };
        let Some(transfer) = locked.waiting.pop_front() else {
            locked.is_served = false;
            return;
        };
        drop(locked);
        // A panic of one has been reported, and must not stop the others.
        let _ = catch_unwind(AssertUnwindSafe(|| without(|| transfer.end())));
    }
}
