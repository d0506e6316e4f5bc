//! TEST, LOCK, CANCEL, UNLOCK and NM_LOCK.

use super::blocked::{Request, Waiting};
use super::{Context, Stop, ended, lock_result, results};
use dafs_rpc::Reply;
use dafs_service::{Handle, LockConflict, LockError, LockKind, NLM_LOCKS, OwnerRange};
use dafs_wire::nlm4::{
    CancelArgs, Holder, Lock, LockArgs, LockResult, NetObject, Status, TestArgs, TestResult,
    UnlockArgs,
};

/// The largest offset of a byte in a file. Clients use signed numbers.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// A range with its owner, as the service names them.
pub(super) struct Range {
    handle: Handle,
    owner: Vec<u8>,
    offset: u64,
    length: u64,
}

impl Range {
    pub(super) fn of(handle: Handle, lock: &Lock<'_>) -> Result<Self, Stop> {
        let (offset, length) = (lock.offset, lock.length);
        let last = length.checked_sub(1).map_or(Some(offset), |more| offset.checked_add(more));
        if last.is_none_or(|last| last > OFFSET_MAX) {
            return Err(Status::TooBig.into());
        }
        let length = if length == 0 { u64::MAX } else { length };
        Ok(Self { handle, owner: owner(lock.svid, lock.owner), offset, length })
    }

    pub(super) fn place(&self) -> OwnerRange<'_> {
        let (offset, length) = (self.offset, self.length);
        OwnerRange { handle: &self.handle, owner: &self.owner, offset, length }
    }
}

/// The service's name of an owner of locks: the number of its process, and the name that it gives.
fn owner(svid: u32, owner: NetObject<'_>) -> Vec<u8> {
    [&[NLM_LOCKS][..], &svid.to_be_bytes(), owner.0].concat()
}

pub(super) fn kind(exclusive: bool) -> LockKind {
    if exclusive { LockKind::Write } else { LockKind::Read }
}

/// Returns the owner of a conflicting lock as NLM shows it. Owners of other protocols have no
/// process.
fn holder<'a>(cx: &Context<'_>, conflict: &'a LockConflict) -> Holder<'a> {
    let is_own = cx.shared.service.clients.lock_manager_of(conflict.client).is_some();
    let parts = conflict.owner.strip_prefix(&[NLM_LOCKS]).filter(|_| is_own);
    let parts = parts.and_then(|owner| owner.split_first_chunk::<4>());
    let (svid, owner) =
        parts.map_or((0, &*conflict.owner), |(svid, name)| (u32::from_be_bytes(*svid), name));
    Holder {
        exclusive: conflict.kind == LockKind::Write,
        svid,
        owner: NetObject(owner),
        offset: conflict.offset,
        length: if conflict.length == u64::MAX { 0 } else { conflict.length },
    }
}

pub(super) fn test(cx: &Context<'_>, args: &TestArgs<'_>) -> Result<Reply, Stop> {
    let cookie = args.cookie;
    match tested(cx, args) {
        Ok(conflict) => {
            let holder = conflict.as_ref().map(|conflict| holder(cx, conflict));
            Ok(results(&TestResult { cookie, outcome: Ok(holder) }))
        }
        Err(stop) => ended(cx, Err(stop)).map(|status| {
            // DENIED would need a holder.
            let status = if status == Status::Denied { Status::Failed } else { status };
            results(&TestResult { cookie, outcome: Err(status) })
        }),
    }
}

fn tested(cx: &Context<'_>, args: &TestArgs<'_>) -> Result<Option<LockConflict>, Stop> {
    let range = Range::of(cx.handle(args.lock.handle)?, &args.lock)?;
    let service = &cx.shared.service;
    if service.clients.in_grace() {
        return Err(Status::DeniedGracePeriod.into());
    }
    // A client without a lock needs no record for a test.
    let known = service.clients.lock_manager(&cx.name(args.lock.caller_name));
    let client = known.unwrap_or_else(|| service.stateless_client().clone());
    let OwnerRange { handle, owner, offset, length } = range.place();
    let caller = cx.caller(&client);
    match service.locks.test(caller, handle, owner, offset, length, kind(args.exclusive)) {
        Ok(()) => Ok(None),
        Err(LockError::Denied(conflict) | LockError::Broken(conflict)) => Ok(Some(conflict)),
        Err(LockError::Service(error)) => Err(error.into()),
    }
}

pub(super) fn lock(cx: &Context<'_>, args: &LockArgs<'_>) -> Result<Reply, Stop> {
    lock_result(cx, args.cookie, locked(cx, args, args.block && !args.reclaim))
}

