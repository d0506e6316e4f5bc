//! The compound engine: executes operations one after the other. Each appends its result.
//!
//! Invariants
//! * No operation waits while `wait` is `Never`. One that must wait is undone by truncating its
//!   output, and the compound goes on from it on a pool thread ([`Parked`]). There it waits for the
//!   machines of one store only. An operation on another store moves to another thread.
//! * The reply never exceeds the session's limit. A modifying operation starts only if its result
//!   will fit.
//! * The slot that SEQUENCE took is released when the compound ends, in whatever way.
//! * The rules on the positions of operations (RFC 8881 18.46.3) are checked before any operation
//!   runs.
//! * The engine names no operation's function, and touches no file. It leaves both to the dispatch.

use super::context::{CallContext, Frame, OpContext, RESULT_HEAD_BYTES};
use super::end::{Parked, refuse, take_back};
use super::lanes::{is_elsewhere, waits_for_store};
use super::resume;
use crate::args::Args;
use crate::limits::{MINOR_VERSION_MAX, MINOR_VERSION_MIN, RESPONSE_BYTES_MAX};
use crate::measure::Stages;
use crate::shared::NfsShared;
use crate::v4::class::Class;
use crate::v4::dispatch;
use crate::v4::status::{OpError, OpResult};
use dafs_rpc::{Mark, Reply};
use dafs_service::FrontEnd;
use dafs_store::Wait;
use dafs_wire::nfs4::{CompoundArgs, OP_ILLEGAL, Op, OpNum, Status};
use dafs_wire::xdr::{Decode, Decoder};
use std::sync::Arc;

/// The outcome of a compound.
pub(crate) enum Answer {
    /// The whole reply.
    Reply(Reply),
    /// The rest has to run where waiting is allowed.
    Parked(Box<Parked>),
    /// The frame around the operations is not XDR.
    Garbage,
}

/// The state of the engine for one compound.
#[derive(Debug, Default)]
pub(super) struct Runner {
    /// The lane whose machines may be waited for. `None` for any.
    pub(super) lane: Option<u64>,
    /// The start of the running operation in the arguments.
    pub(super) op_start: usize,
    /// Too little is known to answer a retry.
    lost: bool,
    /// The start of the results.
    pub(super) begin: Option<Mark>,
    /// The final status of a compound whose reply waits for the journal.
    pub(super) end: Option<Status>,
    /// The position of status and number of results in the reply.
    pub(super) status_at: usize,
    pub(super) count_at: usize,
    /// The last operation other than those on sessions and handles. It names the request in the
    /// log.
    pub(super) name: Option<OpNum>,
}

/// Runs the COMPOUND in `args`. With `Wait::Never` it waits for no other machine and no fsync. It
/// may read names and attributes of local file systems.
pub(crate) fn compound(
    shared: &Arc<NfsShared>,
    call: CallContext,
    args: Args<'_>,
    wait: Wait,
) -> Answer {
    let mut decoder = args.decoder();
    let Ok(head) = CompoundArgs::decode(&mut decoder) else { return Answer::Garbage };
    let CompoundArgs { tag, minor_version: minor, op_count } = head;
    let frame = Frame {
        reply_bytes_max: (RESPONSE_BYTES_MAX as usize).saturating_sub(call.reply_rpc_bytes),
        op_count,
        stages: Stages::begin(call.now_ns),
        ..Frame::default()
    };
    let reply = args.reply();
    let mut cx = OpContext { shared, wait, call, args, minor, reply, session: None, frame };
    let mut e = cx.encoder();
    let status_at = e.position();
    e.u32(Status::Ok.code());
    e.opaque(tag);
    let count_at = e.position();
    e.u32(0);
    let mut runner = Runner { status_at, count_at, ..Runner::default() };
    let end = if !(MINOR_VERSION_MIN..=MINOR_VERSION_MAX).contains(&minor) {
        Some(Status::MinorVersMismatch)
    } else if std::str::from_utf8(tag).is_err() {
        Some(Status::Inval)
    } else {
        runner.run(&mut cx, &mut decoder)
    };
    match runner.conclude(cx, end) {
        Ok(reply) => Answer::Reply(reply),
        Err(parked) => Answer::Parked(parked),
    }
}

