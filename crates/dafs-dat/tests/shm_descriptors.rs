//! A process that runs out of file descriptors loses direct access to memory, but no function. It
//! is a test program of its own, because the limit holds for the whole process.

#![allow(clippy::unwrap_used)] // helpers of tests are tests
#![allow(dead_code)] // the helpers are shared with other tests, which use more of them

#[path = "shm/pair.rs"]
mod pair;

use dafs_dat::shm::ShmConfig;
use dafs_dat::{Access, Adapter, Operation, WorkStatus};
use pair::{Memory, Pair, pattern, status};
use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
fn without_descriptors_memory_is_reached_through_the_ring() {
    const COUNT: usize = 200;
    const LEN: usize = 5000;
    let mut limits = getrlimit(Resource::Nofile);
    limits.current = Some(80);
    setrlimit(Resource::Nofile, limits).unwrap();
    let mut pair = Pair::new(ShmConfig::default());
    // More than there are descriptors for: the later ones are ordinary memory.
    let targets: Vec<Memory> =
        (0..COUNT).map(|_| pair.right_memory(LEN, Access::all(), true)).collect();
    let local = pair.left_memory(LEN, Access::all(), true);
    for (number, target) in targets.iter().enumerate() {
        target.fill(number as u8);
        let remote = target.region.remote(0, LEN as u32).unwrap();
        let sink = local.region.local(0, LEN);
        pair.left.rdma_read(pair.at_left, number as u64, sink, remote).unwrap();
        pair.run();
        let done = (Operation::RdmaRead, number as u64, WorkStatus::Ok(LEN as u32));
        assert_eq!(status(&pair.take_left()[0]), done);
        assert!(local.bytes(0, LEN) == pattern(number as u8, LEN));
    }
    assert!(pair.take_right().is_empty());
}
