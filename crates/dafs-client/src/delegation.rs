//! Delegations: the server's promise to ask before anybody else changes a file (DAFS 4.2, 10.1).
//!
//! A caller that wants to cache data of a file asks for a delegation when it opens it, and
//! registers what was granted with [`Client::hold`]. The client returns a delegation without a
//! holder by itself.
//!
//! Invariants
//! * Each recall is passed to its holder once; without a holder the client returns the delegation
//!   here.
//! * Holders are called without a lock of the client held, so they may use the client. Each holder
//!   gets recalls and losses one at a time, in order, on a thread that does nothing else.

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

/// The caching that a delegation allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DelegationKind {
    /// Caching of reads: no other client writes meanwhile.
    Read,
    /// Caching of writes, too: no other client has the file open meanwhile.
    Write,
}

/// A delegation that came with an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) kind: DelegationKind,
    /// Its state-id for as long as it is held, also across restarts of the server.
    pub(crate) state_id: StateId,
    /// The server recalls it already.
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

/// The answer of a write delegation's holder to BC_GETATTR, in place of the server.
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
pub(crate) trait DelegationHolder: Send + Sync {
    /// The server recalls the delegation; with `truncate` because the file is about to be truncated
    /// to zero, so that dirty data need not be written. The holder writes back what it must and
    /// calls [`Client::return_delegation`], here or later, within the lease. It may block.
    fn recall(&self, truncate: bool);

    /// The attributes as the holder has them; `None` when it does not know them, and then the
    /// delegation is recalled. It must not block.
    fn attributes(&self) -> Option<HeldAttributes>;

    /// The delegation is gone and must not be returned: the session is over, or a restarted server
    /// did not grant it again. Others may have changed the file since.
    fn lost(&self);
}

impl Client {
    /// Starts to make the back-control channel, over which the server can call, for as long as this
    /// client lives; does not wait for it. The server grants delegations only over such a channel.
    pub(crate) fn listen(&self) -> Result<()> {
        self.shared().listen()
    }

    /// Registers the holder of a delegation; false when it is gone already, because the server
    /// recalled it meanwhile.
    ///
    /// # Errors
    /// The end of the session.
    pub(crate) fn hold(
        &self,
        granted: &Granted,
        holder: Weak<dyn DelegationHolder>,
    ) -> Result<bool> {
        self.shared().hold(granted.state_id, holder)
    }

    /// Returns a delegation (DELEGRETURN). All data that was cached under it has been written back.
    /// One that is gone, or is being returned, is left alone.
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

    /// True while the server certainly keeps its promises to this client: it has answered within
    /// the lease, and all holders have taken notice of its recalls. Otherwise content cached under
    /// a delegation must not be used.
    pub(crate) fn is_in_lease(&self) -> bool {
        self.shared().is_in_lease()
    }
}

#[cfg(test)]
mod tests;

/// The holders of a session's delegations.
#[derive(Default)]
pub(crate) struct Holders {
    by_name: FxHashMap<StateId, Weak<dyn DelegationHolder>>,
    /// Set once a first holder is registered.
    caller: Option<Arc<Caller>>,
    /// Notices that have not reached their holders, which may still rely on delegations that are
    /// gone.
    pending_notices: Arc<AtomicUsize>,
}

impl Holders {
    /// Adds a holder; the first one starts the thread that calls holders.
    pub(crate) fn insert(
        &mut self,
        name: StateId,
        holder: Weak<dyn DelegationHolder>,
        shared: &Arc<Shared>,
    ) -> io::Result<()> {
        if self.caller.is_none() {
            self.caller =
                Some(Caller::start(Arc::downgrade(shared), self.pending_notices.clone())?);
        }
        self.by_name.insert(name, holder);
        Ok(())
    }

    /// The number of notices on their way to holders, to be read without the lock.
    pub(crate) fn pending_notices(&self) -> &Arc<AtomicUsize> {
        &self.pending_notices
    }

    /// The age of the oldest notice that its holder has not taken.
    pub(crate) fn oldest_notice_age(&self) -> Duration {
        self.caller.as_ref().map_or(Duration::ZERO, |caller| caller.waiting())
    }

    pub(crate) fn remove(&mut self, name: StateId) {
        self.by_name.remove(&name);
    }

    pub(crate) fn get(&self, name: StateId) -> Option<Weak<dyn DelegationHolder>> {
        self.by_name.get(&name).cloned()
    }

    /// Queues a notice for the holder; false when there is none.
    pub(crate) fn tell(&mut self, name: StateId, news: DelegationNotice) -> bool {
        let holder = match news {
            DelegationNotice::Recall { .. } => self.get(name),
            DelegationNotice::Lost => self.by_name.remove(&name),
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

/// The notices that a holder gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DelegationNotice {
    Recall { truncate: bool },
    Lost,
}
