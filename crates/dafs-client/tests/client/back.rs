//! The back-control channel of the session core: bound, called, lost, and attacked by a hostile
//! server.

use crate::fake::back::{Grants, completion, delegation_id};
use crate::fake::requests::{granted, recall, recovering};
use crate::fake::{Answer, ROOT, World, pattern};
use dafs_client::core::{
    BackEvent, BackStage, BatchCall, BatchHints, Done, Failure, Piece, RegisteredMemory,
    SessionConfig, Stage,
};
use dafs_client::{Procedure, Status};
use dafs_wire::dafs::*;
use std::sync::Arc;
use std::time::Duration;

/// The statuses of the client's answers, once there are so many.
fn answers(world: &mut World, count: usize) -> Vec<Status> {
    world.run(|world| world.server.back.answers.len() >= count);
    std::mem::take(&mut world.server.back.answers).iter().map(|answer| answer.1).collect()
}

/// Transfers of 100 bytes each, reads at even numbers.
fn submit(world: &mut World, memory: &Arc<RegisteredMemory>, count: usize) -> Vec<u64> {
    submit_with(world, memory, count, BatchHints::default())
}

fn submit_with(
    world: &mut World,
    memory: &Arc<RegisteredMemory>,
    count: usize,
    hints: BatchHints,
) -> Vec<u64> {
    let tags: Vec<u64> = (0..count).map(|_| world.tag()).collect();
    let calls = tags.iter().enumerate().map(|(index, &tag)| BatchCall {
        tag,
        handle: ROOT,
        state_id: StateId::ZERO,
        chunks: vec![FileChunk {
            offset: 100 * index as u64,
            byte_count: 100,
            cache_hint: HintWord::NONE,
        }],
        pieces: vec![Piece::new(memory, 0, 100).unwrap()],
        write: (index % 2 == 1).then_some(Verifier([9; 8])),
    });
    let deadline = Some(Duration::from_secs(60));
    let calls = calls.collect();
    world.core.submit_batch(&mut world.adapter, world.now, calls, hints, deadline).unwrap();
    tags
}

fn is_protocol(world: &World) -> bool {
    matches!(world.core.failure(), Some(Failure::Protocol(_)))
}

#[test]
fn calls_are_answered_in_both_byte_orders_with_and_without_checksums() {
    for byte_order in [ByteOrder::Big, ByteOrder::Little] {
        for checksums in [false, true] {
            let mut world = World::bound(SessionConfig { byte_order, checksums, ..recovering() });
            assert_eq!(world.server.back.binds, 1);
            world.server.call(0, &Request::BcNull);
            world.server.call(1, &recall(delegation_id(9)));
            world.server.call(2, &Request::GetRootHandle);
            let getattr = GetAttrInline { fh: ROOT, attributes: AttrMask::CHANGE };
            world.server.call(3, &Request::BcGetAttr(getattr));
            let statuses = answers(&mut world, 4);
            assert_eq!(
                statuses,
                [Status::Ok, Status::BadStateId, Status::NotSupp, Status::BadHandle]
            );
            // The credits stay as they were offered, call after call.
            for _ in 0..20 {
                for stream in 0..world.server.back.offered as u16 {
                    world.server.call(stream, &Request::BcNull);
                }
                world.run(|world| {
                    world.server.back.answers.len() == world.server.back.offered as usize
                });
                for (_, status, target, _) in std::mem::take(&mut world.server.back.answers) {
                    assert_eq!(
                        (status, u32::from(target)),
                        (Status::Ok, world.server.back.offered)
                    );
                }
            }
            assert_eq!(world.core.stage(), Stage::Ready);
        }
    }
}

