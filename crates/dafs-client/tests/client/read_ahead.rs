//! Read-ahead for sequential readers, and no stale data by it.

use crate::served::{Served, TRANSPORTS, Wire, pattern, read_all, requests};
use dafs_client::{
    CacheOptions, Client, Create, File, OpenOptions, Stability, TransportChoice, interruptible,
    limits, within,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;

/// A client that caches for sequential readers alone, as programs under `dafs run` have it.
fn for_readers(served: &Served, transport: TransportChoice) -> Client {
    served.client_with(|options| {
        options.transport = transport;
        options.cache = Some(CacheOptions::for_readers(8 << 20));
    })
}

/// Reads a file in sequence until all of it is cached under a delegation. That takes a moment,
/// because the back-control channel is made without waiting for it.
fn keep(client: &Client, file: &File, data: &[u8]) {
    assert!(data.len() as u64 > limits::READ_AHEAD_RUN_BYTES);
    while requests(client, || read_all(file, 32 << 10, data)) > 0 {}
}

#[test]
fn sequential_readers_are_read_ahead_for_and_others_ask_each_time() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let data = served.with_file("file", 6 << 20 | 17);
        let client = for_readers(&served, transport);
        let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o644);
        let written = client.open(b"written", &options).unwrap();
        written.write_at(b"at once", 0, Stability::Unstable).unwrap();
        assert_eq!(served.content("written"), b"at once");
        let direct = client.open(b"file", &OpenOptions::read().direct(true)).unwrap();
        let both = client.open(b"file", &OpenOptions::read_write()).unwrap();
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        // Long enough, but not for a reader that jumps, that bypasses the cache, or that may write.
        let reads = (data.len() / PAGE) as u64;
        for file in [&direct, &both] {
            assert!(requests(&client, || read_all(file, PAGE, &data)) >= reads);
        }
        let backwards = requests(&client, || {
            let mut found = [0; PAGE];
            for at in (0..data.len() - PAGE).step_by(PAGE).rev() {
                file.read_at(&mut found, at as u64).unwrap();
                assert!(found == data[at..at + PAGE]);
            }
        });
        assert!(backwards >= reads);
        keep(&client, &file, &data);
        assert_eq!(requests(&client, || read_all(&file, 100_000, &data)), 0);
        // A write of the same client through another open file is seen.
        both.write_at(b"new", 5 << 20, Stability::Unstable).unwrap();
        let mut found = [0; 3];
        assert_eq!(file.read_at(&mut found, 5 << 20).unwrap(), 3);
        assert_eq!(&found, b"new");
        both.set_size(10).unwrap();
        assert_eq!(file.read_at(&mut found, 8).unwrap(), 2);
        for file in [file, both, direct, written] {
            file.close().unwrap();
        }
        client.disconnect().unwrap();
    }
}

/// Without a delegation each read goes to the server, and asking for one costs two requests more.
#[test]
fn a_reader_without_a_sequence_asks_for_no_delegation() {
    const PIECE: usize = limits::READ_AHEAD_RUN_BYTES as usize;
    let served = Served::new();
    let (plain, client) =
        (served.client(TransportChoice::Iwarp), for_readers(&served, TransportChoice::Iwarp));
    let data = served.with_file("long", 6 << 20);
    std::fs::write(served.path().join("short"), &data[..10]).unwrap();
    let sparse = std::fs::File::create(served.path().join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    // Now the channel that a delegation needs is there.
    let long = client.open(b"long", &OpenOptions::read()).unwrap();
    keep(&client, &long, &data);
    let mut found = vec![0; 2 * PIECE];
    let [wanted, asked] = [&plain, &client].map(|client| {
        let [short, sparse] =
            [&b"short"[..], b"sparse"].map(|name| client.open(name, &OpenOptions::read()).unwrap());
        let asked = requests(client, || {
            for _ in 0..3 {
                assert_eq!(short.read_at(&mut found, 0).unwrap(), 10);
                assert_eq!(short.read_at(&mut found, 10).unwrap(), 0);
            }
            for place in [7, 3, 100, 12, 2] {
                let read = sparse.read_at(&mut found[..PIECE], place * 2 * PIECE as u64);
                assert_eq!(read.unwrap(), PIECE);
            }
        });
        short.close().unwrap();
        sparse.close().unwrap();
        asked
    });
    // Keep-alives may add a few requests; with a delegation most reads would send none.
    assert!(asked.abs_diff(wanted) <= 2, "{asked} requests, and {wanted} without a cache");
    long.close().unwrap();
}

#[test]
fn a_reader_ahead_sees_the_changes_of_another_client() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let (reader, other) = (for_readers(&served, transport), served.client(transport));
        type Change = fn(&File, &mut Vec<u8>);
        let changes: [Change; 3] = [
            |file, data| {
                file.write_at(b"!", 5 << 20, Stability::Unstable).unwrap();
                data[5 << 20] = b'!';
            },
            |file, data| {
                file.append(b"more", Stability::FileSync).unwrap();
                data.extend(b"more");
            },
            |file, data| {
                file.set_size(5_000_000).unwrap();
                data.truncate(5_000_000);
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            // The server grants no delegation of a file that it has recently recalled.
            let name = number.to_string().into_bytes();
            let mut data = pattern(6 << 20);
            std::fs::write(served.path().join(number.to_string()), &data).unwrap();
            let file = reader.open(&name, &OpenOptions::read()).unwrap();
            keep(&reader, &file, &data);
            let changed = other.open(&name, &OpenOptions::write()).unwrap();
            change(&changed, &mut data);
            read_all(&file, 32 << 10, &data);
            changed.close().unwrap();
            file.close().unwrap();
        }
    }
}

