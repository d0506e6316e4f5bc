//! Cache hints: the word of READ, WRITE, APPEND and of chunks of batches, and CACHE_HINT.

use crate::common::*;
use dafs_store::{Advised, CacheAdvice, StoreError};
use dafs_wire::dafs::{
    self, AccessPattern, BatchSubmit, FileChunk, HintWord, ReadWrite, ReadWriteRequest, Reply,
    Request, Seq, Stability, Status,
};

/// Words, and the advice that they are for their range.
const WORDS: [(u32, Option<CacheAdvice>); 11] = [
    (0, None),
    // A prefetch does not ride on other requests.
    (0x01, None),
    (0x01 | 4 << 1, None),
    (4 << 1 | 4 << 4, None),
    (1 << 1, Some(CacheAdvice::DontNeed)),
    (1 << 1 | 1 << 4, Some(CacheAdvice::DontNeed)),
    (2 << 1 | 1 << 4, Some(CacheAdvice::LeaveFirst)),
    (3 << 4, Some(CacheAdvice::LeaveFirst)),
    (1 << 1 | 5 << 4, Some(CacheAdvice::Keep)),
    (7 << 1, Some(CacheAdvice::Keep)),
    (u32::MAX, Some(CacheAdvice::Keep)),
];

/// Returns the request with a hint word.
fn hinted(request: Request<'_>, word: HintWord) -> Request<'_> {
    match request {
        Request::ReadInline(args) => {
            Request::ReadInline(dafs::ReadInline { cache_hint: word, ..args })
        }
        Request::ReadDirect(args) => {
            Request::ReadDirect(dafs::ReadDirect { cache_hint: word, ..args })
        }
        Request::WriteInline(args) => {
            Request::WriteInline(dafs::WriteInline { cache_hint: word, ..args })
        }
        Request::WriteDirect(args) => {
            Request::WriteDirect(dafs::WriteDirect { cache_hint: word, ..args })
        }
        Request::AppendInline(args) => {
            Request::AppendInline(dafs::AppendInline { cache_hint: word, ..args })
        }
        Request::AppendDirect(args) => {
            Request::AppendDirect(dafs::AppendDirect { cache_hint: word, ..args })
        }
        other => panic!("{other:?}"),
    }
}

fn cache_hint(
    file: File,
    (offset, count): (u64, u32),
    access_pattern: AccessPattern,
    word: u32,
) -> Request<'static> {
    let cache_hint = HintWord::from_bits(word);
    Request::CacheHint(dafs::CacheHint { fh: file.fh, offset, count, access_pattern, cache_hint })
}

/// Checks the advice of every word on one request, in every way that the server carries it out.
fn each_word(
    range: (u64, u64),
    make: impl for<'a> Fn(File, &'a [u8], &'a [dafs::DirectBuffer]) -> Request<'a>,
) {
    both_ways(|maps| {
        for slow in [false, true] {
            let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
            let data = pattern(600_000, 1);
            world.write(client, file, 0, &data);
            let memory = world.clients[client].memory(600_000);
            let buffers = [memory.direct(0, 600_000)];
            for (word, advice) in WORDS {
                world.disk.set_slow(slow);
                let cut = file_size(&mut world, client, file);
                let request = hinted(make(file, &data, &buffers), HintWord::from_bits(word));
                assert_eq!(world.status(client, &request), Status::Ok, "{word:#x}");
                world.settle();
                let appends =
                    matches!(request, Request::AppendInline(_) | Request::AppendDirect(_));
                let offset = if appends { cut } else { range.0 };
                let wanted: Vec<_> =
                    advice.into_iter().map(|advice| (offset, range.1, advice)).collect();
                assert_eq!(world.disk.take_advice(), wanted, "{word:#x}, slow: {slow}");
                assert_eq!(world.jobs(), 0);
            }
            world.end();
        }
    });
}

fn file_size(world: &mut World, client: usize, file: File) -> u64 {
    attributes(world, client, file.fh).unwrap().size
}

#[test]
fn the_hint_of_a_read_is_heeded() {
    each_word((30, 5000), |file, _, _| read_inline(file, 30, 5000));
    each_word((30, 500_000), |file, _, buffers| read_direct(file, 30, 500_000, buffers));
}

#[test]
fn the_hint_of_a_write_is_heeded() {
    each_word((30, 5000), |file, data, _| write_inline(file, 30, &data[..5000]));
    each_word((0, 5000), |file, data, _| write_stable(file, 0, &data[..5000], Stability::FileSync));
    each_word((30, 500_000), |file, _, buffers| {
        Request::WriteDirect(write_direct(file, 30, 500_000, buffers))
    });
}

