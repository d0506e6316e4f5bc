//! Promises about messages that invalidate a key of the receiver.

use super::faults::{breaks, is_out_of_reach};
use super::{Link, Memory, World, completion, gone, pattern};
use dafs_dat::{Access, PostError, WorkStatus};

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// The client sends `segments` of its memory with the key; the server's receive must report it.
fn invalidate(world: &mut World, link: Link, from: &Memory, len: usize, key: u32) -> Memory {
    let inbox = world.server.memory(len.max(1), Access::LOCAL_WRITE);
    world.server.adapter.post_receive(link.server, 80, inbox.region.local(0, len)).unwrap();
    let half = len / 2;
    let segments = [from.region.local(0, half), from.region.local(half, len - half)];
    world.client.adapter.post_send_invalidate(link.client, 81, &segments, key).unwrap();
    let received = world.server_event(|event| completion(event, 80));
    assert_eq!(received.status, WorkStatus::Ok(len as u32));
    assert_eq!(received.invalidated, Some(key));
    let sent = world.client_event(|event| completion(event, 81));
    assert_eq!((sent.status, sent.invalidated), (WorkStatus::Ok(len as u32), None));
    inbox
}

pub fn a_message_invalidates_a_key(world: &mut World) {
    let link = world.connect();
    world.greet(link);
    for len in [0, 1, 100, 5000, 300_000] {
        let memory = world.server.memory(4096, BOTH);
        memory.fill(len as u64);
        let remote = memory.remote(0, 64);
        let from = world.client.memory(len.max(64), Access::LOCAL_WRITE);
        from.fill(7);
        let sink = world.client.memory(64, Access::LOCAL_WRITE);
        world.client.adapter.rdma_read(link.client, 1, sink.region.local(0, 64), remote).unwrap();
        assert_eq!(world.client_done(1), WorkStatus::Ok(64));
        let inbox = invalidate(world, link, &from, len, memory.region.key);
        assert!(inbox.read(0, len) == pattern(7, len.max(64))[..len], "message of {len}");
        is_out_of_reach(world, &memory, remote);
        // The owner can still use the memory: as a source, as a sink of others, and to be
        // deregistered.
        world.client.adapter.post_receive(link.client, 2, sink.region.local(0, 64)).unwrap();
        let segment = memory.region.local(0, 64);
        world.server.adapter.post_send(link.server, 3, &[segment]).unwrap();
        let received = world.client_event(|event| completion(event, 2));
        assert_eq!((received.status, received.invalidated), (WorkStatus::Ok(64), None));
        assert!(sink.read(0, 64) == memory.read(0, 64));
        world.server_done(3);
        world.server.adapter.deregister(memory.region.id);
        let again = world.server.adapter.register(world.server.domain, memory.buffer.clone(), BOTH);
        let remote = again.unwrap().remote(0, 64).unwrap();
        world.client.adapter.rdma_read(link.client, 4, sink.region.local(0, 64), remote).unwrap();
        assert_eq!(world.client_done(4), WorkStatus::Ok(64));
    }
}

pub fn the_accepting_side_invalidates_too(world: &mut World) {
    let link = world.connect();
    world.greet(link);
    let memory = world.client.memory(4096, BOTH);
    memory.fill(1);
    let inbox = world.client.memory(64, Access::LOCAL_WRITE);
    world.client.adapter.post_receive(link.client, 1, inbox.region.local(0, 64)).unwrap();
    let from = world.server.memory(64, Access::LOCAL_WRITE);
    let segments = [from.region.local(0, 64)];
    let key = memory.region.key;
    world.server.adapter.post_send_invalidate(link.server, 2, &segments, key).unwrap();
    let received = world.client_event(|event| completion(event, 1));
    assert_eq!(received.invalidated, Some(key));
    let remote = memory.remote(0, 64);
    world.server.adapter.rdma_write(link.server, 3, &segments, remote).unwrap();
    world.client_gone(link.client);
    assert!(memory.read(0, 4096) == pattern(1, 4096));
}

pub fn only_a_key_that_was_granted_can_be_invalidated(world: &mut World) {
    let other = world.server.adapter.protection_domain();
    let known = world.server.memory(4096, BOTH);
    let foreign = world.server.memory_in(other, 4096, BOTH);
    let local = world.server.memory(4096, Access::LOCAL_WRITE);
    let gone = world.server.memory(4096, BOTH);
    world.server.adapter.deregister(gone.region.id);
    let dead = world.server.memory(4096, BOTH);
    let link = world.connect();
    let from = world.client.memory(64, Access::empty());
    invalidate(world, link, &from, 64, dead.region.key);
    let forged = known.region.key ^ 0x0001_0000;
    let regions = [&foreign, &local, &gone, &dead];
    for key in regions.map(|memory| memory.region.key).into_iter().chain([forged, 0]) {
        let link = world.connect();
        let inbox = world.server.memory(64, Access::LOCAL_WRITE);
        world.server.adapter.post_receive(link.server, 1, inbox.region.local(0, 64)).unwrap();
        breaks(world, link, |world| {
            let segments = [from.region.local(0, 64)];
            world.client.adapter.post_send_invalidate(link.client, 2, &segments, key).unwrap();
        });
    }
    // The other connections of the domain still work.
    let link = world.connect();
    let sink = world.client.memory(64, Access::LOCAL_WRITE);
    let (segment, remote) = (sink.region.local(0, 64), known.remote(0, 64));
    world.client.adapter.rdma_read(link.client, 3, segment, remote).unwrap();
    assert_eq!(world.client_done(3), WorkStatus::Ok(64));
}

