//! Worlds of broken connections, their replay, and proof that bugs are found.

use dafs_dat::sim::seeds_of_the_day;
use dafs_sim::{Danger, Failure, Profile, Report, WorldOptions, check};
use std::ops::Range;

/// Worlds of the day, and with `DAFS_TEST_LONG`.
const WORLDS: u64 = 200;
const WORLDS_LONG: u64 = 3_000;

fn options(seed: u64, profile: Profile) -> WorldOptions {
    WorldOptions { seed, profile, ..WorldOptions::default() }
}

/// Runs worlds; fails with the replay command of every world that failed.
fn run(seeds: Range<u64>, profile: Profile) -> Vec<Report> {
    explained(seeds.map(|seed| options(seed, profile)))
}

/// The same with any worlds.
pub(crate) fn explained(worlds: impl Iterator<Item = WorldOptions>) -> Vec<Report> {
    let results: Vec<_> = worlds.map(|options| check(&options)).collect();
    let failed: Vec<String> =
        results.iter().filter_map(|result| result.as_ref().err()).map(Failure::to_string).collect();
    assert!(failed.is_empty(), "{} worlds failed\n{}", failed.len(), failed.join("\n"));
    results.into_iter().flatten().collect()
}

/// Asserts that enough happened: a world without events would pass any check.
fn assert_eventful(reports: &[Report]) {
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    let worlds = reports.len() as u64;
    assert!(sum(|report| report.work.succeeded) > 50 * worlds);
    assert!(sum(|report| report.work.lost) > worlds);
    assert!(sum(|report| report.work.refused) > worlds);
    assert!(sum(|report| report.work.sessions) > 4 * worlds);
    assert!(sum(|report| report.work.bytes_read) > 10_000 * worlds);
    assert!(sum(|report| report.network.torn) > worlds);
    assert!(sum(|report| report.network.rdma_bytes) > 10_000 * worlds);
    assert_eq!(sum(|report| report.network.violations), 0, "a rule of the transport was broken");
}

// Two tests, so that two threads share the worlds.
#[test]
fn the_first_half_of_the_worlds_can_be_explained() {
    let seeds = seeds_of_the_day(WORLDS, WORLDS_LONG);
    assert_eventful(&run(seeds.start..seeds.start.midpoint(seeds.end), Profile::Mixed));
}

#[test]
fn the_second_half_of_the_worlds_can_be_explained() {
    let seeds = seeds_of_the_day(WORLDS, WORLDS_LONG);
    let middle = seeds.start.midpoint(seeds.end);
    let rough = middle.midpoint(seeds.end);
    let mut reports = run(middle..rough, Profile::Mixed);
    reports.extend(run(rough..seeds.end, Profile::Rough));
    assert_eventful(&reports);
}

#[test]
fn calm_worlds_lose_nothing_by_themselves() {
    for report in run(0..50, Profile::Calm) {
        // Only sessions that the clients gave up themselves lose operations there.
        assert!(report.work.lost * 4 < report.work.succeeded, "{report:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let again = || [run(0..15, Profile::Mixed), run(0..15, Profile::Rough)].concat();
    let reports = again();
    assert_eq!(reports, again());
    assert!(reports.windows(2).all(|pair| pair[0].digest != pair[1].digest));
}

/// Counts the worlds in which a bug is found, and asserts that each is found the same way twice.
fn found(danger: Danger) -> usize {
    let worlds = (0..20).map(|seed| WorldOptions { danger, ..options(seed, Profile::Calm) });
    let failures: Vec<Failure> = worlds.filter_map(|options| check(&options).err()).collect();
    for failure in &failures {
        assert_eq!(check(&failure.options).as_ref(), Err(failure));
        assert!(failure.replay.contains(&format!("--seed {} ", failure.options.seed)));
    }
    failures.len()
}

#[test]
fn a_store_that_forgets_writes_is_found_out() {
    assert!(found(Danger { forget_write_every: 10, ..Danger::default() }) >= 15);
}

#[test]
fn a_transport_that_flips_bits_is_found_out() {
    assert!(found(Danger { corrupt_ppm: 50_000, ..Danger::default() }) >= 10);
}

#[test]
fn the_same_worlds_without_the_bugs_pass() {
    assert_eq!(found(Danger::default()), 0);
}
