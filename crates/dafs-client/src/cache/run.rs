//! Delegations that are asked for when somebody has read a file in sequence for a while, and not when it is
//! opened: most programs read little of a file, and each delegation that is held makes whoever changes the
//! file wait for its return.
//!
//! Invariants
//! * Nobody waits for the connection that delegations need: until it is there, reads go to the server.
//!   Nor for long for a server that puts the question off.
//! * Who has been refused asks again when the run is twice as long, so a run asks a few times at most.

use super::file::CachedFile;
use crate::delegation::DelegationKind;
use crate::file::OPENS;
use crate::limit;
use crate::limits::{BACK_WAIT, READ_AHEAD_RUN_BYTES};
use crate::open::OpenOptions;
use dafs_wire::dafs as wire;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Reads of one open file that follow each other.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Where the next one begins.
    next: u64,
    /// What they have asked for, in bytes.
    bytes: u64,
    /// How long the run was when a delegation was asked for last.
    asked_bytes: u64,
}

impl Run {
    /// A read; true when it is time to ask for a delegation.
    pub(super) fn read(&mut self, offset: u64, len: u64) -> bool {
        if offset != self.next {
            *self = Self::default();
        }
        self.next = offset.saturating_add(len);
        self.bytes = self.bytes.saturating_add(len);
        self.bytes >= READ_AHEAD_RUN_BYTES && self.bytes / 2 >= self.asked_bytes
    }

    /// A delegation has been asked for.
    pub(super) fn asked(&mut self) {
        self.asked_bytes = self.bytes;
    }
}

impl CachedFile {
    /// Asks for a read delegation. False when that could not be done yet.
    pub(super) fn ask(self: &Arc<Self>) -> bool {
        if self.cache.lock().file(self.id).is_none_or(|file| file.held.is_some()) {
            return true;
        }
        match self.client.shared().is_listening() {
            Some(true) => {}
            Some(false) => return false,
            None => return true,
        }
        let options = OpenOptions::read().direct(true);
        let claim = wire::OpenClaim::Null { dir: self.handle, path: wire::Path::new(&[]) };
        let owner = OPENS.fetch_add(1, Ordering::Relaxed);
        // The delegation outlives the open file that it comes with. Without one all goes on as before.
        let open = || self.client.open_granted(claim, None, &options, owner, true);
        let opened = limit::within(BACK_WAIT, open);
        let Ok((_file, Some(granted))) = opened else { return true };
        match granted.kind {
            DelegationKind::Read => self.hold(granted, |holder| self.client.hold(&granted, holder)),
            DelegationKind::Write => self.client.shared().leave_delegation(granted.state_id),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 32 << 10;

    /// How often a run of so many bytes from `start` on asks.
    fn asks(run: &mut Run, start: u64, bytes: u64) -> usize {
        let mut asked = 0;
        for offset in (start..start + bytes).step_by(PIECE as usize) {
            if run.read(offset, PIECE) {
                run.asked();
                asked += 1;
            }
        }
        asked
    }

    #[test]
    fn long_runs_ask_a_few_times_and_short_ones_never() {
        let mut run = Run::default();
        assert_eq!(asks(&mut run, 0, READ_AHEAD_RUN_BYTES - PIECE), 0);
        assert!(!run.read(5, PIECE), "a jump ends it");
        assert_eq!(asks(&mut run, 0, READ_AHEAD_RUN_BYTES), 1);
        assert_eq!(asks(&mut run, READ_AHEAD_RUN_BYTES, 15 * READ_AHEAD_RUN_BYTES), 4);
        assert!(!run.read(7, u64::MAX) || run.bytes == u64::MAX);
    }

    #[test]
    fn who_could_not_ask_yet_tries_with_each_read() {
        let mut run = Run::default();
        assert!(run.read(0, READ_AHEAD_RUN_BYTES));
        assert!(run.read(READ_AHEAD_RUN_BYTES, 1));
        run.asked();
        assert!(!run.read(READ_AHEAD_RUN_BYTES + 1, 1));
    }
}
