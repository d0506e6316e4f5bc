//! Restarts: grace, reclaim, and the edge conditions of RFC 8881 8.4.2.1.

use crate::common::*;
use dafs_service::{
    ClientAddress, ExchangeId, Handle, Host, Identity, LockKind, LockRequest, Protection,
    RemoveMode, ServiceError, StateRef,
};
use dafs_store::MemoryStore;
use dafs_testkit::stores::layer::{Call, Layer, Layered};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, Mutex};

/// Makes a client with an open file.
fn holder(world: &World, name: &str, file: &str) -> Handle {
    let client = world.nfs(name);
    *world.open(&client, file, DENY_WRITE).unwrap().state.handle()
}

/// Restarts the server after client `a` has opened a file.
fn restarted() -> (World, Handle) {
    let mut world = World::new();
    let handle = holder(&world, "a", "f");
    world.restart();
    (world, handle)
}

#[test]
fn without_known_clients_there_is_no_grace() {
    let mut world = World::new();
    assert!(!world.service.clients.in_grace());
    world.exchange("a", 1);
    world.returning("b", 1);
    world.restart();
    assert!(!world.service.clients.in_grace());
    let client = world.nfs("a");
    world.open(&client, "f", READ).unwrap();
}

#[test]
fn after_an_orderly_end_nobody_waits_for_clients_that_held_nothing() {
    let mut world = World::new();
    let held = holder(&world, "a", "f");
    world.nfs("idle");
    let closed = world.nfs("closed");
    let opened = world.open(&closed, "g", READ).unwrap();
    world.close(&closed, &opened);
    world.service.clients.settle_records();
    assert_eq!(world.disk.owners(), [b"a".to_vec()]);
    world.restart();
    let a = world.returning("a", 1);
    world.reclaim(&a, &held, DENY_WRITE).unwrap();
    // A second shutdown before it has completed its reclaims: it may still reclaim.
    world.service.clients.settle_records();
    assert_eq!(world.disk.owners(), [b"a".to_vec()]);
    world.service.clients.reclaim_complete(&a).unwrap();
    assert!(!world.service.clients.in_grace());
}

#[test]
fn grace_ends_at_once_when_all_known_clients_are_back() {
    let mut world = World::new();
    let (one, two) = (holder(&world, "a", "f"), holder(&world, "b", "g"));
    world.restart();
    assert!(world.service.clients.in_grace());
    let a = world.returning("a", 1);
    let opened = world.reclaim(&a, &one, DENY_WRITE).unwrap();
    assert_eq!(opened.seqid, 1);
    // Reclaimed state allows I/O at once.
    let state = opened.state.reference();
    assert!(world.service.opens.io_file(world.caller(&a), &one, state, MODE_READ).is_ok());
    // Every operation that could conflict with reclaimed state has to wait, for DAFS too.
    let dafs = world.dafs("d");
    assert_eq!(error(world.open(&dafs, "h", READ)), ServiceError::Grace);
    assert_eq!(error(world.open(&a, "h", READ)), ServiceError::Grace);
    let anonymous =
        world.service.opens.io_file(world.caller(&dafs), &two, StateRef::ANONYMOUS, MODE_READ);
    assert_eq!(error(anonymous), ServiceError::Grace);
    let remove =
        world.service.remove(world.caller(&dafs), &world.root, b"g", RemoveMode::Unchecked);
    assert_eq!(error(remove), ServiceError::Grace);
    world.service.clients.reclaim_complete(&a).unwrap();
    assert!(world.service.clients.in_grace());
    assert_eq!(error(world.open(&a, "h", READ)), ServiceError::Grace);
    let b = world.returning("b", 1);
    world.reclaim(&b, &two, DENY_WRITE).unwrap();
    world.service.clients.reclaim_complete(&b).unwrap();
    assert!(!world.service.clients.in_grace());
    assert_eq!(error(world.open(&dafs, "f", WRITE)), ServiceError::ShareDenied);
    world.open(&dafs, "h", READ).unwrap();
    assert_eq!(error(world.reclaim(&b, &one, READ)), ServiceError::NoGrace);
}

