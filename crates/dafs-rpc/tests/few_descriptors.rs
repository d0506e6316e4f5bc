//! The server refuses a connection that takes the last file descriptor, and closes one without any
//! call for the next. It is a test program of its own, because the limit holds for the whole
//! process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(dead_code, reason = "the helpers are shared with other tests, which use more of them")]

#[path = "rpc/sockets/common.rs"]
mod common;

use common::{Raw, Server, call, procedures};
use dafs_rpc::server::Config;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

/// Leaves `count` descriptors; the returned files occupy all others.
fn leave(count: u64) -> Vec<File> {
    let used = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = used.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse::<i32>());
    let last = numbers.map(Result::unwrap).max().unwrap();
    let mut filling = vec![File::open("/dev/null").unwrap()];
    while filling.last().unwrap().as_raw_fd() < last {
        filling.push(File::open("/dev/null").unwrap());
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(filling.last().unwrap().as_raw_fd() as u64 + 1 + count);
    setrlimit(Resource::Nofile, limit).unwrap();
    filling
}

#[test]
fn idle_connections_make_room_when_the_last_descriptor_is_gone() {
    let server = Server::start(1, Config::default());
    let _idle: Vec<_> = (0..3).map(|_| Raw::connect(&server)).collect();
    server.wait_for(|statistics| statistics.connections == 3);
    // Two descriptors for the two ends of a connection, and none for the server's query of its
    // user.
    let _filling = leave(2);
    let is_served = (0..5).any(|_| {
        let mut raw = Raw::connect(&server);
        // The server may have closed it by now.
        let _ = raw.0.write_all(&call(1, procedures::NULL, &[]));
        raw.reply().is_some()
    });
    assert!(is_served);
    server.wait_for(|statistics| (statistics.connections, statistics.evicted) == (2, 1));
}
