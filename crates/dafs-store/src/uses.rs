//! Requests of clients that a data server works on, by what they use.
//!
//! Invariants
//! * Whoever waits for the end of uses does so for those that had begun before, however many come
//!   after.

use crate::limits::FORGET_WAIT;
use crate::{Result, StoreError};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many requests use each thing now.
#[derive(Debug)]
pub struct Uses<K> {
    state: Mutex<State<K>>,
    ended: Condvar,
}

#[derive(Debug)]
struct State<K> {
    /// How often somebody has waited.
    generation: u64,
    /// Uses by the generation in which they have begun, the oldest first; no empty ones.
    counts: FxHashMap<K, Vec<(u64, u32)>>,
}

impl<K> Default for Uses<K> {
    fn default() -> Self {
        let state = State { generation: 0, counts: FxHashMap::default() };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }
}

impl<K: Copy + Eq + Hash> Uses<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // It is whole between any two steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins. What is returned has to be given to [`end`](Self::end).
    pub fn begin(&self, what: &K) -> u64 {
        let mut state = self.lock();
        let generation = state.generation;
        let counts = state.counts.entry(*what).or_default();
        match counts.last_mut() {
            Some((last, count)) if *last == generation => *count += 1,
            _ => counts.push((generation, 1)),
        }
        generation
    }

    /// A request that has begun is over.
    pub fn end(&self, what: &K, begun: u64) {
        let mut state = self.lock();
        let Some(counts) = state.counts.get_mut(what) else { return };
        let Some(at) = counts.iter().position(|(generation, _)| *generation == begun) else {
            return;
        };
        counts[at].1 -= 1;
        if counts[at].1 == 0 {
            counts.remove(at);
            if counts.is_empty() {
                state.counts.remove(what);
            }
            self.ended.notify_all();
        }
    }

    /// Waits until all requests are over that had begun to use it before the call.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when that takes too long.
    pub fn await_end(&self, what: &K) -> Result<()> {
        self.await_end_for(what, FORGET_WAIT)
    }

    fn await_end_for(&self, what: &K, limit: Duration) -> Result<()> {
        let mut state = self.lock();
        let before = state.generation;
        state.generation += 1;
        let in_use = |state: &mut State<K>| {
            let oldest = state.counts.get(what).and_then(|counts| counts.first());
            oldest.is_some_and(|(generation, _)| *generation <= before)
        };
        let waited = self.ended.wait_timeout_while(state, limit, in_use);
        let (_state, end) = waited.unwrap_or_else(PoisonError::into_inner);
        if end.timed_out() { Err(StoreError::Busy) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_that_begin_later_are_not_waited_for() {
        let uses = Uses::default();
        let first = uses.begin(&1);
        assert_eq!(uses.await_end_for(&1, Duration::ZERO), Err(StoreError::Busy));
        let second = uses.begin(&1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| uses.await_end(&1));
            // One more use is there at any time.
            while uses.lock().generation < 2 {
                std::thread::yield_now();
            }
            let third = uses.begin(&1);
            uses.end(&1, first);
            uses.end(&1, second);
            assert_eq!(waiting.join().expect("a thread"), Ok(()));
            uses.end(&1, third);
        });
        assert_eq!(uses.await_end_for(&1, Duration::ZERO), Ok(()));
        assert!(uses.lock().counts.is_empty());
    }
}
