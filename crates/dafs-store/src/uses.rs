//! The running requests of clients at a data server, by the object that they use.
//!
//! Invariants
//! * A wait for the end of uses covers the uses that began before it, and not those that begin
//!   later.

use crate::limits::FORGET_WAIT;
use crate::{Result, StoreError};
use dafs_mem::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::MutexGuard;
use std::time::Duration;

/// Counts the running requests on each object.
#[derive(Debug)]
pub struct Uses<K> {
    state: Mutex<State<K>>,
    ended: Condvar,
}

#[derive(Debug)]
struct State<K> {
    /// Counts the waits.
    generation: u64,
    /// The uses by the generation of their beginning, the oldest first, without zeros.
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
        self.state.lock()
    }

    /// Begins a use. The caller passes the returned value to [`end`](Self::end).
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

    /// Ends a use.
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

    /// Waits for the end of all uses of an object that began before the call.
    ///
    /// # Errors
    /// [`StoreError::Busy`] after a timeout.
    pub fn await_end(&self, what: &K) -> Result<()> {
        self.await_end_for(what, FORGET_WAIT)
    }

    /// Does the same for all objects.
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
        let (_state, end) = self.ended.wait_timeout_while(state, limit, in_use);
        if end.timed_out() { Err(StoreError::Busy) } else { Ok(()) }
    }
}

/// True if a use began in generation `before` or earlier.
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
            // There is at least one use at any time.
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
