//! Persistent locks: the effect of a failure of their holder, the server or the disk, and their
//! repair (DAFS 9.3, 9.4).

use crate::common::*;
use dafs_service::{
    Client, DelegationKind, Handle, LockConflict, LockError, LockExtras, LockKind, LockOwner,
    LockRequest, LockStatus, NoDelegation, OpenRequest, Opened, ServiceError, StateRef, Want,
    WantKind,
};
use dafs_store::{SetAttr, StoreError, Wait};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};

pub(crate) const PERSIST: LockExtras =
    LockExtras { persist: true, autorecover: false, repair: false };
const REPAIR: LockExtras = LockExtras { persist: false, autorecover: false, repair: true };
const PLAIN: LockExtras = LockExtras { persist: false, autorecover: false, repair: false };

const INVALID: LockError = LockError::Service(ServiceError::Store(StoreError::Invalid));

/// The answer to a request for a lock.
type Locked = Result<(), LockError>;

pub(crate) fn try_lock(
    world: &World,
    client: &Arc<Client>,
    opened: &Opened,
    range: (u64, u64),
    kind: LockKind,
    extras: LockExtras,
) -> Locked {
    ask(world, client, opened, LockRequest { extras, ..by_open(opened, range, kind) })
}

/// A request of an open's owner for a plain lock.
pub(crate) fn by_open(opened: &Opened, range: (u64, u64), kind: LockKind) -> LockRequest<'static> {
    lock_request(LockOwner::Open(opened.state.id().into()), range, kind)
}

fn ask(world: &World, client: &Arc<Client>, opened: &Opened, request: LockRequest<'_>) -> Locked {
    world.service.locks.lock(world.patient(client), opened.state.handle(), &request).map(drop)
}

fn keep(world: &World, client: &Arc<Client>, opened: &Opened, range: (u64, u64)) {
    try_lock(world, client, opened, range, LockKind::Write, PERSIST).unwrap();
}

fn write(world: &World, client: &Arc<Client>, opened: &Opened, range: (u64, u64)) -> Locked {
    try_lock(world, client, opened, range, LockKind::Write, PLAIN)
}

/// Requests a lock, and keeps its turn while it polls.
fn wait(world: &World, client: &Arc<Client>, opened: &Opened, range: (u64, u64)) -> Locked {
    let request = by_open(opened, range, LockKind::Write);
    ask(world, client, opened, LockRequest { wait: true, ..request })
}

fn repair(world: &World, client: &Arc<Client>, opened: &Opened, range: (u64, u64)) -> Locked {
    try_lock(world, client, opened, range, LockKind::Write, REPAIR)
}

pub(crate) fn unlock(
    world: &World,
    client: &Arc<Client>,
    opened: &Opened,
    (offset, length): (u64, u64),
) -> Result<(), ServiceError> {
    let state = opened.state.id().into();
    let caller = world.patient(client);
    world.service.locks.unlock(caller, opened.state.handle(), state, offset, length).map(drop)
}

fn broken(result: Locked) -> LockConflict {
    match result {
        Err(LockError::Broken(former)) => former,
        other => panic!("{other:?}"),
    }
}

fn denied(result: Locked) -> LockConflict {
    match result {
        Err(LockError::Denied(holder)) => holder,
        other => panic!("{other:?}"),
    }
}

/// The states of the persistent locks: first byte, state, and true for a repair.
fn status(world: &World) -> Vec<(u64, LockStatus, bool)> {
    let infos = world.service.locks.info(100, world.now_ns.get());
    let kept = infos.iter().filter(|info| info.persist);
    let mut all: Vec<_> = kept.map(|info| (info.offset, info.status, info.repair)).collect();
    all.sort_by_key(|(offset, ..)| *offset);
    all
}

fn span(world: &World, handle: &Handle, offset: u64, length: u64) -> Result<(), ServiceError> {
    world.service.locks.check_span(handle, offset, length)
}