#[test]
fn delegations_are_recalled_once_asked_about_and_given_back() {
    let mut world = World::bound(recovering());
    world.server.back.grants = Grants::Write;
    let name = granted(&mut world, b"one").unwrap();
    let getattr = GetAttrInline { fh: ROOT, attributes: AttrMask::OBJECT_SIZE };
    world.server.call(0, &Request::BcGetAttr(getattr));
    world.run_for(Duration::from_millis(1));
    let Some(BackEvent::Question { question, delegation }) = world.core.take_back_event() else {
        panic!()
    };
    assert_eq!(delegation, name);
    assert!(world.server.back.answers.is_empty());
    // The answer holds only the attributes that were asked for.
    let known = Attributes { change: Some(3), object_size: Some(7), ..Attributes::default() };
    world.core.answer_question(&mut world.adapter, question, Some(&known));
    world.core.answer_question(&mut world.adapter, question, Some(&known));
    world.run(|world| !world.server.back.answers.is_empty());
    let (_, _, _, message) = world.server.back.answers.pop().unwrap();
    let order = world.core.byte_order();
    let (_, outcome) = decode_response(&message, order, Procedure::BcGetAttr).unwrap();
    let Outcome::Ok(Reply::BcGetAttr(told)) = outcome else { panic!() };
    assert_eq!((told.attributes.object_size, told.attributes.change), (Some(7), None));
    for stream in 0..2 {
        world.server.call(stream, &recall(name));
    }
    assert_eq!(answers(&mut world, 2), [Status::Ok; 2]);
    let told = BackEvent::Recall { delegation: name, truncate: true };
    assert_eq!(world.core.take_back_event(), Some(told));
    assert_eq!(world.core.take_back_event(), None);
    world.ask_and_wait(&Request::DelegReturn(DelegReturn { state_id: name }));
    assert_eq!(world.server.back.returned, [name]);
    world.server.call(0, &recall(name));
    assert_eq!(answers(&mut world, 1), [Status::BadStateId]);
    // Delegations that are held at the end are returned before the session ends.
    let second = granted(&mut world, b"two").unwrap();
    world.core.close(&mut world.adapter, world.now);
    world.run(|world| world.core.stage() == Stage::Over);
    assert_eq!(world.server.back.returned, [name, second]);
    assert_eq!(world.core.take_back_event(), None, "the application has left it");
}

#[test]
fn a_restarted_server_grants_delegations_again_or_they_are_lost() {
    for grants in [Grants::Write, Grants::WriteOnce] {
        let mut world = World::bound(recovering());
        world.server.past.names_opens = true;
        world.server.back.grants = grants;
        let name = granted(&mut world, b"one").unwrap();
        world.server.restart(false);
        world.run(|world| world.core.stats().restarts == 1 && world.core.stage() == Stage::Ready);
        assert_eq!(world.server.back.reclaims, [DelegationType::Write]);
        world.core.want_back(&mut world.adapter, world.now);
        world.run(|world| world.core.back_stage() != BackStage::Coming);
        if grants == Grants::WriteOnce {
            assert_eq!(world.core.take_back_event(), Some(BackEvent::Lost { delegation: name }));
            continue;
        }
        assert_eq!(world.core.take_back_event(), None);
        // The server has another state-id for it, and the client the old one.
        let current = delegation_id(world.server.back.granted);
        assert_ne!(current, name);
        world.server.call(0, &recall(current));
        assert_eq!(answers(&mut world, 1), [Status::Ok]);
        let told = BackEvent::Recall { delegation: name, truncate: true };
        assert_eq!(world.core.take_back_event(), Some(told));
        world.ask_and_wait(&Request::DelegReturn(DelegReturn { state_id: name }));
        assert_eq!(world.server.back.returned, [current]);
    }
}

fn is_too_late(done: &Done) -> bool {
    matches!(done, Done::Lost(Failure::DelegationLost))
}

#[test]
fn dirty_data_is_not_written_after_a_revocation() {
    let mut world = World::bound(recovering());
    world.server.back.grants = Grants::Write;
    let name = granted(&mut world, b"one").unwrap();
    let memory = world.memory(&pattern(100));
    let tag = world.write_by(Piece::new(&memory, 0, 100).unwrap(), name);
    world.run_all(&[tag]);
    assert!(matches!(world.done[&tag], Done::Written { bytes: 100, .. }));
    world.server.call(0, &recall(name));
    assert_eq!(answers(&mut world, 1), [Status::Ok]);
    let lease = world.core.info().lease;
    world.run_for(lease / 2);
    let tag = world.write_by(Piece::new(&memory, 0, 100).unwrap(), name);
    world.run_all(&[tag]);
    assert!(matches!(world.done[&tag], Done::Written { .. }), "there is time for that");
    world.run_for(lease / 4);
    let tag = world.write_by(Piece::new(&memory, 0, 100).unwrap(), name);
    world.run_all(&[tag]);
    assert!(is_too_late(&world.done[&tag]));
}

