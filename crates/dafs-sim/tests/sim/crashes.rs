//! Worlds in which processes end and connections break, their replay, and proof that they find
//! bugs.

use dafs_dat::sim::seeds_of_the_day;
use dafs_sim::crash::{CrashFailure, CrashOptions, CrashReport, Danger, check, exhaust, shrink};
use std::ops::Range;

/// Worlds of the day, and with `DAFS_TEST_LONG`.
const WORLDS: u64 = 1_000;
const WORLDS_LONG: u64 = 10_000;
/// Worlds of the day that are tried with an end at each place, and with `DAFS_TEST_LONG`.
const EXHAUSTED: u64 = 4;
const EXHAUSTED_LONG: u64 = 20;

fn options(seed: u64) -> CrashOptions {
    CrashOptions { seed, ..CrashOptions::default() }
}

/// Runs worlds. Fails with the replay commands, and with the first failing world shrunk.
fn run(seeds: Range<u64>) -> Vec<CrashReport> {
    let middle = seeds.start.midpoint(seeds.end);
    let half = |seeds: Range<u64>| seeds.map(|seed| check(&options(seed))).collect::<Vec<_>>();
    let results = std::thread::scope(|scope| {
        let first = scope.spawn(|| half(seeds.start..middle));
        let second = half(middle..seeds.end);
        [first.join().unwrap(), second].concat()
    });
    let (passed, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let failed: Vec<_> = failed.into_iter().filter_map(Result::err).collect();
    if let Some(first) = failed.first() {
        let all: Vec<String> = failed.iter().map(|failure| failure.to_string()).collect();
        let small = shrink(CrashFailure::clone(first));
        panic!(
            "{} worlds failed\n{}\nthe first one made small: {}\n{}",
            failed.len(),
            all.join("\n"),
            small.plan,
            small.failure
        );
    }
    passed.into_iter().flatten().collect()
}

/// Asserts that enough happened: a world without events would pass any check.
fn assert_eventful(reports: &[CrashReport]) {
    let sum = |count: fn(&CrashReport) -> u64| reports.iter().map(count).sum::<u64>();
    let worlds = reports.len() as u64;
    assert!(sum(|report| report.work.succeeded) > 20 * worlds);
    assert!(sum(|report| report.network.lost) > worlds / 2);
    assert!(sum(|report| report.server_ends.into()) > worlds / 2);
    assert!(sum(|report| report.work.bytes_written) > 1_000 * worlds);
    assert!(sum(|report| report.locks.locked) > 2 * worlds);
    // These are rare: of 1,000 worlds 22 have a broken lock, 17 a repaired one.
    assert!(sum(|report| report.locks.denied) > worlds / 500);
    assert!(sum(|report| report.locks.broken) > worlds / 500);
    assert!(sum(|report| report.locks.repaired) > worlds / 1_000);
    assert!(sum(|report| report.locks.taken_back) > worlds / 1_000);
    assert!(sum(|report| report.locks.taken_out) > worlds / 1_000);
    assert!(sum(|report| report.locks.fences) > worlds / 4);
    assert!(sum(|report| report.locks.fenced) > worlds / 10);
    assert!(sum(|report| report.locks.chains) > worlds / 4);
    assert!(sum(|report| report.locks.transfers) > worlds);
    assert!(sum(|report| report.locks.delegations) > worlds / 4);
    assert!(sum(|report| report.locks.recalls) > worlds / 20);
    assert!(sum(|report| report.locks.cached_reads) > worlds / 4);
    assert!(sum(|report| report.locks.kept_writes) > worlds / 10);
    assert_eq!(sum(|report| report.network.violations), 0, "a rule of the transport was broken");
}

#[test]
fn the_worlds_of_the_day_can_be_explained() {
    assert_eventful(&run(seeds_of_the_day(WORLDS, WORLDS_LONG)));
}

/// Worlds pass without the bugs, as the test above shows.
#[test]
fn disks_and_clients_that_lie_and_servers_that_forget_are_found_out() {
    let wanted = if std::env::var_os("DAFS_TEST_LONG").is_some() { 3 } else { 1 };
    for (name, danger) in Danger::ALL {
        let worlds = (0..3_000).map(|seed| CrashOptions { danger, ..options(seed) });
        let failures = worlds.filter_map(|options| check(&options).err());
        let failures: Vec<_> = failures.take(wanted).collect();
        assert_eq!(failures.len(), wanted, "{name} is not found out often");
        for failure in &failures {
            assert_eq!(check(&failure.options).as_ref(), Err(failure));
        }
    }
}

/// Short worlds, in which a process ends once, at each place in turn.
#[test]
fn an_end_at_any_place_can_be_explained() {
    let short =
        |seed| CrashOptions { clients_max: Some(2), operations_max: Some(8), ..options(seed) };
    let seeds = seeds_of_the_day(EXHAUSTED, EXHAUSTED_LONG);
    let count = seeds.end - seeds.start;
    let worlds: u64 =
        seeds.map(|seed| exhaust(&short(seed)).unwrap_or_else(|failure| panic!("{failure}"))).sum();
    assert!(worlds > 50 * count, "only {worlds} places");
}

#[test]
fn a_seed_replays_exactly() {
    let reports = run(0..20);
    assert_eq!(reports, run(0..20));
    assert!(reports.windows(2).all(|pair| pair[0].digest != pair[1].digest));
}
