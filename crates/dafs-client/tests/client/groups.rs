//! Completion groups and futures, end to end over both transports.

use crate::served::{
    Served, TRANSPORTS, Wire, connected, on_each_transport, on_each_transport_with, open_file,
    pattern,
};
use dafs_client::{
    CacheOptions, Client, Completion, CompletionGroup, Error, File, IoBuffer, OpenOptions,
    OperationId, Pending, Stability,
};
use dafs_mem::Site;
use dafs_testkit::eventually;
use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const BLOCK: usize = 4096;
const TIME: Option<Duration> = Some(Duration::from_secs(60));

/// A file of so many blocks, and memory for it.
fn filled(served: &Served, client: &Client, blocks: usize) -> (File, IoBuffer, Vec<u8>) {
    let content = served.with_file("file", blocks * BLOCK);
    (open_file(client), client.buffer(blocks * BLOCK).unwrap(), content)
}

fn read_block(
    group: &CompletionGroup,
    file: &File,
    buffer: &IoBuffer,
    block: usize,
) -> OperationId {
    let at = block * BLOCK;
    group.read(block as u64, file, buffer, at..at + BLOCK, at as u64).unwrap()
}

fn words(completions: &[Completion]) -> BTreeSet<u64> {
    completions.iter().map(|done| done.user_data).collect()
}

#[test]
fn any_some_and_all_are_waited_for() {
    for (served, client) in on_each_transport() {
        let (file, buffer, content) = filled(&served, &client, 64);
        let (group, other) = (client.completion_group(), client.completion_group());
        let names: Vec<_> =
            (0..64).map(|block| read_block(&group, &file, &buffer, block)).collect();
        let alone = client.buffer(BLOCK).unwrap();
        other.read(999, &file, &alone, 0..BLOCK, 0).unwrap();
        let mut completions = Vec::new();
        let any = group.wait(&mut completions, 1, TIME).unwrap();
        assert!(any >= 1 && completions.len() == any);
        let some = group.wait(&mut completions, 10, TIME).unwrap();
        assert!(some >= 10.min(64 - any));
        group.wait(&mut completions, usize::MAX, TIME).unwrap();
        assert_eq!(group.in_flight(), 0);
        assert!(words(&completions).into_iter().eq(0..64), "each once, and no other group's");
        assert_eq!(completions.len(), 64);
        for done in &completions {
            assert_eq!(done.operation, names[done.user_data as usize]);
            assert_eq!(*done.result.as_ref().unwrap(), BLOCK);
        }
        assert!(buffer.view().to_vec(Site::Inspect) == content);
        completions.clear();
        assert_eq!(other.wait(&mut completions, usize::MAX, TIME).unwrap(), 1);
        assert_eq!(completions[0].user_data, 999);
        // No operation is left, so there is no wait.
        assert_eq!(group.wait(&mut completions, 1, None).unwrap(), 0);
    }
}

#[test]
fn a_commit_ends_in_its_group_and_makes_stable() {
    for (served, client) in on_each_transport() {
        let (file, buffer, content) = filled(&served, &client, 4);
        buffer.view().copy_from(&content, Site::Inspect);
        let group = client.completion_group();
        let len = content.len();
        group.write(1, &file, &buffer, 0..len, len as u64, Stability::Unstable).unwrap();
        let mut completions = Vec::new();
        group.wait(&mut completions, 1, TIME).unwrap();
        group.commit(2, &file, 0, 0).unwrap();
        group.wait(&mut completions, 1, TIME).unwrap();
        let found: Vec<_> = completions
            .iter()
            .map(|done| (done.user_data, *done.result.as_ref().unwrap()))
            .collect();
        assert_eq!(found, [(1, len), (2, 0)]);
        file.close().unwrap();
        let written = served.content("file");
        assert!(written == [&content[..], &content[..]].concat());
    }
}

