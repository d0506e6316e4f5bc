//! SEQUENCE (RFC 8881 18.46): takes a slot, answers retries, renews the lease.

use crate::limits::DURABLE_OPERATIONS_MAX;
use crate::principal::Principal;
use crate::v4::compound::context::{OpContext, RESULT_HEAD_BYTES};
use crate::v4::digest;
use crate::v4::journal::{Known, LoggedResult, Numbered, Resume, kept};
use crate::v4::session::{Session, SlotsLeft};
use crate::v4::slot::{Begin, SlotRequest};
use crate::v4::status::{OpError, OpResult};
use dafs_service::Client;
use dafs_service::durable::Answer;
use dafs_wire::nfs4::{SequenceArgs, SequenceResult, SequenceStatus, Status};
use smallvec::SmallVec;
use std::sync::Arc;

/// Bytes of a SEQUENCE result behind its status.
const RESULT_BYTES: usize = 16 + 5 * 4;

/// Executes SEQUENCE. Every check comes before the slot is taken, so that a request that is refused
/// here can be repeated with the same sequence id.
pub(crate) fn sequence(cx: &mut OpContext<'_>, args: &SequenceArgs, rest: &[u8]) -> OpResult {
    let session = match cx.find_session(args.session_id) {
        Err(OpError::Status(Status::DeadSession)) => return resume(cx, args, rest),
        found => found?,
    };
    check_limits(cx, &session, args)?;
    let request = SlotRequest {
        slot: args.slot_id,
        sequence: args.sequence_id,
        highest: args.highest_slot_id,
        who: Principal::of(&cx.call().who),
        digest: digest::of_request(cx.minor(), cx.op_count(), rest, cx.args()),
    };
    cx.shared().sessions.share_cache(cx.call().now_ns);
    let (begin, slots, held) = session.begin(request)?;
    // A retry shows that its client is alive. The client counts its lease from the answer.
    session.client().renew(cx.call().now_ns);
    match (begin, held) {
        (Begin::Replay(reply), _) => {
            cx.replay(reply);
            return Ok(());
        }
        (Begin::Uncached, _) => cx.refuse_retry(session.clone()),
        (Begin::New, Some(held)) => cx.enter(session.clone(), held, args.cache_this),
        // INVARIANT: `Session::begin` gives the slot with every new request.
        (Begin::New, None) => return Err(OpError::Status(Status::ServerFault)),
    }
    if session.is_persistent() {
        cx.keep_replies(Numbered {
            session: session.id(),
            slot: args.slot_id,
            sequence: args.sequence_id,
            rest_bytes: rest.len(),
        });
    }
    let result = result(cx, &session, args, slots);
    cx.answer(&result)
}

/// Executes SEQUENCE of a session of an earlier run: finds the results of the request.
///
/// # Errors
/// `DeadSession` when the request was not executed.
fn resume(cx: &mut OpContext<'_>, args: &SequenceArgs, rest: &[u8]) -> OpResult {
    let session = kept(cx.shared(), args.session_id).ok_or(Status::BadSession)?;
    let request = Numbered {
        session: args.session_id,
        slot: args.slot_id,
        sequence: args.sequence_id,
        rest_bytes: rest.len(),
    };
    let who = Principal::of(&cx.call().who);
    let digest = request.digest(&who, cx.minor(), cx.op_count(), cx.args(), None);
    let mut known = SmallVec::new();
    for op_index in 1..cx.op_count().min(DURABLE_OPERATIONS_MAX) {
        let Some(key) = request.key(&who, digest, op_index) else { break };
        match cx.service().durable.kept_answer(&key) {
            None => {}
            Some(Answer::Happened(effect)) => known.push((op_index, Known::Happened(effect))),
            Some(Answer::Failed) => known.push((op_index, Known::Failed)),
            Some(Answer::Reply { bytes, .. }) => match LoggedResult::decode(&bytes) {
                Some(LoggedResult::Whole(reply)) => {
                    cx.replay(reply.into());
                    return Ok(());
                }
                Some(LoggedResult::Result { current, result }) => {
                    known.push((op_index, Known::Result { current, result }));
                }
                None => return Err(Status::DeadSession.into()),
            },
        }
    }
    if known.is_empty() {
        return Err(Status::DeadSession.into());
    }
    // Files are read.
    cx.may_wait()?;
    let client = Client::stateless(&session.client);
    let ghost = Session::absent(args.session_id, client, who);
    cx.resume(ghost, Resume { known });
    let highest = args.highest_slot_id.max(args.slot_id);
    cx.answer(&SequenceResult {
        session_id: args.session_id,
        sequence_id: args.sequence_id,
        slot_id: args.slot_id,
        highest_slot_id: highest,
        target_highest_slot_id: highest,
        status: SequenceStatus::empty(),
    })
}

fn check_limits(cx: &mut OpContext<'_>, session: &Session, args: &SequenceArgs) -> OpResult {
    let fore = session.fore();
    if cx.call().call_bytes > fore.request_bytes_max as usize {
        return Err(Status::ReqTooBig.into());
    }
    if cx.op_count() > fore.operations_max {
        return Err(Status::TooManyOps.into());
    }
    // The reply has the RPC header and the protection of the results, the frame so far, and number and
    // status of this operation. If there are other operations, at least a status has to fit behind it.
    let rest_bytes = if cx.op_count() == 1 { 0 } else { RESULT_HEAD_BYTES };
    let rpc_bytes = cx.call().reply_rpc_bytes;
    let reply_bytes = rpc_bytes + cx.reply().len() + RESULT_BYTES + rest_bytes;
    if reply_bytes > fore.response_bytes_max as usize {
        return Err(Status::RepTooBig.into());
    }
    if args.cache_this && reply_bytes > fore.response_bytes_max_cached as usize {
        return Err(Status::RepTooBigToCache.into());
    }
    Ok(())
}

fn result(
    cx: &OpContext<'_>,
    session: &Arc<Session>,
    args: &SequenceArgs,
    slots: SlotsLeft,
) -> SequenceResult {
    SequenceResult {
        session_id: session.id(),
        sequence_id: args.sequence_id,
        slot_id: args.slot_id,
        highest_slot_id: slots.highest,
        target_highest_slot_id: slots.target,
        status: status_flags(cx, session),
    }
}

/// Returns the flags on the state of the client and its back channels (RFC 8881 18.46.3).
fn status_flags(cx: &OpContext<'_>, session: &Arc<Session>) -> SequenceStatus {
    let news = session.client().status();
    let owner = session.owner();
    let path = owner.path();
    let mut flags = SequenceStatus::empty();
    flags.set(SequenceStatus::EXPIRED_ALL_STATE_REVOKED, news.expired_all_revoked);
    flags.set(SequenceStatus::ADMIN_STATE_REVOKED, news.admin_revoked);
    flags.set(SequenceStatus::RECALLABLE_STATE_REVOKED, news.recallable_revoked);
    let wanted = owner.wants_callbacks();
    flags.set(SequenceStatus::CB_PATH_DOWN, news.callback_down || wanted && !path.up);
    let silent = session.is_back_silent(cx.call().connection.id(), cx.call().now_ns);
    flags.set(SequenceStatus::CB_PATH_DOWN_SESSION, wanted && (session.back_down() || silent));
    flags.set(SequenceStatus::BACKCHANNEL_FAULT, path.fault);
    flags
}