#[test]
fn a_file_with_a_broken_lock_has_no_delegation() {
    let world = World::new();
    let (one, nfs, two) = (world.instance("a", 1), world.nfs("n"), world.dafs("b"));
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    keep(&world, &one, &mine, (10, 10));
    world.instance("a", 2);
    let wish = |share| {
        let want = Want { kind: WantKind::Any, ..Want::default() };
        let request = OpenRequest { want, ..world.plain("f", "owner", share) };
        let opened = world.service.opens.open(world.caller(&nfs), &request).unwrap();
        world.close(&nfs, &opened);
        opened.delegation.map(|delegation| delegation.kind)
    };
    assert_eq!(wish(READ), Err(NoDelegation::Contention));
    assert_eq!(wish(BOTH), Err(NoDelegation::Contention));
    let theirs = world.open(&two, "f", BOTH).unwrap();
    assert_eq!(repair(&world, &two, &theirs, (10, 10)), Ok(()));
    assert_eq!(unlock(&world, &two, &theirs, (10, 10)), Ok(()));
    world.close(&two, &theirs);
    assert_eq!(wish(BOTH), Ok(DelegationKind::Write));
}

#[test]
fn a_client_that_restarts_leaves_a_broken_lock_that_is_repaired() {
    let world = World::new();
    let (one, two) = (world.instance("a", 1), world.dafs("b"));
    let (mine, theirs) =
        (world.open_patiently(&one, "f", BOTH).unwrap(), world.open(&two, "f", BOTH).unwrap());
    let handle = *mine.state.handle();
    keep(&world, &one, &mine, (10, 10));
    keep(&world, &one, &mine, (40, 10));
    write(&world, &one, &mine, (60, 10)).unwrap();
    assert_eq!(world.disk.locks.lock().unwrap().len(), 2);
    assert_eq!(span(&world, &handle, 0, u64::MAX), Ok(()));
    assert_eq!(denied(write(&world, &two, &theirs, (15, 1))).client, one.key());
    let again = world.instance("a", 2);
    // At once, before the next request.
    assert_eq!(status(&world), [(10, LockStatus::Broken, false), (40, LockStatus::Broken, false)]);
    let infos = world.service.locks.info(100, world.now_ns.get());
    assert!(infos.iter().all(|info| info.handle == handle), "{infos:?}");
    assert!(world.disk.locks.lock().unwrap().iter().all(|record| record.broken));
    let former = LockConflict {
        offset: 10,
        length: 10,
        kind: LockKind::Write,
        client: one.key(),
        owner: (*b"owner").into(),
    };
    // For all clients, in all operations, until the repair.
    let mine = world.open_patiently(&again, "f", BOTH).unwrap();
    for _ in 0..2 {
        assert_eq!(broken(write(&world, &two, &theirs, (15, 1))), former);
        assert_eq!(broken(write(&world, &again, &mine, (0, u64::MAX))), former);
        let kind = LockKind::Read;
        let tested = world.service.locks.test(world.caller(&two), &handle, b"x", 19, 1, kind);
        assert_eq!(broken(tested), former);
    }
    // The plain lock ended with its holder, and the bytes between are free.
    write(&world, &two, &theirs, (20, 20)).unwrap();
    write(&world, &two, &theirs, (60, 10)).unwrap();
    for (offset, length, expected) in [
        (0, 10, Ok(())),
        (0, 11, Err(ServiceError::LockBroken)),
        (19, 1, Err(ServiceError::LockBroken)),
        (20, 20, Ok(())),
        (20, 0, Ok(())),
        (45, u64::MAX, Err(ServiceError::LockBroken)),
        (50, u64::MAX, Ok(())),
    ] {
        assert_eq!(span(&world, &handle, offset, length), expected, "{offset} {length}");
    }
    let cut = |size| {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        let state = StateRef::from(theirs.state.id());
        world.service.setattr(world.patient(&two), &handle, state, &change).map(drop)
    };
    assert_eq!(cut(49), Err(ServiceError::LockBroken));
    assert_eq!(cut(50), Ok(()));
    // The rules of repair (O34).
    assert_eq!(repair(&world, &two, &theirs, (0, 10)), Err(INVALID));
    for part in [(10, 9), (11, 9), (15, 1), (0, 45)] {
        assert_eq!(
            repair(&world, &two, &theirs, part),
            Err(ServiceError::LockRange.into()),
            "{part:?}"
        );
    }
    let read = try_lock(&world, &two, &theirs, (10, 10), LockKind::Read, REPAIR);
    assert_eq!(read, Err(INVALID));
    repair(&world, &two, &theirs, (10, 10)).unwrap();
    assert_eq!(span(&world, &handle, 10, 10), Ok(()));
    assert_eq!(span(&world, &handle, 40, 1), Err(ServiceError::LockBroken));
    assert_eq!(denied(write(&world, &again, &mine, (10, 1))).client, two.key());
    // A repair lock is persistent: its holder's failure breaks it again.
    let two_again = world.instance("b", 2);
    assert_eq!(broken(write(&world, &again, &mine, (10, 1))).client, two.key());
    let theirs = world.open_patiently(&two_again, "f", BOTH).unwrap();
    // Both at once.
    repair(&world, &two_again, &theirs, (0, 100)).unwrap();
    assert_eq!(status(&world), [(0, LockStatus::Held, true)]);
    assert_eq!(unlock(&world, &two_again, &theirs, (0, 99)), Err(ServiceError::LockRange));
    unlock(&world, &two_again, &theirs, (0, 100)).unwrap();
    write(&world, &again, &mine, (0, u64::MAX)).unwrap();
    let counts = world.service.counts();
    assert_eq!((counts.kept_locks, counts.broken_locks), (0, 0));
    assert_eq!(*world.disk.locks.lock().unwrap(), []);
}

