//! A server that has ended in order tells the next one the state of its clients.

use crate::common::*;
use crate::kept_locks::{reclaim_lock, try_lock};
use dafs_service::{LockExtras, LockKind, ServiceError};
use dafs_store::{MemoryStore, OpenFile, StoreError};
use dafs_testkit::stores::layer::{FileLayer, Layer, Layered, LayeredFile, Transfer, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn hand_over(world: &mut World) {
    let states = world.service.clients.state_digests();
    world.restart();
    world.service.clients.expect_states(states);
}

#[test]
fn grace_ends_when_dafs_clients_hold_what_they_held() {
    let (mut world, plain) = (World::new(), LockExtras::default());
    let (one, two) = (world.dafs("a"), world.dafs("b"));
    let mine = world.open_patiently(&one, "f", BOTH).unwrap();
    let theirs = world.open_patiently(&two, "g", BOTH).unwrap();
    let [first, second] = [&mine, &theirs].map(|opened| *opened.state.handle());
    for range in [(0, 10), (20, 10)] {
        try_lock(&world, &one, &mine, range, LockKind::Write, plain).unwrap();
    }
    hand_over(&mut world);
    let (one, two, three) = (world.dafs("a"), world.dafs("b"), world.dafs("c"));
    world.reclaim(&two, &second, BOTH).unwrap();
    let mine = world.reclaim(&one, &first, BOTH).unwrap();
    reclaim_lock(&world, &one, &mine, (20, 10), plain).unwrap();
    world.pass_with(&[&one, &two, &three], SECOND_NS);
    assert_eq!(error(world.open_patiently(&three, "h", BOTH)), ServiceError::Grace);
    assert!(world.service.clients.in_grace(), "a lock is missing");
    assert!(world.service.clients.grace_ends_soon());
    reclaim_lock(&world, &one, &mine, (0, 10), plain).unwrap();
    world.pass_with(&[&one, &two, &three], SECOND_NS);
    assert!(!world.service.clients.in_grace());
    world.open_patiently(&three, "h", BOTH).unwrap();
    // Their records stay for the next restart.
    world.restart();
    let (one, two) = (world.dafs("a"), world.dafs("b"));
    world.reclaim(&one, &first, BOTH).unwrap();
    world.reclaim(&two, &second, BOTH).unwrap();
}

#[test]
fn a_client_that_still_reclaims_is_awaited_at_the_next_server_too() {
    let mut world = World::new();
    let one = world.dafs("a");
    let handles = ["f", "g"].map(|name| {
        let opened = world.open_patiently(&one, name, BOTH).unwrap();
        *opened.state.handle()
    });
    hand_over(&mut world);
    let one = world.dafs("a");
    world.reclaim(&one, &handles[0], BOTH).unwrap();
    assert!(world.service.clients.state_digests().is_empty());
    hand_over(&mut world);
    let one = world.dafs("a");
    world.reclaim(&one, &handles[0], BOTH).unwrap();
    world.pass_with(&[&one], SECOND_NS);
    assert!(world.service.clients.in_grace());
    world.reclaim(&one, &handles[1], BOTH).unwrap();
}

/// A device that fails when the system writes back.
#[derive(Clone, Default)]
struct Failing(Arc<AtomicBool>);

impl Layer for Failing {
    fn wrap(&self, file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        LayeredFile::over(file, self.clone())
    }
}

impl FileLayer for Failing {
    fn judge(&self, transfer: Transfer) -> dafs_store::Result<Verdict> {
        Ok(Verdict::Pass(transfer.bytes))
    }

    fn check_written_back(&self, _below: &dyn OpenFile) -> dafs_store::Result<()> {
        if self.0.load(Ordering::SeqCst) { Err(StoreError::Io) } else { Ok(()) }
    }
}

#[test]
fn data_of_an_open_file_that_the_system_has_lost_is_noticed_at_the_end() {
    let device = Failing::default();
    let world =
        World::over(Arc::new(Layered::new(Arc::new(MemoryStore::default()), device.clone())));
    let client = world.dafs("a");
    let opened = world.open_patiently(&client, "f", BOTH).unwrap();
    assert!(!world.service.has_lost_data());
    device.0.store(true, Ordering::SeqCst);
    assert!(world.service.has_lost_data());
    world.close(&client, &opened);
    assert!(!world.service.has_lost_data(), "a client commits before it closes");
}
