//! Optimistic reads over a network: by RDMA from memory of a real server, without a request.

use crate::optimistic::fence_readers;
use crate::served::{Served, Wire, pattern, requests, status};
use dafs_client::{
    Client, FenceChange, FenceObject, File, OpenOptions, SetAttributes, Site, Stability, Status,
    TransportChoice,
};
use dafs_testkit::eventually;
use std::process::Command;

const BLOCK: usize = 4096;
/// Not whole blocks, and more than one window.
const BYTES: usize = 600 * BLOCK + 77;

fn served() -> Served {
    Served::with(|setup| setup.optimistic_remotely = true)
}

fn optimistic(served: &Served) -> Client {
    served.client_with(|options| {
        options.transport = TransportChoice::Iwarp;
        options.optimistic = true;
    })
}

fn open(client: &Client) -> File {
    client.open(b"file", &OpenOptions::read()).unwrap()
}

fn read(file: &File, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let count = file.read_at(&mut bytes, offset as u64).unwrap();
    bytes.truncate(count);
    bytes
}

fn hits(client: &Client) -> u64 {
    client.optimistic_stats().hits
}

/// Reads a range until a read of it is a hit.
fn warm(client: &Client, file: &File, offset: usize, len: usize) {
    eventually("the range is shown", || {
        let before = hits(client);
        read(file, offset, len);
        hits(client) > before
    });
}

#[test]
fn a_hit_costs_the_server_no_request() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let client = optimistic(&served);
    let file = open(&client);
    let buffer = client.buffer(16 * BLOCK).unwrap();
    let ranges = [(0, BLOCK), (5 * BLOCK, 8 * BLOCK), (510 * BLOCK + 7, 3 * BLOCK), (3, 5)];
    for (offset, len) in ranges {
        warm(&client, &file, offset, len);
    }
    eventually("all reads are hits", || {
        let before = hits(&client);
        let asked = requests(&client, || {
            for (offset, len) in ranges.repeat(50) {
                assert!(read(&file, offset, len) == content[offset..offset + len]);
                let count = file.read_into(&buffer, 1..1 + len, offset as u64).unwrap();
                assert_eq!(count, len);
                let found = buffer.slice(1, len).unwrap().to_vec(Site::Inspect);
                assert!(found == content[offset..offset + len]);
                let submitted = file.submit_read(&buffer, 0..len, offset as u64).unwrap();
                assert_eq!(submitted.wait().unwrap(), len);
            }
        });
        asked == 0 && hits(&client) - before == 600
    });
    let counts = served.exposure_counts();
    assert_eq!((counts.files, counts.grants), (1, 1));
    eventually("the channel is counted", || served.counts().optimistic_channels == 1);
}

#[test]
fn the_end_of_the_file_is_read_without_a_request() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let client = optimistic(&served);
    let file = open(&client);
    let last = BYTES - 77;
    warm(&client, &file, last - BLOCK, 2 * BLOCK);
    assert!(read(&file, last - 10, 1000) == content[last - 10..]);
    assert!(read(&file, last, 77) == content[last..]);
    assert!(read(&file, BYTES, 10).is_empty());
    assert!(read(&file, last + BLOCK, 10).is_empty());
}

#[test]
fn a_client_that_has_one_credit_has_hits() {
    let served = served();
    let content = served.with_file("file", 2 * BLOCK);
    let client = served.client_with(|options| {
        options.transport = TransportChoice::Iwarp;
        options.optimistic = true;
        options.requests = 1;
    });
    let file = open(&client);
    warm(&client, &file, 0, BLOCK);
    assert!(read(&file, 0, BLOCK) == content[..BLOCK]);
}

#[test]
fn many_reads_at_a_time_are_hits() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let client = optimistic(&served);
    let file = open(&client);
    let buffer = client.buffer(64 * BLOCK).unwrap();
    for block in 0..64 {
        warm(&client, &file, block * BLOCK, BLOCK);
    }
    let before = hits(&client);
    for _ in 0..50 {
        let pending: Vec<_> = (0..64)
            .map(|block| {
                let at = block * BLOCK;
                file.submit_read(&buffer, at..at + BLOCK, at as u64).unwrap()
            })
            .collect();
        for read in pending {
            assert_eq!(read.wait().unwrap(), BLOCK);
        }
        assert!(
            buffer.slice(0, 64 * BLOCK).unwrap().to_vec(Site::Inspect) == content[..64 * BLOCK]
        );
    }
    assert!(hits(&client) > before);
}

