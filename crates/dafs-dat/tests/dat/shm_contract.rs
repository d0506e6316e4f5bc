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

    contract_tests! { world:
        setup::{
            private_data_passes_both_ways, too_much_private_data_is_refused,
            a_reject_carries_its_reason, a_connection_without_a_listener_fails, the_peer_is_known,
        }
        data::{
            messages_keep_their_order, a_send_gathers_its_segments, an_empty_message_arrives,
            a_write_is_placed_before_the_next_send, a_read_brings_the_bytes,
            large_transfers_of_odd_sizes, many_in_flight, both_sides_read_eight_mebibytes,
            more_reads_than_the_depth, deregistered_memory_lives_while_posted,
        }
        faults::{
            a_message_longer_than_its_receive, a_message_without_a_receive, a_forged_key,
            a_key_of_another_domain, a_range_past_the_end, a_right_that_is_missing,
            a_key_that_was_deregistered, bad_posts_queue_nothing,
        }
        ending::{
            disconnect_hands_over_what_was_posted, a_disconnect_flushes_what_is_posted,
            a_dead_endpoint_takes_no_work, others_live_on_when_one_ends,
        }
    }
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
