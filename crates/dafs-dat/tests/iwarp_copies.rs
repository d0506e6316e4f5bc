//! Large transfers over iWARP are placed once. It is a test program of its own, because the
//! counters belong to the process.

// A helper of tests fails the test.
#![allow(clippy::unwrap_used)]

mod contract;
mod pki;

use contract::{Side, World, pattern};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{Access, Address, Instant, WorkStatus};
use dafs_mem::{Site, copied_bytes};
use dafs_tls::TransportSecurity;
use pki::Pki;

const SIZE: usize = 1 << 20;

fn world(crc: bool) -> World {
    let config = IwarpConfig { crc, ..IwarpConfig::default() };
    let side = || Side::new(Box::new(IwarpAdapter::new(config.clone()).unwrap()));
    World {
        client: side(),
        server: side(),
        listen: Address::Tcp("127.0.0.1:0".parse().unwrap()),
        clock: Box::new(Instant::now),
        tells_whose_mistake: true,
    }
}

/// One test, so that no other one copies in this process meanwhile.
#[test]
fn announced_writes_and_large_reads_are_not_copied() {
    for crc in [false, true] {
        for size in [SIZE, SIZE + 4321, 16 * 1024] {
            let world = &mut world(crc);
            let link = world.connect();
            world.greet(link);
            let source = world.server.memory(size, Access::REMOTE_READ);
            let target = world.client.memory(size, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
            let inbox = world.client.memory(64, Access::LOCAL_WRITE);
            let word = world.server.memory(64, Access::empty());
            for round in 0..4 {
                source.fill(round);
                let inbox = inbox.region.local(0, 64);
                world.client.adapter.post_receive(link.client, 1, inbox).unwrap();
                world.client.adapter.expect_remote_writes(link.client, size as u64);
                let before = copied_bytes(Site::IwarpStaging);
                let (all, remote) = (source.region.local(0, size), target.remote(0, size as u32));
                world.server.adapter.rdma_write(link.server, 2, &[all], remote).unwrap();
                let word = word.region.local(0, 64);
                world.server.adapter.post_send(link.server, 3, &[word]).unwrap();
                assert_eq!(world.client_done(1), WorkStatus::Ok(64));
                world.client.adapter.expect_remote_writes(link.client, 0);
                // The message may pass the staging area, the data may not.
                assert!(copied_bytes(Site::IwarpStaging) - before <= 64);
                assert!(target.read(0, size) == pattern(round, size));
                world.server_done(2);
                world.server_done(3);

                source.fill(round + 100);
                let before = copied_bytes(Site::IwarpStaging);
                let (all, remote) = (target.region.local(0, size), source.remote(0, size as u32));
                world.client.adapter.rdma_read(link.client, 4, all, remote).unwrap();
                assert_eq!(world.client_done(4), WorkStatus::Ok(size as u32));
                assert_eq!(copied_bytes(Site::IwarpStaging), before);
                assert!(target.read(0, size) == pattern(round + 100, size));
            }
        }
    }
    inside_tls_each_byte_is_copied_once();
}

/// Once into the block where it is sealed, once out of the block where it was opened; besides, the
/// parts of records between two reads, and sealed bytes that a full socket leaves.
fn inside_tls_each_byte_is_copied_once() {
    let authority = Pki::new();
    let mut world = World {
        client: Side::new(Box::new(authority.client(TransportSecurity::Tls))),
        server: Side::new(Box::new(authority.server(IwarpConfig::default()))),
        ..world(false)
    };
    let link = world.connect();
    world.greet(link);
    let source = world.server.memory(SIZE, Access::REMOTE_READ);
    let target = world.client.memory(SIZE, Access::LOCAL_WRITE);
    source.fill(5);
    let sites = [Site::IwarpStaging, Site::IwarpTlsSend, Site::IwarpTlsReceive];
    let before = sites.map(copied_bytes);
    let (all, remote) = (target.region.local(0, SIZE), source.remote(0, SIZE as u32));
    world.client.adapter.rdma_read(link.client, 4, all, remote).unwrap();
    assert_eq!(world.client_done(4), WorkStatus::Ok(SIZE as u32));
    assert!(target.read(0, SIZE) == pattern(5, SIZE));
    let [staging, send, receive] = [0, 1, 2].map(|at| copied_bytes(sites[at]) - before[at]);
    let once = SIZE as u64;
    assert_eq!(staging, 0);
    assert!((once..once * 2).contains(&send), "{send}");
    assert!((once..once * 3 / 2).contains(&receive), "{receive}");
}
