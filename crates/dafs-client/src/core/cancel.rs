//! Giving up single calls.
//!
//! Invariants
//! * A call is given up only while no server can reach its memory: before it is sent, and between the
//!   loss of the connection that it was sent on and its being sent again. Memory that the server may
//!   have mapped is in its reach until it has said that the old session is over.

use super::call::{Done, Purpose};
use super::failure::Failure;
use super::session::{SessionCore, Stage};
use dafs_dat::{Adapter, Instant};

impl SessionCore {
    /// Gives a call up, which then ends with [`Failure::Canceled`]; true when it is over. Others go
    /// on, also when the session is being recovered.
    ///
    /// False leaves all as it is: the call is with the server, which cannot be told to forget it
    /// (DAFS has no such request), or was and may still move its data, it belongs to a chain, or there is none of that tag any more.
    pub fn cancel(&mut self, adapter: &mut dyn Adapter, now: Instant, tag: u64) -> bool {
        self.now = now;
        if self.chains.holds(tag) || !self.take_out(tag) {
            return false;
        }
        self.finish(Purpose::Caller(tag), Done::Lost(Failure::Canceled));
        self.reap(adapter);
        match self.stage {
            // It may have been what the end of the session was waiting for.
            Stage::Closing => self.pump(adapter, now),
            Stage::Recovering if self.closing && self.has_no_calls() => {
                self.end(adapter, Failure::Closed);
            }
            _ => {}
        }
        true
    }

    /// Takes a call out of where it waits.
    fn take_out(&mut self, tag: u64) -> bool {
        self.take_unsent(tag).is_some()
            || self.cancel_transfer(tag)
            || self.recovery.as_mut().is_some_and(|recovery| recovery.give_up(tag))
    }
}
