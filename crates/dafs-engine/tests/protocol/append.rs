//! APPEND: its offset, its effect when it fails, and refusals.

use crate::common::*;
use dafs_dat::Access;
use dafs_service::Squash;
use dafs_wire::dafs::{
    self, DirectBuffer, FsAttrMask, Reply, Request, SessionOptions, Stability, Status, checksum,
};

/// The server's MAX_APPEND.
const APPEND_BYTES_MAX: u32 = 1 << 20;

fn appended(answer: &Answer) -> dafs::AppendReply {
    match answer.reply() {
        Ok(Reply::AppendInline(reply) | Reply::AppendDirect(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn appends_go_one_behind_the_other_and_tell_where() {
    both_ways(|maps| {
        let (mut world, one, two) = World::with_two(Setup { maps, ..Setup::default() });
        let (mine, theirs) = (world.open(one, b"f"), world.open(two, b"f"));
        let mut expected = pattern(777, 1);
        world.write(one, mine, 0, &expected);
        for round in 0..6u8 {
            let data = pattern(10_000 + usize::from(round), round);
            let (client, file) = if round % 2 == 0 { (one, mine) } else { (two, theirs) };
            let stable = if round < 3 { Stability::DataSync } else { Stability::FileSync };
            let reply = appended(&world.call(client, &append_inline(file, stable, &data)));
            assert_eq!((reply.offset, reply.committed), (expected.len() as u64, stable));
            assert_eq!(reply.verifier, WRITE_VERIFIER);
            expected.extend(data);
            let data = pattern(300_000 + usize::from(round), round + 100);
            let memory = world.clients[client].memory(300_100);
            memory.set(&data);
            let request = append_direct(file, data.len() as u32, memory.direct(0, 300_100));
            let reply = appended(&world.call(client, &Request::AppendDirect(request)));
            assert_eq!(reply.offset, expected.len() as u64);
            expected.extend(data);
        }
        assert!(world.read(one, mine) == expected);
        world.end();
    });
}

#[test]
fn a_padded_append_is_taken_from_where_it_was_agreed() {
    let mut world = World::new(Setup::default());
    let options = SessionOptions { inline_write_header_size: 200, ..SessionOptions::default() };
    let client = world.session_with(2, "a", 1, options);
    let file = world.open(client, b"f");
    let data = pattern(5000, 2);
    let padded = |padded_to| match append_inline(file, Stability::DataSync, &data) {
        Request::AppendInline(args) => {
            Request::AppendInline(dafs::AppendInline { padded_to, ..args })
        }
        other => other,
    };
    assert_eq!(appended(&world.call(client, &padded(Some(256)))).offset, 0);
    assert_eq!(appended(&world.call(client, &padded(None))).offset, 5000);
    assert_eq!(world.read(client, file), [&data[..], &data].concat());
    assert_eq!(world.status(client, &padded(Some(200))), Status::Inval);
    world.end();
}

#[test]
fn a_refused_append_leaves_nothing() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let start = pattern(100, 3);
        world.write(client, file, 0, &start);
        let memory = world.clients[client].memory(2 << 20);
        let mut refused = |request: &Request<'_>, status| {
            assert_eq!(world.status(client, request), status, "{request:?}");
        };
        // Every append is stable.
        refused(&append_inline(file, Stability::Unstable, b"x"), Status::Inval);
        let request = append_direct(file, 10, memory.direct(0, 10));
        let unstable = dafs::AppendDirect { stable: Stability::Unstable, ..request };
        refused(&Request::AppendDirect(unstable), Status::Inval);
        let request = append_direct(file, APPEND_BYTES_MAX + 1, memory.direct(0, 2 << 20));
        refused(&Request::AppendDirect(request), Status::WriteTooBig);
        // A buffer that is too short.
        refused(
            &Request::AppendDirect(append_direct(file, 11, memory.direct(0, 10))),
            Status::Inval,
        );
        let stranger = File { id: dafs::StateId([9; 8]), ..file };
        refused(&append_inline(stranger, Stability::DataSync, b"x"), Status::StaleStateId);
        // An append of zero bytes is legal.
        let answer = world.call(client, &append_inline(file, Stability::DataSync, b""));
        assert_eq!(appended(&answer).offset, 100);
        let answer =
            world.call(client, &Request::AppendDirect(append_direct(file, 0, memory.direct(0, 0))));
        assert_eq!(appended(&answer).offset, 100);
        assert_eq!(world.read(client, file), start);
        // The longest one succeeds.
        let request = append_direct(file, APPEND_BYTES_MAX, memory.direct(0, APPEND_BYTES_MAX));
        let answer = world.call(client, &Request::AppendDirect(request));
        assert_eq!(appended(&answer).offset, 100);
        world.end();
    });
}

#[test]
fn an_append_that_fails_is_cut_off_again() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let start = pattern(1000, 4);
        world.write(client, file, 0, &start);
        // The disk takes the first part of it.
        world.disk.set_bad_from(2000);
        let data = pattern(9000, 5);
        assert_eq!(
            world.status(client, &append_inline(file, Stability::DataSync, &data)),
            Status::Io
        );
        let memory = world.clients[client].memory(600_000);
        let request = append_direct(file, 600_000, memory.direct(0, 600_000));
        assert_eq!(world.status(client, &Request::AppendDirect(request)), Status::Io);
        world.disk.set_bad_from(u64::MAX);
        assert_eq!(world.read(client, file), start);
        let answer = world.call(client, &append_inline(file, Stability::DataSync, &data));
        assert_eq!(appended(&answer).offset, 1000);
        world.end();
    });
}

