//! The use and the end of state-ids: I/O, CLOSE, OPEN_DOWNGRADE, FREE_STATEID, TEST_STATEID.
//!
//! Invariants
//! * A state-id is valid only for the client and the file that it was issued for. It gives a user
//!   of that client no more rights than the file does, because state-ids can be guessed.
//! * I/O takes one lock of a shard and one of the open, both for a few instructions.

use super::{Clock, OpenState, Opens, Share, ShareKey};
use crate::client::ClientKind;
use crate::enter::State;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::index::Held;
use crate::state::{StateKind, StateRef, check_seqid, next_seqid};
use crate::table::{Blocked, Ended};
use crate::{Break, Caller, Result};
use dafs_store::{AccessMask, OpenFile, OpenMode, StoreError};
use std::sync::Arc;

impl State {
    /// Returns the state of a state-id of this client, on this file if one is given.
    pub(crate) fn held(
        &self,
        caller: Caller<'_>,
        handle: Option<&Handle>,
        state: StateRef,
    ) -> Result<Held> {
        let found = self.index.find(state.id);
        let held = found.map_err(|error| match caller.client.is_gone() {
            true => ServiceError::Expired,
            false => error,
        })?;
        if !Arc::ptr_eq(held.client(), caller.client)
            || handle.is_some_and(|handle| handle != held.handle())
        {
            return Err(ServiceError::BadStateId);
        }
        held.life().check()?;
        if state.seqid != 0 {
            check_seqid(held.seqid(), state.seqid)?;
        }
        Ok(held)
    }

    /// Returns the open of a state-id that was issued to this client for this file.
    ///
    /// # Errors
    /// `StaleStateId` for a released one or one of an earlier run, `OldStateId` for an earlier
    /// sequence number, `AdminRevoked`, else `BadStateId`.
    pub fn open_state(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<StateRef>,
    ) -> Result<Arc<OpenState>> {
        match self.held(caller, Some(handle), state.into())? {
            Held::Open(open) => Ok(open),
            Held::Lock(_) | Held::Delegation(_) | Held::Layout(_) => Err(ServiceError::BadStateId),
        }
    }

    /// Returns the kind of a state-id of this client, on this file if one is given (TEST_STATEID).
    ///
    /// # Errors
    /// As `open_state`, and `DelegRevoked`.
    pub fn check_state(
        &self,
        caller: Caller<'_>,
        handle: Option<&Handle>,
        state: StateRef,
    ) -> Result<StateKind> {
        self.held(caller, handle, state).map(|held| held.kind())
    }
}

impl Opens {
    /// Returns a file to do I/O on: that of the open, of the open under a lock, or of the
    /// delegation. For a special state-id, the file is opened for this caller now. Then no open may
    /// deny the access, and other clients return their delegations first.
    ///
    /// # Errors
    /// Those of the state-id. `OpenMode`. Without an open `ShareDenied`, `KeyMismatch`, `Grace`,
    /// `WouldWait`, `Delay` and the store's.
    pub fn io_file(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<StateRef>,
        need: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        let state = state.into();
        if state.is_special() {
            return self.special_file(caller, handle, state, need);
        }
        let (uid, file) = self.file_of(caller, handle, state, need)?;
        if caller.client.kind() == ClientKind::Nfs && caller.cred.uid != uid {
            self.check_user(caller, handle, need)?;
        }
        Ok(file)
    }

    /// Returns the file of a state-id, and the user that it was opened for.
    fn file_of(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        need: OpenMode,
    ) -> Result<(u32, Arc<dyn OpenFile>)> {
        if need.write {
            // The export may have become read-only since the open.
            self.exports.namespace().export(handle)?.writable()?;
        }
        match self.state.held(caller, Some(handle), state)? {
            Held::Open(open) => Ok((open.uid, open.file(need)?)),
            Held::Lock(lock) => Ok((lock.open.uid, lock.open.file(need)?)),
            Held::Delegation(delegation) => Ok((delegation.uid, delegation.file(need)?)),
            Held::Layout(_) => Err(ServiceError::BadStateId),
        }
    }

    /// Checks that a user other than the one that opened a file may do I/O on it. The file's owner
    /// always may, and execute permission allows reads, because clients check the rights when a
    /// file is opened.
    fn check_user(&self, caller: Caller<'_>, handle: &Handle, need: OpenMode) -> Result<()> {
        let namespace = self.exports.namespace();
        let export = namespace.export(handle)?;
        let cred = export.map_cred(caller.cred);
        let (read, write) = (AccessMask::READ | AccessMask::EXECUTE, AccessMask::MODIFY);
        let granted = export.store().access(&cred, &handle.file, read | write)?;
        let allowed = |need: bool, right| !need || granted.intersects(right);
        if allowed(need.read, read) && allowed(need.write, write)
            || export.store().getattr(&handle.file)?.uid == cred.uid
        {
            return Ok(());
        }
        Err(StoreError::Access.into())
    }

    fn special_file(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        need: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        if caller.client.kind() == ClientKind::Stateless {
            return self.stateless_file(caller, handle, need).map(|found| found.file);
        }
        let namespace = self.exports.namespace();
        let export = namespace.export(handle)?;
        if need.write {
            export.writable()?;
        }
        self.clients.check_grace(caller.client)?;
        let bypass = state == StateRef::READ_BYPASS && !need.write;
        self.check_io(caller, &export.key(handle), need, bypass)?;
        let cred = export.map_cred(caller.cred);
        let file = export.store().open(&cred, &handle.file, need)?;
        Ok(self.state.writers.count(export.key(handle), need, file))
    }

