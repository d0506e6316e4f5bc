//! The simulated provider keeps the contract of the trait, with and without rough delays.

use crate::contract::{Side, World};
use dafs_dat::Address;
use dafs_dat::sim::{SimFaults, SimNetwork};
use std::time::Duration;

fn world_of(faults: SimFaults) -> World {
    world_in(SimNetwork::new(7, faults))
}

fn world_in(network: SimNetwork) -> World {
    let clock = network.clone();
    World {
        client: Side::new(Box::new(network.adapter(2))),
        server: Side::new(Box::new(network.adapter(1))),
        listen: Address::Sim(1),
        clock: Box::new(move || {
            let quiet = clock.now() + Duration::from_millis(1);
            clock.advance_to(clock.next_event().unwrap_or(quiet));
            clock.now()
        }),
        tells_whose_mistake: true,
    }
}

/// Whole messages, short delays.
mod smooth {
    use super::*;

    fn world() -> World {
        world_of(SimFaults::none())
    }

    all_contract_tests!(world);
}

/// Peers read memory that is granted to them.
mod granting {
    use super::*;

    fn world() -> World {
        let network = SimNetwork::new(8, SimFaults { piece_bytes_max: 900, ..SimFaults::none() });
        network.grant_reads(true);
        world_in(network)
    }

    contract_tests!(world: grant::{
        a_grant_is_read_by_its_peer_alone, a_grant_is_not_written,
        a_revoked_grant_ends_its_connection_alone,
        a_word_read_behind_data_tells_if_that_was_valid, a_grant_shows_what_its_owner_writes,
        reads_of_a_peer_with_grants_are_counted,
    });
}

/// Small pieces, long and uneven delays, nothing lost.
mod slow {
    use super::*;

    fn world() -> World {
        world_of(SimFaults {
            delay_steps_max: 500,
            slow_ppm: 100_000,
            slow_steps_max: 5_000,
            piece_bytes_max: 300,
            ..SimFaults::none()
        })
    }

    all_contract_tests!(world);
}
