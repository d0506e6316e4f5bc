//! An append-only log of opaque records, with group commit.
//!
//! Records go to a segment, a file of fixed size that is written in place. When a segment is full,
//! the live records are copied to the beginning of the next one (its checkpoint), and the old one
//! is removed. At start [`Recovery::scan`] reads the newest complete checkpoint and what follows
//! it.
//!
//! This crate reads no clock, draws no random number and starts no thread by itself. It reaches
//! files through a [`Disk`], and jobs that wait for files run where [`Spawn`] says.
//!
//! Invariants
//! * Records are read back in the order in which they were appended, without gaps: a record is read
//!   only if all before it are.
//! * A record that was reported as stable is read back after a loss of power, or the scan fails.
//! * A torn tail, the effect of a crash, is distinguished from damage. A missing record is damage
//!   when a later record knows that it was stable, or when the system has not rebooted since. A
//!   confirmation follows the last stable record, unless the power fails before the system has
//!   written it by itself.
//! * A scan changes no segment. A log that cannot be read stays unchanged, for the administrator to
//!   examine.

#![forbid(unsafe_code)]

mod disk;
mod error;
mod files;
mod format;
mod limits;
mod log;
mod scan;
pub mod sim;
mod turn;
mod workers;

pub use disk::{Disk, Spawn};
pub use error::{LogFailed, ScanError};
pub use files::FileDisk;
pub use limits::{CHECKPOINT_BYTES_MAX, RECORD_BYTES_MAX, SEGMENT_BYTES};
pub use log::{Appended, Done, Log, Statistics};
pub use scan::Recovery;
pub use workers::{HeldJobs, Workers, hold_jobs};

/// The space that a record takes in a segment, in bytes.
pub const fn record_bytes(payload_bytes: usize) -> usize {
    format::Record::room(payload_bytes)
}
