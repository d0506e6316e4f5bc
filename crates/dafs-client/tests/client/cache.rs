//! The client's cache on a real server: it saves requests, and no reader sees stale data.

use crate::served::{Served, TRANSPORTS, on_each_transport_with, pattern, read_all, requests};
use dafs_client::{
    CacheOptions, Client, ConnectOptions, Create, Error, FenceChange, FenceObject, File, LockRange,
    OpenOptions, SetAttributes, Stability, Status, TransportChoice,
};
use dafs_dat::sim::SimRng;
use dafs_mem::Site;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;

fn cache(options: &mut ConnectOptions) {
    options.cache = Some(CacheOptions::new(8 << 20));
    // Checksums computed while data changes would not match.
    options.checksums = options.transport == TransportChoice::Iwarp;
}

fn caching(served: &Served, transport: TransportChoice) -> Client {
    served.client_with(|options| {
        options.transport = transport;
        cache(options);
    })
}

fn read_write() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing).mode(0o644)
}

fn write_all(file: &File, piece_bytes: usize, data: &[u8]) {
    for (number, piece) in data.chunks(piece_bytes).enumerate() {
        let offset = (number * piece_bytes) as u64;
        assert_eq!(file.write_at(piece, offset, Stability::Unstable).unwrap(), piece.len());
    }
}

#[test]
fn a_cached_read_sends_no_request() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let data = served.with_file("file", 1_000_001);
        let client = caching(&served, transport);
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        read_all(&file, 10_000, &data);
        assert_eq!(requests(&client, || read_all(&file, 10_000, &data)), 0);
        // Another open file of the same client shares the cached data.
        let again = client.open(b"file", &OpenOptions::read()).unwrap();
        assert_eq!(requests(&client, || read_all(&again, 333_333, &data)), 0);
        file.close().unwrap();
        assert_eq!(requests(&client, || read_all(&again, 70_000, &data)), 0);
        let direct = client.open(b"file", &OpenOptions::read().direct(true)).unwrap();
        assert!(requests(&client, || read_all(&direct, 100_000, &data)) >= 10);
        let plain = served.client(transport);
        let file = plain.open(b"file", &OpenOptions::read()).unwrap();
        assert!(requests(&plain, || read_all(&file, 100_000, &data)) >= 10, "it is off by default");
    }
}

#[test]
fn sequential_readers_and_writers_of_pages_send_few_requests() {
    const BYTES: usize = 6 << 20;
    for (served, client) in on_each_transport_with(cache) {
        let data = pattern(BYTES + 17);
        let file = client.open(b"file", &read_write()).unwrap();
        let few = (BYTES / PAGE / 64) as u64;
        let sent = requests(&client, || write_all(&file, PAGE, &data));
        assert!(sent <= few, "{sent} requests for {} writes", BYTES / PAGE);
        file.close().unwrap();
        assert!(served.content("file") == data);
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        let sent = requests(&client, || read_all(&file, PAGE, &data));
        assert!(sent <= few, "{sent} requests for {} reads", BYTES / PAGE);
    }
}

