//! X_CANCEL: takes out of the server what it has not begun, and tells of each item what became of
//! it.

use crate::common::*;
use crate::responses::{CACHING, begin, key, lose};
use dafs_engine::SessionLimits;
use dafs_wire::dafs::{
    self, BatchSubmit, ByteOrder, CancelItem, CancelKind, CancelOutcome, Checksum,
    CompletionNotification, DirectBuffer, FileChunk, FsAttrMask, HintWord, ReadWrite,
    ReadWriteRequest, Reply, Request, Seq, SessionOptions, Stability, Status,
};
use std::time::Duration;

fn transfer_item(request_id: u64) -> CancelItem {
    CancelItem { kind: CancelKind::Transfer, stream: 0, sequence: 0, request_id }
}

pub(crate) fn request_item((stream, sequence): (u16, u16)) -> CancelItem {
    CancelItem { kind: CancelKind::Request, stream, sequence, request_id: 0 }
}

pub(crate) fn cancel(world: &mut World, client: usize, items: &[CancelItem]) -> Vec<CancelOutcome> {
    let request = Request::XCancel(dafs::XCancel { items: Seq::new(items) });
    let answer = world.call(client, &request);
    let Reply::XCancel(reply) = answer.reply().unwrap() else { panic!() };
    reply.outcomes.iter().map(|result| result.outcome).collect()
}

/// Sends a request, and returns its stream and sequence number.
pub(crate) fn post(world: &mut World, client: usize, request: &Request<'_>) -> (u16, u16) {
    let stream = world.clients[client].post(request);
    let sequence = world.clients[client].header(stream).seq_number.wrapping_sub(1);
    world.settle();
    (stream, sequence)
}

fn answer(world: &mut World, client: usize, stream: u16) -> Status {
    world.wait(client, stream).unwrap().status()
}

pub(crate) fn transfer<'a>(
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

pub(crate) fn submit(
    world: &mut World,
    client: usize,
    requests: &[ReadWriteRequest<'_>],
    window: Duration,
) -> Status {
    submit_to_report(world, client, requests, window, 0)
}

/// Submits transfers whose completions are reported so many together.
fn submit_to_report(
    world: &mut World,
    client: usize,
    requests: &[ReadWriteRequest<'_>],
    window: Duration,
    num_completions: u32,
) -> Status {
    let usec_window = u32::try_from(window.as_micros()).unwrap();
    let requests = Seq::new(requests);
    let batch = BatchSubmit { requests, usec_window, num_completions, synchronous: false };
    world.status(client, &Request::BatchSubmit(batch))
}

/// Returns the completions that have come on a channel, which are acknowledged.
pub(crate) fn reported(world: &mut World, channel: usize) -> Vec<(u64, Status)> {
    world.settle();
    let mut all: Vec<CompletionNotification> = Vec::new();
    while let Some(call) = world.clients[channel].calls.pop() {
        let reply = match call.request() {
            Request::BcBatchCompletion(list) => {
                all.extend(list.completions.iter());
                Reply::BcBatchCompletion
            }
            Request::BcNull => Reply::BcNull,
            other => panic!("{other:?}"),
        };
        world.clients[channel].answer(&call, 4, &reply);
        world.settle();
    }
    let mut all: Vec<_> = all.iter().map(|done| (done.request_id, done.status)).collect();
    all.sort_unstable_by_key(|(id, _)| *id);
    all
}

pub(crate) const WINDOW: Duration = Duration::from_secs(5);

pub(crate) fn chunk(offset: u64, byte_count: u32) -> [FileChunk; 1] {
    [FileChunk { offset, byte_count, cache_hint: HintWord::NONE }]
}

#[test]
fn what_a_batch_has_not_begun_is_taken_out() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
        let file = world.open(client, b"f");
        let data = pattern(30, 3);
        let memory = world.clients[client].memory_of(&data);
        let chunks = [0, 1, 2].map(|at| chunk(at * 10, 10));
        let buffers = [0, 1, 2].map(|at| [memory.direct(at * 10, 10)]);
        let requests: Vec<_> = (0..3)
            .map(|at| transfer(at as u64, file, ReadWrite::Write, &chunks[at], &buffers[at]))
            .collect();
        assert_eq!(submit(&mut world, client, &requests, WINDOW), Status::Ok);
        let items = [0, 2, 0, 7].map(transfer_item);
        use CancelOutcome as O;
        let outcomes = cancel(&mut world, client, &items);
        assert_eq!(outcomes, [O::Canceled, O::Canceled, O::Canceled, O::Unknown]);
        // Those that were cancelled are over now, and do not wait for the window.
        assert_eq!(reported(&mut world, channel), [(0, Status::XCanceled), (2, Status::XCanceled)]);
        world.pass(WINDOW + Duration::from_secs(1));
        assert_eq!(reported(&mut world, channel), [(1, Status::Ok)]);
        let items = [0, 1, 2, 3].map(transfer_item);
        let outcomes = cancel(&mut world, client, &items);
        assert_eq!(outcomes, [O::Canceled, O::Done, O::Canceled, O::Unknown]);
        let mut content = vec![0; 20];
        content[10..].copy_from_slice(&data[10..20]);
        assert_eq!(world.read(client, file), content);
        // The numbers are free again.
        assert_eq!(submit(&mut world, client, &requests, Duration::ZERO), Status::Ok);
        let all = [0, 1, 2].map(|id| (id, Status::Ok));
        assert_eq!(reported(&mut world, channel), all);
        assert_eq!(world.read(client, file), data);
        world.end();
    });
}

