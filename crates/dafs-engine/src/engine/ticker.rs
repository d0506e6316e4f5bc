//! The times at which the service gets the time. The driver of the engines also drives this, on a
//! thread that may wait for the disk.

use dafs_dat::Instant;
use dafs_service::Service;
use std::time::Duration;

/// The interval of ticks.
const TICK: Duration = Duration::from_millis(500);

/// The interval when grace is about to end, for which all clients wait. It is long enough for the
/// other sessions of the last client to reclaim their state.
const TICK_IN_GRACE: Duration = Duration::from_millis(10);

/// Gives one service the time.
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
    /// Lets the service do due work.
    pub fn turn(&mut self, service: &Service, now: Instant) {
        if service.clients.grace_ends_soon() {
            self.next = self.next.min(now + TICK_IN_GRACE);
        }
        if now >= self.next {
            // Set first, so that a panic is not repeated without a pause.
            self.next = now + TICK;
            service.tick(now.0);
        }
    }

    /// Returns the time at which work may be due.
    pub fn next(&self) -> Instant {
        self.next
    }
}