#[test]
fn a_write_that_was_under_way_is_not_sent_again_without_its_delegation() {
    for grants in [Grants::Write, Grants::WriteOnce] {
        let mut world = World::bound(recovering());
        world.server.past.names_opens = true;
        world.server.back.grants = grants;
        let name = granted(&mut world, b"one").unwrap();
        let memory = world.memory(&pattern(100));
        world.server.hold = true;
        let tag = world.write_by(Piece::new(&memory, 0, 100).unwrap(), name);
        world.run_for(Duration::from_millis(1));
        world.server.restart(false);
        world.server.hold = false;
        world.run_all(&[tag]);
        assert_eq!(world.core.stage(), Stage::Ready);
        let written = matches!(world.done[&tag], Done::Written { bytes: 100, .. });
        assert_eq!(written, grants == Grants::Write, "{:?}", world.done[&tag]);
        assert_eq!(is_too_late(&world.done[&tag]), grants == Grants::WriteOnce);
    }
}

#[test]
fn answers_after_a_restart_do_not_extend_a_former_lease() {
    let mut world = World::bound(recovering());
    world.server.past.names_opens = true;
    world.server.back.grants = Grants::WriteOnce;
    granted(&mut world, b"one").unwrap();
    let until = world.core.promised_until();
    assert!(until > world.now);
    // A server that is unreachable for longer than a lease, and then serves others first.
    world.server.past.deaf = true;
    world.server.restart(false);
    world.run_for(Duration::from_secs(40));
    assert!(until < world.now);
    world.server.past.deaf = false;
    world.run(|world| {
        assert!(world.core.promised_until() < world.now, "in {:?}", world.core.stage());
        world.core.stage() == Stage::Ready
    });
    world.ask_and_wait(&Request::Null);
    assert!(world.core.promised_until() > world.now);
}

#[test]
fn an_answer_that_waited_renews_no_promise() {
    let mut world = World::bound(recovering());
    let tag = world.ask(&Request::Null);
    world.server.poll(world.now);
    let asked = world.now;
    // The process is stopped for longer than a lease while the answer waits here.
    world.now = world.now + Duration::from_secs(100);
    world.run_all(&[tag]);
    assert!(world.core.promised_until() <= asked + world.core.info().lease);
}

#[test]
fn a_lost_channel_is_bound_anew_and_costs_the_session_nothing() {
    let mut world = World::bound(recovering());
    for binds in 2..6 {
        world.server.leave_back();
        world.run(|world| world.server.back.binds == binds && world.server.back.bound);
        world.run(|world| world.core.back_stage() == BackStage::Bound);
        world.server.call(0, &Request::BcNull);
        assert_eq!(answers(&mut world, 1), [Status::Ok]);
    }
    assert_eq!(world.core.stats().recoveries, 0);
}

#[test]
fn delegations_are_given_back_while_the_server_cannot_call() {
    let mut world = World::bound(recovering());
    world.server.back.grants = Grants::Write;
    let name = granted(&mut world, b"one").unwrap();
    world.server.past.deaf = true;
    world.server.leave_back();
    world.run_for(Duration::from_secs(9));
    assert_eq!(world.core.take_back_event(), None, "it may come back");
    world.run_for(Duration::from_secs(2));
    let told = BackEvent::Recall { delegation: name, truncate: false };
    assert_eq!(world.core.take_back_event(), Some(told));
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.core.take_back_event(), None, "it is told once");
    assert_eq!(world.core.stage(), Stage::Ready);
}

#[test]
fn a_server_that_wants_no_channel_is_left_alone() {
    let mut world = World::open(recovering());
    world.server.back.refusal = Some(Status::NotSupp);
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 3);
    world.run_all(&tags);
    for tag in tags {
        let procedure = Procedure::BatchSubmit;
        assert!(matches!(
            world.done[&tag],
            Done::Refused { procedure: asked, status: Status::NotSupp } if asked == procedure
        ));
    }
    assert_eq!(world.core.back_stage(), BackStage::Refused(Status::NotSupp));
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.server.back.binds, 1);
    // A channel that cannot be made now is retried.
    let mut world = World::open(recovering());
    world.server.back.refusal = Some(Status::Resource);
    world.core.want_back(&mut world.adapter, world.now);
    world.run(|world| world.server.back.binds == 4);
    world.server.back.refusal = None;
    world.run(|world| world.core.back_stage() == BackStage::Bound);
}