#[test]
fn own_changes_are_seen_by_all_that_looks_at_the_file() {
    for (served, client) in on_each_transport_with(cache) {
        let path = served.path().join("file");
        let file = client.open(b"file", &read_write()).unwrap();
        let unstable = Stability::Unstable;
        let sent = requests(&client, || {
            file.write_at(b"0123456789", 0, unstable).unwrap();
            file.write_at(b"AB", 4, unstable).unwrap();
            file.write_at(b"end", 100_000, unstable).unwrap();
        });
        assert!(sent <= 1, "the size is all that the server is asked for: {sent}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "nothing was written back");
        let mut found = [9; 20];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 20);
        assert_eq!(&found, b"0123AB6789\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(file.read_at(&mut found, 99_999).unwrap(), 4);
        assert_eq!(&found[..4], b"\0end");
        assert_eq!(file.attributes().unwrap().size, 100_003);
        file.write_at(b"!", 100_003, unstable).unwrap();
        assert_eq!(client.attributes(file.handle()).unwrap().size, 100_004);
        file.write_at(b"?", 100_004, unstable).unwrap();
        assert_eq!(file.append(b"more", Stability::FileSync).unwrap(), 100_005);
        assert_eq!(file.read_at(&mut found, 100_000).unwrap(), 9);
        assert_eq!(&found[..9], b"end!?more");
        file.write_at(b"X", 2, unstable).unwrap();
        assert_eq!(client.read_file(b"/file", 8).unwrap().data, b"01X3AB67");
        // A truncation, and a write behind it.
        file.write_at(b"Y", 50_000, unstable).unwrap();
        file.set_size(6).unwrap();
        assert_eq!(file.attributes().unwrap().size, 6);
        file.write_at(b"z", 8, unstable).unwrap();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 9);
        assert_eq!(&found[..9], b"01X3AB\0\0z");
        // Buffers of the caller's own, in the middle of cached data.
        let buffer = client.buffer(PAGE).unwrap();
        file.read_into(&buffer, 0..9, 0).unwrap();
        assert_eq!(buffer.slice(0, 9).unwrap().to_vec(Site::Inspect), b"01X3AB\0\0z");
        buffer.view().copy_from(b"direct", Site::Inspect);
        file.write_at(b"????????????", 0, unstable).unwrap();
        file.submit_write(&buffer, 0..6, 3, unstable).unwrap().wait().unwrap();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 12);
        assert_eq!(&found[..12], b"???direct???");
        let group = client.completion_group();
        group.write(1, &file, &buffer, 0..3, 12, unstable).unwrap();
        group.wait(&mut Vec::new(), 1, None).unwrap();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 15);
        assert_eq!(&found[..15], b"???direct???dir");
        let mut batch = client.batch();
        file.write_at(b"*", 0, unstable).unwrap();
        batch.write(&file, &[(1, 3)], &[(&buffer, 0..3)]).unwrap();
        batch.run().unwrap().remove(0).unwrap();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 15);
        assert_eq!(&found[..15], b"*dirirect???dir");
        // Another open truncates the file.
        file.write_at(b"lost", 0, unstable).unwrap();
        let other = client.open(b"file", &read_write().truncate(true)).unwrap();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 0);
        other.write_at(b"new", 0, unstable).unwrap();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 3);
        assert_eq!(&found[..3], b"new");
        // Dirty data of two open files belongs to each of them.
        file.write_at(b"F", 0, unstable).unwrap();
        other.write_at(b"O", 1, unstable).unwrap();
        file.commit(0, 0).unwrap();
        other.lock(&LockRange::exclusive(), None).unwrap();
        other.write_at(b"L", 2, unstable).unwrap();
        other.unlock(0, u64::MAX).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"FOL");
        file.write_at(b"dropped", 0, unstable).unwrap();
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), b"dropped");
        other.close().unwrap();
    }
}

/// A generator whose seed is printed, so that a failure can be reproduced.
struct Random(SimRng);

impl Random {
    fn new() -> Self {
        let seed = std::env::var("DAFS_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.unwrap().as_nanos() as u64
        });
        println!("DAFS_SEED={seed}");
        Self(SimRng::new(seed))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }
}

/// The expected content of a file, and the open files of each client.
struct Shared {
    name: Vec<u8>,
    content: Vec<u8>,
    open: [Option<File>; 2],
}

