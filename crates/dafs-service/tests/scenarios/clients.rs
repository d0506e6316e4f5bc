//! EXCHANGE_ID in its nine cases, confirmation, destruction, leases and courtesy.

use crate::common::*;
use crate::kept_locks::{PERSIST, try_lock};
use dafs_service::{
    ClientAddress, ClientKey, ExchangeId, Front, Handle, Host, Identity, LockKind, Newcomer,
    Protection, ServiceError, StateRef,
};
use dafs_store::Wait;
use std::sync::{Arc, Barrier};

fn other_principal() -> Identity {
    Identity { mechanism: "sys", principal: b"7".to_vec() }
}

/// RFC 8881 18.35.5.
#[test]
fn exchange_id_in_nine_cases() {
    let world = World::new();
    let exchange = |request: &ExchangeId<'_>| {
        let now_ns = world.now_ns.get();
        let exchanged = world.service.clients.exchange_id(request, now_ns);
        exchanged.map(|exchanged| (exchanged.client.key(), exchanged.confirmed))
    };
    let (new, restarted) = (exchange_id("a", 1), exchange_id("a", 2));
    let update = ExchangeId { update: true, ..new.clone() };
    // Case 7: nothing to update.
    assert_eq!(exchange(&update), Err(ServiceError::NoClient));
    // Case 1: a new name. Case 4: the unconfirmed record is replaced.
    let (first, confirmed) = exchange(&new).unwrap();
    assert!(!confirmed);
    assert_eq!(exchange(&update), Err(ServiceError::NoClient));
    let (key, confirmed) = exchange(&new).unwrap();
    assert!(!confirmed && key != first);
    assert_eq!(error(world.service.clients.confirm(first, 0)), ServiceError::StaleClientId);
    let client = world.service.clients.confirm(key, 0).unwrap();
    // Case 2: the same again. Case 6: an update.
    assert_eq!(exchange(&new), Ok((key, true)));
    assert_eq!(exchange(&update), Ok((key, true)));
    // Cases 8 and 9: updates by another client.
    let by_restarted = ExchangeId { update: true, ..restarted.clone() };
    assert_eq!(exchange(&by_restarted), Err(ServiceError::NotSame));
    let by_other = ExchangeId { identity: other_principal(), ..update.clone() };
    assert_eq!(exchange(&by_other), Err(ServiceError::NotPrincipal));
    // Case 5: the client has restarted. The old record lives until the new one is confirmed.
    let (second, confirmed) = exchange(&restarted).unwrap();
    assert!(!confirmed && second != key);
    assert_eq!(exchange(&new), Ok((key, true)));
    assert!(!client.is_gone());
    // A confirmation is idempotent.
    let client = world.service.clients.confirm(second, 0).unwrap();
    assert!(Arc::ptr_eq(&client, &world.service.clients.confirm(second, 0).unwrap()));
    assert_eq!(error(world.service.clients.find(key)), ServiceError::StaleClientId);
    assert_eq!(world.service.counts().clients, 1);
}

/// RFC 8881 2.10.8.3: the protection of a record does not change once it is confirmed.
#[test]
fn a_protected_record_yields_to_protected_requests_of_its_principal_alone() {
    let world = World::new();
    let exchange = |protection, request: &ExchangeId<'_>| {
        let request = ExchangeId { protection, ..request.clone() };
        let exchanged = world.service.clients.exchange_id(&request, world.now_ns.get());
        exchanged.map(|exchanged| (exchanged.client.key(), exchanged.confirmed))
    };
    let (new, restarted) = (exchange_id("a", 1), exchange_id("a", 2));
    let (key, _) = exchange(Protection::Demanded, &new).unwrap();
    let client = world.service.clients.confirm(key, 0).unwrap();
    client.session_started();
    assert!(client.is_protected());
    let wrong = Err(ServiceError::WrongCredential);
    let update = ExchangeId { update: true, ..new.clone() };
    for request in [&new, &restarted, &update] {
        assert_eq!(exchange(Protection::None, request), wrong, "{request:?}");
    }
    let by_other = ExchangeId { identity: other_principal(), ..new.clone() };
    for protection in [Protection::None, Protection::Integral, Protection::Demanded] {
        assert_eq!(exchange(protection, &by_other), Err(ServiceError::ClientInUse));
        let update = ExchangeId { update: true, ..by_other.clone() };
        assert_eq!(exchange(protection, &update), wrong);
    }
    assert!(!client.is_gone() && client.is_protected());
    // Its own requests find it, and do not lower its protection.
    for request in [&new, &update] {
        assert_eq!(exchange(Protection::Integral, request), Ok((key, true)));
    }
    assert!(client.is_protected());
    // Without protection at first, it stays without.
    let (plain, _) = exchange(Protection::None, &exchange_id("b", 1)).unwrap();
    world.service.clients.confirm(plain, 0).unwrap();
    assert_eq!(exchange(Protection::Demanded, &exchange_id("b", 1)), Ok((plain, true)));
    assert!(!world.service.clients.find(plain).unwrap().is_protected());
    // When its lease is over, the name is free.
    world.pass(2 * LEASE_NS);
    assert!(exchange(Protection::None, &restarted).is_ok());
}

