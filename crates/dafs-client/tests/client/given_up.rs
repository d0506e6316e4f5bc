//! Calls that are cancelled or time out, and the session that goes on for the others.

use crate::fake::back::Grants;
use crate::fake::live::Live;
use crate::fake::requests::{append, create, is_ok, recovering};
use crate::fake::{Answer, ROOT, World, pattern};
use dafs_client::core::{Done, Failure, Piece, SessionConfig, Stage};
use dafs_client::{
    CacheOptions, Chain, Client, Error, File, OpenOptions, Procedure, Stability, Status, Takes,
    interruptible, within,
};
use dafs_dat::sim::{Direction, SimRng};
use dafs_wire::dafs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const CLIENT: u32 = 2;

fn world(credits: u16) -> World {
    World::open_with(recovering(), |server| {
        server.file = pattern(50_000);
        (server.initial_credits, server.target) = (credits, credits);
        // The lease needs no keep-alive in the time of the test.
        server.lease_seconds = 1_000_000;
    })
}

fn is_cancelled(done: &Done) -> bool {
    matches!(done, Done::Lost(Failure::Canceled))
}

fn cancel(world: &mut World, tag: u64) -> bool {
    world.core.cancel(&mut world.adapter, world.now, tag)
}

#[test]
fn only_an_unsent_call_is_cancelled() {
    let mut world = world(1);
    world.server.hold = true;
    let memory = world.memory(&[0; 100]);
    let piece = Piece::new(&memory, 0, 100).unwrap();
    let tags = [0; 3].map(|_| world.read(piece.clone(), 0));
    world.run(|world| world.server.in_hand == 1);
    assert!(!cancel(&mut world, tags[0]), "the server has it");
    assert!(cancel(&mut world, tags[1]));
    assert!(!cancel(&mut world, tags[1]), "it is over already");
    world.server.release();
    world.run_all(&tags);
    assert!(is_ok(&world.done[&tags[0]]) && is_ok(&world.done[&tags[2]]));
    assert!(is_cancelled(&world.done[&tags[1]]));
    assert_eq!(world.server.count(Procedure::ReadInline), 2);
    assert!(!cancel(&mut world, tags[0]) && !cancel(&mut world, 999));
}

/// Reads and writes at the server are named by their stream and sequence number. A request without data
/// is not named.
#[test]
fn a_request_at_the_server_is_named_and_ends_as_the_server_says() {
    let mut world = World::open_with(recovering(), |server| {
        server.file = pattern(50_000);
        server.lease_seconds = 1_000_000;
        server.cancels = true;
    });
    world.server.hold = true;
    let memory = world.memory(&[0; 100]);
    let piece = Piece::new(&memory, 0, 100).unwrap();
    let late = world.read(piece.clone(), 0);
    let commit = world.ask(&Request::Commit(Commit { fh: ROOT, offset: 0, count: 0 }));
    world.run(|world| world.server.in_hand == 2);
    assert!(!cancel(&mut world, late) && !cancel(&mut world, commit));
    world.run(|world| !world.server.canceled.is_empty());
    let kinds: Vec<_> = world.server.canceled.iter().map(|item| item.kind).collect();
    assert_eq!(kinds, [CancelKind::Request]);
    world.server.release();
    world.run_all(&[late, commit]);
    assert!(is_ok(&world.done[&late]) && is_ok(&world.done[&commit]), "it was too late");
    world.server.script = Box::new(|_, request| match request {
        Request::ReadInline(_) => Answer::Status(Status::XCanceled),
        _ => Answer::File,
    });
    let read = world.read(piece, 0);
    world.run_all(&[read]);
    assert!(is_cancelled(&world.done[&read]));
}

/// A write may have been done before its connection was lost. Then the end of its repetition as
/// cancelled would be untrue.
#[test]
fn a_request_that_is_sent_again_is_named_only_if_it_was_not_done() {
    let silent = || {
        let mut world = World::open_with(recovering(), |server| {
            server.lease_seconds = 1_000_000;
            server.cancels = true;
        });
        world.server.script = Box::new(|_, request| match request {
            Request::WriteInline(_) => Answer::Silence,
            _ => Answer::File,
        });
        let memory = world.memory(&[7; 100]);
        let tag = world.write(Piece::new(&memory, 0, 100).unwrap(), 0);
        world.run(|world| world.server.count(Procedure::WriteInline) == 1);
        (world, tag)
    };
    // The server knows that it was not done.
    let (mut world, tag) = silent();
    world.lose();
    world.run(|world| world.server.count(Procedure::WriteInline) == 2);
    assert!(!cancel(&mut world, tag));
    world.run(|world| world.server.canceled.len() == 1);
    // The server has restarted and does not know.
    let (mut world, tag) = silent();
    world.server.restart(false);
    world.run(|world| world.server.count(Procedure::WriteInline) == 2);
    assert!(!world.core.cancel_at_server(&mut world.adapter, world.now, tag));
    // It knows only of the latest sending.
    world.lose();
    world.run(|world| world.server.count(Procedure::WriteInline) == 3);
    assert!(!world.core.cancel_at_server(&mut world.adapter, world.now, tag));
    world.server.script = Box::new(|_, _| Answer::File);
    world.lose();
    world.run_all(&[tag]);
    assert!(matches!(world.done[&tag], Done::Written { bytes: 100, .. }));
    assert!(world.server.canceled.is_empty());
}

