//! Guarded changes: changes of names and attributes without a record, on exports where other
//! changes have records, because their clients have no durable replies.
//!
//! After a restart, recovery decides by names and attributes if a logged change was executed. This
//! works only if no other client has changed the same since the intent. So a change without a
//! record takes the same change locks as one with a record, while it is executed.
//!
//! Invariants
//! * Guarded changes never wait for each other: they share all change locks.
//! * A guarded change goes on only when the log has, as durably as was promised, the ends of the
//!   logged changes that held its change locks before.
//! * A waiting change is notified within a bounded time, whatever becomes of the changes that it
//!   waits for.
//! * The end of a guarded change blocks no caller: another thread lets the changes behind it go on.

use super::change_locks::{ChangeLock, ChangeLocks, Ends, Hold, LockList};
use super::execution::Ending;
use super::intent;
use super::journal::{Journal, shielded, tell};
use super::{Change, Durability, Durable, Intended, LoggedChange, Notify};
use crate::error::ServiceError;
use crate::export::Export;
use crate::fence::Subject;
use crate::handle::Handle;
use crate::hosts::Host;
use crate::limits::{
    DURABLE_PRE_IMAGES_MAX, GUARD_WAIT_NS, GUARDED_CHANGES_MAX, GUARDED_CHANGES_SHARE_MAX,
};
use crate::{Caller, Result};
use dafs_store::Store;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A guarded change.
pub(super) struct Guard {
    whose: Whose,
    store: Arc<dyn Store>,
    locks: LockList,
    /// The name of the file that it empties.
    empties: Option<(Handle, Vec<u8>)>,
    /// That file, as of the last lookup of the name.
    emptied: Option<ChangeLock>,
    /// Called when its change locks are free, or the log is durable.
    waiting: Option<Notify>,
    /// Its change locks are free, and it waits for the log.
    has_locks: bool,
    /// The time when it is given up if it still waits.
    until_ns: u64,
}

impl Guard {
    /// True if it waits for its change locks and all of them are free.
    fn may_go_on(&self, number: u64, locks: &ChangeLocks) -> bool {
        self.waiting.is_some() && !self.has_locks && self.is_first(number, locks)
    }

    fn is_first(&self, number: u64, locks: &ChangeLocks) -> bool {
        let emptied = self.emptied.as_slice();
        locks.is_first(number, &self.locks) && locks.is_first(number, emptied)
    }
}

/// The owner of a guarded change, for its share. Client names are free to choose. A caller without
/// an address has made a session at least.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Host(Host),
    Client(u64),
}

impl Whose {
    fn of(caller: Caller<'_>) -> Self {
        match caller.subject {
            Subject::Nfs { host, .. } => Self::Host(host),
            Subject::Session(_) | Subject::Server => Self::Client(caller.client.key().0),
        }
    }
}

/// The guarded changes under way.
#[derive(Default)]
pub(super) struct Guards {
    all: FxHashMap<u64, Guard>,
    shares: FxHashMap<Whose, usize>,
}

impl Guards {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.all.contains_key(&number)
    }

    fn has_room_for(&self, whose: &Whose) -> bool {
        let share = self.shares.get(whose).copied().unwrap_or(0);
        self.len() < GUARDED_CHANGES_MAX && share < GUARDED_CHANGES_SHARE_MAX
    }

    fn insert(&mut self, number: u64, guard: Guard) {
        *self.shares.entry(guard.whose.clone()).or_default() += 1;
        self.all.insert(number, guard);
    }

    fn remove(&mut self, number: u64) -> Option<Guard> {
        let guard = self.all.remove(&number)?;
        if let Some(share) = self.shares.get_mut(&guard.whose) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&guard.whose);
            }
        }
        Some(guard)
    }
}

/// The state of a guarded change whose name locks are free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Free,
    /// It waits for the file that it empties, or was given up.
    Waits,
}