#[test]
fn transfers_end_one_by_one_as_they_are_reported() {
    for checksums in [false, true] {
        let mut world = World::open(SessionConfig { checksums, ..recovering() });
        let memory = world.memory(&pattern(100));
        let hints = BatchHints { window: Duration::from_millis(3), completions: 5 };
        let tags = submit_with(&mut world, &memory, 4, hints);
        world.run(|world| world.server.back.taken.len() == 4);
        let taken = world.server.back.taken.clone();
        assert!(taken.iter().all(|part| (part.window, part.together) == (3000, 5)));
        let writes: Vec<bool> = taken.iter().map(|part| part.write).collect();
        assert_eq!(writes, [false, true, false, true]);
        world.server.report(&[completion(taken[3].id, Status::Ok, 60)]);
        world.run_all(&tags[3..]);
        assert_eq!(world.done.len(), 1);
        assert!(matches!(world.done[&tags[3]], Done::Written { bytes: 60, .. }));
        world.core.hurry_transfer(&mut world.adapter, world.now, tags[1]);
        world.run(|world| world.server.back.hurried == [taken[1].id]);
        let sum = if checksums { checksum(&pattern(100)) } else { Checksum::ZERO };
        let read = CompletionNotification {
            direct_checksum: sum,
            ..completion(taken[0].id, Status::Ok, 100)
        };
        world.server.report(&[read, completion(taken[1].id, Status::NoSpc, 0)]);
        world.run_all(&tags[..2]);
        assert!(matches!(world.done[&tags[0]], Done::Read { bytes: 100, .. }));
        assert!(matches!(world.done[&tags[1]], Done::Refused { status: Status::NoSpc, .. }));
        // The client submits a transfer that was answered with DELAY again by itself.
        world.server.report(&[completion(taken[2].id, Status::Delay, 0)]);
        world.run(|world| world.server.back.taken.len() == 5);
        let again = world.server.back.taken[4].id;
        assert_ne!(again, taken[2].id, "a number is used once");
        world.server.report(&[CompletionNotification {
            direct_checksum: sum,
            ..completion(again, Status::Ok, 100)
        }]);
        world.run_all(&tags);
        assert_eq!(world.core.stage(), Stage::Ready);
    }
}

#[test]
fn a_new_channel_takes_over_the_transfers_of_a_lost_one() {
    for restart in [false, true] {
        let mut world = World::open(recovering());
        let memory = world.memory(&pattern(100));
        let tags = submit(&mut world, &memory, 4);
        world.run(|world| world.server.back.taken.len() == 4);
        let first = world.server.back.taken[0].clone();
        world.server.report(&[completion(first.id, Status::Ok, 100)]);
        world.run_all(&tags[..1]);
        let keys = world.server.back.taken[1].buffer.context;
        if restart {
            world.server.restart(false);
        } else {
            world.server.leave_back();
        }
        world.run(|world| world.server.back.taken.len() == 7);
        let again = world.server.back.taken[4..].to_vec();
        let offsets: Vec<u64> = again.iter().map(|part| part.offset).collect();
        assert_eq!(offsets, [100, 200, 300]);
        assert_eq!(again[0].buffer.context == keys, !restart, "keys go with the connection");
        let done: Vec<_> = again.iter().map(|part| completion(part.id, Status::Ok, 100)).collect();
        world.server.report(&done);
        world.run_all(&tags);
        assert_eq!(world.core.stage(), Stage::Ready);
    }
}

#[test]
fn memory_that_goes_is_looked_for_where_a_channel_was_lost_and_nowhere_else() {
    const PAGE: usize = 4096;
    // More than the server has at a time.
    const COUNT: usize = 1500;
    let mut world = World::open(recovering());
    world.server.restart(false);
    world.ask_and_wait(&Request::Null);
    assert!(world.core.stats().recoveries > 0);
    let memory = dafs_mem::Buffer::zeroed(PAGE).unwrap();
    // SAFETY: the memory outlives the buffer, and is only made unreadable.
    let borrowed = unsafe { dafs_mem::Buffer::borrowed(memory.as_ptr(), PAGE) };
    let registered = world.core.register(&mut world.adapter, Arc::new(borrowed)).unwrap();
    // SAFETY: a page of the test's own.
    assert_eq!(unsafe { libc::mprotect(memory.as_ptr().cast(), PAGE, libc::PROT_NONE) }, 0);
    let tags = submit(&mut world, &registered, COUNT);
    // A loss of the connection some time ago does not make it touch every byte again.
    world.run(|world| world.server.back.taken.len() >= 1024);
    assert!(world.done.keys().all(|tag| !tags.contains(tag)));
    let asked = world.server.back.taken.len();
    world.server.leave_back();
    let is_write = |tag: &&u64| tags.iter().position(|other| other == *tag).unwrap() % 2 == 1;
    let writes: Vec<u64> = tags.iter().filter(is_write).copied().collect();
    world.run_all(&writes);
    for tag in &writes {
        assert!(matches!(world.done[tag], Done::Lost(Failure::Inaccessible(_))), "{tag}");
    }
    world.run(|world| world.server.back.taken.len() == asked + COUNT / 2);
    assert!(world.server.back.taken[asked..].iter().all(|part| !part.write));
    assert_eq!(world.server.back.binds, 2, "what never left costs no channel");
    assert_eq!(world.core.stage(), Stage::Ready);
}

