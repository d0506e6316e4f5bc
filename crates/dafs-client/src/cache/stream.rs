//! Detection of sequential readers, and the size of their read-ahead.
//!
//! Invariants
//! * There is no read-ahead for random reads, except behind a read of the start of the file, from
//!   which most readers go on.
//! * The read-ahead is at most a window and a half, and the window is bounded.

use crate::limits::READ_AHEAD_BYTES_MIN;
use std::ops::Range;

/// The state of one reader of a file.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The offset of its next read if it reads in sequence.
    next: u64,
    /// The bytes that are read ahead at a time.
    window: u64,
    /// The end of the read-ahead so far.
    until: u64,
}

impl Stream {
    /// Records a read of `len` bytes at `offset`; yields the range to read ahead now, which may be
    /// empty.
    pub(super) fn advance(&mut self, offset: u64, len: u64, window_max: u64) -> Range<u64> {
        let end = offset.saturating_add(len);
        if offset != self.next {
            *self = Self { next: end, window: 0, until: end };
            return end..end;
        }
        self.next = end;
        self.until = self.until.max(end);
        if window_max == 0 || self.until - end > self.window / 2 {
            return self.until..self.until;
        }
        self.window = (self.window * 2).max(READ_AHEAD_BYTES_MIN).min(window_max);
        let start = self.until;
        self.until = start.saturating_add(self.window);
        start..self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const MAX: u64 = 1 << 20;

    #[test]
    fn sequential_readers_are_read_ahead_for_in_few_pieces() {
        let mut stream = Stream::default();
        let (mut until, mut pieces) = (0, 0);
        for page in 0..4096 {
            let ahead = stream.advance(page * PAGE, PAGE, MAX);
            if !ahead.is_empty() {
                assert_eq!(ahead.start, until.max((page + 1) * PAGE), "without gap or overlap");
                until = ahead.end;
                pieces += 1;
            }
            assert!(until > (page + 1) * PAGE, "there is always something ahead");
            assert!(until - (page + 1) * PAGE <= MAX * 3 / 2);
        }
        assert!(pieces < 24, "{pieces} pieces for 16 MiB");
    }

    #[test]
    fn jumps_are_not_read_ahead_for() {
        let mut stream = Stream::default();
        stream.advance(0, PAGE, MAX);
        for jump in [77, 3, 900, 12] {
            assert!(stream.advance(jump * PAGE, PAGE, MAX).is_empty());
        }
        // Two sequential reads start a new window, a small one.
        let ahead = stream.advance(13 * PAGE, PAGE, MAX);
        assert_eq!(ahead, 14 * PAGE..14 * PAGE + READ_AHEAD_BYTES_MIN);
        assert!(stream.advance(u64::MAX - 1, PAGE, MAX).is_empty());
        assert!(Stream::default().advance(0, PAGE, 0).is_empty());
    }
}
