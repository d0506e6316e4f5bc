//! LOCK, LOCKT and LOCKU (RFC 8881 18.10 - 18.12).

use super::{holds_data, kind_of};
use crate::v4::compound::context::OpContext;
use crate::v4::stateid;
use crate::v4::status::{OpError, OpResult, without_perm};
use dafs_service::{LockConflict, LockError, LockExtras, LockKind, LockOwner, LockRequest};
use dafs_wire::nfs4::{
    LockArgs, LockDenied, LockType, Locker, LocktArgs, LockuArgs, StateOwner, Stateid,
    StateidResult, Status,
};

pub(crate) fn lock(cx: &mut OpContext<'_>, args: &LockArgs<'_>) -> OpResult {
    let handle = cx.current()?;
    let owner = match args.locker {
        Locker::New { open, owner, .. } => {
            LockOwner::New { open: cx.state(&open)?, owner: owner.owner }
        }
        Locker::Existing { lock, .. } => LockOwner::Existing(cx.state(&lock)?),
    };
    check_range(args.offset, args.length)?;
    let request = LockRequest {
        owner,
        offset: args.offset,
        length: args.length,
        kind: kind(args.kind),
        wait: args.kind.is_wait(),
        reclaim: args.reclaim,
        extras: LockExtras::default(),
    };
    match cx.service().locks.lock(cx.caller()?, &handle, &request) {
        Ok(state) => answer(cx, stateid::wire(state)),
        Err(error) => Err(refused(cx, error)),
    }
}

pub(crate) fn lockt(cx: &mut OpContext<'_>, args: &LocktArgs<'_>) -> OpResult {
    let handle = cx.current()?;
    holds_data(kind_of(cx, &handle)?)?;
    check_range(args.offset, args.length)?;
    let kind = kind(args.kind);
    let tested = cx.service().locks.test(
        cx.caller()?,
        &handle,
        args.owner.owner,
        args.offset,
        args.length,
        kind,
    );
    tested.map_err(|error| match error {
        // LOCKT names the former holder. The client learns that the lock is broken when it requests
        // it.
        LockError::Broken(former) => refused(cx, LockError::Denied(former)),
        error => refused(cx, error),
    })
}

pub(crate) fn locku(cx: &mut OpContext<'_>, args: &LockuArgs) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(&args.stateid)?;
    check_range(args.offset, args.length)?;
    let unlocked =
        cx.service().locks.unlock(cx.caller()?, &handle, state, args.offset, args.length);
    let state = unlocked.map_err(|error| refused(cx, error.into()))?;
    answer(cx, stateid::wire(state))
}

/// Writes a state-id, which becomes the current one.
fn answer(cx: &mut OpContext<'_>, stateid: Stateid) -> OpResult {
    cx.set_current_stateid(stateid);
    cx.answer(&StateidResult { stateid })
}

/// Returns the outcome of a refused lock. DENIED comes with the conflicting lock.
fn refused(cx: &mut OpContext<'_>, error: LockError) -> OpError {
    match error {
        LockError::Denied(conflict) => {
            let LockConflict { offset, length, kind, client, owner } = conflict;
            let kind = match kind {
                LockKind::Read => LockType::Read,
                LockKind::Write => LockType::Write,
            };
            let owner = StateOwner { client_id: client.0, owner: &owner };
            cx.encoder().value(&LockDenied { offset, length, kind, owner });
            OpError::WithBody(Status::Denied)
        }
        // With DENIED a kernel client would wait for a holder that is gone. It reports this status
        // as an I/O error. Only a DAFS client can repair the data.
        LockError::Broken(_) => OpError::Status(Status::LockRange),
        LockError::Service(error) => without_perm(error),
    }
}

/// Refuses ranges beyond the largest number (RFC 8881 18.10.3). The service refuses empty ones.
fn check_range(offset: u64, length: u64) -> Result<(), Status> {
    match offset.checked_add(length) {
        None if length != u64::MAX => Err(Status::Inval),
        _ => Ok(()),
    }
}

fn kind(kind: LockType) -> LockKind {
    if kind.is_write() { LockKind::Write } else { LockKind::Read }
}