#[test]
fn a_batch_on_its_way_is_never_at_two_channels() {
    let mut world = World::bound(recovering());
    // The answer is late, and the channel breaks meanwhile.
    world.server.hold = true;
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 2);
    world.run(|world| world.server.back.taken.len() == 2);
    world.server.leave_back();
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.server.back.binds, 1, "the server may yet hand it to the next channel");
    world.server.release();
    world.run(|world| world.server.back.taken.len() == 4);
    assert_eq!(world.server.back.binds, 2);
    let done = [2, 3].map(|at| completion(world.server.back.taken[at].id, Status::Ok, 100));
    world.server.report(&done);
    world.run_all(&tags);
}

#[test]
fn an_overloaded_server_is_asked_again() {
    let mut world = World::bound(recovering());
    let mut refusals = 3;
    world.server.script = Box::new(move |_, request| match request {
        Request::BatchSubmit(_) if refusals > 0 => {
            refusals -= 1;
            Answer::Status(Status::WhoaCowboy)
        }
        _ => Answer::File,
    });
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 2);
    world.run(|world| world.server.back.taken.len() == 2);
    assert_eq!(world.server.count(Procedure::BatchSubmit), 4);
    let ids = [0, 1].map(|at| world.server.back.taken[at].id);
    world.server.report(&ids.map(|id| completion(id, Status::Ok, 1)));
    world.run_all(&tags);
    // A final refusal ends the whole batch.
    world.server.script = Box::new(|_, request| match request {
        Request::BatchSubmit(_) => Answer::Status(Status::Fenced),
        _ => Answer::File,
    });
    let tags = submit(&mut world, &memory, 2);
    world.run_all(&tags);
    for tag in tags {
        assert!(matches!(world.done[&tag], Done::Refused { status: Status::Fenced, .. }));
    }
}

#[test]
fn a_transfer_without_an_end_ends_by_its_deadline() {
    let mut world = World::open(recovering());
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 2);
    world.run(|world| world.server.back.taken.len() == 2);
    world.run_for(Duration::from_secs(30));
    let late = submit(&mut world, &memory, 1);
    world.run_for(Duration::from_secs(31));
    for tag in tags {
        assert!(matches!(world.done[&tag], Done::Lost(Failure::Deadline(_))));
    }
    // The channel that could carry it out is gone; the later transfer goes on over the next one.
    world.run(|world| world.server.back.taken.len() == 4);
    assert_eq!(world.server.back.binds, 2);
    let id = world.server.back.taken[3].id;
    world.server.report(&[completion(id, Status::Ok, 0)]);
    world.run_all(&late);
    assert_eq!((world.core.stage(), world.core.stats().recoveries), (Stage::Ready, 0));
}

#[test]
fn a_waiting_transfer_can_be_taken_back() {
    let mut world = World::open(recovering());
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 2);
    assert!(world.core.cancel_transfer(tags[0]), "the channel is not there yet");
    assert!(!world.core.cancel_transfer(tags[0]));
    world.run(|world| world.server.back.taken.len() == 1);
    assert!(!world.core.cancel_transfer(tags[1]));
    let id = world.server.back.taken[0].id;
    world.server.report(&[completion(id, Status::Ok, 0)]);
    world.run_all(&tags[1..]);
    assert_eq!(world.done.len(), 1);
}

#[test]
fn a_waiting_transfer_can_be_cancelled_by_its_tag() {
    let mut world = World::open(recovering());
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 2);
    let now = world.now;
    assert!(world.core.cancel(&mut world.adapter, now, tags[0]));
    assert!(!world.core.cancel(&mut world.adapter, now, tags[0]));
    world.run(|world| world.server.back.taken.len() == 1);
    assert!(!world.core.cancel(&mut world.adapter, now, tags[1]), "the server has it");
    let id = world.server.back.taken[0].id;
    world.server.report(&[completion(id, Status::Ok, 0)]);
    world.run_all(&tags);
    assert!(matches!(world.done[&tags[0]], Done::Lost(Failure::Canceled)));
}

