//! Tracks if metadata of a file is stable.
//!
//! Invariants
//! * It is stable only when a sync has succeeded that began after the last change.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the changes, and holds the count that the last sync has covered.
#[derive(Debug)]
pub(super) struct Stable {
    changes: AtomicU64,
    synced: AtomicU64,
}

impl Stable {
    /// Begins as unstable, because the history is unknown.
    pub(super) fn unknown() -> Self {
        Self { changes: AtomicU64::new(1), synced: AtomicU64::new(0) }
    }

    /// Records that a change is about to begin.
    pub(super) fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn is_stable(&self) -> bool {
        self.synced.load(Ordering::SeqCst) == self.changes.load(Ordering::SeqCst)
    }

    /// Makes all changes so far stable by `sync`.
    pub(super) fn sync<E>(&self, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let reached = self.changes.load(Ordering::SeqCst);
        sync()?;
        self.synced.fetch_max(reached, Ordering::SeqCst);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_stable_after_a_sync_has_succeeded() {
        let stable = Stable::unknown();
        let sync = || {
            assert!(!stable.is_stable(), "another thread would answer that it is");
            Err("the disk has failed")
        };
        assert!(stable.sync(sync).is_err());
        assert!(!stable.is_stable());
        assert_eq!(stable.sync(|| Ok::<_, ()>(())), Ok(()));
        assert!(stable.is_stable());
        let changed_meanwhile = || {
            stable.change();
            Ok::<_, ()>(())
        };
        assert_eq!(stable.sync(changed_meanwhile), Ok(()));
        assert!(!stable.is_stable());
    }
}
