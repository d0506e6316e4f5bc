//! Tracks the sizes that this client has written and that the MDS does not know stably.
//!
//! Notes
//! * This client's size of a file is the maximum of two sizes: the last one from the MDS, which is
//!   in its journal, and the end of the writes here. So a size beyond all writes since the last
//!   sync comes from the MDS, and is stable.
//! * That holds even if others truncate the file meanwhile. The MDS revokes this client's write
//!   capability first, and grants the next one together with the current size.
//!
//! Invariants
//! * A write counts from before its beginning until a sync has succeeded that began after its end.

/// The writes of one open file.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    under_way: u32,
    /// Counts the writes.
    begun: u64,
    /// The largest end of the writes that count.
    unsynced: u64,
}

/// A sync that may cover all writes.
#[derive(Debug)]
pub(crate) struct Syncing {
    /// The number of writes at its beginning, if none was running.
    begun: Option<u64>,
}

impl Ends {
    /// Records the beginning of a write, which ends at `end`.
    pub(crate) fn write_begins(&mut self, end: u64) {
        self.under_way += 1;
        self.begun += 1;
        self.unsynced = self.unsynced.max(end);
    }

    /// Records the end of a write, with or without success.
    pub(crate) fn write_ends(&mut self) {
        self.under_way -= 1;
    }

    /// Records the beginning of a sync.
    pub(crate) fn sync_begins(&self) -> Syncing {
        Syncing { begun: (self.under_way == 0).then_some(self.begun) }
    }

    /// Records the success of a sync.
    pub(crate) fn synced(&mut self, syncing: &Syncing) {
        if syncing.begun == Some(self.begun) {
            self.unsynced = 0;
        }
    }

    /// True if the MDS stably knows a size that this client has read after the writes.
    pub(crate) fn is_known(&self, size: u64) -> bool {
        size > self.unsynced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_until_it_is_synced() {
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

    /// A model of a file in a cluster with one client here: every order of some writes, truncations
    /// by others, answers of the MDS, and syncs.
    #[test]
    fn a_size_that_is_known_is_never_lost() {
        #[derive(Clone, Copy)]
        struct File {
            /// The size in the journal, and the size at this client.
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
                    // Others truncate it: first the MDS gets this client's size.
                    3 => file = File { stable: 2, here: 2 },
                    // Others extend it or read its size, which takes the same steps.
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