/// Waiters are refused as long as the lock is broken, so a repair behind them would deadlock.
#[test]
fn a_repair_is_not_held_up_by_those_who_wait_for_it() {
    let world = World::new();
    let (one, two, three) = (world.instance("a", 1), world.dafs("b"), world.dafs("c"));
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    let [waiting, mending] = [&two, &three].map(|client| world.open(client, "f", BOTH).unwrap());
    keep(&world, &one, &mine, (10, 10));
    let poll = || wait(&world, &two, &waiting, (10, 5));
    assert_eq!(denied(poll()).client, one.key());
    let _again = world.instance("a", 2);
    broken(poll());
    repair(&world, &three, &mending, (10, 10)).unwrap();
    // The waiter is served next, before later ones.
    assert_eq!(denied(poll()).client, three.key());
    unlock(&world, &three, &mending, (10, 10)).unwrap();
    assert_eq!(denied(write(&world, &three, &mending, (10, 10))).client, two.key());
    poll().unwrap();
}

/// A waiter beside a broken range can be served, so a repair of a larger range comes after it.
#[test]
fn a_repair_of_more_than_is_broken_does_not_overtake() {
    let world = World::new();
    let (one, two, three) = (world.instance("a", 1), world.dafs("b"), world.dafs("c"));
    let four = world.dafs("d");
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    let [waiting, mending, holding] =
        [&two, &three, &four].map(|client| world.open(client, "f", BOTH).unwrap());
    keep(&world, &one, &mine, (10, 10));
    write(&world, &four, &holding, (40, 10)).unwrap();
    let poll = || wait(&world, &two, &waiting, (40, 10));
    assert_eq!(denied(poll()).client, four.key());
    let _again = world.instance("a", 2);
    unlock(&world, &four, &holding, (40, 10)).unwrap();
    assert_eq!(denied(repair(&world, &three, &mending, (0, 100))).client, two.key());
    repair(&world, &three, &mending, (10, 10)).unwrap();
    poll().unwrap();
}