#[test]
fn a_write_is_seen_from_its_answer_on() {
    let served = served();
    served.with_file("file", 8 * BLOCK);
    let (client, other) = (optimistic(&served), served.client(TransportChoice::Iwarp));
    let file = open(&client);
    let writer = other.open(b"file", &OpenOptions::read_write()).unwrap();
    for round in 0..20_u8 {
        if round < 2 {
            warm(&client, &file, 0, 4 * BLOCK);
        } else {
            // A block that changes often rests.
            read(&file, 0, 4 * BLOCK);
        }
        writer.write_at(&[round; 100], BLOCK as u64 + 50, Stability::Unstable).unwrap();
        assert_eq!(read(&file, BLOCK + 50, 100), [round; 100]);
        let own = client.open(b"file", &OpenOptions::read_write()).unwrap();
        own.write_at(&[!round; 3], 0, Stability::Unstable).unwrap();
        assert_eq!(read(&file, 0, 3), [!round; 3]);
    }
    assert!(hits(&client) > 0);
}

#[test]
fn a_change_of_the_size_is_seen_from_its_answer_on() {
    let served = served();
    served.with_file("file", 2 * BLOCK + 77);
    let (client, other) = (optimistic(&served), served.client(TransportChoice::Shm));
    let file = open(&client);
    for round in 0..10 {
        if round < 2 {
            warm(&client, &file, 0, 3 * BLOCK);
        }
        let size = 2 * BLOCK + 5 + round * 10;
        let change = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
        other.set_attributes(file.handle(), &change).unwrap();
        assert_eq!(read(&file, 0, 4 * BLOCK).len(), size);
    }
}

#[test]
fn a_change_by_a_local_program_is_seen_soon() {
    let served = served();
    served.with_file("file", 2 * BLOCK);
    let client = optimistic(&served);
    let file = open(&client);
    warm(&client, &file, 0, 2 * BLOCK);
    let script = "printf changed | dd of=\"$0\" bs=1 seek=100 conv=notrunc status=none";
    let path = served.path().join("file");
    assert!(Command::new("sh").args(["-c", script]).arg(&path).status().unwrap().success());
    eventually("the change is seen", || read(&file, 100, 7) == b"changed");
    warm(&client, &file, 0, 2 * BLOCK);
    assert_eq!(read(&file, 100, 7), b"changed");
}

#[test]
fn a_fenced_client_reads_nothing_more() {
    let served = served();
    served.with_file("file", 2 * BLOCK);
    let client = served.client_with(|options| {
        options.transport = TransportChoice::Iwarp;
        options.optimistic = true;
        options.fence_id = Some("reader".to_owned());
    });
    let other = served.client_with(|options| options.fence_id = Some("other".to_owned()));
    let file = open(&client);
    warm(&client, &file, 0, BLOCK);
    let before = hits(&client);
    other.set_fence(file.handle(), FenceObject::File, FenceChange::Set(&[b"other"])).unwrap();
    let mut bytes = [0; 100];
    assert_eq!(status(file.read_at(&mut bytes, 0)), Status::Fenced);
    assert_eq!(hits(&client), before);
    assert_eq!(served.exposure_counts().files, 0);
}

#[test]
fn a_fence_ends_a_storm_of_reads() {
    fence_readers(&served(), TransportChoice::Iwarp);
}

#[test]
fn a_server_that_comes_back_shows_what_is_there_now() {
    let mut served = served();
    served.with_file("file", 2 * BLOCK);
    let client = optimistic(&served);
    let file = open(&client);
    warm(&client, &file, 0, 2 * BLOCK);
    served.stop();
    let content = pattern(3 * BLOCK).split_off(BLOCK);
    std::fs::write(served.path().join("file"), &content).unwrap();
    served.start();
    assert!(read(&file, 0, 2 * BLOCK) == content);
    warm(&client, &file, 0, 2 * BLOCK);
    assert!(read(&file, 0, 2 * BLOCK) == content);
}

