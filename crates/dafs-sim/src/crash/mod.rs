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
mod undo;
mod world;

pub use plan::{CrashOptions, Danger};
pub use shrink::{Shrunk, shrink};
pub use world::{CrashFailure, CrashReport, check, run};

use crate::common::Common;
use model::lease::LeaseBook;
use model::log::Log;
use model::vault::{Ask, Holder, Told, Vault, VaultKind};

/// Directories in which all clients have names.
pub(crate) const DIRECTORIES: u8 = 2;

/// Files that are used under a lock.
pub(crate) const VAULTS: [VaultKind; 4] =
    [VaultKind::Plain, VaultKind::Persist, VaultKind::AutoRecovery, VaultKind::Both];

/// What the clients of a world share.
pub(crate) struct Shared {
    pub(crate) common: Common,
    pub(crate) log: Log,
    /// By the numbers of their names.
    pub(crate) vaults: Vec<Vault>,
    pub(crate) leases: LeaseBook,
    pub(crate) lock_counts: LockCounts,
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

/// What visitors of vaults were told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Locks had.
    pub locked: u64,
    /// Locks that somebody else had.
    pub denied: u64,
    /// Locks that were told to be broken.
    pub broken: u64,
    /// Repairs begun.
    pub repaired: u64,
    /// Steps that found their open or lock gone.
    pub gone: u64,
}

impl LockCounts {
    fn count(&mut self, ask: Ask, told: Told) {
        match (ask, told) {
            (Ask::Repair, Told::Ok) => self.repaired += 1,
            (Ask::Lock | Ask::LockWait, Told::Ok) => self.locked += 1,
            (Ask::Lock | Ask::LockWait, Told::Denied) => self.denied += 1,
            (Ask::Lock | Ask::LockWait, Told::Broken) => self.broken += 1,
            (_, Told::Gone) => self.gone += 1,
            _ => {}
        }
    }
}

impl Shared {
    /// A client has a session.
    fn session_ready(&mut self, holder: Holder) {
        if self.leases.ready(holder) {
            self.vaults.iter_mut().for_each(|vault| vault.replaced(holder, &self.leases));
        }
    }
}
