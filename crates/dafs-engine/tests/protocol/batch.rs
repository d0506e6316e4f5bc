//! BATCH_SUBMIT, HURRY_UP and BC_BATCH_COMPLETION.

use crate::common::*;
use crate::responses::{CACHING, begin, key, lose};
use dafs_dat::{PeerInfo, PeerProcess};
use dafs_service::{ExportOptions, TransportSecurity};
use dafs_wire::dafs::{
    self, BatchSubmit, ByteOrder, Checksum, CompletionNotification, DirectBuffer, FileChunk,
    HintWord, Procedure, ReadWrite, ReadWriteRequest, Reply, Request, Seq, SessionOptions,
    ShareAccess, Status, checksum,
};
use std::cell::Cell;
use std::time::Duration;

fn chunk(offset: u64, byte_count: u32) -> FileChunk {
    FileChunk { offset, byte_count, cache_hint: HintWord::NONE }
}

fn transfer<'a>(
    request_id: u64,
    file: File,
    rw_flag: ReadWrite,
    chunks: &'a [FileChunk],
    buffers: &'a [DirectBuffer],
) -> ReadWriteRequest<'a> {
    ReadWriteRequest {
        fh: file.fh,
        request_id,
        state_id: file.id,
        rw_flag,
        chunks: Seq::new(chunks),
        buffers: Seq::new(buffers),
        direct_checksum: Checksum::ZERO,
    }
}

fn batch<'a>(requests: &'a [ReadWriteRequest<'a>], synchronous: bool) -> BatchSubmit<'a> {
    BatchSubmit { requests: Seq::new(requests), usec_window: 0, num_completions: 0, synchronous }
}

/// Runs a synchronous batch.
fn run(world: &mut World, client: usize, requests: &[ReadWriteRequest<'_>]) -> Vec<Status> {
    completions(world, client, requests).iter().map(|done| done.status).collect()
}

fn completions(
    world: &mut World,
    client: usize,
    requests: &[ReadWriteRequest<'_>],
) -> Vec<CompletionNotification> {
    let answer = world.call(client, &Request::BatchSubmit(batch(requests, true)));
    match answer.reply().unwrap() {
        Reply::BatchSubmit(reply) => reply.completions.iter().collect(),
        other => panic!("{other:?}"),
    }
}

/// Returns the completions that have arrived on a channel. They are acknowledged, like keep-alive
/// calls between them.
fn reported(world: &mut World, channel: usize) -> Vec<CompletionNotification> {
    world.settle();
    let mut all = Vec::new();
    loop {
        let calls = std::mem::take(&mut world.clients[channel].calls);
        if calls.is_empty() {
            return all;
        }
        for call in calls {
            let reply = match call.request() {
                Request::BcBatchCompletion(list) => {
                    all.extend(list.completions.iter());
                    Reply::BcBatchCompletion
                }
                Request::BcNull => Reply::BcNull,
                other => panic!("{other:?}"),
            };
            world.clients[channel].answer(&call, 4, &reply);
        }
        world.settle();
    }
}

fn submit(world: &mut World, client: usize, batch: BatchSubmit<'_>) -> Status {
    world.status(client, &Request::BatchSubmit(batch))
}

#[test]
fn scattered_ranges_and_buffers_meet_in_one_batch() {
    both_ways(|maps| {
        let (mut world, client) = World::with_session(Setup { maps, ..Setup::default() });
        let (one, two) = (world.open(client, b"one"), world.open(client, b"two"));
        let data = pattern(700_000, 1);
        let memory = world.clients[client].memory_of(&data);
        // Neither the boundaries nor the counts of ranges and buffers match.
        let chunks = [chunk(5000, 100), chunk(0, 4000), chunk(100_000, 695_900)];
        let buffers =
            [memory.direct(0, 4001), memory.direct(4001, 0), memory.direct(4001, 695_999)];
        let small = [chunk(0, 10), chunk(10, 10)];
        let back = [memory.direct(100, 20)];
        let requests = [
            transfer(1, one, ReadWrite::Write, &chunks, &buffers),
            transfer(2, two, ReadWrite::Write, &small, &back),
        ];
        let done = completions(&mut world, client, &requests);
        let found: Vec<_> =
            done.iter().map(|c| (c.request_id, c.status, c.bytes_transferred)).collect();
        assert_eq!(found, [(1, Status::Ok, 700_000), (2, Status::Ok, 20)]);
        let content = world.read(client, one);
        assert_eq!(content[5000..5100], data[..100]);
        assert_eq!(content[..4000], data[100..4100]);
        assert!(content[100_000..] == data[4100..]);
        assert_eq!(world.read(client, two), data[100..120]);

        let target = world.clients[client].memory(700_000);
        let buffers = [target.direct(0, 1), target.direct(1, 699_999)];
        let requests = [
            transfer(3, one, ReadWrite::Read, &chunks, &buffers),
            transfer(4, two, ReadWrite::Read, &[], &[]),
        ];
        assert_eq!(run(&mut world, client, &requests), [Status::Ok; 2]);
        assert!(target.bytes() == data);
        world.end();
    });
}

#[test]
fn many_small_writes_of_one_batch_become_few_calls() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let data = pattern(64 * 4096, 2);
        let memory = world.clients[client].memory_of(&data);
        // All blocks of the file, in a scattered order.
        let place = |index: u64| (index * 37 % 64) * 4096;
        let chunks: Vec<_> = (0..64).map(|index| chunk(place(index), 4096)).collect();
        let buffers: Vec<_> = (0..64).map(|index| memory.direct(index * 4096, 4096)).collect();
        let requests: Vec<_> = (0..64)
            .map(|n| transfer(n as u64, file, ReadWrite::Write, &chunks[n..=n], &buffers[n..=n]))
            .collect();
        let before = world.disk.writes();
        assert_eq!(run(&mut world, client, &requests), [Status::Ok; 64]);
        assert_eq!(world.disk.writes() - before, 1, "adjacent blocks are written by one call");
        let content = world.read(client, file);
        for index in 0..64 {
            let at = place(index) as usize;
            let from = index as usize * 4096;
            assert!(content[at..at + 4096] == data[from..from + 4096]);
        }
        world.end();
    });
}

