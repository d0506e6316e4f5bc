//! Cancellation of single calls.
//!
//! Invariants
//! * A call is cancelled only while no server can reach its memory: before it is sent, and between
//!   the loss of its connection and the retransmission. The server can reach memory that it may
//!   have mapped until it has confirmed the end of the old session.

use super::call::{Done, Purpose};
use super::failure::Failure;
use super::session::{SessionCore, Stage};
use dafs_dat::{Adapter, Instant};

impl SessionCore {
    /// Cancels a call, which then ends with [`Failure::Canceled`]; true when it is over. Other
    /// calls go on, also while the session recovers.
    ///
    /// False changes nothing. The server has the call, and DAFS has no request to cancel it; or the
    /// server had it and may still move its data; or it belongs to a chain; or there is no call of
    /// this tag any more.
    pub fn cancel(&mut self, adapter: &mut dyn Adapter, now: Instant, tag: u64) -> bool {
        self.now = now;
        if self.chains.holds(tag) || !self.take_out(tag) {
            return false;
        }
        self.finish(Purpose::Caller(tag), Done::Lost(Failure::Canceled));
        self.reap(adapter);
        match self.stage {
            // The end of the session may have waited for this call.
            Stage::Closing => self.pump(adapter, now),
            Stage::Recovering if self.closing && self.has_no_calls() => {
                self.end(adapter, Failure::Closed);
            }
            _ => {}
        }
        true
    }

    /// Removes a call from the queue in which it waits.
    fn take_out(&mut self, tag: u64) -> bool {
        self.take_unsent(tag).is_some()
            || self.cancel_transfer(tag)
            || self.recovery.as_mut().is_some_and(|recovery| recovery.give_up(tag))
    }
}
