//! Optimistic reads of memory that a server of this host shows, by every way in which a read may begin.

use crate::optimistic::{BLOCK, BYTES, hits, open, optimistic, read, served, warm};
use crate::served::Served;
use dafs_client::{
    CacheOptions, Client, File, IoBuffer, OpenOptions, Procedure, ReadPart, Result, Site,
    Stability, TransportChoice,
};
use dafs_service::FrontEnd;
use dafs_testkit::eventually;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};

/// The bytes of each read.
const LEN: usize = 4 * BLOCK;

/// READ requests that the server has answered.
fn server_reads(served: &Served) -> u64 {
    let count = |procedure: Procedure| {
        let operation = served.metrics().operation(FrontEnd::Dafs, procedure as u32);
        operation.latency.read().0.iter().sum::<u64>()
    };
    count(Procedure::ReadInline) + count(Procedure::ReadDirect)
}

/// Reads until so many reads are hits, and a server that is not held up gets no READ meanwhile.
fn are_hits(served: &Served, client: &Client, count: u64, mut reads: impl FnMut()) {
    eventually("all reads are hits", || {
        let (asked, before) = (server_reads(served), hits(client));
        reads();
        (server_reads(served), hits(client) - before) == (asked, count)
    });
}

/// Has all of the file shown, at the request of another client.
fn show_all(other: &Client, file: &File, bytes: usize) {
    for offset in (0..bytes).step_by(16 * BLOCK) {
        warm(other, file, offset, (16 * BLOCK).min(bytes - offset));
    }
}

/// A client that reads without requests, with a cache that reads nothing ahead.
fn caching(served: &Served) -> Client {
    served.client_with(|options| {
        options.transport = TransportChoice::Shm;
        options.optimistic = true;
        options.cache = Some(CacheOptions { read_ahead_bytes: 0, ..CacheOptions::new(4 << 20) });
    })
}

#[test]
fn submitted_reads_are_hits() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let client = optimistic(&served);
    let file = open(&client);
    let buffer = client.buffer(LEN).unwrap();
    let offset = 7 * BLOCK;
    warm(&client, &file, offset, LEN);
    let submit = || {
        buffer.view().fill(0);
        file.submit_read(&buffer, 0..LEN, offset as u64).unwrap()
    };
    let check = |bytes: usize| {
        let found = buffer.slice(0, bytes).unwrap().to_vec(Site::Inspect);
        assert!(found == content[offset..offset + LEN]);
    };
    are_hits(&served, &client, 1, || check(submit().wait().unwrap()));
    are_hits(&served, &client, 1, || {
        let mut read = submit();
        while !read.is_done() {}
        assert!(read.cancel(), "it is over");
        check(read.wait().unwrap());
    });
    are_hits(&served, &client, 1, || {
        let mut read = pin!(submit());
        let mut context = Context::from_waker(Waker::noop());
        let bytes = loop {
            match read.as_mut().poll(&mut context) {
                Poll::Ready(bytes) => break bytes,
                Poll::Pending => std::thread::yield_now(),
            }
        };
        check(bytes.unwrap());
        assert!(matches!(read.as_mut().poll(&mut context), Poll::Ready(Err(_))), "taken once");
    });
    // One that is cut into pieces, of which few are as short as a hit.
    let long = client.buffer(BYTES).unwrap();
    assert_eq!(file.read_into(&long, 0..BYTES, 0).unwrap(), BYTES);
    assert!(long.view().to_vec(Site::Inspect) == content);
}

#[test]
fn reads_of_a_group_are_hits() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let client = optimistic(&served);
    let file = open(&client);
    let buffer = client.buffer(3 * LEN).unwrap();
    let offset = 20 * BLOCK;
    warm(&client, &file, offset, 3 * LEN);
    let group = client.completion_group();
    are_hits(&served, &client, 3, || {
        buffer.view().fill(0);
        let names = [0, 1, 2].map(|word| {
            let at = word * LEN;
            group.read(word as u64, &file, &buffer, at..at + LEN, (offset + at) as u64).unwrap()
        });
        let mut done = Vec::new();
        assert_eq!(group.wait(&mut done, usize::MAX, None).unwrap(), 3);
        assert_eq!(group.in_flight(), 0);
        done.sort_unstable_by_key(|completion| completion.user_data);
        for (word, completion) in done.iter().enumerate() {
            assert_eq!((completion.user_data, completion.operation), (word as u64, names[word]));
            assert_eq!(completion.result.clone().unwrap(), LEN);
            assert!(group.cancel(completion.operation), "it is over");
        }
        let found = buffer.view().to_vec(Site::Inspect);
        assert!(found == content[offset..offset + 3 * LEN]);
    });
    // A thread that sleeps on the descriptor sees them, too.
    group.descriptor().unwrap();
    are_hits(&served, &client, 1, || {
        group.read(9, &file, &buffer, 0..LEN, offset as u64).unwrap();
        let mut done = Vec::new();
        eventually("the completion is there", || group.poll(&mut done) > 0);
        assert_eq!((done[0].user_data, done.len()), (9, 1));
    });
}

