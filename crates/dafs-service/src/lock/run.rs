//! LOCK, LOCKT and LOCKU.

use super::book::{Granted, LockHolder, Orphan, Verdict, Wish};
use super::broken::holder;
use super::durable::Ticket;
use super::ranges::Special;
use super::records::{LockChange, LockRecord};
use super::{LockConflict, LockExtras, LockKind, LockOwner, LockRequest, LockState, Locks, Range};
use crate::admit::Applicant;
use crate::client::{Client, ClientKind};
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::hosts::Host;
use crate::index::Held;
use crate::limits::OWNER_BYTES_MAX;
use crate::open::{Clock, OpenState};
use crate::state::{StateId, StateRef};
use crate::table::{Blocked, Ended, FileState, StateTable};
use crate::{Caller, Result};
use dafs_store::{StoreError, Wait};
use std::sync::Arc;
use thiserror::Error;

/// Why a lock was not granted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LockError {
    /// This lock conflicts.
    #[error("another owner has locked the range")]
    Denied(LockConflict),
    /// This lock conflicts, and its holder has failed. The data may be half changed, and is to be
    /// repaired under a lock for repair.
    #[error("a lock on the range is broken; its holder has failed")]
    Broken(LockConflict),
    /// Everything else.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// The owner of a lock, found.
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

/// A lock that was granted.
struct Entered {
    lock: Arc<LockState>,
    state: StateRef,
    /// The change to be made durable before the client is told.
    unwritten: Option<(Arc<Ticket>, Granted<StateId>)>,
}

/// The arguments of an attempt to lock.
struct Attempt<'a> {
    caller: Caller<'a>,
    clock: Clock,
    owner: &'a Owner,
    name: &'a [u8],
    me: Option<Arc<LockHolder>>,
    range: Range,
    request: &'a LockRequest<'a>,
    /// The result for a reclaim of a lock that is not an orphan.
    reclaim: Result<()>,
    in_grace: bool,
}

impl Locks {
    /// Locks a range of bytes. Returns the lock's state-id with its new sequence number.
    ///
    /// # Errors
    /// * `Denied` with the conflicting lock, `Broken` with one whose holder has failed.
    /// * `Invalid` for an invalid range, and for a repair that is not for writing or finds no
    ///   broken lock.
    /// * `LockRange` for a part of a persistent lock.
    /// * `OpenMode` when the open does not allow this kind.
    /// * `Grace`, `NoGrace`, `ReclaimBad`, `ReclaimConflict`, and those of the state-id.
    /// * `WouldWait` while the lease of an expired client is ended, and for each lock that is to be
    ///   durable.
    pub fn lock(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        request: &LockRequest<'_>,
    ) -> std::result::Result<StateRef, LockError> {
        let range = Range::new(request.offset, request.length)?;
        let (owner, name) = self.find_owner(caller, handle, &request.owner)?;
        let extras = request.extras;
        let me = holder(caller.client, &name);
        if me.is_none() && extras != LockExtras::default() {
            return Err(ServiceError::NotSupported.into());
        }
        self.check_recovery(caller, request)?;
        if extras.repair && (request.kind != LockKind::Write || request.wait || request.reclaim) {
            return Err(ServiceError::from(StoreError::Invalid).into());
        }
        let reclaim = match request.reclaim {
            true => self.clients.check_reclaim(caller.client),
            false => {
                self.clients.check_new_state(caller.client)?;
                Ok(())
            }
        };
        let share = owner.open().share();
        let allowed = match request.kind {
            LockKind::Read => share.read,
            LockKind::Write => share.write,
        };
        if !allowed {
            return Err(ServiceError::OpenMode.into());
        }
        let (clock, in_grace) = (self.state.clock(caller), self.clients.in_grace());
        let (owner, name) = (&owner, &*name);
        let attempt = Attempt { caller, clock, owner, name, me, range, request, reclaim, in_grace };
        let mut refused = None;
        let entered = self.conflicts.enter(caller, |table, ended| {
            refused = None;
            table.lock(&attempt, ended, &mut refused)
        });
        match refused {
            Some(LockError::Denied(_)) if request.reclaim => {
                Err(ServiceError::ReclaimConflict.into())
            }
            Some(LockError::Broken(conflict)) => Err(self.tell_broken(caller, conflict)),
            Some(refused) => Err(refused),
            None => {
                let state = self.settle(caller, entered?)?;
                self.begin_recovery(caller, request, owner.open(), attempt.me.as_deref())?;
                Ok(state)
            }
        }
    }

