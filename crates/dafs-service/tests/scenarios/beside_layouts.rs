//! State that depends on layouts, and is not granted to others before data servers have dropped
//! their authorisations: state of the holders, changes to undo, broken locks, fences.

use crate::common::*;
use crate::kept_locks::by_open;
use crate::layouts::{Cluster, recall_of};
use crate::spread::{Asked, FAILED, Spread};
use dafs_service::limits::SWEEP_EVERY_NS;
use dafs_service::{
    Caller, Client, Export, ExportOptions, FenceObject, FenceRight, FenceUpdate, LayoutMode,
    LockError, LockExtras, LockKind, LockRequest, Namespace, OpenRequest, Opened, Service,
    ServiceError, Squash, StateRef, Want, WantKind,
};
use dafs_store::{SetAttr, SetTime, Store, TimeSpec, Wait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn a_lost_client_blocks_others_until_no_data_server_honours_its_layout() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let lock = |client, opened, owner| world.lock(client, opened, owner, (0, 8), LockKind::Write);
    let (own, other) = (world.open(&one, "f", BOTH).unwrap(), world.open(&two, "f", BOTH).unwrap());
    lock(&one, &own, "a").unwrap();
    cluster.get(&one, &own, true).unwrap();
    cluster.store.away.store(true, Ordering::SeqCst);
    world.pass_with(&[&two], LEASE_NS + SECOND_NS);
    // Twice: the first request ends the lease, and the second finds no state of the lost client.
    for _ in 0..2 {
        assert_eq!(lock(&two, &other, "b"), Err(ServiceError::WouldWait.into()));
        world.pass_with(&[&two], SECOND_NS);
    }
    assert_eq!(service.counts().lock_ranges, 0, "the lost client's lock is gone");
    assert_eq!(error(world.open(&two, "f", DENY_WRITE)), ServiceError::WouldWait);
    let want = Want { kind: WantKind::Write, ..Want::default() };
    let request = OpenRequest { want, ..world.plain("f", "third", READ) };
    assert_eq!(error(service.opens.open(world.caller(&two), &request)), ServiceError::WouldWait);
    let handle = own.state.handle();
    let write = |client| {
        service.opens.io_file(world.caller(client), handle, StateRef::ANONYMOUS, MODE_WRITE)
    };
    assert!(matches!(write(&two), Err(ServiceError::WouldWait)));
    cluster.store.away.store(false, Ordering::SeqCst);
    world.pass_with(&[&two], SECOND_NS);
    write(&two).unwrap();
    lock(&two, &other, "b").unwrap();
    world.open(&two, "f", DENY_WRITE).unwrap();
}

#[test]
fn a_file_under_undo_has_no_layout_for_writing() {
    let cluster = Cluster::new();
    let (world, dir) = (&cluster.world, tempfile::tempdir().unwrap());
    world.service.locks.keep_undo_in(&dir.path().join("undo")).unwrap();
    let (one, two) = (world.nfs("a"), world.dafs("b"));
    let own = world.open(&one, "f", BOTH).unwrap();
    let granted = cluster.get(&one, &own, true).unwrap().state;
    let other = world.open(&two, "f", BOTH).unwrap();
    let lock = || {
        let extras = LockExtras { autorecover: true, ..LockExtras::default() };
        let request = by_open(&other, (0, u64::MAX), LockKind::Write);
        let request = LockRequest { extras, ..request };
        world.service.locks.lock(world.patient(&two), other.state.handle(), &request)
    };
    assert_eq!(lock(), Err(ServiceError::Delay.into()));
    assert_eq!(world.ear.take(), [recall_of(&one, &own, granted)]);
    assert_eq!(world.service.counts().lock_ranges, 0, "it is not had without");
    cluster.give_back(&one, &own, granted);
    lock().unwrap();
    assert_eq!(error(cluster.get(&one, &own, true)), ServiceError::LayoutUnavailable);
}

