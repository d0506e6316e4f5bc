//! Promises about data.

use super::{World, completion, pattern};
use dafs_dat::{Access, Event, Operation, WorkStatus};

/// Sizes around page, segment and FPDU boundaries.
const ODD_SIZES: [usize; 10] =
    [1, 3, 4095, 4097, 61_439, 61_440, 61_441, 65_535, 65_537, (1 << 20) + 13];

/// Lengths that vary and stay within the hundred bytes of the source.
fn message_len(index: usize) -> usize {
    1 + (index * 7) % (100 - index).clamp(1, 64)
}

pub fn messages_keep_their_order(world: &mut World) {
    let link = world.connect();
    let to = world.server.memory(64 * 100, Access::LOCAL_WRITE);
    let from = world.client.memory(100, Access::empty());
    from.write(0, &(0..100).collect::<Vec<u8>>());
    for i in 0..100 {
        let segment = to.region.local(64 * i, 64);
        world.server.adapter.post_receive(link.server, i as u64, segment).unwrap();
    }
    for i in 0..100 {
        let segment = from.region.local(i, message_len(i));
        world.client.adapter.post_send(link.client, 1000 + i as u64, &[segment]).unwrap();
    }
    let mut next = 0;
    while next < 100 {
        let done = world.server_event(|event| match event {
            Event::Completion(completion) => Some(*completion),
            _ => None,
        });
        assert_eq!((done.work, done.operation), (next, Operation::Receive));
        let len = message_len(next as usize);
        assert_eq!(done.status, WorkStatus::Ok(len as u32));
        assert_eq!(to.read(64 * next as usize, 1), [next as u8]);
        next += 1;
    }
    for i in 0..100 {
        assert!(matches!(world.client_done(1000 + i), WorkStatus::Ok(_)));
    }
}

pub fn a_send_gathers_its_segments(world: &mut World) {
    let link = world.connect();
    let to = world.server.memory(4096, Access::LOCAL_WRITE);
    let from = world.client.memory(4096, Access::empty());
    let other = world.client.memory(4096, Access::empty());
    from.fill(1);
    other.fill(2);
    world.server.adapter.post_receive(link.server, 1, to.region.local(7, 4000)).unwrap();
    let segments = [
        other.region.local(4000, 5),
        from.region.local(0, 0),
        from.region.local(100, 1000),
        other.region.local(0, 1),
        from.region.local(4090, 6),
        from.region.local(4096, 0),
    ];
    world.client.adapter.post_send(link.client, 2, &segments).unwrap();
    assert_eq!(world.server_done(1), WorkStatus::Ok(1012));
    assert_eq!(world.client_done(2), WorkStatus::Ok(1012));
    let (a, b) = (pattern(1, 4096), pattern(2, 4096));
    let want = [&b[4000..4005], &a[100..1100], &b[..1], &a[4090..]].concat();
    assert_eq!(to.read(7, 1012), want);
    assert_eq!(to.read(0, 7), [0; 7]);
    assert_eq!(to.read(7 + 1012, 100), [0; 100]);
}

pub fn an_empty_message_arrives(world: &mut World) {
    let link = world.connect();
    let to = world.server.memory(16, Access::LOCAL_WRITE);
    world.server.adapter.post_receive(link.server, 1, to.region.local(0, 16)).unwrap();
    world.client.adapter.post_send(link.client, 2, &[]).unwrap();
    assert_eq!(world.server_done(1), WorkStatus::Ok(0));
    assert_eq!(world.client_done(2), WorkStatus::Ok(0));
}

pub fn a_write_is_placed_before_the_next_send(world: &mut World) {
    let link = world.connect();
    for (round, size) in [64usize, 5000, 300_000].into_iter().enumerate() {
        let round = round as u64 * 10;
        let target = world.server.memory(size, Access::REMOTE_WRITE);
        let inbox = world.server.memory(16, Access::LOCAL_WRITE);
        let from = world.client.memory(size, Access::empty());
        from.fill(round + 5);
        world.server.adapter.post_receive(link.server, round, inbox.region.local(0, 16)).unwrap();
        let half = size / 2;
        let segments = [from.region.local(0, half), from.region.local(half, size - half)];
        let remote = target.remote(0, size as u32);
        world.client.adapter.rdma_write(link.client, round + 1, &segments, remote).unwrap();
        let tell = [from.region.local(0, 16)];
        world.client.adapter.post_send(link.client, round + 2, &tell).unwrap();
        assert_eq!(world.server_done(round), WorkStatus::Ok(16));
        assert_eq!(target.read(0, size), pattern(round + 5, size));
        assert_eq!(world.client_done(round + 1), WorkStatus::Ok(size as u32));
        assert_eq!(world.client_done(round + 2), WorkStatus::Ok(16));
    }
}

