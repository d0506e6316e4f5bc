//! Durable records of persistent locks (DAFS 9.3), which a restarted server reads.

use super::book::{LockHolder, Orphan};
use super::ranges::Special;
use super::{LockKind, Range};
use crate::handle::Handle;
use std::sync::Arc;

/// A persistent lock, held or broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRecord {
    /// The number of the lock in all runs of the server.
    pub number: u64,
    /// The file.
    pub handle: Handle,
    /// First byte.
    pub first: u64,
    /// Last byte.
    pub last: u64,
    /// For reading or writing.
    pub kind: LockKind,
    /// Changes under it are undone when its holder fails.
    pub autorecover: bool,
    /// It is held to repair the damage under a broken lock.
    pub repair: bool,
    /// Broken. Otherwise held, by a holder that may be gone.
    pub broken: bool,
    /// The holder, or the former one.
    pub holder: LockHolder,
}

/// A change of the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockChange {
    /// Writes it, in place of one with the same number.
    Put(LockRecord),
    /// Removes it, if it is there.
    Remove(u64),
}

impl LockRecord {
    pub(crate) fn of(key: &Handle, orphan: &Orphan, broken: bool) -> Self {
        let Orphan { range, kind, special, holder } = orphan;
        Self {
            number: special.number,
            handle: *key,
            first: range.first,
            last: range.last,
            kind: *kind,
            autorecover: special.autorecover,
            repair: special.repair,
            broken,
            holder: LockHolder::clone(holder),
        }
    }

    pub(crate) fn orphan(&self) -> Orphan {
        let Self { number, autorecover, repair, .. } = *self;
        Orphan {
            range: Range { first: self.first, last: self.last },
            kind: self.kind,
            special: Special { number, persist: true, autorecover, repair },
            holder: Arc::new(self.holder.clone()),
        }
    }
}
