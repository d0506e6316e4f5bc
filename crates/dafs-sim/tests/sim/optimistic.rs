//! Worlds of optimistic reads, and proof that bugs of such reads are found.
//!
//! A world is one thread: a fill never overlaps a write there. The tests of `dafs-service/src/exposure`
//! put each of these in steps, in every order (`exhaustive.rs`) and at random (`tests.rs`).
//!
//! | deliberate bug | here | in `exhaustive.rs` | in `tests.rs` |
//! |---|---|---|---|
//! | an entry is taken away after the change of its block | late-unpublish | `LateChange` | `LateChange` |
//! | a fill is published although its block has changed | | `StaleFill` | `StaleFill` |
//! | a frame that a network reads is used again at once | | `EarlyReuse` | `EarlyReuse` |
//! | the generation of an entry does not change | | `NoGeneration` | |
//! | a reader checks the entries before it copies | early-check | `EarlyCheck` | `EarlyCheck` |
//! | a grant outlives the close | grant-stays | `GrantStays` | `GrantStays` |
//! | a reader believes a dead server | undying-life | | |
//! | memory of window pages becomes memory of frames | | | `PagesAsFrames` |

use crate::worlds::explained;
use dafs_dat::sim::seeds_of_the_day;
use dafs_sim::{Danger, ExposureDanger, Profile, Report, WorldOptions, check};
use std::ops::Range;

/// Worlds of the day, and with `DAFS_TEST_LONG`.
const WORLDS: u64 = 80;
const WORLDS_LONG: u64 = 1_500;

/// Worlds of which one at least shows a bug.
const WORLDS_OF_A_BUG: u64 = 500;

fn options(seed: u64, profile: Profile) -> WorldOptions {
    WorldOptions { seed, profile, optimistic: true, ..WorldOptions::default() }
}

fn run(seeds: Range<u64>, profile: Profile) -> Vec<Report> {
    explained(seeds.map(|seed| options(seed, profile)))
}

#[test]
fn hits_can_be_explained() {
    let seeds = seeds_of_the_day(WORLDS, WORLDS_LONG);
    let middle = seeds.start.midpoint(seeds.end);
    let worlds = seeds.end - seeds.start;
    let mut reports = run(seeds.start..middle, Profile::Calm);
    reports.extend(run(middle..seeds.end, Profile::Mixed));
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    assert!(sum(|report| report.work.hits) > worlds);
    assert!(sum(|report| report.work.stale) > 0);
    assert!(sum(|report| report.work.succeeded) > 10 * worlds);
    assert_eq!(sum(|report| report.network.violations), 0, "a rule of the transport was broken");
}

/// Clients keep the places of small files when they close them, whose blocks lie in the same memory.
#[test]
fn hits_of_small_files_can_be_explained() {
    let small = |seed, profile| WorldOptions { small: true, ..options(seed, profile) };
    let seeds = seeds_of_the_day(WORLDS, WORLDS_LONG);
    let middle = seeds.start.midpoint(seeds.end);
    let mut reports = explained((seeds.start..middle).map(|seed| small(seed, Profile::Calm)));
    reports.extend(explained((middle..seeds.end).map(|seed| small(seed, Profile::Mixed))));
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    assert!(sum(|report| report.work.small_hits) > 0);
    let replayed = |seed| explained(std::iter::once(small(seed, Profile::Mixed)));
    assert_eq!(replayed(0), replayed(0));
}

/// Clients of other hosts read by RDMA, also while the network tears and loses.
#[test]
fn hits_by_rdma_can_be_explained() {
    let remote = |seed, profile| WorldOptions { remote: true, ..options(seed, profile) };
    let seeds = seeds_of_the_day(WORLDS, WORLDS_LONG);
    let middle = seeds.start.midpoint(seeds.end);
    let worlds = seeds.end - seeds.start;
    let mut reports = explained((seeds.start..middle).map(|seed| remote(seed, Profile::Calm)));
    reports.extend(explained((middle..seeds.end).map(|seed| remote(seed, Profile::Mixed))));
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    assert!(sum(|report| report.work.hits) > worlds);
    assert!(sum(|report| report.work.stale) > 0);
    assert!(sum(|report| report.work.succeeded) > 10 * worlds);
    let replayed = |seed| explained(std::iter::once(remote(seed, Profile::Mixed)));
    assert_eq!(replayed(0), replayed(0));
}

/// The server takes entries away long after the change of their blocks.
#[test]
fn a_late_end_of_entries_is_found_out_by_rdma() {
    let danger = Danger { exposure: ExposureDanger::LateUnpublish, ..Danger::default() };
    let mut worlds = (0..WORLDS_OF_A_BUG).map(|seed| {
        let options = options(seed, Profile::Calm);
        WorldOptions { remote: true, danger, ..options }
    });
    let failure = worlds.find_map(|options| check(&options).err()).expect("it is not found out");
    assert!(failure.replay.contains("--remote"));
}

#[test]
fn a_world_of_hits_replays_exactly() {
    let reports = run(0..10, Profile::Mixed);
    assert_eq!(reports, run(0..10, Profile::Mixed));
    assert!(reports.windows(2).all(|pair| pair[0].digest != pair[1].digest));
}

/// Worlds pass without the bugs, as the first test shows.
#[test]
fn bugs_of_optimistic_reads_are_found_out() {
    for (name, exposure) in ExposureDanger::ALL {
        let danger = Danger { exposure, ..Danger::default() };
        let mut worlds = (0..WORLDS_OF_A_BUG)
            .map(|seed| WorldOptions { danger, ..options(seed, Profile::Calm) });
        let failure = worlds.find_map(|options| check(&options).err());
        let failure = failure.unwrap_or_else(|| panic!("{name} is not found out"));
        assert_eq!(check(&failure.options).as_ref(), Err(&failure));
        assert!(failure.replay.contains(&format!("--danger-exposure {name}")));
    }
}
