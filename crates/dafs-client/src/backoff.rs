//! Retries with exponential backoff of requests that the server answers with DELAY or GRACE.
//!
//! Invariants
//! * All attempts together take no longer than the deadline of one operation, nor than the limit of
//!   the thread.

use crate::limit::{self, Limit};
use crate::limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use dafs_dat::Instant;
use dafs_wire::dafs::Status;
use std::time::Duration;

/// True for answers that say: nothing was done, retry soon (DAFS 15).
pub(crate) fn is_passing(status: Status) -> bool {
    matches!(status, Status::Delay | Status::Grace)
}

/// The pauses between the attempts of one operation.
#[derive(Debug)]
pub(crate) struct Backoff {
    deadline: Option<Duration>,
    /// The time of the timeout; set with the first pause, so that a first success reads no clock.
    until: Option<Instant>,
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new(deadline: Option<Duration>) -> Self {
        Self { deadline, until: None, pause: RETRY_PAUSE_MIN }
    }

    /// Sleeps before the next attempt; false when there is no time for one.
    pub(crate) fn pause(&mut self) -> bool {
        let limit = Limit::current().map(|limit| limit.at);
        if self.deadline.is_some() || limit.is_some() {
            let now = Instant::now();
            if self.until.is_none() {
                self.until = self.deadline.map(|deadline| now + deadline);
            }
            let until = [self.until, limit].into_iter().flatten().min();
            if until.is_some_and(|until| now + self.pause >= until) {
                return false;
            }
        }
        std::thread::sleep(self.pause);
        if limit::is_stopped() {
            return false;
        }
        self.pause = (self.pause * 2).min(RETRY_PAUSE_MAX);
        true
    }
}