#[test]
fn the_end_of_the_session_ends_transfers_and_delegations() {
    let mut world = World::bound(World::config());
    world.server.back.grants = Grants::Write;
    let name = granted(&mut world, b"one").unwrap();
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 3);
    world.run(|world| world.server.back.taken.len() == 3);
    world.server.restart(false);
    world.run_all(&tags);
    assert!(tags.iter().all(|tag| matches!(world.done[tag], Done::Lost(_))));
    assert_eq!(world.core.take_back_event(), Some(BackEvent::Lost { delegation: name }));
}

#[test]
fn a_session_waits_for_its_batches_before_it_ends() {
    let mut world = World::bound(recovering());
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 2);
    world.core.close(&mut world.adapter, world.now);
    world.run(|world| world.server.back.taken.len() == 2);
    // It goes on over another channel if need be.
    world.server.leave_back();
    world.run(|world| world.server.back.taken.len() == 4);
    assert_eq!(world.server.count(Procedure::Disconnect), 0);
    let ids = [2, 3].map(|at| world.server.back.taken[at].id);
    world.server.report(&ids.map(|id| completion(id, Status::Ok, 100)));
    world.run_all(&tags);
    world.run(|world| world.core.stage() == Stage::Over);
    assert!(matches!(world.core.failure(), Some(Failure::Closed)));
}

#[test]
fn reports_of_what_was_not_asked_end_the_session() {
    let far = |world: &World| completion(world.server.back.taken[0].id + 77, Status::Ok, 1);
    let twice = |world: &World| completion(world.server.back.taken[0].id, Status::Ok, 1);
    let long = |world: &World| completion(world.server.back.taken[1].id, Status::Ok, 101);
    for wrong in [far as fn(&World) -> CompletionNotification, twice, long] {
        let mut world = World::open(recovering());
        let memory = world.memory(&pattern(100));
        let tags = submit(&mut world, &memory, 3);
        world.run(|world| world.server.back.taken.len() == 3);
        let first = completion(world.server.back.taken[0].id, Status::Ok, 1);
        let wrong = wrong(&world);
        world.server.report(&[first, wrong]);
        world.run_all(&tags);
        assert!(is_protocol(&world), "{:?}", world.core.failure());
        assert!(matches!(world.done[&tags[0]], Done::Read { bytes: 1, .. }));
        assert!(matches!(world.done[&tags[2]], Done::Lost(_)));
    }
}

#[test]
fn calls_out_of_turn_end_the_session() {
    type Wrong = fn(&mut World) -> Vec<u8>;
    let number: Wrong = |world| world.server.encode_call(0, 2, &Request::BcNull);
    let stream: Wrong = |world| {
        let beyond = world.server.back.offered as u16;
        world.server.encode_call(beyond, 1, &Request::BcNull)
    };
    let reply: Wrong = |world| {
        let header = ResponseHeader::answering(&RequestHeader::default(), 1);
        let mut message = vec![0; 200];
        let order = world.core.byte_order();
        let len = encode_response(&mut message, order, &header, &Reply::BcNull).unwrap();
        message.truncate(len);
        message
    };
    let short: Wrong = |_| vec![0; 3];
    let length: Wrong = |world| {
        let mut message = world.server.encode_call(0, 1, &Request::BcNull);
        message.push(0);
        message
    };
    for wrong in [number, stream, reply, short, length] {
        let mut world = World::bound(recovering());
        let message = wrong(&mut world);
        world.server.call_raw(&message);
        world.run(|world| world.core.stage() == Stage::Over);
        assert!(is_protocol(&world), "{:?}", world.core.failure());
    }
}

#[test]
fn more_calls_than_credits_end_the_channel_alone() {
    let mut world = World::bound(recovering());
    world.server.back.grants = Grants::Write;
    granted(&mut world, b"one").unwrap();
    // Each of these holds its credit, because the application does not answer.
    let getattr = GetAttrInline { fh: ROOT, attributes: AttrMask::OBJECT_SIZE };
    for stream in 0..world.server.back.offered as u16 {
        world.server.call(stream, &Request::BcGetAttr(getattr));
    }
    world.run_for(Duration::from_millis(5));
    assert!(world.server.back.bound);
    world.server.call(0, &Request::BcNull);
    world.run(|world| world.server.back.binds == 2 && world.server.back.bound);
    assert_eq!((world.core.stage(), world.core.stats().recoveries), (Stage::Ready, 0));
    // The questions were dropped with their channel.
    assert_eq!(world.core.take_back_event(), None);
}