#[test]
fn a_whole_batch_can_be_taken_out_and_nothing_waits_for_it() {
    let mut world = World::new(Setup::default());
    let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(10);
    let (range, buffer) = (chunk(0, 10), [memory.direct(0, 10)]);
    let requests: Vec<_> =
        (0..100).map(|id| transfer(id, file, ReadWrite::Write, &range, &buffer)).collect();
    for _ in 0..30 {
        // More than may be outstanding, if cancelled ones counted.
        assert_eq!(submit(&mut world, client, &requests, WINDOW), Status::Ok);
        let items: Vec<_> = (0..100).map(transfer_item).collect();
        let outcomes = cancel(&mut world, client, &items);
        assert!(outcomes.iter().all(|outcome| *outcome == CancelOutcome::Canceled));
        let done = reported(&mut world, channel);
        assert_eq!(done.len(), 100);
        assert!(done.iter().all(|(_, status)| *status == Status::XCanceled));
    }
    assert!(world.read(client, file).is_empty());
    world.end();
}

#[test]
fn a_transfer_that_has_begun_goes_on() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
        let file = world.open(client, b"f");
        let memory = world.clients[client].memory_of(&pattern(10, 1));
        let (range, buffer) = (chunk(0, 10), [memory.direct(0, 10)]);
        let request = [transfer(1, file, ReadWrite::Write, &range, &buffer)];
        world.stall();
        assert_eq!(submit(&mut world, client, &request, Duration::ZERO), Status::Ok);
        world.settle();
        assert!(world.jobs() > 0);
        let item = [transfer_item(1)];
        assert_eq!(cancel(&mut world, client, &item), [CancelOutcome::TooLate]);
        world.release();
        assert_eq!(reported(&mut world, channel), [(1, Status::Ok)]);
        assert_eq!(cancel(&mut world, client, &item), [CancelOutcome::Done]);
        assert_eq!(world.read(client, file), pattern(10, 1));
        world.end();
    });
}

/// Loads that wait behind others, for their turn or for chunks, have not begun.
#[test]
fn transfers_behind_others_are_taken_out() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
        let file = world.open(client, b"f");
        const MIB: u32 = 1 << 20;
        let data = pattern(MIB as usize, 5);
        let memory = world.clients[client].memory_of(&data);
        let chunks: Vec<_> = (0..12).map(|at| chunk(at * u64::from(MIB), MIB)).collect();
        let buffer = [memory.direct(0, MIB)];
        let requests: Vec<_> = (0..12)
            .map(|at| transfer(at as u64, file, ReadWrite::Write, &chunks[at], &buffer))
            .collect();
        world.stall();
        assert_eq!(submit(&mut world, client, &requests, Duration::ZERO), Status::Ok);
        world.settle();
        let items: Vec<_> = (0..12).map(transfer_item).collect();
        let outcomes = cancel(&mut world, client, &items);
        let begun = outcomes.iter().filter(|outcome| **outcome == CancelOutcome::TooLate).count();
        let canceled =
            outcomes.iter().filter(|outcome| **outcome == CancelOutcome::Canceled).count();
        assert!(begun > 0 && canceled > 0 && begun + canceled == 12, "{outcomes:?}");
        world.release();
        let done = reported(&mut world, channel);
        assert_eq!(done.len(), 12);
        for ((id, status), outcome) in done.into_iter().zip(outcomes) {
            let expected = match outcome {
                CancelOutcome::Canceled => Status::XCanceled,
                _ => Status::Ok,
            };
            assert_eq!(status, expected, "{id}");
        }
        world.end();
    });
}

