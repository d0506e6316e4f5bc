//! Byte-range locks: conflicts, state-ids, waiters, release.

use crate::common::*;
use dafs_service::limits::LOCK_RANGES_PER_FILE_MAX;
use dafs_service::{
    Client, LockConflict, LockError, LockKind, LockOwner, LockRequest, Opened, ServiceError,
    StateKind, StateRef,
};
use std::sync::Arc;

fn denied(world: &World, client: &Arc<Client>, opened: &Opened, owner: &str) -> LockConflict {
    match world.lock(client, opened, owner, (0, u64::MAX), LockKind::Write) {
        Err(LockError::Denied(conflict)) => conflict,
        other => panic!("{other:?}"),
    }
}

fn test(
    world: &World,
    client: &Arc<Client>,
    opened: &Opened,
    owner: &str,
    range: (u64, u64),
) -> Result<(), LockError> {
    let (caller, handle) = (world.caller(client), opened.state.handle());
    world.service.locks.test(caller, handle, owner.as_bytes(), range.0, range.1, LockKind::Read)
}

#[test]
fn locks_of_two_owners_exclude_each_other() {
    let world = World::new();
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let (mine, theirs) =
        (world.open(&one, "f", BOTH).unwrap(), world.open(&two, "f", BOTH).unwrap());
    let first = world.lock(&one, &mine, "l", (10, 10), LockKind::Write).unwrap();
    assert_eq!(first.seqid, 1);
    let conflict = denied(&world, &two, &theirs, "l");
    let expected = LockConflict {
        offset: 10,
        length: 10,
        kind: LockKind::Write,
        client: one.key(),
        owner: (*b"l").into(),
    };
    assert_eq!(conflict, expected);
    // Another owner of the same client conflicts, too. The same owner gets the same state-id again.
    assert_eq!(denied(&world, &one, &mine, "m"), expected);
    let second = world.lock(&one, &mine, "l", (20, u64::MAX), LockKind::Write).unwrap();
    assert_eq!((second.id, second.seqid), (first.id, 2));
    assert_eq!(test(&world, &two, &theirs, "l", (0, 10)), Ok(()));
    let conflict = denied(&world, &two, &theirs, "l");
    assert_eq!((conflict.offset, conflict.length), (10, u64::MAX));
    assert_eq!(test(&world, &one, &mine, "l", (0, u64::MAX)), Ok(()));
    // Through the state-id of the lock.
    let existing = |state| {
        let request = lock_request(LockOwner::Existing(state), (15, 1), LockKind::Read);
        world.service.locks.lock(world.caller(&one), mine.state.handle(), &request)
    };
    assert_eq!(existing(first), Err(ServiceError::OldStateId.into()));
    let third = existing(second).unwrap();
    assert_eq!(world.service.counts().lock_ranges, 3);
    assert_eq!(test(&world, &two, &theirs, "l", (15, 1)), Ok(()));
    let handle = *mine.state.handle();
    let unlock = |state, offset, length| {
        world.service.locks.unlock(world.caller(&one), &handle, state, offset, length)
    };
    let fourth = unlock(third, 0, u64::MAX).unwrap();
    assert_eq!(fourth.seqid, 4);
    assert_eq!(test(&world, &two, &theirs, "l", (0, u64::MAX)), Ok(()));
    assert!(unlock(fourth, 5, 0).is_err());
    assert!(unlock(fourth, u64::MAX, 2).is_err());
    // Several read locks.
    world.lock(&one, &mine, "l", (0, 5), LockKind::Read).unwrap();
    world.lock(&two, &theirs, "l", (0, 5), LockKind::Read).unwrap();
    denied(&world, &two, &theirs, "l");
}

#[test]
fn a_lock_needs_an_open_that_allows_it() {
    let world = World::new();
    let client = world.nfs("a");
    let (reader, writer) =
        (world.open(&client, "f", READ).unwrap(), world.open(&client, "g", WRITE).unwrap());
    let mode = Err(ServiceError::OpenMode.into());
    assert_eq!(world.lock(&client, &reader, "l", (0, 1), LockKind::Write), mode);
    assert_eq!(world.lock(&client, &writer, "l", (0, 1), LockKind::Read), mode);
    assert_eq!(world.service.counts().locks, 0);
    let lock = world.lock(&client, &reader, "l", (0, 1), LockKind::Read).unwrap();
    // The state-id of the lock allows the access of its open.
    let handle = *reader.state.handle();
    let io = |mode| world.service.opens.io_file(world.caller(&client), &handle, lock, mode);
    assert!(io(MODE_READ).is_ok());
    assert_eq!(error(io(MODE_WRITE)), ServiceError::OpenMode);
    // It is not an open.
    let open = world.service.state.open_state(world.caller(&client), &handle, lock);
    assert_eq!(error(open), ServiceError::BadStateId);
}

