//! Who changes a file's content now: many writers together, or one append alone.
//!
//! Invariants
//! * While an append chooses the end of the file and writes there, nothing that goes through the
//!   service changes the content or the size of the file.
//! * Nobody waits for anything but the store while it counts here, so every wait ends.

use crate::handle::Handle;
use crate::undo::Undo;
use dafs_store::Wait;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Slots that files share by their hash. Sharing costs a write that meets an append of another file
/// a short wait, nothing else.
const SLOTS: usize = 4096;

/// In a cache line of its own, because every write counts in one.
#[derive(Default)]
#[repr(align(64))]
struct Slot(RwLock<()>);

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

    fn slot(&self, key: &Handle) -> &RwLock<()> {
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        &self.slots[hasher.finish() as usize % SLOTS].0
    }

    /// One writer among others; `None` when it would have to wait and may not.
    pub(crate) fn together(&self, key: &Handle, wait: Wait) -> Option<RwLockReadGuard<'_, ()>> {
        match self.slot(key).try_read() {
            Ok(guard) => Some(guard),
            // The lock guards no data that a panic could have left half changed.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if wait == Wait::Never => None,
            Err(TryLockError::WouldBlock) => {
                Some(self.slot(key).read().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Whether a writer that may not wait would have to. It may still come to that, for a moment.
    pub(crate) fn is_alone(&self, key: &Handle) -> bool {
        self.together(key, Wait::Never).is_none()
    }

    /// The only one.
    pub(crate) fn alone(&self, key: &Handle) -> RwLockWriteGuard<'_, ()> {
        self.slot(key).write().unwrap_or_else(PoisonError::into_inner)
    }
}