#[test]
fn a_small_file_that_is_opened_again_costs_no_read_request() {
    let served = served();
    let mut content = served.with_file("file", 2 * BLOCK + 77);
    let (client, other) = (optimistic(&served), served.client(TransportChoice::Shm));
    let look = || {
        let file = open(&client);
        let bytes = read(&file, 0, 16 * BLOCK);
        file.close().unwrap();
        bytes
    };
    let warm = |content: &[u8]| {
        eventually("the file is shown", || {
            let before = hits(&client);
            assert!(look() == content);
            hits(&client) > before
        });
    };
    warm(&content);
    let counts = served.exposure_counts();
    assert_eq!((counts.files, counts.small_files, counts.grants), (1, 1, 1));
    let bare = requests(&client, || open(&client).close().unwrap());
    eventually("the server is asked to open and to close alone", || {
        requests(&client, || assert!(look() == content)) == bare
    });
    let blind = client.open(b"file", &OpenOptions::write()).unwrap();
    assert!(blind.read_at(&mut [0; 10], 0).is_err(), "an open for writing alone");
    blind.close().unwrap();
    let writer = other.open(b"file", &OpenOptions::read_write()).unwrap();
    writer.write_at(&[9; 50], BLOCK as u64, Stability::Unstable).unwrap();
    content[BLOCK..BLOCK + 50].fill(9);
    assert!(look() == content, "a write is seen from its answer on");
    warm(&content);
    client.disconnect().unwrap();
    eventually("nothing is shown", || served.exposure_counts().files == 0);
}

#[test]
fn a_close_and_the_end_of_the_session_end_the_hits() {
    let served = served();
    // A small file stays shown as long as its clients have sessions.
    served.with_file("file", 20 * BLOCK);
    let (client, other) = (optimistic(&served), optimistic(&served));
    let (first, second, others) = (open(&client), open(&client), open(&other));
    warm(&client, &first, 0, BLOCK);
    warm(&client, &second, 0, BLOCK);
    warm(&other, &others, 0, BLOCK);
    first.close().unwrap();
    // The memory may have been known to the open that is gone, so it is replaced.
    warm(&client, &second, BLOCK, BLOCK);
    client.disconnect().unwrap();
    assert!(second.read_at(&mut [0; 100], 0).is_err());
    eventually("its channel is gone", || served.counts().optimistic_channels == 1);
    warm(&other, &others, 0, 2 * BLOCK);
    others.close().unwrap();
    eventually("nothing is shown", || served.exposure_counts().files == 0);
}

#[test]
fn a_lost_channel_costs_no_read() {
    let served = served();
    let content = served.with_file("file", 64 * BLOCK);
    let mut connections = 0;
    // Channels break after so many bytes, and the session's connection does not.
    let wire = Wire::new(served.address, move || {
        connections += 1;
        (connections > 1).then_some(300_000)
    });
    let client = wire.client_with(|options| options.optimistic = true).unwrap();
    let file = open(&client);
    eventually("three channels were lost", || {
        for block in 0..64 {
            let at = block * BLOCK;
            assert!(read(&file, at, BLOCK) == content[at..at + BLOCK]);
        }
        client.optimistic_stats().lost >= 3
    });
    assert!(hits(&client) > 0);
    assert_eq!(client.stats().recoveries, 0);
}

#[test]
fn other_clients_read_as_ever() {
    let served = served();
    let content = served.with_file("file", 2 * BLOCK);
    let summed = served.client_with(|options| {
        options.transport = TransportChoice::Iwarp;
        options.optimistic = true;
        options.checksums = true;
    });
    let plain = served.client(TransportChoice::Iwarp);
    for client in [summed, plain] {
        let file = open(&client);
        for _ in 0..20 {
            assert!(read(&file, 0, 2 * BLOCK) == content);
        }
        assert_eq!(hits(&client), 0);
    }
    assert_eq!(served.exposure_counts().files, 0);
    // Clients of this host map the memory.
    let local = served.client_with(|options| {
        options.transport = TransportChoice::Shm;
        options.optimistic = true;
    });
    let file = open(&local);
    warm(&local, &file, 0, 2 * BLOCK);
}
