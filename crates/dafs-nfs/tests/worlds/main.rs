//! Worlds made from a seed: clients, a network that loses, repeats, delays and reorders, and a
//! server that crashes and restarts. Every answer to a client is compared with a model. This is a
//! test program of its own, because a world counts the panics that its process has confined.
//!
//! `DAFS_WORLD_SEED=7 cargo test -p dafs-nfs --test worlds every_answer` runs one world again and prints
//! its events.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod actions;
mod client;
mod play;
mod rdma;
mod world;

use dafs_dat::sim::seeds_of_the_day;
use dafs_testkit_rpc::nfs as server;
use world::{Seen, World};

/// Number of worlds of a test. `DAFS_WORLDS` overrides it.
const WORLDS: u64 = 1_000;
const WORLDS_LONG: u64 = 6_000;

#[test]
fn every_answer_is_true_in_every_world() {
    if let Ok(seed) = std::env::var("DAFS_WORLD_SEED") {
        World::new(seed.parse().unwrap(), true, Seen::default()).run();
        return;
    }
    let seeds = seeds_of_the_day(WORLDS, WORLDS_LONG);
    let seen = seeds.fold(Seen::default(), |seen, seed| World::new(seed, false, seen).run());
    // A test of worlds without events would prove no property.
    assert!(seen.is_rich(), "{seen:?}");
}
