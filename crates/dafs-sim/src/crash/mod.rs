//! Worlds in which processes end and the power fails: one seed, one world.
//!
//! The shipped server over a disk that forgets what was not stable, and the shipped client with its
//! recovery. The server ends between any two of its effects on what outlives it and starts again;
//! clients end and come back as new instances; connections break, hosts stall and are cut off. In
//! the end everything that was answered has happened exactly once, everything else at most once.
//!
//! Invariants
//! * A world is one thread. Nothing in it reads a clock, an environment or a source of randomness
//!   but its seed.
//! * The same options give the same digest, or the same violation.

mod audit;
mod client;
mod model;
mod plan;
mod shrink;
mod world;

pub use plan::{CrashOptions, Danger};
pub use shrink::{Shrunk, shrink};
pub use world::{CrashFailure, CrashReport, check, run};

use crate::common::Common;
use model::log::Log;

/// Directories in which all clients have names.
pub(crate) const DIRECTORIES: u8 = 2;

/// What the clients of a world share.
pub(crate) struct Shared {
    pub(crate) common: Common,
    pub(crate) log: Log,
    /// Whether replies survive the end of the server.
    pub(crate) durable: bool,
    /// Operations started.
    pub(crate) started: u64,
    /// How often the server has ended.
    pub(crate) ends: u32,
    /// How often the power has failed.
    pub(crate) cuts: u32,
    /// Operations of which the server could not say any more whether they were done.
    pub(crate) in_doubt: u64,
    /// How often somebody could not reach the other for a while.
    pub(crate) silences: u32,
}
