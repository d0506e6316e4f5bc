//! Interrupted transfers: lost connections, silent clients, opens that are revoked meanwhile.

use crate::common::*;
use crate::responses::{begin, lose};
use dafs_dat::PeerInfo;
use dafs_dat::sim::Direction;
use dafs_journal::sim::SimDisk;
use dafs_service::ExportOptions;
use dafs_service::durable::Durability;
use dafs_wire::dafs::{
    self, ByteOrder, Checksum, Request, SessionOptions, ShareDeny, ShareKey, StateId, Status,
    checksum,
};
use std::sync::Arc;
use std::time::Duration;

/// Starts a mix of large transfers, loses the connection at many points, with and without
/// outstanding jobs, and checks that no resource is left.
#[test]
fn a_connection_lost_in_the_middle_of_transfers_leaves_nothing() {
    both_ways(|maps| {
        for checked in [false, true] {
            for round in 0..24u64 {
                let slow = round % 2 == 0;
                let mut world = World::new(Setup { maps, seed: round + 1, ..Setup::default() });
                let options = if checked { CHECKED } else { SessionOptions::default() };
                let client = world.session_with(2, "a", 1, options);
                let other = world.session_with(3, "b", 1, options);
                let size = 3 << 20;
                let file = world.open(client, b"f");
                let own = world.open(other, b"own");
                world.write(client, file, 0, &pattern(100_000, 1));
                let memory = world.clients[client].memory_of(&pattern(size, 13));
                let sum = if checked { checksum(&memory.bytes()) } else { Checksum::ZERO };
                world.disk.set_slow(slow);
                world.hold_jobs = slow;
                let buffers = [memory.direct(0, size as u32)];
                let write = write_direct(file, 0, size as u32, &buffers);
                let write = dafs::WriteDirect { direct_checksum: sum, ..write };
                let mut attributes = dafs::SetAttrDirect {
                    fh: file.fh,
                    state_id: file.id,
                    direct_checksum: Checksum::ZERO,
                    buffer: memory.direct(0, 100),
                };
                attributes.buffer.byte_count = 100;
                for _ in 0..2 {
                    world.clients[client].post(&Request::WriteDirect(write));
                    world.clients[client].post(&read_direct(file, 0, size as u32, &buffers));
                }
                world.clients[client].post(&Request::SetAttrDirect(attributes));
                let commit = dafs::Commit { fh: file.fh, offset: 0, count: 0 };
                world.clients[client].post(&Request::Commit(commit));
                world.clients[client].post(&read_inline(file, 0, 8000));
                // Another session's transfer waits for the chunks of this one.
                let theirs = world.clients[other].memory_of(&pattern(size, 14));
                let from = [theirs.direct(0, size as u32)];
                let request = write_direct(own, 0, size as u32, &from);
                let sum = if checked { checksum(&theirs.bytes()) } else { Checksum::ZERO };
                let request = dafs::WriteDirect { direct_checksum: sum, ..request };
                let stream = world.clients[other].post(&Request::WriteDirect(request));
                let endpoint = world.clients[client].endpoint;
                let bytes = round * 97_003;
                let direction =
                    if round % 3 == 0 { Direction::Incoming } else { Direction::Outgoing };
                world.network.cut_after(endpoint, direction, bytes);
                for _ in 0..round * 20 {
                    world.step();
                }
                world.network.lose(endpoint);
                world.run_until("the end", |world| world.clients[client].closed.is_some());
                world.hold_jobs = false;
                let answer = world.wait(other, stream).expect("the other session goes on");
                assert_eq!(written(&answer).count, size as u32);
                world.settle();
                let counts = world.counts();
                assert_eq!((counts.connections, counts.sessions), (1, 1));
                assert_eq!((counts.pending, counts.chunks, counts.replies), (0, 0, 0), "{round}");
                assert!(world.read(other, own) == pattern(size, 14), "round {round}");
                world.end();
            }
        }
    });
}

/// A client that never answers RDMA must not keep the staging chunks of all others for ever.
#[test]
fn a_client_that_stops_serving_rdma_is_dropped_in_time() {
    let mut world = World::new(Setup::default());
    let idle = world.session(2, "idle");
    let client = world.session(3, "a");
    let file = world.open(client, b"f");
    let size = 4 << 20;
    let memory = world.clients[client].memory(size);
    let buffers = [memory.direct(0, size as u32)];
    let request = Request::WriteDirect(write_direct(file, 0, size as u32, &buffers));
    world.clients[client].post(&request);
    world.run_until("fetching", |world| world.counts().chunks > 0);
    // From now on no packet of that host moves, though its connection lives.
    let forever = dafs_dat::Instant(u64::MAX);
    world.network.pause(3, forever);
    for _ in 0..40 {
        world.pass(Duration::from_secs(5));
        world.status(idle, &Request::Null);
    }
    assert_eq!(world.counts().chunks, 0, "the staging is free again");
    assert_eq!(world.counts().connections, 1);
}

