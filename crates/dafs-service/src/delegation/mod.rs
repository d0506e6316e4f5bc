//! Delegations: a client's right to work on a file without calls to the server (RFC 8881 10.2 to
//! 10.5).
//!
//! Invariants
//! * A write delegation conflicts with delegations and opens of other clients. Read delegations are
//!   compatible with each other and with opens that only read.
//! * An operation that conflicts with a delegation waits until it is returned or revoked, whatever
//!   front end it comes by. A client's own operations never conflict with its own delegation.
//! * A delegation is granted in one step with the check, and not while an operation is under way
//!   that would break it.
//! * A delegation that is not returned within a lease of its recall is revoked. The state-id of an
//!   NFS client stays known as revoked until the client frees it. A DAFS client cannot free one, so
//!   its state-id counts as freed at once.

mod attributes;
mod grant;
mod recall;

pub use attributes::AttrAnswer;

use crate::client::{Client, Clients};
use crate::enter::{Conflicts, State};
use crate::error::ServiceError;
use crate::export::Exports;
use crate::handle::Handle;
use crate::index::{Held, Life};
use crate::layout::Layouts;
use crate::state::{StateId, StateRef};
use crate::table::Ended;
use crate::{Caller, Result};
use attributes::Query;
use dafs_mem::Mutex;
use dafs_store::{OpenFile, OpenMode, Store};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, MutexGuard};

/// All delegations, and the questions to their holders.
pub struct Delegations {
    exports: Arc<Exports>,
    state: Arc<State>,
    clients: Arc<Clients>,
    layouts: Arc<Layouts>,
    conflicts: Arc<Conflicts>,
    /// Counts the attribute queries to holders of delegations.
    queries: AtomicU64,
}

impl Delegations {
    pub(crate) fn new(conflicts: Arc<Conflicts>) -> Self {
        let Conflicts { exports, state, clients, layouts, .. } = &*conflicts;
        let (exports, state) = (exports.clone(), state.clone());
        let (clients, layouts) = (clients.clone(), layouts.clone());
        Self { exports, state, clients, layouts, conflicts, queries: AtomicU64::new(1) }
    }
}

/// The kind of a delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DelegationKind {
    /// No other client changes the file.
    Read,
    /// No other client uses the file.
    Write,
}

impl DelegationKind {
    /// True for a write delegation.
    pub fn writes(self) -> bool {
        self == Self::Write
    }
}

/// The delegation that a client wants with an open (RFC 8881 18.16.3, RFC 9754).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Want {
    /// The kind.
    pub kind: WantKind,
    /// Grant the delegation instead of the open state, if it is granted (OPEN_XOR_DELEGATION).
    pub open_xor: bool,
    /// The holder may set the times of access and modification (DELEG_TIMESTAMPS).
    pub timestamps: bool,
}

/// The kind of delegation that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WantKind {
    /// As the server sees fit.
    #[default]
    NoPreference,
    /// A read delegation.
    Read,
    /// A write delegation.
    Write,
    /// Either kind.
    Any,
    /// None.
    None,
    /// None, and an earlier want is cancelled.
    Cancel,
}

/// A granted delegation, for the answer to its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delegation {
    /// Its state-id.
    pub state: StateRef,
    /// Its kind.
    pub kind: DelegationKind,
    /// The holder may set the times of access and modification.
    pub timestamps: bool,
    /// The holder must return it at once: it was reclaimed, and cannot be recalled without a back
    /// channel.
    pub recall: bool,
}

/// Why no delegation was granted (RFC 8881 18.16.3, why_no_delegation4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoDelegation {
    /// The client asked for none.
    NotWanted,
    /// Other clients use the file, or did so a moment ago.
    Contention,
    /// There is no room for more, or no back channel to recall it on.
    Resource,
    /// Objects of this type have no delegations.
    FileType,
    /// The client has a read delegation, and it cannot be upgraded.
    Upgrade,
    /// The client has a write delegation, and it cannot be downgraded.
    Downgrade,
    /// The client cancelled its want.
    Cancelled,
    /// The rules of the server allow none for this open or this client, whatever it asked for.
    Policy,
}

/// One delegation.
pub(crate) struct DelegationState {
    pub(crate) id: StateId,
    pub(crate) client: Arc<Client>,
    /// The handle of the file that its holder uses.
    pub(crate) handle: Handle,
    /// The key under which delegations on the file are compared.
    pub(crate) key: Handle,
    pub(crate) kind: DelegationKind,
    /// The user whose open it came with, as it claimed.
    pub(crate) uid: u32,
    /// The store that watches the file for changes that bypass the server.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) life: Life,
    inner: Mutex<Inner>,
}

struct Inner {
    file: Option<Arc<dyn OpenFile>>,
    /// When it was recalled first.
    recalled_ns: Option<u64>,
    /// The recall could not be delivered. It is sent again when there is a back channel, or at the
    /// next conflict.
    resend: bool,
    /// The last query to the holder.
    query: Option<Query>,
    /// Change attribute and size when it was granted.
    granted: (u64, u64),
    /// How often others were told that the holder has changed the file.
    looks: u64,
}

impl DelegationState {
    pub(crate) fn reference(&self) -> StateRef {
        StateRef { id: self.id, seqid: 1 }
    }

    /// Returns the store's file, if the delegation allows `need`.
    pub(crate) fn file(&self, need: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let inner = self.lock();
        self.life.check()?;
        if need.write && !self.kind.writes() {
            return Err(ServiceError::OpenMode);
        }
        inner.file.clone().ok_or(ServiceError::BadStateId)
    }

    pub(crate) fn is_recalled(&self) -> bool {
        self.lock().recalled_ns.is_some()
    }

    pub(crate) fn any_file(&self) -> Option<Arc<dyn OpenFile>> {
        self.lock().file.clone()
    }

    pub(crate) fn take_file(&self) -> Option<Arc<dyn OpenFile>> {
        self.lock().file.take()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Delegations {
    /// The file of a delegation.
    pub fn handle(&self, state: StateId) -> Option<Handle> {
        match self.state.index.find(state).ok()? {
            Held::Delegation(delegation) => Some(delegation.handle),
            _ => None,
        }
    }

    /// Takes the return of a delegation (DELEGRETURN), on this file if one is given.
    ///
    /// # Errors
    /// `DelegRevoked`, and those of the state-id.
    pub fn take_back(
        &self,
        caller: Caller<'_>,
        handle: Option<&Handle>,
        state: StateRef,
    ) -> Result<()> {
        let Held::Delegation(delegation) = self.state.held(caller, handle, state)? else {
            return Err(ServiceError::BadStateId);
        };
        // Its holder locked the file locally, and others continue at its size.
        self.layouts.refresh_size_before_unlock(caller, &delegation.key)?;
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        delegation.life.check()?;
        table.release_delegation(&delegation, &mut ended);
        drop(table);
        self.state.finish(ended);
        Ok(())
    }
}
