//! Files that could not be restored: each is retried at longer and longer intervals, and logged
//! once.

use super::Entry;
use crate::limits::{UNDO_PAUSE_MAX_NS, UNDO_PAUSE_MIN_NS};

/// Why a file could not be restored, and when to retry.
pub(super) struct Trouble {
    reason: String,
    pause_ns: u64,
    again_ns: u64,
}

impl Entry {
    /// Why the file could not be restored. `None` without a failure.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().as_ref().map(|trouble| trouble.reason.clone())
    }

    /// True if it is time to retry.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.trouble.lock().as_ref().is_none_or(|trouble| trouble.again_ns <= now_ns)
    }

    /// Notes that the file could not be restored.
    pub(super) fn note_trouble(&self, reason: &dyn ToString, now_ns: u64) {
        let mut trouble = self.trouble.lock();
        let (reason, before) = (reason.to_string(), trouble.take());
        if before.as_ref().is_none_or(|before| before.reason != reason) {
            let client = self.head.holder.name.escape_ascii();
            tracing::error!(%client, %reason, "a lost lock cannot be rolled back yet");
        }
        let pause_ns = before.map_or(UNDO_PAUSE_MIN_NS, |before| before.pause_ns * 2);
        let pause_ns = pause_ns.min(UNDO_PAUSE_MAX_NS);
        let again_ns = now_ns.saturating_add(pause_ns);
        *trouble = Some(Trouble { reason, pause_ns, again_ns });
    }
}