#[test]
fn locks_are_reclaimed() {
    let (world, handle) = restarted();
    let a = world.returning("a", 1);
    let opened = world.reclaim(&a, &handle, BOTH).unwrap();
    let lock = |reclaim| {
        let request = lock_request(new_owner(&opened, b"l"), (0, 9), LockKind::Write);
        let request = LockRequest { reclaim, ..request };
        world.service.locks.lock(world.caller(&a), &handle, &request).map(|state| state.seqid)
    };
    assert_eq!(lock(false), Err(ServiceError::Grace.into()));
    assert_eq!(lock(true), Ok(1));
    world.service.clients.reclaim_complete(&a).unwrap();
    assert_eq!(lock(true), Err(ServiceError::NoGrace.into()));
    assert_eq!(lock(false), Ok(2));
}

#[test]
fn only_who_was_recorded_may_reclaim() {
    let (world, handle) = restarted();
    let stranger = world.returning("b", 1);
    assert_eq!(error(world.reclaim(&stranger, &handle, READ)), ServiceError::ReclaimBad);
    // A client that has itself restarted holds no state any more, and grace does not wait for it.
    let restarted = world.returning("a", 2);
    assert!(!world.service.clients.in_grace());
    assert_eq!(error(world.reclaim(&restarted, &handle, READ)), ServiceError::NoGrace);
}

#[test]
fn two_clients_cannot_reclaim_the_same() {
    let mut world = World::new();
    let handle = holder(&world, "a", "f");
    world.nfs("b");
    world.restart();
    let (a, b) = (world.returning("a", 1), world.returning("b", 1));
    world.reclaim(&a, &handle, DENY_WRITE).unwrap();
    assert_eq!(error(world.reclaim(&b, &handle, WRITE)), ServiceError::ReclaimConflict);
    let lock = |client, reclaim| {
        let opened = world.reclaim(client, &handle, READ).unwrap();
        let request = lock_request(new_owner(&opened, b"l"), (0, 9), LockKind::Read);
        let request = LockRequest { reclaim, ..request };
        world.service.locks.lock(world.caller(client), &handle, &request).map(|_| ())
    };
    assert_eq!(lock(&a, true), Ok(()));
    assert_eq!(lock(&b, true), Ok(()));
}

/// First edge condition: a client's lease ends, others get its lock and release it, and the server
/// restarts. The client must not reclaim.
#[test]
fn a_client_that_lost_its_state_does_not_reclaim_it() {
    let mut world = World::new();
    let handle = holder(&world, "away", "f");
    let other = world.nfs("other");
    world.pass_with(&[&other], LEASE_NS + 1);
    let opened = world.open_patiently(&other, "f", WRITE).unwrap();
    world.close(&other, &opened);
    world.restart();
    assert!(world.service.clients.in_grace());
    let away = world.returning("away", 1);
    assert_eq!(error(world.reclaim(&away, &handle, DENY_WRITE)), ServiceError::ReclaimBad);
}

/// Second edge condition: a client is absent for a whole grace period, others get its lock and
/// release it, and the server restarts again. The client must not reclaim.
#[test]
fn a_client_that_missed_a_grace_period_does_not_reclaim_in_the_next() {
    let mut world = World::new();
    let handle = holder(&world, "away", "f");
    world.nfs("other");
    world.restart();
    let other = world.returning("other", 1);
    world.service.clients.reclaim_complete(&other).unwrap();
    assert!(world.service.clients.in_grace());
    world.pass(LEASE_NS - 1);
    assert!(world.service.clients.in_grace());
    other.renew(world.now_ns.get());
    world.pass(SECOND_NS);
    assert!(!world.service.clients.in_grace());
    assert_eq!(world.disk.owners(), [b"other".to_vec()]);
    let opened = world.open(&other, "f", WRITE).unwrap();
    world.close(&other, &opened);
    world.restart();
    let away = world.returning("away", 1);
    assert_eq!(error(world.reclaim(&away, &handle, DENY_WRITE)), ServiceError::ReclaimBad);
    // A client that was present in between may reclaim.
    let other = world.returning("other", 1);
    world.reclaim(&other, &handle, WRITE).unwrap();
}

