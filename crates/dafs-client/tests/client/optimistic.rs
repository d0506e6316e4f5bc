//! Optimistic reads: from memory that the server shows, without a request.

use crate::served::{Served, pattern, requests, status};
use dafs_client::{
    CacheOptions, Client, Create, FenceChange, FenceObject, File, OpenOptions, OptimisticStats,
    SetAttributes, Site, Stability, Status, TransportChoice,
};
use dafs_testkit::eventually;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const BLOCK: usize = 4096;
/// Not whole blocks, and more than one window.
pub(crate) const BYTES: usize = 600 * BLOCK + 77;

pub(crate) fn served() -> Served {
    Served::with(|setup| setup.optimistic = true)
}

pub(crate) fn optimistic(served: &Served) -> Client {
    served.client_with(|options| {
        options.transport = TransportChoice::Shm;
        options.optimistic = true;
    })
}

pub(crate) fn open(client: &Client) -> File {
    client.open(b"file", &OpenOptions::read()).unwrap()
}

pub(crate) fn read(file: &File, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let count = file.read_at(&mut bytes, offset as u64).unwrap();
    bytes.truncate(count);
    bytes
}

pub(crate) fn hits(client: &Client) -> u64 {
    client.optimistic_stats().hits
}

/// Reads a range until a read of it is a hit.
pub(crate) fn warm(client: &Client, file: &File, offset: usize, len: usize) {
    eventually("the range is shown", || {
        let before = hits(client);
        read(file, offset, len);
        hits(client) > before
    });
}

/// Reads until a server that is not held up has got no request.
fn without_requests(client: &Client, mut reads: impl FnMut()) {
    eventually("all reads are hits", || requests(client, &mut reads) == 0);
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
    let mut before = OptimisticStats::default();
    without_requests(&client, || {
        before = client.optimistic_stats();
        for _ in 0..100 {
            for (offset, len) in ranges {
                assert!(read(&file, offset, len) == content[offset..offset + len]);
                let count = file.read_into(&buffer, 1..1 + len, offset as u64).unwrap();
                assert_eq!(count, len);
                let found = buffer.slice(1, len).unwrap().to_vec(Site::Inspect);
                assert!(found == content[offset..offset + len]);
            }
        }
    });
    let after = client.optimistic_stats();
    let bytes: usize = ranges.iter().map(|(_, len)| len).sum();
    assert_eq!(after.hits - before.hits, 800);
    assert_eq!(after.bytes - before.bytes, 200 * bytes as u64);
    assert_eq!(
        OptimisticStats { hits: before.hits, bytes: before.bytes, ..after },
        before,
        "no miss"
    );
    let counts = served.exposure_counts();
    assert_eq!((counts.files, counts.grants), (1, 1));
}

#[test]
fn the_end_of_the_file_is_read_without_a_request() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let client = optimistic(&served);
    let file = open(&client);
    let last = BYTES - 77;
    warm(&client, &file, last - BLOCK, 2 * BLOCK);
    without_requests(&client, || {
        assert!(read(&file, last - 10, 1000) == content[last - 10..]);
        assert!(read(&file, last, 77) == content[last..]);
        assert!(read(&file, BYTES, 10).is_empty());
    });
    let behind = read(&file, last + BLOCK, 10);
    assert!(behind.is_empty(), "behind the last block the server is asked");
}

#[test]
fn a_client_with_a_cache_for_readers_has_hits() {
    let served = served();
    let content = served.with_file("file", BYTES);
    let client = served.client_with(|options| {
        options.transport = TransportChoice::Shm;
        options.optimistic = true;
        options.cache = Some(CacheOptions::for_readers(4 << 20));
    });
    let file = open(&client);
    let offsets = [300, 7, 90].map(|block| block * BLOCK);
    for offset in offsets {
        warm(&client, &file, offset, BLOCK);
    }
    without_requests(&client, || {
        for offset in offsets {
            assert!(read(&file, offset, BLOCK) == content[offset..offset + BLOCK]);
        }
    });
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
        // The caller's own writes, too.
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
    let writer = other.open(b"file", &OpenOptions::read_write()).unwrap();
    for round in 0..10 {
        if round < 2 {
            warm(&client, &file, 0, 3 * BLOCK);
        }
        let tail = 5 + round * 10;
        let size = 2 * BLOCK + tail;
        let change = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
        other.set_attributes(file.handle(), &change).unwrap();
        assert_eq!(read(&file, 0, 4 * BLOCK).len(), size);
        // A block that changes often rests.
        if round < 1 {
            warm(&client, &file, 0, 3 * BLOCK);
        }
        writer.append(&[7; 100], Stability::DataSync).unwrap();
        assert_eq!(read(&file, 2 * BLOCK, BLOCK).len(), tail + 100);
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
    // From then on no old block is seen again.
    warm(&client, &file, 0, 2 * BLOCK);
    assert_eq!(read(&file, 100, 7), b"changed");
}

#[test]
fn a_fenced_client_reads_nothing_more() {
    let served = served();
    served.with_file("file", 2 * BLOCK);
    let client = served.client_with(|options| {
        options.transport = TransportChoice::Shm;
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

/// Threads read as fast as they can, and another client fences theirs. No read that begins when the fence was
/// answered is served.
pub(crate) fn fence_readers(served: &Served, transport: TransportChoice) {
    served.with_file("file", 20 * BLOCK);
    let client = served.client_with(|options| {
        options.transport = transport;
        options.optimistic = true;
        options.fence_id = Some("reader".to_owned());
    });
    let other = served.client_with(|options| options.fence_id = Some("other".to_owned()));
    let (file, is_fenced) = (open(&client), AtomicBool::new(false));
    warm(&client, &file, 0, 4 * BLOCK);
    let before = hits(&client);
    let storm = |thread: usize| {
        let mut bytes = vec![0; BLOCK];
        loop {
            let is_behind = is_fenced.load(Ordering::SeqCst);
            match status(file.read_at(&mut bytes, (thread * BLOCK) as u64)) {
                Status::Ok => assert!(!is_behind, "a read behind the fence"),
                Status::Fenced => return,
                other => panic!("{other:?}"),
            }
        }
    };
    let storm = &storm;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || storm(thread));
        }
        for block in 0..2000 {
            read(&file, block % 4 * BLOCK, BLOCK);
        }
        let list = FenceChange::Set(&[b"other"]);
        let fenced = other.set_fence(file.handle(), FenceObject::File, list);
        is_fenced.store(true, Ordering::SeqCst);
        fenced.unwrap();
    });
    let after = hits(&client);
    assert!(after > before, "the storm was of requests");
    assert_eq!(status(file.read_at(&mut [0; 100], 0)), Status::Fenced);
    assert_eq!(hits(&client), after);
    assert_eq!(served.exposure_counts().files, 0);
}