pub fn a_write_is_placed_before_its_key_dies(world: &mut World) {
    let link = world.connect();
    for size in [64usize, 5000, 1 << 20] {
        let memory = world.server.memory(size, BOTH);
        let inbox = world.server.memory(16, Access::LOCAL_WRITE);
        let from = world.client.memory(size, Access::empty());
        from.fill(size as u64);
        world.server.adapter.post_receive(link.server, 1, inbox.region.local(0, 16)).unwrap();
        let remote = memory.remote(0, size as u32);
        let segments = [from.region.local(0, size)];
        world.client.adapter.rdma_write(link.client, 2, &segments, remote).unwrap();
        let (tell, key) = ([from.region.local(0, 16)], memory.region.key);
        world.client.adapter.post_send_invalidate(link.client, 3, &tell, key).unwrap();
        let received = world.server_event(|event| completion(event, 1));
        assert_eq!((received.status, received.invalidated), (WorkStatus::Ok(16), Some(key)));
        assert!(memory.read(0, size) == pattern(size as u64, size), "write of {size}");
        assert_eq!(world.client_done(2), WorkStatus::Ok(size as u32));
        assert_eq!(world.client_done(3), WorkStatus::Ok(16));
        world.server.adapter.deregister(memory.region.id);
    }
}

/// The peer breaks the rule that its read must have completed. It gets all of the data or loses the
/// connection, but no data that the owner writes after the key is invalid.
pub fn a_read_under_way_when_its_key_dies(world: &mut World) {
    const SIZE: usize = 4 << 20;
    let link = world.connect();
    let memory = world.server.memory(SIZE, BOTH);
    memory.fill(5);
    let inbox = world.server.memory(16, Access::LOCAL_WRITE);
    world.server.adapter.post_receive(link.server, 1, inbox.region.local(0, 16)).unwrap();
    let sink = world.client.memory(SIZE, Access::LOCAL_WRITE);
    let remote = memory.remote(0, SIZE as u32);
    world.client.adapter.rdma_read(link.client, 2, sink.region.local(0, SIZE), remote).unwrap();
    let (tell, key) = ([sink.region.local(0, 0)], memory.region.key);
    world.client.adapter.post_send_invalidate(link.client, 3, &tell, key).unwrap();
    let received = world.server_event(|event| completion(event, 1));
    assert_eq!(received.invalidated, Some(key));
    let read = world.client_event(|event| completion(event, 2));
    if read.status == WorkStatus::Flushed {
        world.client_event(|event| gone(event, link.client));
    } else {
        assert_eq!(read.status, WorkStatus::Ok(SIZE as u32));
        assert!(sink.read(0, SIZE) == pattern(5, SIZE));
    }
    is_out_of_reach(world, &memory, memory.remote(0, 64));
}

pub fn a_key_dies_on_every_connection(world: &mut World) {
    let links = [world.connect(), world.connect()];
    let memory = world.server.memory(4096, BOTH);
    memory.fill(6);
    let from = world.client.memory(64, Access::LOCAL_WRITE);
    let segment = from.region.local(0, 64);
    let remote = memory.remote(0, 64);
    for link in links {
        world.client.adapter.rdma_read(link.client, 1, segment, remote).unwrap();
        assert_eq!(world.client_done(1), WorkStatus::Ok(64));
    }
    invalidate(world, links[0], &from, 64, memory.region.key);
    breaks(world, links[1], |world| {
        world.client.adapter.rdma_write(links[1].client, 2, &[segment], remote).unwrap();
    });
    world.greet(links[0]);
    assert!(memory.read(0, 4096) == pattern(6, 4096));
}

pub fn a_bad_post_invalidates_nothing(world: &mut World) {
    let link = world.connect();
    let memory = world.server.memory(4096, BOTH);
    let from = world.client.memory(64, Access::LOCAL_WRITE);
    let key = memory.region.key;
    let past = [from.region.local(1, 64)];
    let adapter = &mut world.client.adapter;
    let refused = adapter.post_send_invalidate(link.client, 1, &past, key);
    assert_eq!(refused, Err(PostError::Bounds));
    let many = [from.region.local(0, 1); dafs_dat::GATHER_SEGMENTS_MAX + 1];
    let refused = adapter.post_send_invalidate(link.client, 1, &many, key);
    assert_eq!(refused, Err(PostError::Length));
    let (segment, remote) = (from.region.local(0, 64), memory.remote(0, 64));
    adapter.rdma_read(link.client, 2, segment, remote).unwrap();
    assert_eq!(world.client_done(2), WorkStatus::Ok(64));
    world.client.adapter.abort(link.client);
    world.client_gone(link.client);
    let refused = world.client.adapter.post_send_invalidate(link.client, 3, &[], key);
    assert_eq!(refused, Err(PostError::NotConnected));
}