#[test]
fn calls_are_given_up_while_the_session_is_recovered_for_others() {
    let mut world = world(8);
    world.server.hold = true;
    let memory = world.memory(&[0; 20_000]);
    let piece = Piece::new(&memory, 0, 20_000).unwrap();
    let (made, read) = (world.ask(&create(b"name")), world.read(piece.clone(), 0));
    let other = world.read(Piece::new(&memory, 0, 100).unwrap(), 0);
    world.run(|world| world.server.in_hand == 3);
    (world.server.past.deaf, world.server.hold) = (true, false);
    world.lose();
    world.run_for(Duration::from_secs(1));
    let late = world.ask(&append(b"late"));
    for tag in [made, read, late] {
        assert!(cancel(&mut world, tag));
    }
    world.run_for(Duration::from_secs(1));
    assert!([made, read, late].iter().all(|tag| is_cancelled(&world.done[tag])));
    // The memory of a cancelled call is freed when its owner drops it.
    drop(piece);
    world.server.past.deaf = false;
    world.run_all(&[other]);
    assert!(is_ok(&world.done[&other]));
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.core.stage(), Stage::Ready);
    assert!(world.core.is_idle());
    assert_eq!(world.server.count(Procedure::CheckResponse), 0, "nobody wants to know");
    assert_eq!(world.server.count(Procedure::AppendInline), 0);
    assert_eq!(world.server.past.came[&b"name"[..]], 1);
}

#[test]
fn the_last_call_that_is_given_up_lets_a_session_end() {
    for lost in [false, true] {
        let mut world = world(1);
        world.server.hold = true;
        let tags = [world.ask(&create(b"one")), world.ask(&create(b"two"))];
        world.run(|world| world.server.in_hand == 1);
        if lost {
            world.server.past.deaf = true;
            world.lose_and_notice();
        }
        world.core.close(&mut world.adapter, world.now);
        assert!(cancel(&mut world, tags[1]));
        assert_eq!(cancel(&mut world, tags[0]), lost);
        world.server.release();
        world.run(|world| world.core.stage() == Stage::Over);
        world.run_all(&tags);
        assert!(matches!(world.core.failure(), Some(Failure::Closed)));
    }
}

#[test]
fn every_call_ends_once_whenever_it_is_cancelled_and_none_is_done_twice() {
    const CALLS: usize = 12;
    let mut cancelled = 0;
    for seed in 0..300 {
        let mut rng = SimRng::new(seed);
        let mut world = world(4);
        world.server.file.clear();
        let marks: Vec<_> = (0..CALLS).map(|number| [b'a' + number as u8; 3]).collect();
        let tags: Vec<_> = marks.iter().map(|mark| world.ask(&append(mark))).collect();
        let direction = if rng.chance(500_000) { Direction::Outgoing } else { Direction::Incoming };
        let endpoint = world.network.endpoints(CLIENT)[0];
        world.network.cut_after(endpoint, direction, rng.below(2_000));
        while !tags.iter().all(|tag| world.done.contains_key(tag)) {
            if rng.chance(100_000) {
                let tag = tags[rng.below(CALLS as u64) as usize];
                cancelled += usize::from(cancel(&mut world, tag));
            }
            assert!(world.step(), "the world stands still");
        }
        for (tag, mark) in tags.iter().zip(&marks) {
            let count = world.server.file.chunks(3).filter(|chunk| chunk == mark).count();
            let done = &world.done[tag];
            assert!(is_ok(done) || is_cancelled(done), "seed {seed}: {done:?}");
            assert!(count <= 1 && (count == 1 || !is_ok(done)), "seed {seed}: {count}, {done:?}");
        }
    }
    assert!(cancelled > 300, "{cancelled} calls were cancelled");
}

/// A COMMIT that is slow on a healthy server outlives the loss of its connection.
#[test]
fn a_write_to_a_slow_disk_outlives_its_connection() {
    let mut world = world(8);
    world.server.script = Box::new(|_, request| match request {
        Request::Null => Answer::File,
        _ => Answer::Silence,
    });
    let tag = world.ask(&Request::Commit(Commit { fh: ROOT, offset: 0, count: 0 }));
    world.run_for(Duration::from_secs(100));
    assert!(world.server.count(Procedure::Null) > 0);
    world.server.script = Box::new(|_, _| Answer::File);
    world.lose();
    world.run_all(&[tag]);
    assert!(is_ok(&world.done[&tag]), "{:?}", world.done[&tag]);
}

