//! Recovery of a session: connections that are lost anywhere, servers that restart, forget, or lie.

use crate::fake::requests::{append, create, recovering, status};
use crate::fake::{Answer, World, pattern};
use dafs_client::core::{Done, Failure, Piece, Refused, SessionConfig, Stage};
use dafs_client::{Procedure, Status};
use dafs_dat::sim::{Direction, SimRng};
use dafs_wire::dafs::*;
use std::time::Duration;

const CLIENT: u32 = 2;

/// Requests that are not idempotent, and some that are, all in flight at once.
struct Script {
    tags: Vec<u64>,
    reads: Vec<(u64, std::sync::Arc<dafs_client::core::RegisteredMemory>)>,
}

const APPENDS: usize = 6;

impl Script {
    fn begin(world: &mut World) -> Self {
        let (mut tags, mut reads) = (Vec::new(), Vec::new());
        for number in 0..APPENDS {
            tags.push(world.ask(&append(&[b'a' + number as u8; 3])));
            tags.push(world.ask(&create(format!("name{number}").as_bytes())));
            let memory = world.memory(&[0; 20_000]);
            // One inline, one direct.
            let len = if number % 2 == 0 { 100 } else { 20_000 };
            let tag = world.read(Piece::new(&memory, 0, len).unwrap(), 50_000);
            reads.push((tag, memory));
            tags.push(tag);
            let data = world.memory(&[b'0' + number as u8; 20_000]);
            let len = if number % 2 == 0 { 20_000 } else { 100 };
            let at = 100_000 + 20_000 * number as u64;
            tags.push(world.write(Piece::new(&data, 0, len).unwrap(), at));
        }
        Self { tags, reads }
    }

    fn check(&self, world: &World, what: &str) {
        for tag in &self.tags {
            assert_eq!(status(&world.done[tag]), Status::Ok, "{what}: {:?}", world.done[tag]);
        }
        let content = pattern(300_000);
        for (tag, memory) in &self.reads {
            let Done::Read { bytes, .. } = world.done[tag] else { panic!("{what}") };
            let found = memory.slice(0, bytes as usize).unwrap();
            let found = found.to_vec(dafs_mem::Site::Inspect);
            assert_eq!(found, content[50_000..50_000 + bytes as usize], "{what}");
        }
        // Each append is there once, at any place.
        let appended = &world.server.file[300_000..];
        assert_eq!(appended.len(), 3 * APPENDS, "{what}");
        for number in 0..APPENDS {
            let mark = [b'a' + number as u8; 3];
            let count = appended.chunks(3).filter(|chunk| *chunk == mark).count();
            assert_eq!(count, 1, "{what}: append {number}");
            let at = 100_000 + 20_000 * number;
            assert_eq!(world.server.file[at..at + 100], [b'0' + number as u8; 100], "{what}");
        }
        assert_eq!(world.server.past.names.len(), APPENDS, "{what}");
    }
}

fn world(config: SessionConfig) -> World {
    World::open_with(config, |server| server.file = pattern(300_000))
}

/// The client detects a loss only by the message that it cannot post: its other questions wait for
/// the next connection.
#[test]
fn a_message_that_cannot_be_posted_takes_recovery_back_to_its_beginning() {
    let mut taken = 0;
    for batches in 0..100 {
        let mut world = world(recovering());
        let script = Script::begin(&mut world);
        world.lose();
        world.lose_unread = Some(batches);
        world.run_all(&script.tags);
        script.check(&world, &format!("lost unread after {batches} batches"));
        assert_eq!(world.core.stage(), Stage::Ready);
        if world.lose_unread.is_some() {
            break;
        }
        taken += 1;
    }
    assert!((3..100).contains(&taken), "{taken} losses");
}

/// Runs the script with the first connection lost after `bytes` bytes in one direction; false when
/// that was more than went over it.
fn cut_script(config: SessionConfig, direction: Direction, bytes: u64) -> bool {
    let mut world = world(config);
    let endpoint = world.network.endpoints(CLIENT)[0];
    world.network.cut_after(endpoint, direction, bytes);
    let script = Script::begin(&mut world);
    world.run_all(&script.tags);
    script.check(&world, &format!("{direction:?} after {bytes}"));
    assert_eq!(world.core.stage(), Stage::Ready);
    world.core.stats().recoveries > 0
}

#[test]
fn nothing_is_done_twice_wherever_the_connection_breaks() {
    for (order, checksums) in [(ByteOrder::Little, false), (ByteOrder::Big, true)] {
        for direction in [Direction::Outgoing, Direction::Incoming] {
            let mut bytes = 0;
            let config = || SessionConfig { byte_order: order, checksums, ..recovering() };
            while cut_script(config(), direction, bytes) {
                // Densely through the messages, in strides through the data.
                bytes += if bytes < 3_000 { 7 } else { 997 };
            }
            assert!(bytes > 60_000, "{bytes} bytes of {direction:?} are the whole script");
        }
    }
}