/// Sessions that serve no RDMA read, enough to take all staging chunks, do not delay other hosts.
/// They delay others of their own host for a second.
#[test]
fn clients_that_stop_serving_rdma_hold_up_no_others() {
    // Hosts 3 and 4 are one to the server.
    let mask = |host: u32| PeerInfo { sim_host: Some(host.min(3)), ..PeerInfo::default() };
    let mut world = World::new(Setup { mask, ..Setup::default() });
    let (other, near) = (world.session(2, "other"), world.session(4, "near"));
    let sessions: Vec<_> = (0..10).map(|n| world.session(3, &format!("stuck {n}"))).collect();
    let files: Vec<_> = sessions.iter().map(|&client| world.open(client, b"f")).collect();
    let write = |world: &mut World, client: usize, file: File, size: usize| {
        let buffers = [world.clients[client].memory(size).direct(0, size as u32)];
        let request = Request::WriteDirect(write_direct(file, 0, size as u32, &buffers));
        world.clients[client].post(&request)
    };
    for (&client, &file) in sessions.iter().zip(&files) {
        for _ in 0..3 {
            write(&mut world, client, file, 4 << 20);
        }
    }
    world.run_until("all are there", |world| world.counts().pending == 30);
    world.network.pause(3, dafs_dat::Instant(u64::MAX));
    let file = world.open(other, b"g");
    let stream = write(&mut world, other, file, 64 << 10);
    assert_eq!(written(&world.wait(other, stream).expect("at once")).count, 64 << 10);
    let file = world.open(near, b"h");
    let stream = write(&mut world, near, file, 64 << 10);
    for _ in 0..3 {
        world.settle();
        world.pass(Duration::from_millis(500));
    }
    assert_eq!(written(&world.wait(near, stream).expect("soon")).count, 64 << 10);
    assert!(world.counts().connections > 2, "those are left alone that hold up nobody");
}

/// A client that restarts has lost its opens. Writes of its former instance must not reach the file
/// any more, which may be another client's by then.
#[test]
fn a_write_stops_when_its_open_is_revoked() {
    both_ways(|maps| {
        for inline in [true, false] {
            let mut world = World::new(Setup { maps, ..Setup::default() });
            let old = world.session(2, "c");
            let file = world.open(old, b"f");
            world.stall();
            let size = 2 << 20;
            let memory = world.clients[old].memory_of(&pattern(size, 15));
            let buffers = [memory.direct(0, size as u32)];
            let data = pattern(5000, 15);
            let request = if inline {
                write_inline(file, 0, &data)
            } else {
                Request::WriteDirect(write_direct(file, 0, size as u32, &buffers))
            };
            let stream = world.clients[old].post(&request);
            world.run_until("the first job", |world| world.jobs() == 1);
            world.settle();
            // The same client comes back and opens the file with exclusive access.
            let new = world.session_with(3, "c", 2, SessionOptions::default());
            let alone =
                dafs::Open { share_deny: ShareDeny::Both, ..open_request(world.root(), F, b"new") };
            let mine = world.open_with(new, &alone).unwrap();
            let writes = world.disk.writes();
            world.hold_jobs = false;
            let answer = world.wait(old, stream).unwrap();
            assert!(matches!(answer.status(), Status::Stale | Status::StaleStateId), "{inline}");
            assert_eq!(world.disk.writes(), writes);
            assert!(world.read(new, mine).is_empty());
            world.settle();
            assert_eq!((world.counts().chunks, world.counts().pending), (0, 0));
            world.end();
        }
    });
}

/// A write without an open that another open refuses half way counts what it has written.
#[test]
fn a_write_that_an_open_stops_counts_the_data_before_it() {
    let ways = [(ShareDeny::Write, ShareKey::None), (ShareDeny::None, ShareKey::XStrict(1))];
    for (share_deny, share_key) in ways {
        let (mut world, writer, other) = World::with_two(Setup::default());
        let file = world.open(writer, b"f");
        assert_eq!(world.status(writer, &close(file)), Status::Ok);
        world.stall();
        let size = 2 << 20;
        let data = pattern(size, 17);
        let memory = world.clients[writer].memory_of(&data);
        let buffers = [memory.direct(0, size as u32)];
        let anonymous = File { id: StateId::ZERO, ..file };
        let request = Request::WriteDirect(write_direct(anonymous, 0, size as u32, &buffers));
        let stream = world.clients[writer].post(&request);
        world.run_until("the first job", |world| world.jobs() == 1);
        assert!(world.run_job());
        world.run_until("the second job", |world| world.jobs() == 1);
        let writes = world.disk.writes();
        let alone = dafs::Open { share_key, share_deny, ..open_request(world.root(), F, b"other") };
        let theirs = world.open_with(other, &alone).unwrap();
        world.hold_jobs = false;
        let answer = world.wait(writer, stream).unwrap();
        let count = written(&answer).count as usize;
        assert!(count > 0 && count < size, "{count}");
        assert_eq!(world.disk.writes(), writes);
        world.disk.set_slow(false);
        assert!(world.read(other, theirs) == data[..count]);
        let late = write_inline(anonymous, 0, b"late");
        assert!(matches!(world.status(writer, &late), Status::Denied | Status::KeyMismatch));
        world.end();
    }
}

