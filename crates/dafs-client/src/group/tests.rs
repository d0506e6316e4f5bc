//! Groups, tasks and the mover thread, where a test needs the library's internal state or one that
//! is hard to reach.

use super::*;
use crate::cache::CacheOptions;
use crate::driver::Slot;
use crate::limits::OPERATIONS_MAX;
use crate::pending::Pending;
use crate::served::{Served, connected, open_file};
use dafs_wire::dafs::Verifier;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};

const TIME: Duration = Duration::from_secs(60);
const BLOCK: usize = 512;

/// More transfers than go in one message.
fn batch(client: &Client, file: &File, buffer: &IoBuffer, count: usize) -> Batch {
    let mut batch = client.batch();
    for place in 0..count {
        batch.read(file, &[(place as u64, 1)], &[(buffer, place..place + 1)]).unwrap();
    }
    batch
}

/// A client whose requests wait for a server that is down.
fn alone() -> (Served, Client, File, IoBuffer) {
    let (mut served, client) = connected();
    let (file, buffer) = (open_file(&client), client.buffer(BLOCK).unwrap());
    served.stop();
    while client.is_connected() {
        let _ = client.shared().wait_any(Some(Duration::ZERO), |_| None::<()>);
        std::thread::yield_now();
    }
    (served, client, file, buffer)
}

/// Operations that no server carries out.
fn idle_operations(client: &Client, count: usize) -> Vec<Slot> {
    (0..count).map(|_| client.shared().submit(|_, _| Ok(())).unwrap()).collect()
}

#[test]
fn a_batch_without_room_for_all_of_it_is_refused_whole() {
    let (_served, client) = connected();
    let (file, buffer) = (open_file(&client), client.buffer(BLOCK).unwrap());
    for asynchronous in [false, true] {
        let group = client.completion_group();
        group.state.reserve(GROUP_OPERATIONS_MAX - 200).unwrap();
        let mut batch = batch(&client, &file, &buffer, 201);
        if asynchronous {
            batch = batch.asynchronous(Duration::ZERO, 0);
        }
        assert!(matches!(group.batch(batch, |_| 0), Err(Error::TooMany)));
        assert_eq!(group.in_flight(), 0, "nothing is under way");
        assert_eq!(group.state.held.load(Ordering::Relaxed), GROUP_OPERATIONS_MAX - 200);
    }
}

#[test]
fn a_batch_that_was_sent_in_part_has_all_its_completions() {
    let (_served, client, file, buffer) = alone();
    let group = client.completion_group();
    let idle = idle_operations(&client, OPERATIONS_MAX - 1);
    let names = group.batch(batch(&client, &file, &buffer, 201), |place| place as u64).unwrap();
    assert_eq!(names.len(), 201);
    let sent = names.iter().filter(|name| **name != OperationId::NONE).count();
    assert!(sent > 0 && sent < 201, "{sent}");
    let mut completions = Vec::new();
    assert_eq!(group.poll(&mut completions), 201 - sent);
    assert!(completions.iter().all(|done| matches!(done.result, Err(Error::TooMany))));
    assert!(group.cancel(names[0]));
    group.wait(&mut completions, usize::MAX, Some(TIME)).unwrap();
    let mut words: Vec<_> = completions.iter().map(|done| done.user_data).collect();
    words.sort_unstable();
    assert!(words.into_iter().eq(0..201));
    assert_eq!(group.state.held.load(Ordering::Relaxed), 0);
    idle.into_iter().for_each(|slot| client.shared().abandon(slot));
}

#[test]
fn a_sleeper_hears_of_a_refusal() {
    let (_served, client) = connected();
    let group = client.completion_group();
    group.state.reserve(1).unwrap();
    assert!(client.shared().wakes_a_sleeper(|shared| {
        shared.refuse_in(&group.state, &[7], &Error::TooMany);
    }));
    let mut completions = Vec::new();
    assert_eq!(group.poll(&mut completions), 1);
    assert_eq!(completions[0].user_data, 7);
}

#[test]
fn to_wait_for_nothing_is_to_look_once() {
    let (_served, client) = connected();
    let group = client.completion_group();
    group.state.reserve(1).unwrap();
    group.state.begun(1);
    let drives = || client.shared().lock_regardless().drives();
    // The helper thread may poll, too, but not so often.
    let before = drives();
    for _ in 0..1000 {
        group.wait(&mut Vec::new(), 0, None).unwrap();
        let timed_out = group.wait(&mut Vec::new(), 1, Some(Duration::ZERO));
        assert!(matches!(timed_out, Err(Error::TimedOut(_))), "{timed_out:?}");
    }
    assert!(drives() - before >= 2000);
}

