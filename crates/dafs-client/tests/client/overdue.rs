//! Calls whose callers have timed out, and their fate at the server.

use crate::fake::live::Live;
use crate::fake::requests::{create, is_ok, lock, open, opened, recovering};
use crate::fake::{Answer, World, pattern};
use dafs_client::core::{Done, Failure, Piece, Stage};
use dafs_client::{Error, OpenOptions, Procedure, within};
use dafs_wire::dafs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const AFTER: Duration = Duration::from_secs(5);

fn world(credits: u16) -> World {
    World::open_with(recovering(), |server| {
        server.file = pattern(50_000);
        server.past.names_opens = true;
        (server.initial_credits, server.target) = (credits, credits);
        // The lease needs no keep-alive in the time of the test.
        server.lease_seconds = 1_000_000;
    })
}

fn give_up(world: &mut World, tag: u64) {
    world.core.give_up(&mut world.adapter, world.now, tag, AFTER);
    world.run_all(&[tag]);
}

fn is_unsent(done: &Done) -> bool {
    matches!(done, Done::Lost(Failure::Unsent(AFTER)))
}

fn is_overdue(done: &Done) -> bool {
    matches!(done, Done::Lost(Failure::Deadline(_)))
}

/// Sends a request that the server carries out without sending its answer.
fn ask_in_vain(world: &mut World, request: &Request<'_>) -> u64 {
    world.server.hold = true;
    let (tag, before) = (world.ask(request), world.server.in_hand);
    world.run(|world| world.server.in_hand > before);
    world.server.hold = false;
    tag
}

fn settle(world: &mut World) {
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.core.stage(), Stage::Ready);
    assert!(world.core.is_idle());
}

#[test]
fn an_unsent_request_is_known_not_to_be_done() {
    let mut world = world(1);
    let first = ask_in_vain(&mut world, &create(b"first"));
    let second = world.ask(&create(b"second"));
    give_up(&mut world, second);
    assert!(is_unsent(&world.done[&second]));
    give_up(&mut world, first);
    assert!(is_overdue(&world.done[&first]), "the server has it");
    assert_eq!(world.core.stage(), Stage::Ready, "no memory is at stake");
    world.server.release();
    settle(&mut world);
    assert_eq!(world.server.past.came.get(&b"second"[..]), None);
    assert_eq!(world.server.count(Procedure::ClientConnectAuth), 1);
    // While the server is unreachable, requests that it has seen may be done, and no others.
    let third = ask_in_vain(&mut world, &create(b"third"));
    world.server.past.deaf = true;
    world.lose_and_notice();
    let fourth = world.ask(&create(b"fourth"));
    give_up(&mut world, third);
    give_up(&mut world, fourth);
    assert!(is_overdue(&world.done[&third]) && is_unsent(&world.done[&fourth]));
    world.server.past.deaf = false;
    settle(&mut world);
    assert_eq!(world.server.past.came.get(&b"fourth"[..]), None);
}

/// So does a call whose own deadline is over before it could be sent.
#[test]
fn a_request_without_a_connection_times_out_undone() {
    let mut world = world(8);
    world.server.past.deaf = true;
    world.lose_and_notice();
    let tag = world.ask_and_wait(&create(b"name"));
    assert!(matches!(world.done[&tag], Done::Lost(Failure::Unsent(_))), "{:?}", world.done[&tag]);
}

#[test]
fn memory_is_out_of_reach_when_its_call_is_over() {
    for reads in [true, false] {
        let mut world = world(8);
        world.server.script = Box::new(|_, request| match request {
            Request::ReadDirect(_) | Request::WriteDirect(_) => Answer::Silence,
            _ => Answer::File,
        });
        let memory = world.memory(&[7; 20_000]);
        let piece = Piece::new(&memory, 0, 20_000).unwrap();
        let tag = if reads { world.read(piece, 0) } else { world.write(piece, 0) };
        let other = ask_in_vain(&mut world, &create(b"other"));
        let key = Piece::new(&memory, 0, 1).unwrap().direct_buffer();
        give_up(&mut world, tag);
        assert!(is_overdue(&world.done[&tag]));
        // Data that the server sends there now does not arrive.
        world.server.script = Box::new(|_, _| Answer::File);
        world.server.push(&[9; 100], key);
        world.run_all(&[other]);
        assert!(is_ok(&world.done[&other]), "others go on");
        settle(&mut world);
        assert_eq!(memory.view().to_vec(dafs_mem::Site::Inspect), [7; 20_000]);
        let asked = [Procedure::ReadDirect, Procedure::WriteDirect].map(|p| world.server.count(p));
        assert_eq!(asked.iter().sum::<usize>(), 1, "it is not asked for again");
        assert_eq!(world.server.past.came[&b"other"[..]], 1);
    }
}