pub fn a_read_brings_the_bytes(world: &mut World) {
    let link = world.connect();
    let source = world.server.memory(10_000, Access::REMOTE_READ);
    source.fill(3);
    let sink = world.client.memory(12_000, Access::LOCAL_WRITE);
    let (segment, remote) = (sink.region.local(1000, 9001), source.remote(999, 9001));
    world.client.adapter.rdma_read(link.client, 1, segment, remote).unwrap();
    assert_eq!(world.client_done(1), WorkStatus::Ok(9001));
    assert_eq!(sink.read(1000, 9001), pattern(3, 10_000)[999..]);
    assert_eq!(sink.read(0, 1000), vec![0; 1000]);
    assert_eq!(sink.read(10_001, 1999), vec![0; 1999]);
    // A length of zero is valid, too.
    let (segment, remote) = (sink.region.local(0, 0), source.remote(0, 0));
    world.client.adapter.rdma_read(link.client, 2, segment, remote).unwrap();
    assert_eq!(world.client_done(2), WorkStatus::Ok(0));
    // The server reads as well.
    let source = world.client.memory(5000, Access::REMOTE_READ);
    source.fill(4);
    let sink = world.server.memory(5000, Access::LOCAL_WRITE);
    let (segment, remote) = (sink.region.local(0, 5000), source.remote(0, 5000));
    world.server.adapter.rdma_read(link.server, 3, segment, remote).unwrap();
    assert_eq!(world.server_done(3), WorkStatus::Ok(5000));
    assert_eq!(sink.read(0, 5000), pattern(4, 5000));
}

pub fn large_transfers_of_odd_sizes(world: &mut World) {
    let link = world.connect();
    for (i, size) in ODD_SIZES.into_iter().enumerate() {
        let seed = 100 + 10 * i as u64;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let here = world.client.memory(size, access);
        let there = world.server.memory(size, access);
        let back = world.client.memory(size, access);
        let len = size as u32;
        // The data goes there by a send and then a write of other bytes, and comes back by a read.
        here.fill(seed);
        let segment = there.region.local(0, size);
        world.server.adapter.post_receive(link.server, seed, segment).unwrap();
        let segments = [here.region.local(0, size)];
        world.client.adapter.post_send(link.client, seed + 1, &segments).unwrap();
        assert_eq!(world.server_done(seed), WorkStatus::Ok(len));
        assert_eq!(world.client_done(seed + 1), WorkStatus::Ok(len));
        assert!(there.read(0, size) == pattern(seed, size), "send of {size}");

        here.fill(seed + 2);
        let (segments, remote) = ([here.region.local(0, size)], there.remote(0, len));
        world.client.adapter.rdma_write(link.client, seed + 3, &segments, remote).unwrap();
        assert_eq!(world.client_done(seed + 3), WorkStatus::Ok(len));
        let inbox = world.server.memory(1, Access::LOCAL_WRITE);
        let segment = inbox.region.local(0, 1);
        world.server.adapter.post_receive(link.server, seed + 4, segment).unwrap();
        world.client.adapter.post_send(link.client, seed + 5, &[]).unwrap();
        world.server_done(seed + 4);
        assert!(there.read(0, size) == pattern(seed + 2, size), "write of {size}");

        let (segment, remote) = (back.region.local(0, size), there.remote(0, len));
        world.client.adapter.rdma_read(link.client, seed + 6, segment, remote).unwrap();
        assert_eq!(world.client_done(seed + 6), WorkStatus::Ok(len));
        assert!(back.read(0, size) == pattern(seed + 2, size), "read of {size}");
    }
}