impl Journal {
    fn guard(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        change: &Change<'_>,
        locks: LockList,
        (whose, now_ns): (Whose, u64),
        ready: impl FnOnce() -> Notify,
    ) -> Result<Intended> {
        let mut ledger = self.lock();
        if !ledger.guards.has_room_for(&whose) {
            return Err(ServiceError::Delay);
        }
        ledger.next_op += 1;
        let number = ledger.next_op;
        let free = ledger.locks.enter(number, &locks);
        let empties = match *change {
            Change::Create { dir, name, .. } if change.empties() => Some((*dir, name.to_vec())),
            _ => None,
        };
        let mut ready = Some(ready);
        let waiting = if free { None } else { ready.take().map(|ready| ready()) };
        let (store, until_ns) = (store.clone(), now_ns.saturating_add(GUARD_WAIT_NS));
        let looks = free && empties.is_some();
        let (emptied, has_locks) = (None, false);
        let guard = Guard { whose, store, locks, empties, emptied, waiting, has_locks, until_ns };
        ledger.guards.insert(number, guard);
        drop(ledger);
        let op = LoggedChange::new(Ending::new(self.clone(), number, true), change);
        if !free {
            return Ok(Intended::Waiting(op));
        }
        // When one of these fails, the change ends with `op`.
        let mut made = None;
        if looks {
            made = ready.take().map(|ready| ready());
            let mut next = Vec::new();
            let found = shielded(|| self.find_emptied(number, &mut made, &mut next));
            self.resume_elsewhere(next);
            if found? == Found::Waits {
                return Ok(Intended::Waiting(op));
            }
        }
        let ends = self.ends_before(number);
        if self.is_kept(ends)? {
            return Ok(Intended::Ready(op));
        }
        if let Some(ready) = made.or_else(|| ready.map(|ready| ready())) {
            self.wait_for_log(number, ends, ready);
        }
        Ok(Intended::Waiting(op))
    }

    /// Returns up to where the log must be durable before a change with its change locks goes on.
    fn ends_before(&self, number: u64) -> Ends {
        let ledger = self.lock();
        let guard = ledger.guards.all.get(&number);
        guard.map_or_else(Ends::default, |guard| {
            ledger.locks.ends(guard.locks.iter().chain(&guard.emptied))
        })
    }

    /// Notifies when the log is durable up to `ends`, unless the change is given up before.
    fn wait_for_log(self: &Arc<Self>, number: u64, ends: Ends, ready: Notify) {
        let mut ledger = self.lock();
        let Some(guard) = ledger.guards.all.get_mut(&number) else { return };
        (guard.waiting, guard.has_locks) = (Some(ready), true);
        drop(ledger);
        let journal = self.clone();
        let kept = move |done: Result<()>| {
            let mut ledger = journal.lock();
            let waiting = ledger.guards.all.get_mut(&number).and_then(|guard| guard.waiting.take());
            drop(ledger);
            if let Some(ready) = waiting {
                tell(ready, done);
            }
        };
        self.keep_soon(ends, Box::new(kept));
    }

    /// Takes the change lock of the file that a change empties, after its name locks are free. The
    /// change may have to wait for it, with `ready`. If the name leads to another file meanwhile,
    /// the lock of the former one is released first. The changes that waited for that lock are
    /// added to `next`, also after an error.
    ///
    /// # Errors
    /// `Delay` when the name leads to another file at each attempt.
    fn find_emptied(
        &self,
        number: u64,
        ready: &mut Option<Notify>,
        next: &mut Vec<u64>,
    ) -> Result<Found> {
        for _ in 0..DURABLE_PRE_IMAGES_MAX {
            let ledger = self.lock();
            let Some(guard) = ledger.guards.all.get(&number) else { return Ok(Found::Waits) };
            let Some((dir, name)) = guard.empties.clone() else { return Ok(Found::Free) };
            let store = guard.store.clone();
            drop(ledger);
            // The execution of the change reports an error of the name.
            let file = intent::find(&*store, &dir, &name).ok().flatten();
            let handle = file.map(|(file, _)| Handle { fs: store.fs_id(), file });
            let file = handle.map(|handle| ChangeLock::file(&handle, Hold::Guard));
            let mut ledger = self.lock();
            let ledger = &mut *ledger;
            let Some(guard) = ledger.guards.all.get_mut(&number) else { return Ok(Found::Waits) };
            if guard.emptied == file {
                return Ok(Found::Free);
            }
            if let Some(former) = std::mem::replace(&mut guard.emptied, file) {
                ledger.locks.leave(number, &[former], next);
            }
            let Some(file) = file else { return Ok(Found::Free) };
            if !ledger.locks.join(number, file) {
                guard.waiting = ready.take();
                return Ok(Found::Waits);
            }
            // The name may have led elsewhere before the file was locked.
        }
        Err(ServiceError::Delay)
    }

