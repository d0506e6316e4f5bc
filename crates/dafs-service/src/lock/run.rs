//! LOCK, LOCKT and LOCKU.

use super::ranges::Locked;
use super::{LockConflict, LockKind, LockOwner, LockRequest, LockState, Range};
use crate::client::{ClientKey, ClientKind};
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::index::{Held, Life};
use crate::limits::{
    LOCK_RANGES_MAX, LOCK_RANGES_PER_CLIENT_MAX, LOCK_RANGES_PER_FILE_MAX, OWNER_BYTES_MAX,
};
use crate::open::{Clock, OpenState};
use crate::state::{StateId, StateRef};
use crate::table::{Blocked, Ended, FileState, StateTable};
use crate::{Caller, Result, Service};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use thiserror::Error;

/// Why a lock was not had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LockError {
    /// This lock is in the way.
    #[error("another owner has locked the range")]
    Denied(LockConflict),
    /// Everything else.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Who locks, found.
enum Owner {
    Existing(Arc<LockState>),
    New(Arc<OpenState>),
}

impl Owner {
    fn open(&self) -> &Arc<OpenState> {
        match self {
            Self::Existing(lock) => &lock.open,
            Self::New(open) => open,
        }
    }

    fn id(&self) -> Option<StateId> {
        match self {
            Self::Existing(lock) => Some(lock.id),
            Self::New(_) => None,
        }
    }
}

impl Service {
    /// Locks a range of bytes. Returns the lock's state-id with its new sequence number.
    ///
    /// # Errors
    /// `Denied` with the lock in the way; `Invalid` for a range that is none; `OpenMode` when the
    /// open does not allow what is locked for; `Grace`, `NoGrace`, `ReclaimBad`, `ReclaimConflict`;
    /// those of the state-id; `WouldWait` while a client whose lease is over is dispossessed.
    pub fn lock(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        request: &LockRequest<'_>,
    ) -> std::result::Result<StateRef, LockError> {
        let range = Range::new(request.offset, request.length)?;
        let (owner, name) = self.find_owner(caller, handle, &request.owner)?;
        match request.reclaim {
            true => self.check_reclaim(caller.client)?,
            false => self.check_new_state(caller.client)?,
        }
        let share = owner.open().share();
        let allowed = match request.kind {
            LockKind::Read => share.read,
            LockKind::Write => share.write,
        };
        if !allowed {
            return Err(ServiceError::OpenMode.into());
        }
        let clock = self.clock(caller);
        let mut denied = None;
        let locked = self.enter(caller, |table, ended| {
            denied = None;
            table.lock(caller, clock, &owner, &name, range, request, ended, &mut denied)
        });
        match denied {
            Some(_) if request.reclaim => Err(ServiceError::ReclaimConflict.into()),
            Some(conflict) => Err(LockError::Denied(conflict)),
            None => Ok(locked?),
        }
    }

    fn find_owner(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        owner: &LockOwner<'_>,
    ) -> Result<(Owner, Box<[u8]>)> {
        match *owner {
            LockOwner::Existing(state) => match self.held(caller, Some(handle), state)? {
                Held::Lock(lock) => {
                    let name = lock.owner.clone();
                    Ok((Owner::Existing(lock), name))
                }
                Held::Open(_) | Held::Delegation(_) => Err(ServiceError::BadStateId),
            },
            LockOwner::New { owner, .. } if owner.len() > OWNER_BYTES_MAX => {
                Err(ServiceError::Resource)
            }
            LockOwner::New { open, owner } => {
                Ok((Owner::New(self.open_state(caller, handle, open)?), owner.into()))
            }
            LockOwner::Open(open) => {
                let open = self.open_state(caller, handle, open)?;
                let name = open.owner().into();
                Ok((Owner::New(open), name))
            }
        }
    }

    /// Whether an owner of this client could lock a range now.
    ///
    /// # Errors
    /// `Denied` with the lock in the way; `Invalid` for a range that is none; the store's for the
    /// file; `Grace`; `WouldWait` while a client whose lease is over is dispossessed.
    pub fn lock_test(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        owner: &[u8],
        offset: u64,
        length: u64,
        kind: LockKind,
    ) -> std::result::Result<(), LockError> {
        let range = Range::new(offset, length)?;
        self.check_grace(caller.client)?;
        let key = self.namespace().export(handle)?.key(handle);
        let clock = self.clock(caller);
        let mut denied = None;
        self.enter(caller, |table, _| {
            denied = None;
            let Some(file) = table.files.get(&key) else { return Ok(()) };
            let own = file.lock_state_of(caller, owner).map(|lock| lock.id);
            denied = file.check_locks(range, kind, own, clock)?;
            Ok(())
        })?;
        denied.map_or(Ok(()), |conflict| Err(LockError::Denied(conflict)))
    }

