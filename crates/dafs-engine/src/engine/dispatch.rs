//! The operation of each request.

use super::request::{Call, Context, Done};
use super::{
    append, attr_ops, batch, delegation_ops, fence_ops, layout_ops, lock_ops, name_ops, open_ops,
    read, readdir, responses, session_ops, write,
};
use dafs_wire::dafs::{Reply, Request, Status};

/// Executes a request of a session in use.
pub(super) fn dispatch(cx: &mut Context<'_>, call: &Call, request: &Request<'_>) -> Done {
    match request {
        Request::ReadInline(args) => read::read_inline(cx, call, args),
        Request::ReadDirect(args) => read::read_direct(cx, call, args),
        Request::WriteInline(args) => write::write_inline(cx, call, args),
        Request::WriteDirect(args) => write::write_direct(cx, call, args),
        Request::GetAttrInline(args) => attr_ops::getattr_inline(cx, call, args),
        Request::GetAttrDirect(args) => attr_ops::getattr_direct(cx, call, args),
        Request::SetAttrInline(args) => attr_ops::setattr_inline(cx, call, args),
        Request::SetAttrDirect(args) => attr_ops::setattr_direct(cx, call, args),
        Request::Verify(args) => attr_ops::verify(cx, call, args, true),
        Request::NVerify(args) => attr_ops::verify(cx, call, args, false),
        Request::GetFsAttr(args) => attr_ops::get_fs_attr(cx, call, args),
        Request::GetRootHandle => name_ops::get_root_handle(cx, call),
        Request::Lookup(args) => name_ops::lookup(cx, call, args),
        Request::LookupP(args) => name_ops::lookup_parent(cx, call, args),
        Request::Access(args) => name_ops::access(cx, call, args),
        Request::Create(args) => name_ops::create(cx, call, args),
        Request::Link(args) => name_ops::link(cx, call, args),
        Request::Remove(args) => name_ops::remove(cx, call, args),
        Request::Rename(args) => name_ops::rename(cx, call, args),
        Request::ReadLinkInline(args) => attr_ops::readlink_inline(cx, call, args),
        Request::ReadLinkDirect(args) => attr_ops::readlink_direct(cx, call, args),
        Request::OpenAttr(args) => name_ops::open_attr(cx, call, args),
        Request::ReadDirInline(args) => readdir::readdir_inline(cx, call, args),
        Request::ReadDirDirect(args) => readdir::readdir_direct(cx, call, args),
        Request::Open(args) => open_ops::open(cx, call, args),
        Request::Close(args) => open_ops::close(cx, call, args),
        Request::OpenDowngrade(args) => open_ops::open_downgrade(cx, call, args),
        Request::Lock(args) => lock_ops::lock(cx, call, args),
        Request::LockT(args) => lock_ops::lock_test(cx, call, args),
        Request::LockU(args) => lock_ops::unlock(cx, call, args),
        Request::AppendInline(args) => append::append_inline(cx, call, args),
        Request::AppendDirect(args) => append::append_direct(cx, call, args),
        Request::BatchSubmit(args) => batch::batch_submit(cx, call, args),
        Request::HurryUp(args) => batch::hurry_up(cx, call, args),
        Request::XLayoutGet(args) => layout_ops::layout_get(cx, call, args),
        Request::XLayoutCommit(args) => layout_ops::layout_commit(cx, call, args),
        Request::XLayoutReturn(args) => layout_ops::layout_return(cx, call, args),
        Request::XNodeInfo(args) => layout_ops::node_info(cx, call, args),
        Request::XGetXattr(args) => attr_ops::get_xattr(cx, call, args),
        Request::DelegReturn(args) => delegation_ops::return_delegation(cx, call, args),
        // The server keeps no delegations across a client's restart, so there are none to
        // purge.
        Request::DelegPurge => Err(Status::NotSupp),
        Request::Commit(args) => open_ops::commit(cx, call, args),
        Request::CacheHint(args) => open_ops::cache_hint(cx, call, args),
        Request::XSeek(args) => open_ops::seek(cx, call, args),
        Request::Null => cx.reply(call, &Reply::Null),
        Request::GetFencingList(args) => fence_ops::get_fencing_list(cx, call, args),
        Request::SetFencingList(args) => fence_ops::set_fencing_list(cx, call, args),
        Request::Disconnect => session_ops::disconnect(cx, call),
        Request::RegisterCred(args) => session_ops::register_cred(cx, call, args),
        Request::ReleaseCred(args) => session_ops::release_cred(cx, call, args),
        Request::CheckResponse(args) => responses::check_response(cx, call, args),
        Request::FetchResponse(args) => responses::fetch_response(cx, call, args),
        Request::DiscardResponses(args) => responses::discard_responses(cx, call, args),
        Request::SecInfo => session_ops::sec_info(cx, call),
        Request::ServerAuth(args) => session_ops::server_auth(cx, call, args),
        Request::ClientAuth(_)
        | Request::ClientConnect(_)
        | Request::ClientConnectAuth(_)
        | Request::ConnectBind(_) => Err(Status::IllegalState),
        // Callbacks are requests of the server.
        Request::BcGetAttr(_)
        | Request::BcNull
        | Request::BcRecall(_)
        | Request::BcBatchCompletion(_)
        | Request::XBcLayoutRecall(_) => Err(Status::IllegalState),
    }
}