#[test]
fn a_call_that_was_damaged_on_the_way_costs_the_channel() {
    let mut world = World::bound(SessionConfig { checksums: true, ..recovering() });
    let mut message = world.server.encode_call(0, 1, &Request::BcNull);
    message[20] ^= 1;
    world.server.call_raw(&message);
    world.run(|world| world.server.back.binds == 2 && world.server.back.bound);
    assert_eq!(world.core.stage(), Stage::Ready);
}

#[test]
fn damaged_bodies_are_refused_and_never_believed() {
    let mut world = World::bound(recovering());
    let completions = [completion(1, Status::Ok, 1)];
    let completions = Seq::new(&completions);
    let request = Request::BcBatchCompletion(BatchCompletions { completions });
    // Each word of the body in turn is set to a value that points out of the message.
    for (sequence, at) in (1u16..).zip((HEADER_BYTES..HEADER_BYTES + 8).step_by(4)) {
        let mut message = world.server.encode_call(1, sequence, &request);
        message[at..at + 4].copy_from_slice(&[0xff; 4]);
        world.server.call_raw(&message);
        let stage = |world: &World| world.core.stage();
        world.run(|world| !world.server.back.answers.is_empty() || stage(world) == Stage::Over);
        if stage(&world) == Stage::Over {
            assert!(is_protocol(&world));
            return;
        }
        assert_eq!(answers(&mut world, 1), [Status::Inval], "word at {at}");
    }
}

#[test]
fn a_bind_that_was_answered_otherwise_ends_the_session() {
    for credits in [0, 1000, u32::MAX] {
        let mut world = World::open(recovering());
        world.server.back.credits = Some(credits);
        world.core.want_back(&mut world.adapter, world.now);
        world.run(|world| world.core.stage() == Stage::Over);
        assert!(is_protocol(&world), "{credits}: {:?}", world.core.failure());
    }
}

fn cancelling() -> World {
    World::open_with(recovering(), |server| server.cancels = true)
}

fn cancel(world: &mut World, tag: u64) {
    let now = world.now;
    assert!(!world.core.cancel(&mut world.adapter, now, tag), "the server has it");
}

fn named(world: &World) -> Vec<u64> {
    world.server.canceled.iter().map(|item| item.request_id).collect()
}

#[test]
fn a_server_that_can_is_asked_to_take_transfers_out() {
    let mut world = cancelling();
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 3);
    world.run(|world| world.server.back.taken.len() == 3);
    let ids: Vec<u64> = world.server.back.taken.iter().map(|taken| taken.id).collect();
    // It is asked once, however often the caller asks.
    cancel(&mut world, tags[0]);
    cancel(&mut world, tags[0]);
    cancel(&mut world, tags[1]);
    world.run(|world| world.server.canceled.len() == 2);
    assert_eq!(named(&world), ids[..2]);
    assert!(world.server.back.hurried.is_empty());
    assert!(world.done.is_empty(), "its completion ends a transfer");
    let ends = [(ids[0], Status::XCanceled), (ids[1], Status::Ok), (ids[2], Status::Ok)];
    world.server.report(&ends.map(|(id, status)| completion(id, status, 0)));
    world.run_all(&tags);
    assert!(matches!(world.done[&tags[0]], Done::Lost(Failure::Canceled)));
    assert!(matches!(world.done[&tags[1]], Done::Written { .. }), "too late");
    assert!(matches!(world.done[&tags[2]], Done::Read { .. }));
    assert_eq!(world.server.canceled.len(), 2);
}

/// The client cannot know if it happened, so it happens again.
#[test]
fn a_transfer_that_a_lost_channel_may_have_done_is_not_cancelled() {
    let mut world = cancelling();
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 2);
    world.run(|world| world.server.back.taken.len() == 2);
    cancel(&mut world, tags[0]);
    world.run(|world| world.server.canceled.len() == 1);
    // The channel is lost, and the server may have done either.
    world.server.leave_back();
    world.run(|world| world.server.back.taken.len() == 4);
    let now = world.now;
    assert!(!world.core.cancel_at_server(&mut world.adapter, now, tags[0]));
    let ids: Vec<u64> = world.server.back.taken[2..].iter().map(|taken| taken.id).collect();
    world.server.report(&ids.iter().map(|id| completion(*id, Status::Ok, 0)).collect::<Vec<_>>());
    world.run_all(&tags);
    assert!(matches!(world.done[&tags[0]], Done::Read { .. }));
    assert!(matches!(world.done[&tags[1]], Done::Written { .. }));
    assert_eq!(world.server.canceled.len(), 1);
}