#[test]
fn each_request_fails_alone() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        world.write(client, file, 0, &pattern(100, 3));
        let mut only_read = open_request(world.root(), F, b"reader");
        only_read.share_access = ShareAccess::Read;
        only_read.create = None;
        let only_read = world.open_with(client, &only_read).unwrap();
        let memory = world.clients[client].memory(1000);
        let stranger = File { id: dafs::StateId([7; 8]), ..file };
        let (ten, more) = ([chunk(0, 10)], [chunk(0, 11)]);
        let past = [chunk(u64::MAX - 5, 10)];
        let many = vec![chunk(0, 0); 65];
        let buffer = [memory.direct(0, 10)];
        let requests = [
            transfer(1, file, ReadWrite::Read, &ten, &buffer),
            transfer(2, file, ReadWrite::Write, &more, &buffer),
            transfer(3, only_read, ReadWrite::Write, &ten, &buffer),
            transfer(4, stranger, ReadWrite::Read, &ten, &buffer),
            transfer(1, file, ReadWrite::Write, &ten, &buffer),
            transfer(5, file, ReadWrite::Read, &past, &buffer),
            transfer(6, file, ReadWrite::Read, &many, &[]),
            transfer(7, only_read, ReadWrite::Read, &ten, &buffer),
        ];
        let statuses = run(&mut world, client, &requests);
        let expected = [
            Status::Ok,
            Status::Inval,
            Status::Acces,
            Status::StaleStateId,
            Status::Inval,
            Status::Inval,
            Status::Inval,
            Status::Ok,
        ];
        assert_eq!(statuses, expected);
        assert_eq!(world.read(client, file), pattern(100, 3));
        world.end();
    });
}

