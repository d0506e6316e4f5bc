//! The bandwidth limit of a copy: `--bwlimit`.
//!
//! Invariants
//! * All threads together pass at most the given bytes in a second, whatever the size of their
//!   pieces. Time in which nothing was sent is not saved for later.

use dafs_mem::Mutex;
use std::time::{Duration, Instant};

/// Hands out time to the threads of a copy.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    /// The time at which all bytes so far will have passed.
    free: Mutex<Option<Instant>>,
}

impl Pace {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), free: Mutex::new(None) }
    }

    /// Reserves time for `bytes`; returns the end of that time. The caller sleeps until then.
    pub(super) fn reserve(&self, bytes: u64, now: Instant) -> Instant {
        let mut free = self.free.lock();
        let start = free.map_or(now, |free| free.max(now));
        let time = Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        // No piece of memory takes longer than clocks can tell.
        let end = time.ok().and_then(|time| start.checked_add(time)).unwrap_or(start);
        *free.insert(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_at_the_given_rate() {
        let (pace, now) = (Pace::new(1000), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(pace.reserve(500, now), now + second / 2);
        assert_eq!(pace.reserve(1500, now), now + second * 2);
        let later = now + second * 10;
        assert_eq!(pace.reserve(1000, later), later + second, "a pause saves nothing");
    }
}
