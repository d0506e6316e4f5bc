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

    /// The same for whatever is used.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when that takes longer than `limit`.
    pub fn await_all(&self, limit: Duration) -> Result<()> {
        self.wait(limit, |counts, before| counts.values().any(|uses| is_older(uses, before)))
    }

    fn await_end_for(&self, what: &K, limit: Duration) -> Result<()> {
        self.wait(limit, |counts, before| {
            counts.get(what).is_some_and(|uses| is_older(uses, before))
        })
    }

    fn wait(
        &self,
        limit: Duration,
        in_use: impl Fn(&FxHashMap<K, Vec<(u64, u32)>>, u64) -> bool,
    ) -> Result<()> {
        let mut state = self.lock();
        let before = state.generation;
        state.generation += 1;
        let in_use = |state: &mut State<K>| in_use(&state.counts, before);
        let waited = self.ended.wait_timeout_while(state, limit, in_use);
        let (_state, end) = waited.unwrap_or_else(PoisonError::into_inner);
        if end.timed_out() { Err(StoreError::Busy) } else { Ok(()) }
    }
}

/// Whether any of the uses of something had begun in a generation or before.
fn is_older(uses: &[(u64, u32)], before: u64) -> bool {
    uses.first().is_some_and(|(generation, _)| *generation <= before)
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

    #[test]
    fn all_are_waited_for_that_had_begun() {
        let uses = Uses::default();
        let (one, two) = (uses.begin(&1), uses.begin(&2));
        assert_eq!(uses.await_all(Duration::ZERO), Err(StoreError::Busy));
        uses.end(&1, one);
        assert_eq!(uses.await_all(Duration::ZERO), Err(StoreError::Busy));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| uses.await_all(FORGET_WAIT));
            while uses.lock().generation < 3 {
                std::thread::yield_now();
            }
            let later = uses.begin(&1);
            uses.end(&2, two);
            assert_eq!(waiting.join().expect("a thread"), Ok(()));
            uses.end(&1, later);
        });
    }
}
