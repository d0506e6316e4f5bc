//! The simulated provider keeps the contract of the trait, with and without rough delays.

use crate::contract::{Side, World};
use dafs_dat::Address;
use dafs_dat::sim::{SimFaults, SimNetwork};
use std::time::Duration;

fn world_of(faults: SimFaults) -> World {
    let network = SimNetwork::new(7, faults);
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
