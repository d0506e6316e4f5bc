//! The way into the table for operations that may need other clients to make room.
//!
//! Invariants
//! * No store call and no call of a front end happens with the table's lock held.
//! * A caller waits for a bounded time, and only if it may.

use crate::admit::Applicant;
use crate::append::Writers;
use crate::client::Clients;
use crate::error::ServiceError;
use crate::export::Exports;
use crate::exposure::Changing;
use crate::guards::Guards;
use crate::handle::Handle;
use crate::index::Index;
use crate::layout::Layouts;
use crate::limits::{CLEARED_MAX, RECALL_NAP, RECALL_WAITERS_MAX};
use crate::open::{Break, Clock, RemoveMode};
use crate::table::{Blocked, Ended, Notice, StateTable};
use crate::{Caller, Result, ServiceConfig};
use dafs_mem::{Condvar, Mutex};
use dafs_store::Wait;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// The wait of an operation for other clients: a bounded time from its first wait.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    until: Option<Instant>,
    /// How often it has cleared conflicts.
    cleared: u32,
}

impl Patience {
    /// Notes that the conflicts are cleared, as far as is known. True if the next attempt need not
    /// wait. A conflict that comes back at once, such as a recall without a path to its holder,
    /// would otherwise be cleared again and again without a pause.
    fn goes_on(&mut self) -> bool {
        self.cleared += 1;
        self.cleared <= CLEARED_MAX
    }

    fn left(&mut self, wait: Duration) -> Duration {
        let until = self.until.get_or_insert_with(|| Instant::now() + wait);
        until.saturating_duration_since(Instant::now())
    }
}

/// The state of all clients, under one lock, and the indexes that are read without it. All parts of
/// the service share it.
pub struct State {
    pub(crate) config: ServiceConfig,
    pub(crate) index: Arc<Index>,
    pub(crate) guards: Arc<Guards>,
    pub(crate) writers: Arc<Writers>,
    table: Mutex<StateTable>,
    /// Notified, with the table's lock, when state has ended or a holder has answered.
    pub(crate) returned: Condvar,
}

impl State {
    pub(crate) fn new(config: ServiceConfig) -> Self {
        let table = StateTable::new(&config);
        let (index, guards) = (table.index.clone(), table.guards.clone());
        let writers = table.writers.clone();
        Self { config, index, guards, writers, table: Mutex::new(table), returned: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StateTable> {
        self.table.lock()
    }

    pub(crate) fn clock(&self, caller: Caller<'_>) -> Clock {
        Clock { now_ns: caller.now_ns, lease_ns: self.config.lease_ns() }
    }

    /// An applicant for new state.
    pub(crate) fn applicant<'a>(&self, caller: Caller<'a>) -> Applicant<'a> {
        Applicant { client: caller.client, reclaims: false, clock: self.clock(caller) }
    }

    /// Runs `attempt` once under the table's lock.
    ///
    /// # Errors
    /// The conflict, for [`Conflicts::make_way`].
    pub(crate) fn attempt<T>(
        &self,
        attempt: impl FnOnce(&mut StateTable, &mut Ended) -> std::result::Result<T, Blocked>,
    ) -> std::result::Result<T, Blocked> {
        let mut ended = Ended::default();
        let outcome = attempt(&mut self.lock(), &mut ended);
        self.finish(ended);
        outcome
    }

    /// Does the work that ended state leaves, without the table's lock.
    pub(crate) fn finish(&self, ended: Ended) {
        let Ended { held, files, notices, unwatch, withdrawn, grants } = ended;
        // Readers without requests lose the memory before others profit from the end of their state.
        withdrawn.iter().for_each(|key| self.writers.exposure.withdraw(key));
        drop(grants);
        if !held.is_empty() {
            self.returned.notify_all();
        }
        notices.into_iter().for_each(Notice::deliver);
        for (store, id) in unwatch {
            store.unwatch(&id);
        }
        drop((held, files));
    }
}

/// The way into the table past the state of other clients. Locks, delegations and opens share it.
pub(crate) struct Conflicts {
    pub(crate) exports: Arc<Exports>,
    pub(crate) state: Arc<State>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) layouts: Arc<Layouts>,
    /// Callers that wait for state to end, or for a holder to answer.
    waiting: AtomicUsize,
}

impl Conflicts {
    pub(crate) fn new(exports: Arc<Exports>, clients: Arc<Clients>, layouts: Arc<Layouts>) -> Self {
        let state = clients.state.clone();
        Self { exports, state, clients, layouts, waiting: AtomicUsize::new(0) }
    }

    /// Runs `attempt` under the table's lock until no other client blocks it. Meanwhile recalls the
    /// delegations of others, and ends the leases of expired clients.
    pub(crate) fn enter<T>(
        &self,
        caller: Caller<'_>,
        mut attempt: impl FnMut(&mut StateTable, &mut Ended) -> std::result::Result<T, Blocked>,
    ) -> Result<T> {
        let mut patience = Patience::default();
        loop {
            match self.state.attempt(&mut attempt) {
                Ok(value) => return Ok(value),
                Err(blocked) => self.make_way(caller, blocked, &mut patience)?,
            }
        }
    }

