//! Transfers whose connection is lost while the server may still move their data: where it can map
//! the client's memory, the end of a connection does not stop it.

use crate::fake::back::completion;
use crate::fake::requests::recovering;
use crate::fake::{Answer, ROOT, World, pattern};
use dafs_client::core::{
    BackStage, BatchCall, BatchHints, Done, Failure, Piece, RegisteredMemory, Stage,
};
use dafs_client::{Procedure, Status};
use dafs_wire::dafs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

/// A world whose server may call.
fn bound() -> (World, Arc<RegisteredMemory>) {
    let mut world = World::bound(recovering());
    let memory = world.memory(&pattern(100));
    (world, memory)
}

/// Submits reads and waits until the server has accepted them.
fn taken(world: &mut World, memory: &Arc<RegisteredMemory>, count: u64) -> Vec<u64> {
    let tags: Vec<u64> = (0..count).map(|_| world.tag()).collect();
    let calls = tags.iter().map(|&tag| BatchCall {
        tag,
        handle: ROOT,
        state_id: StateId::ZERO,
        chunks: vec![FileChunk { offset: 0, byte_count: 100, cache_hint: HintWord::NONE }],
        pieces: vec![Piece::new(memory, 0, 100).unwrap()],
        write: None,
    });
    let (hints, calls) = (BatchHints::default(), calls.collect());
    let before = world.server.back.taken.len();
    world.core.submit_batch(&mut world.adapter, world.now, calls, hints, Some(DEADLINE)).unwrap();
    world.run(|world| world.server.back.taken.len() == before + tags.len());
    tags
}

/// The channel is lost, and no other is bound because the work for it goes on.
fn lose_channel(world: &mut World) {
    world.server.back.refusal = Some(Status::Delay);
    world.server.leave_back();
    let binds = world.server.back.binds;
    world.run(|world| world.server.back.binds > binds + 1);
}

#[test]
fn lent_memory_is_not_taken_back() {
    let (mut world, memory) = bound();
    let tags = taken(&mut world, &memory, 2);
    lose_channel(&mut world);
    assert!(!tags.iter().any(|&tag| world.core.cancel_transfer(tag)));
    // Another channel proves that the work for the former has stopped; all is submitted again.
    world.server.back.refusal = None;
    world.run(|world| world.server.back.taken.len() == 4);
    let done = [2, 3].map(|at| completion(world.server.back.taken[at].id, Status::Ok, 100));
    world.server.report(&done);
    world.run_all(&tags);
    assert!(tags.iter().all(|tag| matches!(world.done[tag], Done::Read { bytes: 100, .. })));
    assert_eq!(world.core.stats().recoveries, 0);
}

#[test]
fn an_overdue_transfer_ends_when_its_memory_is_released() {
    let (mut world, memory) = bound();
    let tags = taken(&mut world, &memory, 2);
    world.run_for(DEADLINE - Duration::from_secs(1));
    lose_channel(&mut world);
    world.run_for(Duration::from_secs(5));
    assert!(world.done.is_empty(), "the server may still write to their memory");
    world.server.back.refusal = None;
    world.run_all(&tags);
    for tag in tags {
        assert!(matches!(world.done[&tag], Done::Lost(Failure::Deadline(DEADLINE))));
    }
    assert_eq!(world.server.back.taken.len(), 2, "nothing overdue is handed over again");
    assert_eq!((world.core.stage(), world.core.stats().recoveries), (Stage::Ready, 0));
}

#[test]
fn a_server_that_never_stops_loses_the_session_its_connection() {
    let (mut world, memory) = bound();
    let tags = taken(&mut world, &memory, 2);
    lose_channel(&mut world);
    world.run_for(DEADLINE + Duration::from_secs(5));
    assert!(world.done.is_empty());
    world.run_all(&tags);
    for tag in tags {
        assert!(matches!(world.done[&tag], Done::Lost(Failure::Deadline(DEADLINE))));
    }
    assert_eq!(world.core.stats().recoveries, 1);
    world.server.back.refusal = None;
    world.run(|world| world.core.stage() == Stage::Ready);
}