/// RFC 8881 18.35.5 case 3.
#[test]
fn a_name_in_use_belongs_to_its_principal() {
    let world = World::new();
    let client = world.nfs("a");
    let other = ExchangeId { identity: other_principal(), ..exchange_id("a", 1) };
    let now_ns = world.now_ns.get();
    let exchange =
        |now_ns| world.service.clients.exchange_id(&other, now_ns).map(|it| it.client.key());
    assert_eq!(exchange(now_ns), Err(ServiceError::ClientInUse));
    client.session_ended();
    let opened = world.open(&client, "f", READ).unwrap();
    assert_eq!(exchange(now_ns), Err(ServiceError::ClientInUse));
    world.close(&client, &opened);
    let key = exchange(now_ns).unwrap();
    assert!(client.is_gone() && key != client.key());
    assert_eq!(world.disk.owners(), [] as [Vec<u8>; 0]);
}

/// State that is kept by courtesy included.
#[test]
fn a_claim_from_elsewhere_takes_no_name_that_was_proven() {
    let proven = [
        Identity { mechanism: "gss", principal: b"anna@R".to_vec() },
        Identity::of_certificate(b"anna@example.org"),
    ];
    for identity in proven {
        let world = World::new();
        let exchange = |request: &ExchangeId<'_>| {
            let exchanged = world.service.clients.exchange_id(request, world.now_ns.get());
            exchanged.map(|exchanged| exchanged.client)
        };
        let own = ExchangeId { identity, ..exchange_id("a", 1) };
        let key = exchange(&own).unwrap().key();
        let client = world.service.clients.confirm(key, world.now_ns.get()).unwrap();
        world.service.clients.reclaim_complete(&client).unwrap();
        let claim = exchange_id("a", 1);
        let elsewhere = ExchangeId { address: from(2), ..claim.clone() };
        // It has neither a session nor state.
        assert_eq!(error(exchange(&elsewhere)), ServiceError::ClientInUse);
        world.open(&client, "f", BOTH).unwrap();
        world.pass(2 * LEASE_NS);
        assert_eq!(error(exchange(&elsewhere)), ServiceError::ClientInUse);
        assert!(!client.is_gone());
        assert_eq!(exchange(&own).unwrap().key(), key);
        // Its own host may have given up proofs.
        world.pass(2 * LEASE_NS);
        assert_ne!(exchange(&claim).unwrap().key(), key);
        assert!(client.is_gone());
    }
}

/// Any client can give the name and the user of another one.
#[test]
fn a_name_in_use_belongs_to_the_addresses_of_its_client() {
    let world = World::new();
    let client = world.nfs("a");
    world.open(&client, "f", DENY_WRITE).unwrap();
    let exchange = |verifier, address| {
        let request = ExchangeId { address, ..exchange_id("a", verifier) };
        let exchanged = world.service.clients.exchange_id(&request, world.now_ns.get());
        exchanged.map(|exchanged| (exchanged.client.key(), exchanged.confirmed))
    };
    assert_eq!(exchange(2, from(2)), Err(ServiceError::ClientInUse));
    // Another user of its host is not the client either, which uses a privileged port.
    let unprivileged = ClientAddress { privileged: false, ..from(1) };
    assert_eq!(exchange(2, unprivileged), Err(ServiceError::ClientInUse));
    assert!(!client.is_gone());
    // A client that moves proves its identity by its verifier, and its new address is known after
    // it has used a session.
    assert_eq!(exchange(1, from(2)), Ok((client.key(), true)));
    assert!(!client.calls_from(&from(2)));
    client.add_address(from(2));
    assert!(!exchange(2, from(2)).unwrap().1);
    assert!(!exchange(2, from(1)).unwrap().1);
    assert_eq!(exchange(2, from(3)), Err(ServiceError::ClientInUse));
    // A client that restarts at another address gets its name at the end of its lease.
    world.pass(LEASE_NS + 1);
    assert!(!exchange(2, from(3)).unwrap().1);
    assert!(client.is_gone());
    assert_eq!(world.service.counts().opens, 0);
}

