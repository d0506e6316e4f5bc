//! A process whose program takes the socket of a session away, when nobody would have rung it. A test
//! program of its own, because all sockets of the process are taken.

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

/// The numbers of all sockets.
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
fn who_goes_to_sleep_has_looked_whether_it_can_be_woken() {
    let mut pair = Pair::new(ShmConfig { guarded: true, ..ShmConfig::default() });
    let memory = pair.left_memory(64, Access::all(), true);
    let target = pair.right_memory(64, Access::all(), true);
    pair.right.post_receive(pair.at_right, 0, target.region.local(0, 64)).unwrap();
    pair.run();
    let (other, _peer) = UnixStream::pair().unwrap();
    for number in sockets() {
        if ![other.as_raw_fd(), _peer.as_raw_fd()].contains(&number) {
            // SAFETY: takes no memory. The numbers are those of files that know how to miss them.
            assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        }
    }
    // The peer looks by itself, so that nothing is to be sent through the socket.
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
