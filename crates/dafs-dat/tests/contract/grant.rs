//! Promises about memory that is granted to the peer of one connection, of providers that grant RDMA
//! reads.

use super::faults::breaks;
use super::{Link, Memory, World, pattern};
use dafs_dat::shm::{discard, exposed_buffer};
use dafs_dat::{Access, MemoryRegion, RemoteBuffer, WorkStatus};
use dafs_mem::{Buffer, Site};
use std::sync::Arc;

const BYTES: usize = 64 << 10;

fn granted(world: &mut World, link: Link) -> (Arc<Buffer>, MemoryRegion) {
    assert!(world.server.adapter.can_grant_reads());
    let buffer = Arc::new(exposed_buffer(BYTES).unwrap());
    buffer.view().copy_from(&pattern(5, BYTES), Site::Inspect);
    let region = world.server.adapter.grant(link.server, &buffer).unwrap();
    (buffer, region)
}

fn read(world: &mut World, link: Link, into: &Memory, remote: RemoteBuffer) -> Vec<u8> {
    let len = remote.len as usize;
    let segment = into.region.local(0, len);
    world.client.adapter.rdma_read(link.client, 50, segment, remote).unwrap();
    assert_eq!(world.client_done(50), WorkStatus::Ok(remote.len));
    into.read(0, len)
}

pub fn a_grant_is_read_by_its_peer_alone(world: &mut World) {
    let (link, other) = (world.connect_isolated(), world.connect_isolated());
    let (_buffer, region) = granted(world, link);
    let into = world.client.memory(BYTES, Access::LOCAL_WRITE);
    let whole = region.remote(0, BYTES as u32).unwrap();
    assert!(read(world, link, &into, whole) == pattern(5, BYTES));
    breaks(world, other, |world| {
        let segment = into.region.local(0, 64);
        let remote = region.remote(0, 64).unwrap();
        world.client.adapter.rdma_read(other.client, 51, segment, remote).unwrap();
    });
    let part = region.remote(100, 300).unwrap();
    assert!(read(world, link, &into, part) == pattern(5, BYTES)[100..400]);
}

/// Not of RDMA devices, which answer by themselves.
pub fn reads_of_a_peer_with_grants_are_counted(world: &mut World) {
    let link = world.connect_isolated();
    let (_buffer, region) = granted(world, link);
    let own = world.server.memory(4096, Access::REMOTE_READ);
    own.fill(6);
    let into = world.client.memory(BYTES, Access::LOCAL_WRITE);
    let whole = region.remote(0, BYTES as u32).unwrap();
    assert!(read(world, link, &into, whole) == pattern(5, BYTES));
    let counts = [&world.server, &world.client].map(|side| side.adapter.granted_reads());
    assert_eq!(counts, [1, 0]);
    assert!(read(world, link, &into, own.remote(0, 4096)) == own.read(0, 4096));
}

pub fn a_grant_is_not_written(world: &mut World) {
    let link = world.connect_isolated();
    let (buffer, region) = granted(world, link);
    let from = world.client.memory(64, Access::empty());
    from.fill(9);
    breaks(world, link, |world| {
        let remote = region.remote(0, 64).unwrap();
        world
            .client
            .adapter
            .rdma_write(link.client, 51, &[from.region.local(0, 64)], remote)
            .unwrap();
    });
    assert!(buffer.view().to_vec(Site::Inspect) == pattern(5, BYTES));
}

pub fn a_revoked_grant_ends_its_connection_alone(world: &mut World) {
    let (link, other) = (world.connect_isolated(), world.connect_isolated());
    let (_buffer, region) = granted(world, link);
    let (buffer, kept) = granted(world, other);
    let into = world.client.memory(4096, Access::LOCAL_WRITE);
    world.server.adapter.revoke(link.server, region.id);
    breaks(world, link, |world| {
        let segment = into.region.local(0, 64);
        let remote = region.remote(0, 64).unwrap();
        world.client.adapter.rdma_read(link.client, 51, segment, remote).unwrap();
    });
    assert!(into.read(0, 64).iter().all(|byte| *byte == 0));
    assert!(world.server.adapter.grant(link.server, &buffer).is_none(), "it is over");
    let part = kept.remote(0, 4096).unwrap();
    assert!(read(world, other, &into, part) == pattern(5, BYTES)[..4096]);
    // The key may be revoked after the end of the connection.
    world.client.adapter.disconnect(other.client);
    world.server_gone(other.server);
    world.server.adapter.revoke(other.server, kept.id);
}