#[test]
fn addresses_of_a_client_are_bounded() {
    let world = World::new();
    let client = world.nfs("a");
    for last in 1..=dafs_service::limits::CLIENT_ADDRESSES_MAX as u8 + 1 {
        client.add_address(from(last));
        client.add_address(from(last));
    }
    assert!(!client.calls_from(&from(1)));
    assert!(client.calls_from(&from(2)));
}

/// A key reveals no other keys.
#[test]
fn keys_of_clients_are_not_in_a_row() {
    let world = World::new();
    let keys: Vec<u64> =
        ["a", "b", "c"].iter().map(|name| world.exchange(name, 1).key().0).collect();
    for pair in keys.windows(2) {
        assert!(pair[0].abs_diff(pair[1]) > 1 << 16, "{keys:x?}");
    }
}

#[test]
fn the_name_of_an_absent_client_may_be_taken_with_its_state() {
    let world = World::new();
    let client = world.nfs("a");
    world.open(&client, "f", DENY_WRITE).unwrap();
    world.pass(LEASE_NS + 1);
    let other = ExchangeId { identity: other_principal(), ..exchange_id("a", 1) };
    let exchange = || world.service.clients.exchange_id(&other, world.now_ns.get());
    world.disk.broken.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(exchange().map(|_| ()), Err(ServiceError::Delay));
    assert!(!client.is_gone());
    world.disk.broken.store(false, std::sync::atomic::Ordering::Relaxed);
    exchange().unwrap();
    assert!(client.is_gone());
    assert_eq!(world.service.counts().opens, 0);
    assert_eq!(world.disk.owners(), [] as [Vec<u8>; 0]);
}

#[test]
fn the_state_of_a_restarted_client_is_released_at_its_confirmation() {
    let world = World::new();
    let old = world.nfs("a");
    let opened = world.open(&old, "f", DENY_WRITE).unwrap();
    world.lock(&old, &opened, "l", (0, 10), LockKind::Read).unwrap();
    let new = world.exchange("a", 2);
    assert_eq!(world.service.counts().opens, 1);
    let new = world.service.clients.confirm(new.key(), world.now_ns.get()).unwrap();
    let counts = world.service.counts();
    assert_eq!((counts.opens, counts.locks, counts.lock_ranges), (0, 0, 0));
    assert_eq!(world.ear.take(), [Told::Gone(old.key())]);
    assert!(old.is_gone() && !new.is_gone());
    let used = world.service.opens.io_file(
        world.caller(&old),
        opened.state.handle(),
        opened.state.reference(),
        MODE_READ,
    );
    assert_eq!(error(used), ServiceError::Expired);
    assert_eq!(error(world.open(&old, "f", READ)), ServiceError::Expired);
}

/// A registration may wait for the disk while that of the next instance arrives and goes first.
#[test]
fn a_registration_replaces_none_that_arrived_after_it() {
    let world = World::new();
    let register = |verifier, arrival| {
        let identity = Identity { mechanism: "none", principal: Vec::new() };
        let newcomer = Newcomer { name: b"c", verifier, identity, host: Host::default(), arrival };
        let registered = world.service.register_newcomer(newcomer, 0, Wait::Allowed);
        registered.map(|registered| registered.client)
    };
    let [first, second] = [(); 2].map(|()| world.service.clients.arrival());
    let newer = register(2, second).unwrap();
    assert_eq!(error(register(1, first)), ServiceError::StaleClientId);
    assert!(!newer.is_gone());
    let third = world.service.clients.arrival();
    // The newer instance connects once more.
    register(2, world.service.clients.arrival()).unwrap();
    assert_eq!(error(register(3, third)), ServiceError::StaleClientId);
    register(3, world.service.clients.arrival()).unwrap();
    assert!(newer.is_gone());
}

/// A front end that holds up the end of its client from one meeting to the next.
struct Gate(Barrier);

impl Front for Gate {
    fn recall(&self, _: ClientKey, _: &Handle, _: StateRef, _: bool) {}

    fn get_attr(&self, _: ClientKey, _: &Handle, _: u64) {}

    fn lock_available(&self, _: ClientKey, _: &Handle, _: &[u8]) {}

    fn client_gone(&self, _: ClientKey) {
        self.0.wait();
        self.0.wait();
    }
}