#[test]
fn a_read_past_the_end_tells_how_much_there_was() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let data = pattern(1000, 4);
        world.write(client, file, 0, &data);
        let memory = world.clients[client].memory(3000);
        let chunks = [chunk(0, 100), chunk(900, 500), chunk(100, 100)];
        let buffers = [memory.direct(0, 700)];
        let request = [transfer(9, file, ReadWrite::Read, &chunks, &buffers)];
        let done = completions(&mut world, client, &request);
        assert_eq!((done[0].status, done[0].bytes_transferred), (Status::Ok, 200));
        let found = memory.bytes();
        assert_eq!(found[..100], data[..100]);
        assert_eq!(found[100..200], data[900..]);
        world.end();
    });
}

#[test]
fn checksums_go_with_the_data_of_each_request() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let client = world.session_with(2, "a", 1, CHECKED);
        let file = world.open(client, b"f");
        let data = pattern(600_000, 5);
        let memory = world.clients[client].memory_of(&data);
        let (all, some) = ([chunk(0, 600_000)], [chunk(600_000, 1000)]);
        let (from, part) = ([memory.direct(0, 600_000)], [memory.direct(0, 1000)]);
        let mut good = transfer(1, file, ReadWrite::Write, &all, &from);
        good.direct_checksum = checksum(&data);
        let bad = transfer(2, file, ReadWrite::Write, &some, &part);
        assert_eq!(run(&mut world, client, &[good, bad]), [Status::Ok, Status::ChkSum]);
        assert_eq!(world.read(client, file).len(), 600_000, "nothing was written unchecked");
        let read = [transfer(3, file, ReadWrite::Read, &all, &from)];
        let done = completions(&mut world, client, &read);
        assert_eq!((done[0].status, done[0].direct_checksum), (Status::Ok, checksum(&data)));
        world.end();
    });
}

#[test]
fn asynchronous_batches_need_a_channel() {
    let (mut world, client) = World::with_session(Setup::default());
    assert_eq!(submit(&mut world, client, batch(&[], false)), Status::BackChannelUnusable);
    assert_eq!(submit(&mut world, client, batch(&[], true)), Status::Ok);
    let hurry = Request::HurryUp(dafs::HurryUp { request_id: 1 });
    assert_eq!(world.status(client, &hurry), Status::BatchRequestNotFound);
    world.end();
}

#[test]
fn completions_of_asynchronous_batches_come_on_the_channel() {
    both_ways(|maps| {
        for options in [SessionOptions::default(), CHECKED] {
            let mut world = World::new(Setup { maps, ..Setup::default() });
            let (client, channel) = with_channel(&mut world, 2, "a", options);
            let file = world.open(client, b"f");
            let data = pattern(300_000, 6);
            let memory = world.clients[client].memory_of(&data);
            let all = [chunk(0, 300_000)];
            let from = [memory.direct(0, 300_000)];
            let mut write = transfer(1, file, ReadWrite::Write, &all, &from);
            if options.use_checksums {
                write.direct_checksum = checksum(&data);
            }
            assert_eq!(submit(&mut world, client, batch(&[write], false)), Status::Ok);
            let done = reported(&mut world, channel);
            assert_eq!(done.len(), 1);
            assert_eq!((done[0].status, done[0].bytes_transferred), (Status::Ok, 300_000));
            let target = world.clients[client].memory(300_000);
            let into = [target.direct(0, 300_000)];
            let read = transfer(1, file, ReadWrite::Read, &all, &into);
            assert_eq!(submit(&mut world, client, batch(&[read], false)), Status::Ok);
            let done = reported(&mut world, channel);
            assert_eq!((done[0].status, done[0].bytes_transferred), (Status::Ok, 300_000));
            assert!(target.bytes() == data);
            world.end();
        }
    });
}

