//! Byte-range locks (RFC 8881 9.1 to 9.7, 18.10 to 18.12).
//!
//! Invariants
//! * Ranges of two owners do not overlap unless both are for reading. The check and the entry are
//!   one step under the table's lock.
//! * A lock state belongs to one owner, under one open, and ends with that open.
//! * Locks are advisory: they stop other locks, not I/O.
//! * A lock is not granted past an owner that came earlier, wants a conflicting lock, still polls
//!   (DAFS 9.2), and does not wait for a repair.

mod book;
mod broken;
mod durable;
#[cfg(test)]
mod exhaustive;
mod info;
mod ranges;
mod records;
mod run;
mod wait;

pub(crate) use book::LockBook;
pub use book::LockHolder;
pub(crate) use durable::LockLog;
pub use info::{LockInfo, LockStatus};
pub use records::{LockChange, LockRecord};
pub use run::LockError;
pub(crate) use wait::Waiter;

use crate::client::{ClientKey, Clients};
use crate::delegation::Delegations;
use crate::enter::{Conflicts, State};
use crate::error::ServiceError;
use crate::export::Exports;
use crate::index::Life;
use crate::layout::Layouts;
use crate::open::OpenState;
use crate::state::{StateId, StateRef, next_seqid};
use dafs_store::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// All byte-range locks, the records of the persistent ones and their undo logs.
pub struct Locks {
    pub(crate) exports: Arc<Exports>,
    pub(crate) state: Arc<State>,
    pub(crate) clients: Arc<Clients>,
    layouts: Arc<Layouts>,
    pub(crate) conflicts: Arc<Conflicts>,
    delegations: Arc<Delegations>,
    pub(crate) lock_log: Arc<LockLog>,
}

impl Locks {
    pub(crate) fn new(conflicts: Arc<Conflicts>, delegations: Arc<Delegations>) -> Self {
        let Conflicts { exports, state, clients, layouts, .. } = &*conflicts;
        let (exports, state) = (exports.clone(), state.clone());
        let (clients, layouts) = (clients.clone(), layouts.clone());
        let lock_log = state.lock().lock_log.clone();
        Self { exports, state, clients, layouts, conflicts, delegations, lock_log }
    }
}

/// The kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// A shared lock: others cannot lock for writing.
    Read,
    /// An exclusive lock: others cannot lock.
    Write,
}

impl LockKind {
    /// True if two locks of these kinds conflict.
    pub(crate) fn conflicts(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

/// The owner of a lock.
#[derive(Debug, Clone, Copy)]
pub enum LockOwner<'a> {
    /// An owner that may have no lock state for this file yet.
    New {
        /// The open under which to lock.
        open: StateRef,
        /// The owner's name, unique within the client.
        owner: &'a [u8],
    },
    /// The owner of this lock state.
    Existing(StateRef),
    /// The owner of this open: a DAFS client names open and lock by one state-id, which never
    /// changes (DAFS 4.1, 9.2).
    Open(StateRef),
}

/// A request for a lock.
#[derive(Debug, Clone, Copy)]
pub struct LockRequest<'a> {
    /// The owner.
    pub owner: LockOwner<'a>,
    /// First byte.
    pub offset: u64,
    /// Length in bytes. `u64::MAX` for all from `offset`.
    pub length: u64,
    /// For reading or writing.
    pub kind: LockKind,
    /// The client waits for the lock if it is denied (READW, WRITEW). An NFS client is notified
    /// when to retry. A DAFS client polls, and keeps its turn as long as it does.
    pub wait: bool,
    /// The client had the lock before the server's restart.
    pub reclaim: bool,
    /// The extra properties of the lock.
    pub extras: LockExtras,
}

/// Extra properties of a DAFS client's lock (DAFS 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockExtras {
    /// It outlives its holder's failure as a broken lock (PERSIST).
    pub persist: bool,
    /// Changes under the lock are undone when its holder fails (AUTORECOVERY).
    pub autorecover: bool,
    /// It replaces a broken lock (REPAIR, DAFS O34).
    pub repair: bool,
}

/// A conflicting lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockConflict {
    /// First byte.
    pub offset: u64,
    /// Length in bytes. `u64::MAX` for all from `offset`.
    pub length: u64,
    /// For reading or writing.
    pub kind: LockKind,
    /// The client that holds it.
    pub client: ClientKey,
    /// Its owner's name.
    pub owner: Box<[u8]>,
}

/// A range of bytes, both ends included. It is never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Range {
    /// Makes the range of an offset and a length of the protocol.
    ///
    /// # Errors
    /// `Invalid` for no bytes, or bytes beyond the largest offset (RFC 8881 18.10.3).
    pub(crate) fn new(offset: u64, length: u64) -> Result<Self, ServiceError> {
        let last = match length {
            u64::MAX => Some(u64::MAX),
            length => length.checked_sub(1).and_then(|more| offset.checked_add(more)),
        };
        let last = last.ok_or(ServiceError::Store(StoreError::Invalid))?;
        Ok(Self { first: offset, last })
    }

    pub(crate) fn length(self) -> u64 {
        if self.last == u64::MAX { u64::MAX } else { self.last - self.first + 1 }
    }

    pub(crate) fn contains(self, other: Range) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    pub(crate) fn overlaps(self, other: Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The locks of one owner on one file.
pub(crate) struct LockState {
    pub(crate) id: StateId,
    /// The open to which the locks belong.
    pub(crate) open: Arc<OpenState>,
    pub(crate) owner: Box<[u8]>,
    pub(crate) life: Life,
    /// Changed only under the table's lock.
    seqid: AtomicU32,
    /// A change of its locks is being made durable, and other changes wait for that. Changed only
    /// under the table's lock.
    busy: AtomicBool,
}

impl LockState {
    fn new(id: StateId, open: Arc<OpenState>, owner: Box<[u8]>) -> Arc<Self> {
        let (life, seqid, busy) = (Life::default(), AtomicU32::new(0), AtomicBool::new(false));
        Arc::new(Self { id, open, owner, life, seqid, busy })
    }

    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst)
    }

    fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::SeqCst);
    }

    pub(crate) fn seqid(&self) -> u32 {
        self.seqid.load(Ordering::SeqCst).max(1)
    }

    /// Returns the state-id after a change.
    fn changed(&self) -> StateRef {
        let seqid = next_seqid(self.seqid.load(Ordering::SeqCst));
        self.seqid.store(seqid, Ordering::SeqCst);
        StateRef { id: self.id, seqid }
    }
}
