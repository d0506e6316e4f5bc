//! OPEN (RFC 8881 18.16): target, mode and claim of an open.

use super::create::{finish_new, inherits_rights};
use super::{name, open_reply};
use crate::v4::attr::VERIFIER_KEPT_IN;
use crate::v4::attr::set::{Change, Purpose};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult};
use dafs_service::{
    DelegationKind, Handle, OpenClaim, OpenHow, OpenRequest, OpenTarget, Opened, Share, Want,
    WantKind, durable,
};
use dafs_store::{CreateHow, Kind, SetAttr};
use dafs_wire::nfs4::{
    Attr, Bitmap, DENY_BOTH, DENY_READ, DENY_WRITE, DelegationType, OpenArgs,
    OpenClaim as WireClaim, OpenHow as WireHow, ShareAccess, Status, Want as WireWant,
};

/// Permissions of a new file without a mode in its request: only the owner's (RFC 8881 18.16.4).
const EXCLUSIVE_MODE: u32 = 0o600;

pub(crate) fn open(cx: &mut OpContext<'_>, args: &OpenArgs<'_>) -> OpResult {
    let current = cx.current()?;
    let share = share(args.share_access, args.share_deny)?;
    let (target, claim) = target(cx, &current, &args.claim)?;
    let by_name = matches!(target, OpenTarget::Name { .. });
    if !by_name && args.how != WireHow::NoCreate {
        return Err(Status::Inval.into());
    }
    let (how, change) = how(cx, &current, &args.how)?;
    let want = want(args.share_access)?;
    if let (OpenTarget::Name { dir, name }, OpenHow::Create(_, attr)) = (&target, &how) {
        cx.log_intent(&durable::Change::Create { dir, name, attr })?;
    }
    let request = OpenRequest {
        target,
        claim,
        owner: args.owner.owner,
        share,
        deny_delete: false,
        share_key: None,
        how,
        want,
    };
    let opened = cx.service().opens.open(cx.caller()?, &request)?;
    let handle = *opened.state.handle();
    let attributes_set = attributes_set(cx, &handle, &args.how, &change, &opened);
    open_reply::write(cx, &opened, by_name, want.kind, attributes_set)
}

/// Converts access and denial of an open.
///
/// # Errors
/// `Inval` for no access, or for bits that have no meaning.
pub(super) fn share(access: ShareAccess, deny: u32) -> Result<Share, Status> {
    if access.0 & !ShareAccess::KNOWN != 0
        || !(ShareAccess::READ..=ShareAccess::BOTH).contains(&access.access())
        || deny > DENY_BOTH
    {
        return Err(Status::Inval);
    }
    Ok(Share {
        read: access.has(ShareAccess::READ),
        write: access.has(ShareAccess::WRITE),
        deny_read: deny & DENY_READ != 0,
        deny_write: deny & DENY_WRITE != 0,
    })
}

/// Returns the file and the claim of an open.
fn target<'a>(
    cx: &OpContext<'_>,
    current: &'a Handle,
    claim: &WireClaim<'a>,
) -> Result<(OpenTarget<'a>, OpenClaim), OpError> {
    let by_name = |name| {
        name::check(name)?;
        Ok::<_, OpError>(OpenTarget::Name { dir: current, name })
    };
    let delegation = |argument| {
        let state = cx.state(&argument)?;
        if state.is_special() {
            return Err(OpError::Status(Status::BadStateId));
        }
        Ok(OpenClaim::DelegateCurrent(state))
    };
    let file = OpenTarget::Handle(current);
    Ok(match *claim {
        WireClaim::Null(name) => (by_name(name)?, OpenClaim::New),
        WireClaim::Handle => (file, OpenClaim::New),
        WireClaim::Previous(kind) => (file, OpenClaim::Previous(delegation_kind(kind)?)),
        WireClaim::DelegateCurrent(stateid, name) => (by_name(name)?, delegation(stateid)?),
        WireClaim::DelegateCurrentHandle(stateid) => (file, delegation(stateid)?),
        // Delegations end with the client's instance, so there is none to claim.
        WireClaim::DelegatePrevious(_) | WireClaim::DelegatePreviousHandle => {
            return Err(Status::ReclaimBad.into());
        }
    })
}

