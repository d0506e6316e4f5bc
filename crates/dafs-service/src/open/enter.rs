//! Opens in the table: the check for conflicts and the entry, in one step.

use super::key::{ShareKey, begins_to_exclude, check_key};
use super::{Inner, Modes, OpenClaim, OpenRequest, OpenState, RemoveMode, Share};
use crate::Caller;
use crate::admit::Applicant;
use crate::client::Client;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::index::Life;
use crate::nlm::stand_together;
use crate::table::{Blocked, Ended, FileState, StateTable};
use dafs_mem::Mutex;
use dafs_store::{OpenMode, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};

/// The delegations with which an operation conflicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Break {
    /// A read: conflicts with write delegations of others.
    Read,
    /// A change, or an open that denies reads: conflicts with all delegations of others.
    Change {
        /// The operation empties the file, so that the holder need not write back.
        truncate: bool,
    },
}

/// An open that is in the table and has no file yet.
pub(super) struct Reserved {
    pub(super) state: Arc<OpenState>,
    /// The share that the owner had before, when it had the file open.
    pub(super) before: Option<Before>,
    changes: u32,
}

/// The share of an open before its owner's next one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    share: Share,
    deny_delete: bool,
    share_key: Option<ShareKey>,
}

impl Reserved {
    /// True when no other open has joined, and no downgrade come, since the reservation. The caller
    /// holds the table's lock.
    pub(super) fn is_last_change(&self) -> bool {
        self.state.lock().changes == self.changes
    }
}

/// The time for a check of leases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) now_ns: u64,
    pub(crate) lease_ns: u64,
}

impl Clock {
    pub(crate) fn is_over(&self, client: &Client) -> bool {
        client.kind().has_lease() && client.idle_ns(self.now_ns) > self.lease_ns
    }
}

