//! The iWARP provider keeps the contract of the trait, in each of its modes.

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