    /// Unlocks a range of bytes, be it locked or not. The state-id is that of the lock, or of the
    /// open of a DAFS client, whose owner has the locks. Returns it with its new sequence number.
    ///
    /// # Errors
    /// `Invalid` for a range that is none; those of the state-id; `Resource` when a range would fall
    /// into two and there are too many.
    pub fn unlock(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        offset: u64,
        length: u64,
    ) -> Result<StateRef> {
        let range = Range::new(offset, length)?;
        let lock = match self.held(caller, Some(handle), state)? {
            Held::Lock(lock) => lock,
            Held::Open(open) if caller.client.kind() == ClientKind::Dafs => {
                match self.lock_state_under(&open) {
                    Some(lock) => lock,
                    // Nothing is locked.
                    None => return Ok(state),
                }
            }
            Held::Open(_) | Held::Delegation(_) => return Err(ServiceError::BadStateId),
        };
        let mut ended = Ended::default();
        let mut table = self.lock_table();
        lock.life.check()?;
        let client = caller.client.key();
        let splits = |file: &FileState| file.ranges.splits(range, lock.id);
        if table.files.get(&lock.open.key).is_some_and(splits) {
            table.admit_range(client, &lock.open.key)?;
        }
        if let Some(file) = table.files.get_mut(&lock.open.key) {
            let changed = file.ranges.clear(range, lock.id);
            table.count_ranges(client, changed.removed, changed.added);
        }
        let state = lock.changed();
        table.wake_waiters(&lock.open.key, &mut ended);
        drop(table);
        self.finish(ended);
        Ok(state)
    }
}

impl Service {
    /// The locks of the owner of an open, if it has had any.
    fn lock_state_under(&self, open: &Arc<OpenState>) -> Option<Arc<LockState>> {
        let table = self.lock_table();
        let file = table.files.get(&open.key)?;
        let own =
            |lock: &&Arc<LockState>| Arc::ptr_eq(&lock.open, open) && *lock.owner == *open.owner();
        file.lock_states.iter().find(own).cloned()
    }
}

impl FileState {
    fn lock_state_of(&self, caller: Caller<'_>, owner: &[u8]) -> Option<&Arc<LockState>> {
        self.lock_states
            .iter()
            .find(|lock| Arc::ptr_eq(&lock.open.client, caller.client) && *lock.owner == *owner)
    }

    /// The lock in the way, if there is one of a client that is alive; locks of clients whose lease
    /// is over give way.
    fn check_locks(
        &self,
        range: Range,
        kind: LockKind,
        own: Option<StateId>,
        clock: Clock,
    ) -> std::result::Result<Option<LockConflict>, Blocked> {
        let mut over = Vec::new();
        for Locked { range, kind, owner } in self.ranges.conflicts(range, kind, own) {
            let state = self.lock_states.iter().find(|lock| lock.id == *owner);
            // INVARIANT: ranges go with the state that owns them.
            let Some(state) = state else { continue };
            if clock.is_over(&state.open.client) {
                over.push(state.open.client.clone());
                continue;
            }
            return Ok(Some(LockConflict {
                offset: range.first,
                length: range.length(),
                kind: *kind,
                client: state.open.client.key(),
                owner: state.owner.clone(),
            }));
        }
        if over.is_empty() { Ok(None) } else { Err(Blocked::Expire(over)) }
    }
}

impl StateTable {
    /// Whether there is room for another range.
    fn admit_range(&self, client: ClientKey, key: &Handle) -> Result<()> {
        let held = self.by_client.get(&client).map_or(0, |holdings| holdings.ranges);
        let in_file = self.files.get(key).map_or(0, |file| file.ranges.len());
        if self.counts.ranges >= LOCK_RANGES_MAX
            || held >= LOCK_RANGES_PER_CLIENT_MAX
            || in_file >= LOCK_RANGES_PER_FILE_MAX
        {
            return Err(ServiceError::Resource);
        }
        Ok(())
    }

    /// Enters a lock, or says in `denied` which one is in the way.
    fn lock(
        &mut self,
        caller: Caller<'_>,
        clock: Clock,
        owner: &Owner,
        name: &[u8],
        range: Range,
        request: &LockRequest<'_>,
        ended: &mut Ended,
        denied: &mut Option<LockConflict>,
    ) -> std::result::Result<StateRef, Blocked> {
        Self::check_current(caller.client)?;
        let (open, key) = (owner.open(), owner.open().key);
        open.life.check()?;
        let Some(file) = self.files.get(&key) else {
            return Err(ServiceError::StaleStateId.into());
        };
        let known = match owner {
            Owner::Existing(lock) => {
                lock.life.check()?;
                Some(lock.clone())
            }
            Owner::New(_) => file.lock_state_of(caller, name).cloned(),
        };
        let own = owner.id().or(known.as_ref().map(|lock| lock.id));
        let conflict = file
            .check_locks(range, request.kind, own, clock)?
            .or_else(|| file.earlier_turn(caller, name, range, request.kind, own));
        if conflict.is_some() {
            *denied = conflict;
            if request.wait && !request.reclaim {
                self.add_waiter(caller, open, name, range, request.kind);
            }
            return Err(ServiceError::LocksHeld.into());
        }
        self.admit_range(caller.client.key(), &key)?;
        let lock = match known {
            Some(lock) => lock,
            None => {
                let id = self.admit_lock(caller.client.key())?;
                let lock = Arc::new(LockState {
                    id,
                    open: open.clone(),
                    owner: name.into(),
                    life: Life::default(),
                    seqid: AtomicU32::new(0),
                });
                self.enter_lock(&lock);
                lock
            }
        };
        self.drop_waiter(caller.client, &key, name, range);
        if let Some(file) = self.files.get_mut(&key) {
            let changed = file.ranges.set(range, request.kind, lock.id);
            self.count_ranges(caller.client.key(), changed.removed, changed.added);
        }
        // A lock for reading in place of one for writing lets others in.
        self.wake_waiters(&key, ended);
        Ok(lock.changed())
    }
}
