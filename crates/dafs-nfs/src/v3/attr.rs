//! GETATTR, SETATTR, ACCESS (RFC 1813 3.3.1, 3.3.2, 3.3.4).

use super::{Args, Context, Done, Stop, args, attr_of, attributes, convert};
use dafs_service::StateRef;
use dafs_service::durable::Change;
use dafs_store::{AccessMask, SetAttr};
use dafs_wire::nfs3::{
    AccessArgs, AccessOk, ChangeFailure, GetattrArgs, GetattrOk, NoFailureBody, ObjectFailure,
    SetattrArgs, Status, WccData, WccResult,
};

pub(super) fn getattr(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: GetattrArgs<'_> = args(wire)?;
    let outcome = getattr_of(cx, &args);
    cx.finish(outcome, |_| NoFailureBody)
}

fn getattr_of(cx: &mut Context<'_>, args: &GetattrArgs<'_>) -> Result<(), Stop> {
    let handle = cx.handle_at_mount(args.object)?;
    // The holder of a write delegation may have a larger size than the store.
    let attr = cx.service().delegations.attributes(cx.caller(), &handle)?;
    cx.ok(&GetattrOk { attributes: attributes(&handle.fs, &attr) })
}

pub(super) fn setattr(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: SetattrArgs<'_> = args(wire)?;
    let outcome = setattr_of(cx, &args);
    cx.finish(outcome, |cx| ChangeFailure { wcc: cx.wcc_of(args.object) })
}

fn setattr_of(cx: &mut Context<'_>, args: &SetattrArgs<'_>) -> Result<(), Stop> {
    let handle = cx.handle(args.object)?;
    let change = convert::set_attr(&args.new)?;
    if change != SetAttr::default() {
        cx.guard(&Change::SetAttr { file: &handle, change: &change, masked: None, acl: None })?;
    }
    if args.guard.is_some() || change == SetAttr::default() {
        let attr = cx.service().getattr(&handle)?;
        if args.guard.is_some_and(|guard| guard != convert::time(attr.ctime)) {
            return Err(Status::NotSync.into());
        }
        if change == SetAttr::default() {
            let wcc = WccData { before: None, after: attr_of(&handle, &attr) };
            return cx.ok(&WccResult { wcc });
        }
    }
    let attr = cx.service().setattr(cx.caller(), &handle, StateRef::ANONYMOUS, &change)?;
    cx.ok(&WccResult { wcc: WccData { before: None, after: attr_of(&handle, &attr) } })
}

pub(super) fn access(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: AccessArgs<'_> = args(wire)?;
    let outcome = access_of(cx, &args);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.object) })
}

fn access_of(cx: &mut Context<'_>, args: &AccessArgs<'_>) -> Result<(), Stop> {
    let handle = cx.handle(args.object)?;
    let wanted = AccessMask::from_bits_truncate(args.wanted);
    let granted = cx.service().access(cx.caller(), &handle, wanted)?.bits();
    let attributes = cx.attributes(&handle);
    cx.ok(&AccessOk { attributes, granted })
}
