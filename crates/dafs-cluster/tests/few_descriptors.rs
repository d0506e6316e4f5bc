//! A connection that takes the last file descriptor of a data server is refused, and one that has
//! not authenticated is closed for the next one. It is a test program of its own, because the limit
//! holds for the whole process.

#![allow(dead_code, reason = "the helpers are shared with other tests, which use more of them")]

mod common;

use common::Cluster;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Leaves this number of descriptors. All others are in use while the files live.
fn leave(count: u64) -> Vec<File> {
    let used = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let numbers = used.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let last = numbers.max().expect("a number");
    let open = || File::open("/dev/null").expect("a file");
    let mut filling = vec![open()];
    while filling.last().is_some_and(|file| file.as_raw_fd() < last) {
        filling.push(open());
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = filling.last().map(|file| file.as_raw_fd() as u64 + 1 + count);
    setrlimit(Resource::Nofile, limit).expect("a limit");
    filling
}

/// True if the data server keeps a connection: it does not send first.
fn is_kept(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let read = stream.read(&mut [0; 1]);
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn unauthenticated_peers_make_room_when_the_last_descriptor_is_gone() {
    let cluster = Cluster::new();
    let data = cluster.data();
    let connect = || TcpStream::connect(data.address()).expect("connected");
    let idle = [connect(), connect(), connect()];
    assert!(idle.iter().all(is_kept));
    // One is for the client's end of a connection, and none is left to find its origin. A waiting
    // call of accept has its descriptor already.
    let _filling = leave(1);
    assert!((0..5).any(|_| is_kept(&connect())));
    assert!(!is_kept(&idle[0]), "it is the oldest");
}
