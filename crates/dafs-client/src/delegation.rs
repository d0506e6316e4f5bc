//! Delegations: the server's promise to ask before anybody else changes a file (DAFS 4.2, 10.1).
//!
//! Whoever wants to keep data of a file says so when it opens it, and registers what was granted with
//! [`Client::hold`]. A delegation without a holder is given back by itself.
//!
//! Invariants
//! * What the server wants back is told to its holder once, or given back here when there is none.
//! * Holders are called without a lock of the client held, so they may use the client. Recalls and
//!   losses come one at a time for each holder, in order, on a thread that does nothing else.

use crate::client::Client;
use crate::driver::Shared;
use crate::error::Result;
use dafs_wire::dafs::{DelegReturn, Delegation, OpenReply, Reply, Request, StateId, Time};
use rustc_hash::FxHashMap;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

mod caller;

use caller::{Caller, Notice};

/// What a delegation allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DelegationKind {
    /// To keep what was read: nobody writes meanwhile.
    Read,
    /// To keep what is written, too: nobody else has the file open meanwhile.
    Write,
}

/// A delegation that came with an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) kind: DelegationKind,
    /// Its name for as long as it is held, also across restarts of the server.
    pub(crate) state_id: StateId,
    /// The server wants it back already.
    pub(crate) recall: bool,
}

impl Granted {
    /// The delegation that a reply to OPEN grants.
    pub(crate) fn of(reply: &OpenReply<'_>) -> Option<Self> {
        let (kind, state_id, recall) = match reply.delegation {
            Delegation::None => return None,
            Delegation::Read { state_id, recall, .. } => (DelegationKind::Read, state_id, recall),
            Delegation::Write { state_id, recall, .. } => (DelegationKind::Write, state_id, recall),
        };
        Some(Self { kind, state_id, recall })
    }
}

/// What the holder of a write delegation says of the file in place of the server (BC_GETATTR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldAttributes {
    /// Differs from the server's when there is data that the server has not.
    pub(crate) change: u64,
    /// In bytes.
    pub(crate) size: u64,
    /// When the data changed last, if it has not reached the server.
    pub(crate) modified: Option<Time>,
}

/// The holder of a delegation.
pub(crate) trait Recalled: Send + Sync {
    /// The server wants it back; with `truncate` because the file is about to be cut to nothing, so
    /// data that has not been written need not be. The holder writes what it must and calls
    /// [`Client::return_delegation`], here or later, within the lease. It may block.
    fn recall(&self, truncate: bool);

    /// The attributes as the holder has them; `None` when it does not know, and then the delegation is
    /// recalled. It must not block.
    fn attributes(&self) -> Option<HeldAttributes>;

    /// The delegation is gone and nothing is to be returned: the session is over, or a server that
    /// has restarted did not grant it again. Others may have changed the file since.
    fn lost(&self);
}

impl Client {
    /// Makes the connection over which the server can call, for as long as this client lives, without
    /// waiting for it. Only then are delegations granted.
    pub(crate) fn listen(&self) -> Result<()> {
        self.shared().listen()
    }

    /// Registers the holder of a delegation; false when it is gone already, because the server
    /// wanted it back meanwhile.
    ///
    /// # Errors
    /// The end of the session.
    pub(crate) fn hold(&self, granted: &Granted, holder: Weak<dyn Recalled>) -> Result<bool> {
        self.shared().hold(granted.state_id, holder)
    }

    /// Gives a delegation back. All data that was kept by right of it has been written. One that is
    /// gone, or on its way back, is left alone.
    ///
    /// # Errors
    /// The server's answer. The delegation is gone in any case.
    pub(crate) fn return_delegation(&self, state_id: StateId) -> Result<()> {
        if !self.shared().release(state_id)? {
            return Ok(());
        }
        let request = Request::DelegReturn(DelegReturn { state_id });
        self.ask(&request, |reply| matches!(reply, Reply::DelegReturn).then_some(()))
    }

    /// True while the server keeps its promises to this client for certain: it has answered within
    /// the lease, and all holders have heard what it had to say. What is kept by right of a delegation
    /// must not be believed otherwise.
    pub(crate) fn is_in_lease(&self) -> bool {
        self.shared().is_in_lease()
    }
}

#[cfg(test)]
mod tests;

/// The holders of a session's delegations.
#[derive(Default)]
pub(crate) struct Holders {
    by_name: FxHashMap<StateId, Weak<dyn Recalled>>,
    /// There once a holder has been.
    caller: Option<Arc<Caller>>,
    /// News that have not reached their holders; these may think that they hold what is gone.
    unheard: Arc<AtomicUsize>,
}

impl Holders {
    /// Adds one; starts the thread that calls it with the first.
    pub(crate) fn insert(
        &mut self,
        name: StateId,
        holder: Weak<dyn Recalled>,
        shared: &Arc<Shared>,
    ) -> io::Result<()> {
        if self.caller.is_none() {
            self.caller = Some(Caller::start(Arc::downgrade(shared), self.unheard.clone())?);
        }
        self.by_name.insert(name, holder);
        Ok(())
    }

    /// How much is on its way to holders, for a look without the lock.
    pub(crate) fn unheard(&self) -> &Arc<AtomicUsize> {
        &self.unheard
    }

    /// For how long a holder has not heard what there is for it.
    pub(crate) fn unheard_for(&self) -> Duration {
        self.caller.as_ref().map_or(Duration::ZERO, |caller| caller.waiting())
    }

    pub(crate) fn remove(&mut self, name: StateId) {
        self.by_name.remove(&name);
    }

    pub(crate) fn get(&self, name: StateId) -> Option<Weak<dyn Recalled>> {
        self.by_name.get(&name).cloned()
    }

    /// Tells the holder; false when there is none.
    pub(crate) fn tell(&mut self, name: StateId, news: News) -> bool {
        let holder = match news {
            News::Recall { .. } => self.get(name),
            News::Lost => self.by_name.remove(&name),
        };
        match (holder, &self.caller) {
            (Some(holder), Some(caller)) => {
                caller.push(Notice::new(name, holder, news));
                true
            }
            _ => false,
        }
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        if let Some(caller) = &self.caller {
            caller.stop();
        }
    }
}

impl std::fmt::Debug for Holders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Holders({})", self.by_name.len())
    }
}

/// What a holder is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Recall { truncate: bool },
    Lost,
}
