//! Delegations for callers that cache content of files themselves, such as a mount whose kernel
//! does.
//!
//! Invariants
//! * A delegation is returned once: by [`ReadDelegation::give_back`], or without waiting when it is
//!   dropped.
//! * A caller is notified of a recall only through its [`Keeper`], and after
//!   [`ReadDelegation::hear`]. Until then it may cache nothing under the delegation.

use crate::attributes::FileHandle;
use crate::client::Client;
use crate::delegation::{DelegationHolder, DelegationKind, Granted, HeldAttributes};
use crate::error::Result;
use crate::file::{File, OPENS};
use crate::open::OpenOptions;
use dafs_wire::dafs::{self as wire, StateId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A holder that caches content of files under delegations. The client calls it on threads that do
/// nothing else, one call at a time for each delegation, without a lock of the client, so it may
/// use the client.
pub trait Keeper: Send + Sync {
    /// The server recalls the delegation of a file, because another client is about to change it,
    /// or because a process on the server's own host has. The keeper drops what it caches and then
    /// returns the delegation, within the lease; here or later.
    fn recalled(&self, file: &FileHandle);

    /// The delegation of a file is gone: others may have changed the file since.
    fn lost(&self, file: &FileHandle);
}

/// A read delegation: the server's promise to recall it before anybody else changes a file, its
/// attributes, or its names. Until then the holder may cache what it reads (DAFS 4.2). It outlives
/// the open file that it came with.
#[derive(Debug)]
pub struct ReadDelegation {
    client: Client,
    handle: FileHandle,
    state_id: StateId,
    /// Restarts of the server before it was granted.
    restarts: u64,
    /// Present while a keeper is notified of recalls.
    holder: Option<Arc<Holder>>,
    is_back: bool,
}

/// Forwards recalls and losses to the keeper.
struct Holder {
    keeper: Weak<dyn Keeper>,
    handle: FileHandle,
    client: Client,
    state_id: StateId,
}

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Holder({:?})", self.state_id)
    }
}

impl DelegationHolder for Holder {
    fn recall(&self, _truncate: bool) {
        match self.keeper.upgrade() {
            Some(keeper) => keeper.recalled(&self.handle),
            None => self.client.shared().leave_delegation(self.state_id),
        }
    }

    fn attributes(&self) -> Option<HeldAttributes> {
        // The server sends BC_GETATTR to holders of write delegations only.
        None
    }

    fn lost(&self) {
        if let Some(keeper) = self.keeper.upgrade() {
            keeper.lost(&self.handle);
        }
    }
}

impl Client {
    /// Opens a file that is known by its handle to read it, and takes the delegation that the
    /// server may grant with it. The first call makes the back-control channel, over which the
    /// server can recall it.
    ///
    /// # Errors
    /// As [`Client::open_handle`].
    pub fn open_delegated(&self, handle: &FileHandle) -> Result<(File, Option<ReadDelegation>)> {
        let options = OpenOptions::read().direct(true);
        let claim = wire::OpenClaim::Null { dir: *handle, path: wire::Path::new(&[]) };
        let owner = OPENS.fetch_add(1, Ordering::Relaxed);
        let restarts = self.shared().restarts_heard();
        let (mut file, granted) = self.open_granted(claim, None, &options, owner, true)?;
        // Reads still see the content of the client's own cache.
        file.enter_cache(None, &options);
        let Some(Granted { kind, state_id, recall }) = granted else { return Ok((file, None)) };
        let (client, handle) = (self.clone(), *file.handle());
        let (holder, is_back) = (None, false);
        let delegation = ReadDelegation { client, handle, state_id, restarts, holder, is_back };
        // A delegation that is recalled already is returned at once.
        let is_good = kind == DelegationKind::Read && !recall;
        Ok((file, is_good.then_some(delegation)))
    }

    /// The time from now on for which the server certainly keeps its promises to this client. It is
    /// zero when the server has not answered for too long, or when keepers have been slow to take
    /// notice of recalls: the holder then drops what it caches under delegations. It does so after
    /// a restart of the server as well ([`SessionStats::restarts`](crate::SessionStats::restarts)).
    pub fn promised(&self) -> Duration {
        let shared = self.shared();
        if shared.is_lease_in_doubt() { Duration::ZERO } else { shared.promised() }
    }
}

impl ReadDelegation {
    /// Registers a keeper for recalls; from now on content may be cached. False when the delegation
    /// is gone already.
    ///
    /// # Errors
    /// The end of the session; the thread could not be started.
    pub fn hear(&mut self, keeper: Weak<dyn Keeper>) -> Result<bool> {
        let (handle, client) = (self.handle, self.client.clone());
        let holder = Arc::new(Holder { keeper, handle, client, state_id: self.state_id });
        let weak: Weak<dyn DelegationHolder> =
            Arc::downgrade(&(holder.clone() as Arc<dyn DelegationHolder>));
        self.holder = Some(holder);
        self.client.shared().hold(self.state_id, weak)
    }

    /// True when content cached under it may be used now: the server has answered within the lease,
    /// keepers have taken notice of all recalls so far, and the server has not restarted since it
    /// granted this. A restarted server may have lost data that was not stable.
    pub fn is_good(&self) -> bool {
        let shared = self.client.shared();
        shared.is_in_lease() && shared.restarts_heard() == self.restarts
    }

    /// Returns the delegation. The holder has dropped all that it cached under it. A delegation
    /// that is gone is left alone.
    ///
    /// # Errors
    /// The server's answer. The delegation is gone in any case.
    pub fn give_back(mut self) -> Result<()> {
        self.is_back = true;
        self.client.return_delegation(self.state_id)
    }
}

impl Drop for ReadDelegation {
    fn drop(&mut self) {
        if !self.is_back {
            self.client.shared().leave_delegation(self.state_id);
        }
    }
}
