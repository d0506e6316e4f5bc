//! Requests that wait, and their continuation.
//!
//! Invariants
//! * A change of a file that has begun is finished even when its connection ends meanwhile. Its
//!   reply is cached if the session caches replies. The session is over only then (DAFS 12).

use super::Tag;
use super::connection::Phase;
use super::request::{Call, Context, Done};
use super::work::{JobResult, Pending, PendingId, Work, submit};
use dafs_service::Handle;
use dafs_wire::dafs::Status;

impl Context<'_> {
    /// Defers a request until `work` is done.
    pub(super) fn defer(&mut self, call: &Call, work: Work) -> PendingId {
        self.deferred = true;
        let endpoint = self.connection.endpoint;
        self.pending.insert(Pending { endpoint, call: *call, work })
    }

    /// Defers a request until a job on the pool is done, which may wait for the store of the object
    /// of `handle`.
    pub(super) fn defer_job(
        &mut self,
        (call, handle): (&Call, &Handle),
        work: Work,
        job: impl FnOnce() -> JobResult + Send + 'static,
    ) {
        let id = self.defer(call, work);
        self.submit(id, handle, job);
    }

    /// Submits a job for a request that waits already.
    pub(super) fn submit(
        &self,
        id: PendingId,
        handle: &Handle,
        job: impl FnOnce() -> JobResult + Send + 'static,
    ) {
        let place = self.place(self.lane(handle));
        submit((&*self.shared.pool, place), self.inbox, id, job);
    }

    /// Takes a waiting request out of the table, because it goes on.
    pub(super) fn take_pending(&mut self, id: PendingId) -> Option<Pending> {
        let pending = self.pending.take(id)?;
        self.connection.receives.give_back(pending.call.slot);
        Some(pending)
    }

    /// Drops a waiting request, whose client is gone.
    pub(super) fn abandon(&mut self, id: PendingId) {
        if let Some(pending) = self.take_pending(id) {
            // Its logged change is not executed. Others may wait for its change locks.
            self.connection.ops.remove(&pending.call.header.stream_id);
            pending.work.abandon(self.link);
        }
    }

    /// Finishes a request whose work is over.
    pub(super) fn finish(&mut self, call: &Call, outcome: Done) {
        if let Err(status) = outcome {
            self.fail(call, status);
        }
    }

    /// Handles the result of a job.
    pub(super) fn job_done(&mut self, id: PendingId, result: JobResult) {
        let Some(pending) = self.pending.get_mut(id) else { return };
        match &pending.work {
            // Their missing data will not come any more.
            Work::Read(_) if self.connection.ended => return self.abandon(id),
            Work::Stage(transfer) if self.connection.ended && !transfer.is_here() => {
                return self.abandon(id);
            }
            Work::Read(_) => return self.read_staged(id, result),
            Work::Stage(_) => return self.write_staged(id, result),
            Work::Load(_) => return self.load_job_done(id, result),
            // No session must begin now.
            Work::Authenticate | Work::Again if self.connection.phase == Phase::Closing => {
                return self.abandon(id);
            }
            Work::Append(_) if matches!(result, JobResult::Journal(_)) => {
                return self.append_logged(id, result);
            }
            Work::FetchAttributes(_) => return self.attributes_logged(id, result),
            Work::Intended => return self.intended(id, result),
            Work::Settle { .. } => return self.settled(id, result),
            Work::KeepSession(_) => return self.session_kept(id),
            Work::Register => return self.registered(id, result),
            Work::Again => {
                // The message stays in its slot.
                let call = pending.call;
                self.pending.take(id);
                return self.again(&call);
            }
            _ => {}
        }
        let Some(Pending { call, work, .. }) = self.take_pending(id) else { return };
        let outcome = match (work, result) {
            (Work::Authenticate, JobResult::Admission(admission)) => {
                self.proof_checked(&call, Some(admission))
            }
            (Work::Authenticate, _) => self.proof_checked(&call, None),
            (Work::Call, JobResult::Call(rest)) => (rest.0)(self, &call),
            (Work::Commit, JobResult::Unit(result)) => self.commit_done(&call, result),
            (Work::Fence, JobResult::Fence(result)) => self.fence_done(&call, result),
            (Work::Append(transfer), JobResult::Offset(result)) => {
                self.append_done(&call, *transfer, result)
            }
            (Work::Write { stable, verifier, done }, JobResult::Count(result)) => {
                self.write_done(&call, (stable, verifier), done, result)
            }
            (Work::ReadInline { slot, done }, JobResult::Read(result)) => {
                self.read_inline_done(&call, slot, done, result)
            }
            (Work::ReadMapped { done, sum }, JobResult::Read(result)) => {
                self.read_mapped_done(&call, done, sum, result)
            }
            (work, _) => {
                // The job panicked, and its resources are released.
                work.abandon(self.link);
                Err(Status::ServerFault)
            }
        };
        self.finish(&call, outcome);
    }

    /// Handles the end of RDMA into a chunk.
    pub(super) fn fetched(&mut self, id: PendingId, chunk: u32, ok: bool) {
        match self.pending.get_mut(id).map(|pending| &pending.work) {
            Some(Work::Stage(_)) => self.write_fetched(id, chunk, ok),
            Some(Work::Append(_)) => self.append_fetched(id, ok),
            Some(Work::Load(_)) => {
                self.load_fetched(id, ok);
                self.batch_turn();
            }
            Some(Work::FetchAttributes(_)) => self.attributes_fetched(id, ok),
            _ => debug_assert!(false, "RDMA completed for a request that does not wait for it"),
        }
    }

    /// Resumes a transfer that waited for a chunk.
    pub(super) fn resume(&mut self, id: PendingId) {
        match self.pending.get_mut(id).map(|pending| &pending.work) {
            Some(Work::Read(_)) => self.read_more(id),
            Some(Work::Stage(_)) => self.write_more(id),
            Some(Work::Append(_)) => self.append_fetch(id),
            Some(Work::Load(_)) => {
                self.load_start(id);
                self.batch_turn();
            }
            _ => {}
        }
    }

    pub(super) fn tag_in(id: PendingId, chunk: u32) -> u64 {
        Tag::ChunkIn { pending: id.index(), chunk }.pack()
    }
}