#[test]
fn another_session_has_no_part_in_it() {
    let mut world = World::new(Setup::default());
    let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
    let (other, _) = with_channel(&mut world, 3, "b", SessionOptions::default());
    let plain = world.session(4, "c");
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory_of(&pattern(10, 1));
    let (range, buffer) = (chunk(0, 10), [memory.direct(0, 10)]);
    let request = [transfer(1, file, ReadWrite::Write, &range, &buffer)];
    assert_eq!(submit(&mut world, client, &request, WINDOW), Status::Ok);
    for stranger in [other, plain] {
        assert_eq!(cancel(&mut world, stranger, &[transfer_item(1)]), [CancelOutcome::Unknown]);
    }
    world.stall();
    let posted = post(&mut world, client, &write_inline(file, 100, b"x"));
    assert!(world.jobs() > 0);
    for stranger in [other, plain] {
        let outcomes = cancel(&mut world, stranger, &[request_item(posted)]);
        assert_ne!(outcomes, [CancelOutcome::Canceled]);
    }
    world.release();
    assert_eq!(answer(&mut world, client, posted.0), Status::Ok);
    world.pass(WINDOW + Duration::from_secs(1));
    assert_eq!(reported(&mut world, channel), [(1, Status::Ok)]);
    world.end();
}

/// Requests that move data, and wait for the pool.
#[test]
fn a_queued_transfer_is_taken_out() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let data = pattern(100, 1);
        world.write(client, file, 0, &data);
        let memory = world.clients[client].memory_of(&[7; 50]);
        let buffers = [memory.direct(0, 50)];
        let stable = Stability::FileSync;
        let append = append_direct(file, 50, memory.direct(0, 50));
        let requests = [
            read_inline(file, 0, 50),
            read_direct(file, 0, 50, &buffers),
            write_stable(file, 0, b"written", stable),
            Request::WriteDirect(dafs::WriteDirect {
                stable,
                ..write_direct(file, 0, 50, &buffers)
            }),
            append_inline(file, stable, b"appended"),
            Request::AppendDirect(dafs::AppendDirect { stable, ..append }),
        ];
        for request in requests {
            let name = request.procedure().name();
            world.stall();
            let posted = post(&mut world, client, &request);
            assert!(world.jobs() > 0, "{name}");
            let item = [request_item(posted)];
            assert_eq!(cancel(&mut world, client, &item), [CancelOutcome::Canceled], "{name}");
            // Its answer does not wait for the pool.
            assert_eq!(answer(&mut world, client, posted.0), Status::XCanceled, "{name}");
            assert_eq!(cancel(&mut world, client, &item), [CancelOutcome::Canceled], "{name}");
            assert_eq!(world.counts().chunks, 0, "{name}: its memory is free");
            world.release();
            assert_eq!(world.read(client, file), data, "{name}");
            assert_eq!(memory.bytes(), [7; 50], "{name}");
            // Its stream goes on.
            assert_eq!(world.status(client, &Request::Null), Status::Ok);
        }
        world.end();
    });
}

#[test]
fn answered_requests_and_those_that_never_were_are_told_apart() {
    let (mut world, client, file) = World::with_file(Setup::default());
    let posted = post(&mut world, client, &write_inline(file, 0, b"x"));
    assert_eq!(answer(&mut world, client, posted.0), Status::Ok);
    use CancelOutcome as O;
    let (stream, sequence) = posted;
    let mut outcome = |name| cancel(&mut world, client, &[request_item(name)])[0];
    assert_eq!(outcome(posted), O::Done);
    assert_eq!(outcome((stream, sequence.wrapping_add(100))), O::Unknown);
    assert_eq!(outcome((stream, 0)), O::Unknown, "numbers begin at one");
    assert_eq!(outcome((stream, u16::MAX)), O::Unknown);
    assert_eq!(outcome((5, 1)), O::Unknown, "nothing was sent there");
    assert_eq!(outcome((u16::MAX, 1)), O::Unknown, "there is no such stream");
    // X_CANCEL itself has begun.
    let own = world.clients[client].header(stream).seq_number;
    assert_eq!(cancel(&mut world, client, &[request_item((stream, own))]), [O::TooLate]);
    // A request that moves no data is not taken out.
    world.stall();
    let commit = Request::Commit(dafs::Commit { fh: file.fh, offset: 0, count: 0 });
    let posted = post(&mut world, client, &commit);
    assert_eq!(cancel(&mut world, client, &[request_item(posted)]), [O::TooLate]);
    world.release();
    assert_eq!(answer(&mut world, client, posted.0), Status::Ok);
    world.end();
}