#[test]
fn without_a_thread_nothing_that_is_under_way_fails() {
    let (served, client) = connected();
    let (file, buffer) = (open_file(&client), client.buffer(BLOCK).unwrap());
    client.shared().break_mover();
    let group = client.completion_group();
    assert!(matches!(group.descriptor(), Err(Error::Memory(_))));
    let name = group.read(3, &file, &buffer, 0..BLOCK, 0).unwrap();
    let mut completions = Vec::new();
    group.wait(&mut completions, 1, Some(TIME)).unwrap();
    assert_eq!(completions[0].operation, name);
    drop((served, file));

    let (mut served, client, file, buffer) = alone();
    client.shared().break_mover();
    let mut pending = file.submit_read(&buffer, 0..BLOCK, 0).unwrap();
    let polled = poll(&mut pending, Waker::noop());
    assert!(matches!(polled, Poll::Ready(Err(Error::Memory(_)))), "{polled:?}");
    drop(pending);
    served.start();
    client.ping().unwrap();
    while client.stats().in_flight > 0 {
        client.ping().unwrap();
    }
    // The operation is over, and its entry is free: its result is not to be taken.
    let idle = idle_operations(&client, OPERATIONS_MAX);
    idle.into_iter().for_each(|slot| client.shared().abandon(slot));
}

fn poll(pending: &mut Pending<usize>, waker: &Waker) -> Poll<Result<usize>> {
    Pin::new(pending).poll(&mut Context::from_waker(waker))
}

/// A task that uses the client when it ends.
struct Ends(Client, mpsc::Sender<()>);

impl Wake for Ends {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.stats();
        let _ = self.1.send(());
    }
}

#[test]
fn a_waker_may_use_the_client_as_it_ends() {
    let (_served, client, file, buffer) = alone();
    let (tell, told) = mpsc::channel();
    let waker = || Waker::from(Arc::new(Ends(client.clone(), tell.clone())));
    let (first, second) = (waker(), waker());
    std::thread::spawn(move || {
        let mut pending = file.submit_read(&buffer, 0..BLOCK, 0).unwrap();
        assert!(poll(&mut pending, &first).is_pending());
        drop(first);
        // The second waker replaces the first, and the end of the operation drops the second.
        assert!(poll(&mut pending, &second).is_pending());
        drop(second);
    });
    for _ in 0..2 {
        told.recv_timeout(TIME).expect("it waits for a lock that its own thread has");
    }
}

struct Panics(mpsc::SyncSender<()>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
        panic!("as planned");
    }
}

struct Tells(mpsc::SyncSender<()>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_waker_that_panics_ends_itself_alone() {
    let (_served, client, file, buffer) = alone();
    let (tell, told) = mpsc::sync_channel(1);
    let panics = Waker::from(Arc::new(Panics(tell.clone())));
    for waker in [panics, Waker::from(Arc::new(Tells(tell)))] {
        let mut pending = file.submit_read(&buffer, 0..BLOCK, 0).unwrap();
        assert!(poll(&mut pending, &waker).is_pending());
        assert!(pending.cancel());
        told.recv_timeout(TIME).expect("the thread that wakes is gone");
    }
    drop(client);
}

#[test]
fn a_lost_commit_makes_the_cache_look_again() {
    let served = Served::new();
    let client = served.client_with(|options| options.cache = Some(CacheOptions::default()));
    let path = served.path().join("file");
    std::fs::write(&path, b"longer than before").unwrap();
    let file = open_file(&client);
    let read = || {
        let mut data = [0; 64];
        let bytes = file.read_at(&mut data, 0).unwrap();
        data[..bytes].to_vec()
    };
    assert_eq!(read(), b"longer than before");
    std::fs::write(&path, b"short").unwrap();
    assert_eq!(read(), b"longer than before", "nobody has told the cache");
    // The state after a write that the server has answered and lost since.
    file.writes().written(Verifier([7; 8]));
    let group = client.completion_group();
    group.commit(0, &file, 0, 0).unwrap();
    let mut completions = Vec::new();
    group.wait(&mut completions, 1, Some(TIME)).unwrap();
    assert!(matches!(completions[0].result, Err(Error::WritesLost)), "{completions:?}");
    assert_eq!(read(), b"short");
}