/// A server that crashes during grace has granted no new state. So the first run's clients may
/// still reclaim, including those that had reclaimed already.
#[test]
fn a_second_restart_within_grace_loses_nothing() {
    let mut world = World::new();
    let (one, two) = (holder(&world, "a", "f"), holder(&world, "b", "g"));
    world.restart();
    let a = world.returning("a", 1);
    world.reclaim(&a, &one, DENY_WRITE).unwrap();
    world.service.clients.reclaim_complete(&a).unwrap();
    world.restart();
    let (a, b) = (world.returning("a", 1), world.returning("b", 1));
    world.reclaim(&a, &one, DENY_WRITE).unwrap();
    world.reclaim(&b, &two, DENY_WRITE).unwrap();
}

/// Late: the grace period has ended while the client was reclaiming.
#[test]
fn reclaims_after_grace_are_refused_and_service_goes_on() {
    let (world, handle) = restarted();
    let a = world.returning("a", 1);
    a.renew(world.now_ns.get() + LEASE_NS);
    world.pass(LEASE_NS);
    assert!(!world.service.clients.in_grace());
    assert_eq!(error(world.reclaim(&a, &handle, READ)), ServiceError::NoGrace);
    assert_eq!(error(world.open(&a, "f", READ)), ServiceError::Grace);
    world.service.clients.reclaim_complete(&a).unwrap();
    world.open(&a, "f", READ).unwrap();
    assert_eq!(world.disk.owners(), [b"a".to_vec()]);
}

/// A late client may finish, but grace is bounded.
#[test]
fn grace_goes_on_while_somebody_is_reclaiming_and_at_most_twice_as_long() {
    let second = 1_000_000_000;
    let (world, handle) = restarted();
    world.pass(LEASE_NS - second);
    let a = world.returning("a", 1);
    let mut reclaims = 0;
    while world.service.clients.in_grace() {
        world.reclaim(&a, &handle, READ).unwrap();
        a.renew(world.now_ns.get());
        world.pass(second);
        reclaims += 1;
    }
    assert_eq!(reclaims, LEASE_NS / second + 1);
    let (world, handle) = restarted();
    world.pass(LEASE_NS - second);
    let a = world.returning("a", 1);
    world.reclaim(&a, &handle, READ).unwrap();
    world.pass(second);
    assert!(world.service.clients.in_grace());
    world.pass(2 * second);
    assert!(!world.service.clients.in_grace());
}

#[test]
fn grace_goes_on_while_records_cannot_be_removed() {
    let mut world = World::new();
    holder(&world, "a", "f");
    world.restart();
    world.disk.broken.store(true, Ordering::Relaxed);
    world.pass(LEASE_NS + 1);
    assert!(world.service.clients.in_grace());
    world.disk.broken.store(false, Ordering::Relaxed);
    world.pass(SECOND_NS);
    assert!(!world.service.clients.in_grace());
    assert_eq!(world.disk.owners(), [] as [Vec<u8>; 0]);
}

#[test]
fn stateless_callers_do_not_wait_for_grace() {
    let (world, handle) = restarted();
    let nobody = world.service.stateless_client().clone();
    let caller = world.caller(&nobody);
    assert!(world.service.opens.stateless_file(caller, &handle, MODE_WRITE).is_ok());
    let removed = world.service.remove(caller, &world.root, b"f", RemoveMode::Unchecked);
    assert!(removed.is_ok());
}

#[test]
fn a_clean_end_leaves_no_record() {
    let mut world = World::new();
    let client = world.nfs("a");
    client.session_ended();
    world.service.clients.destroy(client.key()).unwrap();
    world.restart();
    assert!(!world.service.clients.in_grace());
}

#[test]
fn no_client_waits_for_one_that_is_expired_or_disconnected() {
    let mut world = World::new();
    holder(&world, "a", "f");
    holder(&world, "b", "g");
    world.restart();
    let (a, b) = (world.returning("a", 1), world.returning("b", 1));
    a.session_ended();
    world.service.clients.destroy(a.key()).unwrap();
    assert!(world.service.clients.in_grace());
    world.service.clients.revoke(b.key()).unwrap();
    assert!(!world.service.clients.in_grace());
    world.restart();
    assert!(!world.service.clients.in_grace());
}