#[test]
fn nothing_is_done_twice_when_recovery_is_broken_off_too() {
    for seed in 0..400 {
        let mut rng = SimRng::new(seed);
        let mut world = world(recovering());
        let script = Script::begin(&mut world);
        let mut seen = Vec::new();
        let mut cuts = 0;
        world.run(|world| {
            for endpoint in world.network.endpoints(CLIENT) {
                if !seen.contains(&endpoint) && cuts < 12 {
                    seen.push(endpoint);
                    cuts += 1;
                    let direction =
                        if rng.chance(500_000) { Direction::Outgoing } else { Direction::Incoming };
                    world.network.cut_after(endpoint, direction, rng.below(3_000));
                }
            }
            script.tags.iter().all(|tag| world.done.contains_key(tag))
        });
        script.check(&world, &format!("seed {seed}"));
        assert!(cuts > 1, "seed {seed}");
    }
}

#[test]
fn memory_of_a_lost_connection_is_out_of_reach_and_comes_back_under_another_key() {
    let mut world = world(recovering());
    let memory = world.memory(&[0; 10_000]);
    let piece = Piece::new(&memory, 0, 10_000).unwrap();
    let named = piece.direct_buffer();
    let regions = world.network.region_count(CLIENT);
    world.lose_and_notice();
    world.run(|world| world.core.stage() == Stage::Ready);
    assert!(world.network.region_count(CLIENT) <= regions, "old registrations are gone");
    assert_eq!(piece.direct_buffer(), named, "the application sees no change");
    let tag = world.read_and_wait(piece, 0);
    assert!(matches!(world.done[&tag], Done::Read { bytes: 10_000, .. }));
    drop(memory);
    let stats = world.core.stats();
    assert_eq!((stats.recoveries, stats.in_flight), (1, 0));
}

#[test]
fn a_request_at_a_forgetful_server_is_in_doubt() {
    let mut world = world(recovering());
    world.server.hold = true;
    let made = world.ask(&create(b"name"));
    let appended = world.ask(&append(b"xyz"));
    let memory = world.memory(&[7; 100]);
    let written = world.write(Piece::new(&memory, 0, 100).unwrap(), 0);
    let read = world.read(Piece::new(&memory, 0, 10).unwrap(), 0);
    world.run_for(Duration::from_millis(1));
    world.server.hold = false;
    world.server.restart(false);
    world.run_all(&[made, appended, written, read]);
    assert!(matches!(world.done[&made], Done::InDoubt(Procedure::Create)));
    assert!(matches!(world.done[&appended], Done::InDoubt(Procedure::AppendInline)));
    assert!(matches!(world.done[&written], Done::Written { bytes: 100, .. }));
    assert!(matches!(world.done[&read], Done::Read { bytes: 10, .. }));
    // The session goes on.
    let more = world.ask_and_wait(&create(b"more"));
    assert_eq!(status(&world.done[&more]), Status::Ok);
    assert_eq!(world.server.past.came[&b"name"[..]], 1);
}

#[test]
fn a_server_that_restarts_with_its_replies_is_asked_for_them() {
    let mut world = world(recovering());
    world.server.hold = true;
    let made = world.ask(&create(b"name"));
    let again = world.ask(&create(b"name"));
    world.run_for(Duration::from_millis(1));
    world.server.hold = false;
    world.server.restart(true);
    world.run_all(&[made, again]);
    world.run(|world| world.core.stage() == Stage::Ready);
    assert_eq!(status(&world.done[&made]), Status::Ok);
    assert_eq!(status(&world.done[&again]), Status::Exist, "errors are fetched too");
    assert_eq!(world.server.past.came[&b"name"[..]], 2);
    // The server has another id for the client, so credential and root were asked for again.
    assert_eq!(world.server.count(Procedure::GetRootHandle), 2);
    assert_eq!(world.server.count(Procedure::DiscardResponses), 1);
    let kept = world.server.past.kept.keys().count();
    assert_eq!(kept, 1, "only the session of now");
}