    /// Clears a conflict and waits a little. After it has returned, the caller repeats the attempt.
    ///
    /// # Errors
    /// The refusal, if a retry does not help. `WouldWait` for a caller that may not wait. `Delay`
    /// after the caller has waited long enough.
    pub(crate) fn make_way(
        &self,
        caller: Caller<'_>,
        blocked: Blocked,
        patience: &mut Patience,
    ) -> Result<()> {
        let may_wait = caller.wait == Wait::Allowed;
        let is_cleared = match blocked {
            Blocked::Refused(error) => return Err(error),
            Blocked::Recall(notices) => {
                let are_new = !notices.is_empty();
                notices.into_iter().for_each(Notice::deliver);
                // A holder on this machine may have answered already.
                are_new
            }
            Blocked::Expire(clients) if may_wait => {
                self.clients.end_leases(&clients, caller.now_ns)?;
                true
            }
            Blocked::Undo(key) if may_wait => {
                self.undo_lost(&key, caller.now_ns)?;
                true
            }
            // Most often the data servers can be notified at once. Otherwise another thread does
            // it.
            Blocked::Fence(key) if may_wait => self.layouts.fence_if_free(&key).is_ok(),
            Blocked::RecoverSize(key) if may_wait => {
                self.layouts.recover_size(caller.client, &key).is_ok()
            }
            Blocked::Fence(_) | Blocked::RecoverSize(_) | Blocked::Undo(_) => false,
            Blocked::Expire(clients) => {
                // Some front ends do not repeat the call where it may wait.
                self.clients.expire_soon(clients);
                false
            }
        };
        if is_cleared && may_wait && patience.goes_on() {
            return Ok(());
        }
        if caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        let left = patience.left(self.state.config.recall_wait);
        if left.is_zero() {
            return Err(ServiceError::Delay);
        }
        let others = self.waiting.fetch_add(1, Ordering::Relaxed);
        if others < RECALL_WAITERS_MAX {
            // The event may have happened since the attempt, so no nap is long.
            let nap = left.min(RECALL_NAP);
            let woken = self.state.returned.wait_timeout(self.state.lock(), nap);
            drop(woken);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if others < RECALL_WAITERS_MAX { Ok(()) } else { Err(ServiceError::Delay) }
    }

    /// Forbids new delegations on a file while it changes, and first has those of others returned.
    /// With a new `size`, their layouts are returned too.
    ///
    /// # Errors
    /// `WouldWait`, `Delay`.
    pub(crate) fn begin_change(
        &self,
        caller: Caller<'_>,
        key: Handle,
        size: Option<u64>,
    ) -> Result<ChangeGuard<'_>> {
        let clock = self.state.clock(caller);
        let breaks = Break::Change { truncate: size == Some(0) };
        self.enter(caller, |table, ended| {
            table.clear_delegations(&key, caller.client, breaks, clock, ended)?;
            if size.is_some() {
                table.clear_layouts(&key, caller.client, clock, ended)?;
            }
            table.files.entry(key).or_default().changing += 1;
            Ok(())
        })?;
        // While `changing` counts it, the file is not newly exposed.
        let exposure = &self.state.writers.exposure;
        let _exposed = size.and_then(|_| exposure.begin_change(&key, 0, u64::MAX));
        Ok(ChangeGuard { state: &self.state, key, _exposed })
    }

    /// Begins a removal of a name of `target` and a change of `source`, in one step.
    ///
    /// # Errors
    /// The conflict.
    pub(crate) fn try_removal(
        &self,
        caller: Caller<'_>,
        source: Option<Handle>,
        target: Option<(Handle, RemoveMode)>,
    ) -> std::result::Result<(Option<ChangeGuard<'_>>, Option<RemovalGuard<'_>>), Blocked> {
        let clock = self.state.clock(caller);
        let breaks = Break::Change { truncate: false };
        self.state.attempt(|table, ended| {
            if let Some(key) = &source {
                table.clear_delegations(key, caller.client, breaks, clock, ended)?;
            }
            if let Some((key, mode)) = target {
                table.begin_removal(caller.client, key, mode, clock, ended)?;
            }
            if let Some(key) = source {
                table.files.entry(key).or_default().changing += 1;
            }
            Ok(())
        })?;
        let change = source.map(|key| ChangeGuard { state: &self.state, key, _exposed: None });
        let removal = target.map(|(key, mode)| RemovalGuard { state: &self.state, key, mode });
        Ok((change, removal))
    }
}

/// Forbids opens that the removal of the file would break, while it lives.
pub(crate) struct RemovalGuard<'a> {
    state: &'a State,
    key: Handle,
    mode: RemoveMode,
}

impl Drop for RemovalGuard<'_> {
    fn drop(&mut self) {
        self.state.lock().end_removal(&self.key, self.mode);
    }
}

/// Forbids delegations on the file, while it lives.
pub(crate) struct ChangeGuard<'a> {
    state: &'a State,
    key: Handle,
    /// The whole file, if its size changes.
    _exposed: Option<Changing>,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        let mut table = self.state.lock();
        if let Some(file) = table.files.get_mut(&self.key) {
            file.changing -= 1;
        }
        table.tidy(&self.key);
    }
}