#[test]
fn work_waits_for_its_window_unless_it_is_hurried() {
    let mut world = World::new(Setup::default());
    let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    world.write(client, file, 0, &pattern(1000, 7));
    let memory = world.clients[client].memory(1000);
    let (one, two) = ([chunk(0, 10)], [chunk(500, 10)]);
    let buffer = [memory.direct(0, 10)];
    let requests = [
        transfer(1, file, ReadWrite::Read, &one, &buffer),
        transfer(2, file, ReadWrite::Read, &two, &buffer),
    ];
    let patient = BatchSubmit { usec_window: 5_000_000, ..batch(&requests, false) };
    assert_eq!(submit(&mut world, client, patient), Status::Ok);
    assert!(reported(&mut world, channel).is_empty());
    // The id is in use, so this one is refused and the other keeps waiting (DAFS O55).
    assert_eq!(submit(&mut world, client, batch(&requests[..1], false)), Status::Ok);
    let refused = reported(&mut world, channel);
    assert_eq!((refused[0].request_id, refused[0].status), (1, Status::Inval));
    let hurry = Request::HurryUp(dafs::HurryUp { request_id: 2 });
    assert_eq!(world.status(client, &hurry), Status::Ok);
    let hurried = reported(&mut world, channel);
    assert_eq!((hurried.len(), hurried[0].request_id), (1, 2));
    assert_eq!(world.status(client, &hurry), Status::BatchRequestNotFound);
    world.pass(Duration::from_secs(6));
    let late = reported(&mut world, channel);
    assert_eq!((late.len(), late[0].request_id, late[0].status), (1, 1, Status::Ok));
    world.end();
}

#[test]
fn completions_are_reported_together_when_that_is_wanted() {
    let mut world = World::new(Setup::default());
    let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    world.write(client, file, 0, &pattern(1000, 8));
    let memory = world.clients[client].memory(1000);
    let range = [chunk(0, 10)];
    let buffer = [memory.direct(0, 10)];
    let read = |id| transfer(id, file, ReadWrite::Read, &range, &buffer);
    // One more waits, so the others are not all of the outstanding ones.
    let kept = [read(100)];
    let kept = BatchSubmit { usec_window: 9_000_000, num_completions: 3, ..batch(&kept, false) };
    assert_eq!(submit(&mut world, client, kept), Status::Ok);
    assert_eq!(submit(&mut world, client, batch(&[read(1), read(2)], false)), Status::Ok);
    assert!(reported(&mut world, channel).is_empty(), "two are not three");
    assert_eq!(submit(&mut world, client, batch(&[read(3)], false)), Status::Ok);
    assert_eq!(reported(&mut world, channel).len(), 3);
    assert_eq!(submit(&mut world, client, batch(&[read(4)], false)), Status::Ok);
    assert!(reported(&mut world, channel).is_empty());
    // An empty list only changes the number.
    let fewer = BatchSubmit { num_completions: 1, ..batch(&[], false) };
    assert_eq!(submit(&mut world, client, fewer), Status::Ok);
    assert_eq!(reported(&mut world, channel).len(), 1);
    world.pass(Duration::from_secs(10));
    assert_eq!(reported(&mut world, channel).len(), 1);
    world.end();
}

#[test]
fn overload_is_told_and_passes() {
    let mut world = World::new(Setup::default());
    let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    world.write(client, file, 0, &pattern(1000, 9));
    let memory = world.clients[client].memory(1000);
    let range = [chunk(0, 1)];
    let buffer = [memory.direct(0, 1)];
    // The client does not answer completions, so they accumulate.
    let mut taken = 0;
    let status = loop {
        let ids = taken * 100..(taken + 1) * 100;
        let requests: Vec<_> =
            ids.map(|id| transfer(id, file, ReadWrite::Read, &range, &buffer)).collect();
        let wish = BatchSubmit { usec_window: u32::MAX, ..batch(&requests, false) };
        match submit(&mut world, client, wish) {
            Status::Ok => taken += 1,
            status => break status,
        }
        assert!(taken < 1000, "no end");
    };
    assert_eq!(status, Status::WhoaCowboy);
    world.pass(Duration::from_secs(11));
    let done = reported(&mut world, channel);
    assert_eq!(done.len() as u64, taken * 100);
    assert!(done.iter().all(|done| done.status == Status::Ok));
    let more = [transfer(0, file, ReadWrite::Read, &range, &buffer)];
    assert_eq!(submit(&mut world, client, batch(&more, false)), Status::Ok);
    assert_eq!(reported(&mut world, channel).len(), 1);
    world.end();
}

