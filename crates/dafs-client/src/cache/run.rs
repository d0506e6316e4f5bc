//! Delegations that are asked for after sequential reads, and not at the open: most programs read
//! little of a file, and each delegation delays clients that change the file until it is returned.
//!
//! Invariants
//! * No caller waits for the back-control channel: until it is there, reads go to the server. A
//!   caller does not wait long for a server that answers DELAY, either.
//! * Only sequential reads that return all that they ask for count: a reader of a short file, or of
//!   long pieces here and there, does not benefit.
//! * After a refusal it asks again when twice as much has been read in sequence, in however many
//!   runs, so an open file asks a few times at most.

use super::file::CachedFile;
use crate::delegation::DelegationKind;
use crate::file::OPENS;
use crate::limit;
use crate::limits::{READ_AHEAD_ASK_TIME, READ_AHEAD_RUN_BYTES};
use crate::open::OpenOptions;
use dafs_wire::dafs as wire;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sequential reads of one open file.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The offset at which the next one begins, if there was one.
    next: Option<u64>,
    /// The bytes that they have read.
    bytes: u64,
    /// The bytes read in sequence since a delegation was asked for last.
    since_bytes: u64,
    /// The number of such bytes at which it is asked for again.
    pause_bytes: u64,
}

impl Run {
    /// Records a read of so many bytes, which is all that it asked for if it `is_whole`; true when
    /// it is time to ask for a delegation.
    pub(super) fn read(&mut self, offset: u64, bytes: u64, is_whole: bool) -> bool {
        let follows = self.next == Some(offset);
        if !follows {
            self.bytes = 0;
        }
        self.next = Some(offset.saturating_add(bytes));
        self.bytes = self.bytes.saturating_add(bytes);
        if follows {
            self.since_bytes = self.since_bytes.saturating_add(bytes);
        }
        // A short read means the end of the file.
        follows
            && is_whole
            && self.bytes >= READ_AHEAD_RUN_BYTES
            && self.since_bytes >= self.pause_bytes
    }

    /// Records that a delegation has been asked for.
    pub(super) fn asked(&mut self, how: Asked) {
        match how {
            Asked::NotYet => return,
            Asked::Held => self.pause_bytes = READ_AHEAD_RUN_BYTES,
            Asked::Refused => {
                self.pause_bytes = self.pause_bytes.saturating_mul(2).max(READ_AHEAD_RUN_BYTES);
            }
        }
        self.since_bytes = 0;
    }
}

/// The outcome of asking for a delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The delegation was granted.
    Held,
    /// The server could not be asked yet.
    NotYet,
    /// The server grants none now.
    Refused,
}

impl CachedFile {
    /// Asks for a read delegation.
    pub(super) fn ask(self: &Arc<Self>) -> Asked {
        if self.is_held() {
            return Asked::Held;
        }
        match self.client.shared().is_listening() {
            Some(true) => {}
            Some(false) => return Asked::NotYet,
            None => return Asked::Refused,
        }
        let options = OpenOptions::read().direct(true);
        let claim = wire::OpenClaim::Null { dir: self.handle, path: wire::Path::new(&[]) };
        let owner = OPENS.fetch_add(1, Ordering::Relaxed);
        // The delegation outlives the open file that it comes with. Without one the reads go on as
        // before.
        let open = || self.client.open_granted(claim, None, &options, owner, true);
        let opened = limit::within(READ_AHEAD_ASK_TIME, open);
        let Ok((_file, Some(granted))) = opened else { return Asked::Refused };
        match granted.kind {
            DelegationKind::Read => self.hold(granted, |holder| self.client.hold(&granted, holder)),
            DelegationKind::Write => self.client.shared().leave_delegation(granted.state_id),
        }
        if self.is_held() { Asked::Held } else { Asked::Refused }
    }

    fn is_held(&self) -> bool {
        self.cache.lock().file(self.id).is_some_and(|file| file.held.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 32 << 10;

    /// The number of times that a run of so many bytes from `start` on asks, with the same answer
    /// each time.
    fn asks(run: &mut Run, start: u64, bytes: u64, told: Asked) -> usize {
        let mut asked = 0;
        for offset in (start..start + bytes).step_by(PIECE as usize) {
            if run.read(offset, PIECE, true) {
                run.asked(told);
                asked += 1;
            }
        }
        asked
    }

    #[test]
    fn long_runs_ask_a_few_times_and_short_ones_never() {
        let mut run = Run::default();
        for _ in 0..10 {
            assert_eq!(asks(&mut run, 0, READ_AHEAD_RUN_BYTES - PIECE, Asked::Refused), 0);
            assert!(!run.read(5, PIECE, true), "a jump ends it");
        }
        assert_eq!(asks(&mut run, 0, READ_AHEAD_RUN_BYTES, Asked::Refused), 1);
        let (start, rest) = (READ_AHEAD_RUN_BYTES, 15 * READ_AHEAD_RUN_BYTES);
        assert_eq!(asks(&mut run, start, rest, Asked::Refused), 4);
        // A reader that starts over again and again does not ask each time.
        let again = (0..100).map(|_| asks(&mut run, 0, 2 * READ_AHEAD_RUN_BYTES, Asked::Refused));
        assert_eq!(again.sum::<usize>(), 3);
    }

    #[test]
    fn a_random_read_never_asks_however_long() {
        let mut run = Run::default();
        for turn in 0..100 {
            let jump = (turn * 37 % 100) * 4 * READ_AHEAD_RUN_BYTES;
            assert!(!run.read(jump, 2 * READ_AHEAD_RUN_BYTES, true));
        }
        let mut run = Run::default();
        assert!(!run.read(0, u64::MAX, true), "the first follows nothing");
        // A file that is shorter than one read, read to its end.
        let mut run = Run::default();
        for _ in 0..3 {
            assert!(!run.read(0, 2 * READ_AHEAD_RUN_BYTES, false));
            assert!(!run.read(2 * READ_AHEAD_RUN_BYTES, 0, false));
        }
    }

    #[test]
    fn a_reader_that_could_not_ask_tries_at_each_read() {
        let mut run = Run::default();
        run.read(0, READ_AHEAD_RUN_BYTES, true);
        for byte in 0..3 {
            assert!(run.read(READ_AHEAD_RUN_BYTES + byte, 1, true));
            run.asked(Asked::NotYet);
        }
        run.asked(Asked::Refused);
        assert!(!run.read(READ_AHEAD_RUN_BYTES + 3, 1, true));
    }

    #[test]
    fn a_reader_that_was_not_refused_asks_again_soon() {
        let mut run = Run::default();
        assert_eq!(asks(&mut run, 0, READ_AHEAD_RUN_BYTES, Asked::Held), 1);
        assert_eq!(asks(&mut run, READ_AHEAD_RUN_BYTES, 8 * READ_AHEAD_RUN_BYTES, Asked::Held), 8);
    }
}