#[test]
fn two_caching_clients_always_see_each_others_data() {
    const FILES: usize = 24;
    const FILE_BYTES: usize = 700_000;
    const STEPS: usize = 2500;
    let mut random = Random::new();
    let mut served = Served::new();
    let clients = [
        caching(&served, TransportChoice::Iwarp),
        served.client_with(|options| {
            options.transport = TransportChoice::Shm;
            // So little memory that many blocks are evicted.
            options.cache = Some(CacheOptions { unwritten_bytes: 300_000, ..CacheOptions::new(0) });
        }),
    ];
    let mut files: Vec<Shared> = (0..FILES)
        .map(|number| {
            let name = format!("file{number}").into_bytes();
            let content = pattern(random.below(FILE_BYTES));
            std::fs::write(served.path().join(format!("file{number}")), &content).unwrap();
            Shared { name, content, open: [None, None] }
        })
        .collect();
    // A file gets a delegation only once, so the test goes from file to file.
    for step in 0..STEPS {
        let first = step * (FILES - 4) / STEPS;
        if step % (STEPS / 4) == STEPS / 8 {
            served.stop();
            served.start();
            // The server grants no new delegation before both clients have sent a new request.
            std::thread::scope(|scope| {
                for client in &clients {
                    scope.spawn(|| drop(client.open(b"scratch", &read_write()).unwrap()));
                }
            });
        }
        let shared = &mut files[first + random.below(4)];
        let who = random.below(2);
        let client = &clients[who];
        let file = shared.open[who].get_or_insert_with(|| {
            let options = if random.below(4) == 0 { OpenOptions::read() } else { read_write() };
            client.open(&shared.name, &options).unwrap()
        });
        let offset = random.below(FILE_BYTES);
        let len = 1 + [100, 5000, 300_000][random.below(3)].min(random.below(300_000));
        let content = &mut shared.content;
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + step) as u8).collect();
        match random.below(24) {
            0..=7 => {
                let mut found = vec![0; len];
                let bytes = file.read_at(&mut found, offset as u64).unwrap();
                let end = (offset + len).min(content.len());
                let want = content.get(offset..end).unwrap_or_default();
                assert!(&found[..bytes] == want, "step {step}: {offset}+{len} by {who}");
            }
            8..=14 => {
                let stability =
                    [Stability::Unstable, Stability::FileSync][usize::from(random.below(20) == 0)];
                if file.write_at(&data, offset as u64, stability).is_ok() {
                    write(content, offset, &data);
                } else {
                    // Opened for reading.
                    shared.open[who] = None;
                }
            }
            15 => {
                let mut found = vec![0; content.len() + 1];
                assert_eq!(file.read_at(&mut found, 0).unwrap(), content.len(), "step {step}");
                assert!(found[..content.len()] == content[..], "step {step}");
            }
            16 => assert_eq!(file.attributes().unwrap().size, content.len() as u64, "step {step}"),
            17 => {
                let of_other = clients[1 - who].attributes(file.handle()).unwrap();
                assert_eq!(of_other.size, content.len() as u64, "step {step}");
            }
            18 => {
                let size = random.below(FILE_BYTES);
                if file.set_size(size as u64).is_ok() {
                    content.resize(size, 0);
                }
            }
            19 => {
                if let Ok(at) = file.append(&data, Stability::DataSync) {
                    assert_eq!(at, content.len() as u64, "step {step}");
                    content.extend_from_slice(&data);
                }
            }
            20 => {
                let buffer = client.buffer(len).unwrap();
                buffer.view().copy_from(&data, Site::Inspect);
                let done = file.write_from(&buffer, 0..len, offset as u64, Stability::Unstable);
                if done.is_ok() {
                    write(content, offset, &data);
                }
            }
            21 => no_more_than_told(file.commit(0, 0)),
            22 => {
                let other = client.open(&shared.name, &read_write()).unwrap();
                other.write_at(&data, offset as u64, Stability::Unstable).unwrap();
                write(content, offset, &data);
                no_more_than_told(other.close());
            }
            _ => no_more_than_told(shared.open[who].take().unwrap().close()),
        }
        // The content grows by appends.
        if shared.content.len() > 3 * FILE_BYTES {
            shared.open = [None, None];
            std::fs::remove_file(
                served.path().join(String::from_utf8(shared.name.clone()).unwrap()),
            )
            .unwrap();
            shared.content.clear();
        }
    }
    for shared in &mut files {
        shared
            .open
            .iter_mut()
            .filter_map(Option::take)
            .for_each(|file| no_more_than_told(file.close()));
        let name = String::from_utf8(shared.name.clone()).unwrap();
        let found = std::fs::read(served.path().join(name)).unwrap_or_default();
        assert!(found == shared.content);
    }
    served.stop();
}

/// A server that restarts on a running host loses no data, but its clients cannot know that.
fn no_more_than_told(result: Result<(), Error>) {
    assert!(matches!(result, Ok(()) | Err(Error::WritesLost)), "{result:?}");
}

fn write(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if content.len() < offset + data.len() {
        content.resize(offset + data.len(), 0);
    }
    content[offset..offset + data.len()].copy_from_slice(data);
}

#[test]
fn a_recall_in_the_middle_of_reads_and_writes_loses_nothing() {
    for (served, holder) in on_each_transport_with(cache) {
        let other = caching(&served, TransportChoice::Iwarp);
        for round in 0..8 {
            let name = format!("file{round}").into_bytes();
            let file = holder.open(&name, &read_write()).unwrap();
            let (count, over) = (AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Each write is known to be over before the next one begins.
                    for number in 1.. {
                        let number: u64 = number;
                        let page = number.to_be_bytes().repeat(PAGE / 8);
                        let offset = (number % 64) * PAGE as u64;
                        file.write_at(&page, 64 * PAGE as u64 + offset, Stability::Unstable)
                            .unwrap();
                        file.write_at(&page, 0, Stability::Unstable).unwrap();
                        count.store(number, Ordering::SeqCst);
                        if over.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                });
                scope.spawn(|| {
                    let mut last = 0;
                    while !over.load(Ordering::SeqCst) {
                        last = look(&file, &count, last);
                    }
                });
                while count.load(Ordering::SeqCst) < 200 {
                    std::thread::yield_now();
                }
                let theirs = other.open(&name, &OpenOptions::read()).unwrap();
                let mut last = 0;
                for _ in 0..50 {
                    last = look(&theirs, &count, last);
                }
                over.store(true, Ordering::SeqCst);
            });
        }
    }
}

/// Reads the counter: it is at least at the known value, and never decreases.
fn look(file: &File, count: &AtomicU64, last: u64) -> u64 {
    let known = count.load(Ordering::SeqCst).max(last);
    let mut page = vec![0; PAGE];
    if file.read_at(&mut page, 0).unwrap() == 0 {
        assert_eq!(known, 0);
        return 0;
    }
    let number = u64::from_be_bytes(page[..8].try_into().unwrap());
    assert!(number >= known, "{number} after {known}");
    number
}