#[test]
fn a_broken_lock_keeps_everybody_away_at_data_servers_too() {
    let cluster = Cluster::new();
    let world = &cluster.world;
    let (one, two) = (world.nfs("a"), world.dafs("b"));
    let left = world.open(&two, "f", BOTH).unwrap();
    let lock = |client, opened: &Opened, (persist, repair)| {
        let extras = LockExtras { persist, repair, ..LockExtras::default() };
        let request = LockRequest { extras, ..by_open(opened, (0, 9), LockKind::Write) };
        world.service.locks.lock(world.patient(client), opened.state.handle(), &request)
    };
    lock(&two, &left, (true, false)).unwrap();
    let own = world.open(&one, "f", BOTH).unwrap();
    let granted = cluster.get(&one, &own, true).unwrap().state;
    world.pass_with(&[&one], LEASE_NS + SECOND_NS);
    let three = world.dafs("c");
    let other = world.open(&three, "f", BOTH).unwrap();
    cluster.store.away.store(true, Ordering::SeqCst);
    assert!(matches!(lock(&three, &other, (false, false)), Err(LockError::Broken(_))));
    let state = own.state.reference();
    assert_eq!(error(cluster.vouch("a", &own, state, false)), ServiceError::BadLayout);
    let test = world.service.state.check_state(world.caller(&one), None, granted);
    assert_eq!(test, Err(ServiceError::StaleStateId));
    // Nor does a repair begin before that.
    assert_eq!(lock(&three, &other, (true, true)), Err(ServiceError::Delay.into()));
    cluster.store.away.store(false, Ordering::SeqCst);
    world.pass_with(&[&one, &three], SECOND_NS);
    assert_eq!(error(cluster.get(&one, &own, true)), ServiceError::LayoutUnavailable);
    lock(&three, &other, (true, true)).unwrap();
}

#[test]
fn a_fence_holds_when_data_servers_have_forgotten_the_last_run() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let fence = |object| {
        let (right, update) = (FenceRight::Administrator, FenceUpdate::Install(&[b"dafs:x"]));
        cluster.service.set_fence(right, &object, update, Box::new(|| {}))
    };
    cluster.store.unsettled.store(true, Ordering::SeqCst);
    let handle = *opened.state.handle();
    for object in [FenceObject::File(handle), FenceObject::FileSystem(handle.fs)] {
        cluster.store.unsettled.store(true, Ordering::SeqCst);
        assert_eq!(error(fence(object)), ServiceError::Delay);
        cluster.store.unsettled.store(false, Ordering::SeqCst);
        fence(object).unwrap();
    }
}

/// The store asks about one file, at the next tick.
fn no_client_writes(cluster: &Cluster, opened: &Opened, present: &[&Arc<Client>]) -> bool {
    cluster.store.write_recalls.lock().unwrap().push((opened.state.handle().file, true));
    cluster.pass_with(present, SECOND_NS);
    cluster.store.without_writers.lock().unwrap().pop().unwrap()
}

#[test]
fn an_absent_client_blocks_writers_for_a_lease_at_most() {
    let (cluster, _, opened, _) = Cluster::with_writer();
    let two = cluster.nfs("b");
    cluster.pass_with(&[&two], LEASE_NS + SECOND_NS);
    assert!(!no_client_writes(&cluster, &opened, &[&two]));
    assert!(!no_client_writes(&cluster, &opened, &[&two]), "what it wrote is looked for first");
    assert!(no_client_writes(&cluster, &opened, &[&two]));
    assert_eq!(cluster.store.take_asked(), [Asked::Forget, Asked::RecoverSize]);
}

#[test]
fn a_client_served_by_a_returned_layout_counts_as_a_writer() {
    let cluster = Cluster::new();
    cluster.store.grant_ttl_seconds.store(8, Ordering::SeqCst);
    let one = cluster.nfs("a");
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    cluster.give_back(&one, &opened, granted);
    cluster.store.away.store(true, Ordering::SeqCst);
    assert!(!no_client_writes(&cluster, &opened, &[&one]));
    assert!(!no_client_writes(&cluster, &opened, &[&one]));
    cluster.store.away.store(false, Ordering::SeqCst);
    assert!(!no_client_writes(&cluster, &opened, &[&one]));
    assert!(no_client_writes(&cluster, &opened, &[&one]));
    assert_eq!(cluster.store.take_asked().last(), Some(&Asked::Forget));
}