#[test]
fn a_lost_connection_costs_few_round_trips() {
    let mut world = World::open_with(recovering(), |server| {
        server.initial_credits = 64;
        server.target = 64;
    });
    world.ask_and_wait(&Request::Null);
    world.server.hold = true;
    let names: Vec<_> = (0..64).map(|number| format!("n{number}")).collect();
    let tags: Vec<_> = names.iter().map(|name| world.ask(&create(name.as_bytes()))).collect();
    world.run(|world| world.server.past.names.len() == 64);
    world.server.hold = false;
    let before = world.server.seen.len();
    let (start, trip) = (world.now, Duration::from_millis(1));
    world.lose();
    world.run_all(&tags);
    let seen: Vec<_> = world.server.seen[before..].iter().map(|seen| seen.0).collect();
    // All CHECK_RESPONSEs leave before the first reply is fetched.
    let last_check = seen.iter().rposition(|seen| *seen == Procedure::CheckResponse).unwrap();
    let first_fetch = seen.iter().position(|seen| *seen == Procedure::FetchResponse).unwrap();
    assert!(last_check < first_fetch);
    assert_eq!(seen.len(), 1 + 64 + 64, "connect, and two questions for each");
    assert!(world.server.in_hand_most >= 60, "{} at a time", world.server.in_hand_most);
    assert!(world.now.since(start) < 20 * trip, "{:?}", world.now.since(start));
}

#[test]
fn calls_keep_their_deadlines_while_the_server_is_away() {
    let mut world = world(recovering());
    let memory = world.memory(&[0; 100]);
    let piece = Piece::new(&memory, 0, 100).unwrap();
    world.server.hold = true;
    let early = world.read(piece.clone(), 0);
    world.run_for(Duration::from_millis(1));
    world.server.past.deaf = true;
    world.lose();
    world.run_for(Duration::from_secs(30));
    assert_eq!(world.core.stage(), Stage::Recovering);
    let late = world.read(piece, 0);
    world.run_for(Duration::from_secs(31));
    assert!(matches!(world.done[&early], Done::Lost(Failure::Deadline(_))));
    assert!(!world.done.contains_key(&late));
    world.server.past.deaf = false;
    world.server.hold = false;
    world.run_all(&[late]);
    assert!(matches!(world.done[&late], Done::Read { bytes: 100, .. }));
}

#[test]
fn a_server_that_stays_away_ends_the_session() {
    let mut world = world(recovering());
    world.server.past.deaf = true;
    world.lose();
    let start = world.now;
    world.run(|world| world.core.stage() == Stage::Over);
    let away = world.now.since(start);
    assert!((Duration::from_secs(120)..Duration::from_secs(121)).contains(&away), "{away:?}");
    let memory = world.memory(&[0; 100]);
    let refused = world.try_read(Piece::new(&memory, 0, 100).unwrap(), 0);
    assert!(matches!(refused, Err(Refused::Over(Failure::Lost(_)))));
}

#[test]
fn a_request_that_kills_the_server_does_not_do_so_for_ever() {
    let mut world = world(recovering());
    world.server.script = Box::new(|_, request| match request {
        Request::Null => Answer::Raw(vec![0; 12]),
        _ => Answer::File,
    });
    let tag = world.ask_and_wait(&Request::Null);
    // An invalid reply breaks the protocol: no retry.
    assert!(matches!(world.done[&tag], Done::Lost(Failure::Protocol(_))));
    assert_eq!(world.core.stage(), Stage::Over);
}

#[test]
fn a_server_that_is_silent_is_left_and_the_others_go_on() {
    let mut world = world(recovering());
    let mut silent = 1;
    world.server.script = Box::new(move |_, request| match request {
        Request::Create(_) if silent > 0 => {
            silent -= 1;
            Answer::Silence
        }
        _ => Answer::File,
    });
    let stuck = world.ask(&create(b"stuck"));
    world.run_for(Duration::from_secs(59));
    // Behind the stuck one, and younger.
    let memory = world.memory(&[0; 100]);
    world.server.hold = true;
    let young = world.read(Piece::new(&memory, 0, 100).unwrap(), 0);
    world.run(|world| world.core.stage() == Stage::Recovering);
    world.server.hold = false;
    assert!(matches!(world.done[&stuck], Done::Lost(Failure::Deadline(_))));
    world.run_all(&[young]);
    assert!(matches!(world.done[&young], Done::Read { bytes: 100, .. }));
    assert_eq!(world.core.stage(), Stage::Ready);
}