/// A reader that has been told, by any means, of another client's write must see it.
#[test]
fn a_write_that_is_over_is_seen_by_a_reader_in_full_run() {
    const BLOCK: usize = 32 << 10;
    for transport in TRANSPORTS {
        let served = Served::new();
        let (reader, writer) = (for_readers(&served, transport), served.client(transport));
        for number in 0..12_u8 {
            let name = [b'a' + number];
            let blocks = (6 << 20) / BLOCK;
            std::fs::write(served.path().join(str::from_utf8(&name).unwrap()), vec![0; 6 << 20])
                .unwrap();
            let file = reader.open(&name, &OpenOptions::read()).unwrap();
            keep(&reader, &file, &vec![0; 6 << 20]);
            let written = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let file = writer.open(&name, &OpenOptions::write()).unwrap();
                    for version in 1..=4_u64 {
                        for block in 0..blocks as u64 {
                            let at = block * BLOCK as u64 + 100;
                            file.write_at(&[version as u8], at, Stability::Unstable).unwrap();
                        }
                        written.store(version, Ordering::Release);
                    }
                });
                let mut block = 0;
                let mut found = vec![0; BLOCK];
                while written.load(Ordering::Acquire) < 4 {
                    let before = written.load(Ordering::Acquire);
                    file.read_at(&mut found, (block * BLOCK) as u64).unwrap();
                    assert!(u64::from(found[100]) >= before, "{} {before}", found[100]);
                    block = (block + 1) % blocks;
                }
            });
        }
    }
}

/// The server does not answer, and the reader is interrupted.
#[test]
fn a_waiter_for_read_ahead_can_be_stopped_and_can_leave() {
    const PIECE: usize = 32 << 10;
    let served = Served::new();
    let wire = Wire::new(served.address, || None);
    let cache = Some(CacheOptions::for_readers(8 << 20));
    let client = wire.client_with(|options| options.cache = cache).unwrap();
    let data = served.with_file("file", 40 << 20);
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let mut found = vec![0; PIECE];
    let mut at = 0;
    let mut read = |file: &File, at: &mut usize| {
        let bytes = file.read_at(&mut found, *at as u64)?;
        assert!(found[..bytes] == data[*at..*at + bytes]);
        *at = if bytes == PIECE { *at + PIECE } else { 0 };
        Ok::<_, dafs_client::Error>(())
    };
    // Until there is read-ahead, in the middle of the file.
    while requests(&client, || (0..64).for_each(|_| read(&file, &mut at).unwrap())) > 8
        || at < 10 << 20
    {}
    let held = wire.held.lock().unwrap();
    interruptible(|| true, || while read(&file, &mut at).is_ok() {});
    within(Duration::from_millis(50), || drop(file));
    drop(held);
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    for _ in 0..2 * data.len() / PIECE {
        read(&file, &mut at).unwrap();
    }
    file.close().unwrap();
    client.disconnect().unwrap();
}