fn delegation_kind(kind: DelegationType) -> Result<Option<DelegationKind>, Status> {
    match kind {
        DelegationType::None | DelegationType::NoneExt => Ok(None),
        DelegationType::Read | DelegationType::ReadAttributes => Ok(Some(DelegationKind::Read)),
        DelegationType::Write | DelegationType::WriteAttributes => Ok(Some(DelegationKind::Write)),
        DelegationType::Other(_) => Err(Status::Inval),
    }
}

/// Returns the way in which the file is found or made, and the attributes of a new one.
fn how(
    cx: &mut OpContext<'_>,
    dir: &Handle,
    how: &WireHow<'_>,
) -> Result<(OpenHow, Change), OpError> {
    if *how == WireHow::NoCreate {
        return Ok((OpenHow::Existing, Change::default()));
    }
    let capabilities = cx.service().capabilities(dir)?;
    let mut parse = |fattr, purpose| cx.attributes(fattr, &capabilities, purpose);
    let (create, mut change) = match how {
        WireHow::NoCreate => return Ok((OpenHow::Existing, Change::default())),
        WireHow::Unchecked(fattr) => (CreateHow::Unchecked, parse(fattr, Purpose::New)?),
        WireHow::Guarded(fattr) => (CreateHow::Guarded, parse(fattr, Purpose::New)?),
        WireHow::Exclusive(verifier) => {
            let plain = SetAttr { mode: Some(EXCLUSIVE_MODE), ..SetAttr::default() };
            (CreateHow::Exclusive(verifier.0), Change { plain, ..Change::default() })
        }
        WireHow::Exclusive41(verifier, fattr) => {
            (CreateHow::Exclusive(verifier.0), parse(fattr, Purpose::NewExclusive)?)
        }
    };
    let exclusive = matches!(create, CreateHow::Exclusive(_));
    if exclusive && super::kind_of(cx, dir)? == Kind::AttrDirectory {
        // RFC 8881 18.16.3.
        return Err(Status::Inval.into());
    }
    change.settle_umask(|| inherits_rights(cx, dir, &capabilities))?;
    Ok((OpenHow::Create(create, change.plain), change))
}

/// Converts the client's wish for a delegation.
fn want(access: ShareAccess) -> Result<Want, Status> {
    let kind = match access.want() {
        WireWant::NoPreference => WantKind::NoPreference,
        WireWant::Read => WantKind::Read,
        WireWant::Write => WantKind::Write,
        WireWant::Any => WantKind::Any,
        WireWant::None => WantKind::None,
        WireWant::Cancel => WantKind::Cancel,
        WireWant::Other(_) => return Err(Status::Inval),
    };
    let open_xor = access.has(ShareAccess::OPEN_XOR_DELEGATION);
    Ok(Want { kind, open_xor, timestamps: false })
}

/// Returns the attributes that this open has set.
fn attributes_set(
    cx: &OpContext<'_>,
    handle: &Handle,
    how: &WireHow<'_>,
    change: &Change,
    opened: &Opened,
) -> Bitmap {
    match how {
        WireHow::NoCreate => Bitmap::EMPTY,
        WireHow::Exclusive(_) => VERIFIER_KEPT_IN,
        // A retry gets the same answer as the first request.
        WireHow::Exclusive41(..) => change.mask.or(VERIFIER_KEPT_IN),
        WireHow::Unchecked(_) | WireHow::Guarded(_) if opened.created => {
            finish_new(cx, handle, change)
        }
        WireHow::Unchecked(_) | WireHow::Guarded(_) if change.plain.size == Some(0) => {
            Attr::set(&[Attr::Size])
        }
        WireHow::Unchecked(_) | WireHow::Guarded(_) => Bitmap::EMPTY,
    }
}
