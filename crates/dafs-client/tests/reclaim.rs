//! Opens and locks over a restart of the server.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fake;

use dafs_client::core::{Done, Piece, ReadCall, SessionConfig, Stage};
use dafs_client::{Procedure, Status};
use dafs_wire::dafs::*;
use fake::{Answer, ROOT, World, pattern};
use std::time::Duration;

fn world() -> World {
    let config = SessionConfig { recovery: Some(Duration::from_secs(120)), ..World::config() };
    World::open_with(config, |server| {
        server.file = pattern(10_000);
        server.past.names_opens = true;
    })
}

fn open(world: &mut World, owner: &[u8], share_deny: ShareDeny) -> StateId {
    let tag = world.ask(&Request::Open(Open {
        claim: OpenClaim::Null { dir: ROOT, path: Path::new(&[b"file"]) },
        create: None,
        delete_disposition: DeleteDisposition::DontCare,
        owner,
        share_access: ShareAccess::Both,
        share_deny,
        share_key: ShareKey(None),
    }));
    world.run_all(&[tag]);
    let Done::Answered(reply) = &world.done[&tag] else { panic!("{:?}", world.done[&tag]) };
    match reply.decode().unwrap() {
        Outcome::Ok(Reply::Open(reply)) => reply.state_id,
        other => panic!("{other:?}"),
    }
}

fn lock(world: &mut World, state_id: StateId, offset: u64, length: u64) -> u64 {
    let options = LockOptions::default();
    let lock_type = LockType::Write;
    world.ask(&Request::Lock(Lock { fh: ROOT, lock_type, options, state_id, offset, length }))
}

fn read(world: &mut World, state_id: StateId) -> Result<Vec<u8>, Status> {
    let memory = world.memory(&[0; 8]);
    let into = Piece::new(&memory, 0, 8).unwrap();
    let tag = world.tag();
    let call = ReadCall { handle: ROOT, state_id, offset: 0, into };
    let (now, deadline) = (world.now, Some(Duration::from_secs(60)));
    world.core.submit_read(&mut world.adapter, now, tag, call, deadline).unwrap();
    world.run_all(&[tag]);
    match world.done[&tag] {
        Done::Read { .. } => Ok(world.server.past.used.pop().unwrap_or_default()),
        Done::Refused { status, .. } => Err(status),
        ref other => panic!("{other:?}"),
    }
}

fn close(world: &mut World, state_id: StateId) -> Status {
    let tag = world.ask(&Request::Close(Close { fh: ROOT, state_id }));
    world.run_all(&[tag]);
    match &world.done[&tag] {
        Done::Answered(reply) => reply.status(),
        other => panic!("{other:?}"),
    }
}

fn restart(world: &mut World) {
    world.server.restart(true);
    world.run(|world| world.core.stage() == Stage::Recovering);
    world.run(|world| world.core.stage() == Stage::Ready);
}

#[test]
fn opens_and_locks_come_back_under_the_names_that_the_application_knows() {
    let mut world = world();
    let unused = open(&mut world, b"unused", ShareDeny::None);
    let one = open(&mut world, b"one", ShareDeny::Write);
    let two = open(&mut world, b"two", ShareDeny::None);
    let locked = lock(&mut world, two, 10, 5);
    world.run_all(&[locked]);
    // So that the numbers are given out anew in another order.
    assert_eq!(close(&mut world, unused), Status::Ok);
    for _ in 0..3 {
        restart(&mut world);
        assert_eq!(read(&mut world, one).unwrap(), b"one");
        assert_eq!(read(&mut world, two).unwrap(), b"two");
        assert_eq!(world.server.past.locks, [(b"two".to_vec(), 10, 5, true)]);
        assert_eq!(world.server.past.opens.len(), 2);
    }
    // The number of a new open may be the one that the application knows another open by.
    let three = open(&mut world, b"three", ShareDeny::None);
    assert!(three != one && three != two);
    assert_eq!(read(&mut world, three).unwrap(), b"three");
    assert_eq!(read(&mut world, two).unwrap(), b"two");
    for state_id in [one, two, three] {
        assert_eq!(close(&mut world, state_id), Status::Ok);
    }
    assert!(world.server.past.opens.is_empty());
    // What was closed is not asked for again.
    restart(&mut world);
    assert!(world.server.past.opens.is_empty());
}

#[test]
fn reclaiming_comes_before_all_else() {
    let mut world = world();
    let state = open(&mut world, b"me", ShareDeny::None);
    let locked = lock(&mut world, state, 0, u64::MAX);
    world.run_all(&[locked]);
    world.server.restart(true);
    let before = world.server.seen.len();
    world.run(|world| world.core.stage() == Stage::Recovering);
    read(&mut world, state).unwrap();
    let seen: Vec<_> = world.server.seen[before..].iter().map(|seen| seen.0).collect();
    use Procedure as P;
    assert_eq!(
        seen,
        [
            P::ClientConnectAuth,
            P::DiscardResponses,
            P::GetRootHandle,
            P::GetFsAttr,
            P::Open,
            P::Lock,
            P::ReadInline
        ]
    );
}

