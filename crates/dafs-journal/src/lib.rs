//! An append-only log of records that mean nothing here, made stable many at a time.
//!
//! Records go to a segment, a file of fixed size that is written in place. When it is full, what is
//! still of use is copied to the beginning of the next one (its checkpoint), and the old one goes.
//! At start [`Recovery::scan`] reads the newest complete checkpoint and what follows it.
//!
//! Nothing here reads a clock, draws a random number or starts a thread by itself: files are reached
//! through a [`Disk`], and what waits for them runs where [`Spawn`] says.
//!
//! Invariants
//! * Records are read back in the order in which they were appended, without gaps: a record is there
//!   only if all before it are.
//! * A record that was reported as stable is there after a loss of power, or the scan fails.
//! * A torn tail, which a crash leaves, is told apart from damage: what is missing is damage when a
//!   later record knows that it was stable, or when the system has not been down since. Behind the
//!   last record that is stable a confirmation knows that, unless the power fails before the system
//!   has written it by itself.
//! * A scan changes nothing. A log that cannot be read stays as it is, for somebody to look at.

#![forbid(unsafe_code)]

mod disk;
mod error;
mod files;
mod format;
mod limits;
mod log;
mod scan;
pub mod sim;
mod workers;

pub use disk::{Disk, Spawn};
pub use error::{LogFailed, ScanError};
pub use files::FileDisk;
pub use limits::{CHECKPOINT_BYTES_MAX, RECORD_BYTES_MAX, SEGMENT_BYTES};
pub use log::{Appended, Done, Log, Statistics};
pub use scan::Recovery;
pub use workers::{HeldJobs, Workers, hold_jobs};

/// Bytes that a record takes in a segment.
pub const fn record_bytes(payload_bytes: usize) -> usize {
    format::Record::room(payload_bytes)
}