/// After a crash, clients wait for those that may have something to reclaim.
#[test]
fn no_client_waits_for_a_connected_one_that_has_held_nothing_for_a_lease() {
    let mut world = World::new();
    let idle = world.instance("idle", 1);
    idle.session_started();
    let opened = world.open_patiently(&idle, "f", READ).unwrap();
    world.pass_with(&[&idle], 2 * LEASE_NS);
    assert_eq!(world.disk.owners(), [b"idle"], "it holds an open");
    world.close(&idle, &opened);
    world.pass_with(&[&idle], SECOND_NS);
    world.pass_with(&[&idle], LEASE_NS);
    assert_eq!(world.disk.owners(), [b"idle"]);
    world.pass_with(&[&idle], SECOND_NS);
    assert!(world.disk.owners().is_empty());
    // The next record comes before the next state, and stays for a lease, too.
    let hasty = world.open(&idle, "f", READ).map(drop);
    assert_eq!(hasty, Err(ServiceError::WouldWait));
    let opened = world.open_patiently(&idle, "f", READ).unwrap();
    world.close(&idle, &opened);
    world.pass_with(&[&idle], SECOND_NS);
    assert_eq!(world.disk.owners(), [b"idle"]);
    world.pass_with(&[&idle], LEASE_NS + SECOND_NS);
    assert!(world.disk.owners().is_empty());
    world.restart();
    assert!(!world.service.clients.in_grace());
}

/// The disk fails for a moment.
#[test]
fn a_record_that_could_not_be_removed_is_removed_later() {
    let world = World::new();
    let idle = world.dafs("idle");
    idle.session_started();
    world.pass_with(&[&idle], SECOND_NS);
    world.disk.broken.store(true, Ordering::Relaxed);
    world.pass_with(&[&idle], LEASE_NS + SECOND_NS);
    world.disk.broken.store(false, Ordering::Relaxed);
    assert_eq!(world.disk.owners(), [b"idle"]);
    world.pass_with(&[&idle], SECOND_NS);
    world.pass_with(&[&idle], LEASE_NS + SECOND_NS);
    assert!(world.disk.owners().is_empty());
}

/// A store whose next creation of a file waits, once when it begins and once more before it goes on.
#[derive(Default)]
struct Creation(Mutex<Option<Arc<Barrier>>>);

impl Layer for Creation {
    fn before(&self, call: Call<'_>) -> dafs_store::Result<()> {
        let stop = match call {
            Call::Create(..) => self.0.lock().unwrap().take(),
            _ => None,
        };
        if let Some(stop) = stop {
            stop.wait();
            stop.wait();
        }
        Ok(())
    }
}

/// A retry would find the file, and fail if it must be new.
#[test]
fn an_open_that_makes_a_file_succeeds_when_the_record_is_removed_meanwhile() {
    let store = Arc::new(Layered::new(Arc::new(MemoryStore::default()), Creation::default()));
    let world = World::over(store.clone());
    let idle = world.dafs("idle");
    idle.session_started();
    world.pass_with(&[&idle], SECOND_NS);
    world.pass_with(&[&idle], LEASE_NS);
    assert_eq!(world.disk.owners(), [b"idle"]);
    let (stop, service) = (Arc::new(Barrier::new(2)), &world.service);
    *store.0.lock().unwrap() = Some(stop.clone());
    let now_ns = world.now_ns.get() + SECOND_NS;
    let opened = std::thread::scope(|scope| {
        scope.spawn(move || {
            stop.wait();
            service.tick(now_ns);
            stop.wait();
        });
        world.open(&idle, "f", READ).unwrap()
    });
    assert!(opened.created);
    assert_eq!(world.disk.removals.load(Ordering::Relaxed), 1);
    assert_eq!(world.disk.owners(), [b"idle"], "it holds an open");
}

