//! The end of a compound: it has a reply to send, or is parked until it can go on. No operation
//! runs here.

use super::context::{CallContext, Frame, OpContext};
use super::engine::Runner;
use crate::args::Args;
use crate::measure::About;
use crate::shared::NfsShared;
use crate::v4::journal::{Gate, Unlogged};
use crate::v4::session::Session;
use dafs_rpc::Reply;
use dafs_service::{FileRange, FrontEnd, Owner};
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
    runner: Runner,
}

impl Parked {
    /// Runs the rest. May wait for the machines of `lane`, but not for others, nor for the journal.
    /// `args` are the arguments that the compound started with.
    pub(crate) fn run(self: Box<Self>, args: Args<'_>, lane: u64) -> Result<Reply, Box<Self>> {
        self.go_on(args, Some(lane), Wait::Allowed)
    }

    /// Runs the rest as far as it need not wait. `args` are as for [`run`](Self::run).
    pub(crate) fn run_again(self: Box<Self>, args: Args<'_>) -> Result<Reply, Box<Self>> {
        self.go_on(args, None, Wait::Never)
    }

    fn go_on(
        self: Box<Self>,
        args: Args<'_>,
        lane: Option<u64>,
        wait: Wait,
    ) -> Result<Reply, Box<Self>> {
        let Self { shared, call, minor, reply, session, mut frame, mut runner } = *self;
        frame.stages.resume(&shared);
        runner.lane = lane;
        let mut cx = OpContext { shared: &shared, wait, call, args, minor, reply, session, frame };
        if let Some(status) = runner.end {
            let status = runner.settled(&mut cx, status);
            return Ok(runner.finish(cx, status));
        }
        let mut decoder = args.decoder();
        let seek = decoder.resume(runner.op_start);
        debug_assert!(seek.is_ok(), "the arguments are those of the first run");
        let end = runner.run(&mut cx, &mut decoder);
        runner.conclude(cx, end)
    }

    /// Returns the gate that has to open before the rest can run. `None` when any thread that may
    /// wait will do.
    pub(crate) fn gate(&self) -> Option<Arc<Gate>> {
        let is_shut = |gate: &Arc<Gate>| gate.result().is_none();
        let names = self.frame.names.clone().filter(is_shut);
        names.or_else(|| self.frame.journal.gate().filter(is_shut))
    }

    /// Returns the range that a read did not find in memory, once. `None` when it waits for something
    /// else.
    pub(crate) fn take_missed(&mut self) -> Option<FileRange> {
        self.frame.missed.take().filter(|_| self.gate().is_none())
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

impl Runner {
    /// Ends a compound with a status, or parks it.
    pub(super) fn conclude(
        mut self,
        mut cx: OpContext<'_>,
        end: Option<Status>,
    ) -> Result<Reply, Box<Parked>> {
        if let Some(status) = end {
            self.complete(&mut cx, status);
            let (journal, results) = cx.journal();
            if journal.settle_reply(results).is_ok() {
                return Ok(self.finish(cx, status));
            }
            self.end = end;
        }
        let OpContext { shared, wait: _, call, args: _, minor, reply, session, mut frame } = cx;
        frame.stages.park(shared);
        let (shared, runner) = (shared.clone(), self);
        Err(Box::new(Parked { shared, call, minor, reply, session, frame, runner }))
    }

    /// Handles the journal's answer about the reply. Returns the status of the compound.
    fn settled(&self, cx: &mut OpContext<'_>, status: Status) -> Status {
        let Err(unlogged) = cx.frame.journal.settled() else { return status };
        let status = take_back(cx, unlogged);
        self.complete(cx, status);
        status
    }

    /// Answers as if the retry of a request had failed in its SEQUENCE.
    pub(super) fn lost(&self, cx: &mut OpContext<'_>) -> Status {
        if let Some(begin) = self.begin {
            cx.reply.truncate_to(begin);
        }
        refuse(cx, OpNum::Sequence as u32, Status::DeadSession);
        cx.frame.op_index = 1;
        Status::DeadSession
    }

    /// Writes the head of the reply.
    fn complete(&self, cx: &mut OpContext<'_>, status: Status) {
        let count = cx.frame.op_index;
        let mut e = cx.encoder();
        e.patch_u32(self.status_at, status.code());
        e.patch_u32(self.count_at, count);
    }

    /// Caches the reply if the client asked for that, and releases the slot.
    fn finish(&self, cx: OpContext<'_>, status: Status) -> Reply {
        let OpContext { shared, call, session, reply, frame, .. } = cx;
        let about = About {
            front_end: FrontEnd::Nfs4,
            operation: self.name.unwrap_or(OpNum::Getattr).name(),
            user: call.who.cred.uid,
            client: session.as_ref().map(|session| session.client().usage()),
            handle: frame.current.map(|current| current.handle),
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
}

/// Ends the results with a change whose result the journal did not take. Returns the status of the
/// compound.
pub(super) fn take_back(cx: &mut OpContext<'_>, unlogged: Unlogged) -> Status {
    let Unlogged { op_index, number, mark, status } = unlogged;
    cx.reply.truncate_to(mark);
    refuse(cx, number, status);
    cx.frame.op_index = op_index + 1;
    status
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
