//! A limit on the calls that wait for one other machine at once: threads are few, and a machine
//! that does not answer must not block them all.
//!
//! Invariants
//! * There are never more calls under way than the limit.
//! * A call at the limit waits for `patience` at most, and not at all when none of those under way
//!   was answered for that long.
//! * The errors distinguish a machine that serves other calls from one that is stuck, because
//!   callers do without a stuck one.

use dafs_mem::{Condvar, Mutex};
use dafs_store::StoreError;
use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// Admits a limited number of calls.
#[derive(Debug)]
pub(crate) struct Gate {
    max: usize,
    patience: Duration,
    /// After this time without an answer the machine counts as stuck.
    stuck: Duration,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Calls under way and their start times, the oldest first.
    calls: VecDeque<(u64, Instant)>,
    /// The end of the last call that took less than `stuck`.
    answered: Option<Instant>,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Inside<'g> {
    gate: &'g Gate,
    number: u64,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.gate.lock();
        let own = |(number, _): &(u64, Instant)| *number == self.number;
        let begun = state.calls.iter().find(|call| own(call)).map(|(_, begun)| *begun);
        if begun.is_some_and(|begun| now.duration_since(begun) < self.gate.stuck) {
            state.answered = Some(now);
        }
        state.calls.retain(|call| !own(call));
        drop(state);
        self.gate.left.notify_one();
    }
}

impl Gate {
    pub(crate) fn new(max: usize, patience: Duration, stuck: Duration) -> Self {
        Self { max, patience, stuck, state: Mutex::default(), left: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Admits a call. The caller keeps the result until the call is over.
    ///
    /// # Errors
    /// While there are too many: `Crowded` if others are answered, `Busy` if the machine is stuck.
    pub(crate) fn enter(&self) -> Result<Inside<'_>, StoreError> {
        let mut state = self.lock();
        let end = Instant::now() + self.patience;
        while state.calls.len() >= self.max {
            let now = Instant::now();
            let stuck = |(_, begun): &(u64, Instant)| now.duration_since(*begun) >= self.patience;
            if state.calls.front().is_none_or(stuck) || now >= end {
                let serves = |at| now.duration_since(at) < self.stuck;
                return Err(match state.answered.is_some_and(serves) {
                    true => StoreError::Crowded,
                    false => StoreError::Busy,
                });
            }
            let waited = self.left.wait_timeout(state, end - now);
            state = waited.0;
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

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn callers_do_not_wait_behind_unanswered_ones() {
        let gate = Gate::new(2, Duration::ZERO, LONG);
        let (one, _two) = (gate.enter().expect("room"), gate.enter().expect("room"));
        assert_eq!(gate.enter().err(), Some(StoreError::Busy));
        drop(one);
        gate.enter().expect("room again");
    }

    #[test]
    fn a_machine_that_serves_others_is_not_stuck() {
        let gate = Gate::new(1, Duration::ZERO, LONG);
        drop(gate.enter().expect("room"));
        let inside = gate.enter().expect("room");
        assert_eq!(gate.enter().err(), Some(StoreError::Crowded));
        drop(inside);
        let gate = Gate::new(1, Duration::ZERO, Duration::ZERO);
        drop(gate.enter().expect("room"));
        let _inside = gate.enter().expect("room");
        assert_eq!(gate.enter().err(), Some(StoreError::Busy), "the answer came too late");
    }

    #[test]
    fn a_waiting_caller_enters_when_another_is_answered() {
        let gate = Gate::new(1, LONG, LONG);
        let one = gate.enter().expect("room");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.enter().map(drop));
            drop(one);
            assert_eq!(waits.join().expect("a thread"), Ok(()));
        });
        assert!(gate.lock().calls.is_empty());
    }
}