/// So does a call that waits for its turn while the server answers others.
#[test]
fn a_queued_call_outlives_its_connection() {
    let mut world = world(1);
    world.server.hold = true;
    let memory = world.memory(&[0; 100]);
    let piece = Piece::new(&memory, 0, 100).unwrap();
    let tags = world.reads(&piece, 20);
    for _ in 0..8 {
        world.run_for(Duration::from_secs(10));
        world.server.release();
        world.server.hold = true;
        world.run_for(Duration::from_millis(1));
    }
    assert_eq!(world.core.stage(), Stage::Ready);
    assert!(world.done.len() >= 8, "{} are done", world.done.len());
    world.server.hold = false;
    world.lose();
    world.run_all(&tags);
    assert!(tags.iter().all(|tag| is_ok(&world.done[tag])));
}

/// Data whose checksum never matches is not retried without end or pause, even for a caller without
/// a timeout.
#[test]
fn data_that_is_always_corrupt_ends_the_session() {
    let config = SessionConfig { checksums: true, ..recovering() };
    let mut world = World::open_with(config, |server| server.file = pattern(50_000));
    world.server.script = Box::new(|_, request| match request {
        Request::ReadDirect(_) => Answer::Spoil(|reply| {
            // Behind the end of file and the count; the checksum of the message is recomputed.
            reply[HEADER_BYTES + 8] ^= 1;
            reply[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
            seal(reply);
        }),
        _ => Answer::File,
    });
    let memory = world.memory(&[0; 20_000]);
    let into = Piece::new(&memory, 0, 20_000).unwrap();
    let call = dafs_client::core::ReadCall {
        handle: ROOT,
        state_id: StateId::ZERO,
        offset: 0,
        into,
        hint: HintWord::NONE,
    };
    world.core.submit_read(&mut world.adapter, world.now, 7, call, None).unwrap();
    let start = world.now;
    world.run_all(&[7]);
    assert!(matches!(world.done[&7], Done::Lost(Failure::Corrupt(_))), "{:?}", world.done[&7]);
    assert!(world.now.since(start) < Duration::from_secs(122));
    let connects = world.server.count(Procedure::ClientConnectAuth);
    assert!((10..500).contains(&connects), "{connects} connections");
}

/// Each loss begins with the full time for recovery, however long the session was idle.
#[test]
fn a_second_restart_after_a_long_silence_is_recovered_from() {
    let mut world = world(8);
    for _ in 0..3 {
        world.server.restart(false);
        world.run(|world| world.core.stage() == Stage::Recovering);
        world.run(|world| matches!(world.core.stage(), Stage::Ready | Stage::Over));
        assert_eq!(world.core.stage(), Stage::Ready, "{:?}", world.core.failure());
        world.run_for(Duration::from_secs(300));
    }
    assert_eq!(world.server.count(Procedure::Null), 0);
    assert_eq!(world.core.stats().restarts, 3);
}

/// Statuses of the question and not of the request: it was executed, so the client neither reports
/// its failure nor repeats it if it is not idempotent.
#[test]
fn a_reply_that_cannot_be_had_is_no_failure_of_the_request() {
    for status in [Status::TooSmall, Status::StaleClientId, Status::NotAuthenticated] {
        let mut world = world(8);
        world.server.hold = true;
        let memory = world.memory(&[7; 100]);
        let made = world.ask(&create(b"name"));
        let written = world.write(Piece::new(&memory, 0, 100).unwrap(), 0);
        world.run(|world| world.server.in_hand == 2);
        world.server.hold = false;
        world.server.script = Box::new(move |_, request| match request {
            Request::FetchResponse(_) => Answer::Status(status),
            _ => Answer::File,
        });
        world.lose();
        world.run_all(&[made, written]);
        assert!(matches!(world.done[&made], Done::InDoubt(Procedure::Create)), "{status}");
        assert!(matches!(world.done[&written], Done::Written { bytes: 100, .. }), "{status}");
        assert_eq!(world.server.past.came[&b"name"[..]], 1);
    }
}

#[test]
fn a_call_too_long_for_the_new_connection_fails_alone() {
    let mut world = world(8);
    world.lose_and_notice();
    world.server.request_bytes_max = 4096;
    let long = world.ask(&append(&[1; 8000]));
    let short = world.ask(&append(&[2; 10]));
    world.run_all(&[long, short]);
    assert!(matches!(world.done[&long], Done::Lost(Failure::Unsendable(_))));
    assert!(is_ok(&world.done[&short]));
    assert_eq!(world.core.stage(), Stage::Ready);
}

/// A server that answers writes with DELAY while the flag is set, and grants delegations, so that a
/// client caches writes.
fn putting_off(is_busy: Arc<AtomicBool>) -> Live {
    Live::start(move |server| {
        server.back.grants = Grants::Write;
        server.script = Box::new(move |_, request| match request {
            Request::WriteInline(_) | Request::WriteDirect(_)
                if is_busy.load(Ordering::Relaxed) =>
            {
                Answer::Status(Status::Delay)
            }
            _ => Answer::File,
        });
    })
}

#[test]
fn a_caller_without_time_leaves_retained_data_alone() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let is_busy = Arc::new(AtomicBool::new(true));
    let live = putting_off(is_busy.clone());
    let client = live.client(|options| options.cache = Some(CacheOptions::default()));
    let file = client.open(b"file", &OpenOptions::read_write()).unwrap();
    let looks: [fn(&Client, &File); 2] = [
        |client, file| {
            let _ = within(Duration::from_millis(20), || client.attributes(file.handle()));
        },
        |client, file| {
            STOP.store(true, Ordering::Relaxed);
            let _ =
                interruptible(|| STOP.load(Ordering::Relaxed), || client.attributes(file.handle()));
        },
    ];
    for look in looks {
        is_busy.store(true, Ordering::Relaxed);
        file.write_at(b"kept", 0, Stability::Unstable).unwrap();
        let free = is_busy.clone();
        let asked = client.stats().answered;
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| look(&client, &file));
            // It has been answered with DELAY a few times before the server has time.
            while client.stats().answered < asked + 10 && !looking.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            free.store(false, Ordering::Relaxed);
        });
        file.commit(0, 0).unwrap();
    }
}

