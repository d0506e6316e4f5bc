//! A back-control channel that dies silently while delegations are held.

use crate::fake::back::Grants;
use crate::fake::requests::{granted, recall, recovering};
use crate::fake::{World, pattern};
use dafs_client::Status;
use dafs_client::core::{BackEvent, BackStage, Done, Failure, Piece};
use dafs_wire::dafs::*;

/// A world whose server may call and grants delegations.
fn bound() -> World {
    let mut world = World::bound(recovering());
    world.server.back.grants = Grants::Write;
    world
}

/// Calls the client, which answers OK.
fn call(world: &mut World, request: &Request<'_>) {
    world.server.call(0, request);
    world.run(|world| !world.server.back.answers.is_empty());
    assert_eq!(world.server.back.answers.pop().unwrap().1, Status::Ok);
}

/// The end of a write under a delegation; true when it came too late.
fn is_too_late(world: &mut World, delegation: StateId) -> bool {
    let memory = world.memory(&pattern(100));
    let tag = world.write_by(Piece::new(&memory, 0, 100).unwrap(), delegation);
    world.run_all(&[tag]);
    match &world.done[&tag] {
        Done::Written { bytes: 100, .. } => false,
        Done::Lost(Failure::DelegationLost) => true,
        other => panic!("{other:?}"),
    }
}

/// Only its connection has died, silently, and the operation channel lives.
#[test]
fn a_delegation_is_not_gone_by_when_the_server_has_not_been_heard_for_long() {
    let mut world = bound();
    let name = granted(&mut world, b"one").unwrap();
    let (lease, start) = (world.core.info().lease, world.now);
    world.server.back.refusal = Some(Status::Delay);
    world.run_for(lease / 4);
    assert!(world.core.promised_until() > world.now && world.server.back.binds == 1);
    world.run_for(lease / 8);
    assert!(world.server.back.binds > 1, "another channel is asked for");
    assert_eq!(world.core.take_back_event(), None, "it may come yet");
    world.run_for(lease / 4);
    let told = BackEvent::Recall { delegation: name, truncate: false };
    assert_eq!(world.core.take_back_event(), Some(told));
    while world.now < start + lease * 3 / 4 {
        assert!(world.core.promised_until() < start + lease);
        world.run_for(lease / 12);
    }
    assert!(world.core.promised_until() <= world.now);
    assert!(is_too_late(&mut world, name));
    assert_eq!(world.core.stats().recoveries, 0);
}

#[test]
fn a_recall_that_was_lost_with_a_silent_channel_counts_from_when_it_may_have_been_sent() {
    let mut world = bound();
    let name = granted(&mut world, b"one").unwrap();
    let (lease, start) = (world.core.info().lease, world.now);
    world.run(|world| world.server.back.binds == 2 && world.server.back.bound);
    world.run(|world| world.core.back_stage() == BackStage::Bound);
    assert!(world.now <= start + lease * 2 / 5);
    assert!(world.core.promised_until() > world.now, "the server is heard again");
    call(&mut world, &recall(name));
    for (after, late) in [(lease / 2, false), (lease * 3 / 4, true)] {
        let rest = (start + after).since(world.now);
        world.run_for(rest);
        assert_eq!(is_too_late(&mut world, name), late, "{after:?}");
    }
}

#[test]
fn a_server_that_calls_now_and_then_is_believed_and_its_channel_kept() {
    let mut world = bound();
    let lease = world.core.info().lease;
    world.run_for(lease * 2);
    assert_eq!(world.server.back.binds, 1, "nothing hangs on it");
    let name = granted(&mut world, b"one").unwrap();
    assert!(world.core.promised_until() <= world.now, "it has not been heard for long");
    for _ in 0..18 {
        call(&mut world, &Request::BcNull);
        world.run_for(lease / 6);
        assert!(world.core.promised_until() > world.now);
    }
    assert_eq!(world.server.back.binds, 1);
    // A recall now is no older than the silence before it.
    call(&mut world, &recall(name));
    world.run_for(lease / 3);
    assert!(!is_too_late(&mut world, name));
}