/// The end of a job leaves many idle clients at once.
#[test]
fn records_of_many_that_hold_nothing_are_removed_together() {
    let world = World::new();
    let clients: Vec<_> = (0..20).map(|number| world.dafs(&number.to_string())).collect();
    clients.iter().for_each(|client| client.session_started());
    let present: Vec<_> = clients.iter().collect();
    world.pass_with(&present, SECOND_NS);
    assert_eq!(world.disk.owners().len(), 20);
    world.pass_with(&present, LEASE_NS + SECOND_NS);
    assert!(world.disk.owners().is_empty());
    assert_eq!(world.disk.removals.load(Ordering::Relaxed), 1);
}

/// A DAFS client that only reads asks for nothing new.
#[test]
fn grace_ends_when_all_dafs_clients_have_said_that_they_have_reclaimed() {
    let mut world = World::new();
    let handles = ["a", "b"].map(|name| {
        let client = world.dafs(name);
        *world.open_patiently(&client, name, READ).unwrap().state.handle()
    });
    world.restart();
    let (one, two, other) = (world.dafs("a"), world.dafs("b"), world.dafs("c"));
    world.reclaim(&one, &handles[0], READ).unwrap();
    world.service.clients.count_reclaimed(&one);
    world.pass_with(&[&one, &two, &other], SECOND_NS);
    assert!(world.service.clients.in_grace(), "the other one is awaited");
    assert!(!world.service.clients.grace_ends_soon());
    // Another session of the first one may be behind.
    world.reclaim(&one, &handles[0], READ).unwrap();
    world.service.clients.count_reclaimed(&one);
    assert!(!world.service.clients.grace_ends_soon());
    world.reclaim(&two, &handles[1], READ).unwrap();
    let (writes, removals) = (&world.disk.writes, &world.disk.removals);
    let before = (writes.load(Ordering::Relaxed), removals.load(Ordering::Relaxed));
    world.service.clients.count_reclaimed(&two);
    assert_eq!(before, (writes.load(Ordering::Relaxed), removals.load(Ordering::Relaxed)));
    assert!(world.service.clients.grace_ends_soon());
    assert_eq!(error(world.open_patiently(&other, "d", READ)), ServiceError::Grace);
    world.pass_with(&[&one, &two, &other], SECOND_NS);
    assert!(!world.service.clients.in_grace());
    world.open_patiently(&other, "d", READ).unwrap();
    world.service.clients.count_reclaimed(&one);
    assert_eq!(error(world.reclaim(&one, &handles[0], READ)), ServiceError::NoGrace);
    // Both may reclaim after the next restart.
    world.restart();
    for (name, handle) in ["a", "b"].iter().zip(&handles) {
        world.reclaim(&world.dafs(name), handle, READ).unwrap();
    }
}

#[test]
fn a_client_that_says_too_early_that_it_has_reclaimed_harms_itself_alone() {
    let mut world = World::new();
    let handles = ["hasty", "honest"].map(|name| {
        let client = world.dafs(name);
        *world.open_patiently(&client, name, DENY_WRITE).unwrap().state.handle()
    });
    let third = holder(&world, "nfs", "third");
    world.restart();
    let (hasty, stranger) = (world.dafs("hasty"), world.dafs("stranger"));
    // It speaks for no stranger, nor for a client of another protocol.
    let nfs = world.returning("nfs", 1);
    for client in [&hasty, &stranger, &nfs, &hasty] {
        world.service.clients.count_reclaimed(client);
    }
    world.pass_with(&[&hasty, &stranger, &nfs], SECOND_NS);
    assert!(world.service.clients.in_grace());
    let honest = world.dafs("honest");
    world.reclaim(&honest, &handles[1], DENY_WRITE).unwrap();
    world.service.clients.count_reclaimed(&honest);
    world.pass_with(&[&hasty, &stranger, &nfs, &honest], SECOND_NS);
    assert!(world.service.clients.in_grace(), "the NFS client has not completed its reclaims");
    world.reclaim(&nfs, &third, DENY_WRITE).unwrap();
    world.service.clients.reclaim_complete(&nfs).unwrap();
    assert!(!world.service.clients.in_grace());
    let late = world.reclaim(&hasty, &handles[0], DENY_WRITE);
    assert_eq!(error(late), ServiceError::NoGrace);
    world.open_patiently(&stranger, "hasty", WRITE).unwrap();
    for name in ["honest", "third"] {
        let opened = world.open_patiently(&stranger, name, WRITE);
        assert_eq!(error(opened), ServiceError::ShareDenied);
    }
}

