//! Transfers at data servers that a task or a later call waits for, if anybody does.
//!
//! What a data server has not done is done through the server by whoever waits. Neither a task nor
//! whoever gives the result up can do that: then a thread does it, which ends when there is nothing left.
//!
//! Invariants
//! * A transfer is over in any case, and what it wrote is known to the file, whether somebody wants its
//!   result or not.

use super::io::Beside;
use crate::cache::DirectUse;
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use crate::pending::Moved;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct Flight {
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    UnderWay(UnderWay),
    /// A thread is at it.
    Finishing(Arc<Outcome>),
    Over,
}

#[derive(Debug)]
struct UnderWay {
    beside: Beside,
    /// Ends with it.
    _used: Option<Arc<DirectUse>>,
}

/// What came of a transfer that a thread has finished.
#[derive(Debug, Default)]
struct Outcome {
    state: ForkMutex<(Option<Result<Moved>>, Option<Waker>)>,
    changed: Condvar,
}

/// Transfers that nobody waits for, and whether there is a thread for them.
#[derive(Debug, Default)]
pub(super) struct Finisher {
    queue: Arc<ForkMutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(UnderWay, Arc<Outcome>)>,
    is_served: bool,
}

impl Flight {
    /// The sessions move it along from now on.
    pub(crate) fn new(beside: Beside, used: Option<Arc<DirectUse>>) -> Self {
        beside.attend();
        Self { stage: Stage::UnderWay(UnderWay { beside, _used: used }) }
    }

    /// Whether data servers have answered all of it.
    pub(crate) fn is_done(&self) -> bool {
        match &self.stage {
            Stage::UnderWay(under_way) => under_way.beside.is_answered(None),
            Stage::Finishing(outcome) => outcome.state.lock().is_ok_and(|state| state.0.is_some()),
            Stage::Over => true,
        }
    }

    /// Whether it is over, memory and all. What data servers have refused, or have done in part, is not: it
    /// is done through the server yet.
    pub(crate) fn cancel(&mut self) -> bool {
        if let Stage::UnderWay(UnderWay { beside, .. }) = &self.stage {
            if !beside.is_answered(None) {
                return false;
            }
            if !beside.is_here() || beside.is_good() {
                return true;
            }
            self.finish_elsewhere();
        }
        self.is_done()
    }

    /// Waits for it, for up to `time` for the answers of data servers.
    ///
    /// # Errors
    /// That of the transfer; [`Error::TimedOut`], after which it can be asked again.
    pub(crate) fn wait(&mut self, time: Option<Duration>) -> Result<Moved> {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        let goes_on = match &self.stage {
            Stage::UnderWay(UnderWay { beside, .. }) => {
                beside.settle(until)?;
                until.is_some() && beside.is_here() && !beside.is_good()
            }
            _ => false,
        };
        if goes_on {
            // Through the server, which may take longer than there is time.
            self.finish_elsewhere();
        }
        match &self.stage {
            Stage::Finishing(outcome) => outcome.wait(until),
            _ => match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::UnderWay(UnderWay { beside, _used }) => beside.wait(),
                _ => Err(Error::Argument("the result has been taken already")),
            },
        }
    }

    /// The result, if it is there; else `waker` is called when it is.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<Moved>> {
        if let Stage::UnderWay(UnderWay { beside, .. }) = &self.stage {
            if !beside.is_answered(Some(waker)) {
                return Poll::Pending;
            }
            // In a fork `wait` has the word for it.
            if beside.is_here() && !beside.is_good() {
                self.finish_elsewhere();
            }
        }
        match &self.stage {
            Stage::Finishing(outcome) => outcome.poll(waker),
            _ => Poll::Ready(self.wait(None)),
        }
    }

    /// Has a thread finish it, or finishes it here if there is none to be had.
    fn finish_elsewhere(&mut self) {
        let Stage::UnderWay(under_way) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return;
        };
        let outcome = Arc::<Outcome>::default();
        self.stage = Stage::Finishing(outcome.clone());
        let Some(layouts) = under_way.beside.layouts().cloned() else {
            return outcome.end(under_way.beside.wait());
        };
        layouts.finisher.finish(under_way, outcome);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // A fork has no part in it.
        let Stage::UnderWay(UnderWay { beside, .. }) = &self.stage else { return };
        if !beside.is_here() {
            return;
        }
        if beside.is_answered(None) && beside.is_good() {
            // What it wrote is noted.
            let _ = self.wait(None);
        } else {
            self.finish_elsewhere();
        }
    }
}

impl Outcome {
    fn end(&self, result: Result<Moved>) {
        let Ok(mut state) = self.state.lock() else { return };
        state.0 = Some(result);
        let waker = state.1.take();
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wait(&self, until: Option<Instant>) -> Result<Moved> {
        let begun = Instant::now();
        let mut state = self.state.lock()?;
        loop {
            if let Some(result) = state.0.take() {
                return result;
            }
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Error::TimedOut(begun.elapsed()));
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<Result<Moved>> {
        // Wakers are the application's: they are cloned and dropped without the lock.
        let mut waker = Some(waker.clone());
        let mut state = match self.state.lock() {
            Ok(state) => state,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let result = state.0.take();
        if result.is_none() {
            std::mem::swap(&mut state.1, &mut waker);
        }
        drop(state);
        result.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Finisher {
    fn finish(&self, under_way: UnderWay, outcome: Arc<Outcome>) {
        let Ok(mut queue) = self.queue.lock() else { return };
        queue.waiting.push_back((under_way, outcome));
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
        let Some((UnderWay { beside, _used }, outcome)) = locked.waiting.pop_front() else {
            locked.is_served = false;
            return;
        };
        drop(locked);
        outcome.end(beside.wait());
    }
}
