//! Guards of files, to be asked without a lock: callers without an open ask before every read and
//! write.
//!
//! Invariants
//! * A guard is counted before a client can rely on it, and as long as one does.
//! * A write without an open stores its time before it asks for guards. A grant of a delegation
//!   counts its guard before it reads that time. So in a race at least one of the two sees the
//!   other.

use crate::handle::Handle;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Slots that files share by their hash. A collision costs only a look into the table, or a
/// delegation that is not granted. One kernel client alone keeps some thousand delegations.
const SLOTS: usize = 16_384;

/// In a cache line of its own, because every write without an open writes to it.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// Opens that deny something or have a strict share key, delegations, and files that are held
    /// back.
    guards: AtomicU32,
    /// Broken locks.
    broken: AtomicU32,
    /// The time of the last write without an open.
    written_ns: AtomicU64,
}

pub(crate) struct Guards {
    slots: Box<[Slot]>,
    /// Broken locks on all files.
    broken: AtomicUsize,
}

impl Guards {
    pub(crate) fn new() -> Self {
        Self { slots: (0..SLOTS).map(|_| Slot::default()).collect(), broken: AtomicUsize::new(0) }
    }

    fn slot(&self, key: &Handle) -> &Slot {
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        &self.slots[hasher.finish() as usize % SLOTS]
    }

    pub(crate) fn add(&self, key: &Handle) {
        self.slot(key).guards.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, key: &Handle) {
        let before = self.slot(key).guards.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a guard left that had not come");
    }

    /// False only when no guard is on the file.
    pub(crate) fn maybe_guarded(&self, key: &Handle) -> bool {
        self.slot(key).guards.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn add_broken(&self, key: &Handle) {
        self.slot(key).broken.fetch_add(1, Ordering::SeqCst);
        self.broken.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove_broken(&self, key: &Handle) {
        self.broken.fetch_sub(1, Ordering::SeqCst);
        let before = self.slot(key).broken.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a broken lock was repaired that was not broken");
    }

    /// False only when no lock of any file is broken.
    pub(crate) fn any_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn broken(&self) -> usize {
        self.broken.load(Ordering::SeqCst)
    }

    /// False only when no lock of the file is broken.
    pub(crate) fn maybe_broken(&self, key: &Handle) -> bool {
        self.slot(key).broken.load(Ordering::SeqCst) > 0
    }

    /// A caller without an open is about to write.
    pub(crate) fn note_write(&self, key: &Handle, now_ns: u64) {
        self.slot(key).written_ns.store(now_ns.max(1), Ordering::SeqCst);
    }

    /// True if a caller without an open may have written less than `quiet_ns` ago.
    pub(crate) fn written_lately(&self, key: &Handle, now_ns: u64, quiet_ns: u64) -> bool {
        let written_ns = self.slot(key).written_ns.load(Ordering::SeqCst);
        written_ns != 0 && now_ns.saturating_sub(written_ns) < quiet_ns
    }
}