    /// Checks that I/O without an open may go on: no open denies it (unless `bypass`), no strict
    /// share key excludes it, and no delegation of another client conflicts.
    ///
    /// # Errors
    /// `ShareDenied`, `KeyMismatch`, `WouldWait`, `Delay`.
    pub(crate) fn check_io(
        &self,
        caller: Caller<'_>,
        key: &Handle,
        need: OpenMode,
        bypass: bool,
    ) -> Result<()> {
        if need.write {
            self.state.guards.note_write(key, caller.now_ns);
        }
        if !self.state.guards.maybe_guarded(key) {
            return Ok(());
        }
        let clock = self.state.clock(caller);
        let breaks = if need.write { Break::Change { truncate: false } } else { Break::Read };
        self.conflicts.enter(caller, |table, ended| {
            table.check_anonymous(key, need, bypass, clock)?;
            table.clear_delegations(key, caller.client, breaks, clock, ended)?;
            if need.write { table.check_held_back(key) } else { Ok(()) }
        })
    }

    /// Checks that I/O without an open, which was allowed when its request arrived, still is. An open
    /// that has come since may deny it, or exclude callers without its share key.
    ///
    /// # Errors
    /// `ShareDenied`, `KeyMismatch`.
    pub fn check_again(&self, handle: &Handle, need: OpenMode) -> Result<()> {
        let namespace = self.exports.namespace();
        // A data server has no export of the file. Its metadata server knows the opens.
        let Ok(export) = namespace.export(handle) else { return Ok(()) };
        let key = export.key(handle);
        if !self.state.guards.maybe_guarded(&key) {
            return Ok(());
        }
        // The opens of a client whose lease is over count until the server has ended them.
        let clock = Clock { now_ns: 0, lease_ns: u64::MAX };
        match self.state.lock().check_anonymous(&key, need, false, clock) {
            Err(Blocked::Refused(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Ends an open, with the byte-range locks under it.
    ///
    /// # Errors
    /// Those of the state-id.
    pub fn close(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<StateRef>,
    ) -> Result<()> {
        let open = self.state.open_state(caller, handle, state)?;
        self.locks.give_up_kept(caller, &open)?;
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        // Of two closes in a race, the second fails here.
        open.life.check()?;
        table.release_open(&open, &mut ended);
        drop(table);
        self.state.finish(ended);
        Ok(())
    }

    /// Reduces access and denial of an open: for a DAFS client to any part of its share, for an NFS
    /// client to the union of some of its opens (RFC 8881 18.18.3). Returns the state-id with its
    /// new sequence number. Without `share_key` the open gives up its key. With a key that is not
    /// strict, a strict one becomes advisory, unless the export says otherwise.
    ///
    /// # Errors
    /// `Invalid` when `share` is not such a part, for a key where the open has none, or for a strict
    /// key where its own is not. `KeyMismatch` for another key, or without a key while another open
    /// excludes callers without it. Those of the state-id.
    pub fn downgrade(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<StateRef>,
        share: Share,
        share_key: Option<ShareKey>,
    ) -> Result<StateRef> {
        let open = self.state.open_state(caller, handle, state)?;
        // Under the table's lock, because shares are compared under it.
        let table = self.state.lock();
        open.life.check()?;
        let mut inner = open.lock();
        let within = inner.modes.within(share);
        let reachable = caller.client.kind() == ClientKind::Dafs || within.union() == share;
        if !(share.read || share.write) || !open.share().contains(share) || !reachable {
            return Err(StoreError::Invalid.into());
        }
        let kept = match (share_key, inner.share_key) {
            (None, None) => None,
            (None, Some(_)) if table.is_excluded_without_key(&open) => {
                return Err(ServiceError::KeyMismatch);
            }
            (None, Some(_)) => None,
            (Some(given), Some(own)) if given.key != own.key => {
                return Err(ServiceError::KeyMismatch);
            }
            (Some(given), Some(own)) if own.strict || !given.strict => {
                let given =
                    self.exports.namespace().export(handle)?.options().shared_keys.apply(given);
                Some(ShareKey { strict: own.strict && given.strict, ..own })
            }
            // A downgrade takes no key, and begins to exclude nobody.
            (Some(_), _) => return Err(StoreError::Invalid.into()),
        };
        open.set_key(&mut inner, kept);
        open.set_share(share);
        inner.modes = within;
        inner.changes += 1;
        inner.seqid = next_seqid(inner.seqid);
        let seqid = inner.seqid;
        drop(inner);
        table.guard_open(&open);
        drop(table);
        if !share.read {
            drop(open.take_grant());
        }
        Ok(StateRef { id: open.id, seqid })
    }

    /// Frees a state-id without state: that of a lock owner without ranges, or a revoked one
    /// (FREE_STATEID).
    ///
    /// # Errors
    /// `LocksHeld` for one that is in use. Those of the state-id.
    pub fn free(&self, caller: Caller<'_>, state: StateRef) -> Result<()> {
        let found = self.state.index.find(state.id);
        let held = found.map_err(|_| ServiceError::BadStateId)?;
        if !Arc::ptr_eq(held.client(), caller.client) {
            return Err(ServiceError::BadStateId);
        }
        // The holder of a revoked layout may not know its last sequence number.
        let current = check_seqid(held.seqid(), state.seqid);
        if current != Err(ServiceError::OldStateId) || held.life().is_live() {
            current?;
        }
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        if !held.life().is_live() {
            table.free_revoked(&held);
            return Ok(());
        }
        let Held::Lock(lock) = &held else { return Err(ServiceError::LocksHeld) };
        let file = table.files.get(&lock.open.key);
        if file.is_some_and(|file| file.locks.ranges.has_owner(lock.id)) {
            return Err(ServiceError::LocksHeld);
        }
        table.release_lock(lock, &mut ended);
        drop(table);
        self.state.finish(ended);
        Ok(())
    }
}
