//! The handle and the state-id of a request that a chain may replace (DAFS O30, O31).

use super::ids::{FileHandle, StateId};
use super::open_args::OpenClaim;
use super::request::Request;

/// The handle that the flag FH replaces; `None` for requests without a single one.
pub fn chain_handle<'a>(request: &'a mut Request<'_>) -> Option<&'a mut FileHandle> {
    Some(match request {
        Request::Access(args) => &mut args.fh,
        Request::AppendDirect(args) => &mut args.fh,
        Request::AppendInline(args) => &mut args.fh,
        Request::CacheHint(args) => &mut args.fh,
        Request::Close(args) => &mut args.fh,
        Request::Commit(args) => &mut args.fh,
        Request::Create(args) => &mut args.dir,
        Request::GetAttrDirect(args) => &mut args.fh,
        Request::GetAttrInline(args) => &mut args.fh,
        Request::GetFsAttr(args) => &mut args.fh,
        Request::Link(args) => &mut args.target_dir,
        Request::Lock(args) => &mut args.fh,
        Request::LockT(args) => &mut args.fh,
        Request::LockU(args) => &mut args.fh,
        Request::Lookup(args) => &mut args.dir,
        Request::LookupP(args) => &mut args.fh,
        Request::NVerify(args) | Request::Verify(args) => &mut args.fh,
        Request::Open(args) => match &mut args.claim {
            OpenClaim::Previous { fh, .. } => fh,
            OpenClaim::Null { dir, .. }
            | OpenClaim::DelegateCur { dir, .. }
            | OpenClaim::DelegatePrev { dir, .. }
            | OpenClaim::CreateUnlinked { dir } => dir,
        },
        Request::OpenAttr(args) => &mut args.fh,
        Request::OpenDowngrade(args) => &mut args.fh,
        Request::ReadDirDirect(args) => &mut args.fh,
        Request::ReadDirInline(args) => &mut args.fh,
        Request::ReadDirect(args) => &mut args.fh,
        Request::ReadInline(args) => &mut args.fh,
        Request::ReadLinkDirect(args) => &mut args.fh,
        Request::ReadLinkInline(args) => &mut args.fh,
        Request::Remove(args) => &mut args.dir,
        Request::Rename(args) => &mut args.target_dir,
        Request::SetAttrDirect(args) => &mut args.fh,
        Request::SetAttrInline(args) => &mut args.fh,
        Request::WriteDirect(args) => &mut args.fh,
        Request::WriteInline(args) => &mut args.fh,
        Request::XSeek(args) => &mut args.fh,
        Request::XGetXattr(args) => &mut args.fh,
        _ => return None,
    })
}

/// The state-id that the flag STATEID replaces; `None` for requests without one.
pub fn chain_state_id<'a>(request: &'a mut Request<'_>) -> Option<&'a mut StateId> {
    Some(match request {
        Request::AppendDirect(args) => &mut args.state_id,
        Request::AppendInline(args) => &mut args.state_id,
        Request::Close(args) => &mut args.state_id,
        Request::DelegReturn(args) => &mut args.state_id,
        Request::Lock(args) => &mut args.state_id,
        Request::LockU(args) => &mut args.state_id,
        Request::Open(args) => match &mut args.claim {
            OpenClaim::DelegateCur { state_id, .. } => state_id,
            _ => return None,
        },
        Request::OpenDowngrade(args) => &mut args.state_id,
        Request::ReadDirect(args) => &mut args.state_id,
        Request::ReadInline(args) => &mut args.state_id,
        Request::SetAttrDirect(args) => &mut args.state_id,
        Request::SetAttrInline(args) => &mut args.state_id,
        Request::WriteDirect(args) => &mut args.state_id,
        Request::WriteInline(args) => &mut args.state_id,
        Request::XSeek(args) => &mut args.state_id,
        _ => return None,
    })
}