#[test]
fn a_returned_layout_starts_the_search_for_the_size() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let one = world.nfs("a");
    let own = world.open(&one, "f", BOTH).unwrap();
    let state = own.state.reference();
    // A client that has only read, or done no I/O at all, has no writes to report.
    let granted = cluster.get(&one, &own, true).unwrap().state;
    cluster.vouch("a", &own, state, false).unwrap();
    cluster.give_back(&one, &own, granted);
    assert_eq!(cluster.store.take_asked(), []);
    let granted = cluster.get(&one, &own, true).unwrap().state;
    cluster.vouch("a", &own, state, true).unwrap();
    let whole = (0, u64::MAX);
    let caller = world.caller(&one);
    let returned =
        service.layouts.return_one(caller, own.state.handle(), granted, LayoutMode::Any, whole);
    assert_eq!(error(returned), ServiceError::WouldWait);
    cluster.give_back(&one, &own, granted);
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize], "before the answer");
    // Data servers that are away are asked later, and no caller waits.
    let granted = cluster.get(&one, &own, true).unwrap().state;
    cluster.vouch("a", &own, state, true).unwrap();
    cluster.store.away.store(true, Ordering::SeqCst);
    cluster.give_back(&one, &own, granted);
    world.open(&world.nfs("b"), "f", READ).unwrap();
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.store.take_asked();
    world.fence();
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
    // A close ends the layout.
    let other = world.open(&one, "f", BOTH).unwrap();
    cluster.get(&one, &other, true).unwrap();
    cluster.vouch("a", &other, other.state.reference(), true).unwrap();
    world.close(&one, &other);
    world.fence();
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
    assert_eq!(service.counts().fenced_layouts, 0);
}

#[test]
fn a_write_that_failed_is_over_when_its_layout_has_been_given_back() {
    let (cluster, one, own, granted) = Cluster::with_writer();
    let (world, service) = (&cluster.world, &cluster.service);
    let two = world.nfs("b");
    let handle = own.state.handle();
    service.layouts.report(world.patient(&one), handle, granted, &[FAILED]).unwrap();
    cluster.store.take_asked();
    cluster.store.away.store(true, Ordering::SeqCst);
    cluster.give_back(&one, &own, granted);
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    // Until that is certain, the file is not opened for others, and its writer gets no layout.
    assert_eq!(error(world.open(&two, "f", READ)), ServiceError::WouldWait);
    assert_eq!(error(cluster.get(&one, &own, true)), ServiceError::Delay);
    cluster.store.away.store(false, Ordering::SeqCst);
    world.fence();
    cluster.get(&one, &own, true).unwrap();
}

#[test]
fn a_time_that_its_writer_gave_a_file_stays_when_it_tells_what_it_wrote() {
    let (cluster, one, own, granted) = Cluster::with_writer();
    let (world, service) = (&cluster.world, &cluster.service);
    let (handle, state) = (own.state.handle(), own.state.reference());
    let old = TimeSpec { seconds: 1_000_000, nanoseconds: 5 };
    let give_time = || {
        let change = SetAttr { mtime: Some(SetTime::To(old)), ..SetAttr::default() };
        service.setattr(world.patient(&one), handle, StateRef::ANONYMOUS, &change).unwrap();
    };
    let mtime = || service.getattr(handle).unwrap().mtime;
    cluster.vouch("a", &own, state, true).unwrap();
    give_time();
    cluster.commit(&one, &own, granted, Some(10)).unwrap();
    assert_eq!(mtime(), old);
    // A later write counts.
    give_time();
    cluster.vouch("a", &own, state, true).unwrap();
    cluster.commit(&one, &own, granted, Some(20)).unwrap();
    assert_ne!(mtime(), old);
}

