//! A lock for each file's content: many writers together, or one append alone.
//!
//! Invariants
//! * While an append chooses its offset and writes there, no operation through the service changes
//!   the content or the size of the file.
//! * A thread that is counted here waits only for the store, so every wait ends.

use crate::exposure::Exposure;
use crate::handle::Handle;
use crate::undo::Undo;
use dafs_mem::RwLock;
use dafs_store::{StoreError, Wait};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Slots that files share by their hash. In a collision, a write waits a little for an append of
/// another file, and that is the only cost.
const SLOTS: usize = 4096;

/// In a cache line of its own, because every write increments a count in it.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    lock: RwLock<Closed>,
    /// The number of writers so far.
    entered: AtomicU64,
}

/// Files of a slot that take no writes until the server restarts. Recovery finds out then how much
/// of an append is in the file, and a later write could be mistaken for it.
#[derive(Default)]
pub(crate) struct Closed(Vec<Handle>);

impl Closed {
    /// # Errors
    /// `Io` for a file that takes no writes.
    pub(crate) fn check(&self, key: &Handle) -> Result<(), StoreError> {
        if self.0.contains(key) { Err(StoreError::Io) } else { Ok(()) }
    }

    /// Refuses all further writes to a file.
    pub(crate) fn close(&mut self, key: Handle) {
        if !self.0.contains(&key) {
            self.0.push(key);
        }
    }

    /// Allows writes to it again.
    pub(crate) fn open(&mut self, key: &Handle) {
        self.0.retain(|closed| closed != key);
    }
}

pub(crate) struct Writers {
    slots: Box<[Slot]>,
    /// The undo logs: data to be saved before it is overwritten.
    pub(crate) undo: Undo,
    /// Blocks that clients read without a request.
    pub(crate) exposure: Exposure,
}

impl Writers {
    pub(crate) fn new() -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Self { slots, undo: Undo::default(), exposure: Exposure::default() }
    }

    fn slot(&self, key: &Handle) -> &Slot {
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        &self.slots[hasher.finish() as usize % SLOTS]
    }

    /// Counts a writer and returns the number of writers so far. Two equal answers mean that no
    /// writer came in between. The others may be writers of another file.
    pub(crate) fn enter(&self, key: &Handle) -> u64 {
        self.slot(key).entered.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of writers so far.
    pub(crate) fn entered(&self, key: &Handle) -> u64 {
        self.slot(key).entered.load(Ordering::Relaxed)
    }

    /// Takes the lock as one writer among others. `None` when it would have to wait and may not.
    pub(crate) fn together(&self, key: &Handle, wait: Wait) -> Option<RwLockReadGuard<'_, Closed>> {
        let lock = &self.slot(key).lock;
        match (lock.try_read(), wait) {
            (None, Wait::Allowed) => Some(lock.read()),
            (guard, _) => guard,
        }
    }

    /// True if a writer that may not wait would have to. A later answer may differ.
    pub(crate) fn is_alone(&self, key: &Handle) -> bool {
        self.together(key, Wait::Never).is_none()
    }

    /// Takes the lock exclusively, unless a writer is inside.
    pub(crate) fn try_alone(&self, key: &Handle) -> Option<RwLockWriteGuard<'_, Closed>> {
        self.slot(key).lock.try_write()
    }

    /// Takes the lock exclusively.
    pub(crate) fn alone(&self, key: &Handle) -> RwLockWriteGuard<'_, Closed> {
        self.slot(key).lock.write()
    }
}