#[test]
fn memory_that_is_gone_ends_the_channel_it_was_used_on() {
    both_ways(|maps| {
        for rw in [ReadWrite::Read, ReadWrite::Write] {
            let mut world = World::new(Setup { maps, ..Setup::default() });
            let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
            let file = world.open(client, b"f");
            world.write(client, file, 0, &pattern(1000, 10));
            let memory = world.clients[client].memory(1000);
            let range = [chunk(0, 10)];
            let beyond = [memory.direct(995, 10)];
            let request = [transfer(1, file, rw, &range, &beyond)];
            assert_eq!(submit(&mut world, client, batch(&request, false)), Status::Ok);
            world.settle();
            assert!(world.clients[channel].closed.is_some());
            assert_eq!(world.status(client, &Request::Null), Status::Ok);
            // On the operation channel that ends the session.
            let request = Request::BatchSubmit(batch(&request, true));
            assert!(world.try_call(client, &request).is_none());
            world.end();
        }
    });
}

#[test]
fn a_session_that_ends_in_the_middle_of_batches_leaves_nothing() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let (client, _) = with_channel(&mut world, 2, "a", SessionOptions::default());
        let file = world.open(client, b"f");
        let memory = world.clients[client].memory(1 << 20);
        let range = [chunk(0, 1 << 20)];
        let buffer = [memory.direct(0, 1 << 20)];
        let requests = [
            transfer(1, file, ReadWrite::Write, &range, &buffer),
            transfer(2, file, ReadWrite::Write, &range, &buffer),
        ];
        world.stall();
        let patient = BatchSubmit { usec_window: 5_000_000, ..batch(&requests[1..], false) };
        assert_eq!(submit(&mut world, client, batch(&requests[..1], false)), Status::Ok);
        assert_eq!(submit(&mut world, client, patient), Status::Ok);
        world.settle();
        assert!(world.jobs() > 0, "a write waits for the pool");
        assert_eq!(world.status(client, &Request::Disconnect), Status::Ok);
        world.settle();
        assert!(world.clients[client].closed.is_some());
        // The session is not over before the write has stopped, on any thread.
        assert_eq!(world.counts().connections, 2);
        world.end();
    });
}

#[test]
fn a_channel_is_not_replaced_while_its_batches_touch_files() {
    let mut world = World::new(Setup::default());
    let (client, session) = begin(&mut world, 2, "a", ByteOrder::Little);
    let former = listen(&mut world, client, session);
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(1 << 20);
    let range = [chunk(0, 1 << 20)];
    let buffer = [memory.direct(0, 1 << 20)];
    let request = [transfer(1, file, ReadWrite::Write, &range, &buffer)];
    world.stall();
    assert_eq!(submit(&mut world, client, batch(&request, false)), Status::Ok);
    world.settle();
    assert!(world.jobs() > 0, "a write waits for the pool");
    // Even if the server does not know of the loss of the former channel.
    let bind = Request::ConnectBind(bind_request(session));
    let early = world.connect_beside(client, 2, ByteOrder::Little);
    assert_eq!(world.status(early, &bind), Status::Delay);
    lose(&mut world, former);
    assert_eq!(world.status(early, &bind), Status::Delay);
    world.release();
    assert_eq!(world.status(early, &bind), Status::Ok);
    world.end();
}

