//! SHARE and UNSHARE: reservations on the deny modes that all protocols share.

use super::{Context, Stop, ended, results};
use dafs_rpc::Reply;
use dafs_service::{NLM_SHARES, Share};
use dafs_wire::nlm4::{Access, Deny, ShareArgs, ShareResult, Status};

/// The service's name of an owner of reservations.
fn owner(args: &ShareArgs<'_>) -> Vec<u8> {
    [&[NLM_SHARES][..], args.owner.0].concat()
}

/// Returns the access and denial of a reservation. One without an access counts as one for reading.
fn share_of(args: &ShareArgs<'_>) -> Share {
    Share {
        read: args.access != Access::Write,
        write: matches!(args.access, Access::Write | Access::Both),
        deny_read: matches!(args.deny, Deny::Read | Deny::Both),
        deny_write: matches!(args.deny, Deny::Write | Deny::Both),
    }
}

pub(super) fn share(cx: &Context<'_>, args: &ShareArgs<'_>) -> Result<Reply, Stop> {
    let shared = || -> Result<Status, Stop> {
        let handle = cx.handle(args.handle)?;
        let manager = cx.manager(args.caller_name)?;
        let (caller, owner) = (cx.caller(&manager), owner(args));
        let service = &cx.shared.service;
        service.nlm_share(caller, &handle, &owner, share_of(args), args.reclaim)?;
        Ok(Status::Granted)
    };
    share_result(cx, args, shared())
}

pub(super) fn unshare(cx: &Context<'_>, args: &ShareArgs<'_>) -> Result<Reply, Stop> {
    let unshared = || -> Result<Status, Stop> {
        let handle = cx.handle(args.handle)?;
        let service = &cx.shared.service;
        if let Some(manager) = service.clients.lock_manager(&cx.name(args.caller_name)) {
            service.nlm_unshare(cx.caller(&manager), &handle, &owner(args))?;
        }
        Ok(Status::Granted)
    };
    share_result(cx, args, unshared())
}

fn share_result(
    cx: &Context<'_>,
    args: &ShareArgs<'_>,
    outcome: Result<Status, Stop>,
) -> Result<Reply, Stop> {
    let status = ended(cx, outcome)?;
    Ok(results(&ShareResult { cookie: args.cookie, status, sequence: 0 }))
}