#[test]
fn a_late_open_is_closed() {
    // By the late answer, and by the result of recovery.
    for lost in [false, true] {
        let mut world = world(8);
        let tag = ask_in_vain(&mut world, &open(b"late", ShareDeny::Write));
        assert_eq!(world.server.past.opens.len(), 1);
        give_up(&mut world, tag);
        assert!(is_overdue(&world.done[&tag]));
        if lost {
            world.lose_and_notice();
        }
        world.server.release();
        world.run(|world| world.core.stage() == Stage::Ready);
        settle(&mut world);
        assert!(world.server.past.opens.is_empty(), "lost: {lost}");
        assert_eq!(world.server.count(Procedure::Close), 1);
    }
}

/// The timeout of the call cuts the connection, and recovery finds out what was done on it.
#[test]
fn a_late_open_or_lock_is_undone() {
    let mut world = world(8);
    let held = world.ask_and_wait(&open(b"held", ShareDeny::None));
    let state_id = opened(&world.done[&held]);
    let tags = [
        ask_in_vain(&mut world, &open(b"late", ShareDeny::Write)),
        ask_in_vain(&mut world, &lock(state_id, 10, 5)),
    ];
    assert_eq!((world.server.past.opens.len(), world.server.past.locks.len()), (2, 1));
    world.run_all(&tags);
    assert!(tags.iter().all(|tag| is_overdue(&world.done[tag])));
    world.run(|world| world.core.stage() == Stage::Ready);
    settle(&mut world);
    assert_eq!(world.server.past.opens.values().collect::<Vec<_>>(), [b"held"]);
    assert!(world.server.past.locks.is_empty());
    // Neither is reclaimed when the server restarts.
    world.server.restart(true);
    world.run(|world| world.core.stage() == Stage::Recovering);
    world.run(|world| world.core.stage() == Stage::Ready);
    assert_eq!(world.server.past.opens.len(), 1);
    assert!(world.server.past.locks.is_empty());
}

#[test]
fn a_request_without_a_waiter_is_not_repeated() {
    let mut world = world(8);
    world.server.script = Box::new(|_, request| match request {
        Request::Open(_) => Answer::Silence,
        _ => Answer::File,
    });
    world.ask_and_wait(&open(b"late", ShareDeny::Write));
    world.server.script = Box::new(|_, _| Answer::File);
    world.run(|world| world.core.stage() == Stage::Ready);
    settle(&mut world);
    assert_eq!(world.server.count(Procedure::Open), 1);
    assert!(world.server.past.opens.is_empty());
}

#[test]
fn a_lock_that_came_too_late_is_released_unless_it_is_wanted_again() {
    for again in [false, true] {
        let mut world = world(8);
        let held = world.ask_and_wait(&open(b"held", ShareDeny::None));
        let state_id = opened(&world.done[&held]);
        let late = ask_in_vain(&mut world, &lock(state_id, 0, 10));
        give_up(&mut world, late);
        if again {
            let tag = world.ask_and_wait(&lock(state_id, 5, 10));
            assert!(is_ok(&world.done[&tag]));
        }
        world.server.release();
        settle(&mut world);
        assert_eq!(world.server.count(Procedure::LockU), usize::from(!again));
        assert_eq!(world.server.past.locks.len(), if again { 2 } else { 0 });
    }
}

