//! When retained writes are made stable before anybody asks for that.
//!
//! A long write is retained in the buffer that has received it, and the next one needs another
//! buffer. If many are in use, none is in the processor's caches when its turn comes again. A COMMIT
//! frees them all. It costs next to nothing where the server's file system is in memory or its disk
//! is quick, and more than it saves elsewhere.
//!
//! Invariants
//! * Early commits take a small part of the time of writing: the bytes between two of them double
//!   whenever one took more, up to all that may be retained.

use crate::limits::{
    EARLY_COMMIT_BYTES_FIRST, EARLY_COMMIT_BYTES_MIN, EARLY_COMMIT_SHARE, KEPT_BYTES_MAX,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The bytes of one file between two commits, for all files of a mount.
#[derive(Debug)]
pub(super) struct Pace(AtomicUsize);

impl Default for Pace {
    fn default() -> Self {
        Self(AtomicUsize::new(EARLY_COMMIT_BYTES_FIRST))
    }
}

/// The writes of a file since its last commit.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    bytes: usize,
    /// The time of the first one.
    since: Option<Instant>,
}

impl Fresh {
    /// Counts a write.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.since.get_or_insert_with(Instant::now);
    }
}

impl Pace {
    /// True when a commit of these writes pays off.
    pub(super) fn is_due(&self, fresh: &Fresh) -> bool {
        fresh.bytes >= self.0.load(Ordering::Relaxed)
    }

    /// Learns from a commit of these writes that began at `begun` and took `time`. A commit of few
    /// bytes shows nothing.
    pub(super) fn learn(&self, fresh: &Fresh, begun: Instant, time: Duration) {
        let enough = fresh.bytes >= EARLY_COMMIT_BYTES_MIN;
        let Some(since) = fresh.since.filter(|_| enough) else { return };
        let writing = begun.saturating_duration_since(since);
        let is_dear = time.saturating_mul(EARLY_COMMIT_SHARE) > writing;
        let bytes = self.0.load(Ordering::Relaxed);
        let next = if is_dear { bytes.saturating_mul(2) } else { bytes / 2 };
        self.0.store(next.clamp(EARLY_COMMIT_BYTES_MIN, KEPT_BYTES_MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes after a commit that took `time`, of as many bytes, written in `writing`.
    fn after(pace: &Pace, writing: Duration, time: Duration) -> usize {
        let now = Instant::now();
        let bytes = pace.0.load(Ordering::Relaxed);
        let fresh = Fresh { bytes, since: Some(now) };
        assert!(pace.is_due(&fresh));
        pace.learn(&fresh, now + writing, time);
        pace.0.load(Ordering::Relaxed)
    }

    #[test]
    fn cheap_commits_are_frequent_and_dear_ones_are_not() {
        let (pace, writing) = (Pace::default(), Duration::from_millis(64));
        let (cheap, dear) = (writing / EARLY_COMMIT_SHARE, writing);
        assert_eq!(after(&pace, writing, cheap), EARLY_COMMIT_BYTES_FIRST / 2);
        for _ in 0..10 {
            after(&pace, writing, cheap);
        }
        assert_eq!(after(&pace, writing, cheap), EARLY_COMMIT_BYTES_MIN);
        assert_eq!(after(&pace, writing, dear), 2 * EARLY_COMMIT_BYTES_MIN);
        for _ in 0..10 {
            after(&pace, writing, dear);
        }
        assert_eq!(after(&pace, writing, dear), KEPT_BYTES_MAX);
        assert_eq!(after(&pace, writing, cheap), KEPT_BYTES_MAX / 2);
    }

    #[test]
    fn a_commit_of_few_bytes_shows_nothing() {
        let (pace, now) = (Pace::default(), Instant::now());
        let mut fresh = Fresh::default();
        fresh.add(EARLY_COMMIT_BYTES_MIN - 1);
        pace.learn(&fresh, now, Duration::from_secs(1));
        pace.learn(&Fresh::default(), now, Duration::from_secs(1));
        assert_eq!(pace.0.load(Ordering::Relaxed), EARLY_COMMIT_BYTES_FIRST);
        assert!(!pace.is_due(&fresh));
    }
}