#[test]
fn a_chain_that_a_new_connection_has_no_credits_for_is_told_so() {
    let phase = Arc::new(AtomicUsize::new(0));
    let (server_phase, next) = (phase.clone(), |phase: &AtomicUsize| {
        phase.fetch_add(1, Ordering::AcqRel);
    });
    let live = Live::with_ticks(
        |server| (server.initial_credits, server.target) = (8, 8),
        move |server| match server_phase.load(Ordering::Acquire) {
            1 => {
                server.past.deaf = true;
                server.leave();
                next(&server_phase);
            }
            3 => {
                server.past.deaf = false;
                (server.initial_credits, server.target) = (1, 1);
                next(&server_phase);
            }
            _ => {}
        },
    );
    let client = live.client(|options| options.recovery = Some(Duration::from_secs(120)));
    next(&phase);
    while phase.load(Ordering::Acquire) == 1 || client.is_connected() {
        std::thread::yield_now();
    }
    let error = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let null = |chain: Chain<'static>| chain.then(Request::Null, Takes::Nothing);
            null(null(null(client.chain()))).run().unwrap_err()
        });
        while client.stats().queued < 3 {
            std::thread::yield_now();
        }
        next(&phase);
        asking.join().unwrap()
    });
    assert!(matches!(error, Error::ChainTooLong { members: 3, .. }), "{error}");
    client.ping().unwrap();
}

#[test]
fn a_pending_operation_can_be_cancelled() {
    let live = Live::start(|server| {
        (server.initial_credits, server.target) = (1, 1);
        server.script = Box::new(|_, request| match request {
            Request::ReadInline(_) => Answer::Silence,
            _ => Answer::File,
        });
    });
    let client = live.client(|_| {});
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let buffer = client.buffer(1000).unwrap();
    let mut first = file.submit_read(&buffer, 0..500, 0).unwrap();
    let mut second = file.submit_read(&buffer, 500..1000, 500).unwrap();
    client.flush().unwrap();
    assert!(!first.cancel());
    assert!(second.cancel() && second.is_done());
    let error = second.wait().unwrap_err();
    assert!(matches!(error, Error::Canceled), "{error}");
    assert_eq!((error.to_errno(), error.is_fatal()), (libc::ECANCELED, false));
    assert!(matches!(first.wait_deadline(Duration::from_millis(1)), Err(Error::TimedOut(_))));
}

/// The caller of `close` has its answer; the file must not stay open at the server.
#[test]
fn a_close_without_an_answer_is_made_up_for() {
    let closes = Arc::new(AtomicUsize::new(0));
    let counted = closes.clone();
    let live = Live::scripted(move |_, request| match request {
        Request::Close(_) if counted.fetch_add(1, Ordering::Relaxed) == 0 => Answer::Silence,
        _ => Answer::File,
    });
    let client = live.client(|options| options.deadline = Some(Duration::from_secs(1)));
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let error = file.close().unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    // If it does not come, the test ends with an error.
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while closes.load(Ordering::Relaxed) < 2 {
        assert!(std::time::Instant::now() < end, "the file stays open");
        std::thread::yield_now();
    }
    drop(client);
}