#[test]
fn checksums_are_compared_before_anything_is_appended() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let client = world.session_with(2, "a", 1, CHECKED);
        let file = world.open(client, b"f");
        let data = pattern(600_001, 6);
        let memory = world.clients[client].memory_of(&data);
        let request = append_direct(file, 600_001, memory.direct(0, 600_001));
        let wrong = dafs::AppendDirect { direct_checksum: checksum(b"other"), ..request };
        assert_eq!(world.status(client, &Request::AppendDirect(wrong)), Status::ChkSum);
        assert_eq!(world.read(client, file), b"");
        assert_eq!(world.counts().chunks, 0);
        let right = dafs::AppendDirect { direct_checksum: checksum(&data), ..request };
        assert_eq!(appended(&world.call(client, &Request::AppendDirect(right))).offset, 0);
        assert!(world.read(client, file) == data);
        world.end();
    });
}

#[test]
fn memory_that_is_gone_ends_the_session_and_appends_nothing() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let honest = world.session(2, "honest");
        let file = world.open(honest, b"f");
        for forged in [false, true] {
            let thief = world.session(3, "thief");
            let own = world.open(thief, b"f");
            let memory = &mut world.clients[thief];
            let buffer = match forged {
                true => {
                    let real = memory.memory(700_000).direct(0, 700_000);
                    DirectBuffer { context: real.context ^ 0x5555, ..real }
                }
                false => memory.memory_with(700_000, Access::LOCAL_WRITE).direct(0, 700_000),
            };
            let request = Request::AppendDirect(append_direct(own, 700_000, buffer));
            assert!(world.try_call(thief, &request).is_none());
            world.settle();
            assert!(world.clients[thief].closed.is_some());
            assert_eq!(world.read(honest, file), b"");
            assert_eq!(world.counts().chunks, 0);
        }
        world.end();
    });
}

#[test]
fn an_append_asks_like_a_write() {
    let setup = Setup {
        exports: vec![
            ("open", dafs_service::ExportOptions { squash: Squash::None, ..Default::default() }),
            (
                "shut",
                dafs_service::ExportOptions {
                    squash: Squash::None,
                    read_only: true,
                    ..Default::default()
                },
            ),
        ],
        ..Setup::default()
    };
    let (mut world, one, two) = World::with_two(setup);
    let root = world.root();
    let path = [b"open".as_slice(), b"f"];
    let open = |share_access, share_deny| dafs::Open {
        share_access,
        share_deny,
        ..open_request(root, &path, b"o")
    };
    let reader = open(dafs::ShareAccess::Read, dafs::ShareDeny::None);
    let reader = world.open_with(two, &reader).unwrap();
    assert_eq!(world.status(two, &append_inline(reader, Stability::DataSync, b"x")), Status::Acces);
    let anonymous = File { id: dafs::StateId([0; 8]), ..reader };
    let add = append_inline(anonymous, Stability::DataSync, b"x");
    assert_eq!(world.status(two, &add), Status::Ok);
    let denier = open(dafs::ShareAccess::Read, dafs::ShareDeny::Write);
    let denier = world.open_with(one, &denier).unwrap();
    assert_eq!(world.status(two, &add), Status::Denied);
    assert_eq!(world.status(one, &close(denier)), Status::Ok);
    assert_eq!(world.status(two, &add), Status::Ok);
    let shut = found(&world.call(two, &lookup(root, &[b"shut"])));
    let shut = File { fh: shut, id: dafs::StateId([0; 8]) };
    assert_eq!(world.status(two, &append_inline(shut, Stability::DataSync, b"x")), Status::RoFs);
    world.end();
}

#[test]
fn the_longest_append_is_told() {
    let (mut world, client) = World::with_session(Setup::default());
    let fh = world.root();
    let get = dafs::GetFsAttr { fh, attributes: FsAttrMask::MAX_APPEND };
    let answer = world.call(client, &Request::GetFsAttr(get));
    let Ok(Reply::GetFsAttr(reply)) = answer.reply() else { panic!("{:?}", answer.status()) };
    assert_eq!(reply.attributes.max_append, Some(u64::from(APPEND_BYTES_MAX)));
    world.end();
}

/// An append waits for its chunks behind other transfers, and they wait for it.
#[test]
fn many_appends_share_the_staging() {
    let (mut world, client, file) = World::with_file(Setup::default());
    world.clients[client].desired = 200;
    for _ in 0..60 {
        assert_eq!(world.status(client, &Request::Null), Status::Ok);
    }
    world.hold_jobs = true;
    let count = 24u8;
    let streams: Vec<u16> = (0..count)
        .map(|at| {
            let memory = world.clients[client].memory(APPEND_BYTES_MAX as usize);
            memory.set(&vec![at; APPEND_BYTES_MAX as usize]);
            let buffer = memory.direct(0, APPEND_BYTES_MAX);
            let request = Request::AppendDirect(append_direct(file, APPEND_BYTES_MAX, buffer));
            world.clients[client].post(&request)
        })
        .collect();
    world.settle();
    assert!(world.jobs() > 0 && world.jobs() < usize::from(count), "some wait for chunks");
    world.hold_jobs = false;
    let mut offsets: Vec<u64> = Vec::new();
    for stream in streams {
        offsets.push(appended(&world.wait(client, stream).unwrap()).offset);
    }
    offsets.sort_unstable();
    let places = (0..u64::from(count)).map(|at| at * u64::from(APPEND_BYTES_MAX));
    assert_eq!(offsets, places.collect::<Vec<_>>());
    world.end();
}
