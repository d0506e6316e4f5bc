//! Dispatches an operation to its function. Touches neither slot nor reply.

use super::compound::context::OpContext;
use super::status::OpResult;
use super::{data, ops, session_ops};
use dafs_wire::nfs4::{Op, Status};

/// Runs an operation. Operations on clients, sessions, file handles and state-ids as such are in
/// [`session_ops`]. Those on files are in [`ops`]. `rest` are the operations that follow.
pub(crate) fn run<'a>(cx: &mut OpContext<'a>, op: &Op<'a>, rest: &[u8]) -> OpResult {
    if let Some(role) = cx.shared().data_role()
        && let Some(result) = data::run(cx, role, op)
    {
        return result;
    }
    match op {
        Op::Sequence(args) => session_ops::sequence::sequence(cx, args, rest),
        Op::Putfh(args) => session_ops::handles::putfh(cx, args, rest),
        Op::Putpubfh(_) | Op::Putrootfh(_) => session_ops::handles::putrootfh(cx, rest),
        Op::Getfh(_) => session_ops::handles::getfh(cx),
        Op::Savefh(_) => cx.save(),
        Op::Restorefh(_) => cx.restore(rest),
        Op::ExchangeId(args) => session_ops::exchange_id::exchange_id(cx, args),
        Op::CreateSession(args) => session_ops::create_session::create_session(cx, args),
        Op::BindConnToSession(args) => session_ops::bind::bind_conn_to_session(cx, args),
        Op::BackchannelCtl(args) => session_ops::bind::backchannel_ctl(cx, args),
        Op::DestroySession(args) => session_ops::destroy::destroy_session(cx, args),
        Op::DestroyClientid(args) => session_ops::destroy::destroy_clientid(cx, args),
        Op::ReclaimComplete(args) => session_ops::reclaim::reclaim_complete(cx, args),
        Op::FreeStateid(args) => session_ops::stateids::free_stateid(cx, args),
        Op::TestStateid(args) => session_ops::stateids::test_stateid(cx, args),
        Op::Secinfo(args) => session_ops::secinfo::secinfo(cx, args),
        Op::SecinfoNoName(args) => session_ops::secinfo::secinfo_no_name(cx, args),
        // State protection by SSV is never granted, so there is no secret to change.
        Op::SetSsv(_) => Err(Status::Inval.into()),
        Op::Obsolete(_)
        | Op::Delegpurge(_)
        | Op::GetDirDelegation(_)
        | Op::WantDelegation(_)
        | Op::CopyNotify(_)
        | Op::WriteSame(_) => Err(Status::NotSupp.into()),
        Op::Illegal(_) => Err(Status::OpIllegal.into()),
        other => ops::dispatch(cx, other, rest),
    }
}