    /// Returns the error for a broken lock, as soon as its record is durable.
    fn tell_broken(&self, caller: Caller<'_>, conflict: LockConflict) -> LockError {
        if !self.lock_log.is_clean() {
            if caller.wait == Wait::Never {
                return ServiceError::WouldWait.into();
            }
            if let Err(error) = self.lock_log.flush(&*self.clients.records) {
                return error.into();
            }
        }
        LockError::Broken(conflict)
    }

    /// Makes a lock durable if necessary, or reverts it.
    fn settle(
        &self,
        caller: Caller<'_>,
        entered: Entered,
    ) -> std::result::Result<StateRef, LockError> {
        let Entered { lock, state, unwritten } = entered;
        let Some((ticket, granted)) = unwritten else { return Ok(state) };
        let written = self.lock_log.wait(&*self.clients.records, &ticket);
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        lock.set_busy(false);
        if written.is_err() {
            table.take_back(caller.client, &lock, granted, &mut ended);
        }
        drop(table);
        self.state.finish(ended);
        self.state.returned.notify_all();
        written?;
        Ok(state)
    }

    fn find_owner(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        owner: &LockOwner<'_>,
    ) -> Result<(Owner, Box<[u8]>)> {
        match *owner {
            LockOwner::Existing(state) => match self.state.held(caller, Some(handle), state)? {
                Held::Lock(lock) => {
                    let name = lock.owner.clone();
                    Ok((Owner::Existing(lock), name))
                }
                Held::Open(_) | Held::Delegation(_) | Held::Layout(_) => {
                    Err(ServiceError::BadStateId)
                }
            },
            LockOwner::New { owner, .. } if owner.len() > OWNER_BYTES_MAX => {
                Err(ServiceError::Resource)
            }
            LockOwner::New { open, owner } => {
                Ok((Owner::New(self.state.open_state(caller, handle, open)?), owner.into()))
            }
            LockOwner::Open(open) => {
                let open = self.state.open_state(caller, handle, open)?;
                let name = open.owner().into();
                Ok((Owner::New(open), name))
            }
        }
    }

    /// Checks if an owner of this client could lock a range now.
    ///
    /// # Errors
    /// * `Denied` with the conflicting lock, `Broken` with one whose holder has failed.
    /// * `Invalid` for an invalid range, `Grace`, and the store's for the file.
    /// * `WouldWait` while the lease of an expired client is ended.
    pub fn test(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        owner: &[u8],
        offset: u64,
        length: u64,
        kind: LockKind,
    ) -> std::result::Result<(), LockError> {
        let range = Range::new(offset, length)?;
        self.clients.check_grace(caller.client)?;
        let key = self.exports.namespace().export(handle)?.key(handle);
        let (clock, me) = (self.state.clock(caller), holder(caller.client, owner));
        let mut refused = None;
        self.conflicts.enter(caller, |table, _| {
            refused = None;
            let Some(file) = table.files.get(&key) else { return Ok(()) };
            let own = file.lock_state_of(caller, owner).map(|lock| lock.id);
            let wish = Wish { range, kind, own, me: me.as_deref(), repair: false };
            match file.decide(&wish, clock)? {
                Decision::Refused(error) => refused = Some(error),
                // A test breaks no lock, and need not cover whole locks.
                Decision::Breaks(orphan) => refused = Some(LockError::Denied(orphan.conflict())),
                Decision::Free | Decision::Part => {}
            }
            Ok(())
        })?;
        match refused {
            None => Ok(()),
            Some(LockError::Broken(conflict)) => Err(self.tell_broken(caller, conflict)),
            Some(error) => Err(error),
        }
    }

    /// Unlocks a range of bytes, locked or not. The state-id is that of the lock, or that of the
    /// open of a DAFS or NLM client, whose owner has the locks. Returns it with its new sequence number.
    ///
    /// # Errors
    /// * `Invalid` for an invalid range, `LockRange` for a part of a persistent lock, and those of
    ///   the state-id.
    /// * `Resource` when a range would be split and there are too many.
    /// * `WouldWait` when the change is to be durable.
    pub fn unlock(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        offset: u64,
        length: u64,
    ) -> Result<StateRef> {
        let range = Range::new(offset, length)?;
        let lock = match self.state.held(caller, Some(handle), state)? {
            Held::Lock(lock) => lock,
            Held::Open(open) if caller.client.kind().locks_by_open() => {
                match self.state_under(&open) {
                    Some(lock) => lock,
                    // The owner holds no lock.
                    None => return Ok(state),
                }
            }
            Held::Open(_) | Held::Delegation(_) | Held::Layout(_) => {
                return Err(ServiceError::BadStateId);
            }
        };
        self.unlock_range(caller, &lock, range)
    }

