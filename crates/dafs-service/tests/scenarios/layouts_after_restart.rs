//! Unreported writes by layouts of an earlier run.

use crate::common::*;
use crate::layouts::Cluster;
use crate::spread::Asked;
use dafs_service::{
    Caller, Client, DelegationKind, LockKind, LockRequest, OpenClaim, OpenHow, OpenRequest,
    OpenTarget, ServiceError,
};
use dafs_store::Cred;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn after_a_restart_only_those_who_reclaim_say_what_they_wrote() {
    let (mut cluster, _, opened, granted) = Cluster::with_writer();
    let handle = *opened.state.handle();
    cluster.world.restart();
    let one = cluster.returning("a", 1);
    let commit = |cluster: &Cluster, client: &Arc<Client>| {
        let caller = cluster.patient(client);
        cluster.service.layouts.commit(caller, &handle, granted, true, Some(500))
    };
    assert_eq!(error(commit(&cluster, &one)), ServiceError::OpenMode);
    let again = cluster.reclaim_by(cluster.patient(&one), &handle, BOTH).unwrap();
    assert_eq!(error(cluster.get(&one, &again, true)), ServiceError::Grace);
    assert_eq!(commit(&cluster, &one).unwrap(), 500);
    cluster.service.clients.reclaim_complete(&one).unwrap();
    cluster.pass_with(&[&one], SECOND_NS);
    assert_eq!(error(commit(&cluster, &one)), ServiceError::NoGrace);
    cluster.get(&one, &again, true).unwrap();
}

#[test]
fn a_reclaimed_open_finds_its_uncommitted_data() {
    let (mut cluster, _, opened, granted) = Cluster::with_writer();
    let handle = *opened.state.handle();
    cluster.world.restart();
    cluster.store.take_asked();
    let one = cluster.returning("a", 1);
    let world = &cluster.world;
    // A client that only reads has not written.
    world.reclaim_by(world.patient(&one), &handle, READ).unwrap();
    assert_eq!(cluster.store.take_asked(), []);
    // The reactor does not wait for data servers.
    assert_eq!(error(world.reclaim(&one, &handle, BOTH)), ServiceError::WouldWait);
    assert_eq!(cluster.store.take_asked(), []);
    // The data servers may be restarting at the same time.
    cluster.store.away.store(true, Ordering::SeqCst);
    let take_back = || world.reclaim_by(world.patient(&one), &handle, BOTH);
    assert_eq!(error(take_back()), ServiceError::Delay);
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.store.take_asked();
    let again = take_back().unwrap();
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
    // Writes that were under way meanwhile, or belong to a closed file, are found when the client
    // names the old layout.
    cluster.service.clients.reclaim_complete(&one).unwrap();
    cluster.pass_with(&[&one], SECOND_NS);
    cluster.close(&one, &again);
    cluster.store.take_asked();
    assert_eq!(error(cluster.commit(&one, &again, granted, None)), ServiceError::StaleStateId);
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
    // A layout of this run starts no search.
    assert!(cluster.commit(&one, &again, again.state.reference(), None).is_err());
    assert_eq!(cluster.store.take_asked(), []);
    // A client that is told that there is no such layout uses the size that the server reports from
    // now on.
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(error(cluster.commit(&one, &again, granted, None)), ServiceError::Delay);
    cluster.pass_with(&[&one], u64::try_from(LEASE.as_nanos()).unwrap());
    assert_eq!(error(cluster.commit(&one, &again, granted, None)), ServiceError::StaleStateId);
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.store.take_asked();
    cluster.fence();
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize], "it is looked for in turn");
    cluster.fence();
    assert_eq!(cluster.store.take_asked(), []);
}

