//! Bugs of the server in the processing of a client's request: they end only the connection of that
//! client.

use crate::common::*;
use dafs_wire::dafs::{Request, Status};
use std::sync::atomic::Ordering;

#[test]
fn a_panic_at_a_request_ends_its_connection_alone() {
    both_ways(|maps| {
        let (mut world, one, other) = World::with_two(Setup { maps, ..Setup::default() });
        let file = world.open(one, b"f");
        let data = pattern(100_000, 1);
        world.write(one, file, 0, &data);
        // With a reply in progress, and with memory that the data passes through.
        let before = dafs_dat::confine::faults();
        let mut one = one;
        for round in 0..2 {
            world.disk.make_next_transfer_mad();
            let memory = world.clients[one].memory(100_000);
            let buffers = [memory.direct(0, 100_000)];
            let request = match round {
                0 => read_inline(file, 0, 8192),
                _ => read_direct(file, 0, 100_000, &buffers),
            };
            assert!(world.try_call(one, &request).is_none());
            assert_eq!(dafs_dat::confine::faults(), before + round + 1);
            assert_eq!(world.status(other, &Request::Null), Status::Ok);
            world.settle();
            let counts = world.counts();
            assert_eq!((counts.connections, counts.replies, counts.chunks), (1, 0, 0));
            one = world.session(2, "a");
        }
        assert_eq!(world.read(one, file), data, "its record and its opens are those of before");
        world.end();
    });
}

#[test]
fn lost_resources_return_with_their_connection() {
    both_ways(|maps| {
        let (mut world, one, file) = World::with_file(Setup { maps, ..Setup::default() });
        let data = pattern(100_000, 1);
        world.write(one, file, 0, &data);
        let mut one = one;
        for round in 0..3 {
            let memory = world.clients[one].memory(100_000);
            let buffers = [memory.direct(0, 100_000)];
            let request = match round {
                0 => read_inline(file, 0, 8192),
                1 => read_direct(file, 0, 100_000, &buffers),
                _ => Request::WriteDirect(write_direct(file, 0, 100_000, &buffers)),
            };
            world.loses.store(true, Ordering::Relaxed);
            // An answer may be on its way when its work is lost.
            let _ = world.try_call(one, &request);
            world.settle();
            world.loses.store(false, Ordering::Relaxed);
            let counts = world.counts();
            assert_eq!((counts.connections, counts.replies, counts.chunks), (0, 0, 0), "{round}");
            one = world.session(2, "a");
        }
        assert_eq!(world.status(one, &Request::Null), Status::Ok);
        world.end();
    });
}