pub fn many_in_flight(world: &mut World) {
    let link = world.connect();
    const COUNT: usize = 200;
    const SIZE: usize = 6000;
    let target = world.server.memory(COUNT * SIZE, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let inbox = world.server.memory(COUNT * 64, Access::LOCAL_WRITE);
    let from = world.client.memory(COUNT * SIZE, Access::empty());
    let back = world.client.memory(COUNT * SIZE, Access::LOCAL_WRITE);
    from.fill(11);
    for i in 0..COUNT {
        let segment = inbox.region.local(i * 64, 64);
        world.server.adapter.post_receive(link.server, i as u64, segment).unwrap();
    }
    for i in 0..COUNT {
        let (segment, tag) = (from.region.local(i * SIZE, SIZE), 10_000 + 10 * i as u64);
        let remote = target.remote(i * SIZE, SIZE as u32);
        world.client.adapter.rdma_write(link.client, tag, &[segment], remote).unwrap();
        let segment = from.region.local(i * SIZE, 64);
        world.client.adapter.post_send(link.client, tag + 1, &[segment]).unwrap();
    }
    for i in 0..COUNT {
        assert_eq!(world.server_done(i as u64), WorkStatus::Ok(64));
        assert!(target.read(i * SIZE, SIZE) == from.read(i * SIZE, SIZE), "write {i}");
        assert_eq!(inbox.read(i * 64, 64), from.read(i * SIZE, 64));
    }
    for i in 0..COUNT {
        let tag = 10_000 + 10 * i as u64;
        assert_eq!(world.client_done(tag), WorkStatus::Ok(SIZE as u32));
        assert_eq!(world.client_done(tag + 1), WorkStatus::Ok(64));
        let remote = target.remote(i * SIZE, SIZE as u32);
        let segment = back.region.local(i * SIZE, SIZE);
        world.client.adapter.rdma_read(link.client, tag + 2, segment, remote).unwrap();
    }
    for i in 0..COUNT {
        assert_eq!(world.client_done(10_002 + 10 * i as u64), WorkStatus::Ok(SIZE as u32));
    }
    assert!(back.read(0, COUNT * SIZE) == from.read(0, COUNT * SIZE));
}

pub fn both_sides_read_eight_mebibytes(world: &mut World) {
    let link = world.connect();
    world.greet(link);
    const SIZE: usize = 8 << 20;
    let client_source = world.client.memory(SIZE, Access::REMOTE_READ);
    let server_source = world.server.memory(SIZE, Access::REMOTE_READ);
    let client_sink = world.client.memory(SIZE, Access::LOCAL_WRITE);
    let server_sink = world.server.memory(SIZE, Access::LOCAL_WRITE);
    client_source.fill(21);
    server_source.fill(22);
    let remote = server_source.remote(0, SIZE as u32);
    let segment = client_sink.region.local(0, SIZE);
    world.client.adapter.rdma_read(link.client, 1, segment, remote).unwrap();
    let remote = client_source.remote(0, SIZE as u32);
    let segment = server_sink.region.local(0, SIZE);
    world.server.adapter.rdma_read(link.server, 2, segment, remote).unwrap();
    assert_eq!(world.client_done(1), WorkStatus::Ok(SIZE as u32));
    assert_eq!(world.server_done(2), WorkStatus::Ok(SIZE as u32));
    assert!(client_sink.read(0, SIZE) == pattern(22, SIZE));
    assert!(server_sink.read(0, SIZE) == pattern(21, SIZE));
}

pub fn more_reads_than_the_depth(world: &mut World) {
    let link = world.connect();
    world.greet(link);
    const COUNT: usize = 400;
    let sources = [
        world.server.memory(COUNT * 8, Access::REMOTE_READ),
        world.client.memory(COUNT * 8, Access::REMOTE_READ),
    ];
    let sinks = [
        world.client.memory(COUNT * 8, Access::LOCAL_WRITE),
        world.server.memory(COUNT * 8, Access::LOCAL_WRITE),
    ];
    sources[0].fill(1);
    sources[1].fill(2);
    for i in 0..COUNT {
        let (segment, remote) = (sinks[0].region.local(i * 8, 8), sources[0].remote(i * 8, 8));
        world.client.adapter.rdma_read(link.client, i as u64, segment, remote).unwrap();
        let (segment, remote) = (sinks[1].region.local(i * 8, 8), sources[1].remote(i * 8, 8));
        world.server.adapter.rdma_read(link.server, i as u64, segment, remote).unwrap();
    }
    for i in 0..COUNT as u64 {
        let mut done = world.client_event(|event| completion(event, i));
        assert_eq!((done.operation, done.status), (Operation::RdmaRead, WorkStatus::Ok(8)));
        done = world.server_event(|event| completion(event, i));
        assert_eq!((done.operation, done.status), (Operation::RdmaRead, WorkStatus::Ok(8)));
    }
    for i in 0..2 {
        assert_eq!(sinks[i].read(0, COUNT * 8), sources[i].read(0, COUNT * 8));
    }
}

pub fn deregistered_memory_lives_while_posted(world: &mut World) {
    let link = world.connect();
    const SIZE: usize = 300_000;
    let to = world.server.memory(SIZE, Access::LOCAL_WRITE);
    let kept = to.buffer.clone();
    world.server.adapter.post_receive(link.server, 1, to.region.local(0, SIZE)).unwrap();
    world.server.adapter.deregister(to.region.id);
    drop(to);
    let from = world.client.memory(SIZE, Access::empty());
    from.fill(31);
    world.client.adapter.post_send(link.client, 2, &[from.region.local(0, SIZE)]).unwrap();
    world.client.adapter.deregister(from.region.id);
    drop(from);
    assert_eq!(world.server_done(1), WorkStatus::Ok(SIZE as u32));
    assert_eq!(world.client_done(2), WorkStatus::Ok(SIZE as u32));
    let found = kept.view().to_vec(dafs_mem::Site::Inspect);
    assert!(found == pattern(31, SIZE));
}
