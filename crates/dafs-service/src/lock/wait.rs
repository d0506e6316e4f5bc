//! Owners that wait for a byte-range lock. The server holds no lock for waiting NFS clients. It
//! notifies them when their range is free, in the order in which they came, and they retry. Owners
//! of DAFS clients poll, and keep their turn while they do (DAFS 9.2).
//!
//! Invariants
//! * An owner waits for one range of a file at most, and each file has a bounded queue.
//! * A turn ends a bounded time after the last poll, so that no client waits for one that has left.

use super::LockConflict;
use super::{LockKind, LockState, Range};
use crate::Caller;
use crate::client::{Client, ClientKind};
use crate::handle::Handle;
use crate::limits::{LOCK_TURN_NS, WAITERS_MAX, WAITERS_PER_FILE_MAX};
use crate::open::{Clock, OpenState};
use crate::state::StateId;
use crate::table::{Ended, FileState, Notice, NoticeKind, StateTable};
use std::sync::Arc;

/// An owner that waits.
pub(crate) struct Waiter {
    client: Arc<Client>,
    handle: Handle,
    owner: Box<[u8]>,
    range: Range,
    kind: LockKind,
    /// The time until which it keeps its turn without another poll. `None` for an owner that is
    /// notified.
    turn_until_ns: Option<u64>,
}

impl Waiter {
    fn wants_against(&self, range: Range, kind: LockKind) -> bool {
        self.range.overlaps(range) && self.kind.conflicts(kind)
    }

    fn keeps_turn(&self, now_ns: u64) -> bool {
        self.turn_until_ns.is_some_and(|until_ns| now_ns <= until_ns)
    }

    fn is_of(&self, client: &Arc<Client>, owner: &[u8]) -> bool {
        Arc::ptr_eq(&self.client, client) && *self.owner == *owner
    }
}

impl FileState {
    /// Returns the waiter whose turn comes before this request of an owner. A waiter for a lock of
    /// that same owner does not count: that would be a deadlock. A waiter at a broken lock does not
    /// count either: it gets its lock only after the repair, which must not wait for it.
    pub(super) fn earlier_turn(
        &self,
        caller: Caller<'_>,
        owner: &[u8],
        range: Range,
        kind: LockKind,
        own: Option<StateId>,
    ) -> Option<LockConflict> {
        let before = self.waiters.iter().take_while(|w| !w.is_of(caller.client, owner));
        let mut turns = before.filter(|waiter| {
            let mut held = self.locks.ranges.conflicts(waiter.range, waiter.kind, None);
            waiter.keeps_turn(caller.now_ns)
                && waiter.wants_against(range, kind)
                && !self.locks.is_broken_in(waiter.range)
                && !held.any(|locked| Some(locked.owner) == own)
        });
        turns.next().map(|waiter| LockConflict {
            offset: waiter.range.first,
            length: waiter.range.length(),
            kind: waiter.kind,
            client: waiter.client.key(),
            owner: waiter.owner.clone(),
        })
    }
}

impl StateTable {
    /// Enqueues an owner for a range, if there is room. Otherwise the client polls.
    pub(super) fn add_waiter(
        &mut self,
        caller: Caller<'_>,
        open: &OpenState,
        owner: &[u8],
        range: Range,
        kind: LockKind,
    ) {
        let Some(file) = self.files.get_mut(&open.key) else { return };
        let polls = caller.client.kind() == ClientKind::Dafs;
        let turn_until_ns = polls.then(|| caller.now_ns.saturating_add(LOCK_TURN_NS));
        if let Some(own) = file.waiters.iter_mut().find(|own| own.is_of(caller.client, owner)) {
            own.range = range;
            own.kind = kind;
            own.turn_until_ns = turn_until_ns;
            return;
        }
        if file.waiters.len() >= WAITERS_PER_FILE_MAX || self.counts.waiters >= WAITERS_MAX {
            return;
        }
        file.waiters.push_back(Waiter {
            client: caller.client.clone(),
            handle: *open.handle(),
            owner: owner.into(),
            range,
            kind,
            turn_until_ns,
        });
        self.counts.waiters += 1;
        self.by_client.entry(caller.client.key()).or_default().waiting += 1;
    }

    /// Removes an owner that has got a range from the queue for it.
    pub(super) fn drop_waiter(
        &mut self,
        client: &Arc<Client>,
        key: &Handle,
        owner: &[u8],
        range: Range,
    ) {
        self.drop_waiters(key, |waiter, _| {
            waiter.is_of(client, owner) && waiter.range.overlaps(range)
        });
    }

