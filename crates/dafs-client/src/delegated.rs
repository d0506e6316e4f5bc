//! Delegations for callers that keep content of files themselves, such as a mount whose kernel does.
//!
//! Invariants
//! * A delegation is given back once, whoever drops it: by [`ReadDelegation::give_back`], or without
//!   waiting when it is dropped.
//! * A caller hears of a recall only through its [`Keeper`], and after [`ReadDelegation::hear`]. Until
//!   then nothing may be kept by right of the delegation.

use crate::attributes::FileHandle;
use crate::client::Client;
use crate::delegation::{DelegationKind, Granted, HeldAttributes, Recalled};
use crate::error::Result;
use crate::file::{File, OPENS};
use crate::open::OpenOptions;
use dafs_wire::dafs::{self as wire, StateId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Who keeps content of files by right of delegations. It is called on threads that do nothing
/// else, one call at a time for each delegation, without a lock of the client, and may use the client.
pub trait Keeper: Send + Sync {
    /// The server wants the delegation of a file back, because somebody else is about to change it, or
    /// has, on the server's own host. What was kept is to be given up, and then the delegation, within
    /// the lease; here or later.
    fn recalled(&self, file: &FileHandle);

    /// The delegation of a file is gone: others may have changed the file since.
    fn lost(&self, file: &FileHandle);
}

/// The server's promise to ask before anybody else changes a file, its attributes, or its names: until
/// then what was read may be kept (DAFS 4.2). It outlives the open file that it came with.
#[derive(Debug)]
pub struct ReadDelegation {
    client: Client,
    handle: FileHandle,
    state_id: StateId,
    /// Restarts of the server before it was granted.
    restarts: u64,
    /// There while somebody hears of recalls.
    holder: Option<Arc<Holder>>,
    is_back: bool,
}

/// Passes on what the server wants.
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

impl Recalled for Holder {
    fn recall(&self, _truncate: bool) {
        match self.keeper.upgrade() {
            Some(keeper) => keeper.recalled(&self.handle),
            None => self.client.shared().leave_delegation(self.state_id),
        }
    }

    fn attributes(&self) -> Option<HeldAttributes> {
        // Nobody asks the holder of a read delegation.
        None
    }

    fn lost(&self) {
        if let Some(keeper) = self.keeper.upgrade() {
            keeper.lost(&self.handle);
        }
    }
}

impl Client {
    /// Opens a file that is known by its handle to read it, and takes the delegation that the server
    /// may grant with it. The first call makes the connection over which the server can recall it.
    ///
    /// # Errors
    /// As [`Client::open_handle`].
    pub fn open_delegated(&self, handle: &FileHandle) -> Result<(File, Option<ReadDelegation>)> {
        let options = OpenOptions::read().direct(true);
        let claim = wire::OpenClaim::Null { dir: *handle, path: wire::Path::new(&[]) };
        let owner = OPENS.fetch_add(1, Ordering::Relaxed);
        let restarts = self.shared().restarts_heard();
        let (mut file, granted) = self.open_granted(claim, None, &options, owner, true)?;
        // What the client's own cache has of the file is still seen.
        file.enter_cache(None, &options);
        let Some(Granted { kind, state_id, recall }) = granted else { return Ok((file, None)) };
        let (client, handle) = (self.clone(), *file.handle());
        let (holder, is_back) = (None, false);
        let delegation = ReadDelegation { client, handle, state_id, restarts, holder, is_back };
        // What is wanted back already goes back at once.
        let is_good = kind == DelegationKind::Read && !recall;
        Ok((file, is_good.then_some(delegation)))
    }

    /// How long the server keeps its promises to this client for certain, from now on. Zero when it has
    /// not answered for too long, or keepers have not heard for long what it has to say: what is kept by
    /// right of a delegation is to be given up then. After a restart of the server as well
    /// ([`SessionStats::restarts`](crate::SessionStats::restarts)).
    pub fn promised(&self) -> Duration {
        let shared = self.shared();
        if shared.is_hard_of_hearing() { Duration::ZERO } else { shared.promised() }
    }
}

impl ReadDelegation {
    /// Lets a keeper hear of recalls; from now on content may be kept. False when the delegation is
    /// gone already.
    ///
    /// # Errors
    /// The end of the session; there is no thread.
    pub fn hear(&mut self, keeper: Weak<dyn Keeper>) -> Result<bool> {
        let (handle, client) = (self.handle, self.client.clone());
        let holder = Arc::new(Holder { keeper, handle, client, state_id: self.state_id });
        let weak: Weak<dyn Recalled> = Arc::downgrade(&(holder.clone() as Arc<dyn Recalled>));
        self.holder = Some(holder);
        self.client.shared().hold(self.state_id, weak)
    }

    /// Whether what is kept by right of it may be used now: the server has answered within the lease,
    /// nothing has been heard from it that keepers have not heard, and it is the run of it that
    /// granted this. A new one may have lost what the former had not made stable.
    pub fn is_good(&self) -> bool {
        let shared = self.client.shared();
        shared.is_in_lease() && shared.restarts_heard() == self.restarts
    }

    /// Gives it back. Nothing is kept any more by right of it. One that is gone is left alone.
    ///
    /// # Errors
    /// The server's answer. It is gone in any case.
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
