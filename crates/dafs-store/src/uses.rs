//! Requests of clients that a data server works on, by what they use.

use crate::limits::FORGET_WAIT;
use crate::{Result, StoreError};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How many requests use each thing now.
#[derive(Debug)]
pub struct Uses<K> {
    counts: Mutex<FxHashMap<K, u32>>,
    unused: Condvar,
}

impl<K> Default for Uses<K> {
    fn default() -> Self {
        Self { counts: Mutex::default(), unused: Condvar::new() }
    }
}

impl<K: Copy + Eq + Hash> Uses<K> {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<K, u32>> {
        // It is whole between any two steps.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins.
    pub fn begin(&self, what: &K) {
        *self.lock().entry(*what).or_insert(0) += 1;
    }

    /// A request that has begun is over.
    pub fn end(&self, what: &K) {
        let mut counts = self.lock();
        if let Some(count) = counts.get_mut(what) {
            *count -= 1;
            if *count == 0 {
                counts.remove(what);
                self.unused.notify_all();
            }
        }
    }

    /// Waits until no request uses it: all that had begun before the call are over then.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when that takes too long.
    pub fn await_end(&self, what: &K) -> Result<()> {
        let in_use = |counts: &mut FxHashMap<K, u32>| counts.contains_key(what);
        let waited = self.unused.wait_timeout_while(self.lock(), FORGET_WAIT, in_use);
        let (_counts, end) = waited.unwrap_or_else(PoisonError::into_inner);
        if end.timed_out() { Err(StoreError::Busy) } else { Ok(()) }
    }
}
