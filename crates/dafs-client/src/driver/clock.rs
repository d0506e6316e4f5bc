//! A cheap clock for frequent use, and the time of suspensions.

use dafs_dat::Instant;
use std::time::Duration;

/// A difference below this is no suspension: two clocks are not read at the same time.
const JITTER: Duration = Duration::from_millis(10);

/// The machine's monotonic clock as the kernel last updated it: some milliseconds late, very cheap.
pub(crate) fn coarse_now() -> Instant {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// The boot-time clock, which also runs while the machine is suspended, as the server's leases do.
pub(crate) fn awake_or_not() -> Instant {
    read(libc::CLOCK_BOOTTIME)
}

fn read(clock: libc::clockid_t) -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the struct it is given.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The time for which the machine has been suspended so far.
#[derive(Debug)]
pub(super) struct Asleep {
    total: Duration,
}

impl Asleep {
    pub(super) fn new() -> Self {
        Self { total: Self::now() }
    }

    fn now() -> Duration {
        awake_or_not().since(Instant::now())
    }

    /// The time suspended since the last call, if there was any.
    pub(super) fn more(&mut self) -> Option<Duration> {
        self.up_to(Self::now())
    }

    fn up_to(&mut self, now: Duration) -> Option<Duration> {
        let more = now.saturating_sub(self.total);
        if more < JITTER {
            return None;
        }
        self.total = now;
        Some(more)
    }

    /// Converts a time of the monotonic clock to the boot-time clock.
    pub(super) fn awake_or_not(&self, at: Instant) -> Instant {
        at + self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_seen_once_and_jitter_is_none() {
        let mut asleep = Asleep { total: Duration::from_secs(1) };
        assert_eq!(asleep.up_to(Duration::from_millis(1005)), None);
        assert_eq!(asleep.up_to(Duration::from_secs(61)), Some(Duration::from_secs(60)));
        assert_eq!(asleep.up_to(Duration::from_secs(61)), None);
        assert_eq!(asleep.up_to(Duration::from_secs(60)), None);
        assert_eq!(asleep.awake_or_not(Instant(5)), Instant(61_000_000_005));
    }

    #[test]
    fn no_clock_is_behind_the_other() {
        let now = Instant::now();
        assert!(awake_or_not() >= now && coarse_now() <= Instant::now());
        assert_eq!(Asleep::new().more(), None);
    }
}
