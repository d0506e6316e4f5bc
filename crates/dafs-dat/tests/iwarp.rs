//! The iWARP provider keeps the contract of the trait, in each of its modes.

// A helper of tests fails the test.
#![allow(clippy::unwrap_used)]

mod contract;

use contract::{Side, World};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{Address, Instant};

fn world_of(client: IwarpConfig, server: IwarpConfig) -> World {
    let side = |config| Side::new(Box::new(IwarpAdapter::new(config).unwrap()));
    World {
        client: side(client),
        server: side(server),
        listen: Address::Tcp("127.0.0.1:0".parse().unwrap()),
        clock: Box::new(Instant::now),
        tells_whose_mistake: true,
    }
}

/// Two of our own, large FPDUs.
mod own {
    use super::*;

    fn world() -> World {
        world_of(IwarpConfig::default(), IwarpConfig::default())
    }

    all_contract_tests!(world);
}

/// Two of our own with CRC, which only one of them asks for.
mod crc {
    use super::*;

    fn world() -> World {
        world_of(IwarpConfig::default(), IwarpConfig { crc: true, ..IwarpConfig::default() })
    }

    all_contract_tests!(world);
}

/// A peer that does not say that it is our own, with FPDUs of an Ethernet segment.
mod stranger {
    use super::*;

    fn world() -> World {
        let config = IwarpConfig { stranger_fpdu_bytes_max: Some(1448), ..IwarpConfig::default() };
        world_of(IwarpConfig { announce: false, ..config.clone() }, config)
    }

    all_contract_tests!(world);
}

/// The same with CRC: one FPDU per system call, its size told by the socket.
mod stranger_crc {
    use super::*;

    fn world() -> World {
        let config = IwarpConfig { crc: true, ..IwarpConfig::default() };
        world_of(config.clone(), IwarpConfig { announce: false, ..config })
    }

    all_contract_tests!(world);
}

/// More connections than are tried directly, all busy at once, from one adapter to another.
#[test]
fn a_crowd_is_served() {
    use contract::Link;
    use dafs_dat::{Access, WorkStatus};

    const COUNT: usize = 150;
    let mut world = world_of(IwarpConfig::default(), IwarpConfig::default());
    let links: Vec<Link> = (0..COUNT).map(|_| world.connect()).collect();
    let to = world.server.memory(COUNT * 16, Access::LOCAL_WRITE);
    let from = world.client.memory(COUNT * 16, Access::empty());
    from.fill(1);
    for round in 0..5 {
        for (i, link) in links.iter().enumerate() {
            let (there, here) = (to.region.local(i * 16, 16), from.region.local(i * 16, 16));
            let work = (round * COUNT + i) as u64;
            world.server.adapter.post_receive(link.server, work, there).unwrap();
            world.client.adapter.post_send(link.client, work, &[here]).unwrap();
        }
        for i in 0..COUNT {
            let work = (round * COUNT + i) as u64;
            assert_eq!(world.server_done(work), WorkStatus::Ok(16));
            assert_eq!(world.client_done(work), WorkStatus::Ok(16));
        }
        assert_eq!(to.read(0, COUNT * 16), from.read(0, COUNT * 16));
    }
}
