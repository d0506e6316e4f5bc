//! Ends a process at every possible place in a short world, one place per run.

use super::plan::{CrashOptions, EndAt, Plan};
use super::world::{CrashFailure, check};
use dafs_service::durable::Durability;

/// Runs the worlds of a seed with one end each: of the server before each of its effects, and of
/// the first client before each step. Where replies are durable, the server's ends are run with a
/// power failure as well. The other faults of the plan are left out. Returns the number of worlds.
///
/// # Errors
/// The first world that fails.
pub fn exhaust(options: &CrashOptions) -> Result<u64, Box<CrashFailure>> {
    let server = |effects| EndAt::Server(effects, false);
    let power = |effects| EndAt::Server(effects, true);
    let client = |steps| EndAt::Client(steps + 1);
    let mut ends: Vec<&dyn Fn(u64) -> EndAt> = vec![&server, &client];
    if Plan::draw(options).durability == Durability::Power {
        ends.push(&power);
    }
    let mut worlds = 0;
    for end in ends {
        for place in 0.. {
            let (faults, end) = (Some(Vec::new()), Some(end(place)));
            let report = check(&CrashOptions { faults, end, ..options.clone() })?;
            worlds += 1;
            if !report.ended {
                break;
            }
        }
    }
    Ok(worlds)
}