#[test]
fn a_time_given_to_a_file_is_not_put_over_what_came_after() {
    let cluster = Cluster::new();
    cluster.store.grant_ttl_seconds.store(5, Ordering::SeqCst);
    let (world, service) = (&cluster.world, &cluster.service);
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let own = world.open(&one, "f", BOTH).unwrap();
    let (handle, state) = (own.state.handle(), own.state.reference());
    let granted = cluster.get(&one, &own, true).unwrap().state;
    let time = |seconds| TimeSpec { seconds, nanoseconds: 5 };
    let give_time = |caller, seconds| {
        let mtime = Some(SetTime::To(time(seconds)));
        let change = SetAttr { mtime, ..SetAttr::default() };
        service.setattr(caller, handle, StateRef::ANONYMOUS, &change)
    };
    let mtime = || service.getattr(handle).unwrap().mtime;
    cluster.vouch("a", &own, state, true).unwrap();
    // Data servers with cached authorisations are asked to drop them first.
    assert_eq!(error(give_time(world.caller(&one), 1)), ServiceError::WouldWait);
    assert_eq!(cluster.store.take_asked(), []);
    give_time(world.patient(&one), 1).unwrap();
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    cluster.commit(&one, &own, granted, Some(10)).unwrap();
    assert_eq!(mtime(), time(1));
    // If they cannot be reached, a write that they admit may come after the time was set.
    cluster.store.away.store(true, Ordering::SeqCst);
    give_time(world.patient(&one), 2).unwrap();
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.commit(&one, &own, granted, Some(20)).unwrap();
    assert_ne!(mtime(), time(2));
    // The time is not set over one that another client has set since.
    give_time(world.patient(&one), 3).unwrap();
    give_time(world.patient(&two), 4).unwrap();
    cluster.commit(&one, &own, granted, Some(30)).unwrap();
    assert!(![time(3), time(4)].contains(&mtime()));
}

#[test]
fn a_time_given_to_a_file_stays_when_what_was_written_is_looked_for_later() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let one = world.nfs("a");
    let own = world.open(&one, "f", BOTH).unwrap();
    let handle = *own.state.handle();
    cluster.get(&one, &own, true).unwrap();
    cluster.vouch("a", &own, own.state.reference(), true).unwrap();
    let old = TimeSpec { seconds: 1_000_000, nanoseconds: 5 };
    let change = SetAttr { mtime: Some(SetTime::To(old)), ..SetAttr::default() };
    service.setattr(world.patient(&one), &handle, StateRef::ANONYMOUS, &change).unwrap();
    cluster.store.touches.store(true, Ordering::SeqCst);
    world.close(&one, &own);
    world.fence();
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
    assert_eq!(service.getattr(&handle).unwrap().mtime, old);
}

#[test]
fn a_file_reaches_as_far_as_it_was_written_before_its_lock_is_given_up() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let lock = |client, opened: &Opened| {
        world.lock(client, opened, "owner", (0, 8), LockKind::Write).unwrap()
    };
    let unlock = |caller, opened: &Opened, lock| {
        service.locks.unlock(caller, opened.state.handle(), lock, 0, 8)
    };
    let own = world.open(&one, "f", BOTH).unwrap();
    let locked = lock(&one, &own);
    cluster.get(&one, &own, true).unwrap();
    assert_eq!(error(unlock(world.caller(&one), &own, locked)), ServiceError::WouldWait);
    cluster.vouch("a", &own, own.state.reference(), true).unwrap();
    cluster.store.take_asked();
    unlock(world.patient(&one), &own, locked).unwrap();
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
    assert_eq!(service.counts().lock_ranges, 0);
    // A layout of another client does not matter.
    let other = world.open(&two, "f", BOTH).unwrap();
    let locked = lock(&two, &other);
    unlock(world.caller(&two), &other, locked).unwrap();
}

/// A client that has written to a file under a lock, and another one that waits for the lock.
struct Appending {
    cluster: Cluster,
    one: Arc<Client>,
    own: Opened,
    locked: StateRef,
    layout: StateRef,
    two: Arc<Client>,
    other: Opened,
}

impl Appending {
    /// Data servers go away after its write.
    fn begin() -> Self {
        let cluster = Cluster::new();
        let world = &cluster.world;
        let (one, two) = (world.nfs("a"), world.nfs("b"));
        let own = world.open(&one, "f", BOTH).unwrap();
        let other = world.open(&two, "f", BOTH).unwrap();
        let locked = world.lock(&one, &own, "owner", (0, 8), LockKind::Write).unwrap();
        let layout = cluster.get(&one, &own, true).unwrap().state;
        cluster.vouch("a", &own, own.state.reference(), true).unwrap();
        cluster.store.away.store(true, Ordering::SeqCst);
        Self { cluster, one, own, locked, layout, two, other }
    }