#[test]
fn a_server_that_wants_no_channel_any_more_ends_its_work_with_the_session() {
    let (mut world, memory) = bound();
    let tags = taken(&mut world, &memory, 2);
    world.server.back.refusal = Some(Status::NotSupp);
    world.server.leave_back();
    world.run_all(&tags);
    for tag in tags {
        assert!(matches!(world.done[&tag], Done::Refused { status: Status::NotSupp, .. }));
    }
    assert_eq!((world.core.stage(), world.core.stats().recoveries), (Stage::Ready, 1));
}

/// A busy server runs a batch at once and reports that in its answer, which a loss of the channel
/// may overtake.
#[test]
fn an_answer_that_tells_of_what_has_come_back_is_no_breach() {
    let (mut world, memory) = bound();
    world.server.back.at_once = true;
    world.server.hold = true;
    let tags = taken(&mut world, &memory, 2);
    world.server.leave_back();
    world.run(|world| world.core.back_stage() == BackStage::Coming);
    world.server.back.at_once = false;
    world.server.release();
    world.run(|world| world.server.back.taken.len() == 4);
    let done = [2, 3].map(|at| completion(world.server.back.taken[at].id, Status::Ok, 100));
    world.server.report(&done);
    world.run_all(&tags);
    assert!(world.core.failure().is_none(), "{:?}", world.core.failure());
}

/// A read whose connection is lost. The server, which may have mapped its memory, does not confirm
/// the end of the old session before the flag is set.
fn lost_read() -> (World, u64, Arc<AtomicBool>) {
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let mut world = World::open_with(recovering(), |server| {
        server.file = pattern(50_000);
        server.script = Box::new(move |_, request| match request {
            Request::DiscardResponses(_) if !is_over.load(Ordering::Relaxed) => Answer::Silence,
            _ => Answer::File,
        });
    });
    world.network.map_memory(true);
    let memory = world.memory(&[0; 20_000]);
    world.server.hold = true;
    let tag = world.read(Piece::new(&memory, 0, 20_000).unwrap(), 0);
    world.run(|world| world.server.in_hand == 1);
    world.server.hold = false;
    (world, tag, over)
}

#[test]
fn a_call_is_not_cancelled_or_sent_again_before_its_old_session_is_over() {
    let (mut world, tag, over) = lost_read();
    world.lose_and_notice();
    assert!(!world.core.cancel(&mut world.adapter, world.now, tag));
    world.run(|world| world.server.count(Procedure::DiscardResponses) == 2);
    assert!(!world.core.cancel(&mut world.adapter, world.now, tag));
    assert_eq!(world.server.count(Procedure::ReadDirect), 1);
    over.store(true, Ordering::Relaxed);
    world.run_all(&[tag]);
    assert!(matches!(world.done[&tag], Done::Read { bytes: 20_000, .. }));
    assert_eq!(world.core.stats().recoveries, 1);
}

#[test]
fn a_call_that_is_overdue_ends_with_its_old_session() {
    for given_up in [false, true] {
        let (mut world, tag, over) = lost_read();
        match given_up {
            false => {
                world.lose_and_notice();
                world.run_for(DEADLINE + Duration::from_secs(5));
            }
            true => {
                let (now, after) = (world.now, DEADLINE);
                world.core.give_up(&mut world.adapter, now, tag, after);
                world.run_for(Duration::from_secs(5));
                world.core.give_up(&mut world.adapter, world.now, tag, after);
            }
        }
        assert!(world.done.is_empty(), "the server may still write to its memory");
        over.store(true, Ordering::Relaxed);
        world.run_all(&[tag]);
        assert!(matches!(world.done[&tag], Done::Lost(Failure::Deadline(DEADLINE))));
        world.run(|world| world.core.stage() == Stage::Ready);
        assert_eq!(world.server.count(Procedure::ReadDirect), 1, "nobody wants it any more");
    }
}
