//! The operations: one function for each request.
//!
//! Invariants
//! * Operations use methods of their [`Context`] alone. Its fields are open to the engine only,
//!   except for the time.
//! * Code that moves data sees [`Transfers`](crate::engine::transfers::Transfers) and no more.

pub(crate) mod append;
pub(crate) mod attr;
pub(crate) mod batch;
mod cancel;
mod delegation;
mod expose;
pub(crate) mod fence;
mod layout;
mod lock;
mod name;
pub(crate) mod open;
pub(crate) mod read;
mod readdir;
mod responses;
pub(crate) mod security;
pub(crate) mod transport;
pub(crate) mod write;

use crate::engine::request::{Call, Context, Done};
use crate::engine::{credentials, session_ops};
use dafs_wire::dafs::{Reply, Request, Status};

/// Executes a request of a session in use.
pub(crate) fn dispatch(cx: &mut Context<'_>, call: &Call, request: &Request<'_>) -> Done {
    match request {
        Request::ReadInline(args) => read::read_inline(cx, call, args),
        Request::ReadDirect(args) => read::read_direct(cx, call, args),
        Request::WriteInline(args) => write::write_inline(cx, call, args),
        Request::WriteDirect(args) => write::write_direct(cx, call, args),
        Request::GetAttrInline(args) => attr::getattr_inline(cx, call, args),
        Request::GetAttrDirect(args) => attr::getattr_direct(cx, call, args),
        Request::SetAttrInline(args) => attr::setattr_inline(cx, call, args),
        Request::SetAttrDirect(args) => attr::setattr_direct(cx, call, args),
        Request::Verify(args) | Request::NVerify(args) => attr::verify(cx, call, args),
        Request::GetFsAttr(args) => attr::get_fs_attr(cx, call, args),
        Request::GetRootHandle => name::get_root_handle(cx, call),
        Request::Lookup(args) => name::lookup(cx, call, args),
        Request::LookupP(args) => name::lookup_parent(cx, call, args),
        Request::Access(args) => name::access(cx, call, args),
        Request::Create(args) => name::create(cx, call, args),
        Request::Link(args) => name::link(cx, call, args),
        Request::Remove(args) => name::remove(cx, call, args),
        Request::Rename(args) => name::rename(cx, call, args),
        Request::ReadLinkInline(args) => attr::readlink_inline(cx, call, args),
        Request::ReadLinkDirect(args) => attr::readlink_direct(cx, call, args),
        Request::OpenAttr(args) => name::open_attr(cx, call, args),
        Request::ReadDirInline(args) => readdir::readdir_inline(cx, call, args),
        Request::ReadDirDirect(args) => readdir::readdir_direct(cx, call, args),
        Request::Open(args) => open::open(cx, call, args),
        Request::Close(args) => open::close(cx, call, args),
        Request::OpenDowngrade(args) => open::open_downgrade(cx, call, args),
        Request::Lock(args) => lock::lock(cx, call, args),
        Request::LockT(args) => lock::lock_test(cx, call, args),
        Request::LockU(args) => lock::unlock(cx, call, args),
        Request::AppendInline(args) => append::append_inline(cx, call, args),
        Request::AppendDirect(args) => append::append_direct(cx, call, args),
        Request::BatchSubmit(args) => batch::batch_submit(cx, call, args),
        Request::HurryUp(args) => batch::hurry_up(cx, call, args),
        Request::XLayoutGet(args) => layout::layout_get(cx, call, args),
        Request::XLayoutCommit(args) => layout::layout_commit(cx, call, args),
        Request::XLayoutReturn(args) => layout::layout_return(cx, call, args),
        Request::XNodeInfo(args) => layout::node_info(cx, call, args),
        Request::XGetXattr(args) => attr::get_xattr(cx, call, args),
        Request::XCancel(args) => cancel::cancel(cx, call, args),
        Request::XExposeGet(args) => expose::expose_get(cx, call, args),
        Request::XReclaimComplete => reclaim_complete(cx, call),
        Request::DelegReturn(args) => delegation::return_delegation(cx, call, args),
        Request::DelegPurge => Err(Status::NotSupp), // None outlives its client's restart.
        Request::Commit(args) => open::commit(cx, call, args),
        Request::CacheHint(args) => open::cache_hint(cx, call, args),
        Request::XSeek(args) => open::seek(cx, call, args),
        Request::Null => cx.reply(call, &Reply::Null),
        Request::GetFencingList(args) => fence::get_fencing_list(cx, call, args),
        Request::SetFencingList(args) => fence::set_fencing_list(cx, call, args),
        Request::Disconnect => session_ops::disconnect(cx, call),
        Request::RegisterCred(args) => credentials::register_cred(cx, call, args),
        Request::ReleaseCred(args) => credentials::release_cred(cx, call, args),
        Request::CheckResponse(args) => responses::check_response(cx, call, args),
        Request::FetchResponse(args) => responses::fetch_response(cx, call, args),
        Request::DiscardResponses(args) => responses::discard_responses(cx, call, args),
        Request::SecInfo => credentials::sec_info(cx, call),
        Request::ServerAuth(args) => credentials::server_auth(cx, call, args),
        Request::ClientAuth(_) // Sessions have begun, and callbacks are requests of the server.
        | Request::ClientConnect(_)
        | Request::ClientConnectAuth(_)
        | Request::ConnectBind(_)
        | Request::BcGetAttr(_)
        | Request::BcNull
        | Request::BcRecall(_)
        | Request::BcBatchCompletion(_)
        | Request::XBcLayoutRecall(_) => Err(Status::IllegalState),
    }
}

/// X_RECLAIM_COMPLETE, an extension. Outside of grace it has no effect.
fn reclaim_complete(cx: &mut Context<'_>, call: &Call) -> Done {
    cx.call_service_raw(call, |service, caller| service.clients.count_reclaimed(caller.client))?;
    cx.reply(call, &Reply::XReclaimComplete)
}
