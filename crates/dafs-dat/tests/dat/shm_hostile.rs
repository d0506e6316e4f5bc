//! Hostile peers of the shared-memory provider: each breaks its own connection at most and gets the
//! reason, and an honest client of the same server continues.

use crate::pair::{self, Pair, pattern};
use crate::shm_raw::{
    self as raw, MEMORY, MESSAGE, OUT_RING, OWN_HEAD, READ, READ_DATA, RING, Raw, WRITE, header,
};
use dafs_dat::shm::ShmConfig;
use dafs_dat::{Access, Adapter, Address, DisconnectReason, EndpointId, Event, RemoteBuffer};
use proptest::prelude::*;
use rustix::fs::SealFlags;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

const TERMINATE: u8 = 9;
const REFUSE: u8 = 4;
const ACCEPT: u8 = 2;

/// A server with an honest client; a hostile one can join.
struct World {
    pair: Pair,
    address: Address,
}

impl World {
    fn new() -> Self {
        let mut pair = Pair::new(ShmConfig::default());
        let listener = pair.right.listen(&Address::Shm(String::new())).unwrap();
        let address = pair.right.listener_address(listener).unwrap();
        Self { pair, address }
    }

    /// A hostile client with an open connection.
    fn join(&mut self) -> (Raw, EndpointId) {
        let raw = Raw::greet(&self.address);
        self.pair.run();
        let request = match self.pair.take_right().as_slice() {
            [Event::ConnectRequest { request, private_data, .. }] => {
                assert_eq!(**private_data, b"private");
                *request
            }
            other => panic!("{other:?}"),
        };
        let domain = self.pair.right_domain;
        let endpoint = self.pair.right.accept(request, domain, b"yes").unwrap();
        self.pair.run();
        assert!(matches!(self.pair.take_right().as_slice(), [Event::Established { .. }]));
        assert!(matches!(raw.packets().as_slice(), [(ACCEPT, _)]));
        (raw, endpoint)
    }

    /// Checks that the honest client still moves messages and memory.
    fn check_honest(&mut self) {
        let pair = &mut self.pair;
        pair.take_right();
        let from = pair.left_memory(3000, Access::all(), true);
        let to = pair.right_memory(3000, Access::all(), true);
        from.fill(6);
        pair.right.post_receive(pair.at_right, 1, to.region.local(0, 3000)).unwrap();
        pair.left.post_send(pair.at_left, 2, &[from.region.local(0, 3000)]).unwrap();
        pair.run();
        assert!(to.bytes(0, 3000) == pattern(6, 3000));
        let remote = from.region.remote(0, 3000).unwrap();
        assert!(pair.right.map_remote(pair.at_right, remote, Access::REMOTE_READ).is_some());
        assert_eq!((pair.take_left().len(), pair.take_right().len()), (1, 1));
        pair.left.deregister(from.region.id);
        pair.right.deregister(to.region.id);
    }

    /// Checks that the hostile client's connection ends with a protocol error that contains `what`.
    fn check_broken(&mut self, raw: &Raw, what: &str) {
        self.pair.run();
        let events = self.pair.take_right();
        match pair::reason(&events) {
            DisconnectReason::Protocol(text) => assert!(text.contains(what), "{text}, not {what}"),
            other => panic!("{what}: {other:?}"),
        }
        let told = raw.packets_to_end();
        assert!(told.iter().any(|(kind, text)| *kind == TERMINATE && text.contains(what)));
        self.check_honest();
    }
}