    fn unlock(&self) {
        let (world, handle) = (&self.cluster.world, self.own.state.handle());
        world.service.locks.unlock(world.patient(&self.one), handle, self.locked, 0, 8).unwrap();
        assert_eq!(world.service.counts().lock_ranges, 0);
    }

    fn lock_of_the_other(&self) -> Result<StateRef, LockError> {
        let world = &self.cluster.world;
        lock(&world.service, world.patient(&self.two), &self.other)
    }

    /// The file is not locked before its end is known, and then at once.
    fn is_waited_for(&self) {
        assert_eq!(self.lock_of_the_other(), Err(ServiceError::Delay.into()));
        self.cluster.store.away.store(false, Ordering::SeqCst);
        self.cluster.store.take_asked();
        self.lock_of_the_other().unwrap();
        assert_eq!(self.cluster.store.take_asked(), [Asked::RecoverSize]);
        assert_eq!(self.cluster.service.counts().fenced_layouts, 0);
    }
}

fn lock(service: &Service, caller: Caller<'_>, opened: &Opened) -> Result<StateRef, LockError> {
    let request = lock_request(new_owner(opened, b"other"), (0, 8), LockKind::Write);
    service.locks.lock(caller, opened.state.handle(), &request)
}

#[test]
fn of_all_who_want_to_lock_a_file_one_asks_where_it_ends() {
    let appending = Appending::begin();
    appending.unlock();
    let Appending { cluster, two, other, .. } = &appending;
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.store.take_asked();
    let (service, caller) = (&cluster.service, cluster.patient(two));
    let gate = cluster.store.hold_next();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || lock(service, caller, other));
        gate.wait();
        let second = appending.lock_of_the_other();
        let asked = cluster.store.take_asked();
        gate.wait();
        assert_eq!(second, Err(ServiceError::Delay.into()));
        assert_eq!(asked, [Asked::RecoverSize]);
        first.join().unwrap().unwrap();
    });
    assert_eq!(cluster.store.take_asked(), []);
}

#[test]
fn the_next_lock_waits_for_data_servers_and_the_unlock_does_not() {
    let appending = Appending::begin();
    appending.unlock();
    appending.is_waited_for();
}

#[test]
fn a_layout_given_back_while_data_servers_are_away_lets_nobody_lock_the_file_before_its_end_is_known()
 {
    let appending = Appending::begin();
    let Appending { cluster, one, own, layout, .. } = &appending;
    cluster.give_back(one, own, *layout);
    appending.unlock();
    appending.is_waited_for();
}

#[test]
fn no_client_locks_by_delegation_before_the_size_is_known() {
    let appending = Appending::begin();
    let Appending { cluster, one, own, two, other, .. } = &appending;
    appending.unlock();
    let world = &cluster.world;
    world.close(one, own);
    world.close(two, other);
    let want = Want { kind: WantKind::Write, ..Want::default() };
    let request = OpenRequest { want, ..world.plain("f", "third", BOTH) };
    let opened = world.service.opens.open(world.patient(two), &request).unwrap();
    assert!(opened.delegation.is_err());
    cluster.store.away.store(false, Ordering::SeqCst);
    world.pass_with(&[one, two], 20 * SECOND_NS);
    world.close(two, &opened);
    let opened = world.service.opens.open(world.patient(two), &request).unwrap();
    assert!(opened.delegation.is_ok());
}

#[test]
fn data_written_by_a_cached_grant_is_looked_for() {
    let cluster = Cluster::new();
    cluster.store.grant_ttl_seconds.store(8, Ordering::SeqCst);
    let one = cluster.nfs("a");
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    cluster.vouch("a", &opened, opened.state.reference(), true).unwrap();
    cluster.give_back(&one, &opened, granted);
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
    // Data servers cache their authorisations.
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    cluster.give_back(&one, &opened, granted);
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
    cluster.pass_with(&[&one], 20 * SECOND_NS);
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    cluster.give_back(&one, &opened, granted);
    assert_eq!(cluster.store.take_asked(), []);
}

