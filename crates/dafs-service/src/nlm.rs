//! Locks and share reservations of NFSv3 clients, whose protocol has no opens (NLM, X/Open C702
//! chapter 10).
//!
//! Invariants
//! * Each owner that holds or awaits a lock on a file has an open of that file. So the locks exclude
//!   those of all other protocols, and delegations that would let others lock by themselves are
//!   recalled. The open ends with the owner's last lock.
//! * Such an open has no file of the store: reads and writes of NFSv3 name no open.

use crate::error::ServiceError;
use crate::handle::Handle;
use crate::limits::OPEN_TRIES_MAX;
use crate::lock::Range;
use crate::table::Ended;
use crate::{
    Caller, Client, ClientKind, LockError, LockExtras, LockKind, LockOwner, LockRequest, OpenClaim,
    OpenHow, OpenRequest, OpenState, OpenTarget, Result, Service, Share, Want,
};
use std::sync::Arc;

/// The first byte of the name of an owner of locks.
pub const NLM_LOCKS: u8 = b'l';

/// The first byte of the name of an owner of share reservations.
pub const NLM_SHARES: u8 = b's';

/// True if an open of one of these owners, both of one lock manager, stands beside one of the other.
/// A program may lock the file that it has reserved, and NLM does not say which of the owners of a
/// host's locks and reservations are one program.
pub(crate) fn stand_together(client: &Client, owner: &[u8], other: &[u8]) -> bool {
    let reserves = |owner: &[u8]| owner.first() == Some(&NLM_SHARES);
    client.kind() == ClientKind::Nlm && reserves(owner) != reserves(other)
}

/// A range of bytes that an owner locks.
#[derive(Debug, Clone, Copy)]
pub struct OwnerRange<'a> {
    /// The file.
    pub handle: &'a Handle,
    /// The owner's name, unique within its lock manager. It begins with [`NLM_LOCKS`].
    pub owner: &'a [u8],
    /// First byte.
    pub offset: u64,
    /// Length in bytes. `u64::MAX` for all from `offset`.
    pub length: u64,
}

impl Service {
    /// Locks a range. With `wait` an owner that is refused is notified when the range is free.
    ///
    /// # Errors
    /// Those of an open and of [`lock`](crate::Locks::lock).
    pub fn nlm_lock(
        &self,
        caller: Caller<'_>,
        place: &OwnerRange<'_>,
        kind: LockKind,
        wait: bool,
        reclaim: bool,
    ) -> std::result::Result<(), LockError> {
        let OwnerRange { handle, owner, offset, length } = *place;
        Range::new(offset, length)?;
        let (read, write) = (kind == LockKind::Read, kind == LockKind::Write);
        let share = Share { read, write, ..Share::default() };
        for _ in 0..OPEN_TRIES_MAX {
            let open = self.nlm_open(caller, handle, owner, share, reclaim)?;
            let owner = LockOwner::Open(open.id().into());
            let extras = LockExtras::default();
            let request = LockRequest { owner, offset, length, kind, wait, reclaim, extras };
            match self.locks.lock(caller, open.handle(), &request) {
                Ok(_) => return Ok(()),
                // A race: the owner's last unlock has ended the open.
                Err(LockError::Service(ServiceError::StaleStateId)) => {}
                Err(error) => {
                    self.close_unlocked(&open);
                    return Err(error);
                }
            }
        }
        Err(ServiceError::Delay.into())
    }

    /// Unlocks a range, locked or not.
    ///
    /// # Errors
    /// Those of [`unlock`](crate::Locks::unlock).
    pub fn nlm_unlock(&self, caller: Caller<'_>, place: &OwnerRange<'_>) -> Result<()> {
        let Some(open) = self.nlm_open_of(caller, place.handle, place.owner)? else {
            return Ok(());
        };
        let (state, OwnerRange { offset, length, .. }) = (open.id().into(), *place);
        match self.locks.unlock(caller, open.handle(), state, offset, length) {
            // A race: another unlock has ended the open.
            Ok(_) | Err(ServiceError::StaleStateId) => {}
            Err(error) => return Err(error),
        }
        self.close_unlocked(&open);
        Ok(())
    }

    /// Ends the wait of an owner for a range. Returns false if it does not wait.
    ///
    /// # Errors
    /// `Invalid` for an invalid range, and those of the handle.
    pub fn nlm_cancel(&self, caller: Caller<'_>, place: &OwnerRange<'_>) -> Result<bool> {
        let range = Range::new(place.offset, place.length)?;
        let open = self.nlm_open_of(caller, place.handle, place.owner)?;
        let Some(open) = open else { return Ok(false) };
        let waited = self.state.lock().cancel_wait(caller.client, &open.key, open.owner(), range);
        self.close_unlocked(&open);
        Ok(waited)
    }

    /// Reserves access to a file for an owner, whose name begins with [`NLM_SHARES`], and denies access
    /// to others.
    ///
    /// # Errors
    /// Those of an open.
    pub fn nlm_share(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        owner: &[u8],
        share: Share,
        reclaim: bool,
    ) -> Result<()> {
        self.nlm_open(caller, handle, owner, share, reclaim).map(drop)
    }

    /// Ends the reservations of an owner for a file, if it has any.
    ///
    /// # Errors
    /// Those of the handle.
    pub fn nlm_unshare(&self, caller: Caller<'_>, handle: &Handle, owner: &[u8]) -> Result<()> {
        match self.nlm_open_of(caller, handle, owner)? {
            Some(open) => match self.opens.close(caller, open.handle(), open.id()) {
                // A race: a copy of the request has ended it.
                Err(ServiceError::StaleStateId) => Ok(()),
                closed => closed,
            },
            None => Ok(()),
        }
    }

    fn nlm_open(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        owner: &[u8],
        share: Share,
        reclaim: bool,
    ) -> Result<Arc<OpenState>> {
        let request = OpenRequest {
            target: OpenTarget::Handle(handle),
            claim: if reclaim { OpenClaim::Previous(None) } else { OpenClaim::New },
            owner,
            share,
            deny_delete: false,
            share_key: None,
            how: OpenHow::Existing,
            want: Want::default(),
        };
        self.opens.open(caller, &request).map(|opened| opened.state)
    }

    /// Returns the open of an owner, if it has one.
    fn nlm_open_of(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        owner: &[u8],
    ) -> Result<Option<Arc<OpenState>>> {
        let key = self.namespace().export(handle)?.key(handle);
        let own = |open: &&Arc<OpenState>| {
            Arc::ptr_eq(&open.client, caller.client) && open.owner() == owner
        };
        let table = self.state.lock();
        Ok(table.files.get(&key).and_then(|file| file.opens.iter().find(own)).cloned())
    }

    /// Ends the open of an owner that neither holds nor awaits a lock.
    fn close_unlocked(&self, open: &Arc<OpenState>) {
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        if open.life.is_live() && table.is_unlocked(open) {
            table.release_open(open, &mut ended);
        }
        drop(table);
        self.state.finish(ended);
    }
}
