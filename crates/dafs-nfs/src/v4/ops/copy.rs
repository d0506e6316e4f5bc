//! COPY, OFFLOAD_STATUS and OFFLOAD_CANCEL within this server (RFC 7862 15.2, 15.8, 15.9).
//!
//! Short copies, and synchronous ones, are made before the reply. Long ones continue after it and
//! end with CB_OFFLOAD.
//!
//! Invariants
//! * All copies are made slice by slice on the pool. Before each slice other jobs get their turns.

use super::offload::{Copy, OffloadOutcome};
use super::read::READ;
use super::write::WRITE;
use crate::limits::{COPY_SLICE_BYTES, COPY_SYNCHRONOUS_BYTES_MAX};
use crate::shared::NfsShared;
use crate::v4::callback::Callback;
use crate::v4::compound::context::{CallContext, Copied, OpContext};
use crate::v4::status::{OpError, OpResult, of_io};
use dafs_service::{Caller, Client, Handle, Place, StateRef};
use dafs_store::{CopyRange, OpenFile, Wait};
use dafs_wire::nfs4::{
    CopyArgs, CopyRequirements, CopyResult, OffloadCancelArgs, OffloadStatusArgs,
    OffloadStatusResult, StableHow, Status, Verifier, WriteResponse,
};
use std::sync::Arc;

/// The byte ranges, files and state-ids of a copy.
#[derive(Debug, Clone, Copy)]
struct Plan {
    source: Handle,
    source_state: StateRef,
    source_offset: u64,
    target: Handle,
    target_state: StateRef,
    target_offset: u64,
    count: u64,
}

type Files = (Arc<dyn OpenFile>, Arc<dyn OpenFile>);

impl Plan {
    /// Opens source and target, if the state-ids still allow it.
    fn files(&self, shared: &NfsShared, caller: Caller<'_>) -> Result<Files, OpError> {
        let service = &shared.service;
        let source =
            service.opens.io_file(caller, &self.source, self.source_state, READ).map_err(of_io)?;
        let target =
            service.opens.io_file(caller, &self.target, self.target_state, WRITE).map_err(of_io)?;
        // A count of zero means all of the rest here.
        let length = if self.count == 0 { u64::MAX } else { self.count };
        service.locks.check_span(&self.source, self.source_offset, length).map_err(of_io)?;
        service.locks.check_span(&self.target, self.target_offset, length).map_err(of_io)?;
        Ok((source, target))
    }

    /// Copies a slice from its start, or as much as there is before an error.
    fn slice(&self, shared: &NfsShared, caller: Caller<'_>) -> Result<u64, OpError> {
        if self.count == 0 {
            return Ok(0);
        }
        let (source, target) = self.files(shared, caller)?;
        copy_bytes(&*source, &*target, self, self.count.min(COPY_SLICE_BYTES))
    }

    /// Returns the rest behind `count` bytes.
    fn after(self, count: u64) -> Self {
        Self {
            source_offset: self.source_offset + count,
            target_offset: self.target_offset + count,
            count: self.count - count,
            ..self
        }
    }
}

pub(crate) fn copy(cx: &mut OpContext<'_>, args: &CopyArgs<'_>) -> OpResult {
    if !args.source_servers.is_empty() {
        // The server copies no data from other servers.
        return Err(Status::NotSupp.into());
    }
    cx.may_wait()?;
    let mut plan = Plan {
        source: cx.saved()?,
        source_state: cx.saved_state(&args.source_stateid)?,
        source_offset: args.source_offset,
        target: cx.current()?,
        target_state: cx.state(&args.destination_stateid)?,
        target_offset: args.destination_offset,
        count: args.count,
    };
    let mut copied = match cx.take_copied() {
        Some(copied) => copied,
        None => {
            check(cx, &mut plan)?;
            // Read before data is copied: if the data is lost meanwhile, the client must see that.
            let verifier = cx.write_verifier();
            let client = cx.client()?;
            if !args.synchronous
                && plan.count > COPY_SYNCHRONOUS_BYTES_MAX
                && let Some(copy) = cx.shared().copies().begin(client.key(), client.host().host())
            {
                let stateid = copy.stateid();
                let job = Job {
                    shared: cx.shared().clone(),
                    call: cx.call().clone(),
                    client: client.clone(),
                    plan,
                    copy,
                    verifier,
                };
                job.submit();
                return answer(cx, Some(stateid), 0, verifier);
            }
            Copied { done: 0, wanted: plan.count.min(COPY_SYNCHRONOUS_BYTES_MAX), verifier }
        }
    };
    plan.count = copied.wanted;
    // The time of a recall that the slice causes counts from now, because earlier slices may have
    // taken long.
    let caller = Caller { now_ns: cx.now_ns(), ..cx.caller()? };
    match plan.after(copied.done).slice(cx.shared(), caller) {
        Ok(count) => {
            copied.done += count;
            if count > 0 && copied.done < copied.wanted {
                return cx.go_on_from(copied);
            }
        }
        Err(error) if copied.done == 0 => return Err(error),
        // The copied part is good. The client gets the error when it goes on.
        Err(_) => {}
    }
    answer(cx, None, copied.done, copied.verifier)
}