    fn unlock_range(
        &self,
        caller: Caller<'_>,
        lock: &Arc<LockState>,
        range: Range,
    ) -> Result<StateRef> {
        let whole = range == Range { first: 0, last: u64::MAX };
        self.layouts.refresh_size_before_unlock(caller, &lock.open.key)?;
        let changes = self.keep_changes(caller, lock, whole)?;
        let by = self.state.applicant(caller);
        let given_up = self.conflicts.enter(caller, |table, ended| {
            lock.life.check()?;
            if lock.is_busy() {
                return Err(Blocked::Recall(Vec::new()));
            }
            let Some(file) = table.files.get(&lock.open.key) else { return Ok(None) };
            let numbers = file.locks.kept_in(range, lock.id);
            let numbers = numbers.map_err(|_| ServiceError::LockRange)?;
            if file.locks.ranges.splits(range, lock.id) {
                table.admit_range(by, &lock.open.key)?;
            }
            if numbers.is_empty() {
                table.clear_range(caller.client, lock, range, ended);
                return Ok(None);
            }
            if caller.wait == Wait::Never {
                return Err(ServiceError::WouldWait.into());
            }
            lock.set_busy(true);
            let removed = numbers.iter().copied().map(LockChange::Remove).collect();
            Ok(Some((table.lock_log.put(removed, false), numbers)))
        })?;
        if let Some((ticket, numbers)) = given_up {
            // No other client gets the range before the record of its lock is removed, too.
            let written = self.lock_log.wait(&*self.clients.records, &ticket);
            // The records are removed, and the next start does not undo the changes any more.
            let kept = match &changes {
                Some(changes) if written.is_ok() => self.changes_kept(changes),
                _ => Ok(()),
            };
            self.end_unlock(caller, lock, range, &numbers, written.is_ok());
            written.and(kept)?;
        }
        Ok(lock.changed())
    }

    fn end_unlock(
        &self,
        caller: Caller<'_>,
        lock: &Arc<LockState>,
        range: Range,
        numbers: &[u64],
        written: bool,
    ) {
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        lock.set_busy(false);
        if written && lock.life.is_live() {
            table.clear_range(caller.client, lock, range, &mut ended);
            self.lock_log.remove_kept(caller.client.name(), numbers.len());
        } else if written {
            // The lease has ended meanwhile, but released locks do not become orphans.
            table.forget_orphans(caller.client.name(), &lock.open.key, numbers);
        }
        drop(table);
        self.state.finish(ended);
        self.state.returned.notify_all();
    }

    /// Releases the locks under an open that have records or undo logs, before the open is closed
    /// (DAFS O36).
    ///
    /// # Errors
    /// `WouldWait` when there are any and the caller may not wait. Those of the disk.
    pub(crate) fn give_up_kept(&self, caller: Caller<'_>, open: &Arc<OpenState>) -> Result<()> {
        let nothing = self.lock_log.kept() == 0 && self.state.writers.undo.is_empty();
        if caller.client.kind() != ClientKind::Dafs || nothing {
            return Ok(());
        }
        let Some(lock) = self.state_under(open) else { return Ok(()) };
        self.unlock_range(caller, &lock, Range { first: 0, last: u64::MAX }).map(drop)
    }

    /// Returns the lock state of the owner of an open, if it has one.
    pub(crate) fn state_under(&self, open: &Arc<OpenState>) -> Option<Arc<LockState>> {
        let table = self.state.lock();
        let file = table.files.get(&open.key)?;
        let own =
            |lock: &&Arc<LockState>| Arc::ptr_eq(&lock.open, open) && *lock.owner == *open.owner();
        file.lock_states.iter().find(own).cloned()
    }
}

/// The decision about a request, with the expired holders found.
enum Decision {
    Free,
    Refused(LockError),
    /// The request breaks this lock.
    Breaks(Orphan),
    Part,
}

impl FileState {
    fn lock_state_of(&self, caller: Caller<'_>, owner: &[u8]) -> Option<&Arc<LockState>> {
        self.lock_states
            .iter()
            .find(|lock| Arc::ptr_eq(&lock.open.client, caller.client) && *lock.owner == *owner)
    }