/// A cancel may free what all others wait for.
#[test]
fn a_cancel_goes_before_all_that_waits() {
    let mut world = World::open_with(recovering(), |server| {
        server.cancels = true;
        (server.initial_credits, server.target) = (1, 1);
        server.file = pattern(100);
    });
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 1);
    world.run(|world| world.server.back.taken.len() == 1);
    world.server.hold = true;
    let piece = Piece::new(&memory, 0, 100).unwrap();
    let reads = world.reads(&piece, 2);
    world.run(|world| world.server.in_hand == 1);
    let more = submit(&mut world, &memory, 1);
    cancel(&mut world, tags[0]);
    let seen = world.server.seen.len();
    world.server.hold = false;
    world.server.release();
    world.run(|world| world.server.back.taken.len() == 2);
    assert_eq!(world.server.seen[seen].0, Procedure::XCancel);
    let ids: Vec<u64> = world.server.back.taken.iter().map(|taken| taken.id).collect();
    world.server.report(&ids.iter().map(|id| completion(*id, Status::Ok, 0)).collect::<Vec<_>>());
    world.run_all(&[tags[0], more[0], reads[0], reads[1]]);
}

#[test]
fn many_transfers_are_cancelled_with_one_request() {
    let mut world = cancelling();
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 20);
    world.run(|world| world.server.back.taken.len() == 20);
    let mut left = tags[..15].iter().copied().chain([999]).collect();
    assert!(world.core.cancel_transfers(&mut left).is_empty(), "the server has them");
    assert_eq!(left.len(), 16);
    let now = world.now;
    world.core.cancel_transfers_at_server(&mut world.adapter, now, &mut left);
    assert_eq!(left.into_iter().collect::<Vec<_>>(), [999]);
    world.run(|world| world.server.canceled.len() == 15);
    assert_eq!(world.server.count(Procedure::XCancel), 1);
    let ids: Vec<u64> = world.server.back.taken.iter().map(|taken| taken.id).collect();
    assert_eq!(named(&world), ids[..15]);
}

/// A server that refuses X_CANCEL begins with the transfers instead, and may be asked again.
#[test]
fn a_refused_cancel_is_no_cancel() {
    let mut world = cancelling();
    world.server.script = Box::new(|_, request| match request {
        Request::XCancel(_) => Answer::Status(Status::Resource),
        _ => Answer::File,
    });
    let memory = world.memory(&pattern(100));
    let hints = BatchHints { window: Duration::from_secs(20), completions: 0 };
    let tags = submit_with(&mut world, &memory, 2, hints);
    world.run(|world| world.server.back.taken.len() == 2);
    let ids: Vec<u64> = world.server.back.taken.iter().map(|taken| taken.id).collect();
    cancel(&mut world, tags[0]);
    world.run(|world| !world.server.back.hurried.is_empty());
    assert_eq!(world.server.back.hurried, ids[..1]);
    assert!(world.server.canceled.is_empty());
    world.server.script = Box::new(|_, _| Answer::File);
    cancel(&mut world, tags[0]);
    world.run(|world| world.server.canceled.len() == 1);
    assert_eq!(named(&world), ids[..1]);
}

#[test]
fn a_server_without_the_extension_is_not_asked() {
    let mut world = World::open(recovering());
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 1);
    world.run(|world| world.server.back.taken.len() == 1);
    let now = world.now;
    assert!(!world.core.cancel_at_server(&mut world.adapter, now, tags[0]));
    // One that has forgotten it, as after a restart with an earlier version, is asked once.
    let mut world = cancelling();
    world.server.forgets_cancels = true;
    let memory = world.memory(&pattern(100));
    let tags = submit(&mut world, &memory, 2);
    world.run(|world| world.server.back.taken.len() == 2);
    cancel(&mut world, tags[0]);
    world.run(|world| world.server.canceled.len() == 1 && !world.core.info().cancels);
    let now = world.now;
    assert!(!world.core.cancel_at_server(&mut world.adapter, now, tags[1]));
    let ids: Vec<u64> = world.server.back.taken.iter().map(|taken| taken.id).collect();
    world.server.report(&[completion(ids[0], Status::Ok, 0), completion(ids[1], Status::Ok, 0)]);
    world.run_all(&tags);
    assert_eq!(world.core.stage(), Stage::Ready);
}