#[test]
fn an_open_that_is_refused_is_made_anew_or_reported() {
    let mut world = world();
    let plain = open(&mut world, b"plain", ShareDeny::None);
    let jealous = open(&mut world, b"jealous", ShareDeny::Write);
    let locking = open(&mut world, b"locking", ShareDeny::None);
    let locked = lock(&mut world, locking, 0, 1);
    world.run_all(&[locked]);
    world.server.script = Box::new(|_, request| match request {
        Request::Open(Open { claim: OpenClaim::Previous { .. }, .. }) => {
            Answer::Status(Status::Inval)
        }
        _ => Answer::File,
    });
    restart(&mut world);
    assert_eq!(read(&mut world, plain).unwrap(), b"plain");
    let before = world.server.seen.len();
    for state_id in [jealous, locking] {
        assert_eq!(read(&mut world, state_id).unwrap_err(), Status::StaleStateId);
        assert_eq!(close(&mut world, state_id), Status::StaleStateId);
    }
    assert_eq!(world.server.seen.len(), before, "the server is not asked about it");
    // It is known no more; the server says what it thinks of such a number.
    assert_eq!(close(&mut world, jealous), Status::BadStateId);
}

#[test]
fn a_lock_that_is_lost_makes_its_open_useless() {
    let mut world = world();
    let state = open(&mut world, b"me", ShareDeny::None);
    let locked = [lock(&mut world, state, 0, 1), lock(&mut world, state, 5, 1)];
    world.run_all(&locked);
    world.server.script = Box::new(|_, request| match request {
        Request::Lock(Lock { offset: 5, .. }) => Answer::Status(Status::Denied),
        _ => Answer::File,
    });
    restart(&mut world);
    assert_eq!(read(&mut world, state).unwrap_err(), Status::StaleStateId);
    // The open itself is there, and is closed at the server.
    assert_eq!(world.server.past.opens.len(), 1);
    assert_eq!(close(&mut world, state), Status::Ok);
    assert!(world.server.past.opens.is_empty());
}

#[test]
fn an_open_that_was_granted_before_the_crash_is_reclaimed_too() {
    let mut world = world();
    world.server.hold = true;
    let tag = world.ask(&Request::Open(Open {
        claim: OpenClaim::Null { dir: ROOT, path: Path::new(&[b"file"]) },
        create: None,
        delete_disposition: DeleteDisposition::DontCare,
        owner: b"late",
        share_access: ShareAccess::Both,
        share_deny: ShareDeny::Write,
        share_key: ShareKey(None),
    }));
    world.run(|world| !world.server.past.opens.is_empty());
    world.server.hold = false;
    restart(&mut world);
    let Done::Answered(reply) = &world.done[&tag] else { panic!() };
    let Outcome::Ok(Reply::Open(reply)) = reply.decode().unwrap() else { panic!() };
    let state_id = reply.state_id;
    assert_eq!(read(&mut world, state_id).unwrap(), b"late");
    assert_eq!(world.server.count(Procedure::Open), 2);
}

#[test]
fn grace_is_waited_out_within_the_deadline() {
    let mut world = world();
    let state = open(&mut world, b"me", ShareDeny::None);
    let until = world.now + Duration::from_secs(10);
    let clock = std::rc::Rc::new(std::cell::Cell::new(world.now));
    let time = clock.clone();
    world.server.script = Box::new(move |_, request| match request {
        Request::ReadInline(_) if time.get() < until => Answer::Status(Status::Grace),
        _ => Answer::File,
    });
    let memory = world.memory(&[0; 8]);
    let read = |world: &mut World, seconds| {
        let tag = world.tag();
        let into = Piece::new(&memory, 0, 8).unwrap();
        let call = ReadCall { handle: ROOT, state_id: state, offset: 0, into };
        let (now, deadline) = (world.now, Some(Duration::from_secs(seconds)));
        world.core.submit_read(&mut world.adapter, now, tag, call, deadline).unwrap();
        tag
    };
    let (short, long) = (read(&mut world, 3), read(&mut world, 30));
    world.run(|world| {
        clock.set(world.now);
        world.done.contains_key(&short) && world.done.contains_key(&long)
    });
    assert!(matches!(world.done[&short], Done::Refused { status: Status::Grace, .. }));
    assert!(matches!(world.done[&long], Done::Read { .. }));
    assert!(world.core.is_idle());
}