#[test]
fn only_a_synchronous_batch_is_known_to_have_been_done() {
    let mut world = World::new(Setup::default());
    let (client, session) = begin(&mut world, 2, "a", ByteOrder::Little);
    let channel = listen(&mut world, client, session);
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(100);
    let range = [chunk(0, 10)];
    let buffer = [memory.direct(0, 10)];
    let request = [transfer(1, file, ReadWrite::Write, &range, &buffer)];
    let later = world.connect(2);
    assert_eq!(world.status(later, &connect_auth("a", 1, CACHING)), Status::Ok);
    assert_eq!(submit(&mut world, client, batch(&request, true)), Status::Ok);
    assert!(reported(&mut world, channel).is_empty());
    let done = key(&mut world, client, session, 0, Procedure::BatchSubmit);
    lose(&mut world, client);
    assert_eq!(world.status(later, &Request::CheckResponse(done)), Status::Ok);
    // A request that was acknowledged last is submitted again, too.
    let (client, session) = begin(&mut world, 2, "a", ByteOrder::Little);
    let channel = listen(&mut world, client, session);
    let memory = world.clients[client].memory(100);
    let buffer = [memory.direct(0, 10)];
    let request = [transfer(1, file, ReadWrite::Write, &range, &buffer)];
    assert_eq!(submit(&mut world, client, batch(&request, false)), Status::Ok);
    assert_eq!(reported(&mut world, channel).len(), 1);
    let taken = key(&mut world, client, session, 0, Procedure::BatchSubmit);
    lose(&mut world, client);
    assert_eq!(world.status(later, &Request::CheckResponse(taken)), Status::NoXidMatch);
    world.end();
}

#[test]
fn requests_under_a_revoked_open_are_refused() {
    let mut world = World::new(Setup::default());
    let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(100);
    let range = [chunk(0, 10)];
    let buffer = [memory.direct(0, 10)];
    let request = [transfer(1, file, ReadWrite::Write, &range, &buffer)];
    let patient = BatchSubmit { usec_window: 5_000_000, ..batch(&request, false) };
    assert_eq!(submit(&mut world, client, patient), Status::Ok);
    assert_eq!(world.status(client, &close(file)), Status::Ok);
    world.pass(Duration::from_secs(6));
    let done = reported(&mut world, channel);
    assert_eq!((done[0].status, done[0].bytes_transferred), (Status::Stale, 0));
    world.end();
}

thread_local! {
    /// True while new channels are over TCP.
    static IS_TCP: Cell<bool> = const { Cell::new(false) };
}

/// A process of this host, over shared memory or TCP.
fn here(_: u32) -> PeerInfo {
    let process = Some(PeerProcess { pid: 1, uid: 2000, gid: 7 });
    let address = IS_TCP.get().then(|| "127.0.0.1:9".parse().unwrap());
    PeerInfo { process, address, is_local: true, ..PeerInfo::default() }
}

#[test]
fn a_bound_channel_moves_no_data_of_an_export_that_demands_more_than_it_has() {
    for is_tcp in [false, true] {
        let mut strict = ExportOptions::default();
        strict.admits.transport_security = TransportSecurity::Tls;
        let exports = vec![("open", ExportOptions::default()), ("strict", strict)];
        let mut world = World::new(Setup { exports, mask: here, ..Setup::default() });
        let (client, session) = begin(&mut world, 2, "a", ByteOrder::Little);
        IS_TCP.set(is_tcp);
        let channel = listen(&mut world, client, session);
        IS_TCP.set(false);
        let root = world.root();
        let mut open = |name: &[u8]| {
            world.open_with(client, &open_request(root, &[name, b"f"], b"o")).unwrap()
        };
        let (open, strict) = (open(b"open"), open(b"strict"));
        let memory = world.clients[client].memory(20);
        let range = [chunk(0, 10)];
        let buffers = [[memory.direct(0, 10)], [memory.direct(10, 10)]];
        let requests = [
            transfer(1, open, ReadWrite::Write, &range, &buffers[0]),
            transfer(2, strict, ReadWrite::Write, &range, &buffers[1]),
        ];
        assert_eq!(submit(&mut world, client, batch(&requests, false)), Status::Ok);
        let mut done: Vec<_> = reported(&mut world, channel)
            .iter()
            .map(|done| (done.request_id, done.status, done.bytes_transferred))
            .collect();
        done.sort_by_key(|(id, ..)| *id);
        let of_strict = if is_tcp { (2, Status::Acces, 0) } else { (2, Status::Ok, 10) };
        assert_eq!(done, [(1, Status::Ok, 10), of_strict]);
        // The session's own channel is private.
        assert_eq!(run(&mut world, client, &requests), [Status::Ok; 2]);
        world.end();
    }
}
