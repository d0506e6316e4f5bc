//! Worlds in which processes end and the power fails: one seed, one world.
//!
//! The shipped server over a disk that forgets what was not stable, and the shipped client with its
//! recovery. The server ends between any two of its effects on what outlives it and starts again;
//! clients end and come back as new instances; connections break, hosts stall and are cut off. In
//! the end everything that was answered has happened exactly once, everything else at most once.
//!
//! Vaults are files that are used under locks of every kind: a model of all that can be says of each
//! answer whether it is possible. One file has a fence, by which clients shut each
//! other out. [`exhaust`] ends a process at every place of a short world.
//!
//! Invariants
//! * A world is one thread. Nothing in it reads a clock, an environment or a source of randomness
//!   but its seed.
//! * The same options give the same digest, or the same violation.

mod audit;
mod client;
mod exhaust;
mod model;
mod plan;
mod shrink;
mod undo;
mod world;

pub use exhaust::exhaust;
pub use plan::{CrashOptions, Danger, EndAt};
pub use shrink::{Shrunk, shrink};
pub use world::{CrashFailure, CrashReport, check, run};

use crate::common::Common;
use crate::disk::SimDisk;
use crate::model::content::Tick;
use dafs_store::{FileId, Store};
use model::board::Board;
use model::gate::Gate;
use model::lease::LeaseBook;
use model::log::Log;
use model::vault::{Ask, Content, Holder, Told, Vault, VaultKind};

/// Directories in which all clients have names.
pub(crate) const DIRECTORIES: u8 = 2;

/// Files that are used under a lock.
pub(crate) const VAULTS: [VaultKind; 4] =
    [VaultKind::Plain, VaultKind::Persist, VaultKind::AutoRecovery, VaultKind::Both];

/// Files that are shared by right of delegations.
pub(crate) const BOARDS: usize = 2;

/// What the clients of a world share.
pub(crate) struct Shared {
    pub(crate) common: Common,
    pub(crate) log: Log,
    /// By the numbers of their names.
    pub(crate) vaults: Vec<Vault>,
    pub(crate) boards: Vec<Board>,
    pub(crate) leases: LeaseBook,
    pub(crate) gate: Gate,
    /// The disk, to see how long the fenced file is.
    disk: SimDisk,
    gate_file: FileId,
    pub(crate) lock_counts: LockCounts,
    pub(crate) danger: Danger,
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
    /// Changes of the fence.
    pub fences: u64,
    /// Appends of clients that were fenced.
    pub fenced: u64,
    /// Chains that came to their end.
    pub chains: u64,
    /// Transfers of batches that succeeded.
    pub transfers: u64,
    /// Transfers of batches that were taken back.
    pub taken_back: u64,
    /// Delegations had.
    pub delegations: u64,
    /// Recalls heard.
    pub recalls: u64,
    /// Reads of what was kept by right of a delegation.
    pub cached_reads: u64,
    /// Writes that were kept by right of a delegation.
    pub kept_writes: u64,
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
    /// Where the fenced file ends.
    fn gate_bytes(&self) -> u64 {
        self.disk.memory().getattr(&self.gate_file).map_or(0, |attr| attr.size)
    }

    /// A client has read a board between two times.
    fn look_at_board(
        &mut self,
        board: usize,
        times: (Tick, Tick),
        content: Content,
    ) -> Result<(), String> {
        let leases = &self.leases;
        let may_lose = |holder: Holder| leases.has_lapsed(holder.client);
        let seen = self.boards[board].read(times, content, may_lose);
        seen.map_err(|text| format!("board {board}: {text}"))
    }

    /// A client has a session.
    fn session_ready(&mut self, holder: Holder) {
        if self.leases.ready(holder) {
            self.gate.replaced(holder);
            self.vaults.iter_mut().for_each(|vault| vault.replaced(holder, &self.leases));
        }
    }
}