#[test]
fn appends_end_in_their_group_with_their_places() {
    const COUNT: usize = 40;
    // Inline and direct, over both transports; and empty.
    for (transport, bytes) in TRANSPORTS.into_iter().flat_map(|t| [(t, 100), (t, 20_000)]) {
        for cached in [false, true] {
            let served = Served::new();
            let client = served.client_with(|options| {
                options.transport = transport;
                options.checksums = cached;
                options.cache = cached.then(CacheOptions::default);
            });
            let file = open_file(&client);
            file.write_at(b"first", 0, Stability::Unstable).unwrap();
            let buffer = client.buffer(COUNT * bytes).unwrap();
            let content = pattern(COUNT * bytes);
            buffer.view().copy_from(&content, Site::Inspect);
            let group = client.completion_group();
            for number in 0..COUNT {
                let at = number * bytes..(number + 1) * bytes;
                group.append(number as u64, &file, &buffer, at, Stability::DataSync).unwrap();
            }
            let refused = group.append(99, &file, &buffer, 0..1, Stability::Unstable);
            assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
            let mut completions = Vec::new();
            assert_eq!(group.wait(&mut completions, usize::MAX, TIME).unwrap(), COUNT);
            let written = served.content("file");
            assert_eq!(written.len(), 5 + content.len());
            let mut places = BTreeSet::new();
            for done in &completions {
                let (number, place) = (done.user_data as usize, *done.result.as_ref().unwrap());
                let want = &content[number * bytes..(number + 1) * bytes];
                assert!(&written[place..place + bytes] == want, "{number} is not at {place}");
                assert!(places.insert(place));
            }
            group.append(7, &file, &buffer, 3..3, Stability::FileSync).unwrap();
            completions.clear();
            group.wait(&mut completions, 1, TIME).unwrap();
            let done = (completions[0].user_data, *completions[0].result.as_ref().unwrap());
            assert_eq!(done, (7, written.len()));
            let mut found = vec![0; written.len() + 1];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), written.len());
            assert!(found[..written.len()] == written);
            let reading = client.open(b"/file", &OpenOptions::read()).unwrap();
            group.append(8, &reading, &buffer, 0..1, Stability::FileSync).unwrap();
            completions.clear();
            group.wait(&mut completions, 1, TIME).unwrap();
            assert!(completions[0].result.is_err(), "who may not write");
        }
    }
}

#[test]
fn a_lost_commit_is_told_in_its_group() {
    let (mut served, client) = connected();
    let (file, buffer, _) = filled(&served, &client, 1);
    file.write_from(&buffer, 0..BLOCK, 0, Stability::Unstable).unwrap();
    served.stop();
    served.start();
    let group = client.completion_group();
    group.commit(5, &file, 0, 0).unwrap();
    let mut completions = Vec::new();
    group.wait(&mut completions, 1, TIME).unwrap();
    assert!(matches!(completions[0].result, Err(Error::WritesLost)), "{completions:?}");
}

#[test]
fn batches_yield_a_completion_for_each_transfer() {
    for asynchronous in [false, true] {
        for checksums in [false, true] {
            for (served, client) in on_each_transport_with(|options| options.checksums = checksums)
            {
                let (file, buffer, content) = filled(&served, &client, 200);
                let group = client.completion_group();
                let mut batch = client.batch();
                for block in 0..200 {
                    let at = block * BLOCK;
                    let memory = [(&buffer, at..at + BLOCK)];
                    batch.read(&file, &[(at as u64, BLOCK)], &memory).unwrap();
                }
                if asynchronous {
                    batch = batch.asynchronous(Duration::from_micros(200), 8);
                }
                let names = group.batch(batch, |place| 1000 + place as u64).unwrap();
                assert_eq!(names.len(), 200);
                for name in &names {
                    group.expedite(*name).unwrap();
                }
                let mut completions = Vec::new();
                group.wait(&mut completions, usize::MAX, TIME).unwrap();
                assert_eq!(completions.len(), 200);
                assert!(words(&completions).into_iter().eq(1000..1200));
                assert!(completions.iter().all(|done| *done.result.as_ref().unwrap() == BLOCK));
                assert!(buffer.view().to_vec(Site::Inspect) == content);
            }
        }
    }
}

