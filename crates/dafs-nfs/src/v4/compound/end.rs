//! The end of a compound: it has a reply to send, or is parked until it can go on.

use super::context::{CallContext, Frame, OpContext};
use super::engine::run;
use crate::args::Args;
use crate::measure::About;
use crate::shared::NfsShared;
use crate::v4::journal::{Gate, Results, Unsettled};
use crate::v4::session::Session;
use dafs_rpc::Reply;
use dafs_service::{Door, Owner};
use dafs_store::Wait;
use dafs_wire::nfs4::{OpNum, SetattrResult, Status};
use std::sync::Arc;

/// A compound that has to wait, ready to go on on another thread.
pub(crate) struct Parked {
    shared: Arc<NfsShared>,
    call: CallContext,
    minor: u32,
    reply: Reply,
    session: Option<Arc<Session>>,
    frame: Frame,
}

impl Parked {
    /// Runs the rest. May wait for the machines of `lane`, but not for others, nor for the journal.
    /// `args` are the arguments that the compound started with.
    pub(crate) fn run(self: Box<Self>, args: Args<'_>, lane: u64) -> Result<Reply, Box<Self>> {
        let Self { shared, call, minor, reply, session, mut frame } = *self;
        frame.stages.resume(&shared);
        let (wait, lane) = (Wait::Allowed, Some(lane));
        let mut cx =
            OpContext { shared: &shared, wait, lane, call, args, minor, reply, session, frame };
        if let Some(status) = cx.frame.end {
            let status = settled(&mut cx, status);
            return Ok(finish(cx, status));
        }
        let mut decoder = args.decoder();
        let seek = decoder.resume(cx.frame.op_start);
        debug_assert!(seek.is_ok(), "the arguments are those of the first run");
        let end = run(&mut cx, &mut decoder);
        conclude(cx, end)
    }

    /// Returns the gate that has to open before the rest can run. `None` when any thread that may
    /// wait will do.
    pub(crate) fn gate(&self) -> Option<Arc<Gate>> {
        self.frame.journal.gate().filter(|gate| gate.result().is_none())
    }

    /// Returns the owner of the rest for the scheduler.
    pub(crate) fn owner(&self) -> Owner {
        self.call.owner
    }

    /// Returns the lane whose machines the rest may wait for at first.
    pub(crate) fn lane(&self) -> u64 {
        self.frame.lane(&self.shared.service)
    }
}

/// Ends a compound with a status, or parks it.
pub(super) fn conclude(mut cx: OpContext<'_>, end: Option<Status>) -> Result<Reply, Box<Parked>> {
    if let Some(status) = end {
        complete(&mut cx, status);
        let Frame { journal, current, .. } = &mut cx.frame;
        let current = current.as_ref().map(|place| &place.handle);
        let results = Results { reply: &cx.reply, current };
        if journal.settle_reply(cx.shared, results).is_ok() {
            return Ok(finish(cx, status));
        }
        cx.frame.end = end;
    }
    let OpContext { shared, wait: _, lane: _, call, args: _, minor, reply, session, mut frame } =
        cx;
    frame.stages.park(shared);
    Err(Box::new(Parked { shared: shared.clone(), call, minor, reply, session, frame }))
}

/// Handles the journal's answer about the reply. Returns the status of the compound.
fn settled(cx: &mut OpContext<'_>, status: Status) -> Status {
    let Err(unsettled) = cx.frame.journal.settled() else { return status };
    let status = take_back(cx, unsettled);
    complete(cx, status);
    status
}

/// Ends the results with a change whose result the journal did not take. Returns the status of the
/// compound.
pub(super) fn take_back(cx: &mut OpContext<'_>, unsettled: Unsettled) -> Status {
    let Unsettled { op_index, number, mark, status } = unsettled;
    cx.reply.truncate_to(mark);
    refuse(cx, number, status);
    cx.frame.op_index = op_index + 1;
    status
}

/// Answers as if the retry of a request had failed in its SEQUENCE.
pub(super) fn lost(cx: &mut OpContext<'_>) -> Status {
    if let Some(begin) = cx.frame.begin {
        cx.reply.truncate_to(begin);
    }
    refuse(cx, OpNum::Sequence as u32, Status::DeadSession);
    cx.frame.op_index = 1;
    Status::DeadSession
}

/// Writes the result of a failed operation without a body.
pub(super) fn refuse(cx: &mut OpContext<'_>, number: u32, status: Status) {
    let mut e = cx.encoder();
    e.u32(number);
    e.u32(status.code());
    if number == OpNum::Setattr as u32 {
        // It returns its mask in every case (RFC 8881 18.30.2), even if it did not run.
        e.value(&SetattrResult::default());
    }
}

/// Writes the head of the reply.
fn complete(cx: &mut OpContext<'_>, status: Status) {
    let (status_at, count_at, count) = (cx.frame.status_at, cx.frame.count_at, cx.frame.op_index);
    let mut e = cx.encoder();
    e.patch_u32(status_at, status.code());
    e.patch_u32(count_at, count);
}

/// Caches the reply if the client asked for that, and releases the slot.
fn finish(cx: OpContext<'_>, status: Status) -> Reply {
    let OpContext { shared, call, session, reply, frame, .. } = cx;
    let about = About {
        door: Door::Nfs4,
        operation: frame.name.unwrap_or(OpNum::Getattr).name(),
        client: session.as_ref().map(|session| session.client().usage()),
        handle: frame.current.map(|place| place.handle),
        peer: call.origin.address(),
        failed: status != Status::Ok,
    };
    frame.stages.end(shared, &about);
    if let Some(kept) = &frame.replay {
        return Reply::from_bytes(kept);
    }
    if let Some(held) = frame.held {
        let keep = frame.cache || frame.op_count == 1;
        held.finish(keep.then(|| reply.to_bytes().into()));
    }
    reply
}
