//! The right to sync, of one thread at a time.
//!
//! A lock would hand the right from one waiting thread to the next, although most of them are served
//! by the sync that has just ended. Each hand-over is a change of threads, and a new thread that
//! comes first would keep all of them waiting during its own sync.
//!
//! Invariants
//! * At the end of a turn every waiting thread looks whether it is served.

use dafs_mem::{Condvar, Mutex};

/// The turns of a log.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    is_taken: Mutex<bool>,
    changed: Condvar,
}

/// The turn of a thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn; `None` when `is_served` returns true first. It is called under the lock of
    /// the turns.
    pub(crate) fn take(&self, is_served: impl Fn() -> bool) -> Option<Turn<'_>> {
        let mut is_taken = self.is_taken.lock();
        loop {
            if is_served() {
                return None;
            }
            if !std::mem::replace(&mut *is_taken, true) {
                return Some(Turn(self));
            }
            is_taken = self.changed.wait(is_taken);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.is_taken.lock() = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_also_with_a_panic() {
        let turns = Turns::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _turn = turns.take(|| false);
            assert!(turns.take(|| true).is_some(), "as planned");
        }));
        assert!(panicked.is_err());
        assert!(turns.take(|| false).is_some() && turns.take(|| true).is_none());
    }
}