#[test]
fn a_delayed_release_is_retried() {
    let mut world = world(8);
    let tag = ask_in_vain(&mut world, &open(b"late", ShareDeny::Write));
    give_up(&mut world, tag);
    let mut busy = 3;
    world.server.script = Box::new(move |_, request| match request {
        Request::Close(_) if busy > 0 => {
            busy -= 1;
            Answer::Status(Status::Delay)
        }
        _ => Answer::File,
    });
    world.server.release();
    settle(&mut world);
    assert!(world.server.past.opens.is_empty());
    assert_eq!(world.server.count(Procedure::Close), 4);
}

type Call<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// A server that answers only NULLs, and counts other requests.
fn stuck(counted: Arc<AtomicUsize>) -> Live {
    Live::start(|server| {
        server.file = pattern(50_000);
        server.script = Box::new(move |_, request| match request {
            Request::Commit(_)
            | Request::ReadInline(_)
            | Request::ReadDirect(_)
            | Request::WriteInline(_)
            | Request::WriteDirect(_)
            | Request::Create(_) => {
                counted.fetch_add(1, Ordering::Relaxed);
                Answer::Silence
            }
            _ => Answer::File,
        });
    })
}

#[test]
fn every_call_is_over_in_the_time_of_its_caller() {
    let asked = Arc::new(AtomicUsize::new(0));
    let live = stuck(asked.clone());
    let client = live.client(|_| {});
    let file = client.open(b"file", &OpenOptions::read_write()).unwrap();
    let buffer = client.buffer(20_000).unwrap();
    let time = Duration::from_millis(20);
    let mut bytes = vec![0; 300_000];
    let root = client.root();
    let stable = Stability::FileSync;
    let calls: [(&str, Call<'_>); 7] = [
        ("commit", &mut || file.commit(0, 0)),
        ("read_at", &mut || file.read_at(&mut bytes, 0).map(drop)),
        ("write_at", &mut || file.write_at(&[1; 100], 0, stable).map(drop)),
        ("read_into", &mut || file.read_into(&buffer, 0..20_000, 0).map(drop)),
        ("write_from", &mut || file.write_from(&buffer, 0..20_000, 0, stable).map(drop)),
        ("create", &mut || client.mkdir(&root, b"name", &Default::default()).map(drop)),
        ("pending", &mut || file.submit_read(&buffer, 0..9, 0)?.wait().map(drop)),
    ];
    for (name, call) in calls {
        let (start, before) = (Instant::now(), asked.load(Ordering::Relaxed));
        let error = within(time, call).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(30), "{name}");
        // A busy machine may not have come to send it.
        let sent = asked.load(Ordering::Relaxed) > before;
        match error {
            Error::Deadline { after, .. } => assert_eq!(after, time, "{name}"),
            Error::NotSent { .. } => assert!(!sent, "{name}"),
            error => panic!("{name}: {error}"),
        }
        client.ping().unwrap();
    }
    assert!(asked.load(Ordering::Relaxed) > 0);
    drop(file);
}

/// A COMMIT that the server never answers, though it answers others.
#[test]
fn nothing_is_waited_for_for_ever() {
    let live = stuck(Arc::default());
    let client = live.client(|options| options.deadline = Some(Duration::from_millis(50)));
    let file = client.open(b"file", &OpenOptions::read_write()).unwrap();
    let error = file.commit(0, 0).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    client.ping().unwrap();
}

/// The server's lease has run on while the machine was suspended, which no clock of the session
/// counts.
#[test]
fn promises_run_out_in_a_sleep() {
    let mut world = world(8);
    let lease = world.core.info().lease;
    let until = world.core.promised_until();
    assert!(until > world.now);
    world.core.slept(lease);
    assert!(world.core.promised_until() <= world.now, "{until:?}");
    // An answer counts from the sending time of its request, before the suspension.
    let tag = ask_in_vain(&mut world, &Request::Null);
    world.core.slept(lease);
    world.server.release();
    world.run_all(&[tag]);
    assert!(world.core.promised_until() <= world.now);
    world.ask_and_wait(&Request::Null);
    assert!(world.core.promised_until() > world.now, "the server has answered since");
}
