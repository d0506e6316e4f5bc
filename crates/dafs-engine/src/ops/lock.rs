//! LOCK, LOCKT and LOCKU (DAFS 9.2).
//!
//! Invariants
//! * The state-id of an open also names the locks of its owner, and no lock changes it (DAFS 4.1).
//! * A lock that has to wait for the disk, for data servers or for the end of another client runs
//!   on the pool, in the lane of its file's store.

use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use dafs_service::{LockConflict, LockError, LockExtras, LockKind, LockOwner, LockRequest};
use dafs_wire::dafs::{
    ErrorBody, FileHandle, Lock, LockHolder, LockOptions, LockT, LockType, LockU, Reply, StateId,
    Status,
};

pub(crate) fn lock(cx: &mut Context<'_>, call: &Call, args: &Lock) -> Done {
    let has = |option| args.options.contains(option);
    let Some((kind, wait)) = kind(args.lock_type) else {
        return abort(cx, call, &args.fh, args.state_id, Reply::Lock);
    };
    let handle = convert::handle(&args.fh);
    let request = LockRequest {
        owner: LockOwner::Open(convert::state_id(args.state_id).into()),
        offset: args.offset,
        length: args.length,
        kind,
        wait,
        reclaim: has(LockOptions::RECLAIM),
        extras: LockExtras {
            persist: has(LockOptions::PERSIST),
            autorecover: has(LockOptions::AUTORECOVERY),
            repair: has(LockOptions::REPAIR),
        },
    };
    cx.call_or_wait(
        (call, cx.lane(&handle)),
        move |service, caller| service.locks.lock(caller, &handle, &request).map(drop),
        |cx, call, locked| match locked {
            Ok(()) => cx.reply(call, &Reply::Lock),
            Err(error) => lock_refused(cx, call, error),
        },
    )
}

pub(crate) fn lock_test(cx: &mut Context<'_>, call: &Call, args: &LockT<'_>) -> Done {
    let (kind, _) = kind(args.lock_type).ok_or(Status::Inval)?;
    let (handle, owner) = (convert::handle(&args.fh), args.owner.to_vec());
    let (offset, length) = (args.offset, args.length);
    cx.call_or_wait(
        (call, cx.lane(&handle)),
        move |service, caller| service.locks.test(caller, &handle, &owner, offset, length, kind),
        |cx, call, tested| match tested {
            Ok(()) => cx.reply(call, &Reply::LockT),
            Err(error) => lock_refused(cx, call, error),
        },
    )
}

pub(crate) fn unlock(cx: &mut Context<'_>, call: &Call, args: &LockU) -> Done {
    if args.lock_type == LockType::Abort {
        return abort(cx, call, &args.fh, args.state_id, Reply::LockU);
    }
    let handle = convert::handle(&args.fh);
    let state = convert::state_id(args.state_id).into();
    let (offset, length) = (args.offset, args.length);
    cx.call_or_wait(
        (call, cx.lane(&handle)),
        move |service, caller| {
            service.locks.unlock(caller, &handle, state, offset, length).map(drop)
        },
        |cx, call, unlocked| {
            unlocked.map_err(convert::status)?;
            cx.reply(call, &Reply::LockU)
        },
    )
}

/// Undoes the changes under a lock with recovery and releases it, by LOCK or LOCKU. Such a lock
/// covers the whole file, so the range does not matter.
fn abort(
    cx: &mut Context<'_>,
    call: &Call,
    fh: &FileHandle,
    id: StateId,
    reply: Reply<'static>,
) -> Done {
    let (handle, state) = (convert::handle(fh), convert::state_id(id));
    cx.call_or_wait(
        (call, cx.lane(&handle)),
        move |service, caller| service.locks.abort(caller, &handle, state),
        move |cx, call, aborted| {
            aborted.map_err(convert::status)?;
            cx.reply(call, &reply)
        },
    )
}

/// Answers a refused lock, with the conflicting lock (DAFS O13).
fn lock_refused(cx: &mut Context<'_>, call: &Call, error: LockError) -> Done {
    let (status, conflict) = match error {
        LockError::Denied(conflict) => (Status::Denied, conflict),
        LockError::Broken(former) => (Status::LockBroken, former),
        LockError::Service(error) => return Err(convert::status(error)),
    };
    let LockConflict { offset, length, kind, client, owner } = &conflict;
    let lock_type = match kind {
        LockKind::Read => LockType::Read,
        LockKind::Write => LockType::Write,
    };
    let client_id = convert::client_id(*client);
    let holder = LockHolder { client_id, owner, offset: *offset, length: *length, lock_type };
    cx.fail_with(call, status, &ErrorBody::LockHolder(holder));
    Ok(())
}

/// Returns the kind of a lock, and true if the client polls for its turn. `None` for an unlock.
fn kind(lock_type: LockType) -> Option<(LockKind, bool)> {
    match lock_type {
        LockType::Read => Some((LockKind::Read, false)),
        LockType::Write => Some((LockKind::Write, false)),
        LockType::ReadWait => Some((LockKind::Read, true)),
        LockType::WriteWait => Some((LockKind::Write, true)),
        LockType::Abort => None,
    }
}