#[test]
fn a_synchronous_batch_loses_what_it_has_not_begun() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        const MIB: u32 = 1 << 20;
        let data = pattern(MIB as usize, 5);
        let memory = world.clients[client].memory_of(&data);
        let chunks: Vec<_> = (0..12).map(|at| chunk(at * u64::from(MIB), MIB)).collect();
        let buffer = [memory.direct(0, MIB)];
        let requests: Vec<_> = (0..12)
            .map(|at| transfer(at as u64, file, ReadWrite::Write, &chunks[at], &buffer))
            .collect();
        let batch = |requests| {
            let requests = Seq::new(requests);
            Request::BatchSubmit(BatchSubmit {
                requests,
                usec_window: 0,
                num_completions: 0,
                synchronous: true,
            })
        };
        world.stall();
        let posted = post(&mut world, client, &batch(&requests));
        // Parts of it have begun, and the completions tell of each.
        let outcomes = cancel(&mut world, client, &[request_item(posted)]);
        assert_eq!(outcomes, [CancelOutcome::TooLate]);
        // A second batch waits behind the first one.
        let behind = post(&mut world, client, &batch(&requests[..1]));
        world.release();
        let answered = world.wait(client, posted.0).unwrap();
        let Reply::BatchSubmit(reply) = answered.reply().unwrap() else { panic!() };
        let statuses: Vec<_> = reply.completions.iter().map(|done| done.status).collect();
        let canceled = statuses.iter().filter(|status| **status == Status::XCanceled).count();
        let done = statuses.iter().filter(|status| **status == Status::Ok).count();
        assert!(canceled > 0 && done > 0 && canceled + done == 12, "{statuses:?}");
        assert_eq!(answer(&mut world, client, behind.0), Status::Ok);
        world.end();
    });
}

#[test]
fn a_synchronous_batch_that_has_not_begun_is_taken_out() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let data = pattern(2 << 20, 5);
        let memory = world.clients[client].memory_of(&data);
        let range = chunk(0, 2 << 20);
        let buffer = [memory.direct(0, 2 << 20)];
        let request = [transfer(1, file, ReadWrite::Write, &range, &buffer)];
        let batch = Request::BatchSubmit(BatchSubmit {
            requests: Seq::new(&request),
            usec_window: 0,
            num_completions: 0,
            synchronous: true,
        });
        world.stall();
        let first: Vec<_> = (0..4).map(|_| post(&mut world, client, &batch)).collect();
        let last = post(&mut world, client, &batch);
        let outcomes = cancel(&mut world, client, &[request_item(last), request_item(first[0])]);
        assert_eq!(outcomes, [CancelOutcome::Canceled, CancelOutcome::TooLate]);
        let answered = world.wait(client, last.0).unwrap();
        let Reply::BatchSubmit(reply) = answered.reply().unwrap() else { panic!() };
        let statuses: Vec<_> = reply.completions.iter().map(|done| done.status).collect();
        assert_eq!(statuses, [Status::XCanceled]);
        world.release();
        for (stream, _) in first {
            assert_eq!(answer(&mut world, client, stream), Status::Ok);
        }
        world.end();
    });
}

/// The kept reply says the same as the one that the client may have lost.
#[test]
fn a_kept_reply_says_that_the_request_was_taken_out() {
    let mut world = World::new(Setup::default());
    let (client, session) = begin(&mut world, 2, "a", ByteOrder::Little);
    let file = world.open(client, b"f");
    world.stall();
    let posted = post(&mut world, client, &write_stable(file, 0, b"x", Stability::FileSync));
    let outcomes = cancel(&mut world, client, &[request_item(posted)]);
    assert_eq!(outcomes, [CancelOutcome::Canceled]);
    let asked = key(&mut world, client, session, posted.0, dafs::Procedure::WriteInline);
    lose(&mut world, client);
    world.release();
    let again = world.session_with(2, "a", 1, CACHING);
    assert_eq!(world.status(again, &Request::CheckResponse(asked)), Status::Ok);
    assert_eq!(world.status(again, &Request::FetchResponse(asked)), Status::XCanceled);
    world.end();
}