#[test]
fn a_file_reaches_as_far_as_it_was_written_before_its_delegation_is_given_up() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let one = world.nfs("a");
    let want = Want { kind: WantKind::Write, ..Want::default() };
    let request = OpenRequest { want, ..world.plain("f", "owner", BOTH) };
    let opened = service.opens.open(world.caller(&one), &request).unwrap();
    let delegated = opened.delegation.as_ref().unwrap().state;
    cluster.get(&one, &opened, true).unwrap();
    let handle = opened.state.handle();
    let returned = |caller| service.delegations.take_back(caller, Some(handle), delegated);
    assert_eq!(error(returned(world.caller(&one))), ServiceError::WouldWait);
    assert_eq!(cluster.store.take_asked(), []);
    returned(world.patient(&one)).unwrap();
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
}

/// Overtakes late writes, with a client that may wait and one that may not.
fn overtake(cluster: &Cluster, client: &Arc<Client>, opened: &Opened) -> Result<(), ServiceError> {
    let (world, handle) = (&cluster.world, opened.state.handle());
    let overtake = |wait| {
        let moment = (world.now_ns.get(), wait);
        world.service.layouts.overtake_late_writes(client, moment, handle, (0, 10))
    };
    let (quick, patient) = (overtake(Wait::Never), overtake(Wait::Allowed));
    assert!(quick == patient || quick == Err(ServiceError::WouldWait), "{quick:?} {patient:?}");
    patient
}

#[test]
fn an_abandoned_write_does_not_follow_its_replacement() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    let own = cluster.open(&one, "f", BOTH).unwrap();
    let state = own.state.reference();
    let age = |write| cluster.vouch("a", &own, state, write);
    // A client that never had a layout has no writes under way.
    assert_eq!(overtake(&cluster, &one, &own), Ok(()));
    cluster.get(&one, &own, true).unwrap();
    assert_eq!(age(true), Ok(None), "nothing was written through the server since");
    cluster.store.away.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(overtake(&cluster, &one, &own), Err(ServiceError::Delay));
        assert_eq!(cluster.store.take_asked(), [Asked::Forget], "it may go by what it was told");
    }
    cluster.store.away.store(false, Ordering::SeqCst);
    assert_eq!(overtake(&cluster, &one, &own), Ok(()));
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    assert_eq!(overtake(&cluster, &one, &own), Ok(()));
    assert_eq!(cluster.store.take_asked(), [], "it was told nothing since");
    cluster.pass_with(&[&one], 5 * SECOND_NS);
    assert_eq!((age(false), age(true)), (Ok(None), Ok(Some(Duration::from_secs(5)))));
    assert_eq!(overtake(&cluster, &one, &own), Ok(()));
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    assert_eq!(age(true), Ok(Some(Duration::ZERO)));
}

#[test]
fn an_abandoned_write_stays_so_for_later_layouts_and_opens() {
    let (cluster, one, own, granted) = Cluster::with_writer();
    let two = cluster.nfs("b");
    cluster.give_back(&one, &own, granted);
    // A write that no data server has asked about yet may be under way.
    assert_eq!(overtake(&cluster, &one, &own), Ok(()));
    assert_eq!(cluster.store.take_asked(), []);
    cluster.pass_with(&[&one, &two], SECOND_NS);
    let age = |owner, opened: &Opened| cluster.vouch(owner, opened, opened.state.reference(), true);
    cluster.get(&one, &own, true).unwrap();
    assert_eq!(age("a", &own), Ok(Some(Duration::from_secs(1))));
    cluster.close(&one, &own);
    cluster.fence();
    let again = cluster.open(&one, "f", BOTH).unwrap();
    assert_eq!(overtake(&cluster, &one, &again), Ok(()), "all was written before the close");
    cluster.get(&one, &again, true).unwrap();
    assert_eq!(age("a", &again), Ok(Some(Duration::from_secs(1))));
    // Other clients do not wait.
    let other = cluster.open(&two, "f", BOTH).unwrap();
    assert_eq!(overtake(&cluster, &two, &other), Ok(()));
    cluster.get(&two, &other, true).unwrap();
    assert_eq!(age("b", &other), Ok(None));
    cluster.store.take_asked();
    assert_eq!(overtake(&cluster, &two, &other), Ok(()));
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
}