    /// Lets a guarded change go on if no other change blocks it any more. Changes that can go on in
    /// turn are added to `next`.
    pub(super) fn resume_guard(self: &Arc<Self>, number: u64, next: &mut Vec<u64>) {
        let mut ledger = self.lock();
        let ledger_now = &mut *ledger;
        let Some(guard) = ledger_now.guards.all.get_mut(&number) else { return };
        if !guard.may_go_on(number, &ledger_now.locks) {
            return;
        }
        let mut ready = guard.waiting.take();
        drop(ledger);
        let found = shielded(|| self.find_emptied(number, &mut ready, next));
        let Some(ready) = ready else { return };
        if found == Ok(Found::Waits) {
            return;
        }
        let ends = self.ends_before(number);
        match found.and_then(|_| self.is_kept(ends)) {
            Ok(true) => tell(ready, Ok(())),
            Ok(false) => self.wait_for_log(number, ends, ready),
            Err(error) => tell(ready, Err(error)),
        }
    }

    /// Ends a guarded change that was executed, or will not be.
    pub(super) fn end_guard(self: &Arc<Self>, number: u64) {
        let mut next = Vec::new();
        let guard = self.take_guard(number, |_| true, &mut next);
        self.resume_elsewhere(next);
        // Its notification is not used. The drop of its content may call this service again.
        drop(guard);
    }

    /// Removes a guarded change if `is_one` is true for it, and adds the changes behind it to
    /// `next`.
    fn take_guard(
        &self,
        number: u64,
        is_one: impl FnOnce(&Guard) -> bool,
        next: &mut Vec<u64>,
    ) -> Option<Guard> {
        let mut ledger = self.lock();
        if !is_one(ledger.guards.all.get(&number)?) {
            return None;
        }
        let guard = ledger.guards.remove(number)?;
        ledger.locks.leave(number, &guard.locks, next);
        ledger.locks.leave(number, guard.emptied.as_slice(), next);
        next.retain(|number| {
            let flight = ledger.flights.get(number).is_some_and(|flight| flight.waiting.is_some());
            flight || ledger.guards.all.get(number).is_some_and(|guard| guard.waiting.is_some())
        });
        Some(guard)
    }

    /// Lets changes behind a finished one go on, on a thread that may read files.
    fn resume_elsewhere(self: &Arc<Self>, next: Vec<u64>) {
        if !next.is_empty() {
            let journal = self.clone();
            (self.spawn)(Box::new(move || journal.resume(next)));
        }
    }

    /// Tells guarded changes that have waited too long to retry.
    pub(super) fn give_up_guards(self: &Arc<Self>, now_ns: u64) {
        let is_late = |guard: &Guard| guard.waiting.is_some() && now_ns >= guard.until_ns;
        let ledger = self.lock();
        let late = ledger.guards.all.iter().filter(|(_, guard)| is_late(guard));
        let late: Vec<_> = late.map(|(number, _)| *number).collect();
        drop(ledger);
        let mut next = Vec::new();
        for number in late {
            let guard = self.take_guard(number, is_late, &mut next);
            if let Some(ready) = guard.and_then(|guard| guard.waiting) {
                tell(ready, Err(ServiceError::Delay));
            }
        }
        self.resume_elsewhere(next);
    }
}

impl Durable {
    /// Protects logged changes from a change without a record, while the [`LoggedChange`] lives. `ready`
    /// makes the notification, if one is needed, and must not call the service. Costs almost
    /// nothing where no replies are durable.
    ///
    /// # Errors
    /// `Delay` when too many such changes are under way. The notification gets it, too, when others
    /// did not end in time.
    pub fn guard(
        &self,
        caller: Caller<'_>,
        change: &Change<'_>,
        ready: impl FnOnce() -> Notify,
    ) -> Result<Intended> {
        let Some(journal) = self.journal.get() else { return Ok(Intended::Unneeded) };
        if !change.is_guarded() || !change.is_possible() {
            return Ok(Intended::Unneeded);
        }
        let namespace = self.exports.namespace();
        // The execution of the change reports an error of the object.
        let Ok(export) = namespace.export(change.place()) else { return Ok(Intended::Unneeded) };
        let keeps = |other: &Export| other.options().durable_replies != Durability::Off;
        let fs = export.store().fs_id();
        // Another export may lead to the same files.
        let same = |other: &Arc<Export>| keeps(other) && other.store().fs_id() == fs;
        if export.options().read_only || !(keeps(export) || namespace.exports().any(same)) {
            return Ok(Intended::Unneeded);
        }
        let locks = change.locks(|handle| export.key(handle));
        let locks = locks.into_iter().map(ChangeLock::guarded).collect();
        journal.guard(export.store(), change, locks, (Whose::of(caller), caller.now_ns), ready)
    }
}
