//! Retries: their timeout, and the pauses between them.

use super::limits::{PAUSE_MAX, PAUSE_MIN};
use std::time::{Duration, Instant};

/// A timeout that is as good as none.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The remaining time of one operation.
#[derive(Debug)]
pub(crate) struct RetryTimer {
    until: Instant,
    pause: Duration,
}

impl RetryTimer {
    /// Starts the timeout now.
    pub(crate) fn new(time: Duration) -> Self {
        let now = Instant::now();
        // As good as for ever, where the clock cannot count so far.
        let until = now.checked_add(time).unwrap_or(now + TIME_MAX);
        Self { until, pause: PAUSE_MIN }
    }

    /// True when the timeout is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Pauses, longer each time; false when there is no time left for another attempt.
    pub(crate) fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_too_long() {
        assert!(!RetryTimer::new(Duration::MAX).is_over());
        assert!(RetryTimer::new(Duration::ZERO).is_over());
    }
}
