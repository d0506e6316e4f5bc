//! Guesses how much large tagged data is coming, so that it is received straight into place.
//!
//! Only performance depends on it. The caller tells a running total of bytes that the peer may
//! still write; a jump of that total tells the size of a request, and only large requests are
//! worth exact reads of the socket: small ones come together and are cheaper to copy.

use super::limits::LARGE_DATA_BYTES;

/// The books on announced data.
#[derive(Debug, Default)]
pub(super) struct LargeData {
    /// The total of the last announcement, in bytes.
    announced: u64,
    /// Bytes of large requests among it.
    writes: u64,
    /// Bytes of them that have not arrived yet.
    writes_missing: u64,
    /// Bytes of large reads of ours that have not arrived yet.
    reads_missing: u64,
}

impl LargeData {
    /// A new total of bytes that the peer may still write.
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
            // The same again: requests have ended and as many have begun.
            self.writes_missing = self.writes;
        }
        self.writes = self.writes.min(bytes);
        self.writes_missing = self.writes_missing.min(self.writes);
        self.announced = bytes;
    }

    /// A read of ours went out.
    pub(super) fn read_posted(&mut self, bytes: u64) {
        if bytes >= LARGE_DATA_BYTES {
            self.reads_missing = self.reads_missing.saturating_add(bytes);
        }
    }

    /// No read of ours is outstanding any more.
    pub(super) fn reads_done(&mut self) {
        self.reads_missing = 0;
    }

    /// Payload of a write has a header; it will arrive next.
    pub(super) fn write_seen(&mut self, bytes: u64) {
        self.writes_missing = self.writes_missing.saturating_sub(bytes);
    }

    /// Payload of a read response has a header; it will arrive next.
    pub(super) fn read_seen(&mut self, bytes: u64) {
        self.reads_missing = self.reads_missing.saturating_sub(bytes);
    }

    /// Whether more large data is expected behind what has been seen.
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