#[test]
fn the_hint_of_an_append_is_heeded() {
    each_word((0, 5000), |file, data, _| append_inline(file, Stability::DataSync, &data[..5000]));
    each_word((0, 500_000), |file, _, buffers| {
        Request::AppendDirect(append_direct(file, 500_000, buffers[0]))
    });
}

#[test]
fn each_chunk_of_a_batch_has_its_own_hint() {
    both_ways(|maps| {
        for flag in [ReadWrite::Read, ReadWrite::Write] {
            let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
            world.write(client, file, 0, &pattern(100_000, 1));
            let memory = world.clients[client].memory(30_000);
            let chunk = |offset, word| FileChunk {
                offset,
                byte_count: 10_000,
                cache_hint: HintWord::from_bits(word),
            };
            let chunks = [chunk(50_000, 1 << 1), chunk(0, 0), chunk(20_000, 2 << 1)];
            let buffers = [memory.direct(0, 30_000)];
            let requests = [ReadWriteRequest {
                fh: file.fh,
                request_id: 1,
                state_id: file.id,
                rw_flag: flag,
                chunks: Seq::new(&chunks),
                buffers: Seq::new(&buffers),
                direct_checksum: dafs::Checksum::ZERO,
            }];
            let batch = BatchSubmit {
                requests: Seq::new(&requests),
                usec_window: 0,
                num_completions: 0,
                synchronous: true,
            };
            let answer = world.call(client, &Request::BatchSubmit(batch));
            let Ok(Reply::BatchSubmit(reply)) = answer.reply() else { panic!() };
            let done: Vec<_> = reply.completions.iter().map(|done| done.status).collect();
            assert_eq!(done, [Status::Ok]);
            world.settle();
            let wanted = [
                (50_000, 10_000, CacheAdvice::DontNeed),
                (20_000, 10_000, CacheAdvice::LeaveFirst),
            ];
            assert_eq!(world.disk.take_advice(), wanted);
            world.end();
        }
    });
}

#[test]
fn a_hint_is_about_the_bytes_that_were_moved() {
    let (mut world, client, file) = World::with_file(Setup::default());
    world.write(client, file, 0, &pattern(1000, 1));
    let gone = HintWord::from_bits(1 << 1);
    for (offset, wanted) in
        [(900, vec![(900, 100, CacheAdvice::DontNeed)]), (1000, vec![]), (1 << 62, vec![])]
    {
        let read = hinted(read_inline(file, offset, 5000), gone);
        assert_eq!(world.status(client, &read), Status::Ok);
        world.settle();
        assert_eq!(world.disk.take_advice(), wanted);
    }
    let write = hinted(write_inline(file, 0, b""), gone);
    assert_eq!(world.status(client, &write), Status::Ok);
    world.settle();
    assert_eq!(world.disk.take_advice(), []);
    world.end();
}

#[test]
fn a_hint_that_cannot_be_followed_fails_nothing() {
    let (mut world, client, file) = World::with_file(Setup::default());
    world.disk.set_advised(Err(StoreError::Io));
    for (word, _) in WORDS {
        let word = HintWord::from_bits(word);
        let write = hinted(write_inline(file, 0, b"data"), word);
        assert_eq!(world.status(client, &write), Status::Ok);
        let read = hinted(read_inline(file, 0, 4), word);
        assert_eq!(world.status(client, &read), Status::Ok);
    }
    world.end();
}

#[test]
fn a_reply_does_not_wait_for_its_hint() {
    let (mut world, client, file) = World::with_file(Setup::default());
    world.write(client, file, 0, b"data");
    world.hold_jobs = true;
    let gone = HintWord::from_bits(1 << 1);
    for _ in 0..3 {
        assert_eq!(world.status(client, &hinted(read_inline(file, 0, 4), gone)), Status::Ok);
    }
    assert_eq!(world.jobs(), 1, "one job follows all hints of a connection");
    assert_eq!(world.disk.take_advice(), []);
    // The file may be closed meanwhile, and the connection may end.
    assert_eq!(world.status(client, &close(file)), Status::Ok);
    world.clients.clear();
    world.release();
    assert_eq!(world.disk.take_advice(), [(0, 4, CacheAdvice::DontNeed); 3]);
    world.end();
}

