//! Predicts large tagged data, so that the receiver reads it straight into place.
//!
//! The prediction affects performance only. The caller announces a running total of bytes that the
//! peer may still write, and a jump of the total shows the size of a request. Exact reads of the
//! socket pay off for large requests only: small ones arrive together and are cheaper to copy.

use super::limits::LARGE_DATA_BYTES;

/// The state of the prediction.
#[derive(Debug, Default)]
pub(super) struct LargeData {
    /// The total of the last announcement, in bytes.
    announced: u64,
    /// Bytes of large requests in the total.
    writes: u64,
    /// Bytes of them that have not arrived yet.
    writes_missing: u64,
    /// Bytes of large outstanding reads that have not arrived yet.
    reads_missing: u64,
}

impl LargeData {
    /// Takes a new total of bytes that the peer may still write.
    pub(super) fn announce(&mut self, bytes: u64) {
        if bytes > self.announced {
            let more = bytes - self.announced;
            if more >= LARGE_DATA_BYTES {
                self.writes = self.writes.saturating_add(more);
                self.writes_missing = self.writes_missing.saturating_add(more);
            }
        } else if bytes < self.announced {
            let less = self.announced - bytes;
            if less >= LARGE_DATA_BYTES {
                self.writes = self.writes.saturating_sub(less);
            }
        } else {
            // An equal total: as many requests have begun as have ended.
            self.writes_missing = self.writes;
        }
        self.writes = self.writes.min(bytes);
        self.writes_missing = self.writes_missing.min(self.writes);
        self.announced = bytes;
    }

    /// Records a read that was sent.
    pub(super) fn read_posted(&mut self, bytes: u64) {
        if bytes >= LARGE_DATA_BYTES {
            self.reads_missing = self.reads_missing.saturating_add(bytes);
        }
    }

    /// Records that no read is outstanding.
    pub(super) fn reads_done(&mut self) {
        self.reads_missing = 0;
    }

    /// Records the header of a write; its payload will arrive next.
    pub(super) fn write_seen(&mut self, bytes: u64) {
        self.writes_missing = self.writes_missing.saturating_sub(bytes);
    }

    /// Records the header of a read response; its payload will arrive next.
    pub(super) fn read_seen(&mut self, bytes: u64) {
        self.reads_missing = self.reads_missing.saturating_sub(bytes);
    }

    /// True if more large data is expected after the headers seen so far.
    pub(super) fn is_coming(&self) -> bool {
        self.writes_missing > 0 || self.reads_missing > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_are_told_from_many_small_ones() {
        let mut data = LargeData::default();
        for depth in 1..=32 {
            data.announce(depth * 4096);
        }
        assert!(!data.is_coming());
        data.announce(32 * 4096 + (1 << 20));
        assert!(data.is_coming());
        data.write_seen(1 << 20);
        assert!(!data.is_coming());
        data.announce(32 * 4096);
        assert!(!data.is_coming());
    }

    #[test]
    fn the_same_total_again_means_a_new_request() {
        let mut data = LargeData::default();
        data.announce(1 << 20);
        data.write_seen(1 << 20);
        assert!(!data.is_coming());
        data.announce(1 << 20);
        assert!(data.is_coming());
        data.announce(0);
        assert!(!data.is_coming());
    }
}