/// A registration may be replaced while it waits for the end of the instance before it.
#[test]
fn a_replaced_registration_breaks_no_lock_of_its_successor() {
    let world = World::new();
    let gate = Arc::new(Gate(Barrier::new(2)));
    world.instance("a", 1).set_front(Arc::<Gate>::downgrade(&gate));
    let service = &world.service;
    let lock = |client: &Arc<_>| {
        let opened = world.open_patiently(client, "f", BOTH).unwrap();
        try_lock(&world, client, &opened, (0, 10), LockKind::Write, PERSIST)
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let identity = Identity { mechanism: "none", principal: Vec::new() };
            service.register_client(b"a", 2, identity, Host::default(), SECOND_NS).unwrap();
        });
        gate.0.wait();
        let newcomer = world.instance("a", 3);
        lock(&newcomer).unwrap();
        // Its state ends, and the lock waits for its return.
        service.clients.revoke(newcomer.key()).unwrap();
        gate.0.wait();
    });
    assert_eq!(lock(&world.instance("a", 3)), Ok(()));
}

#[test]
fn a_client_with_sessions_or_state_is_not_destroyed() {
    let world = World::new();
    let client = world.nfs("a");
    let destroy = || world.service.clients.destroy(client.key());
    assert_eq!(destroy(), Err(ServiceError::ClientIdBusy));
    client.session_ended();
    let opened = world.open(&client, "f", READ).unwrap();
    assert_eq!(destroy(), Err(ServiceError::ClientIdBusy));
    world.close(&client, &opened);
    assert_eq!(destroy(), Ok(()));
    assert_eq!(destroy(), Err(ServiceError::StaleClientId));
    assert_eq!(world.disk.owners(), [] as [Vec<u8>; 0]);
    // Unconfirmed ones are removed at once.
    let key = world.exchange("b", 1).key();
    assert_eq!(world.service.clients.destroy(key), Ok(()));
    assert_eq!(world.service.counts(), Default::default());
    let never = ClientKey(12345);
    assert_eq!(world.service.clients.destroy(never), Err(ServiceError::StaleClientId));
}

#[test]
fn unconfirmed_records_are_forgotten_after_a_lease_and_bounded() {
    let world = World::new();
    world.exchange("a", 1);
    assert_eq!(world.service.counts().unconfirmed_clients, 1);
    world.pass(LEASE_NS + 1);
    assert_eq!(world.service.counts(), Default::default());
    world.come_from(1);
    let honest = world.exchange("honest", 1);
    world.come_from(2);
    for number in 0..dafs_service::limits::UNCONFIRMED_CLIENTS_MAX + 10 {
        world.exchange(&number.to_string(), 1);
    }
    // One host gets half, and another host's record stays for its whole time.
    let most = dafs_service::limits::UNCONFIRMED_CLIENTS_MAX / 2 + 1;
    assert!(!honest.is_gone());
    assert_eq!(world.service.counts().unconfirmed_clients, most);
    assert_eq!(world.service.counts().clients, most);
}

#[test]
fn dafs_and_nfs_clients_may_have_the_same_name() {
    let world = World::new();
    let (dafs, nfs) = (world.dafs("a"), world.nfs("a"));
    assert_ne!(dafs.key(), nfs.key());
    assert_eq!(world.service.counts().clients, 2);
    assert_eq!(error(world.service.clients.find(dafs.key())), ServiceError::StaleClientId);
}

#[test]
fn an_expired_nfs_client_keeps_its_state_until_somebody_needs_it() {
    let world = World::new();
    let (away, other) = (world.nfs("away"), world.nfs("other"));
    let opened = world.open(&away, "f", BOTH).unwrap();
    world.lock(&away, &opened, "l", (0, 10), LockKind::Write).unwrap();
    world.pass_with(&[&other], 5 * LEASE_NS);
    // No other client conflicts: it comes back and goes on.
    assert_eq!(world.service.counts().opens, 1);
    assert!(world.service.clients.info(world.now_ns.get())[0].courtesy);
    away.renew(world.now_ns.get());
    let state = opened.state.reference();
    let handle = *opened.state.handle();
    let io = |wait_for| world.service.opens.io_file(world.caller(&away), &handle, state, wait_for);
    assert!(io(MODE_WRITE).is_ok());
    let theirs = world.open(&other, "f", BOTH).unwrap();
    let denied = world.lock(&other, &theirs, "l", (5, 1), LockKind::Read);
    assert!(matches!(denied, Err(dafs_service::LockError::Denied(_))));
    // It is absent again, and this time another client requests the lock.
    world.pass_with(&[&other], LEASE_NS + 1);
    let blocked = world.lock(&other, &theirs, "l", (5, 1), LockKind::Read);
    assert_eq!(blocked, Err(ServiceError::WouldWait.into()));
    assert_eq!(world.disk.owners(), [b"away".to_vec(), b"other".to_vec()]);
    let request = lock_request(new_owner(&theirs, b"l"), (5, 1), LockKind::Read);
    world.service.locks.lock(world.patient(&other), &handle, &request).unwrap();
    assert_eq!(world.disk.owners(), [b"other".to_vec()]);
    assert!(away.is_gone());
    assert_eq!(world.ear.take(), [Told::Gone(away.key())]);
    assert_eq!(error(io(MODE_READ)), ServiceError::Expired);
    assert!(away.status().expired_all_revoked);
}

