//! Opens and locks over a restart of the server.

use crate::fake::requests::{self, opened, recovering};
use crate::fake::{Answer, ROOT, World, pattern};
use dafs_client::core::{Done, Piece, ReadCall, SessionConfig, Stage};
use dafs_client::{Procedure, Status};
use dafs_wire::dafs::*;
use std::time::Duration;

fn world() -> World {
    World::open_with(recovering(), |server| {
        server.file = pattern(10_000);
        server.past.names_opens = true;
    })
}

/// The same, with a server that wants to hear when all is reclaimed.
fn listening(config: SessionConfig) -> World {
    World::open_with(config, |server| {
        server.file = pattern(10_000);
        server.past.names_opens = true;
        server.completes = true;
    })
}

fn told(world: &World) -> usize {
    world.server.count(Procedure::XReclaimComplete)
}

fn open(world: &mut World, owner: &[u8], share_deny: ShareDeny) -> StateId {
    let tag = world.ask_and_wait(&requests::open(owner, share_deny));
    opened(&world.done[&tag])
}

fn lock(world: &mut World, state_id: StateId, offset: u64, length: u64) -> u64 {
    world.ask(&requests::lock(state_id, offset, length))
}

fn read(world: &mut World, state_id: StateId) -> Result<Vec<u8>, Status> {
    let memory = world.memory(&[0; 8]);
    let into = Piece::new(&memory, 0, 8).unwrap();
    let tag = world.tag();
    let call = ReadCall { handle: ROOT, state_id, offset: 0, into, hint: HintWord::NONE };
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
    let tag = world.ask_and_wait(&Request::Close(Close { fh: ROOT, state_id }));
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

/// The requests by which a client takes a locked file back from a restarted server.
const RECLAIM: [Procedure; 6] = [
    Procedure::ClientConnectAuth,
    Procedure::DiscardResponses,
    Procedure::GetRootHandle,
    Procedure::GetFsAttr,
    Procedure::Open,
    Procedure::Lock,
];

#[test]
fn opens_and_locks_come_back_under_the_names_that_the_application_knows() {
    let mut world = world();
    let unused = open(&mut world, b"unused", ShareDeny::None);
    let one = open(&mut world, b"one", ShareDeny::Write);
    let two = open(&mut world, b"two", ShareDeny::None);
    let locked = lock(&mut world, two, 10, 5);
    world.run_all(&[locked]);
    // So that the numbers are reused in another order.
    assert_eq!(close(&mut world, unused), Status::Ok);
    for _ in 0..3 {
        restart(&mut world);
        assert_eq!(read(&mut world, one).unwrap(), b"one");
        assert_eq!(read(&mut world, two).unwrap(), b"two");
        assert_eq!(world.server.past.locks, [(b"two".to_vec(), 10, 5, true)]);
        assert_eq!(world.server.past.opens.len(), 2);
    }
    // A new open may have the number by which the application knows another open.
    let three = open(&mut world, b"three", ShareDeny::None);
    assert!(three != one && three != two);
    assert_eq!(read(&mut world, three).unwrap(), b"three");
    assert_eq!(read(&mut world, two).unwrap(), b"two");
    for state_id in [one, two, three] {
        assert_eq!(close(&mut world, state_id), Status::Ok);
    }
    assert!(world.server.past.opens.is_empty());
    // A closed open is not reclaimed.
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
    assert_eq!(seen, [&RECLAIM[..], &[Procedure::ReadInline]].concat());
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
    // It is no longer known; the server answers about such a number.
    assert_eq!(close(&mut world, jealous), Status::BadStateId);
}

#[test]
fn the_server_is_not_asked_where_the_blocks_of_a_lost_open_are() {
    let config = SessionConfig { optimistic: true, ..recovering() };
    let mut world = World::open_with(config, |server| {
        server.file = pattern(10_000);
        server.past.names_opens = true;
    });
    let lost = open(&mut world, b"jealous", ShareDeny::Write);
    world.server.script = Box::new(|_, request| match request {
        Request::Open(Open { claim: OpenClaim::Previous { .. }, .. }) => {
            Answer::Status(Status::Inval)
        }
        _ => Answer::File,
    });
    restart(&mut world);
    for _ in 0..10 {
        assert_eq!(read(&mut world, lost).unwrap_err(), Status::StaleStateId);
        world.run_for(Duration::from_millis(50));
    }
    assert_eq!(world.server.shown.binds, 1, "there is a channel");
    assert_eq!(world.server.count(Procedure::XExposeGet), 0);
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
    // The open itself exists, and is closed at the server.
    assert_eq!(world.server.past.opens.len(), 1);
    assert_eq!(close(&mut world, state), Status::Ok);
    assert!(world.server.past.opens.is_empty());
}

#[test]
fn an_open_that_was_granted_before_the_crash_is_reclaimed_too() {
    let mut world = world();
    world.server.hold = true;
    let tag = world.ask(&requests::open(b"late", ShareDeny::Write));
    world.run(|world| !world.server.past.opens.is_empty());
    world.server.hold = false;
    restart(&mut world);
    let state_id = opened(&world.done[&tag]);
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
        let call =
            ReadCall { handle: ROOT, state_id: state, offset: 0, into, hint: HintWord::NONE };
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

/// A new open is answered with GRACE until the grace period is over, and then no lock can be
/// reclaimed any more.
#[test]
fn an_open_that_is_made_anew_holds_no_lock_back() {
    let mut world = world();
    let plain = open(&mut world, b"plain", ShareDeny::None);
    let locking = open(&mut world, b"locking", ShareDeny::None);
    let locked = lock(&mut world, locking, 10, 5);
    world.run_all(&[locked]);
    let over = std::rc::Rc::new(std::cell::Cell::new(false));
    let grace = over.clone();
    world.server.script = Box::new(move |_, request| match request {
        Request::Open(Open { claim: OpenClaim::Previous { .. }, owner: b"plain", .. }) => {
            Answer::Status(Status::Inval)
        }
        Request::Open(Open { claim: OpenClaim::Null { .. }, .. }) if !grace.get() => {
            Answer::Status(Status::Grace)
        }
        Request::Lock(_) if grace.get() => Answer::Status(Status::Inval),
        _ => Answer::File,
    });
    world.server.restart(true);
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.server.past.locks, [(b"locking".to_vec(), 10, 5, true)]);
    assert_eq!(world.core.stage(), Stage::Recovering);
    over.set(true);
    world.run(|world| world.core.stage() == Stage::Ready);
    assert_eq!(read(&mut world, plain).unwrap(), b"plain");
    assert_eq!(read(&mut world, locking).unwrap(), b"locking");
}

#[test]
fn an_open_that_is_put_off_for_ever_costs_itself_alone() {
    for claims in [true, false] {
        let mut world = world();
        let stuck = open(&mut world, b"stuck", ShareDeny::Write);
        let locking = open(&mut world, b"locking", ShareDeny::None);
        let locked = lock(&mut world, locking, 10, 5);
        world.run_all(&[locked]);
        world.server.script = Box::new(move |_, request| match request {
            Request::Open(Open { owner: b"stuck", .. }) if claims => Answer::Status(Status::Delay),
            Request::Lock(_) if !claims => Answer::Status(Status::Delay),
            _ => Answer::File,
        });
        world.server.restart(true);
        world.run_for(Duration::from_secs(5));
        assert_eq!(world.server.past.locks.len(), usize::from(claims));
        world.run(|world| world.core.stage() != Stage::Recovering);
        assert_eq!(world.core.stage(), Stage::Ready, "{:?}", world.core.failure());
        let (lost, kept) = if claims { (stuck, locking) } else { (locking, stuck) };
        assert_eq!(read(&mut world, lost).unwrap_err(), Status::StaleStateId);
        assert!(read(&mut world, kept).is_ok());
    }
}

#[test]
fn a_restarted_server_is_told_once_that_all_is_reclaimed() {
    let mut world = listening(recovering());
    let state = open(&mut world, b"me", ShareDeny::None);
    let locked = lock(&mut world, state, 0, u64::MAX);
    world.run_all(&[locked]);
    world.lose_and_notice();
    read(&mut world, state).unwrap();
    assert_eq!(told(&world), 0, "it has not restarted");
    for restarts in 1..=2 {
        let before = world.server.seen.len();
        restart(&mut world);
        read(&mut world, state).unwrap();
        let seen: Vec<_> = world.server.seen[before..].iter().map(|seen| seen.0).collect();
        let then = [Procedure::XReclaimComplete, Procedure::ReadInline];
        assert_eq!(seen, [&RECLAIM[..], &then].concat());
        world.run_for(Duration::from_secs(1));
        assert_eq!(told(&world), restarts);
        assert!(world.core.is_idle());
    }
}

#[test]
fn the_server_is_told_behind_the_last_lock() {
    let mut world = listening(recovering());
    let state = open(&mut world, b"me", ShareDeny::None);
    let locked = lock(&mut world, state, 10, 5);
    world.run_all(&[locked]);
    let mut delays = 3;
    world.server.script = Box::new(move |_, request| match request {
        Request::Lock(_) if delays > 0 => {
            delays -= 1;
            Answer::Status(Status::Delay)
        }
        _ => Answer::File,
    });
    let before = world.server.seen.len();
    restart(&mut world);
    world.run(|world| told(world) == 1);
    let seen: Vec<_> = world.server.seen[before..].iter().map(|seen| seen.0).collect();
    use Procedure as P;
    assert_eq!(seen[4..], [P::Open, P::Lock, P::Lock, P::Lock, P::Lock, P::XReclaimComplete]);
    assert_eq!(world.server.past.locks, [(b"me".to_vec(), 10, 5, true)]);
}

/// A server waits for the end of reclaims before it grants a new open.
#[test]
fn the_server_is_told_before_an_open_is_made_anew() {
    let mut world = listening(recovering());
    let plain = open(&mut world, b"plain", ShareDeny::None);
    let was_told = std::rc::Rc::new(std::cell::Cell::new(false));
    let tells = was_told.clone();
    world.server.script = Box::new(move |_, request| match request {
        Request::XReclaimComplete => {
            tells.set(true);
            Answer::File
        }
        Request::Open(Open { claim: OpenClaim::Previous { .. }, .. }) => {
            Answer::Status(Status::Inval)
        }
        Request::Open(_) if !tells.get() => Answer::Status(Status::Grace),
        _ => Answer::File,
    });
    restart(&mut world);
    assert!(was_told.get());
    assert_eq!(read(&mut world, plain).unwrap(), b"plain");
    assert_eq!(told(&world), 1);
}

#[test]
fn a_message_that_a_lost_connection_has_taken_along_is_sent_again() {
    let mut world = listening(recovering());
    let state = open(&mut world, b"me", ShareDeny::None);
    world.server.script = Box::new(|_, request| match request {
        Request::XReclaimComplete => Answer::Silence,
        _ => Answer::File,
    });
    // No call waits for the answer.
    restart(&mut world);
    assert_eq!(read(&mut world, state).unwrap(), b"me");
    assert_eq!(told(&world), 1);
    world.server.script = Box::new(|_, _| Answer::File);
    for times in [2, 2] {
        world.lose_and_notice();
        assert_eq!(read(&mut world, state).unwrap(), b"me");
        world.run_for(Duration::from_secs(1));
        assert_eq!(told(&world), times);
    }
    assert_eq!(world.server.count(Procedure::Open), 2, "it has restarted once");
}

#[test]
fn a_server_that_does_not_listen_is_told_nothing() {
    let mut world = world();
    let state = open(&mut world, b"me", ShareDeny::Write);
    restart(&mut world);
    assert_eq!(read(&mut world, state).unwrap(), b"me");
    world.run_for(Duration::from_secs(1));
    assert_eq!(told(&world), 0);
}

/// The message would speak for a session of another process, too, which may be late.
#[test]
fn no_server_is_told_while_two_processes_are_one_client() {
    let mut world = listening(SessionConfig { shares_identity: true, ..recovering() });
    let state = open(&mut world, b"me", ShareDeny::Write);
    restart(&mut world);
    assert_eq!(read(&mut world, state).unwrap(), b"me");
    world.run_for(Duration::from_secs(1));
    assert_eq!(told(&world), 0);
    // The other process ends, and another one comes.
    world.core.share_identity(false);
    assert_eq!(read(&mut world, state).unwrap(), b"me");
    world.run(|world| told(world) == 1);
    world.core.share_identity(true);
    restart(&mut world);
    assert_eq!(read(&mut world, state).unwrap(), b"me");
    world.run_for(Duration::from_secs(1));
    assert_eq!(told(&world), 1);
}
