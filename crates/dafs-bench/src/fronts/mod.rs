//! Unmodified programs: gzip, reads and writes through a mount, copies of small files, and the cost of a
//! program's start under `dafs run`; and the cost of completion groups in programs that use the library.
//!
//! Invariants
//! * Compared cases run within one round, one after the other, on the same file system.
//! * Mounts are made in a mount namespace of their own: they are invisible outside, and end with
//!   it.

mod copies;
mod groups;
mod gzip;
mod mounted;
mod start;
mod ways;

pub(crate) use gzip::write_log;
pub(crate) use ways::{
    Front, MEMORY, OPTIMISTIC, ROOT, Site, Way, dafs, hold_mount, in_own_mounts, missing, output,
};

use crate::report::Report;
use crate::{Plan, database};
use anyhow::Result;

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    match missing() {
        Some(reason) => report.skip("fronts", &reason),
        None => in_own_mounts(|| {
            gzip::measure(plan, report)?;
            mounted::measure(plan, report)?;
            copies::measure(plan, report)?;
            start::measure(plan, report)
        })?,
    }
    groups::measure(plan, report)
}

/// Measures gzip alone.
pub(crate) fn measure_gzip(plan: &Plan, report: &mut Report) -> Result<()> {
    if let Some(reason) = missing() {
        report.skip("gzip", &reason);
        return Ok(());
    }
    in_own_mounts(|| gzip::measure(plan, report))
}

/// The part of a program's reads that needed no request.
pub(crate) fn hit_ratio(reads: u64, requests: u64) -> f64 {
    1.0 - requests.min(reads) as f64 / reads.max(1) as f64
}

/// Measures programs that read from memory that the server shows.
pub(crate) fn measure_optimistic(plan: &Plan, report: &mut Report) -> Result<()> {
    if let Some(reason) = missing() {
        report.skip("optimistic reads of programs", &reason);
        return Ok(());
    }
    in_own_mounts(|| {
        mounted::measure_optimistic(plan, report)?;
        database::measure_optimistic(plan, report)
    })
}
