//! The shared-memory provider keeps the contract of the trait, on each of its paths.

use crate::contract::{Side, World};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{Address, Instant};

fn world_of(config: &ShmConfig) -> World {
    let side = || Side::new(Box::new(ShmAdapter::new(config.clone()).unwrap()));
    World {
        client: side(),
        server: side(),
        listen: Address::Shm(String::new()),
        clock: Box::new(Instant::now),
        tells_whose_mistake: true,
    }
}

/// Memory that peers access directly. Transfers there complete when they are posted, so an abort
/// finds none to flush; that test does not apply here.
mod shared_memory {
    use super::*;

    fn world() -> World {
        world_of(&ShmConfig::default())
    }

    common_promises! { contract_tests!, [world:], }
}

/// Memory that the ring reaches.
mod ordinary_memory {
    use super::*;

    fn world() -> World {
        world_of(&ShmConfig { shareable_buffers_max: 0, ..ShmConfig::default() })
    }

    all_contract_tests!(world);
}

/// Rings that are full most of the time.
mod small_rings {
    use super::*;

    fn world() -> World {
        let config = ShmConfig { ring_bytes: 4096, shareable_buffers_max: 0, ..Default::default() };
        world_of(&config)
    }

    all_contract_tests!(world);
}
