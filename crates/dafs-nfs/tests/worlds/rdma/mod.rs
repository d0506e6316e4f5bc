//! NFSv4.1 over RDMA in worlds made from a seed: the shipped handler, RPC server and RPC client
//! over the simulated network, which breaks their connections at any moment. Clients retry every
//! request until it is answered, and the answer must be that of its first execution.
//!
//! `DAFS_WORLD_SEED=7 cargo test -p dafs-nfs --test worlds rdma` runs one world again.

#![allow(clippy::expect_used, reason = "a failed unwrap is a failed test")]

mod action;
mod client;
mod server;
mod world;

use client::Tally;
use dafs_dat::sim::{SimFaults, SimNetwork, seeds_of_the_day};
use world::World;

/// Number of worlds of a test, without and with `DAFS_TEST_LONG`.
const WORLDS: u64 = 100;
const WORLDS_LONG: u64 = 5000;

fn run(seed: u64) -> Tally {
    let before = dafs_dat::confine::faults();
    let result = std::panic::catch_unwind(|| {
        let seen = World::new(seed).run();
        assert_eq!(dafs_dat::confine::faults(), before, "a panic was confined to a connection");
        seen
    });
    result.unwrap_or_else(|panic| {
        eprintln!("replay: DAFS_WORLD_SEED={seed} cargo test -p dafs-nfs --test worlds rdma");
        std::panic::resume_unwind(panic)
    })
}

#[test]
fn every_request_is_carried_out_once_in_every_world() {
    if let Ok(seed) = std::env::var("DAFS_WORLD_SEED") {
        println!("{:?}", run(seed.parse().unwrap()));
        return;
    }
    let seeds = seeds_of_the_day(WORLDS, WORLDS_LONG);
    let seen = seeds.fold(Tally::default(), |all, seed| all.plus(run(seed)));
    // A test of worlds without events would prove no property.
    assert!(seen.is_rich(), "{seen:?}");
}

#[test]
fn every_request_is_carried_out_once_wherever_the_connection_breaks() {
    let network = || SimNetwork::new(5, SimFaults::none());
    for action in action::one_of_each() {
        for maps in [false, true] {
            let world = || {
                let network = network();
                network.map_memory(maps);
                World::on(network, 1)
            };
            let steps = world().act_once(&action, None);
            assert!(steps > 5, "{steps}");
            for cut in 0..=steps {
                world().act_once(&action, Some(cut));
            }
        }
    }
}