#[test]
fn a_descriptor_is_readable_while_there_is_something_to_fetch() {
    let readable = |group: &CompletionGroup, milliseconds| {
        let fd = group.descriptor().unwrap().as_raw_fd();
        let mut wait = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        // SAFETY: the list is valid for the call.
        unsafe { libc::poll(wait.as_mut_ptr(), 1, milliseconds) == 1 }
    };
    for (served, client) in on_each_transport() {
        let (file, buffer, _) = filled(&served, &client, 16);
        let group = client.completion_group();
        let mut completions = Vec::new();
        // Some are under way before the descriptor is asked for, some are submitted later.
        for round in 0..50 {
            for block in 0..16 {
                read_block(&group, &file, &buffer, block);
                if round == 0 && block == 8 {
                    assert_eq!(
                        group.descriptor().unwrap().as_raw_fd(),
                        group.descriptor().unwrap().as_raw_fd()
                    );
                }
            }
            let mut count = 0;
            while count < 16 {
                // Only the client's mover thread makes progress here.
                assert!(readable(&group, 60_000), "nothing came");
                count += group.wait(&mut completions, 1, TIME).unwrap();
            }
            assert!(!readable(&group, 0), "readable with nothing to fetch");
        }
        assert_eq!(completions.len(), 16 * 50);
    }
}

#[test]
fn what_has_gathered_leaves_without_a_poll() {
    for (served, client) in on_each_transport() {
        let (file, buffer) = (open_file(&client), client.buffer(4 * BLOCK).unwrap());
        let group = client.completion_group();
        for block in 0..4 {
            let at = block * BLOCK;
            let range = at..at + BLOCK;
            group.write(1, &file, &buffer, range, at as u64, Stability::Unstable).unwrap();
        }
        eventually("all are written", || served.content("file").len() == 4 * BLOCK);
        let mut completions = Vec::new();
        assert_eq!(group.wait(&mut completions, usize::MAX, TIME).unwrap(), 4);
    }
}

#[test]
fn threads_share_a_group() {
    for (served, client) in on_each_transport() {
        let (file, buffer, _) = filled(&served, &client, 64);
        let group = client.completion_group();
        let fetched = AtomicUsize::new(0);
        let seen = Mutex::new(BTreeSet::new());
        const EACH: usize = 300;
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (group, file, buffer) = (&group, &file, &buffer);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let at = number % 64 * BLOCK;
                        let word = (thread * EACH + number) as u64;
                        group.read(word, file, buffer, at..at + BLOCK, at as u64).unwrap();
                    }
                });
                scope.spawn(|| {
                    let mut completions = Vec::new();
                    while fetched.load(Ordering::SeqCst) < 3 * EACH {
                        completions.clear();
                        let count = group.wait(&mut completions, 1, TIME).unwrap();
                        fetched.fetch_add(count, Ordering::SeqCst);
                        for done in &completions {
                            assert!(seen.lock().unwrap().insert(done.user_data), "told twice");
                        }
                    }
                });
            }
        });
        assert!(seen.into_inner().unwrap().into_iter().eq(0..3 * EACH as u64));
    }
}

#[test]
fn a_transfer_waiting_for_a_connection_can_be_given_up() {
    let served = Served::new();
    let cut = Arc::new(AtomicBool::new(false));
    let cutting = cut.clone();
    // The first connection lasts for the opening and one read; no later one opens a session.
    let wire = Wire::new(served.address, move || match cutting.swap(true, Ordering::SeqCst) {
        false => Some(20_000),
        true => Some(10),
    });
    let client = wire.client();
    let (file, buffer, _) = filled(&served, &client, 64);
    let group = client.completion_group();
    let names: Vec<_> = (0..64).map(|block| read_block(&group, &file, &buffer, block)).collect();
    let mut completions = Vec::new();
    while client.is_connected() {
        group.poll(&mut completions);
        std::thread::yield_now();
    }
    for name in &names {
        assert!(group.cancel(*name), "no server can reach its memory");
    }
    group.wait(&mut completions, usize::MAX, TIME).unwrap();
    assert!(words(&completions).into_iter().eq(0..64));
    let canceled = |done: &&Completion| matches!(done.result, Err(Error::Canceled));
    assert!(completions.iter().filter(canceled).count() > 0);
    assert!(group.cancel(names[0]), "it has been over for long");
    assert!(group.cancel(OperationId::from_u64(12345)), "there is no such operation");
}

