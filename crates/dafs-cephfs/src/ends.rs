//! How far a file was written here without the metadata server's knowing it for good.
//!
//! What is not obvious
//! * The size that this client of the file system has is the largest of what the metadata server has said,
//!   which is in its journal, and of what was written here. So a size beyond everything that was written here
//!   since the last sync is the metadata server's, and is stable.
//! * That holds although others may cut the file meanwhile: they wait until this client has given its leave
//!   to write back, and with the next leave it is told the size that the file has then.
//!
//! Invariants
//! * A write counts from before it is begun until a sync is over that was begun behind its end.

/// Of one open file.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    under_way: u32,
    /// Writes so far.
    begun: u64,
    /// The largest end of what counts.
    unsynced: u64,
}

/// A sync that may cover all writes.
#[derive(Debug)]
pub(crate) struct Syncing {
    /// The writes that are over.
    begun: Option<u64>,
}

impl Ends {
    /// A write begins that ends there.
    pub(crate) fn write_begins(&mut self, end: u64) {
        self.under_way += 1;
        self.begun += 1;
        self.unsynced = self.unsynced.max(end);
    }

    /// A write is over, whatever came of it.
    pub(crate) fn write_ends(&mut self) {
        self.under_way -= 1;
    }

    /// A sync begins.
    pub(crate) fn sync_begins(&self) -> Syncing {
        Syncing { begun: (self.under_way == 0).then_some(self.begun) }
    }

    /// It has been successful.
    pub(crate) fn synced(&mut self, syncing: &Syncing) {
        if syncing.begun == Some(self.begun) {
            self.unsynced = 0;
        }
    }

    /// Whether a size that this client has found since is known to the metadata server for good.
    pub(crate) fn is_known(&self, size: u64) -> bool {
        size > self.unsynced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_counts_until_it_is_synced() {
        let mut ends = Ends::default();
        assert!(ends.is_known(1) && !ends.is_known(0));
        ends.write_begins(10);
        assert!(ends.is_known(11) && !ends.is_known(10), "while it is under way");
        ends.write_ends();
        assert!(!ends.is_known(10), "and behind its end");
        let syncing = ends.sync_begins();
        assert!(!ends.is_known(10));
        ends.synced(&syncing);
        assert!(ends.is_known(10));
    }

    #[test]
    fn a_sync_covers_no_write_that_was_under_way_or_came_later() {
        let mut ends = Ends::default();
        ends.write_begins(10);
        let early = ends.sync_begins();
        ends.write_ends();
        ends.synced(&early);
        assert!(!ends.is_known(10));
        let before = ends.sync_begins();
        ends.write_begins(5);
        ends.write_ends();
        ends.synced(&before);
        assert!(!ends.is_known(5));
        let last = ends.sync_begins();
        ends.synced(&last);
        assert!(ends.is_known(5));
    }

    /// A file as a cluster has it, with one client here: every order of some writes, cuts by others, answers
    /// of the metadata server, and syncs.
    #[test]
    fn a_size_that_is_known_is_never_lost() {
        #[derive(Clone, Copy)]
        struct File {
            /// In the journal, and as this client has it.
            stable: u64,
            here: u64,
        }
        const WRITES: [u64; 3] = [3, 5, 8];
        for run in 0..8_u32.pow(5) {
            let (mut ends, mut file) = (Ends::default(), File { stable: 4, here: 4 });
            for step in (0..5).map(|at| run / 8_u32.pow(at) % 8) {
                match step {
                    0..=2 => {
                        let end = WRITES[step as usize];
                        ends.write_begins(end);
                        file.here = file.here.max(end);
                        ends.write_ends();
                    }
                    // Others cut it: what this client has goes to the metadata server before.
                    3 => file = File { stable: 2, here: 2 },
                    // Others make it longer, or only look, which takes the same way.
                    4 => file = File { stable: file.here.max(9), here: file.here.max(9) },
                    5 => file.stable = file.here,
                    6 => {
                        let syncing = ends.sync_begins();
                        file.stable = file.here;
                        ends.synced(&syncing);
                    }
                    _ => {
                        // A sync that fails.
                        ends.sync_begins();
                    }
                }
                assert!(!ends.is_known(file.here) || file.stable >= file.here, "run {run}");
            }
        }
    }
}