/// As while the keys of handles change.
#[test]
fn an_abandoned_write_by_an_earlier_name_does_not_follow_its_replacement() {
    let (cluster, one, own, granted) = Cluster::with_writer();
    let two = cluster.nfs("b");
    let age = || cluster.vouch("a", &own, own.state.reference(), true);
    assert_eq!(age(), Ok(None));
    // The other client has the new name, and this one still has the earlier one.
    cluster.store.renamed.store(true, Ordering::SeqCst);
    let other = cluster.open(&two, "f", BOTH).unwrap();
    cluster.get(&two, &other, true).unwrap();
    cluster.store.take_asked();
    assert_eq!(overtake(&cluster, &one, &own), Ok(()));
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    assert_eq!(age(), Ok(Some(Duration::ZERO)));
    // All layouts are asked back, once.
    let now_ns = cluster.world.now_ns.get();
    drop(cluster.world.ear.take());
    for recalls in [2, 0] {
        cluster.world.service.layouts.renew_all(now_ns);
        let told = cluster.world.ear.take();
        assert_eq!(told.len(), recalls);
        assert!(recalls == 0 || told.contains(&recall_of(&one, &own, granted)));
    }
}

#[test]
fn late_writes_keep_nobody_waiting_but_who_has_sent_them() {
    let (cluster, one, own, _) = Cluster::with_writer();
    let two = cluster.nfs("b");
    assert_eq!(cluster.vouch("a", &own, own.state.reference(), true), Ok(None));
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(overtake(&cluster, &one, &own), Err(ServiceError::Delay));
    let other = cluster.open(&two, "f", BOTH).unwrap();
    cluster.get(&two, &other, true).unwrap();
    cluster.store.take_asked();
    cluster.fence();
    assert_eq!(cluster.store.take_asked(), [Asked::Forget], "it is asked for until it is sure");
    assert_eq!(overtake(&cluster, &one, &own), Err(ServiceError::Delay));
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.fence();
    cluster.store.take_asked();
    assert_eq!(overtake(&cluster, &one, &own), Ok(()));
    assert_eq!(cluster.store.take_asked(), []);
}

#[test]
fn a_store_that_does_not_answer_keeps_no_other_from_being_asked() {
    let mut cluster = Cluster::new();
    let others: Arc<dyn Store> = Spread::second();
    let silent: Arc<dyn Store> = cluster.store.clone();
    let options = || ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let exports = vec![
        Export::new("a", silent.clone(), options()),
        Export::new("b", others.clone(), options()),
    ];
    let roots: Vec<_> = exports.iter().map(Export::root).collect();
    cluster.service.replace_namespace(Namespace::new(exports).unwrap());
    let one = cluster.nfs("a");
    // Data servers of both stores drop the authorisations for the client's writes.
    let files = roots.iter().map(|root| {
        cluster.world.root = *root;
        let own = cluster.open(&one, "f", BOTH).unwrap();
        cluster.get(&one, &own, true).unwrap();
        cluster.vouch("a", &own, own.state.reference(), true).unwrap();
        own
    });
    let files: Vec<Opened> = files.collect();
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(overtake(&cluster, &one, &files[0]), Err(ServiceError::Delay));
    let gate = cluster.store.hold_next();
    let service = &cluster.service;
    std::thread::scope(|scope| {
        scope.spawn(|| service.layouts.fence_some(&silent));
        gate.wait();
        let overtaken = overtake(&cluster, &one, &files[1]);
        gate.wait();
        assert_eq!(overtaken, Ok(()));
    });
}

#[test]
fn setting_the_mtime_waits_for_no_data_server() {
    let cluster = Cluster::new();
    let world = &cluster.world;
    let sweeps = || cluster.store.sweeps.load(Ordering::SeqCst);
    world.pass(2 * SWEEP_EVERY_NS);
    assert_eq!(sweeps(), 0, "that is for a thread of its own");
    for _ in 0..2 {
        world.service.sweep_stores(world.now_ns.get());
    }
    assert_eq!(sweeps(), 1, "once in a while");
}
