//! Whether what is kept beside a file is stable.
//!
//! Invariants
//! * It counts as stable only when a sync has succeeded that began after the last change.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often it was changed, and which of these states is on the disk.
#[derive(Debug)]
pub(super) struct Stable {
    changes: AtomicU64,
    synced: AtomicU64,
}

impl Stable {
    /// Nothing is known of it yet.
    pub(super) fn unknown() -> Self {
        Self { changes: AtomicU64::new(1), synced: AtomicU64::new(0) }
    }

    /// It is about to be changed.
    pub(super) fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn is_stable(&self) -> bool {
        self.synced.load(Ordering::SeqCst) == self.changes.load(Ordering::SeqCst)
    }

    /// Makes it stable by `sync`.
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
    fn nothing_is_stable_before_the_sync_has_succeeded() {
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