/// A lock of a host without a status monitor. It cannot wait.
pub(super) fn unmonitored(cx: &Context<'_>, args: &LockArgs<'_>) -> Result<Reply, Stop> {
    lock_result(cx, args.cookie, locked(cx, args, false))
}

fn locked(cx: &Context<'_>, args: &LockArgs<'_>, waits: bool) -> Result<Status, Stop> {
    let range = Range::of(cx.handle(args.lock.handle)?, &args.lock)?;
    let manager = cx.manager_in(args.lock.caller_name, args.state)?;
    let (blocked, service) = (&cx.shared.nlm.blocked, &cx.shared.service);
    let key = Waiting { client: manager.key(), handle: range.handle, owner: range.owner.clone() };
    if waits && blocked.is_granting(&key) {
        // The client learns of the lock by GRANTED, and by that alone.
        return Ok(Status::Blocked);
    }
    if waits && !blocked.put(key.clone(), || Request::of(cx.sender, args)) {
        return Err(Status::DeniedNoLocks.into());
    }
    let (caller, kind) = (cx.caller(&manager), kind(args.exclusive));
    let outcome = service.nlm_lock(caller, &range.place(), kind, waits, args.reclaim);
    if waits && matches!(outcome, Err(LockError::Denied(_))) {
        return Ok(Status::Blocked);
    }
    if waits {
        blocked.take(&key);
    }
    match outcome {
        Ok(()) if waits && blocked.is_granting(&key) => Ok(Status::Blocked),
        Ok(()) => Ok(Status::Granted),
        Err(LockError::Denied(_)) => Ok(Status::Denied),
        // Only a DAFS client can repair the data. With DENIED a client would wait.
        Err(LockError::Broken(_)) => Ok(Status::Failed),
        Err(LockError::Service(error)) => Err(error.into()),
    }
}

pub(super) fn cancel(cx: &Context<'_>, args: &CancelArgs<'_>) -> Result<Reply, Stop> {
    let cancelled = || -> Result<Status, Stop> {
        let range = Range::of(cx.handle(args.lock.handle)?, &args.lock)?;
        let service = &cx.shared.service;
        let known = service.clients.lock_manager(&cx.name(args.lock.caller_name));
        let Some(manager) = known else { return Ok(Status::Denied) };
        let waited = service.nlm_cancel(cx.caller(&manager), &range.place())?;
        let client = manager.key();
        cx.shared.nlm.blocked.take(&Waiting { client, handle: range.handle, owner: range.owner });
        Ok(if waited { Status::Granted } else { Status::Denied })
    };
    lock_result(cx, args.cookie, cancelled())
}

pub(super) fn unlock(cx: &Context<'_>, args: &UnlockArgs<'_>) -> Result<Reply, Stop> {
    let unlocked = || -> Result<Status, Stop> {
        let range = Range::of(cx.handle(args.lock.handle)?, &args.lock)?;
        let service = &cx.shared.service;
        if let Some(manager) = service.clients.lock_manager(&cx.name(args.lock.caller_name)) {
            service.nlm_unlock(cx.caller(&manager), &range.place())?;
        }
        Ok(Status::Granted)
    };
    lock_result(cx, args.cookie, unlocked())
}

/// The server holds no locks of others, so nothing can be granted to it.
pub(super) fn granted(_: &Context<'_>, args: &TestArgs<'_>) -> Result<Reply, Stop> {
    Ok(results(&LockResult { cookie: args.cookie, status: Status::Denied }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{FileId, FsId};
    use dafs_wire::nlm4::HostName;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_end_at_the_largest_offset(offset in any::<u64>(), length in any::<u64>()) {
            let handle = Handle { fs: FsId([0; 16]), file: FileId([0; 48]) };
            let (caller_name, fh) = (HostName(b"h"), NetObject(b""));
            let lock =
                Lock { caller_name, handle: fh, owner: NetObject(b"o"), svid: 7, offset, length };
            let last = u128::from(offset) + u128::from(length.saturating_sub(1));
            match Range::of(handle, &lock) {
                Ok(range) => {
                    prop_assert!(last <= u128::from(OFFSET_MAX));
                    prop_assert_eq!(range.length == u64::MAX, length == 0);
                    prop_assert_eq!(range.owner, b"l\0\0\0\x07o");
                }
                Err(stop) => {
                    prop_assert_eq!(stop, Stop::Fail(Status::TooBig));
                    prop_assert!(last > u128::from(OFFSET_MAX));
                }
            }
        }
    }
}