/// Checks the plan, and sets its length.
fn check(cx: &OpContext<'_>, plan: &mut Plan) -> OpResult {
    let (source, _) = plan.files(cx.shared(), cx.caller()?)?;
    cx.service().layouts.extend_to_own(cx.caller()?, &plan.source)?;
    let size = source.attr()?.size;
    // The range must lie in the source (RFC 7862 15.2.3). A count of zero means all of the rest.
    let rest = size.checked_sub(plan.source_offset).ok_or(Status::Inval)?;
    plan.count = if plan.count == 0 { rest } else { plan.count };
    if plan.count > rest || plan.target_offset.checked_add(plan.count).is_none() {
        return Err(Status::Inval.into());
    }
    Ok(check_overlap(plan)?)
}

pub(crate) fn offload_status(cx: &mut OpContext<'_>, args: &OffloadStatusArgs) -> OpResult {
    cx.current()?;
    let copy = cx.shared().copies().find(cx.client()?.key(), &args.stateid)?;
    let result = OffloadStatusResult { count: copy.copied(), complete: copy.outcome() };
    cx.answer(&result)
}

pub(crate) fn offload_cancel(cx: &mut OpContext<'_>, args: &OffloadCancelArgs) -> OpResult {
    cx.current()?;
    let copies = cx.shared().copies();
    copies.cancel(&*copies.find(cx.client()?.key(), &args.stateid)?);
    Ok(())
}

fn answer(
    cx: &mut OpContext<'_>,
    callback_id: Option<dafs_wire::nfs4::Stateid>,
    count: u64,
    verifier: Verifier,
) -> OpResult {
    let synchronous = callback_id.is_none();
    let result = CopyResult {
        response: WriteResponse { callback_id, count, committed: StableHow::Unstable, verifier },
        requirements: CopyRequirements { consecutive: true, synchronous },
    };
    cx.answer(&result)
}

/// Refuses overlapping ranges of one file (RFC 7862 15.2.3).
fn check_overlap(plan: &Plan) -> Result<(), Status> {
    let (from, to, count) = (plan.source_offset, plan.target_offset, plan.count);
    let apart = from.saturating_add(count) <= to || to.saturating_add(count) <= from;
    if plan.source == plan.target && count > 0 && !apart { Err(Status::Inval) } else { Ok(()) }
}

/// Copies `wanted` bytes from the start of the plan, or as much as there is before an error.
fn copy_bytes(
    source: &dyn OpenFile,
    target: &dyn OpenFile,
    plan: &Plan,
    wanted: u64,
) -> Result<u64, OpError> {
    let mut done = 0;
    while done < wanted {
        let whole = CopyRange::new(plan.source_offset, plan.target_offset, wanted);
        match target.copy_from(source, whole.after(done)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error.into()),
            // The copied part is good. The client gets the error when it goes on.
            Err(_) => break,
        }
    }
    Ok(done)
}

/// An asynchronous copy.
struct Job {
    shared: Arc<NfsShared>,
    call: CallContext,
    client: Arc<Client>,
    plan: Plan,
    copy: Arc<Copy>,
    /// Its value before the first slice.
    verifier: Verifier,
}

impl Job {
    /// Queues the next slice on the pool.
    fn submit(self) {
        let shared = self.shared.clone();
        let namespace = shared.service.namespace();
        let handles = [&self.plan.target, &self.plan.source];
        let lane = handles.map(|handle| namespace.lane(handle)).into_iter().find(|lane| *lane != 0);
        let place = Place { lane: lane.unwrap_or(0), owner: self.call.owner };
        shared.run_in(place, Box::new(move || self.run()));
    }

    fn run(self) {
        let outcome = match self.slice() {
            _ if self.copy.is_cancelled() => Status::Ok,
            Ok(0) => Status::Ok,
            Ok(count) => {
                self.copy.add(count);
                let plan = self.plan.after(count);
                if plan.count > 0 {
                    return Self { plan, ..self }.submit();
                }
                Status::Ok
            }
            Err(OpError::Status(status) | OpError::WithBody(status)) => status,
            // The caller may wait already, so this store would never finish.
            Err(OpError::Wait | OpError::Later | OpError::Elsewhere | OpError::NextTurn) => {
                Status::Delay
            }
        };
        self.shared.copies().end(&self.copy, outcome);
        if self.copy.is_cancelled() {
            return;
        }
        let outcome = OffloadOutcome {
            status: outcome,
            copied: self.copy.copied(),
            committed: StableHow::Unstable,
            verifier: self.verifier.0,
        };
        let (handle, stateid) = (self.plan.target, self.copy.stateid());
        self.shared.call_client(self.client.key(), Callback::Offload { handle, stateid, outcome });
    }

    fn slice(&self) -> Result<u64, OpError> {
        if self.copy.is_cancelled() || self.plan.count == 0 {
            return Ok(0);
        }
        let subject = self.call.subject(&self.client);
        // A client that sets a fence against this one waits for this slice. The next one is
        // refused.
        let entry = self.shared.service.fences.begin_work(self.call.origin.address());
        entry.is_of(&self.client);
        for handle in [&self.plan.source, &self.plan.target] {
            self.shared.service.fences.check(&subject, handle)?;
        }
        let caller = Caller {
            client: &self.client,
            cred: &self.call.who.cred,
            subject,
            wait: Wait::Allowed,
            // The time that recalls of this slice count from. The copy may take longer than a
            // lease.
            now_ns: self.shared.clock_ns().max(self.call.now_ns),
        };
        self.plan.slice(&self.shared, caller)
    }
}
