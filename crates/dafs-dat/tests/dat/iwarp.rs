//! The iWARP provider keeps the contract of the trait, in each of its modes.

use crate::contract::{Side, World};
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

/// Both peers run this implementation, with large FPDUs.
mod own {
    use super::*;

    fn world() -> World {
        world_of(IwarpConfig::default(), IwarpConfig::default())
    }

    all_contract_tests!(world);
    contract_tests!(world: grant::{
        a_grant_is_read_by_its_peer_alone, a_grant_is_not_written,
        a_revoked_grant_ends_its_connection_alone, a_peer_that_never_reads_its_channel,
        a_word_read_behind_data_tells_if_that_was_valid, a_grant_ends_under_reads,
        a_grant_shows_what_its_owner_writes, reads_of_a_peer_with_grants_are_counted,
    });
}

/// The same with CRC, which only one of them requests.
mod crc {
    use super::*;

    fn world() -> World {
        world_of(IwarpConfig::default(), IwarpConfig { crc: true, ..IwarpConfig::default() })
    }

    all_contract_tests!(world);
    contract_tests!(world: grant::{
        a_grant_is_read_by_its_peer_alone, a_grant_is_not_written,
        a_revoked_grant_ends_its_connection_alone,
    });
}

/// A peer that does not announce this implementation, with FPDUs of an Ethernet segment.
mod foreign {
    use super::*;

    fn world() -> World {
        let config = IwarpConfig { foreign_fpdu_bytes_max: Some(1448), ..IwarpConfig::default() };
        world_of(IwarpConfig { announce: false, ..config.clone() }, config)
    }

    all_contract_tests!(world);
}

/// The same with CRC: one FPDU per system call, whose size the socket reports.
mod foreign_crc {
    use super::*;

    fn world() -> World {
        let config = IwarpConfig { crc: true, ..IwarpConfig::default() };
        world_of(config.clone(), IwarpConfig { announce: false, ..config })
    }

    all_contract_tests!(world);
}

/// More connections than the adapter reads directly, all busy at once, from one adapter to another.
#[test]
fn a_crowd_is_served() {
    use crate::contract::Link;
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

/// Some busy connections do not starve a quiet one, both with few of them and with more than stay
/// on the direct list for long.
#[test]
fn a_quiet_connection_is_served_among_busy_ones() {
    use crate::contract::Link;
    use dafs_dat::{Access, Event};

    /// Far more turns than needed.
    const TURNS_MAX: usize = 10_000;
    for busy_count in [1, 2, 3, 8] {
        let mut world = world_of(IwarpConfig::default(), IwarpConfig::default());
        let links: Vec<Link> = (0..=busy_count).map(|_| world.connect()).collect();
        let (quiet, busy) = links.split_last().unwrap();
        let to = world.server.memory(16, Access::LOCAL_WRITE);
        let from = world.client.memory(16, Access::empty());
        let send = |world: &mut World, link: &Link, work| {
            world.server.adapter.post_receive(link.server, work, to.region.local(0, 16)).unwrap();
            world.client.adapter.post_send(link.client, work, &[from.region.local(0, 16)]).unwrap();
        };
        let received = |world: &World, of: &Link| {
            let mut events = world.server.events.iter();
            events
                .any(|event| matches!(event, Event::Completion(done) if done.endpoint == of.server))
        };
        // Each busy connection always has one message in flight.
        let go_on = |world: &mut World, turns: usize, until: Option<&Link>| {
            for _ in 0..turns {
                let again: Vec<bool> = busy.iter().map(|link| received(world, link)).collect();
                world.server.events.clear();
                world.client.events.clear();
                for (link, _) in busy.iter().zip(again).filter(|(_, again)| *again) {
                    send(world, link, 1);
                }
                world.poll();
                if until.is_some_and(|link| received(world, link)) {
                    return true;
                }
            }
            false
        };
        busy.iter().for_each(|link| send(&mut world, link, 1));
        go_on(&mut world, 100, None);
        send(&mut world, quiet, 2);
        assert!(go_on(&mut world, TURNS_MAX, Some(quiet)), "{busy_count} are busy");
    }
}
