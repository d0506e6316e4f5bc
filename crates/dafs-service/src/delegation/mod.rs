//! Delegations: a client's right to work on a file without asking (RFC 8881 10.2 to 10.5).
//!
//! Invariants
//! * A write delegation stands alone among delegations and opens of other clients; read delegations
//!   stand beside each other and beside opens that only read.
//! * Nothing that a delegation rules out happens before it is returned or revoked, by whichever front
//!   door it comes. What a client does itself never conflicts with its own delegation.
//! * A delegation is granted in one step with the check, and not while an operation is under way
//!   that would break it.
//! * One that is not returned within a lease of its recall is revoked; its state-id says so until
//!   the client frees it.

mod attributes;
mod grant;
mod recall;

pub use attributes::AttrAnswer;

use crate::client::Client;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::index::{Held, Life};
use crate::state::{StateId, StateRef};
use crate::table::Ended;
use crate::{Caller, Result, Service};
use attributes::Query;
use dafs_store::{OpenFile, OpenMode, Store};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a delegation lets its holder do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DelegationKind {
    /// Nobody else changes the file.
    Read,
    /// Nobody else uses the file.
    Write,
}

impl DelegationKind {
    /// True for a write delegation.
    pub fn writes(self) -> bool {
        self == Self::Write
    }
}

/// Which delegation a client would like with an open (RFC 8881 18.16.3, RFC 9754).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Want {
    /// Which one.
    pub kind: WantKind,
    /// The delegation instead of the open state, if it is granted (OPEN_XOR_DELEGATION).
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
    /// Any.
    Any,
    /// None.
    None,
    /// None, and an earlier wish is taken back.
    Cancel,
}

/// A delegation as it is told to its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delegation {
    /// Its state-id.
    pub state: StateRef,
    /// What it allows.
    pub kind: DelegationKind,
    /// The holder may set the times of access and modification.
    pub timestamps: bool,
    /// It is to be returned at once: it was reclaimed, and cannot be recalled for want of a back
    /// channel.
    pub recall: bool,
}

/// Why no delegation was granted (RFC 8881 18.16.3, why_no_delegation4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoDelegation {
    /// The client asked for none.
    NotWanted,
    /// Others use the file, or did so a moment ago.
    Contention,
    /// There is no room for more, or no back channel to recall it on.
    Resource,
    /// Not for this type of object.
    FileType,
    /// The client has a read delegation, which does not become another.
    Upgrade,
    /// The client has a write delegation, which does not become another.
    Downgrade,
    /// The client took its wish back.
    Cancelled,
    /// Not for this open or this client, by the rules of the server; nothing the client asked for.
    Policy,
}

/// One delegation.
pub(crate) struct DelegationState {
    pub(crate) id: StateId,
    pub(crate) client: Arc<Client>,
    /// The file as its holder calls it.
    pub(crate) handle: Handle,
    /// The file as delegations are compared by.
    pub(crate) key: Handle,
    pub(crate) kind: DelegationKind,
    /// The user whose open it came with, as it said.
    pub(crate) uid: u32,
    /// Where the file is watched for changes by others than the server.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) life: Life,
    inner: Mutex<Inner>,
}

struct Inner {
    file: Option<Arc<dyn OpenFile>>,
    /// When it was recalled first.
    recalled_ns: Option<u64>,
    /// The recall could not be delivered; it is sent again when there is a way, or at the next
    /// conflict.
    resend: bool,
    /// What the holder was asked last.
    query: Option<Query>,
    /// Change attribute and size when it was granted.
    granted: (u64, u64),
    /// How often others were told that the holder has changed it.
    looks: u64,
}

impl DelegationState {
    pub(crate) fn reference(&self) -> StateRef {
        StateRef { id: self.id, seqid: 1 }
    }

    /// The store's file, if the delegation allows `need`.
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
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// Takes a delegation back (DELEGRETURN).
    ///
    /// # Errors
    /// `DelegRevoked`; those of the state-id.
    pub fn return_delegation(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
    ) -> Result<()> {
        self.take_back(caller, Some(handle), state)
    }

    /// The same, by the state-id alone (DAFS 6, DELEGRETURN).
    ///
    /// # Errors
    /// Those of the state-id.
    pub fn return_delegation_by_id(&self, caller: Caller<'_>, state: StateId) -> Result<()> {
        self.take_back(caller, None, state.into())
    }

    /// The file that a delegation is of.
    pub fn delegated(&self, state: StateId) -> Option<Handle> {
        match self.index.find(state).ok()? {
            Held::Delegation(delegation) => Some(delegation.handle),
            _ => None,
        }
    }

    fn take_back(
        &self,
        caller: Caller<'_>,
        handle: Option<&Handle>,
        state: StateRef,
    ) -> Result<()> {
        let Held::Delegation(delegation) = self.held(caller, handle, state)? else {
            return Err(ServiceError::BadStateId);
        };
        // Its holder locked the file without asking, and others go on where it ends.
        self.settle_before_unlock(caller, &delegation.key)?;
        let mut ended = Ended::default();
        let mut table = self.lock_table();
        delegation.life.check()?;
        table.release_delegation(&delegation, &mut ended);
        drop(table);
        self.finish(ended);
        Ok(())
    }
}
