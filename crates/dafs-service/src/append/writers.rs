//! Who changes a file's content now: many writers together, or one append alone.
//!
//! Invariants
//! * While an append chooses the end of the file and writes there, nothing that goes through the
//!   service changes the content or the size of the file.
//! * Nobody waits for anything but the store while it counts here, so every wait ends.

use crate::handle::Handle;
use crate::undo::Undo;
use dafs_store::{StoreError, Wait};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Slots that files share by their hash. Sharing costs a write that meets an append of another file
/// a short wait, nothing else.
const SLOTS: usize = 4096;

/// In a cache line of its own, because every write counts in one.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    lock: RwLock<Closed>,
    /// Writers that came in so far.
    entered: AtomicU64,
}

/// Files of a slot that take no writes until the server starts anew, because what an append has left
/// of them is found out then, and nothing else may be mistaken for that.
#[derive(Default)]
pub(crate) struct Closed(Vec<Handle>);

impl Closed {
    /// # Errors
    /// `Io` for a file that takes no writes.
    pub(crate) fn check(&self, key: &Handle) -> Result<(), StoreError> {
        if self.0.contains(key) { Err(StoreError::Io) } else { Ok(()) }
    }

    /// Lets nobody write to a file any more.
    pub(crate) fn close(&mut self, key: Handle) {
        if !self.0.contains(&key) {
            self.0.push(key);
        }
    }

    /// Lets others write to it again.
    pub(crate) fn open(&mut self, key: &Handle) {
        self.0.retain(|closed| closed != key);
    }
}

pub(crate) struct Writers {
    slots: Box<[Slot]>,
    /// What has to be saved before it is overwritten.
    pub(crate) undo: Undo,
}

impl Writers {
    pub(crate) fn new() -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Self { slots, undo: Undo::default() }
    }

    fn slot(&self, key: &Handle) -> &Slot {
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        &self.slots[hasher.finish() as usize % SLOTS]
    }

    /// Counts a writer that has come in, and tells how many have by now. Two equal answers mean that
    /// nobody has written in between; the others may be writers of another file.
    pub(crate) fn enter(&self, key: &Handle) -> u64 {
        self.slot(key).entered.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many writers have come in by now.
    pub(crate) fn entered(&self, key: &Handle) -> u64 {
        self.slot(key).entered.load(Ordering::Relaxed)
    }

    /// One writer among others; `None` when it would have to wait and may not.
    pub(crate) fn together(&self, key: &Handle, wait: Wait) -> Option<RwLockReadGuard<'_, Closed>> {
        match self.slot(key).lock.try_read() {
            Ok(guard) => Some(guard),
            // A panic leaves nothing half changed in there.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if wait == Wait::Never => None,
            Err(TryLockError::WouldBlock) => {
                Some(self.slot(key).lock.read().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Whether a writer that may not wait would have to. It may still come to that, for a moment.
    pub(crate) fn is_alone(&self, key: &Handle) -> bool {
        self.together(key, Wait::Never).is_none()
    }

    /// The only one.
    pub(crate) fn alone(&self, key: &Handle) -> RwLockWriteGuard<'_, Closed> {
        self.slot(key).lock.write().unwrap_or_else(PoisonError::into_inner)
    }
}
