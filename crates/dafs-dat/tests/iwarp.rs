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
