//! Promises about peers that break a rule: the connection ends, the memory stays unchanged.

use super::{Link, Memory, World, assert_flushed, drain_completions};
use dafs_dat::{
    Access, DisconnectReason, LocalSegment, Operation, PostError, RegionId, RemoteBuffer,
};

fn is_protocol(reason: &DisconnectReason) -> bool {
    matches!(reason, DisconnectReason::Protocol(_))
}

/// The client breaks a rule by `act`; the server must end the connection for that reason, and both
/// sides must flush.
pub fn breaks(world: &mut World, link: Link, act: impl FnOnce(&mut World)) {
    let inbox = world.server.memory(64, Access::LOCAL_WRITE);
    let from = world.client.memory(64, Access::LOCAL_WRITE);
    act(world);
    let _ = world.client.adapter.post_receive(link.client, 70, from.region.local(0, 64));
    let _ = inbox;
    let reason = world.server_gone(link.server);
    let strict = world.tells_whose_mistake;
    assert!(is_protocol(&reason) || !strict && reason != DisconnectReason::Local, "{reason}");
    let reason = world.client_gone(link.client);
    assert!(reason != DisconnectReason::Local, "{reason}");
    assert!(reason != DisconnectReason::Peer || !strict, "{reason}");
    assert_flushed(&drain_completions(&mut world.client, link.client).0, Operation::Receive, 70);
}

pub fn a_message_longer_than_its_receive(world: &mut World) {
    let link = world.connect();
    let to = world.server.memory(4096, Access::LOCAL_WRITE);
    let from = world.client.memory(4096, Access::empty());
    from.fill(1);
    world.server.adapter.post_receive(link.server, 1, to.region.local(0, 100)).unwrap();
    breaks(world, link, |world| {
        let segments = [from.region.local(0, 101)];
        world.client.adapter.post_send(link.client, 2, &segments).unwrap();
    });
    assert_flushed(&drain_completions(&mut world.server, link.server).0, Operation::Receive, 1);
    assert_eq!(to.read(100, 3996), vec![0; 3996]);
}

pub fn a_message_without_a_receive(world: &mut World) {
    let link = world.connect();
    let from = world.client.memory(64, Access::empty());
    breaks(world, link, |world| {
        world.client.adapter.post_send(link.client, 2, &[from.region.local(0, 64)]).unwrap();
    });
}

/// Checks that a write and a read of `remote` each break a connection of their own; `memory` stays
/// unchanged.
pub fn is_out_of_reach(world: &mut World, memory: &Memory, remote: RemoteBuffer) {
    let before = memory.read(0, memory.buffer.len());
    let from = world.client.memory(remote.len as usize, Access::LOCAL_WRITE);
    from.fill(99);
    let segment = from.region.local(0, remote.len as usize);
    let link = world.connect();
    breaks(world, link, |world| {
        world.client.adapter.rdma_write(link.client, 1, &[segment], remote).unwrap();
    });
    from.buffer.view().fill(0);
    let link = world.connect();
    breaks(world, link, |world| {
        world.client.adapter.rdma_read(link.client, 2, segment, remote).unwrap();
    });
    assert!(memory.read(0, memory.buffer.len()) == before);
    assert!(from.read(0, remote.len as usize).iter().all(|byte| *byte == 0));
}

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

pub fn a_forged_key(world: &mut World) {
    let memory = world.server.memory(4096, BOTH);
    memory.fill(1);
    let mut remote = memory.remote(0, 64);
    remote.key ^= 0x0001_0000;
    is_out_of_reach(world, &memory, remote);
}

pub fn a_key_of_another_domain(world: &mut World) {
    let other = world.server.adapter.protection_domain();
    let memory = world.server.memory_in(other, 4096, BOTH);
    memory.fill(2);
    let remote = memory.remote(0, 64);
    is_out_of_reach(world, &memory, remote);
}

pub fn a_range_past_the_end(world: &mut World) {
    let memory = world.server.memory(4096, BOTH);
    memory.fill(3);
    let mut remote = memory.remote(4000, 96);
    remote.len = 97;
    is_out_of_reach(world, &memory, remote);
    remote.address = memory.region.address - 1;
    is_out_of_reach(world, &memory, remote);
    remote.address = u64::MAX - 10;
    is_out_of_reach(world, &memory, remote);
}

pub fn a_right_that_is_missing(world: &mut World) {
    let memory = world.server.memory(4096, Access::LOCAL_WRITE);
    memory.fill(4);
    let remote = memory.remote(0, 64);
    is_out_of_reach(world, &memory, remote);
}

pub fn a_key_that_was_deregistered(world: &mut World) {
    let memory = world.server.memory(4096, BOTH);
    memory.fill(5);
    let remote = memory.remote(0, 64);
    world.server.adapter.deregister(memory.region.id);
    is_out_of_reach(world, &memory, remote);
}

pub fn bad_posts_queue_nothing(world: &mut World) {
    let link = world.connect();
    let memory = world.client.memory(64, Access::empty());
    let other = world.client.adapter.protection_domain();
    let foreign = world.client.memory_in(other, 64, Access::LOCAL_WRITE);
    let adapter = &mut world.client.adapter;
    let endpoint = link.client;
    let good = memory.region.local(0, 64);
    let past = memory.region.local(1, 64);
    let unknown = LocalSegment { region: RegionId(12_345), offset: 0, len: 1 };
    let foreign = foreign.region.local(0, 64);
    let remote = RemoteBuffer { key: 1, address: 0, len: 64 };
    assert_eq!(adapter.post_send(endpoint, 1, &[good, past]), Err(PostError::Bounds));
    assert_eq!(adapter.post_send(endpoint, 1, &[unknown]), Err(PostError::Region));
    assert_eq!(adapter.post_send(endpoint, 1, &[foreign]), Err(PostError::Region));
    let many = [good; dafs_dat::GATHER_SEGMENTS_MAX + 1];
    assert_eq!(adapter.post_send(endpoint, 1, &many), Err(PostError::Length));
    assert_eq!(adapter.post_receive(endpoint, 1, good), Err(PostError::Access));
    assert_eq!(adapter.post_receive(endpoint, 1, foreign), Err(PostError::Region));
    let write = adapter.rdma_write(endpoint, 1, &[good, good], remote);
    assert_eq!(write, Err(PostError::Length));
    assert_eq!(adapter.rdma_read(endpoint, 1, good, remote), Err(PostError::Access));
    let short = memory.region.local(0, 63);
    assert_eq!(adapter.rdma_read(endpoint, 1, short, remote), Err(PostError::Length));
    // The connection still works.
    world.greet(link);
    let (completions, over) = drain_completions(&mut world.client, endpoint);
    assert!(completions.is_empty() && !over);
}