#[test]
fn a_lapsed_lock_stays_its_holders_until_somebody_wants_it() {
    let world = World::new();
    let (one, two) = (world.dafs("a"), world.dafs("b"));
    let (mine, theirs) =
        (world.open_patiently(&one, "f", BOTH).unwrap(), world.open(&two, "f", BOTH).unwrap());
    let handle = *mine.state.handle();
    keep(&world, &one, &mine, (0, 10));
    world.pass_with(&[&two], LEASE_NS + SECOND_NS);
    assert_eq!(status(&world), [(0, LockStatus::Breakable, false)]);
    // A request without a conflict does not break it, nor does a test, nor a read without a lock.
    write(&world, &two, &theirs, (10, 10)).unwrap();
    assert_eq!(span(&world, &handle, 0, 10), Ok(()));
    one.renew(world.now_ns.get());
    assert_eq!(status(&world), [(0, LockStatus::Held, false)]);
    assert_eq!(denied(write(&world, &two, &theirs, (0, 1))).client, one.key());
    unlock(&world, &one, &mine, (0, 10)).unwrap();
    keep(&world, &one, &mine, (0, 10));
    world.pass_with(&[&two], LEASE_NS + SECOND_NS);
    // A request that may not wait has had no effect yet.
    let request = by_open(&theirs, (5, 1), LockKind::Write);
    let hasty = world.service.locks.lock(world.caller(&two), &handle, &request);
    assert_eq!(hasty, Err(ServiceError::WouldWait.into()));
    assert_eq!(world.service.counts().broken_locks, 0);
    // The first conflicting request breaks it and gets that answer.
    assert_eq!(broken(write(&world, &two, &theirs, (5, 1))).client, one.key());
    assert_eq!(status(&world), [(0, LockStatus::Broken, false)]);
    assert!(world.disk.locks.lock().unwrap()[0].broken);
    // Its holder comes back too late.
    let back = world.dafs("a");
    let mine = world.open(&back, "f", BOTH).unwrap();
    let late = try_lock(&world, &back, &mine, (0, 10), LockKind::Write, PERSIST);
    assert_eq!(broken(late).client, one.key());
    repair(&world, &back, &mine, (0, 10)).unwrap();
    world.close(&back, &mine);
    assert_eq!(world.service.counts().kept_locks, 0);
    write(&world, &two, &theirs, (0, 10)).unwrap();
}

#[test]
fn a_holder_whose_opens_were_given_to_others_takes_its_lock_back() {
    let world = World::new();
    let (one, two) = (world.dafs("a"), world.dafs("b"));
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    keep(&world, &one, &mine, (0, 10));
    keep(&world, &one, &mine, (20, 10));
    world.service.clients.revoke(one.key()).unwrap();
    let kept = [(0, LockStatus::Breakable, false), (20, LockStatus::Breakable, false)];
    assert_eq!(status(&world), kept);
    let back = world.dafs("a");
    let mine = world.open(&back, "f", BOTH).unwrap();
    // As a whole, or not at all.
    assert_eq!(write(&world, &back, &mine, (0, 5)), Err(ServiceError::LockRange.into()));
    // It keeps its properties.
    write(&world, &back, &mine, (0, 10)).unwrap();
    assert_eq!(status(&world)[0], (0, LockStatus::Held, false));
    // Another owner of the same client counts as a stranger.
    let caller = world.caller(&back);
    let other = world.service.opens.open(caller, &world.plain("f", "other", BOTH)).unwrap();
    assert_eq!(broken(write(&world, &back, &other, (20, 1))).client, one.key());
    let theirs = world.open(&two, "f", BOTH).unwrap();
    assert_eq!(denied(write(&world, &two, &theirs, (0, 1))).client, back.key());
    repair(&world, &two, &theirs, (20, 10)).unwrap();
    assert_eq!(world.service.counts().kept_locks, 2);
    world.close(&two, &theirs);
    world.close(&back, &mine);
    assert_eq!(world.service.counts().kept_locks, 0);
}

