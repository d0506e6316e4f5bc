//! SETATTR (RFC 8881 18.30).
//!
//! Invariants
//! * The mask in the answer names the attributes that were set, on failure too.

use crate::v4::attr::set::{self, Change, Purpose};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, of_setattr};
use dafs_service::durable::{self, MaskedMode};
use dafs_service::{Handle, StateRef};
use dafs_store::SetAttr;
use dafs_wire::nfs4::{Attr, Bitmap, ModeMasked, SetattrArgs, SetattrResult, Status};

pub(crate) fn setattr(cx: &mut OpContext<'_>, args: &SetattrArgs<'_>) -> OpResult {
    let mut done = Bitmap::EMPTY;
    let outcome = set(cx, args, &mut done);
    if let Err(OpError::Wait | OpError::Later) = outcome {
        return outcome;
    }
    cx.encoder().value(&SetattrResult { attributes_set: done });
    outcome.map_err(|error| match error {
        OpError::Status(status) => OpError::WithBody(status),
        other => other,
    })
}

fn set(cx: &mut OpContext<'_>, args: &SetattrArgs<'_>, done: &mut Bitmap) -> OpResult {
    let handle = cx.current()?;
    let capabilities = cx.service().capabilities(&handle)?;
    let change = cx.attributes(&args.attributes, &capabilities, Purpose::Existing)?;
    // Only a change of size uses the state-id. Otherwise it may be any valid one.
    let state =
        if change.plain.size.is_some() { cx.state(&args.stateid)? } else { StateRef::ANONYMOUS };
    let masked = change.mode_masked.map(|ModeMasked { value, mask }| MaskedMode { value, mask });
    let acl = change.acl.as_ref();
    cx.log_intent(&durable::Change::SetAttr { file: &handle, change: &change.plain, masked, acl })?;
    apply(cx, &handle, state, &change, done)
}

/// Sets attributes and records in `done` which ones are set. First come those that the store sets
/// in one step, then the access control list (RFC 8881 6.4.1.3).
pub(super) fn apply(
    cx: &OpContext<'_>,
    handle: &Handle,
    state: StateRef,
    change: &Change,
    done: &mut Bitmap,
) -> OpResult {
    let service = cx.service();
    let caller = cx.caller()?;
    let mut plain = change.plain;
    if let Some(masked) = change.mode_masked {
        // No client changes the mode elsewhere, so none is asked.
        let mode = service.getattr(handle).map_err(of_setattr)?.mode;
        plain.mode = Some(set::masked(mode, masked));
    }
    if plain != SetAttr::default() {
        service.setattr(caller, handle, state, &plain).map_err(of_setattr)?;
        *done = change.mask.without(Attr::Acl.number());
    }
    if let Some(acl) = &change.acl {
        service.set_acl(caller, handle, acl).map_err(of_acl)?;
        done.insert(Attr::Acl);
    }
    Ok(())
}

/// Returns the outcome for a list that cannot be stored: the attribute exists, but not with this
/// value.
fn of_acl(error: dafs_service::ServiceError) -> OpError {
    match of_setattr(error) {
        OpError::Status(Status::NotSupp) => OpError::Status(Status::AttrNotSupp),
        error => error,
    }
}