#[test]
fn a_fence_ends_a_storm_of_reads() {
    fence_readers(&served(), TransportChoice::Shm);
}

#[test]
fn nothing_is_read_from_a_server_that_has_stopped() {
    let mut served = served();
    served.with_file("file", 2 * BLOCK);
    let client = optimistic(&served);
    let file = open(&client);
    warm(&client, &file, 0, 2 * BLOCK);
    let before = hits(&client);
    served.stop();
    let content = pattern(3 * BLOCK).split_off(BLOCK);
    std::fs::write(served.path().join("file"), &content).unwrap();
    served.start();
    assert!(read(&file, 0, 2 * BLOCK) == content);
    assert_eq!(hits(&client), before);
    warm(&client, &file, 0, 2 * BLOCK);
    assert!(read(&file, 0, 2 * BLOCK) == content);
}

#[test]
fn nothing_is_read_after_the_end_of_the_session() {
    let served = served();
    served.with_file("file", 2 * BLOCK);
    let (client, other) = (optimistic(&served), optimistic(&served));
    let (file, others) = (open(&client), open(&other));
    warm(&client, &file, 0, BLOCK);
    // The other client keeps the file exposed.
    warm(&other, &others, 0, BLOCK);
    let before = hits(&client);
    client.disconnect().unwrap();
    assert!(file.read_at(&mut [0; 100], 0).is_err());
    assert_eq!(hits(&client), before);
}

#[test]
fn a_close_takes_the_memory_back() {
    let served = served();
    // A small file stays shown as long as its clients have their leases.
    served.with_file("file", 20 * BLOCK);
    let client = optimistic(&served);
    let (first, second) = (open(&client), open(&client));
    warm(&client, &first, 0, BLOCK);
    warm(&client, &second, 0, BLOCK);
    first.close().unwrap();
    // The memory may have been known to the open that is gone, so it is replaced.
    warm(&client, &second, BLOCK, BLOCK);
    second.close().unwrap();
    assert_eq!(served.exposure_counts().files, 0);
    let created = OpenOptions::read_write().create(Create::IfMissing);
    let third = client.open(b"file", &created).unwrap();
    warm(&client, &third, 0, BLOCK);
}

#[test]
fn blocks_before_the_last_one_come_along_with_it() {
    let served = served();
    served.with_file("file", 4 * BLOCK);
    let client = optimistic(&served);
    let file = open(&client);
    eventually("all blocks are shown", || {
        read(&file, 3 * BLOCK, BLOCK);
        served.exposure_counts().frames_published == 4
    });
}

#[test]
#[ignore = "memory moves between files after second chances of four seconds"]
fn a_file_gets_memory_of_one_that_has_all() {
    let served = Served::with(|setup| {
        setup.optimistic = true;
        setup.optimistic_bytes = 7 << 19;
    });
    let content = served.with_file("file", 6 << 20);
    let wanted = served.with_file("other", 4 * BLOCK);
    let client = optimistic(&served);
    let file = open(&client);
    let check = |step: usize| {
        for offset in (0..content.len()).step_by(step) {
            let end = content.len().min(offset + 16 * BLOCK);
            assert!(read(&file, offset, end - offset) == content[offset..end]);
        }
    };
    eventually("the memory is full", || {
        check(16 * BLOCK);
        served.exposure_counts().evicted > 0
    });
    let other = client.open(b"other", &OpenOptions::read()).unwrap();
    eventually("the other file is shown", || {
        check(1 << 20);
        let before = hits(&client);
        assert!(read(&other, 0, 4 * BLOCK) == wanted);
        hits(&client) > before
    });
    assert!(served.exposure_counts().given > 0);
    check(16 * BLOCK);
}

#[test]
fn other_clients_read_as_ever() {
    let served = served();
    let content = served.with_file("file", 2 * BLOCK);
    let network = served.client_with(|options| {
        options.transport = TransportChoice::Iwarp;
        options.optimistic = true;
    });
    let summed = served.client_with(|options| {
        options.transport = TransportChoice::Shm;
        options.optimistic = true;
        options.checksums = true;
    });
    let plain = served.client(TransportChoice::Shm);
    for client in [network, summed, plain] {
        let file = open(&client);
        for _ in 0..20 {
            assert!(read(&file, 0, 2 * BLOCK) == content);
        }
        assert_eq!(hits(&client), 0);
    }
    assert_eq!(served.exposure_counts().files, 0);
}