    fn lock_state(&self, id: StateId) -> Option<&Arc<LockState>> {
        self.lock_states.iter().find(|lock| lock.id == id)
    }

    /// Decides about a request. Locks of expired clients give way.
    fn decide(
        &self,
        wish: &Wish<'_, StateId>,
        clock: Clock,
    ) -> std::result::Result<Decision, Blocked> {
        let client = |id| self.lock_state(id).map(|lock| &lock.open.client);
        let lapsed = |id| client(id).is_none_or(|client| clock.is_over(client));
        Ok(match self.locks.decide(wish, lapsed) {
            Verdict::Free => Decision::Free,
            Verdict::Part => Decision::Part,
            Verdict::Breaks(orphan) => Decision::Breaks(orphan),
            Verdict::Broken(orphan) => Decision::Refused(LockError::Broken(orphan.conflict())),
            Verdict::NothingBroken => {
                Decision::Refused(ServiceError::from(StoreError::Invalid).into())
            }
            Verdict::Lapsed(ids) => {
                return Err(Blocked::Expire(ids.into_iter().filter_map(client).cloned().collect()));
            }
            Verdict::Denied(held) => match self.lock_state(held.owner) {
                Some(state) => Decision::Refused(LockError::Denied(LockConflict {
                    offset: held.range.first,
                    length: held.range.length(),
                    kind: held.kind,
                    client: state.open.client.key(),
                    owner: state.owner.clone(),
                })),
                // INVARIANT: ranges end with the state that owns them.
                None => Decision::Free,
            },
        })
    }
}