#[test]
fn an_invented_layout_starts_no_search_for_the_size() {
    let (mut cluster, _, opened, granted) = Cluster::with_writer();
    let handle = *opened.state.handle();
    cluster.world.restart();
    let two = cluster.nfs("b");
    cluster.store.take_asked();
    let commit = |cred: &Cred| {
        let caller = Caller { cred, ..cluster.patient(&two) };
        cluster.service.layouts.commit(caller, &handle, granted, false, None)
    };
    assert_eq!(error(commit(&Cred::new(1000, 1000))), ServiceError::StaleStateId);
    assert_eq!(cluster.store.take_asked(), []);
    assert_eq!(error(commit(&cluster.cred)), ServiceError::StaleStateId);
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
}

#[test]
fn an_open_is_taken_back_though_data_servers_stay_away_and_others_wait_for_its_end() {
    let mut cluster = Cluster::new();
    let one = cluster.nfs("a");
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let handle = *opened.state.handle();
    cluster.world.restart();
    let one = cluster.returning("a", 1);
    cluster.store.away.store(true, Ordering::SeqCst);
    cluster.pass_with(&[&one], 5 * SECOND_NS);
    let world = &cluster.world;
    let again = world.reclaim_by(world.patient(&one), &handle, BOTH).unwrap();
    // Its lock comes back as well.
    let request = lock_request(new_owner(&again, b"l"), (0, 1), LockKind::Write);
    let request = LockRequest { reclaim: true, ..request };
    world.service.locks.lock(world.caller(&one), &handle, &request).unwrap();
    let delegated = OpenRequest {
        target: OpenTarget::Handle(&handle),
        claim: OpenClaim::Previous(Some(DelegationKind::Write)),
        how: OpenHow::Existing,
        ..world.plain("", "other", READ)
    };
    let delegated = world.service.opens.open(world.patient(&one), &delegated).unwrap();
    assert!(delegated.delegation.is_ok());
    world.service.clients.reclaim_complete(&one).unwrap();
    world.pass_with(&[&one], SECOND_NS);
    let lock = || world.lock(&one, &again, "m", (5, 1), LockKind::Write);
    assert_eq!(lock().unwrap_err(), ServiceError::WouldWait.into(), "it would append elsewhere");
    cluster.store.away.store(false, Ordering::SeqCst);
    world.fence();
    lock().unwrap();
}

#[test]
fn a_data_server_that_hangs_keeps_nobody_for_long() {
    let (mut cluster, _, opened, granted) = Cluster::with_writer();
    let handle = *opened.state.handle();
    cluster.world.restart();
    let world = &cluster.world;
    let one = world.returning("a", 1);
    let gate = cluster.store.hold_next();
    let take_back = || world.reclaim_by(world.patient(&one), &handle, BOTH);
    assert_eq!(error(take_back()), ServiceError::Delay);
    gate.wait();
    // There is one search, and another caller does not get the answer that all is known.
    assert_eq!(error(take_back()), ServiceError::Delay);
    assert_eq!(error(cluster.commit(&one, &opened, granted, None)), ServiceError::Delay);
    gate.wait();
    let known = || take_back().is_ok();
    assert!((0..1000).any(|_| known() || {
        std::thread::sleep(std::time::Duration::from_millis(1));
        false
    }));
}

#[test]
fn an_open_is_not_taken_back_when_grace_has_ended_meanwhile() {
    let mut cluster = Cluster::new();
    let one = cluster.nfs("a");
    let handle = *cluster.open(&one, "f", BOTH).unwrap().state.handle();
    cluster.world.restart();
    let one = cluster.returning("a", 1);
    let gate = cluster.store.hold_next();
    let service = &cluster.service;
    std::thread::scope(|scope| {
        let late = one.clone();
        scope.spawn(move || {
            gate.wait();
            service.clients.reclaim_complete(&late).unwrap();
            gate.wait();
        });
        let caller = cluster.patient(&one);
        let taken = cluster.reclaim_by(caller, &handle, BOTH);
        assert_eq!(error(taken), ServiceError::NoGrace);
    });
}
