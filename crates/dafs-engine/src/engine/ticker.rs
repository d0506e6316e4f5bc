//! When the service is to be told the time. Whoever drives engines drives this beside them, where
//! waiting for the disk holds up nobody.

use dafs_dat::Instant;
use dafs_service::Service;
use std::time::Duration;

/// How often.
const TICK: Duration = Duration::from_millis(500);

/// The same when grace is about to end, which all clients wait for; long enough for the other sessions
/// of the last one to reclaim what they held.
const TICK_IN_GRACE: Duration = Duration::from_millis(10);

/// Tells one service the time.
#[derive(Debug)]
pub struct Ticker {
    next: Instant,
}

impl Default for Ticker {
    fn default() -> Self {
        Self { next: Instant(0) }
    }
}

impl Ticker {
    /// Has the service do what is due.
    pub fn turn(&mut self, service: &Service, now: Instant) {
        if service.grace_ends_soon() {
            self.next = self.next.min(now + TICK_IN_GRACE);
        }
        if now >= self.next {
            // First, so that a panic is not repeated without a pause.
            self.next = now + TICK;
            service.tick(now.0);
        }
    }

    /// When something may be due.
    pub fn next(&self) -> Instant {
        self.next
    }
}