#[test]
fn locks_and_their_breaking_survive_the_server() {
    let mut world = World::new();
    let (one, two) = (world.instance("a", 1), world.dafs("b"));
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    let theirs = world.open(&two, "f", BOTH).unwrap();
    let handle = *mine.state.handle();
    keep(&world, &one, &mine, (0, 10));
    keep(&world, &two, &theirs, (20, 10));
    keep(&world, &two, &theirs, (40, 10));
    world.instance("a", 2);
    world.disk.records.lock().unwrap().clear();
    world.restart();
    assert_eq!(
        status(&world),
        [
            (0, LockStatus::Broken, false),
            (20, LockStatus::Breakable, false),
            (40, LockStatus::Breakable, false),
        ]
    );
    assert_eq!(span(&world, &handle, 0, 1), Err(ServiceError::LockBroken));
    let (three, back) = (world.dafs("c"), world.dafs("b"));
    let third = world.open(&three, "f", BOTH).unwrap();
    let theirs = world.open(&back, "f", BOTH).unwrap();
    // The key is new, but the owner is the old one.
    assert_ne!(back.key(), two.key());
    keep(&world, &back, &theirs, (20, 10));
    assert_eq!(denied(write(&world, &three, &third, (20, 1))).client, back.key());
    assert_eq!(broken(write(&world, &three, &third, (0, 1))).client, one.key());
    assert_eq!(broken(write(&world, &three, &third, (49, 1))).client, two.key());
    repair(&world, &three, &third, (0, 10)).unwrap();
    world.disk.records.lock().unwrap().clear();
    world.restart();
    assert_eq!(
        status(&world),
        [
            (0, LockStatus::Breakable, true),
            (20, LockStatus::Breakable, false),
            (40, LockStatus::Broken, false),
        ]
    );
    // Numbers are not used twice.
    let four = world.dafs("d");
    let fourth = world.open(&four, "f", BOTH).unwrap();
    keep(&world, &four, &fourth, (60, 10));
    let mut numbers: Vec<_> =
        world.disk.locks.lock().unwrap().iter().map(|record| record.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
}

#[test]
fn a_lock_that_cannot_be_written_is_not_had() {
    let world = World::new();
    let (one, two) = (world.instance("a", 1), world.dafs("b"));
    let (mine, theirs) =
        (world.open_patiently(&one, "f", BOTH).unwrap(), world.open(&two, "f", BOTH).unwrap());
    let io = Err(LockError::Service(ServiceError::Store(StoreError::Io)));
    let persist = |range| try_lock(&world, &one, &mine, range, LockKind::Write, PERSIST);
    write(&world, &one, &mine, (0, 5)).unwrap();
    world.disk.broken.store(true, Ordering::Relaxed);
    assert_eq!(persist((0, 10)), io);
    assert_eq!(world.service.counts().kept_locks, 0);
    // The owner gets its old lock back, and no more.
    denied(write(&world, &two, &theirs, (4, 1)));
    write(&world, &two, &theirs, (5, 1)).unwrap();
    unlock(&world, &two, &theirs, (5, 1)).unwrap();
    world.disk.broken.store(false, Ordering::Relaxed);
    persist((0, 10)).unwrap();
    world.disk.broken.store(true, Ordering::Relaxed);
    // A lock that cannot be released is kept. A broken one is reported only after its write.
    assert!(unlock(&world, &one, &mine, (0, 10)).is_err());
    denied(write(&world, &two, &theirs, (9, 1)));
    world.instance("a", 2);
    assert_eq!(write(&world, &two, &theirs, (9, 1)), io);
    assert!(!world.disk.locks.lock().unwrap()[0].broken);
    world.disk.broken.store(false, Ordering::Relaxed);
    broken(write(&world, &two, &theirs, (9, 1)));
    assert!(world.disk.locks.lock().unwrap()[0].broken);
    world.disk.broken.store(true, Ordering::Relaxed);
    assert_eq!(repair(&world, &two, &theirs, (0, 10)), io);
    assert_eq!(status(&world), [(0, LockStatus::Broken, false)]);
    assert_eq!(world.service.counts().broken_locks, 1);
    world.disk.broken.store(false, Ordering::Relaxed);
    repair(&world, &two, &theirs, (0, 10)).unwrap();
}

#[test]
fn a_caller_that_may_not_wait_gets_no_persistent_lock() {
    let world = World::new();
    let one = world.dafs("a");
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    let handle = *mine.state.handle();
    let request = LockRequest { extras: PERSIST, ..by_open(&mine, (0, 10), LockKind::Read) };
    let hasty = world.service.locks.lock(world.caller(&one), &handle, &request);
    assert_eq!(hasty, Err(ServiceError::WouldWait.into()));
    assert_eq!(world.service.counts().lock_ranges, 0);
    world.service.locks.lock(world.patient(&one), &handle, &request).unwrap();
    let state = mine.state.id().into();
    let hasty = world.service.locks.unlock(world.caller(&one), &handle, state, 0, 10);
    assert_eq!(hasty, Err(ServiceError::WouldWait));
    let hasty = world.service.opens.close(world.caller(&one), &handle, mine.state.id());
    assert_eq!(hasty, Err(ServiceError::WouldWait));
    assert_eq!(world.service.counts().kept_locks, 1);
    // Neither persistence for NFS clients nor rollback is supported.
    let nfs = world.nfs("n");
    let theirs = world.open(&nfs, "f", BOTH).unwrap();
    let refused = LockRequest { owner: new_owner(&theirs, b"l"), ..request };
    let not_supported = Err(ServiceError::NotSupported.into());
    assert_eq!(world.service.locks.lock(world.patient(&nfs), &handle, &refused), not_supported);
    assert_eq!(world.patient(&one).wait, Wait::Allowed);
}

#[test]
fn nfs_clients_are_kept_from_broken_locks() {
    let world = World::new();
    let (one, nfs) = (world.instance("a", 1), world.nfs("n"));
    let (mine, theirs) =
        (world.open_patiently(&one, "f", BOTH).unwrap(), world.open(&nfs, "f", BOTH).unwrap());
    keep(&world, &one, &mine, (0, 10));
    let lock = |range| {
        let result = world.lock(&nfs, &theirs, "l", range, LockKind::Write);
        result.map(drop)
    };
    denied(lock((0, 1)));
    world.instance("a", 2);
    assert_eq!(broken(lock((9, 10))).client, one.key());
    lock((10, 10)).unwrap();
}

#[test]
fn orphaned_locks_go_with_their_file() {
    let world = World::new();
    let one = world.instance("a", 1);
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    keep(&world, &one, &mine, (0, 10));
    let two = world.instance("a", 2);
    assert_eq!(world.service.counts().broken_locks, 1);
    let mode = dafs_service::RemoveMode::Unchecked;
    world.service.remove(world.patient(&two), &world.root, b"f", mode).unwrap();
    world.pass_with(&[&two], 11 * SECOND_NS);
    let counts = world.service.counts();
    assert_eq!((counts.broken_locks, counts.kept_locks), (0, 0));
    assert_eq!(*world.disk.locks.lock().unwrap(), []);
}

pub(crate) fn reclaim_lock(
    world: &World,
    client: &Arc<Client>,
    opened: &Opened,
    range: (u64, u64),
    extras: LockExtras,
) -> Locked {
    let request = by_open(opened, range, LockKind::Write);
    ask(world, client, opened, LockRequest { reclaim: true, extras, ..request })
}

#[test]
fn dafs_clients_reclaim_after_a_restart_and_others_wait() {
    let mut world = World::new();
    let (one, two) = (world.instance("a", 1), world.instance("b", 1));
    for client in [&one, &two] {
        client.session_started();
        let hasty =
            world.service.opens.open(world.caller(client), &world.plain("f", "owner", BOTH));
        assert_eq!(error(hasty), ServiceError::WouldWait, "the record comes first");
    }
    let (mine, theirs) = (
        world.open_patiently(&one, "f", BOTH).unwrap(),
        world.open_patiently(&two, "f", BOTH).unwrap(),
    );
    let handle = *mine.state.handle();
    keep(&world, &one, &mine, (0, 10));
    write(&world, &one, &mine, (20, 10)).unwrap();
    write(&world, &two, &theirs, (40, 10)).unwrap();
    assert_eq!(world.disk.owners(), [b"a", b"b"]);
    world.restart();
    assert!(world.service.clients.in_grace());
    let (three, one) = (world.dafs("c"), world.dafs("a"));
    assert_eq!(error(world.open_patiently(&three, "f", BOTH)), ServiceError::Grace);
    let reclaim = |world: &World, client: &Arc<Client>| world.reclaim(client, &handle, BOTH);
    assert_eq!(error(reclaim(&world, &three)), ServiceError::ReclaimBad);
    let mine = reclaim(&world, &one).unwrap();
    reclaim_lock(&world, &one, &mine, (0, 10), PERSIST).unwrap();
    reclaim_lock(&world, &one, &mine, (20, 10), PLAIN).unwrap();
    assert_eq!(status(&world), [(0, LockStatus::Held, false)]);
    // Its new lock is refused, and grace does not wait for it any more. It may go on reclaiming.
    assert_eq!(write(&world, &one, &mine, (60, 1)), Err(ServiceError::Grace.into()));
    reclaim_lock(&world, &one, &mine, (20, 10), PLAIN).unwrap();
    world.pass_with(&[&one, &three], SECOND_NS);
    assert!(world.service.clients.in_grace(), "the other one is awaited");
    let two = world.dafs("b");
    let theirs = reclaim(&world, &two).unwrap();
    let conflict = reclaim_lock(&world, &two, &theirs, (5, 1), PLAIN);
    assert_eq!(conflict, Err(ServiceError::ReclaimConflict.into()));
    reclaim_lock(&world, &two, &theirs, (40, 10), PLAIN).unwrap();
    assert!(!world.service.clients.grace_ends_soon(), "this one has not said that it is done");
    assert_eq!(error(world.open_patiently(&two, "f", BOTH)), ServiceError::Grace);
    assert!(world.service.clients.grace_ends_soon());
    world.pass_with(&[&one, &two, &three], SECOND_NS);
    assert!(!world.service.clients.in_grace(), "all are back and want new things");
    assert!(!world.service.clients.grace_ends_soon());
    let third = world.open_patiently(&three, "f", BOTH).unwrap();
    assert_eq!(denied(write(&world, &three, &third, (0, 1))).client, one.key());
    assert_eq!(denied(write(&world, &three, &third, (49, 1))).client, two.key());
    assert_eq!(
        reclaim_lock(&world, &three, &third, (60, 1), PLAIN),
        Err(ServiceError::NoGrace.into())
    );
}

#[test]
fn a_persistent_lock_that_nobody_reclaims_is_breakable_after_grace() {
    let mut world = World::new();
    let one = world.dafs("a");
    one.session_started();
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    keep(&world, &one, &mine, (0, 10));
    keep(&world, &one, &mine, (20, 10));
    write(&world, &one, &mine, (40, 10)).unwrap();
    world.restart();
    let two = world.dafs("b");
    assert_eq!(error(world.open_patiently(&two, "f", BOTH)), ServiceError::Grace);
    world.pass_with(&[&two], LEASE_NS + SECOND_NS);
    assert!(!world.service.clients.in_grace());
    assert_eq!(status(&world).len(), 2);
    let theirs = world.open_patiently(&two, "f", BOTH).unwrap();
    write(&world, &two, &theirs, (40, 10)).unwrap();
    assert_eq!(broken(write(&world, &two, &theirs, (0, 1))).client, one.key());
    // Its holder is late, but no request has conflicted with the other lock.
    let one = world.dafs("a");
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    reclaim_lock(&world, &one, &mine, (20, 10), PERSIST).unwrap();
    assert_eq!(denied(write(&world, &two, &theirs, (29, 1))).client, one.key());
    let late = reclaim_lock(&world, &one, &mine, (0, 10), PERSIST);
    assert_eq!(broken(late).owner[..], *b"owner");
}

#[test]
fn a_client_that_was_back_during_grace_can_reclaim_after_the_next_restart() {
    let mut world = World::new();
    let (one, two) = (world.dafs("a"), world.dafs("b"));
    let handle = *world.open_patiently(&one, "f", BOTH).unwrap().state.handle();
    world.open_patiently(&two, "f", BOTH).unwrap();
    world.restart();
    let (one, two) = (world.dafs("a"), world.dafs("b"));
    [&one, &two].into_iter().for_each(|client| client.session_started());
    // One reclaims its open, the other reclaims none. Neither asks for new state yet.
    world.reclaim(&one, &handle, BOTH).unwrap();
    world.pass_with(&[&one, &two], 3 * LEASE_NS);
    assert!(!world.service.clients.in_grace());
    assert_eq!(world.disk.owners(), [b"a"]);
    let hasty = world.service.opens.open(world.caller(&two), &world.plain("f", "owner", BOTH));
    assert_eq!(error(hasty), ServiceError::WouldWait, "the record comes first");
    world.open_patiently(&two, "f", BOTH).unwrap();
    assert_eq!(world.disk.owners(), [b"a", b"b"]);
    world.restart();
    for name in ["a", "b"] {
        world.reclaim(&world.dafs(name), &handle, BOTH).unwrap();
    }
}

#[test]
fn the_late_record_of_an_old_instance_does_not_replace_that_of_the_new_one() {
    let mut world = World::new();
    let old = world.instance("a", 1);
    let new = world.instance("a", 2);
    let mine = world.open_patiently(&new, "f", BOTH).unwrap();
    let handle = *mine.state.handle();
    keep(&world, &new, &mine, (0, 10));
    // The first open of the old instance has waited for the disk all the time.
    world.service.clients.record(&old);
    assert_eq!(world.disk.owners(), [b"a"]);
    assert!(!world.service.clients.needs_record(&old), "it would be tried for ever");
    assert_eq!(error(world.open_patiently(&old, "f", BOTH)), ServiceError::Expired);
    world.restart();
    let new = world.instance("a", 2);
    let mine = world.reclaim(&new, &handle, BOTH).unwrap();
    reclaim_lock(&world, &new, &mine, (0, 10), PERSIST).unwrap();
}

#[test]
fn a_record_removed_at_the_end_of_grace_reclaims_no_lock() {
    let mut world = World::new();
    let handle = *world.open_patiently(&world.instance("a", 1), "f", BOTH).unwrap().state.handle();
    world.open_patiently(&world.instance("b", 1), "f", BOTH).unwrap();
    world.restart();
    let idle = world.instance("a", 1);
    idle.session_started();
    let stop = Arc::new(Barrier::new(2));
    *world.disk.removal.lock().unwrap() = Some(stop.clone());
    let (service, later_ns) = (&world.service, world.now_ns.get() + 3 * LEASE_NS);
    let late = std::thread::scope(|scope| {
        let idle = &idle;
        scope.spawn(move || {
            idle.renew(later_ns);
            service.tick(later_ns);
        });
        stop.wait();
        let late = world.instance("b", 1);
        let taken = [idle, &late].map(|client| world.reclaim(client, &handle, BOTH).map(drop));
        stop.wait();
        assert_eq!(taken, [Err(ServiceError::WouldWait), Err(ServiceError::ReclaimBad)]);
        late
    });
    assert!(!world.service.clients.in_grace());
    assert_eq!(world.disk.owners(), [b""; 0]);
    for client in [&idle, &late] {
        assert_eq!(error(world.reclaim(client, &handle, BOTH)), ServiceError::NoGrace);
        world.open_patiently(client, "f", BOTH).unwrap();
    }
    assert_eq!(world.disk.owners(), [b"a", b"b"]);
}

#[test]
fn no_client_waits_for_dafs_clients_that_disconnected() {
    let mut world = World::new();
    let one = world.instance("a", 1);
    one.session_started();
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    world.close(&one, &mine);
    world.pass_with(&[&one], SECOND_NS);
    assert_eq!(world.disk.owners(), [b"a"]);
    one.session_ended();
    world.pass_with(&[&one], SECOND_NS);
    assert!(world.disk.owners().is_empty());
    // A client that leaves without a message is removed with its lease. A new instance replaces it.
    one.session_started();
    world.open_patiently(&one, "f", BOTH).unwrap();
    let again = world.instance("a", 9);
    assert!(world.disk.owners().is_empty());
    again.session_started();
    world.open_patiently(&again, "f", BOTH).unwrap();
    assert_eq!(world.disk.owners(), [b"a"]);
    world.pass(LEASE_NS + SECOND_NS);
    assert!(world.disk.owners().is_empty());
    world.restart();
    assert!(!world.service.clients.in_grace());
}