#[test]
fn locks_end_with_their_open_or_are_freed_when_empty() {
    let world = World::new();
    let client = world.nfs("a");
    let opened = world.open(&client, "f", BOTH).unwrap();
    let (caller, handle) = (world.caller(&client), *opened.state.handle());
    let lock = world.lock(&client, &opened, "l", (0, 1), LockKind::Write).unwrap();
    assert_eq!(world.service.state.check_state(caller, None, lock), Ok(StateKind::Lock));
    assert_eq!(world.service.opens.free(caller, lock), Err(ServiceError::LocksHeld));
    let lock = world.service.locks.unlock(caller, &handle, lock, 0, 1).unwrap();
    let old = StateRef { seqid: 1, ..lock };
    assert_eq!(world.service.opens.free(caller, old), Err(ServiceError::OldStateId));
    world.service.opens.free(caller, lock).unwrap();
    assert_eq!(world.service.opens.free(caller, lock), Err(ServiceError::BadStateId));
    let lock = world.lock(&client, &opened, "l", (0, 1), LockKind::Write).unwrap();
    world.close(&client, &opened);
    assert_eq!(
        world.service.state.check_state(caller, None, lock),
        Err(ServiceError::StaleStateId)
    );
    let counts = world.service.counts();
    assert_eq!((counts.opens, counts.locks, counts.lock_ranges), (0, 0, 0));
}

#[test]
fn those_who_wait_are_told_in_order_and_once() {
    let world = World::new();
    let clients: Vec<_> = ["a", "b", "c"].map(|name| world.nfs(name)).into();
    let opened: Vec<_> =
        clients.iter().map(|client| world.open(client, "f", BOTH).unwrap()).collect();
    let handle = *opened[0].state.handle();
    let lock = |at: usize, wait, range| {
        let request = lock_request(new_owner(&opened[at], b"l"), range, LockKind::Write);
        let request = LockRequest { wait, ..request };
        world.service.locks.lock(world.caller(&clients[at]), &handle, &request)
    };
    let held = lock(0, false, (0, 100)).unwrap();
    assert!(lock(1, true, (0, 10)).is_err());
    assert!(lock(2, true, (5, 10)).is_err());
    // A retry does not enqueue the owner twice.
    assert!(lock(1, true, (0, 10)).is_err());
    assert_eq!(world.service.counts().lock_waiters, 2);
    let unlock = |state, offset, length| {
        world
            .service
            .locks
            .unlock(world.caller(&clients[0]), &handle, state, offset, length)
            .unwrap()
    };
    let held = unlock(held, 50, 50);
    assert_eq!(world.ear.take(), []);
    unlock(held, 0, 50);
    let told = |at: usize| Told::LockAvailable(clients[at].key(), handle, b"l".to_vec());
    assert_eq!(world.ear.take(), [told(1), told(2)]);
    assert_eq!(world.service.counts().lock_waiters, 0);
    lock(1, true, (0, 10)).unwrap();
    assert!(lock(2, true, (5, 10)).is_err());
    // A close releases locks, too, and a client that closes the file does not wait any more.
    assert!(lock(0, true, (0, 1)).is_err());
    world.close(&clients[0], &opened[0]);
    world.close(&clients[1], &opened[1]);
    assert_eq!(world.ear.take(), [told(2)]);
    assert_eq!(world.service.counts().lock_waiters, 0);
}

#[test]
fn waiting_is_bounded_for_each_file() {
    let world = World::new();
    let client = world.nfs("a");
    let opened = world.open(&client, "f", BOTH).unwrap();
    world.lock(&client, &opened, "l", (0, 1), LockKind::Write).unwrap();
    for number in 0..dafs_service::limits::WAITERS_PER_FILE_MAX + 5 {
        let name = number.to_string();
        let request = lock_request(new_owner(&opened, name.as_bytes()), (0, 1), LockKind::Read);
        let request = LockRequest { wait: true, ..request };
        let asked =
            world.service.locks.lock(world.caller(&client), opened.state.handle(), &request);
        assert!(matches!(asked, Err(LockError::Denied(_))));
    }
    let waiting = world.service.counts().lock_waiters;
    assert_eq!(waiting, dafs_service::limits::WAITERS_PER_FILE_MAX);
    client.session_ended();
    world.close(&client, &opened);
    assert_eq!(world.service.clients.destroy(client.key()), Ok(()));
}

#[test]
fn a_lock_waiter_is_notified_when_the_lease_of_the_holder_ends() {
    let world = World::new();
    let (gone, waiting) = (world.nfs("gone"), world.nfs("waiting"));
    let held = world.open(&gone, "f", BOTH).unwrap();
    world.lock(&gone, &held, "l", (0, 10), LockKind::Write).unwrap();
    let opened = world.open(&waiting, "f", BOTH).unwrap();
    let request = lock_request(new_owner(&opened, b"l"), (5, 1), LockKind::Write);
    let request = LockRequest { wait: true, ..request };
    let (caller, handle) = (world.caller(&waiting), opened.state.handle());
    assert!(world.service.locks.lock(caller, handle, &request).is_err());
    world.pass_with(&[&waiting], LEASE_NS / 2);
    world.pass_with(&[&waiting], LEASE_NS / 3);
    assert_eq!(world.ear.take(), []);
    world.pass_with(&[&waiting], LEASE_NS / 3);
    let told = world.ear.take();
    assert!(told.contains(&Told::LockAvailable(waiting.key(), *handle, b"l".to_vec())), "{told:?}");
    world.service.locks.lock(world.caller(&waiting), handle, &request).unwrap();
}