/// A thousand clients that come back at once do not wait for a thousand writes.
#[test]
fn a_client_that_is_back_is_not_written_down_again() {
    let mut world = World::new();
    holder(&world, "a", "f");
    world.restart();
    let before = world.disk.writes.load(Ordering::Relaxed);
    world.nfs("a");
    assert_eq!(world.disk.writes.load(Ordering::Relaxed), before);
    assert_eq!(world.disk.owners(), [b"a"]);
    assert!(!world.service.clients.in_grace());
    // A client whose record was removed at the end of grace is recorded again.
    world.restart();
    let late = world.returning("a", 1);
    world.pass_with(&[&late], LEASE_NS / 2);
    world.pass_with(&[&late], LEASE_NS);
    assert!(world.disk.owners().is_empty());
    world.service.clients.reclaim_complete(&late).unwrap();
    assert_eq!(world.disk.owners(), [b"a"]);
}

/// A protected client stays protected as long as it may reclaim: it exchanges ids anew, and no
/// request without integrity takes its place.
#[test]
fn protection_lasts_over_a_restart() {
    let mut world = World::new();
    let exchange = |world: &World, verifier, protection| {
        let request = ExchangeId { protection, ..exchange_id("a", verifier) };
        world.service.clients.exchange_id(&request, world.now_ns.get())
    };
    let key = exchange(&world, 1, Protection::Demanded).unwrap().client.key();
    let client = world.service.clients.confirm(key, world.now_ns.get()).unwrap();
    client.session_started();
    world.service.clients.reclaim_complete(&client).unwrap();
    world.open(&client, "f", READ).unwrap();
    drop(client);
    world.restart();
    for verifier in [1, 2] {
        let refused = exchange(&world, verifier, Protection::None);
        assert_eq!(error(refused), ServiceError::ClientInUse);
    }
    let back = exchange(&world, 1, Protection::Integral).unwrap();
    assert!(!back.confirmed && !back.client.is_protected(), "it asks for protection again");
}

/// A client that gives the name of an awaited client must not end its right to reclaim.
#[test]
fn the_name_of_a_client_that_is_waited_for_is_kept_for_it() {
    let mut world = World::new();
    world.nfs("a");
    world.dafs("b");
    world.restart();
    let exchange = |address, identity: Option<Identity>, verifier| {
        let own = exchange_id("a", verifier);
        let identity = identity.unwrap_or(own.identity.clone());
        let request = ExchangeId { address, identity, ..own };
        world.service.clients.exchange_id(&request, world.now_ns.get())
    };
    let other = Identity { mechanism: "sys", principal: b"7".to_vec() };
    assert_eq!(error(exchange(from(2), None, 2)), ServiceError::ClientInUse);
    assert_eq!(error(exchange(from(1), Some(other.clone()), 1)), ServiceError::ClientInUse);
    // It used a privileged port, which other users of its host cannot.
    let unprivileged = ClientAddress { privileged: false, ..from(1) };
    assert_eq!(error(exchange(unprivileged, None, 2)), ServiceError::ClientInUse);
    let host = Host::default();
    let stolen = world.service.register_client(b"b", 2, other.clone(), host, world.now_ns.get());
    assert_eq!(error(stolen), ServiceError::ClientInUse);
    // The client itself may come from another address, or may have restarted on its host.
    exchange(from(2), None, 1).unwrap();
    exchange(from(1), None, 2).unwrap();
    // When grace waits for no client any more the name is free.
    world.pass(2 * LEASE_NS);
    assert!(!world.service.clients.in_grace());
    exchange(from(2), Some(other.clone()), 2).unwrap();
    world.service.register_client(b"b", 2, other, host, world.now_ns.get()).unwrap();
}
