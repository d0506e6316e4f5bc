//! How many wait for one other machine at once: threads are few, and one that does not answer is not to
//! have them all.
//!
//! Invariants
//! * There are never more calls under way than there may be.
//! * Whoever comes while it is full waits for `patience` at most, and not at all when none of those under
//!   way has been answered for so long.

use dafs_store::StoreError;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lets some in.
#[derive(Debug)]
pub(crate) struct Gate {
    max: usize,
    patience: Duration,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Calls under way and when they began, the oldest first.
    calls: VecDeque<(u64, Instant)>,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Inside<'g> {
    gate: &'g Gate,
    number: u64,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.lock().calls.retain(|(number, _)| *number != self.number);
        self.gate.left.notify_one();
    }
}

impl Gate {
    pub(crate) fn new(max: usize, patience: Duration) -> Self {
        Self { max, patience, state: Mutex::default(), left: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // It is whole between any two steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before a call, and what is returned kept until it is over.
    ///
    /// # Errors
    /// `Busy` while there are too many.
    pub(crate) fn enter(&self) -> Result<Inside<'_>, StoreError> {
        let mut state = self.lock();
        let end = Instant::now() + self.patience;
        while state.calls.len() >= self.max {
            let now = Instant::now();
            let stuck = |(_, begun): &(u64, Instant)| now.duration_since(*begun) >= self.patience;
            if state.calls.front().is_none_or(stuck) || now >= end {
                return Err(StoreError::Busy);
            }
            let waited = self.left.wait_timeout(state, end - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let number = state.next;
        state.next += 1;
        state.calls.push_back((number, Instant::now()));
        Ok(Inside { gate: self, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_behind_those_who_are_not_answered() {
        let gate = Gate::new(2, Duration::ZERO);
        let (one, _two) = (gate.enter().expect("room"), gate.enter().expect("room"));
        assert_eq!(gate.enter().err(), Some(StoreError::Busy));
        drop(one);
        gate.enter().expect("room again");
    }

    #[test]
    fn who_waits_is_let_in_when_another_is_answered() {
        let gate = Gate::new(1, Duration::from_secs(3600));
        let one = gate.enter().expect("room");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.enter().map(drop));
            drop(one);
            assert_eq!(waits.join().expect("a thread"), Ok(()));
        });
        assert!(gate.lock().calls.is_empty());
    }
}