#[test]
fn the_record_goes_before_the_state() {
    let world = World::new();
    let (away, other) = (world.nfs("away"), world.nfs("other"));
    world.open(&away, "f", DENY_WRITE).unwrap();
    world.pass_with(&[&other], LEASE_NS + 1);
    world.disk.broken.store(true, std::sync::atomic::Ordering::Relaxed);
    let open = || world.open_patiently(&other, "f", WRITE).map(|opened| opened.seqid);
    assert_eq!(open(), Err(ServiceError::Delay));
    assert!(!away.is_gone());
    world.disk.broken.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(open(), Ok(1));
    assert!(away.is_gone());
    assert_eq!(world.disk.owners(), [b"other".to_vec()]);
}

#[test]
fn courtesy_ends_after_a_day() {
    let world = World::new();
    let client = world.nfs("a");
    world.open(&client, "f", READ).unwrap();
    world.pass(23 * 3600 * SECOND_NS);
    assert_eq!(world.service.counts().opens, 1);
    world.pass(2 * 3600 * SECOND_NS);
    assert_eq!(world.service.counts(), Default::default());
    assert_eq!(world.disk.owners(), [] as [Vec<u8>; 0]);
}

#[test]
fn an_administrator_sees_and_ends_what_a_client_holds() {
    let world = World::new();
    let client = world.nfs("a");
    client.set_peer("192.0.2.1".to_owned());
    let opened = world.open(&client, "f", BOTH).unwrap();
    world.lock(&client, &opened, "l", (3, 4), LockKind::Write).unwrap();
    let info = &world.service.clients.info(world.now_ns.get())[0];
    assert_eq!((info.opens, info.locks, info.delegations), (1, 1, 0));
    assert_eq!((info.client.peer().as_str(), info.courtesy), ("192.0.2.1", false));
    let holdings = world.service.clients.holdings(client.key(), 100).unwrap();
    let handle = *opened.state.handle();
    assert!(holdings.contains(&dafs_service::Holding::Open {
        handle,
        owner: b"owner".to_vec(),
        share: BOTH
    }));
    assert!(holdings.contains(&dafs_service::Holding::Lock {
        handle,
        owner: b"l".to_vec(),
        ranges: vec![(3, 4, true)]
    }));
    assert_eq!(world.service.clients.holdings(client.key(), 1).unwrap().len(), 1);
    world.service.clients.revoke(client.key()).unwrap();
    assert_eq!(world.service.counts(), Default::default());
    assert_eq!(world.ear.take(), [Told::Gone(client.key())]);
    assert_eq!(world.disk.owners(), [] as [Vec<u8>; 0]);
    let again = world.service.clients.revoke(client.key());
    assert_eq!(again, Err(ServiceError::StaleClientId));
}

/// DAFS has no thread that may wait. The next tick does the work.
#[test]
fn a_caller_that_never_waits_gets_what_an_absent_client_held() {
    let world = World::new();
    let (away, dafs) = (world.nfs("away"), world.dafs("dafs"));
    dafs.session_started();
    world.open(&away, "f", DENY_WRITE).unwrap();
    world.pass_with(&[&dafs], LEASE_NS + 1);
    assert_eq!(error(world.open(&dafs, "f", WRITE)), ServiceError::WouldWait);
    world.pass(SECOND_NS);
    world.open(&dafs, "f", WRITE).unwrap();
    assert!(away.is_gone());
}

#[test]
fn an_absent_client_that_holds_nothing_is_forgotten_with_its_record() {
    let world = World::new();
    let client = world.nfs("a");
    world.pass(LEASE_NS + SECOND_NS);
    assert!(client.is_gone());
    assert_eq!(world.disk.owners(), [] as [Vec<u8>; 0]);
}
