//! Requests of a session that wait, and how X_CANCEL takes them out.
//!
//! Invariants
//! * A request that is cancelled has read and written nothing, and nothing of it happens later: it
//!   waited for chunks, or the connection has taken its job away before a thread began it.
//! * It is answered like a request that fails, with X_CANCELED. So a reply that the server keeps
//!   says the same.
//! * It leaves nothing behind but an emptied job, and a connection has no more of these than
//!   credits. Transfers that waited behind it for chunks go on.
//! * Members of chains and changes with a logged intent have begun when they wait.

use super::connection::Fate;
use super::request::{Call, Context};
use super::work::{PendingId, Progress, Work};
use crate::ops::batch;
use dafs_wire::dafs::{CancelOutcome, Status};

impl Context<'_> {
    /// Cancels a request that has not begun.
    pub(crate) fn cancel_request(&mut self, stream: u16, sequence: u16) -> CancelOutcome {
        let id = match self.connection.streams.fate(stream, sequence) {
            Fate::Unknown => return CancelOutcome::Unknown,
            Fate::Answered => return CancelOutcome::Done,
            Fate::Canceled => return CancelOutcome::Canceled,
            Fate::Running(None) => return CancelOutcome::TooLate,
            Fate::Running(Some(id)) => id,
        };
        let is_logged = self.connection.ops.contains_key(&stream);
        let is_canceled = match self.pending.get_mut(id) {
            Some(pending) if !is_logged && pending.call.chain.is_none() => {
                match (&pending.work, pending.work.progress()) {
                    (Work::Batch(_), _) => batch::cancel_sync(self, id),
                    (_, Progress::Waiting) => {
                        self.forget_waiting(id);
                        self.refuse(id, Status::XCanceled);
                        true
                    }
                    (_, Progress::Queued) => self.cancel_job(id),
                    (_, Progress::Begun) => false,
                }
            }
            _ => false,
        };
        if !is_canceled {
            return CancelOutcome::TooLate;
        }
        self.connection.streams.note_canceled(stream, sequence);
        CancelOutcome::Canceled
    }

    /// Forgets that cancelled work waits for chunks.
    pub(crate) fn forget_waiting(&mut self, id: PendingId) {
        self.link.staging.forget(&self.connection.owner, id);
    }

    /// Cancels a request whose job waits for a thread. Returns false if a thread has it, or if as
    /// many emptied jobs wait as the connection has credits.
    fn cancel_job(&mut self, id: PendingId) -> bool {
        if self.connection.canceled_jobs >= self.connection.credits.nreq {
            return false;
        }
        let Some(pending) = self.pending.get_mut(id) else { return false };
        let Some(job) = pending.job.as_ref().and_then(|job| job.take()) else { return false };
        drop(job);
        self.connection.canceled_jobs += 1;
        let nobody = Call::without_request(self.port, self.now);
        let call = std::mem::replace(&mut pending.call, nobody);
        let work = std::mem::replace(&mut pending.work, Work::Canceled);
        pending.job = None;
        self.connection.receives.give_back(call.slot);
        work.abandon(self.link);
        // It may have held chunks.
        self.link.staging.note_due();
        self.fail(&call, Status::XCanceled);
        true
    }

    /// Handles the turn of an emptied job.
    pub(super) fn canceled_job_over(&mut self, id: PendingId) {
        if self.pending.take(id).is_some() {
            self.connection.canceled_jobs -= 1;
        }
    }
}
