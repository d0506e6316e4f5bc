//! X_RECLAIM_COMPLETE, an extension: tells a restarted server that this client has reclaimed all that
//! it wants. So others get new state, though this client asks for none.
//!
//! Invariants
//! * Only a server that has restarted and offers it is told, when the last reclaim is answered: those
//!   of locks and delegations, too.
//! * The message speaks for all sessions of the client. So a session sends none while another process
//!   may have one of the same client.
//! * No request waits for it, and its answer has no effect. If it finds no credit, or its connection
//!   is lost, it is sent later.

use super::{Purpose, SessionCore, Stage, Step};
use dafs_dat::Adapter;
use dafs_wire::dafs::Request;

impl SessionCore {
    /// Notes whether another process may have a session of the same client
    /// ([`shares_identity`](crate::core::SessionConfig::shares_identity)).
    pub fn share_identity(&mut self, is_shared: bool) {
        self.link.config.shares_identity = is_shared;
    }

    /// All reclaims from a restarted server are answered.
    pub(super) fn reclaims_are_over(&mut self, adapter: &mut dyn Adapter) {
        self.completion_due = self.link.info.completes;
        self.tell_completion(adapter);
    }

    /// Sends the message, if it is due and there is room.
    pub(in crate::core) fn tell_completion(&mut self, adapter: &mut dyn Adapter) {
        if !self.completion_due || self.link.config.shares_identity {
            return;
        }
        let is_time = match &self.recovery {
            Some(recovery) => recovery.step == Step::Anew,
            None => self.stage == Stage::Ready,
        };
        let mut flights = self.link.conn.flights.iter().flatten();
        let is_sent = flights.any(|flight| flight.purpose == Purpose::Complete);
        if is_time && !is_sent && self.link.conn.has_room() {
            self.send_own(adapter, Purpose::Complete, &Request::XReclaimComplete);
        }
    }
}
