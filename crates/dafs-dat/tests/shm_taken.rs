//! A program closes the socket of a session of its own process, while the peer has no reason to
//! ring. It is a test program of its own, because it closes all sockets of the process.

#![allow(clippy::unwrap_used)] // helpers of tests are tests
#![allow(dead_code)] // the helpers are shared with other tests, which use more of them

#[path = "shm/pair.rs"]
mod pair;

use dafs_dat::descriptors::Watch;
use dafs_dat::shm::ShmConfig;
use dafs_dat::{Access, Adapter, DisconnectReason, Event, Instant};
use pair::{Pair, reason};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// The descriptor numbers of all sockets.
fn sockets() -> Vec<RawFd> {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let target = std::fs::read_link(entry.path()).ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        target.to_str()?.starts_with("socket:").then_some(number)
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(of).collect()
}

#[test]
fn a_thread_checks_its_wake_up_before_it_sleeps() {
    let mut pair = Pair::new(ShmConfig { guarded: true, ..ShmConfig::default() });
    let memory = pair.left_memory(64, Access::all(), true);
    let target = pair.right_memory(64, Access::all(), true);
    pair.right.post_receive(pair.at_right, 0, target.region.local(0, 64)).unwrap();
    pair.run();
    let (other, _peer) = UnixStream::pair().unwrap();
    for number in sockets() {
        if ![other.as_raw_fd(), _peer.as_raw_fd()].contains(&number) {
            // SAFETY: takes no memory. The owners of these descriptors detect the change.
            assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        }
    }
    // The peer is awake, so no doorbell needs to be sent through the socket.
    pair.left.post_send(pair.at_left, 0, &[memory.region.local(0, 64)]).unwrap();
    let mut events = Vec::new();
    pair.left.poll(Instant::now(), &mut events);
    assert!(!matches!(pair.left.arm(), Ok(true)), "it would have slept until its deadline");
    while !events.iter().any(|event| matches!(event, Event::Disconnected { .. })) {
        pair.left.poll(Instant::now(), &mut events);
    }
    let DisconnectReason::Lost(why) = reason(&events) else { panic!("{events:?}") };
    assert_eq!(why, Watch::LOST);
}
