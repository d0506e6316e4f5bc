//! Chains: form, order, values that members take from each other, and the effect of a broken chain.

mod model;

use crate::common::*;
use crate::responses::{begin, key, lose};
use dafs_engine::SessionLimits;
use dafs_wire::dafs::{self, ByteOrder, FileHandle, Procedure, Reply, Request, StateId, Status};

const FORW: u16 = 0x01;
const BACK: u16 = 0x02;
const SAVE: u16 = 0x04;
const FH: u16 = 0x08;
const STATEID: u16 = 0x10;

/// Requests with their flags.
type Members<'a> = &'a [(u16, Request<'a>)];

/// Values that the chain replaces, so the server must not use them.
const NOWHERE: File = File { fh: FileHandle::ZERO, id: StateId::ZERO };

fn post(world: &mut World, client: usize, flags: u16, request: &Request<'_>) -> u16 {
    world.clients[client].flags = flags;
    let stream = world.clients[client].post(request);
    world.clients[client].flags = 0;
    stream
}

/// Sends all at once and waits for all replies.
fn send(world: &mut World, client: usize, requests: &[(u16, Request<'_>)]) -> Vec<Answer> {
    let streams: Vec<_> =
        requests.iter().map(|(flags, request)| post(world, client, *flags, request)).collect();
    streams.into_iter().map(|stream| world.wait(client, stream).unwrap()).collect()
}

fn statuses(world: &mut World, client: usize, requests: &[(u16, Request<'_>)]) -> Vec<Status> {
    send(world, client, requests).iter().map(Answer::status).collect()
}

fn many() -> Setup {
    let limits = SessionLimits { credits_initial: 64, ..SessionLimits::default() };
    Setup { limits, ..Setup::default() }
}

#[test]
fn open_read_close_goes_in_one_round_trip() {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        for slow in [false, true] {
            let mut world = World::new(Setup::default());
            let (client, _) = begin(&mut world, 2, "a", order);
            let file = world.open(client, b"f");
            world.write(client, file, 0, b"what is in it");
            assert_eq!(world.status(client, &close(file)), Status::Ok);
            world.disk.set_slow(slow);
            let open = open_request(FileHandle::ZERO, F, b"owner");
            let answers = send(
                &mut world,
                client,
                &[
                    (FORW | SAVE, Request::GetRootHandle),
                    (BACK | FORW | FH, Request::Open(open)),
                    (BACK | FORW | FH | STATEID, read_inline(NOWHERE, 0, 100)),
                    // A bulk fetch is in the chain, so no modifying request may follow.
                    (BACK | FH | STATEID, close(NOWHERE)),
                ],
            );
            let Ok(Reply::Open(opened)) = answers[1].reply() else { panic!("{answers:?}") };
            let Ok(Reply::ReadInline(read)) = answers[2].reply() else { panic!("{answers:?}") };
            assert_eq!(read.data, b"what is in it");
            assert_eq!(answers[3].status(), Status::ChainForm);
            assert_eq!(opened.fh, file.fh);
            let opened = File { fh: opened.fh, id: opened.state_id };
            assert_eq!(world.status(client, &close(opened)), Status::Ok);
            assert_eq!(world.service.counts().opens, 0);
            world.end();
        }
    }
}

/// A lock may follow a bulk fetch. The handle and the state-id pass through members that have none.
#[test]
fn handles_and_state_ids_pass_through() {
    let (mut world, client, file) = World::with_file(many());
    let lock = |fh, state_id| {
        Request::Lock(dafs::Lock {
            fh,
            lock_type: dafs::LockType::Write,
            options: dafs::LockOptions::empty(),
            state_id,
            offset: 0,
            length: 10,
        })
    };
    let unlock = dafs::LockU {
        fh: FileHandle::ZERO,
        lock_type: dafs::LockType::Write,
        state_id: StateId::ZERO,
        offset: 0,
        length: 10,
    };
    let all = FH | STATEID | BACK | FORW;
    let chain = [
        (FORW, lock(file.fh, file.id)),
        (BACK | FORW, Request::Null),
        (all, read_inline(NOWHERE, 0, 10)),
        (BACK | FORW, Request::GetRootHandle),
        // The handle is the root's now, the state-id still that of the file.
        (BACK | FORW | FH, lookup(FileHandle::ZERO, F)),
        (FH | STATEID | BACK, Request::LockU(unlock)),
    ];
    assert_eq!(statuses(&mut world, client, &chain), [Status::Ok; 6]);
    assert_eq!(world.service.counts().lock_ranges, 0);
    // LINK and RENAME pass on, and take, the directory of the new name (DAFS O30).
    let root = world.root();
    let link = |target_dir| {
        Request::Link(dafs::Link { source: file.fh, target_dir, name: b"g".as_slice() })
    };
    let rename = dafs::Rename {
        source_dir: root,
        target_dir: FileHandle::ZERO,
        old_name: b"g",
        new_name: b"h",
    };
    let remove = dafs::Remove {
        dir: FileHandle::ZERO,
        name: b"h",
        remove_mode: dafs::RemoveMode::Unchecked,
    };
    let chain = [
        (FORW, Request::GetRootHandle),
        (BACK | FORW | FH, link(FileHandle::ZERO)),
        (BACK | FORW | FH, Request::Rename(rename)),
        (BACK | FH, Request::Remove(remove)),
    ];
    assert_eq!(statuses(&mut world, client, &chain), [Status::Ok; 4]);
    // There must be a value to take.
    for (flags, request) in [(FH, lookup(root, F)), (STATEID, read_inline(file, 0, 1))] {
        let chain = [(FORW, Request::Null), (BACK | flags, request)];
        assert_eq!(statuses(&mut world, client, &chain), [Status::Ok, Status::ChainForm]);
    }
    world.end();
}

#[test]
fn requests_that_break_the_form_are_refused_and_break_the_chain() {
    let (mut world, client, file) = World::with_file(many());
    let null = Request::Null;
    let write = write_inline(file, 0, b"data");
    let read = read_inline(file, 0, 4);
    let batch = Request::BatchSubmit(dafs::BatchSubmit {
        requests: dafs::Seq::empty(),
        usec_window: 0,
        num_completions: 0,
        synchronous: true,
    });
    let (ok, form, broken) = (Status::Ok, Status::ChainForm, Status::ChainBroken);
    let cases: &[(Members<'_>, &[Status])] = &[
        (&[(BACK, null)], &[form]),
        (&[(BACK | FORW, null), (BACK, null)], &[form, broken]),
        (&[(FORW, null), (0, null)], &[ok, form]),
        (
            &[(FORW, null), (FORW, null), (BACK | FORW, null), (BACK, null)],
            &[ok, form, broken, broken],
        ),
        (&[(SAVE, null)], &[form]),
        (&[(SAVE | FORW, null), (BACK, null)], &[ok, ok]),
        (&[(SAVE | FORW, read), (BACK, null)], &[form, broken]),
        (&[(SAVE | FORW, write), (BACK, null)], &[form, broken]),
        (&[(FORW, null), (BACK | SAVE, null)], &[ok, form]),
        (&[(FORW, Request::SecInfo), (BACK, null)], &[form, broken]),
        (&[(FORW, null), (BACK, Request::SecInfo)], &[ok, form]),
        (&[(FORW, null), (BACK, Request::BcNull)], &[ok, form]),
        (&[(FH, read)], &[form]),
        (&[(STATEID, read)], &[form]),
        (&[(FORW | FH, read), (BACK, null)], &[form, broken]),
        (&[(FORW, read), (BACK, write)], &[ok, form]),
        (&[(FORW, read), (BACK | FORW, null), (BACK, write)], &[ok, ok, form]),
        (&[(FORW, write), (BACK | FORW, read), (BACK, null)], &[ok, ok, ok]),
        (&[(FORW, read), (BACK | FH, batch)], &[ok, form]),
        (&[(0x20, null)], &[form]),
        (&[(0x8000 | FORW, null), (BACK, null)], &[form, broken]),
        // Requests behind the chain are not affected.
        (
            &[(FORW, null), (0, null), (0, null), (FORW, write), (BACK, null)],
            &[ok, form, ok, ok, ok],
        ),
    ];
    for (requests, expected) in cases {
        assert_eq!(statuses(&mut world, client, requests), *expected, "{requests:?}");
    }
    world.end();
}

#[test]
fn a_member_that_fails_breaks_the_chain_and_nothing_else() {
    let (mut world, client, file) = World::with_file(many());
    let root = world.root();
    let missing: [&[u8]; 1] = [b"missing"];
    let answers = statuses(
        &mut world,
        client,
        &[
            (FORW, lookup(root, &missing)),
            (BACK | FORW, write_inline(file, 0, b"never")),
            (BACK, Request::Null),
            (0, Request::Null),
        ],
    );
    let broken = Status::ChainBroken;
    assert_eq!(answers, [Status::NoEnt, broken, broken, Status::Ok]);
    assert_eq!(world.disk.writes(), 0);
    // An unknown or malformed request fails like any other.
    let mut header = world.clients[client].header(0);
    header.chain_flags = dafs::ChainFlags::FORW;
    let mut message = world.clients[client].encode(&header, &Request::Null);
    message[32..36].copy_from_slice(&107u32.to_le_bytes());
    world.clients[client].mark(0, Procedure::Null);
    world.clients[client].send_raw(&message);
    assert_eq!(statuses(&mut world, client, &[(BACK, Request::Null)]), [broken]);
    assert_eq!(world.wait(client, 0).unwrap().status(), Status::NotSupp);
    world.end();
}

/// Members run one after the other even on slow disks. Requests behind the chain, and other chains,
/// do not wait for it. The client needs no credit for more than one member at a time.
#[test]
fn members_wait_for_each_other_and_nobody_else_does() {
    let (mut world, client, file) = World::with_file(many());
    let other = world.open(client, b"g");
    world.stall();
    let first = post(&mut world, client, FORW, &write_inline(file, 0, b"one"));
    let second = post(&mut world, client, BACK | FORW, &write_inline(file, 0, b"two"));
    let third = post(&mut world, client, BACK | FORW, &read_inline(file, 0, 3));
    let last = post(&mut world, client, BACK, &Request::Null);
    let next = post(&mut world, client, FORW, &Request::GetRootHandle);
    let behind = post(&mut world, client, BACK, &write_inline(other, 0, b"x"));
    let alone = post(&mut world, client, 0, &Request::Null);
    world.settle();
    assert_eq!(world.jobs(), 2, "the first of one chain, the second of the other");
    for stream in [next, alone] {
        assert_eq!(world.wait(client, stream).unwrap().status(), Status::Ok);
    }
    let expected = [(first, second), (behind, second), (second, third), (third, last)];
    for (done, waiting) in expected {
        assert!(!world.clients[client].has_answer(waiting));
        assert!(world.run_job());
        world.settle();
        assert!(world.clients[client].has_answer(done));
    }
    assert_eq!(world.jobs(), 0);
    world.settle();
    let read = world.wait(client, third).unwrap();
    let Ok(Reply::ReadInline(read)) = read.reply() else { panic!() };
    assert_eq!(read.data, b"two");
    assert_eq!(world.wait(client, last).unwrap().status(), Status::Ok);
    world.end();
}

/// A write without an open that another open refuses half way: the client cannot write the rest before
/// the next member runs.
#[test]
fn a_write_that_is_short_breaks_its_chain() {
    let (mut world, writer, other) = World::with_two(Setup::default());
    let file = world.open(writer, b"f");
    assert_eq!(world.status(writer, &close(file)), Status::Ok);
    let mark = world.open(writer, b"mark");
    world.stall();
    let size = 2 << 20;
    let memory = world.clients[writer].memory_of(&pattern(size, 17));
    let buffers = [memory.direct(0, size as u32)];
    let anonymous = File { id: StateId::ZERO, ..file };
    let request = Request::WriteDirect(write_direct(anonymous, 0, size as u32, &buffers));
    let write = post(&mut world, writer, FORW, &request);
    let next = post(&mut world, writer, BACK, &write_inline(mark, 0, b"all is written"));
    world.run_until("the first job", |world| world.jobs() == 1);
    assert!(world.run_job());
    world.run_until("the second job", |world| world.jobs() == 1);
    let share_deny = dafs::ShareDeny::Write;
    let alone = dafs::Open { share_deny, ..open_request(world.root(), F, b"other") };
    world.open_with(other, &alone).unwrap();
    world.hold_jobs = false;
    let answer = world.wait(writer, write).unwrap();
    assert!((1..size).contains(&(written(&answer).count as usize)));
    assert_eq!(world.wait(writer, next).unwrap().status(), Status::ChainBroken);
    world.disk.set_slow(false);
    assert!(world.read(writer, mark).is_empty());
    world.end();
}

#[test]
fn a_chain_longer_than_the_credits_goes_on_as_they_come() {
    let limits = SessionLimits {
        credits_initial: 1,
        credits_per_session_max: 1,
        ..SessionLimits::default()
    };
    let (mut world, client, file) = World::with_file(Setup { limits, ..Setup::default() });
    for member in 0..20u8 {
        let flags = match member {
            0 => FORW,
            19 => BACK,
            _ => BACK | FORW | FH,
        };
        let write = write_inline(file, u64::from(member), b"x");
        let stream = post(&mut world, client, flags, &write);
        assert_eq!(world.wait(client, stream).unwrap().status(), Status::Ok);
    }
    world.end();
}

/// A message with a damaged header may have been a member or not. Later requests are judged without
/// it.
#[test]
fn a_damaged_message_breaks_the_chain_around_it() {
    let mut world = World::new(many());
    let client = world.session_with(2, "a", 1, CHECKED);
    for (flags, status) in [(BACK, Status::ChainBroken), (0, Status::Ok)] {
        assert_eq!(statuses(&mut world, client, &[(FORW, Request::Null)]), [Status::Ok]);
        let mut header = world.clients[client].header(0);
        header.chain_flags = dafs::ChainFlags::BACK | dafs::ChainFlags::FORW;
        let mut message = world.clients[client].encode(&header, &Request::Null);
        message[16] ^= 1;
        world.clients[client].send_raw(&message);
        world.settle();
        assert_eq!(world.clients[client].stray.len(), 1);
        world.clients[client].stray.clear();
        assert_eq!(statuses(&mut world, client, &[(flags, Request::Null)]), [status]);
    }
    let chain = [(FORW, Request::Null), (BACK, Request::Null)];
    assert_eq!(statuses(&mut world, client, &chain), [Status::Ok; 2]);
    world.end();
}

/// Members that had not begun when the connection was lost are not executed. The client asks for
/// the results of the others one by one (DAFS 8).
#[test]
fn a_chain_in_the_middle_of_which_the_connection_is_lost() {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        let mut world = World::new(Setup::default());
        let (client, id) = begin(&mut world, 2, "a", order);
        let file = world.open(client, b"f");
        world.stall();
        let (root, path): (_, [&[u8]; 1]) = (world.root(), [b"f"]);
        let saved = post(&mut world, client, FORW | SAVE, &lookup(root, &path));
        let plain = post(&mut world, client, FORW | BACK, &Request::Null);
        let done = post(&mut world, client, FORW | BACK, &write_inline(file, 0, b"done"));
        let never = post(&mut world, client, BACK, &write_inline(file, 0, b"never"));
        world.settle();
        assert_eq!(world.jobs(), 1);
        let keys = [
            (saved, Procedure::Lookup, Status::Ok),
            (plain, Procedure::Null, Status::NoXidMatch),
            (done, Procedure::WriteInline, Status::Ok),
            (never, Procedure::WriteInline, Status::NoXidMatch),
        ];
        let keys = keys.map(|(stream, procedure, expected)| {
            (key(&mut world, client, id, stream, procedure), expected)
        });
        lose(&mut world, client);
        world.settle();
        assert_eq!(world.counts().pending, 1);
        world.hold_jobs = false;
        let (new, _) = begin(&mut world, 3, "a", order);
        for (asked, expected) in keys {
            assert_eq!(world.status(new, &Request::CheckResponse(asked)), expected, "{asked:?}");
        }
        // CHECK and FETCH may be chained.
        let asked = keys[2].0;
        let chain = [(FORW, Request::CheckResponse(asked)), (BACK, Request::FetchResponse(asked))];
        assert_eq!(statuses(&mut world, new, &chain), [Status::Ok; 2]);
        let lost = keys[3].0;
        let chain = [(FORW, Request::CheckResponse(lost)), (BACK, Request::FetchResponse(lost))];
        let missing = [Status::NoXidMatch, Status::ChainBroken];
        assert_eq!(statuses(&mut world, new, &chain), missing);
        world.end();
    }
}