/// The first release wakes the last waiter, and no other state is on the file then.
#[test]
fn a_close_releases_all_locks_even_when_it_wakes_somebody() {
    let world = World::new();
    let client = world.nfs("a");
    let opened = world.open(&client, "f", BOTH).unwrap();
    for (number, owner) in ["l", "m", "n"].into_iter().enumerate() {
        let range = (10 * number as u64, 10);
        world.lock(&client, &opened, owner, range, LockKind::Write).unwrap();
    }
    let request = lock_request(new_owner(&opened, b"waits"), (0, 10), LockKind::Write);
    let request = LockRequest { wait: true, ..request };
    let (caller, handle) = (world.caller(&client), *opened.state.handle());
    assert!(matches!(
        world.service.locks.lock(caller, &handle, &request),
        Err(LockError::Denied(_))
    ));
    world.close(&client, &opened);
    let counts = world.service.counts();
    assert_eq!((counts.locks, counts.lock_ranges, counts.lock_waiters), (0, 0, 0));
    client.session_ended();
    world.service.clients.destroy(client.key()).unwrap();
}

#[test]
fn ranges_are_bounded_even_when_unlocking_makes_them() {
    let world = World::new();
    let client = world.nfs("a");
    let opened = world.open(&client, "f", BOTH).unwrap();
    let handle = *opened.state.handle();
    let all = (0, u64::MAX);
    let lock = world.lock(&client, &opened, "l", all, LockKind::Write).unwrap();
    let unlock = |offset, length| {
        let state = StateRef { seqid: 0, ..lock };
        world.service.locks.unlock(world.caller(&client), &handle, state, offset, length)
    };
    let mut at = 1;
    while unlock(at, 1).is_ok() {
        at += 2;
        assert!(at < 1_000_000, "ranges are not bounded");
    }
    assert_eq!(unlock(at, 1), Err(ServiceError::Resource));
    // One host gets half of them.
    assert_eq!(world.service.counts().lock_ranges, LOCK_RANGES_PER_FILE_MAX / 2);
    // A change without more ranges succeeds.
    unlock(at - 1, u64::MAX).unwrap();
    unlock(0, u64::MAX).unwrap();
    assert_eq!(world.service.counts().lock_ranges, 0);
}

/// One list for all: a lock of an NFS client conflicts with those of DAFS clients, and the reverse.
/// A turn that a DAFS client keeps holds against NFS clients, which are notified when it lapses.
#[test]
fn locks_of_both_protocols_exclude_each_other() {
    let world = World::new();
    let (nfs, dafs) = (world.nfs("a"), world.dafs("b"));
    let (mine, theirs) =
        (world.open(&nfs, "f", BOTH).unwrap(), world.open(&dafs, "f", BOTH).unwrap());
    let handle = *mine.state.handle();
    let by_open = |wait| {
        let owner = LockOwner::Open(theirs.state.id().into());
        let request = LockRequest { wait, ..lock_request(owner, (5, 5), LockKind::Write) };
        world.service.locks.lock(world.caller(&dafs), &handle, &request)
    };
    let lock = world.lock(&nfs, &mine, "l", (0, 10), LockKind::Write).unwrap();
    assert!(matches!(by_open(true), Err(LockError::Denied(_))));
    world.service.locks.unlock(world.caller(&nfs), &handle, lock, 0, 10).unwrap();
    let request = lock_request(new_owner(&mine, b"l"), (0, 10), LockKind::Read);
    let request = LockRequest { wait: true, ..request };
    let wait = || world.service.locks.lock(world.caller(&nfs), &handle, &request);
    assert!(matches!(wait(), Err(LockError::Denied(turn)) if turn.client == dafs.key()));
    assert_eq!(world.ear.take(), []);
    world.pass_with(&[&nfs, &dafs], 2 * SECOND_NS);
    assert_eq!(world.ear.take(), [Told::LockAvailable(nfs.key(), handle, b"l".to_vec())]);
    wait().unwrap();
    assert!(by_open(false).is_err());
    assert_eq!(denied(&world, &dafs, &theirs, "l").client, nfs.key());
    world.close(&nfs, &mine);
    by_open(false).unwrap();
    let state = theirs.state.id().into();
    world.service.locks.unlock(world.caller(&dafs), &handle, state, 0, u64::MAX).unwrap();
    assert_eq!(world.service.counts().lock_ranges, 0);
}
