//! A server refuses a connection that takes the last file descriptor, and evicts one that is not
//! established for the next. It is a test program of its own, because the limit holds for the whole
//! process.

#![allow(clippy::unwrap_used)] // helpers of tests are tests
#![allow(dead_code)] // the helpers are shared with other tests, which use more of them

mod raw;
#[path = "shm/raw.rs"]
mod shm_raw;

use dafs_dat::connections::{ConnectionLimits, Connections};
use dafs_dat::iwarp::{IwarpConfig, limits};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{Adapter, Address, Event, Instant};
use dafs_mem::Mutex;
use raw::{Node, Raw, WORDS, request};
use rustix::fs::SealFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::MutexGuard;
use std::time::Duration;

const LIMITS: ConnectionLimits = ConnectionLimits { total: 100, per_address: 100 };

/// More than needed.
const ATTEMPTS: usize = 5;

/// Runs one test at a time, with an unlimited number of descriptors at first.
struct Limit {
    before: Rlimit,
    filling: Vec<File>,
    _alone: MutexGuard<'static, ()>,
}

impl Limit {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock();
        Self { before: getrlimit(Resource::Nofile), filling: Vec::new(), _alone: alone }
    }

    /// Leaves `count` descriptors.
    fn leave(&mut self, count: u64) {
        let used = std::fs::read_dir("/proc/self/fd").unwrap();
        let numbers = used.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse::<i32>());
        let last = numbers.map(Result::unwrap).max().unwrap();
        // Then all below the last one are taken.
        while self.filling.last().is_none_or(|file| file.as_raw_fd() < last) {
            self.filling.push(File::open("/dev/null").unwrap());
        }
        let first_free = self.filling.last().unwrap().as_raw_fd() as u64 + 1;
        let few = Rlimit { current: Some(first_free + count), ..self.before };
        setrlimit(Resource::Nofile, few).unwrap();
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.before);
    }
}

fn is_request(event: &Event) -> bool {
    matches!(event, Event::ConnectRequest { .. })
}

#[test]
fn idle_peers_of_iwarp_make_room() {
    let mut limit = Limit::new();
    let connections = Connections::new(LIMITS);
    let mut node = Node::new(IwarpConfig::default());
    node.adapter.count_in(connections.clone());
    let _idle: Vec<_> = (0..3).map(|_| Raw::connect(node.address)).collect();
    node.settle();
    // Two descriptors for the two ends of a connection, and none for the query of its user.
    limit.leave(2);
    let is_let_in = (0..ATTEMPTS).any(|_| {
        let mut raw = Raw::connect(node.address);
        // The server may have closed it by now.
        let _ = raw.stream.write_all(&request(false, 2, Some(WORDS)));
        node.settle();
        node.now = node.now + Duration::from_millis(2 * limits::LISTENER_REST_MS);
        node.events.iter().any(is_request)
    });
    assert!(is_let_in);
    assert_eq!(connections.counts().evicted, 1);
}

#[test]
fn idle_peers_of_shared_memory_make_room() {
    let mut limit = Limit::new();
    let connections = Connections::new(LIMITS);
    let mut server = ShmAdapter::new(ShmConfig::default()).unwrap();
    server.count_in(connections.clone());
    let listener = server.listen(&Address::Shm(String::new())).unwrap();
    let address = server.listener_address(listener).unwrap();
    let mut events = Vec::new();
    let mut settle = |server: &mut ShmAdapter| {
        for _ in 0..1000 {
            server.poll(Instant::now(), &mut events);
        }
        events.iter().any(is_request)
    };
    let _idle: Vec<_> = (0..3).map(|_| shm_raw::Raw::new(&address)).collect();
    settle(&mut server);
    assert_eq!(connections.counts().connections, 3);
    let file = shm_raw::memory_file(shm_raw::MEMORY, SealFlags::SHRINK);
    // Two descriptors for the two ends of a connection, and none for the memory that comes over it.
    limit.leave(2);
    let is_let_in = (0..ATTEMPTS).any(|_| {
        let raw = shm_raw::Raw::new(&address);
        raw.send(&shm_raw::hello(shm_raw::RING as u32), &[file.as_fd()]).unwrap();
        settle(&mut server)
    });
    assert!(is_let_in);
    assert_eq!(connections.counts().evicted, 1);
}