#[test]
fn hellos_that_are_none_are_refused_with_a_text() {
    let sealed = |bytes| raw::memory_file(bytes, SealFlags::SHRINK);
    let good = raw::hello(RING as u32);
    let pipe = rustix::pipe::pipe().unwrap();
    let directory = std::fs::File::open("/").unwrap();
    let cases: Vec<(Vec<u8>, Vec<std::os::fd::OwnedFd>, &str)> = vec![
        (good.clone(), vec![raw::memory_file(MEMORY, SealFlags::empty())], "sealed"),
        (good.clone(), vec![sealed(MEMORY - 4096)], "shorter"),
        (good.clone(), vec![pipe.0], "memory file"),
        (good.clone(), vec![directory.into()], "memory file"),
        (good.clone(), vec![], "without its memory file"),
        (good.clone(), vec![sealed(MEMORY), sealed(MEMORY)], "too long"),
        (raw::hello(RING as u32 + 8), vec![sealed(MEMORY)], "size"),
        (raw::hello(0), vec![sealed(MEMORY)], "size"),
        (raw::hello(1 << 31), vec![sealed(MEMORY)], "size"),
        (good[..11].to_vec(), vec![sealed(MEMORY)], "short"),
        (b"\x01DAFSSHM\x02aaaa".to_vec(), vec![sealed(MEMORY)], "version"),
        (vec![5], vec![], "something else"),
        (vec![77; 10], vec![], "unknown kind"),
        (vec![1; 4000], vec![], "too long"),
        ([good.as_slice(), &[0; 40]].concat(), vec![sealed(MEMORY)], "private data"),
    ];
    let mut world = World::new();
    for (packet, files, what) in cases {
        let raw = Raw::new(&world.address);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        raw.send(&packet, &files).unwrap();
        world.pair.run();
        assert!(world.pair.take_right().is_empty(), "{what}");
        let told = raw.packets_to_end();
        assert!(matches!(&told[0], (REFUSE, text) if text.contains(what)), "{what}: {told:?}");
        assert_eq!(told.len(), 2);
        world.check_honest();
    }
    assert_eq!(world.pair.right.connection_count(), 1);
}

#[test]
fn a_client_that_leaves_before_it_is_accepted_is_gone() {
    let mut world = World::new();
    let raw = Raw::greet(&world.address);
    world.pair.run();
    let request = match world.pair.take_right().as_slice() {
        [Event::ConnectRequest { request, .. }] => *request,
        other => panic!("{other:?}"),
    };
    drop(raw);
    let domain = world.pair.right_domain;
    assert!(world.pair.right.accept(request, domain, &[]).is_err());
    world.check_honest();
}

#[test]
fn records_that_break_a_rule_end_the_connection() {
    // Header, the two words after it, and the expected text.
    let cases: [(u64, [u64; 2], &str); 13] = [
        (u64::MAX, [0; 2], "header"),
        (1, [0; 2], "header"),
        (header(MESSAGE, 8) | 1 << 41, [0; 2], "header"),
        (header(0, 0), [0; 2], "unknown kind"),
        (header(99, 0), [0; 2], "unknown kind"),
        (header(MESSAGE, u64::from(u32::MAX)), [0; 2], "longer than the ring"),
        (header(MESSAGE, RING as u64 - 8), [0; 2], "longer than the ring"),
        (header(WRITE, 15), [0; 2], "too short"),
        (header(MESSAGE, 8), [0; 2], "no receive"),
        (header(WRITE, 24), [0x1234, 0x1000], "RDMA write refused"),
        (header(WRITE, 24), [0x1234, u64::MAX - 3], "RDMA write refused"),
        (header(READ, 16), [100 << 32 | 0x1234, 0x1000], "RDMA read refused"),
        (header(READ_DATA, 8), [0; 2], "read data"),
    ];
    for (header, words, what) in cases {
        let mut world = World::new();
        let (raw, _) = world.join();
        raw.put(OUT_RING + 8, words[0]);
        raw.put(OUT_RING + 16, words[1]);
        raw.put(OUT_RING, header);
        world.check_broken(&raw, what);
    }
}