/// The queue of the pool holds a bounded number of emptied jobs.
#[test]
fn emptied_jobs_are_bounded_by_credits() {
    let limits =
        SessionLimits { credits_initial: 4, credits_per_session_max: 4, ..Default::default() };
    let (mut world, client, file) = World::with_file(Setup { limits, ..Setup::default() });
    for _ in 0..2 {
        world.stall();
        let (mut taken, mut late) = (0, Vec::new());
        for _ in 0..6 {
            let request = write_stable(file, 0, b"x", Stability::FileSync);
            let posted = post(&mut world, client, &request);
            match cancel(&mut world, client, &[request_item(posted)])[..] {
                [CancelOutcome::Canceled] => {
                    assert_eq!(answer(&mut world, client, posted.0), Status::XCanceled);
                    taken += 1;
                }
                [CancelOutcome::TooLate] => late.push(posted.0),
                ref other => panic!("{other:?}"),
            }
        }
        assert_eq!((taken, late.len(), world.jobs()), (4, 2, 6));
        // The turn of an emptied job makes room for another.
        assert!(world.run_job());
        world.settle();
        let request = write_stable(file, 0, b"y", Stability::FileSync);
        let posted = post(&mut world, client, &request);
        let outcomes = cancel(&mut world, client, &[request_item(posted)]);
        assert_eq!(outcomes, [CancelOutcome::Canceled]);
        assert_eq!(answer(&mut world, client, posted.0), Status::XCanceled);
        world.release();
        for stream in late {
            assert_eq!(answer(&mut world, client, stream), Status::Ok);
        }
        assert_eq!(world.counts().pending, 0);
    }
    // It keeps no connection that is gone.
    world.stall();
    let posted = post(&mut world, client, &write_stable(file, 0, b"z", Stability::FileSync));
    let outcomes = cancel(&mut world, client, &[request_item(posted)]);
    assert_eq!(outcomes, [CancelOutcome::Canceled]);
    lose(&mut world, client);
    world.settle();
    assert_eq!((world.counts().connections, world.jobs()), (0, 1));
    world.release();
    world.end();
}

/// Writes data of a client's memory, stable, under a checksum.
fn write_checked<'a>(file: File, data: &[u8], buffers: &'a [DirectBuffer]) -> Request<'a> {
    Request::WriteDirect(dafs::WriteDirect {
        stable: Stability::FileSync,
        direct_checksum: dafs::checksum(data),
        ..write_direct(file, 0, data.len() as u32, buffers)
    })
}

/// Transfers that waited for chunks behind one that is cancelled go on at once.
#[test]
fn what_waited_behind_a_cancelled_transfer_goes_on() {
    const LARGE: usize = 4 << 20;
    let data = pattern(LARGE, 3);
    // With a checksum, a write needs chunks for all of its data at once.
    for small_first in [true, false] {
        let mut world = World::new(Setup::default());
        let client = world.session_with(2, "a", 1, CHECKED);
        let file = world.open(client, b"f");
        let memory = world.clients[client].memory_of(&data);
        let (large, small) = ([memory.direct(0, LARGE as u32)], [memory.direct(0, 100)]);
        world.stall();
        let mut answers = Vec::new();
        if small_first {
            answers.push(post(&mut world, client, &write_checked(file, &data[..100], &small)));
            assert_eq!(world.jobs(), 1, "it holds a chunk");
        }
        let canceled = post(&mut world, client, &write_checked(file, &data, &large));
        assert_eq!(world.jobs(), 1, "waiting: {small_first}");
        answers.push(post(&mut world, client, &write_checked(file, &data[..100], &small)));
        assert_eq!(world.jobs(), 1, "the large one has its turn first");
        let outcomes = cancel(&mut world, client, &[request_item(canceled)]);
        assert_eq!(outcomes, [CancelOutcome::Canceled]);
        world.settle();
        assert_eq!(world.jobs(), 2, "the other one goes on");
        world.release();
        for posted in answers {
            assert_eq!(answer(&mut world, client, posted.0), Status::Ok);
        }
        assert_eq!(answer(&mut world, client, canceled.0), Status::XCanceled);
        world.end();
    }
}