#[test]
fn reads_with_a_continuation_are_hits() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let client = optimistic(&served);
    let file = open(&client);
    // The second one goes beyond the end of the file.
    for (offset, bytes) in [(3 * BLOCK, LEN), (BYTES - 77 - BLOCK, BLOCK + 77)] {
        warm(&client, &file, offset, LEN);
        are_hits(&served, &client, 1, || {
            let (tell, told) = channel();
            let then = move |buffer: IoBuffer, part: Result<ReadPart>| {
                tell.send((buffer, part.unwrap())).unwrap();
            };
            let buffer = client.buffer(LEN).unwrap();
            file.read_then(buffer, 0..LEN, offset as u64, then).unwrap();
            let (buffer, part) = told.recv().unwrap();
            assert_eq!(part, ReadPart { bytes, is_end: bytes < LEN });
            let found = buffer.slice(0, bytes).unwrap().to_vec(Site::Inspect);
            assert!(found == content[offset..offset + bytes]);
        });
    }
    are_hits(&served, &client, 1, || {
        let buffer = client.buffer(LEN).unwrap();
        file.read_then(buffer, 0..BLOCK, 3 * BLOCK as u64, |_, _| panic!("as planned")).unwrap();
        client.ping().unwrap();
    });
}

#[test]
fn misses_of_a_cache_under_a_delegation_are_hits() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let other = optimistic(&served);
    let shown = open(&other);
    show_all(&other, &shown, BYTES);
    let client = caching(&served);
    let file = open(&client);
    // The blocks that the cache has not, in an order in which none follows another.
    let mut fresh = (0..600).map(|number| number * 37 % 600 * BLOCK);
    let mut next = || {
        let offset = fresh.next().unwrap();
        assert!(read(&file, offset, BLOCK) == content[offset..offset + BLOCK]);
        offset
    };
    eventually("the client knows where the blocks are", || {
        let before = hits(&client);
        next();
        hits(&client) > before
    });
    let mut known = Vec::new();
    are_hits(&served, &client, 10, || known.extend((0..10).map(|_| next())));
    // They are in the cache now.
    are_hits(&served, &client, 0, || {
        for offset in &known {
            assert!(read(&file, *offset, BLOCK) == content[*offset..offset + BLOCK]);
        }
    });
    // The end of the file, which is no whole block.
    let last = BYTES - 77;
    assert!(read(&file, last, BLOCK) == content[last..]);
    assert!(read(&file, last, BLOCK) == content[last..]);
}

/// Another client writes while the cache is filled by hits, so the delegation is recalled.
#[test]
fn a_recall_overtakes_no_hit_that_fills_a_cache() {
    const BLOCKS: usize = 512;
    let served = served();
    let (client, other) = (caching(&served), optimistic(&served));
    for number in 0..8_u8 {
        // The server grants no delegation of a file that it has recently recalled.
        let name = [b'a' + number];
        let path = served.path().join(str::from_utf8(&name).unwrap());
        std::fs::write(path, vec![0; BLOCKS * BLOCK]).unwrap();
        let shown = other.open(&name, &OpenOptions::read()).unwrap();
        show_all(&other, &shown, BLOCKS * BLOCK);
        let file = client.open(&name, &OpenOptions::read()).unwrap();
        let mut block = 0;
        let mut next = || {
            block = (block + 37) % BLOCKS;
            u64::from(read(&file, block * BLOCK, BLOCK)[100])
        };
        let before = hits(&client);
        eventually("the cache is filled by hits", || {
            next();
            hits(&client) > before
        });
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = other.open(&name, &OpenOptions::write()).unwrap();
                for version in 1..=3_u64 {
                    for block in 0..BLOCKS {
                        let at = (block * BLOCK + 100) as u64;
                        file.write_at(&[version as u8], at, Stability::Unstable).unwrap();
                    }
                    written.store(version, Ordering::Release);
                }
            });
            while written.load(Ordering::Acquire) < 3 {
                let before = written.load(Ordering::Acquire);
                let found = next();
                assert!(found >= before, "{found} after version {before} was written");
            }
        });
        for _ in 0..BLOCKS {
            assert_eq!(next(), 3);
        }
    }
}