impl StateTable {
    /// Enters a lock, or sets `refused` to the reason why not.
    fn lock(
        &mut self,
        attempt: &Attempt<'_>,
        ended: &mut Ended,
        refused: &mut Option<LockError>,
    ) -> std::result::Result<Entered, Blocked> {
        let Attempt { caller, clock, owner, name, range, request, in_grace, .. } = *attempt;
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
        if known.as_ref().is_some_and(|lock| lock.is_busy()) {
            return Err(Blocked::Recall(Vec::new()));
        }
        let own = owner.id().or(known.as_ref().map(|lock| lock.id));
        let (kind, me) = (request.kind, attempt.me.as_deref());
        let wish = Wish { range, kind, own, me, repair: request.extras.repair };
        let decision = file.decide(&wish, clock)?;
        if matches!(decision, Decision::Free) {
            match request.reclaim {
                // A reclaimed lock was held before the restart. Its client may have more to
                // reclaim, and must not wait for the size of this file.
                true => self.check_held_back(&key)?,
                false => self.check_size_known(&key)?,
            }
        }
        if matches!(decision, Decision::Free) && self.must_undo(&key, me, request) {
            return Err(Blocked::Undo(key));
        }
        if matches!(decision, Decision::Free) && self.would_share_undone(&key, request) {
            *refused = Some(ServiceError::LockRange.into());
            return Err(ServiceError::LocksHeld.into());
        }
        let turn = || file.earlier_turn(caller, name, range, kind, own).map(LockError::Denied);
        *refused = match decision {
            Decision::Refused(error) => Some(error),
            Decision::Breaks(orphan) if request.reclaim => {
                Some(LockError::Denied(orphan.conflict()))
            }
            Decision::Breaks(_) if in_grace => return Err(ServiceError::Grace.into()),
            Decision::Breaks(_) if caller.wait == Wait::Never => {
                return Err(ServiceError::WouldWait.into());
            }
            Decision::Breaks(orphan) => {
                tracing::warn!("an orphaned lock is broken by a conflicting request");
                self.break_orphans(&key, |orphan| wish.breaks(orphan), ended);
                Some(LockError::Broken(orphan.conflict()))
            }
            Decision::Part => Some(ServiceError::LockRange.into()),
            Decision::Free if request.reclaim => None,
            Decision::Free => turn(),
        };
        if let Some(error) = refused {
            if request.wait && !request.reclaim && matches!(error, LockError::Denied(_)) {
                self.add_waiter(caller, open, name, range, kind);
            }
            return Err(ServiceError::LocksHeld.into());
        }
        let Some(file) = self.files.get(&key) else {
            return Err(ServiceError::StaleStateId.into());
        };
        let inherited = file.locks.inherited(&wish);
        if inherited.is_none() {
            // An orphaned lock of the owner itself proves that it held the range.
            attempt.reclaim?;
        }
        let special = self.special(request.extras, inherited);
        if special.is_some() && caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait.into());
        }
        if special.is_some() && !self.lock_log.has_room(caller.client) {
            return Err(ServiceError::Resource.into());
        }
        let by = Applicant { client: caller.client, reclaims: request.reclaim, clock };
        self.admit_range(by, &key)?;
        let lock = match known {
            Some(lock) => lock,
            None => {
                let id = self.admit_lock(by)?;
                let lock = LockState::new(id, open.clone(), name.into());
                self.enter_lock(&lock);
                lock
            }
        };
        self.drop_waiter(caller.client, &key, name, range);
        let wish = Wish { own: Some(lock.id), ..wish };
        let unwritten = self.grant_range(&key, &wish, &lock, special, attempt);
        // A lock for reading that replaces one for writing lets others in.
        self.wake_waiters(&key, ended);
        Ok(Entered { state: lock.changed(), lock, unwritten })
    }

    /// Returns the special properties of a requested lock, joined with those of the locks that it
    /// replaces.
    fn special(&self, extras: LockExtras, inherited: Option<Special>) -> Option<Special> {
        let persist = extras.persist || extras.repair;
        if !persist && inherited.is_none() {
            return None;
        }
        let number = self.lock_log.next();
        let LockExtras { autorecover, repair, .. } = extras;
        let asked = Special { number, persist, autorecover, repair };
        Some(inherited.map_or(asked, |inherited| asked.join(inherited)))
    }

    /// Enters a range that conflicts with no lock, and queues its record if it has one.
    fn grant_range(
        &mut self,
        key: &Handle,
        wish: &Wish<'_, StateId>,
        lock: &Arc<LockState>,
        special: Option<Special>,
        attempt: &Attempt<'_>,
    ) -> Option<(Arc<Ticket>, Granted<StateId>)> {
        let file = self.files.get_mut(key)?;
        let granted = file.locks.grant(wish, lock.id, special);
        let (removed, added) = (granted.changed.removed, granted.changed.added);
        self.count_ranges(attempt.caller.client, removed, added);
        let (special, holder) = (special?, attempt.me.clone()?);
        let orphan = Orphan { range: wish.range, kind: wish.kind, special, holder };
        let mut changes: Vec<_> = granted.numbers().map(LockChange::Remove).collect();
        let own = &orphan.holder.name;
        granted.former(own).for_each(|name| self.lock_log.remove_kept(name, 1));
        self.lock_log.add_kept(own, attempt.caller.client.host().host());
        changes.push(LockChange::Put(LockRecord::of(key, &orphan, false)));
        granted.repaired.iter().for_each(|_| self.guards.remove_broken(key));
        self.note_left(key);
        lock.set_busy(true);
        Some((self.lock_log.put(changes, false), granted))
    }

    /// Reverts a lock that could not be made durable.
    fn take_back(
        &mut self,
        client: &Client,
        lock: &Arc<LockState>,
        granted: Granted<StateId>,
        ended: &mut Ended,
    ) {
        let key = lock.open.key;
        if !lock.life.is_live() {
            // It has become an orphan meanwhile, and stays one: the records may say the same.
            return;
        }
        let name = lock.open.client.name();
        self.lock_log.remove_kept(name, 1);
        granted.former(name).for_each(|name| self.lock_log.add_kept(name, Host::Unknown));
        granted.repaired.iter().for_each(|_| self.guards.add_broken(&key));
        if !granted.repaired.is_empty() {
            ended.withdrawn.push(key);
        }
        let Some(file) = self.files.get_mut(&key) else { return };
        let changed = file.locks.revert(granted, lock.id);
        self.count_ranges(client, changed.removed, changed.added);
        self.note_left(&key);
        self.wake_waiters(&key, ended);
    }

    fn clear_range(
        &mut self,
        client: &Client,
        lock: &Arc<LockState>,
        range: Range,
        ended: &mut Ended,
    ) {
        let key = lock.open.key;
        let Some(file) = self.files.get_mut(&key) else { return };
        let changed = file.locks.ranges.clear(range, lock.id);
        self.count_ranges(client, changed.removed, changed.added);
        self.wake_waiters(&key, ended);
    }

    /// Forgets orphaned locks that their holder had released before.
    fn forget_orphans(&mut self, client: &[u8], key: &Handle, numbers: &[u64]) {
        let Some(file) = self.files.get_mut(key) else { return };
        let gone = numbers.iter().filter(|number| file.locks.forget_orphan(**number)).count();
        self.lock_log.remove_kept(client, gone);
        self.note_left(key);
        self.tidy(key);
    }
}
