//! The index from state-ids to state, in shards, so that reads and writes of many threads do not
//! contend for one lock.
//!
//! Invariants
//! * State in this index is in the table of files too, and enters both under that table's lock.
//!   Entries of revoked state other than layouts are the exception: they stay here alone until the
//!   client frees them.

use crate::delegation::DelegationState;
use crate::error::ServiceError;
use crate::layout::LayoutState;
use crate::limits::STATE_NUMBER_BITS;
use crate::lock::LockState;
use crate::open::OpenState;
use crate::state::{StateId, StateKind};
use crate::{Client, Handle, Result};
use dafs_mem::Mutex;
use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

const SHARDS: usize = 64;

/// The largest number of a state-id.
const NUMBER_MAX: u64 = (1 << STATE_NUMBER_BITS) - 1;

/// The state that a state-id names.
#[derive(Clone)]
pub(crate) enum Held {
    Open(Arc<OpenState>),
    Lock(Arc<LockState>),
    Delegation(Arc<DelegationState>),
    Layout(Arc<LayoutState>),
}

impl Held {
    pub(crate) fn kind(&self) -> StateKind {
        match self {
            Self::Open(_) => StateKind::Open,
            Self::Lock(_) => StateKind::Lock,
            Self::Delegation(_) => StateKind::Delegation,
            Self::Layout(_) => StateKind::Layout,
        }
    }

    pub(crate) fn id(&self) -> StateId {
        match self {
            Self::Open(open) => open.id(),
            Self::Lock(lock) => lock.id,
            Self::Delegation(delegation) => delegation.id,
            Self::Layout(layout) => layout.id,
        }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        match self {
            Self::Open(open) => &open.client,
            Self::Lock(lock) => &lock.open.client,
            Self::Delegation(delegation) => &delegation.client,
            Self::Layout(layout) => &layout.client,
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        match self {
            Self::Open(open) => open.handle(),
            Self::Lock(lock) => lock.open.handle(),
            Self::Delegation(delegation) => &delegation.handle,
            Self::Layout(layout) => &layout.handle,
        }
    }

    pub(crate) fn seqid(&self) -> u32 {
        match self {
            Self::Open(open) => open.seqid(),
            Self::Lock(lock) => lock.seqid(),
            // A delegation never changes.
            Self::Delegation(_) => 1,
            Self::Layout(layout) => layout.seqid(),
        }
    }

    pub(crate) fn life(&self) -> &Life {
        match self {
            Self::Open(open) => &open.life,
            Self::Lock(lock) => &lock.life,
            Self::Delegation(delegation) => &delegation.life,
            Self::Layout(layout) => &layout.life,
        }
    }
}

/// The validity of state: live, gone or revoked.
#[derive(Debug, Default)]
pub(crate) struct Life(AtomicU8);

const LIVE: u8 = 0;
const GONE: u8 = 1;
const REVOKED: u8 = 2;
const ADMIN_REVOKED: u8 = 3;

impl Life {
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.load(Ordering::SeqCst) {
            LIVE => Ok(()),
            REVOKED => Err(ServiceError::DelegRevoked),
            ADMIN_REVOKED => Err(ServiceError::AdminRevoked),
            _ => Err(ServiceError::StaleStateId),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.0.load(Ordering::SeqCst) == LIVE
    }

    pub(crate) fn end(&self) {
        self.0.store(GONE, Ordering::SeqCst);
    }

    pub(crate) fn revoke(&self, by_admin: bool) {
        self.0.store(if by_admin { ADMIN_REVOKED } else { REVOKED }, Ordering::SeqCst);
    }
}

/// All state-ids.
pub(crate) struct Index {
    instance: u64,
    last: AtomicU64,
    shards: Box<[Mutex<FxHashMap<StateId, Held>>]>,
}

impl Index {
    pub(crate) fn new(instance: u32) -> Self {
        Self {
            instance: u64::from(instance & 0x00ff_ffff),
            last: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Allocates a number that was never used. `None` when there are no more.
    pub(crate) fn next(&self) -> Option<StateId> {
        let number = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        (number <= NUMBER_MAX).then_some(StateId(self.instance << STATE_NUMBER_BITS | number))
    }

    fn shard(&self, id: StateId) -> MutexGuard<'_, FxHashMap<StateId, Held>> {
        let shard = &self.shards[id.0 as usize % SHARDS];
        shard.lock()
    }

    pub(crate) fn insert(&self, held: Held) {
        self.shard(held.id()).insert(held.id(), held);
    }

    pub(crate) fn remove(&self, id: StateId) {
        // Drops the removed entry after the shard's lock is released, because it may be the last
        // reference.
        let removed = self.shard(id).remove_and_shrink(&id);
        drop(removed);
    }

    /// Finds the state of a state-id, live or revoked.
    ///
    /// # Errors
    /// `StaleStateId` for a released one or one of an earlier run, else `BadStateId`.
    pub(crate) fn find(&self, id: StateId) -> Result<Held> {
        if let Some(held) = self.shard(id).get(&id) {
            return Ok(held.clone());
        }
        let last = self.last.load(Ordering::SeqCst).min(NUMBER_MAX);
        let other_run = self.is_of_another_run(id);
        let given_back = (1..=last).contains(&(id.0 & NUMBER_MAX));
        Err(if id != StateId::ONES && (other_run || given_back) {
            ServiceError::StaleStateId
        } else {
            ServiceError::BadStateId
        })
    }

    /// True if this run of the server cannot have issued it.
    pub(crate) fn is_of_another_run(&self, id: StateId) -> bool {
        id.0 >> STATE_NUMBER_BITS != self.instance
    }
}
