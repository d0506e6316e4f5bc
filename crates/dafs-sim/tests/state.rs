//! The database of state over a disk that loses, tears and rots.

use dafs_sim::state::{StateReport, run};

#[test]
fn what_is_stable_stays_and_damage_is_told() {
    let seeds = if std::env::var_os("DAFS_TEST_LONG").is_some() { 5_000 } else { 100 };
    // The database panics over pages that make no sense; that is told as damage.
    std::panic::set_hook(Box::new(|_| ()));
    let ran = |seed| run(seed).map_err(|error| format!("seed {seed}: {error}"));
    let reports: Result<Vec<StateReport>, String> = (0..seeds).map(ran).collect();
    let _ = std::panic::take_hook();
    let reports = reports.unwrap_or_else(|error| panic!("{error}"));
    let sum = |count: fn(&StateReport) -> u64| reports.iter().map(count).sum::<u64>();
    assert!(sum(|report| report.changes) > 10 * seeds);
    assert!(sum(|report| report.ends) > 3 * seeds);
    assert!(sum(|report| report.cuts) > 2 * seeds);
    assert!(sum(|report| report.told) > 20 * seeds);
    assert!(sum(|report| report.harmless) > seeds);
    assert_eq!(run(7), run(7), "the same seed is the same history");
}