    /// Removes the waiters that match from a file's queue, in order.
    fn drop_waiters(
        &mut self,
        key: &Handle,
        matches: impl Fn(&Waiter, &FileState) -> bool,
    ) -> Vec<Waiter> {
        let Some(file) = self.files.get_mut(key) else { return Vec::new() };
        if file.waiters.is_empty() {
            return Vec::new();
        }
        let all = std::mem::take(&mut file.waiters);
        let (gone, kept): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|waiter| matches(waiter, file));
        file.waiters = kept.into();
        self.counts.waiters -= gone.len();
        for waiter in &gone {
            let client = waiter.client.key();
            if let Some(holdings) = self.by_client.get_mut(&client) {
                holdings.waiting -= 1;
            }
            self.tidy_client(client);
        }
        gone
    }

    /// Removes waiters that do not poll any more, and notifies those that waited behind them.
    pub(crate) fn end_turns(&mut self, now_ns: u64, ended: &mut Ended) {
        if self.counts.waiters == 0 {
            return;
        }
        let lapsed = |waiter: &Waiter| waiter.turn_until_ns.is_some() && !waiter.keeps_turn(now_ns);
        let files = self.files.iter().filter(|(_, file)| file.waiters.iter().any(lapsed));
        let keys: Vec<Handle> = files.map(|(key, _)| *key).collect();
        for key in keys {
            self.drop_waiters(&key, |waiter, _| lapsed(waiter));
            self.wake_waiters(&key, ended);
            self.tidy(&key);
        }
    }

    /// Notifies the waiters whose range is free now. The file's entry stays even if it is idle,
    /// because the caller that releases the last lock may release more.
    pub(crate) fn wake_waiters(&mut self, key: &Handle, ended: &mut Ended) {
        let free = |waiter: &Waiter, file: &FileState| {
            let own = file.lock_states.iter().find(|lock| {
                Arc::ptr_eq(&lock.open.client, &waiter.client) && *lock.owner == *waiter.owner
            });
            let own = own.map(|lock| lock.id);
            waiter.turn_until_ns.is_none()
                && file.locks.ranges.conflicts(waiter.range, waiter.kind, own).next().is_none()
        };
        for waiter in self.drop_waiters(key, free) {
            let Waiter { client, handle, owner, .. } = waiter;
            ended.notices.push(Notice {
                client,
                handle,
                what: NoticeKind::LockAvailable { owner },
            });
        }
    }

    /// Returns expired clients whose locks others wait for, because a waiter retries by itself only
    /// after a long time.
    pub(crate) fn overdue_holders(&self, clock: Clock) -> Vec<Arc<Client>> {
        let mut overdue: Vec<Arc<Client>> = Vec::new();
        if self.counts.waiters == 0 {
            return overdue;
        }
        for file in self.files.values().filter(|file| !file.waiters.is_empty()) {
            for lock in &file.lock_states {
                let holder = &lock.open.client;
                let in_the_way = |waiter: &Waiter| {
                    let all = file.locks.ranges.conflicts(waiter.range, waiter.kind, None);
                    !Arc::ptr_eq(&waiter.client, holder)
                        && all.into_iter().any(|l| l.owner == lock.id)
                };
                if clock.is_over(holder)
                    && !overdue.iter().any(|known| Arc::ptr_eq(known, holder))
                    && file.waiters.iter().any(in_the_way)
                {
                    overdue.push(holder.clone());
                }
            }
        }
        overdue
    }

    /// Removes an owner from the queue for a range, because its client gives up. Returns true if it
    /// was there.
    pub(crate) fn cancel_wait(
        &mut self,
        client: &Arc<Client>,
        key: &Handle,
        owner: &[u8],
        range: Range,
    ) -> bool {
        let gone = self.drop_waiters(key, |waiter, _| {
            waiter.is_of(client, owner) && waiter.range.overlaps(range)
        });
        !gone.is_empty()
    }

    /// True if the owner of an open neither holds nor awaits a lock.
    pub(crate) fn is_unlocked(&self, open: &Arc<OpenState>) -> bool {
        let Some(file) = self.files.get(&open.key) else { return true };
        let holds = |lock: &Arc<LockState>| {
            let has_range = || file.locks.ranges.has_owner(lock.id);
            Arc::ptr_eq(&lock.open, open) && (lock.is_busy() || has_range())
        };
        !file.lock_states.iter().any(holds)
            && !file.waiters.iter().any(|waiter| waiter.is_of(&open.client, open.owner()))
    }

    /// Removes the waiters of a client that has closed a file.
    pub(crate) fn forget_file_waiters(&mut self, client: &Arc<Client>, key: &Handle) {
        self.drop_waiters(key, |waiter, _| Arc::ptr_eq(&waiter.client, client));
    }

    /// Removes all waiters of a client that is gone.
    pub(crate) fn forget_waiters(&mut self, client: &Arc<Client>, ended: &mut Ended) {
        let waits = |waiter: &Waiter| Arc::ptr_eq(&waiter.client, client);
        let files = self.files.iter().filter(|(_, file)| file.waiters.iter().any(waits));
        let keys: Vec<Handle> = files.map(|(key, _)| *key).collect();
        for key in keys {
            self.drop_waiters(&key, |waiter, _| waits(waiter));
            self.tidy(&key);
        }
        ended.notices.retain(|notice| !Arc::ptr_eq(&notice.client, client));
    }
}