/// Those that are cancelled do not wait for others that are to be reported with them.
#[test]
fn a_cancelled_transfer_is_reported_at_once() {
    let mut world = World::new(Setup::default());
    let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(10);
    let (range, buffer) = (chunk(0, 10), [memory.direct(0, 10)]);
    let requests: Vec<_> =
        (0..3).map(|id| transfer(id, file, ReadWrite::Write, &range, &buffer)).collect();
    assert_eq!(submit_to_report(&mut world, client, &requests, WINDOW, 3), Status::Ok);
    assert_eq!(cancel(&mut world, client, &[transfer_item(1)]), [CancelOutcome::Canceled]);
    assert_eq!(reported(&mut world, channel), [(1, Status::XCanceled)]);
    world.pass(WINDOW + Duration::from_secs(1));
    assert_eq!(reported(&mut world, channel), [(0, Status::Ok), (2, Status::Ok)]);
    world.end();
}

/// A transfer that was refused is over, although the channel has not reported it.
#[test]
fn a_refused_transfer_is_not_cancelled() {
    let mut world = World::new(Setup::default());
    let (client, channel) = with_channel(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(10);
    let (range, buffer, short) = (chunk(0, 10), [memory.direct(0, 10)], [memory.direct(0, 9)]);
    let requests = [
        transfer(1, file, ReadWrite::Write, &range, &short),
        transfer(2, file, ReadWrite::Write, &range, &buffer),
    ];
    assert_eq!(submit_to_report(&mut world, client, &requests, WINDOW, 2), Status::Ok);
    let items = [1, 2].map(transfer_item);
    let outcomes = cancel(&mut world, client, &items);
    assert_eq!(outcomes, [CancelOutcome::Done, CancelOutcome::Canceled]);
    let done = [(1, Status::Inval), (2, Status::XCanceled)];
    assert_eq!(reported(&mut world, channel), done);
    world.end();
}

#[test]
fn an_answer_that_would_not_fit_cancels_nothing() {
    let mut world = World::new(Setup::default());
    let options = SessionOptions { max_response_size: 1024, ..SessionOptions::default() };
    let (client, channel) = with_channel(&mut world, 2, "a", options);
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(10);
    let (range, buffer) = (chunk(0, 10), [memory.direct(0, 10)]);
    let request = [transfer(1, file, ReadWrite::Write, &range, &buffer)];
    assert_eq!(submit(&mut world, client, &request, WINDOW), Status::Ok);
    // An outcome has 8 bytes, behind 56 others.
    let items = [transfer_item(1); 122];
    let ask = Request::XCancel(dafs::XCancel { items: Seq::new(&items) });
    assert_eq!(world.status(client, &ask), Status::TooSmall);
    world.pass(WINDOW + Duration::from_secs(1));
    assert_eq!(reported(&mut world, channel), [(1, Status::Ok)]);
    let outcomes = cancel(&mut world, client, &items[..121]);
    assert_eq!(outcomes, [CancelOutcome::Done; 121]);
    world.end();
}

#[test]
fn the_extension_is_offered_and_bounded() {
    let (mut world, client) = World::with_session(Setup::default());
    let attributes = FsAttrMask::SUPPORTED_FSATTR | FsAttrMask::X_CANCEL;
    let ask = Request::GetFsAttr(dafs::GetFsAttr { fh: world.root(), attributes });
    let answer = world.call(client, &ask);
    let Reply::GetFsAttr(reply) = answer.reply().unwrap() else { panic!() };
    assert_eq!(reply.attributes.x_cancel, Some(true));
    let supported = FsAttrMask(reply.attributes.supported_fsattr.unwrap());
    assert!(supported.contains(FsAttrMask::X_CANCEL));
    assert!(cancel(&mut world, client, &[]).is_empty());
    let items = [transfer_item(1); 513];
    let outcomes = cancel(&mut world, client, &items[..512]);
    assert_eq!(outcomes, [CancelOutcome::Unknown; 512]);
    let ask = Request::XCancel(dafs::XCancel { items: Seq::new(&items) });
    assert_eq!(world.status(client, &ask), Status::Inval);
    world.end();
}