impl Runner {
    /// Runs operations until the end, the first failure (its status), or one that must wait
    /// (`None`).
    pub(super) fn run<'a>(
        &mut self,
        cx: &mut OpContext<'a>,
        decoder: &mut Decoder<'a>,
    ) -> Option<Status> {
        let service = &cx.shared.service;
        // A client that sets a fence against this one waits for this work to end.
        let entry = service.fences.begin_work(cx.call.origin.address());
        let mut is_known = false;
        while cx.frame.op_index < cx.frame.op_count {
            if let Some(session) = cx.session.as_ref().filter(|_| !is_known) {
                entry.is_of(session.client());
                is_known = true;
            }
            self.op_start = decoder.position();
            let (mark, at, len) = (cx.reply.mark(), cx.encoder().position(), cx.reply.len());
            self.begin.get_or_insert(mark);
            let (number, result) = self.step(cx, decoder);
            if self.lost {
                return Some(self.lost(cx));
            }
            if cx.frame.replay.is_some() {
                return Some(Status::Ok);
            }
            let waits = result == Err(OpError::Wait) && cx.wait == Wait::Never;
            if waits
                || matches!(result, Err(OpError::Later | OpError::Elsewhere | OpError::NextTurn))
            {
                cx.reply.truncate_to(mark);
                return None;
            }
            if let Some(unlogged) = cx.frame.journal.take_unlogged() {
                return Some(take_back(cx, unlogged));
            }
            let status = settle(cx, (mark, at), number, result);
            cx.frame.stages.lap(cx.shared, FrontEnd::Nfs4, number, status != Status::Ok);
            let bytes = len..cx.reply.len();
            let op = (cx.frame.op_index, number);
            cx.frame.journal.ran(op, mark, bytes, status != Status::Ok);
            cx.frame.op_index += 1;
            if status != Status::Ok {
                return Some(status);
            }
        }
        Some(Status::Ok)
    }

    /// Decodes and runs one operation. Returns the operation number of its result, and the outcome.
    fn step<'a>(&mut self, cx: &mut OpContext<'a>, decoder: &mut Decoder<'a>) -> (u32, OpResult) {
        let Ok(number) = { *decoder }.u32() else {
            return (OP_ILLEGAL, Err(Status::BadXdr.into()));
        };
        let known = OpNum::from_u32(number).filter(|op| op.minor_version_min() <= cx.minor);
        let Some(op_number) = known else {
            return (OP_ILLEGAL, Err(Status::OpIllegal.into()));
        };
        if cx.frame.uncached {
            return (number, Err(Status::RetryUncachedRep.into()));
        }
        if let Err(status) = check_place(cx, op_number) {
            return (number, Err(status.into()));
        }
        let Ok(op) = Op::decode(decoder, cx.minor) else {
            return (number, Err(Status::BadXdr.into()));
        };
        if decoder.check_apart().is_err() {
            return (number, Err(Status::BadXdr.into()));
        }
        cx.begin_operation(op_number, &op, decoder.rest());
        let change_bytes = Class::of(op_number).change_result_bytes();
        // Number and status of this operation are not written yet, and one more status has to fit.
        if change_bytes.is_some_and(|bytes| cx.room() < bytes + RESULT_HEAD_BYTES) {
            return (number, Err(cx.too_big().into()));
        }
        if !matches!(op_number, OpNum::Sequence | OpNum::Putfh | OpNum::Getattr | OpNum::Getfh) {
            self.name = Some(op_number);
        }
        if cx.wait == Wait::Never && waits_for_store(cx, op_number) {
            return (number, Err(OpError::Wait));
        }
        if is_elsewhere(cx, self.lane, op_number) {
            return (number, Err(OpError::Elsewhere));
        }
        let mut e = cx.encoder();
        e.u32(number);
        e.u32(Status::Ok.code());
        let result = if cx.frame.resume.is_some() {
            resume::run(cx, op_number, &op, decoder.rest()).unwrap_or_else(|| {
                self.lost = true;
                Err(Status::DeadSession.into())
            })
        } else {
            let op_index = cx.frame.op_index;
            let (journal, results) = cx.journal();
            match journal.settle_earlier((op_index, op_number), results) {
                Ok(()) => dispatch::run(cx, &op, decoder.rest()),
                waits => waits,
            }
        };
        (number, result)
    }
}

/// Checks the position of an operation (RFC 8881 2.6.3.1, 18.46.3, and the operations' own
/// sections).
fn check_place(cx: &OpContext<'_>, number: OpNum) -> Result<(), Status> {
    let first = cx.frame.op_index == 0;
    match number {
        OpNum::Sequence if first => Ok(()),
        OpNum::Sequence => Err(Status::SequencePos),
        OpNum::BindConnToSession if !first => Err(Status::NotOnlyOp),
        OpNum::ExchangeId
        | OpNum::CreateSession
        | OpNum::BindConnToSession
        | OpNum::DestroySession
        | OpNum::DestroyClientid
            if first =>
        {
            (cx.frame.op_count == 1).then_some(()).ok_or(Status::NotOnlyOp)
        }
        _ if first => Err(Status::OpNotInSession),
        _ => Ok(()),
    }
}

/// Brings the result in the reply into its final form, and returns its final status.
fn settle(cx: &mut OpContext<'_>, begin: (Mark, usize), number: u32, result: OpResult) -> Status {
    let (mark, at) = begin;
    let (status, body) = match result {
        Ok(()) => (Status::Ok, true),
        Err(OpError::WithBody(status)) => (status, true),
        Err(OpError::Status(status)) => (status, false),
        // An operation that asks to wait although it may wait is delayed.
        Err(OpError::Wait | OpError::Later | OpError::Elsewhere | OpError::NextTurn) => {
            (Status::Delay, false)
        }
    };
    let rest = if cx.is_last() { 0 } else { RESULT_HEAD_BYTES };
    let fits = cx.reply.len() + rest <= cx.frame.reply_bytes_max;
    if body && fits {
        if status != Status::Ok {
            cx.encoder().patch_u32(at + 4, status.code());
        }
        return status;
    }
    let status = if body { cx.too_big() } else { status };
    cx.reply.truncate_to(mark);
    refuse(cx, number, status);
    status
}