#[test]
fn words_that_ask_for_nothing_cost_nothing() {
    let (mut world, client, file) = World::with_file(Setup::default());
    world.write(client, file, 0, b"data");
    world.hold_jobs = true;
    for word in [0, 0x01, 4 << 1 | 4 << 4, 0xffff_ff80] {
        let read = hinted(read_inline(file, 0, 4), HintWord::from_bits(word));
        assert_eq!(world.status(client, &read), Status::Ok);
        assert_eq!(world.jobs(), 0, "{word:#x}");
    }
    world.end();
}

#[test]
fn cache_hint_has_a_pattern_and_a_prediction() {
    let (mut world, client, file) = World::with_file(Setup::default());
    for (pattern, word, wanted) in [
        (AccessPattern::Normal, 0, vec![CacheAdvice::Normal]),
        (AccessPattern::Normal, 0x0f, vec![CacheAdvice::WillNeed]),
        (AccessPattern::Sequential, 0x0f, vec![CacheAdvice::Sequential, CacheAdvice::WillNeed]),
        (AccessPattern::Random, 1 << 1, vec![CacheAdvice::Random, CacheAdvice::DontNeed]),
        (AccessPattern::WillNeed, 0, vec![CacheAdvice::WillNeed]),
        (AccessPattern::DontNeed, 0, vec![CacheAdvice::DontNeed]),
        (AccessPattern::Normal, 0x01 | 2 << 1, vec![CacheAdvice::LeaveFirst]),
        (AccessPattern::Normal, 0x01, vec![]),
    ] {
        let request = cache_hint(file, (7, 50), pattern, word);
        assert_eq!(world.status(client, &request), Status::Ok);
        let wanted: Vec<_> = wanted.into_iter().map(|advice| (7, 50, advice)).collect();
        assert_eq!(world.disk.take_advice(), wanted, "{pattern:?} {word:#x}");
    }
    world.end();
}

#[test]
fn a_prefetch_that_no_store_can_do_is_an_error() {
    let (mut world, client, file) = World::with_file(Setup::default());
    world.disk.set_advised(Ok(Advised::Ignored));
    let mut status = |word| {
        let request = cache_hint(file, (0, 50), AccessPattern::Sequential, word);
        world.status(client, &request)
    };
    assert_eq!(status(0x0f), Status::PrefetchNotSupported);
    // A prefetch of unlikely data is ignored, and hints may be.
    for word in [0, 0x01, 0x01 | 3 << 1, 7 << 1, 1 << 1] {
        assert_eq!(status(word), Status::Ok, "{word:#x}");
    }
    world.end();
}

#[test]
fn every_word_and_range_ends_in_a_reply() {
    let (mut world, client, file) = World::with_file(Setup::default());
    for offset in [0, 1, u64::MAX >> 1, u64::MAX] {
        for count in [0, 1, u32::MAX] {
            for word in (0..0x80).chain([u32::MAX, 0x8000_0000]) {
                let request = cache_hint(file, (offset, count), AccessPattern::Normal, word);
                let known = HintWord::from_bits(word);
                let says = known.likelihood().is_some_and(|it| it != dafs::Likelihood::Unknown);
                let says = says || known == HintWord::NONE || known.asks_prefetch();
                // No file has such a range.
                let wrong = says && offset == u64::MAX;
                let status = if wrong { Status::Inval } else { Status::Ok };
                assert_eq!(world.status(client, &request), status, "{offset} {count} {word:#x}");
            }
        }
    }
    world.end();
}

#[test]
fn a_hint_needs_the_right_to_open_the_file() {
    let (mut world, owner, other) = World::with_two(Setup::default());
    let file = world.open(owner, b"f");
    let hint = cache_hint(file, (0, 0), AccessPattern::DontNeed, 0);
    let foreign = File { fh: dafs::FileHandle { file: [9; 48], ..file.fh }, ..file };
    let unknown = cache_hint(foreign, (0, 0), AccessPattern::DontNeed, 0);
    assert_eq!(world.status(owner, &hint), Status::Ok);
    assert_eq!(world.status(other, &hint), Status::Ok, "anybody may read it");
    assert_eq!(world.status(other, &unknown), Status::BadHandle);
    let secret = dafs::Attributes { mode: Some(0), ..dafs::Attributes::default() };
    let set = dafs::SetAttrInline { fh: file.fh, state_id: file.id, attributes: secret };
    assert_eq!(world.status(owner, &Request::SetAttrInline(set)), Status::Ok);
    world.disk.take_advice();
    assert_eq!(world.status(other, &hint), Status::Acces);
    assert_eq!(world.disk.take_advice(), []);
    assert_eq!(world.status(owner, &hint), Status::Ok, "it has the file open");
    world.end();
}