/// Two transports number their endpoints alike. The end of a connection on one must not affect
/// requests on the other.
#[test]
fn the_end_of_a_connection_leaves_the_other_transport_alone() {
    let (mut world, one) = World::with_session(Setup { second_network: true, ..Setup::default() });
    let two = world.session_on(1, 2, "b");
    let file = world.open(two, b"f");
    let size = 1 << 20;
    let memory = world.clients[two].memory_of(&pattern(size, 16));
    let buffers = [memory.direct(0, size as u32)];
    let request = Request::WriteDirect(write_direct(file, 0, size as u32, &buffers));
    let endpoints: Vec<_> = world.networks().map(|network| network.endpoints(SERVER)).collect();
    assert_eq!(endpoints[0], endpoints[1], "the test needs equal numbers");
    // The fetch is under way and stays so for a while.
    let stream = world.clients[two].post(&request);
    world.run_until("fetching", |world| world.counts().chunks > 0);
    let network = world.networks().nth(1).unwrap().clone();
    network.pause(2, network.now() + Duration::from_millis(500));
    assert_eq!(world.status(one, &Request::Disconnect), Status::Ok);
    world.run_until("the end", |world| world.counts().connections == 1);
    assert_eq!(world.counts().pending, 1);
    let answer = world.wait(two, stream).expect("the other transport goes on");
    assert_eq!(written(&answer).count, size as u32);
    assert!(world.read(two, file) == pattern(size, 16));
    world.end();
}

/// Work without a request has no stream. Its end leaves the logged change of stream 0 alone.
#[test]
fn the_end_of_a_batch_leaves_an_append_that_is_logged_alone() {
    let disk = Arc::new(SimDisk::new());
    let options = ExportOptions { durable_replies: Durability::Crash, ..ExportOptions::default() };
    let exports = vec![("", options)];
    let mut world = World::new(Setup { exports, journal: Some(disk), ..Setup::default() });
    let (client, _) = begin(&mut world, 2, "a", ByteOrder::Big);
    let file = File { id: StateId::ZERO, ..world.open(client, b"f") };
    world.hold_jobs = true;
    let memory = world.clients[client].memory_of(&pattern(1 << 20, 1));
    let append = append_direct(file, 1000, memory.direct(0, 1000));
    let stream = world.clients[client].post(&Request::AppendDirect(append));
    assert_eq!(stream, 0, "the test needs the first stream");
    world.run_until("the append", |world| world.jobs() == 1);
    let chunks =
        [dafs::FileChunk { offset: 0, byte_count: 500_000, cache_hint: dafs::HintWord::NONE }];
    let buffers = [memory.direct(0, 500_000)];
    let transfers = [dafs::ReadWriteRequest {
        fh: file.fh,
        request_id: 1,
        state_id: file.id,
        rw_flag: dafs::ReadWrite::Write,
        chunks: dafs::Seq::new(&chunks),
        buffers: dafs::Seq::new(&buffers),
        direct_checksum: Checksum::ZERO,
    }];
    let batch = dafs::BatchSubmit {
        requests: dafs::Seq::new(&transfers),
        usec_window: 0,
        num_completions: 0,
        synchronous: true,
    };
    world.clients[client].post(&Request::BatchSubmit(batch));
    let fetched = world.counts().chunks;
    world.run_until("the fetch", |world| world.counts().chunks > fetched);
    assert_eq!(world.jobs(), 1, "the test needs data under way");
    lose(&mut world, client);
    world.hold_jobs = false;
    world.settle();
    let (other, _) = begin(&mut world, 3, "b", ByteOrder::Big);
    let next = append_inline(file, dafs::Stability::FileSync, b"next");
    assert_eq!(world.status(other, &next), Status::Ok);
    let whole = [&pattern(1 << 20, 1)[..1000], b"next"].concat();
    assert!(world.read(other, file) == whole);
    world.end();
}

/// The outcome of a request that was not answered would be known with durable replies alone.
#[test]
fn a_server_that_stops_answers_requests_under_way_and_begins_no_change() {
    let (mut world, working, other) = World::with_two(Setup::default());
    let file = world.open(working, b"f");
    world.hold_jobs = true;
    let commit = Request::Commit(dafs::Commit { fh: file.fh, offset: 0, count: 0 });
    let stream = world.clients[working].post(&commit);
    world.settle();
    assert_eq!(world.jobs(), 1);
    assert!(!world.engine.quiesce());
    let root = world.root();
    assert_eq!(world.status(other, &remove(root, b"f", false)), Status::Grace);
    assert_eq!(world.status(other, &Request::Null), Status::Ok);
    world.hold_jobs = false;
    assert_eq!(world.wait(working, stream).unwrap().status(), Status::Ok);
    assert!(world.engine.quiesce());
    world.engine.close_all();
    world.settle();
    assert!(world.clients[working].closed.is_some() && world.clients[other].closed.is_some());
    world.assert_idle();
}
