//! Programs that know nothing of dafs: gzip, reads and writes through a mount, what it costs a program to
//! start under `dafs run`; and what completion groups cost the programs that use the library.
//!
//! Invariants
//! * What is compared runs within one round, one after the other, on the same file system.
//! * Mounts are made in a name space of their own, so that nothing is seen outside or left behind.

mod groups;
mod gzip;
mod mounted;
mod start;
mod ways;

pub(crate) use ways::{Front, MEMORY, ROOT, Site, Way, in_own_mounts, missing, output};

use crate::Plan;
use crate::report::Report;
use anyhow::Result;

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    match missing() {
        Some(reason) => println!("\nfronts: SKIPPED, {reason}"),
        None => in_own_mounts(|| {
            gzip::measure(plan, report)?;
            mounted::measure(plan, report)?;
            start::measure(plan, report)
        })?,
    }
    groups::measure(plan, report)
}