#[test]
fn the_servers_own_memory_is_out_of_reach_without_remote_access() {
    let mut world = World::new();
    let (raw, _) = world.join();
    let secret = world.pair.right_memory(4096, Access::LOCAL_WRITE, true);
    secret.fill(3);
    raw.put(OUT_RING + 8, 64 << 32 | u64::from(secret.region.key));
    raw.put(OUT_RING + 16, secret.region.address);
    raw.put(OUT_RING, header(READ, 16));
    world.check_broken(&raw, "without the access");
    assert!(secret.bytes(0, 4096) == pattern(3, 4096));
}

#[test]
fn more_reads_than_allowed_end_the_connection() {
    let mut world = World::new();
    let (raw, _) = world.join();
    let open = world.pair.right_memory(1 << 20, Access::all(), false);
    for read in 0..100 {
        let at = OUT_RING + 24 * read;
        raw.put(at + 8, 1 << 52 | u64::from(open.region.key));
        raw.put(at + 16, open.region.address);
        raw.put(at, header(READ, 16));
    }
    world.check_broken(&raw, "more RDMA reads");
}

#[test]
fn a_reader_position_that_lies_ends_the_connection() {
    for head in [8, 4097 * 8, 3, u64::MAX - 7] {
        let mut world = World::new();
        let (raw, endpoint) = world.join();
        raw.put(OWN_HEAD, head);
        let source = world.pair.right_memory(2 * RING, Access::empty(), true);
        // The position is first checked when the ring seems full.
        let _ = world.pair.right.post_send(endpoint, 1, &[source.region.local(0, 2 * RING)]);
        world.pair.run();
        let events = world.pair.take_right();
        let protocol = matches!(pair::reason(&events), DisconnectReason::Protocol(_));
        assert!(protocol, "position {head}: {events:?}");
        raw.packets_to_end();
        world.check_honest();
    }
}

#[test]
fn regions_that_break_a_rule_end_the_connection() {
    let good = || raw::memory_file(8192, SealFlags::SHRINK);
    let unsealed = || raw::memory_file(8192, SealFlags::empty());
    let read_only = || raw::memory_file(8192, SealFlags::SHRINK);
    let cases = [
        (raw::region(7, 0, 6, 4096, 8192), Some(unsealed()), "sealed"),
        (raw::region(7, 0, 6, 4096, 8193), Some(good()), "shorter"),
        (raw::region(7, 0, 6, 4096, 0), Some(good()), "impossible length"),
        (raw::region(7, 0, 6, 4096, u64::MAX), Some(good()), "impossible length"),
        (raw::region(7, 0, 6, u64::MAX - 100, 8192), Some(good()), "address space"),
        (raw::region(7, 0, 0xF0, 4096, 8192), Some(read_only()), "malformed"),
        (raw::region(7, 0, 6, 4096, 8192), None, "without its memory file"),
        (vec![6; 5], Some(good()), "malformed"),
        (raw::hello(RING as u32), Some(good()), "set-up packet"),
        (vec![200; 200], None, "unknown kind"),
        (vec![5; 300], None, "too long"),
    ];
    for (packet, file, what) in cases {
        let mut world = World::new();
        let (raw, _) = world.join();
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        raw.send(&packet, &files).unwrap();
        world.check_broken(&raw, what);
    }
}

