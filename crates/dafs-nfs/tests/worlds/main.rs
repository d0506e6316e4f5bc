//! Worlds made from a seed: clients, a network that loses, repeats, delays and reorders, and a
//! server that is killed and comes back; whatever a client is told is compared with a model.
//!
//! `DAFS_WORLD_SEED=7 cargo test -p dafs-nfs --test worlds` runs one world again and tells what
//! happens in it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod actions;
mod client;
mod play;
#[allow(dead_code, reason = "the fuzz target uses more of it")]
mod server;
mod world;

use world::World;

/// How many worlds a test looks at; `DAFS_WORLDS` says otherwise.
const WORLDS: u64 = 600;

#[test]
fn every_answer_is_true_in_every_world() {
    if let Ok(seed) = std::env::var("DAFS_WORLD_SEED") {
        World::new(seed.parse().unwrap(), true).run();
        return;
    }
    let worlds = std::env::var("DAFS_WORLDS").map_or(Ok(WORLDS), |worlds| worlds.parse()).unwrap();
    let seen = (0..worlds).map(|seed| World::new(seed, false).run());
    let seen = seen.reduce(|all, one| all.plus(&one)).unwrap();
    // A test of worlds in which nothing happens would show nothing.
    assert!(seen.is_rich(), "{seen:?}");
}
