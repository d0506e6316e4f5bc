//! Files that could not be put back: each is tried again, at longer and longer intervals, and said once.

use super::Entry;
use crate::limits::{UNDO_PAUSE_MAX_NS, UNDO_PAUSE_MIN_NS};
use std::sync::{MutexGuard, PoisonError};

/// Why a file could not be put back, and when to try again.
pub(super) struct Trouble {
    reason: String,
    pause_ns: u64,
    again_ns: u64,
}

impl Entry {
    /// Why it could not be put back; `None` as long as that has not failed.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.lock_trouble().as_ref().map(|trouble| trouble.reason.clone())
    }

    /// Whether it is time to try.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.lock_trouble().as_ref().is_none_or(|trouble| trouble.again_ns <= now_ns)
    }

    /// It could not be put back.
    pub(super) fn note_trouble(&self, reason: &dyn ToString, now_ns: u64) {
        let mut trouble = self.lock_trouble();
        let (reason, before) = (reason.to_string(), trouble.take());
        if before.as_ref().is_none_or(|before| before.reason != reason) {
            let client = self.head.holder.name.escape_ascii();
            tracing::error!(%client, %reason, "the changes of a lost lock cannot be undone yet");
        }
        let pause_ns = before.map_or(UNDO_PAUSE_MIN_NS, |before| before.pause_ns * 2);
        let pause_ns = pause_ns.min(UNDO_PAUSE_MAX_NS);
        let again_ns = now_ns.saturating_add(pause_ns);
        *trouble = Some(Trouble { reason, pause_ns, again_ns });
    }

    fn lock_trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
