//! Trying again what the server has no room or no time for just now.
//!
//! Invariants
//! * All attempts together take no longer than the deadline of one operation, and than the limit of
//!   the thread.

use crate::limit::{self, Limit};
use crate::limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use dafs_dat::Instant;
use dafs_wire::dafs::Status;
use std::time::Duration;

/// True for answers that say: nothing was done, ask again soon (DAFS 15).
pub(crate) fn is_passing(status: Status) -> bool {
    matches!(status, Status::Delay | Status::Grace)
}

/// The pauses between the attempts of one operation.
#[derive(Debug)]
pub(crate) struct Backoff {
    deadline: Option<Duration>,
    /// When to give up; set with the first pause, so that a first success costs no clock.
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