#[test]
fn a_region_is_usable_only_as_it_was_shown() {
    let mut world = World::new();
    let (raw, endpoint) = world.join();
    let file = raw::memory_file(8192, SealFlags::SHRINK);
    raw.put(512, 7 << 32); // Key 7 in slot 1; slot 0 stays empty.
    raw.send(&raw::region(7, 1, 2, 4096, 8000), &[file.as_fd()]).unwrap();
    raw.send(&raw::region(8, 0, 2, 4096, 8000), &[file.as_fd()]).unwrap();
    raw.send(&raw::region(9, 60_000, 2, 4096, 8000), &[file.as_fd()]).unwrap();
    world.pair.run();
    let mut find = |key, address, len, need| {
        let remote = RemoteBuffer { key, address, len };
        world.pair.right.map_remote(endpoint, remote, need).map(|window| window.len())
    };
    assert_eq!(find(7, 4096, 8000, Access::REMOTE_READ), Some(8000));
    assert_eq!(find(7, 5096, 7000, Access::REMOTE_READ), Some(7000));
    assert_eq!(find(7, 5096, 7001, Access::REMOTE_READ), None);
    assert_eq!(find(7, 4095, 1, Access::REMOTE_READ), None);
    assert_eq!(find(7, u64::MAX, 2, Access::REMOTE_READ), None);
    assert_eq!(find(7, 4096, 1, Access::REMOTE_WRITE), None);
    assert_eq!(find(8, 4096, 1, Access::REMOTE_READ), None);
    assert_eq!(find(9, 4096, 1, Access::REMOTE_READ), None);
    raw.put(512, 0);
    assert_eq!(find(7, 4096, 8000, Access::REMOTE_READ), None);
    world.check_honest();
}

/// Work that waits for room is flushed when the client corrupts the index.
#[test]
fn work_in_the_queue_of_a_broken_ring_is_flushed() {
    let mut world = World::new();
    let (raw, endpoint) = world.join();
    let memory = world.pair.right_memory(3 * RING, Access::all(), false);
    for work in 0..3 {
        let all = [memory.region.local(0, 3 * RING)];
        world.pair.right.post_send(endpoint, work, &all).unwrap();
    }
    raw.put(OWN_HEAD, 12_345);
    world.pair.run();
    let events = world.pair.take_right();
    let done: Vec<_> = events.iter().filter_map(pair::status_of).map(|(_, work, _)| work).collect();
    assert_eq!(done, [0, 1, 2], "{events:?}");
    world.check_honest();
}

#[test]
fn a_client_that_floods_its_socket_starves_nobody() {
    let mut world = World::new();
    let (raw, _) = world.join();
    let mut sent = 0;
    while raw.send(&[5], &[]).is_ok() && sent < 100_000 {
        sent += 1;
    }
    world.check_honest();
    while raw.send(&[5], &[]).is_ok() && sent < 200_000 {
        sent += 1;
    }
    world.check_honest();
}

#[test]
fn descriptors_sent_along_do_not_pile_up() {
    let mut world = World::new();
    let (raw, _) = world.join();
    let file = raw::memory_file(4096, SealFlags::SHRINK);
    let own = rustix::fs::fstat(&file).unwrap().st_ino;
    // Of this file, because other tests open descriptors of their own meanwhile.
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap().path());
        all.filter(|fd| std::fs::metadata(fd).is_ok_and(|found| found.ino() == own)).count()
    };
    for _ in 0..500 {
        raw.send(&[5], &[file.as_fd()]).unwrap();
        world.pair.run();
    }
    assert_eq!(open(), 1);
    world.check_honest();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Random data all over the connection memory, before and while both sides work.
    #[test]
    fn garbage_in_shared_memory_harms_nobody_else(
        words in prop::collection::vec((0usize..MEMORY / 8, any::<u64>(), 0u8..6), 1..300),
    ) {
        let mut world = World::new();
        let (raw, endpoint) = world.join();
        let inbox = world.pair.right_memory(8192, Access::all(), true);
        for work in 0..20 {
            let place = inbox.region.local(0, 4096);
            let _ = world.pair.right.post_receive(endpoint, work, place);
        }
        for (at, word, kind) in words {
            // Mostly plausible headers, which reach the most code.
            let word = if kind == 0 { word } else { header(word % 6, word >> 20 & 0x1FFF) };
            let at = if kind < 3 { at * 8 } else { OUT_RING + at * 8 % RING };
            raw.put(at, word);
            let _ = world.pair.right.post_send(endpoint, 99, &[inbox.region.local(4096, 3000)]);
            world.pair.step();
        }
        world.pair.right.abort(endpoint);
        world.pair.run();
        world.check_honest();
    }
}
