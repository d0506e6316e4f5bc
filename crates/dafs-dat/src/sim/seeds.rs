//! The choice of worlds for a test.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Most worlds that a test looks at in one run.
const WORLDS_A_DAY_MAX: u64 = 1_000_000;

/// The seeds of `worlds` worlds, or of `worlds_long` if `DAFS_TEST_LONG` is set.
///
/// Each day has its own seeds. This prints the first one, and `DAFS_TEST_SEED` repeats a run that
/// began with it.
pub fn seeds_of_the_day(worlds: u64, worlds_long: u64) -> Range<u64> {
    let worlds = if std::env::var_os("DAFS_TEST_LONG").is_some() { worlds_long } else { worlds };
    let first = match std::env::var("DAFS_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("DAFS_TEST_SEED={seed} is no number")),
        Err(_) => {
            // A clock before 1970 counts as day 0.
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            time.as_secs() / DAY.as_secs() * WORLDS_A_DAY_MAX
        }
    };
    println!("{worlds} worlds from DAFS_TEST_SEED={first}");
    first..first + worlds
}
