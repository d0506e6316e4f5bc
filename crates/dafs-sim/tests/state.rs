//! The state databases over a disk that loses, tears and corrupts data.

use dafs_dat::sim::seeds_of_the_day;
use dafs_sim::state::{Kept, StateReport, run};

// One test, because the panic hook belongs to the process.
#[test]
fn stable_state_stays_and_damage_is_reported() {
    let seeds = seeds_of_the_day(100, 5_000);
    let (first, count) = (seeds.start, seeds.end - seeds.start);
    for kept in [Kept::Clients, Kept::Fences] {
        // The database panics over corrupt pages; `run` counts a panic as reported damage.
        std::panic::set_hook(Box::new(|_| ()));
        let ran = |seed| run(kept, seed, false).map_err(|error| format!("seed {seed}: {error}"));
        let reports: Result<Vec<StateReport>, String> = seeds.clone().map(ran).collect();
        let missed = (0..20).filter(|seed| run(kept, *seed, true).is_err()).count();
        let again = run(kept, first + 7, false);
        let _ = std::panic::take_hook();
        let reports = reports.unwrap_or_else(|error| panic!("{kept:?}, {error}"));
        let sum = |count: fn(&StateReport) -> u64| reports.iter().map(count).sum::<u64>();
        assert!(sum(|report| report.changes) > 10 * count, "{kept:?}");
        assert!(sum(|report| report.ends) > 3 * count, "{kept:?}");
        assert!(sum(|report| report.cuts) > 2 * count, "{kept:?}");
        assert!(sum(|report| report.told) > 20 * count, "{kept:?}");
        assert!(sum(|report| report.harmless) > count, "{kept:?}");
        assert_eq!(again, Ok(reports[7]), "the same seed is the same history");
        assert!(
            missed > 10,
            "{kept:?}: a server that forgets its files is found out {missed} times"
        );
    }
}
