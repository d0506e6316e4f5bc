//! The databases of state over a disk that loses, tears and rots.

use dafs_sim::state::{Kept, StateReport, run};

// One test, because the hook is the process's.
#[test]
fn what_is_stable_stays_and_damage_is_told() {
    let seeds = if std::env::var_os("DAFS_TEST_LONG").is_some() { 5_000 } else { 100 };
    for kept in [Kept::Clients, Kept::Fences] {
        // The database panics over pages that make no sense; that is told as damage.
        std::panic::set_hook(Box::new(|_| ()));
        let ran = |seed| run(kept, seed, false).map_err(|error| format!("seed {seed}: {error}"));
        let reports: Result<Vec<StateReport>, String> = (0..seeds).map(ran).collect();
        let missed = (0..20).filter(|seed| run(kept, *seed, true).is_err()).count();
        let again = run(kept, 7, false);
        let _ = std::panic::take_hook();
        let reports = reports.unwrap_or_else(|error| panic!("{kept:?}, {error}"));
        let sum = |count: fn(&StateReport) -> u64| reports.iter().map(count).sum::<u64>();
        assert!(sum(|report| report.changes) > 10 * seeds, "{kept:?}");
        assert!(sum(|report| report.ends) > 3 * seeds, "{kept:?}");
        assert!(sum(|report| report.cuts) > 2 * seeds, "{kept:?}");
        assert!(sum(|report| report.told) > 20 * seeds, "{kept:?}");
        assert!(sum(|report| report.harmless) > seeds, "{kept:?}");
        assert_eq!(again, Ok(reports[7]), "the same seed is the same history");
        assert!(
            missed > 10,
            "{kept:?}: a server that forgets its files is found out {missed} times"
        );
    }
}
