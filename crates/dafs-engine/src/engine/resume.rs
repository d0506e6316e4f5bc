//! Requests that wait, and their continuation.
//!
//! Invariants
//! * A change of a file that has begun is finished even when its connection ends meanwhile. Its
//!   reply is cached if the session caches replies. The session is over only then (DAFS 12). An engine
//!   that ends first leaves it in doubt, if its reply is durable.

use super::connection::Phase;
use super::request::{Call, Context, Done};
use super::work::{JobResult, Pending, PendingId, QueuedJob, Report, Work, submit};
use super::{gss, session_ops};
use crate::ops::{append, attr, batch, fence, open, read, write};
use dafs_service::Handle;
use dafs_wire::dafs::Status;
use std::sync::Arc;

impl Context<'_> {
    /// Defers a request until `work` is done.
    pub(crate) fn defer(&mut self, call: &Call, work: Work) -> PendingId {
        self.deferred = true;
        let endpoint = self.connection.endpoint;
        let id = self.pending.insert(Pending::new(endpoint, call, work));
        self.connection.streams.note_waiting(call.header.stream_id, id);
        id
    }

    /// Defers a request until a job on the pool is done, which may wait for the store of the object
    /// of `handle`.
    pub(crate) fn defer_job(
        &mut self,
        (call, handle): (&Call, &Handle),
        work: Work,
        job: impl FnOnce() -> JobResult + Send + 'static,
    ) {
        let id = self.defer(call, work);
        self.submit(id, handle, job);
    }

    /// Submits a job for a request that waits already.
    pub(crate) fn submit(
        &mut self,
        id: PendingId,
        handle: &Handle,
        job: impl FnOnce() -> JobResult + Send + 'static,
    ) {
        self.submit_in(self.lane(handle), id, job);
    }

    /// Submits a job that may wait for the machines of a lane. It does not begin if its request is
    /// cancelled before.
    pub(crate) fn submit_in(
        &mut self,
        lane: u64,
        id: PendingId,
        job: impl FnOnce() -> JobResult + Send + 'static,
    ) {
        let execution = self.execution(id);
        let job = move || match execution {
            Some(execution) => execution.run(job),
            None => job(),
        };
        let pool = (&*self.shared.pool, self.place(lane));
        match self.pending.get_mut(id) {
            Some(pending) if pending.work.may_be_canceled() => {
                let queued = Arc::new(QueuedJob::new(job));
                pending.job = Some(queued.clone());
                let job = move || queued.take().map_or(JobResult::Canceled, |job| job());
                submit(pool, self.inbox, id, job);
            }
            _ => submit(pool, self.inbox, id, job),
        }
    }

    /// Submits a job that may report its result after its end.
    pub(crate) fn submit_report(&self, id: PendingId, job: impl FnOnce(Report) + Send + 'static) {
        let report = Report::new(self.inbox, id);
        self.shared.pool.submit_to(self.place(0), Box::new(move || job(report)));
    }

    /// Enters work without a request.
    pub(crate) fn insert(&mut self, work: Work) -> PendingId {
        let call = Call::without_request(self.port, self.now);
        self.pending.insert(Pending::new(self.connection.endpoint, &call, work))
    }

    pub(crate) fn call_of(&mut self, id: PendingId) -> Option<Call> {
        self.pending.get_mut(id).map(|pending| pending.call)
    }

    /// Takes a waiting request out of the table, whose receive slot is still needed, or is free.
    pub(crate) fn take_in_slot(&mut self, id: PendingId) -> Option<Pending> {
        self.pending.take(id)
    }

    /// Takes a waiting request out of the table, because it goes on.
    pub(crate) fn take_pending(&mut self, id: PendingId) -> Option<Pending> {
        let pending = self.pending.take(id)?;
        self.connection.receives.give_back(pending.call.slot);
        Some(pending)
    }

    /// Drops a waiting request, whose client is gone.
    pub(crate) fn abandon(&mut self, id: PendingId) {
        if let Some(pending) = self.take_pending(id) {
            self.connection.drop_change(&pending.call);
            pending.work.abandon(self.link);
        }
    }

    pub(crate) fn discard(&mut self, id: PendingId) {
        if let Some(pending) = self.pending.take(id) {
            pending.work.abandon(self.link);
        }
    }

    pub(crate) fn refuse(&mut self, id: PendingId, status: Status) {
        let Some(Pending { call, work, .. }) = self.take_pending(id) else { return };
        work.abandon(self.link);
        self.fail(&call, status);
    }

    /// Finishes a request whose work is over.
    pub(crate) fn finish(&mut self, call: &Call, outcome: Done) {
        if let Err(status) = outcome {
            self.fail(call, status);
        }
    }

    pub(super) fn job_done(&mut self, id: PendingId, result: JobResult) {
        let Some(pending) = self.pending.get_mut(id) else { return };
        match &pending.work {
            // Their missing data will not come any more.
            Work::Read(_) if self.connection.ended => return self.abandon(id),
            Work::Stage(transfer) if self.connection.ended && !transfer.is_here() => {
                return self.abandon(id);
            }
            Work::Read(_) => return read::job_done(self, id, result),
            Work::Stage(_) => return write::job_done(self, id, result),
            Work::Load(_) => return batch::job_done(self, id, result),
            // No session must begin now.
            Work::Authenticate | Work::Again if self.connection.phase == Phase::Closing => {
                return self.abandon(id);
            }
            Work::Append(_) if matches!(result, JobResult::Journal(_)) => {
                return append::intent_logged(self, id, result);
            }
            Work::FetchAttributes(_) => return attr::intent_logged(self, id, result),
            Work::Canceled => return self.canceled_job_over(id),
            Work::Intended => return self.intended(id, result),
            Work::Settle { .. } => return self.settled(id, result),
            Work::KeepSession(_) => return session_ops::session_kept(self, id),
            Work::Register => return session_ops::registered(self, id, result),
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
                session_ops::proof_checked(self, &call, Some(admission))
            }
            (Work::Authenticate, JobResult::Gss(step)) => gss::token_taken(self, &call, step),
            (Work::Authenticate, _) => session_ops::proof_checked(self, &call, None),
            (Work::Call, JobResult::Call(rest)) => (rest.0)(self, &call),
            (Work::Commit, JobResult::Unit(result)) => open::commit_done(self, &call, result),
            (Work::Fence, JobResult::Fence(result)) => fence::fence_done(self, &call, result),
            (Work::Append(transfer), JobResult::Offset(result)) => {
                append::append_done(self, &call, *transfer, result)
            }
            (Work::Write { stable, verifier, done, ride }, JobResult::Count(result)) => {
                write::write_done(self, &call, (stable, verifier, done), ride, result)
            }
            (Work::ReadInline { slot, done, ride }, JobResult::Read(result)) => {
                read::read_inline_done(self, &call, (slot, done), ride, result)
            }
            (Work::ReadMapped { done, sum, ride }, JobResult::Read(result)) => {
                read::read_mapped_done(self, &call, (done, sum), ride, result)
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
            Some(Work::Stage(_)) => write::fetched(self, id, chunk, ok),
            Some(Work::Append(_)) => append::fetched(self, id, ok),
            Some(Work::Load(_)) => {
                batch::fetched(self, id, ok);
                batch::turn(self);
            }
            Some(Work::FetchAttributes(_)) => attr::fetched(self, id, ok),
            _ => debug_assert!(false, "RDMA completed for a request that does not wait for it"),
        }
    }

    /// Resumes a transfer that waited for a chunk.
    pub(super) fn resume(&mut self, id: PendingId) {
        match self.pending.get_mut(id).map(|pending| &pending.work) {
            Some(Work::Read(_)) => read::resume(self, id),
            Some(Work::Stage(_)) => write::resume(self, id),
            Some(Work::Append(_)) => append::resume(self, id),
            Some(Work::Load(_)) => {
                batch::start(self, id);
                batch::turn(self);
            }
            _ => {}
        }
    }
}
