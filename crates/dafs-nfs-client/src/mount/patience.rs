//! For how long something is tried again, and how long the pauses are.

use super::limits::{PAUSE_MAX, PAUSE_MIN};
use std::time::{Duration, Instant};

/// The time that one operation has left.
#[derive(Debug)]
pub(crate) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    /// Begins now.
    pub(crate) fn new(time: Duration) -> Self {
        Self { until: Instant::now() + time, pause: PAUSE_MIN }
    }

    /// True when it is at its end.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Waits a while, longer each time; false when there is no time left for another attempt.
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