#[test]
fn holders_are_asked_for_the_size_of_what_they_have_not_written() {
    let served = Served::new();
    let (holder, other) =
        (caching(&served, TransportChoice::Iwarp), served.client(TransportChoice::Shm));
    let file = holder.open(b"file", &read_write()).unwrap();
    file.write_at(&pattern(5000), 0, Stability::Unstable).unwrap();
    assert_eq!(std::fs::metadata(served.path().join("file")).unwrap().len(), 0);
    assert_eq!(other.attributes(file.handle()).unwrap().size, 5000);
    // The write did not cost the delegation.
    let sent = requests(&holder, || {
        file.write_at(&pattern(5000), 5000, Stability::Unstable).unwrap();
    });
    assert_eq!(sent, 0);
    file.close().unwrap();
}

#[test]
fn a_restart_of_the_server_loses_nothing_that_was_not_written_back() {
    for (mut served, client) in on_each_transport_with(cache) {
        let file = client.open(b"file", &read_write()).unwrap();
        let data = pattern(300_000);
        write_all(&file, 10_000, &data);
        served.stop();
        served.start();
        // The delegation may be lost or not: there was no other client, so the data is intact or
        // its loss is reported.
        read_all(&file, 7000, &data);
        file.write_at(b"after", 300_000, Stability::Unstable).unwrap();
        file.commit(0, 0).unwrap();
        file.close().unwrap();
        let mut want = data;
        want.extend_from_slice(b"after");
        assert!(served.content("file") == want);
    }
}

#[test]
fn local_changes_during_an_outage_are_seen() {
    let mut served = Served::new();
    std::fs::write(served.path().join("file"), "before").unwrap();
    let client = caching(&served, TransportChoice::Shm);
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    read_all(&file, 100, b"before");
    served.stop();
    std::fs::write(served.path().join("file"), "behind").unwrap();
    served.start();
    // The first answer reveals the restart.
    client.ping().unwrap();
    read_all(&file, 100, b"behind");
}

#[test]
fn data_that_cannot_be_written_back_is_told_once_and_read_as_the_server_has_it() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), b"as it was").unwrap();
    let client = served.client_with(|options| {
        options.cache = Some(CacheOptions::default());
        options.fence_id = Some("holder".into());
    });
    let admin = served.client_with(|options| options.fence_id = Some("admin".into()));
    let file = client.open(b"file", &OpenOptions::read_write()).unwrap();
    let handle = *file.handle();
    file.write_at(b"changed", 0, Stability::Unstable).unwrap();
    let fence = |change| admin.set_fence(&handle, FenceObject::FileSystem, change).unwrap();
    fence(FenceChange::Set(&[b"admin"]));
    let error = file.commit(0, 0).unwrap_err();
    assert_eq!(error.status(), Some(Status::Fenced), "{error}");
    fence(FenceChange::Clear);
    read_all(&file, 100, b"as it was");
    file.write_at(b"changed", 0, Stability::Unstable).unwrap();
    file.commit(0, 0).unwrap();
    // The close reports the loss if no call has before.
    file.write_at(b"again", 0, Stability::Unstable).unwrap();
    fence(FenceChange::Set(&[b"admin"]));
    // Another client gets the file, although dirty data of it cannot be written back.
    admin.open(b"file", &OpenOptions::read_write()).unwrap().close().unwrap();
    file.close().unwrap_err();
    assert_eq!(served.content("file"), b"changedas");
}

#[test]
fn locks_protect_what_two_caching_clients_write() {
    const ROUNDS: usize = 60;
    let served = Served::new();
    let clients = TRANSPORTS.map(|transport| caching(&served, transport));
    let first = clients[0].open(b"count", &read_write()).unwrap();
    first.write_at(&0u64.to_be_bytes(), 0, Stability::Unstable).unwrap();
    first.set_attributes(&SetAttributes::mode(0o600)).unwrap();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let file = client.open(b"count", &read_write()).unwrap();
                for _ in 0..ROUNDS {
                    file.lock(&LockRange::exclusive(), None).unwrap();
                    let mut number = [0; 8];
                    file.read_at(&mut number, 0).unwrap();
                    let next = u64::from_be_bytes(number) + 1;
                    file.write_at(&next.to_be_bytes(), 0, Stability::Unstable).unwrap();
                    file.unlock(0, u64::MAX).unwrap();
                }
                file.close().unwrap();
            });
        }
    });
    let mut number = [0; 8];
    first.read_at(&mut number, 0).unwrap();
    assert_eq!(u64::from_be_bytes(number), (2 * ROUNDS) as u64);
}
