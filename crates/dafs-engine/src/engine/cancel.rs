//! Requests of a session that wait, and how X_CANCEL takes them out.
//!
//! Invariants
//! * A request that is cancelled has read and written nothing, and nothing of it happens later: it
//!   waited for chunks, or the connection has won the claim to its job.
//! * It is answered like a request that fails, with X_CANCELED. So a reply that the server keeps
//!   says the same.
//! * Members of chains and changes with a logged intent have begun when they wait.

use super::connection::Fate;
use super::request::Context;
use super::work::{PendingId, Progress, Work};
use crate::ops::batch;
use dafs_wire::dafs::{CancelOutcome, Status};
use rustc_hash::FxHashMap;

/// The waiting requests of a connection, by stream and sequence number.
pub(crate) type WaitingRequests = FxHashMap<(u16, u16), PendingId>;

impl Context<'_> {
    /// Returns all that waits on this connection, loads of batches among it.
    pub(crate) fn own_pending(&self) -> Vec<PendingId> {
        self.pending.of(self.port, self.connection.endpoint)
    }

    pub(crate) fn waiting_requests(&mut self) -> WaitingRequests {
        let mut waiting = WaitingRequests::default();
        for id in self.own_pending() {
            let pending = self.pending.get_mut(id);
            // Loads are no requests, and have no numbers of their own.
            if let Some(pending) = pending.filter(|found| !matches!(found.work, Work::Load(_))) {
                let header = &pending.call.header;
                waiting.insert((header.stream_id, header.seq_number), id);
            }
        }
        waiting
    }

    /// Cancels a request that has not begun.
    pub(crate) fn cancel_request(
        &mut self,
        waiting: &WaitingRequests,
        (stream, sequence): (u16, u16),
    ) -> CancelOutcome {
        let logged = self.connection.ops.contains_key(&stream);
        let fate = match self.connection.streams.fate(stream, sequence) {
            Fate::Unknown => CancelOutcome::Unknown,
            Fate::Running => CancelOutcome::TooLate,
            Fate::Answered => CancelOutcome::Done,
            Fate::Canceled => CancelOutcome::Canceled,
        };
        let Some(&id) = waiting.get(&(stream, sequence)) else { return fate };
        let Some(pending) = self.pending.get_mut(id) else { return fate };
        if logged || pending.call.chain.is_some() {
            return CancelOutcome::TooLate;
        }
        let is_canceled = match &pending.work {
            Work::Batch(_) => batch::cancel_sync(self, id),
            work => {
                let is_free = match work.progress() {
                    Progress::Waiting => true,
                    Progress::Queued => pending.claim.as_ref().is_some_and(|claim| claim.take()),
                    Progress::Begun => false,
                };
                if is_free {
                    self.refuse(id, Status::XCanceled);
                }
                is_free
            }
        };
        if !is_canceled {
            return CancelOutcome::TooLate;
        }
        self.connection.streams.note_canceled(stream, sequence);
        CancelOutcome::Canceled
    }
}