impl StateTable {
    /// Enters an open, or widens the owner's existing one.
    pub(super) fn reserve(
        &mut self,
        caller: Caller<'_>,
        clock: Clock,
        handle: Handle,
        key: Handle,
        request: &OpenRequest<'_>,
        ended: &mut Ended,
    ) -> Result<Reserved, Blocked> {
        Self::check_current(caller.client)?;
        let needs = request.needs();
        let mut own = None;
        // Holders of delegations open the file without the server, and without the key.
        let excludes = begins_to_exclude(self.files.get(&key), request.share_key);
        if let Some(file) = self.files.get(&key) {
            let removal =
                file.removing_checked > 0 || request.deny_delete && file.removing_unchecked > 0;
            if removal {
                // The file is about to lose its name. The client retries and sees the result.
                return Err(ServiceError::Store(StoreError::Busy).into());
            }
            let is_own = |open: &&Arc<OpenState>| {
                Arc::ptr_eq(&open.client, caller.client) && *open.owner == *request.owner
            };
            own = file.opens.iter().find(is_own).cloned();
            let is_beside = |open: &Arc<OpenState>| {
                own.as_ref().is_some_and(|own| Arc::ptr_eq(own, open))
                    || Arc::ptr_eq(&open.client, caller.client)
                        && stand_together(caller.client, request.owner, &open.owner)
            };
            check_share(file, is_beside, needs, clock)?;
            check_key(file, own.as_ref(), request.share_key, clock)?;
        }
        let change = needs.write || needs.deny_read || excludes;
        let truncate = request.truncates();
        let breaks = if change { Break::Change { truncate } } else { Break::Read };
        self.clear_delegations(&key, caller.client, breaks, clock, ended)?;
        if truncate {
            self.clear_layouts(&key, caller.client, clock, ended)?;
        } else if excludes {
            self.clear_returned(&key, caller.client)?;
        }
        self.check_held_back(&key)?;
        if let Some(state) = own {
            let mut inner = state.lock();
            let share = state.share();
            let (deny_delete, share_key) = (inner.deny_delete, inner.share_key);
            let before = Some(Before { share, deny_delete, share_key });
            state.set_share(share.union(request.share));
            inner.deny_delete |= request.deny_delete;
            state.set_key(&mut inner, ShareKey::join(share_key, request.share_key));
            inner.changes += 1;
            let changes = inner.changes;
            drop(inner);
            self.guard_open(&state);
            return Ok(Reserved { state, before, changes });
        }
        let reclaims = matches!(request.claim, OpenClaim::Previous(_));
        let id = self.admit_open(Applicant { client: caller.client, reclaims, clock })?;
        let state = Arc::new(OpenState {
            id,
            client: caller.client.clone(),
            handle,
            key,
            owner: request.owner.into(),
            uid: caller.cred.uid,
            life: Life::default(),
            share_bits: AtomicU8::new(request.share.bits()),
            strict_key: AtomicBool::new(request.share_key.is_some_and(|key| key.strict)),
            read_only: AtomicBool::new(false),
            has_grant: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                modes: Modes::default(),
                deny_delete: request.deny_delete,
                share_key: request.share_key,
                file: None,
                changes: 0,
                seqid: 0,
                guarded: false,
                grant: None,
            }),
        });
        self.enter_open(&state);
        self.guard_open(&state);
        Ok(Reserved { state, before: None, changes: 0 })
    }

    /// Undoes a reservation whose open failed in the store. If another open of the same owner has
    /// joined meanwhile, the share that it was told stays, and the close of both gives all back.
    pub(super) fn cancel(&mut self, reserved: &Reserved, ended: &mut Ended) {
        let mut inner = reserved.state.lock();
        if inner.changes != reserved.changes {
            return;
        }
        match reserved.before {
            Some(before) => {
                reserved.state.set_share(before.share);
                inner.deny_delete = before.deny_delete;
                reserved.state.set_key(&mut inner, before.share_key);
                drop(inner);
                self.guard_open(&reserved.state);
            }
            None => {
                drop(inner);
                self.release_open(&reserved.state, ended);
            }
        }
    }

    /// Counts an open in the guards while it denies something, or excludes callers without its key.
    pub(super) fn guard_open(&self, open: &OpenState) {
        let denies = open.share().denies() || open.has_strict_key();
        match (open.set_guarded(denies), denies) {
            (false, true) => self.guards.add(&open.key),
            (true, false) => self.guards.remove(&open.key),
            _ => {}
        }
    }

    /// Refuses an access without an open that an open denies, unless the caller may bypass denials,
    /// or that a strict share key excludes.
    pub(crate) fn check_anonymous(
        &self,
        key: &Handle,
        need: OpenMode,
        bypass: bool,
        clock: Clock,
    ) -> Result<(), Blocked> {
        let Some(file) = self.files.get(key) else { return Ok(()) };
        if !bypass {
            let access = Share { read: need.read, write: need.write, ..Share::default() };
            check_share(file, |_| false, access, clock)?;
        }
        check_key(file, None, None, clock)
    }

    /// Begins the removal of a name of a file, unless an open forbids it, or a delegation of
    /// another client has to be recalled first.
    pub(crate) fn begin_removal(
        &mut self,
        client: &Arc<Client>,
        key: Handle,
        mode: RemoveMode,
        clock: Clock,
        ended: &mut Ended,
    ) -> Result<(), Blocked> {
        if let Some(file) = self.files.get(&key) {
            let denies =
                |open: &&Arc<OpenState>| mode == RemoveMode::CheckOpen || open.lock().deny_delete;
            let deniers: Vec<_> = file.opens.iter().filter(denies).collect();
            if !deniers.is_empty() {
                return Err(expired_among(&deniers, clock, ServiceError::DeleteDenied));
            }
        }
        let breaks = Break::Change { truncate: false };
        self.clear_delegations(&key, client, breaks, clock, ended)?;
        self.clear_layouts(&key, client, clock, ended)?;
        let file = self.files.entry(key).or_default();
        match mode {
            RemoveMode::Unchecked => file.removing_unchecked += 1,
            RemoveMode::CheckOpen => file.removing_checked += 1,
        }
        Ok(())
    }

    pub(crate) fn end_removal(&mut self, key: &Handle, mode: RemoveMode) {
        if let Some(file) = self.files.get_mut(key) {
            match mode {
                RemoveMode::Unchecked => file.removing_unchecked -= 1,
                RemoveMode::CheckOpen => file.removing_checked -= 1,
            }
        }
        self.tidy(key);
    }
}

/// Refuses a share that conflicts with opens other than those beside it. Opens of expired clients
/// give way.
fn check_share(
    file: &FileState,
    is_beside: impl Fn(&Arc<OpenState>) -> bool,
    needs: Share,
    clock: Clock,
) -> Result<(), Blocked> {
    let conflicts = |open: &&Arc<OpenState>| open.share().conflicts(needs) && !is_beside(open);
    let conflicting: Vec<_> = file.opens.iter().filter(conflicts).collect();
    if conflicting.is_empty() {
        return Ok(());
    }
    Err(expired_among(&conflicting, clock, ServiceError::ShareDenied))
}

/// Returns the outcome for conflicting opens: an error if one belongs to a client that is alive,
/// else the clients whose lease has to end.
pub(super) fn expired_among(
    opens: &[&Arc<OpenState>],
    clock: Clock,
    error: ServiceError,
) -> Blocked {
    if opens.iter().any(|open| !clock.is_over(&open.client)) {
        return Blocked::Refused(error);
    }
    Blocked::Expire(opens.iter().map(|open| open.client.clone()).collect())
}