/// Invalid answers to the questions of recovery.
#[test]
fn absurd_answers_end_in_an_error() {
    type Spoil = fn(&mut Vec<u8>);
    let spoils: [(Procedure, Spoil); 8] = [
        (Procedure::CheckResponse, |out| out.truncate(39)),
        (Procedure::CheckResponse, |out| out[12] ^= 0x55),
        (Procedure::CheckResponse, |out| out[16] ^= 0x55),
        (Procedure::FetchResponse, |out| out[32] ^= 0x01),
        (Procedure::FetchResponse, |out| out[40..].fill(0xff)),
        (Procedure::ClientConnectAuth, |out| out[40..].fill(0xff)),
        (Procedure::ClientConnectAuth, |out| out.truncate(60)),
        (Procedure::DiscardResponses, |out| out[14] ^= 0x55),
    ];
    for (procedure, spoil) in spoils {
        let mut world = world(recovering());
        let memory = world.memory(&[7; 20_000]);
        world.server.hold = true;
        let tags = [
            world.write(Piece::new(&memory, 0, 20_000).unwrap(), 0),
            world.write(Piece::new(&memory, 0, 100).unwrap(), 0),
            world.ask(&create(b"name")),
        ];
        world.run_for(Duration::from_millis(1));
        world.server.hold = false;
        world.server.script = Box::new(move |_, request| match request {
            request if request.procedure() == procedure => Answer::Spoil(spoil),
            _ => Answer::File,
        });
        world.lose();
        world.run(|world| {
            tags.iter().all(|tag| world.done.contains_key(tag))
                && world.core.stage() != Stage::Recovering
        });
        assert_eq!(world.server.past.came[&b"name"[..]], 1, "{procedure:?}");
    }
}

#[test]
fn fetched_nonsense_is_not_believed() {
    for status in [Status::Ok, Status::NoXidMatch, Status::UnknownSession, Status::Delay] {
        let mut world = world(recovering());
        let memory = world.memory(&[7; 100]);
        world.server.hold = true;
        let write = world.write(Piece::new(&memory, 0, 100).unwrap(), 0);
        let made = world.ask(&create(b"name"));
        world.run_for(Duration::from_millis(1));
        world.server.hold = false;
        world.server.script = Box::new(move |_, request| match request {
            // An OK without a body, or a status that no original reply has.
            Request::FetchResponse(_) if status.is_ok() => Answer::Spoil(|out| {
                out.truncate(40);
                let order = peek_order(out).unwrap_or(ByteOrder::NATIVE);
                let length = match order {
                    ByteOrder::Big => 40u32.to_be_bytes(),
                    ByteOrder::Little => 40u32.to_le_bytes(),
                };
                out[32..36].copy_from_slice(&length);
            }),
            Request::FetchResponse(_) => Answer::Status(status),
            _ => Answer::File,
        });
        world.lose();
        world.run_all(&[write, made]);
        match status {
            Status::Ok => assert_eq!(world.core.stage(), Stage::Over),
            Status::Delay => assert_eq!(status_of(&world.done[&made]), Some(Status::Delay)),
            _ => {
                assert!(matches!(world.done[&write], Done::Written { .. }), "written again");
                assert!(matches!(world.done[&made], Done::InDoubt(Procedure::Create)));
            }
        }
    }
}

/// Simulated crash 20786003452.
#[test]
fn a_refusal_whose_reply_a_restart_loses_is_sent_again() {
    let mut world = world(recovering());
    world.server.hold = true;
    let made = world.ask(&create(b"name"));
    world.run_for(Duration::from_millis(1));
    world.server.hold = false;
    world.server.script = Box::new(|_, request| match request {
        Request::FetchResponse(_) => Answer::Silence,
        _ => Answer::File,
    });
    world.lose();
    world.run(|world| world.server.count(Procedure::FetchResponse) == 1);
    assert!(!world.done.contains_key(&made));
    // The reply was a refusal: the server's log knows the session, and no change of it.
    world.server.past.names.clear();
    world.server.past.kept.values_mut().for_each(|session| session.clear());
    world.server.script = Box::new(|_, _| Answer::File);
    world.lose();
    world.run_all(&[made]);
    assert_eq!(status(&world.done[&made]), Status::Ok);
}

fn status_of(done: &Done) -> Option<Status> {
    match done {
        Done::Answered(reply) => Some(reply.status()),
        Done::Refused { status, .. } => Some(*status),
        _ => None,
    }
}

#[test]
fn closing_ends_what_is_under_way_first() {
    let mut world = world(recovering());
    world.server.hold = true;
    let made = world.ask(&create(b"name"));
    world.run_for(Duration::from_millis(1));
    world.server.hold = false;
    world.lose_and_notice();
    let now = world.now;
    world.core.close(&mut world.adapter, now);
    world.run(|world| world.core.stage() == Stage::Over);
    assert_eq!(status(&world.done[&made]), Status::Ok);
    assert!(matches!(world.core.failure(), Some(Failure::Closed)));
    assert_eq!(world.server.count(Procedure::Disconnect), 1);
}

#[test]
fn closing_without_calls_waits_for_nothing() {
    let mut world = world(recovering());
    world.server.past.deaf = true;
    world.lose_and_notice();
    let now = world.now;
    world.core.close(&mut world.adapter, now);
    assert_eq!(world.core.stage(), Stage::Over);
}
