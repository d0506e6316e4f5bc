//! Worlds in which processes end and the power fails: one seed, one world.
//!
//! The shipped server runs over a disk that loses unsynced changes, and the shipped client runs
//! with its recovery. The server ends between any two of its persistent effects and restarts.
//! Clients end and come back as new instances. Connections break, hosts pause, and partitions cut
//! them off. In the end every answered operation has happened exactly once, every other one at most
//! once.
//!
//! Vaults are files that are used under locks of every kind. Their model keeps all possible states
//! and decides of each answer whether it is possible. One file has a fence, by which clients
//! exclude each other. [`exhaust`] ends a process at every place of a short world.
//!
//! Invariants
//! * A world is one thread. It reads no clock, no environment and no source of randomness but its
//!   seed.
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
use model::vault::{Answer, Ask, Content, Holder, Vault, VaultKind};

/// Directories in which all clients have names.
pub(crate) const DIRECTORIES: u8 = 2;

/// Files that are used under a lock.
pub(crate) const VAULTS: [VaultKind; 4] =
    [VaultKind::Plain, VaultKind::Persist, VaultKind::AutoRecovery, VaultKind::Both];

/// Files that are shared under delegations.
pub(crate) const BOARDS: usize = 2;

/// The state that the clients of a world share.
pub(crate) struct Shared {
    pub(crate) common: Common,
    pub(crate) log: Log,
    /// By the numbers of their names.
    pub(crate) vaults: Vec<Vault>,
    pub(crate) boards: Vec<Board>,
    pub(crate) leases: LeaseBook,
    pub(crate) gate: Gate,
    /// The disk, to see the size of the fenced file.
    disk: SimDisk,
    gate_file: FileId,
    pub(crate) lock_counts: LockCounts,
    pub(crate) danger: Danger,
    /// True if replies survive the end of the server.
    pub(crate) durable: bool,
    /// Operations started.
    pub(crate) started: u64,
    /// Number of the server's ends.
    pub(crate) ends: u32,
    /// Number of power failures.
    pub(crate) cuts: u32,
    /// Operations whose outcome the server no longer knew.
    pub(crate) in_doubt: u64,
}

/// The answers to visitors of vaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Locks granted.
    pub locked: u64,
    /// Locks denied because of another holder.
    pub denied: u64,
    /// Locks reported broken.
    pub broken: u64,
    /// Repairs begun.
    pub repaired: u64,
    /// Steps that found their open or lock gone.
    pub gone: u64,
    /// Changes of the fence.
    pub fences: u64,
    /// Appends of clients that were fenced.
    pub fenced: u64,
    /// Chains that completed.
    pub chains: u64,
    /// Transfers of batches that succeeded.
    pub transfers: u64,
    /// Transfers of batches that were cancelled before they were sent.
    pub taken_back: u64,
    /// Transfers of batches that the server has taken out.
    pub taken_out: u64,
    /// Delegations granted.
    pub delegations: u64,
    /// Recalls received.
    pub recalls: u64,
    /// Reads from a cache under a delegation.
    pub cached_reads: u64,
    /// Writes to a cache under a delegation.
    pub kept_writes: u64,
}

impl LockCounts {
    fn count(&mut self, ask: Ask, answer: Answer) {
        match (ask, answer) {
            (Ask::Repair, Answer::Ok) => self.repaired += 1,
            (Ask::Lock | Ask::LockWait, Answer::Ok) => self.locked += 1,
            (Ask::Lock | Ask::LockWait, Answer::Denied) => self.denied += 1,
            (Ask::Lock | Ask::LockWait, Answer::Broken) => self.broken += 1,
            (_, Answer::Gone) => self.gone += 1,
            _ => {}
        }
    }
}

impl Shared {
    /// The size of the fenced file.
    fn gate_bytes(&self) -> u64 {
        self.disk.memory().getattr(&self.gate_file).map_or(0, |attr| attr.size)
    }

    /// Notes a client's read of a board between two ticks.
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