#[test]
fn an_object_of_another_client_is_refused() {
    let served = Served::new();
    let (client, other) = (served.client(TRANSPORTS[0]), served.client(TRANSPORTS[0]));
    let (file, buffer, _) = filled(&served, &client, 1);
    let group = other.completion_group();
    assert!(matches!(group.read(1, &file, &buffer, 0..1, 0), Err(Error::ForeignFile)));
    assert!(matches!(group.batch(client.batch(), |_| 0), Err(Error::ForeignFile)));
    let memory = other.buffer(BLOCK).unwrap();
    let mut batch = other.batch();
    for write in [false, true] {
        let added = match write {
            true => batch.write(&file, &[(0, 1)], &[(&memory, 0..1)]),
            false => batch.read(&file, &[(0, 1)], &[(&memory, 0..1)]),
        };
        assert!(matches!(added, Err(Error::ForeignFile)), "{added:?}");
    }
    assert!(batch.is_empty());
    let mine = client.completion_group();
    assert!(matches!(mine.read(1, &file, &buffer, 2..BLOCK + 1, 0), Err(Error::Argument(_))));
    assert!(matches!(mine.read(1, &file, &buffer, 0..BLOCK + 1, 0), Err(Error::Argument(_))));
    let foreign = other.buffer(BLOCK).unwrap();
    assert!(matches!(mine.read(1, &file, &foreign, 0..1, 0), Err(Error::ForeignBuffer)));
    assert_eq!(mine.in_flight(), 0);
}

/// A minimal executor.
struct Parked(std::thread::Thread, AtomicUsize);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let parked = Arc::new(Parked(std::thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(parked.clone());
    let mut future = pin!(future);
    loop {
        let heard = parked.1.load(Ordering::SeqCst);
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while parked.1.load(Ordering::SeqCst) == heard {
            std::thread::park_timeout(Duration::from_secs(60));
        }
    }
}

#[test]
fn tasks_are_woken() {
    for (served, client) in on_each_transport() {
        let (file, buffer, content) = filled(&served, &client, 64);
        for round in 0..20 {
            let pending: Vec<Pending<usize>> = (0..64)
                .map(|block| {
                    let at = (block + round) % 64 * BLOCK;
                    file.submit_read(&buffer, at..at + BLOCK, at as u64).unwrap()
                })
                .collect();
            let sum = block_on(async {
                let mut sum = 0;
                for (number, pending) in pending.into_iter().enumerate() {
                    // One that is never polled again does no harm.
                    if number % 7 != 6 {
                        sum += pending.await.unwrap();
                    }
                }
                sum
            });
            assert_eq!(sum, (64 - 9) * BLOCK);
        }
        client.ping().unwrap();
        assert!(buffer.view().to_vec(Site::Inspect) == content);
    }
}

#[test]
fn a_task_hears_of_the_end_of_the_session() {
    let mut served = Served::new();
    let client = served.client_with(|options| {
        options.transport = TRANSPORTS[0];
        options.recovery = None;
    });
    let (file, buffer, _) = filled(&served, &client, 1);
    served.stop();
    let result = match file.submit_read(&buffer, 0..BLOCK, 0) {
        Ok(pending) => block_on(pending),
        Err(error) => Err(error),
    };
    assert!(matches!(result, Err(Error::Lost { .. })), "{result:?}");
}