/// A grant ends while its peer reads without pause, and before its connection ends.
pub fn a_grant_ends_under_reads(world: &mut World) {
    let link = world.connect_isolated();
    let (buffer, region) = granted(world, link);
    let (_other, kept) = granted(world, link);
    let into = world.client.memory(BYTES, Access::LOCAL_WRITE);
    let whole = region.remote(0, BYTES as u32).unwrap();
    let segment = into.region.local(0, BYTES);
    for work in 0..64 {
        world.client.adapter.rdma_read(link.client, work, segment, whole).unwrap();
    }
    world.poll();
    world.server.adapter.revoke(link.server, region.id);
    assert_eq!(Arc::strong_count(&buffer), 1, "nothing uses the memory any more");
    let _ = world.client.adapter.rdma_read(link.client, 64, segment, whole);
    world.client_gone(link.client);
    world.server_gone(link.server);
    world.server.adapter.revoke(link.server, kept.id);
}

/// A peer reads the bytes that the owner writes into granted memory, also before the pages are discarded.
pub fn a_grant_shows_what_its_owner_writes(world: &mut World) {
    let link = world.connect_isolated();
    let (buffer, region) = granted(world, link);
    let into = world.client.memory(BYTES, Access::LOCAL_WRITE);
    let whole = region.remote(0, BYTES as u32).unwrap();
    buffer.view().copy_from(&pattern(7, BYTES), Site::Inspect);
    assert!(read(world, link, &into, whole) == pattern(7, BYTES));
    if world.server.adapter.keeps_granted_pages() {
        buffer.view().fill(0);
    }
    discard(&buffer).unwrap();
    assert!(read(world, link, &into, whole).iter().all(|byte| *byte == 0));
}

/// Reads that it has asked for, and that the socket does not take, hold no memory that was taken back.
pub fn a_peer_that_never_reads_its_channel(world: &mut World) {
    const LONG: usize = 8 << 20;
    let link = world.connect_isolated();
    let buffer = Arc::new(exposed_buffer(LONG).unwrap());
    let region = world.server.adapter.grant(link.server, &buffer).unwrap();
    let into = world.client.memory(LONG, Access::LOCAL_WRITE);
    for work in 0..8 {
        let segment = into.region.local(0, LONG);
        let remote = region.remote(0, LONG as u32).unwrap();
        world.client.adapter.rdma_read(link.client, work, segment, remote).unwrap();
    }
    world.client.adapter.flush();
    for _ in 0..1000 {
        let now = (world.clock)();
        world.server.poll(now);
    }
    world.server.adapter.revoke(link.server, region.id);
    assert_eq!(Arc::strong_count(&buffer), 1);
    // It finds the end of the channel when it reads.
    let other = world.connect_isolated();
    let (_, kept) = granted(world, other);
    let part = kept.remote(0, 4096).unwrap();
    let small = world.client.memory(4096, Access::LOCAL_WRITE);
    assert!(read(world, other, &small, part) == pattern(5, BYTES)[..4096]);
    world.client_gone(link.client);
}

/// A reader that finds a word as it was before its read of the data has the data of that word.
pub fn a_word_read_behind_data_tells_if_that_was_valid(world: &mut World) {
    let link = world.connect_isolated();
    let (buffer, region) = granted(world, link);
    let into = world.client.memory(BYTES, Access::LOCAL_WRITE);
    let data_bytes = BYTES - 4096;
    let word_at = BYTES - 8;
    let mut valid = 0;
    for round in 1..200_u64 {
        let filled = vec![round as u8; data_bytes];
        buffer.slice(0, data_bytes).unwrap().copy_from(&filled, Site::Inspect);
        buffer.slice(word_at, 8).unwrap().copy_from(&round.to_le_bytes(), Site::Inspect);
        let adapter = &mut world.client.adapter;
        let data = region.remote(0, data_bytes as u32).unwrap();
        adapter.rdma_read(link.client, 60, into.region.local(0, data_bytes), data).unwrap();
        let word = region.remote(word_at, 8).unwrap();
        adapter.rdma_read(link.client, 61, into.region.local(word_at, 8), word).unwrap();
        for _ in 0..round % 7 {
            world.poll();
        }
        // The word changes first, as an entry of a window page does.
        buffer.slice(word_at, 8).unwrap().copy_from(&[0; 8], Site::Inspect);
        buffer.slice(0, data_bytes).unwrap().copy_from(&vec![0; data_bytes], Site::Inspect);
        assert_eq!(world.client_done(60), WorkStatus::Ok(data_bytes as u32));
        assert_eq!(world.client_done(61), WorkStatus::Ok(8));
        if into.read(word_at, 8) == round.to_le_bytes() {
            valid += 1;
            assert!(into.read(0, data_bytes) == filled, "round {round}");
        }
    }
    assert!(valid < 199, "each read was over before the change");
}
