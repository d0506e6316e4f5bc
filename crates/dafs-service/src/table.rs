//! The state table: which client holds which state on which file. Only methods of [`StateTable`]
//! find conflicts and enter state. Many of them are in the files about one kind of state, such as
//! `open/enter.rs`, `lock/run.rs`, `delegation/recall.rs` and `layout/recall.rs`. The table's lock
//! is in `enter.rs`.
//!
//! Invariants
//! * The check and the entry are one step under the table's lock. No store call and no call of a
//!   front end happens under it. [`Ended`] and [`Blocked`] collect the work for such calls.
//! * An entry of a file exists while any state is held on it, or while an operation is under way
//!   that forbids new delegations or opens.
//! * State is entered for a client only while its record is current, so no state is entered after
//!   the release of its client.

use crate::admit::ExpiredClients;
use crate::append::Writers;
use crate::client::{Client, ClientKey, ClientKind};
use crate::delegation::DelegationState;
use crate::error::ServiceError;
use crate::exposure::Grant;
use crate::front::Front;
use crate::guards::Guards;
use crate::handle::Handle;
use crate::hosts::Shared;
use crate::index::{Held, Index};
use crate::layout::{DirectWriters, Fencing, LayoutState, Returned};
use crate::limits::ADVISED_OPENS_MAX;
use crate::lock::{LockBook, LockHolder, LockLog, LockState, Waiter};
use crate::open::OpenState;
use crate::state::{StateId, StateRef};
use crate::{Result, ServiceConfig};
use dafs_mem::Shrinking as _;
use dafs_store::{FileId, LayoutForm, OpenFile, OpenMode, Store};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Arc;

/// The state that is held on one file.
#[derive(Default)]
pub(crate) struct FileState {
    pub(crate) opens: Vec<Arc<OpenState>>,
    pub(crate) delegations: Vec<Arc<DelegationState>>,
    pub(crate) layouts: Vec<Arc<LayoutState>>,
    pub(crate) lock_states: Vec<Arc<LockState>>,
    pub(crate) locks: LockBook<StateId>,
    /// Owners that wait for a byte-range lock, in order.
    pub(crate) waiters: VecDeque<Waiter>,
    /// Removals under way that fail only if an open denies removal.
    pub(crate) removing_unchecked: u32,
    /// Removals under way that fail if the file is open at all.
    pub(crate) removing_checked: u32,
    /// Operations under way that forbid new delegations.
    pub(crate) changing: u32,
    /// Grants of layouts that are under way.
    pub(crate) granting: u32,
    /// Clients that may have sent writes to data servers.
    pub(crate) direct_writers: Option<Box<DirectWriters>>,
}

impl FileState {
    fn is_idle(&self) -> bool {
        self.opens.is_empty()
            && self.delegations.is_empty()
            && self.layouts.is_empty()
            && self.waiters.is_empty()
            && !self.locks.has_left()
            && self.removing_unchecked + self.removing_checked + self.changing + self.granting == 0
    }
}

/// The state that one client holds.
#[derive(Default)]
pub(crate) struct Holdings {
    pub(crate) opens: FxHashSet<StateId>,
    pub(crate) locks: FxHashSet<StateId>,
    pub(crate) delegations: FxHashSet<StateId>,
    pub(crate) layouts: FxHashSet<StateId>,
    /// State that was revoked and not freed by the client yet.
    pub(crate) revoked: FxHashSet<StateId>,
    /// Files on which this client waits for a lock.
    pub(crate) waiting: u32,
    /// Byte ranges locked.
    pub(crate) ranges: usize,
}

impl Holdings {
    fn is_empty(&self) -> bool {
        self.opens.is_empty()
            && self.locks.is_empty()
            && self.delegations.is_empty()
            && self.layouts.is_empty()
            && self.revoked.is_empty()
            && self.waiting == 0
    }
}

/// Why state cannot be entered.
pub(crate) enum Blocked {
    /// A refusal. A retry does not help.
    Refused(ServiceError),
    /// Delegations or layouts of other clients conflict. The notices are those to send now: none
    /// when all recalls have been sent and the returns are awaited, or the answer of data servers.
    Recall(Vec<Notice>),
    /// State of expired clients conflicts.
    Expire(Vec<Arc<Client>>),
    /// Data servers may still honour a layout of this file that has ended.
    Fence(Handle),
    /// The size of this file is not known, until data servers are asked.
    RecoverSize(Handle),
    /// Changes of this file under a lock that was lost are to be undone first.
    Undo(Handle),
}

impl From<ServiceError> for Blocked {
    fn from(error: ServiceError) -> Self {
        Self::Refused(error)
    }
}

/// A message to a client, to be sent after the lock is released.
pub(crate) struct Notice {
    pub(crate) client: Arc<Client>,
    pub(crate) handle: Handle,
    pub(crate) what: NoticeKind,
}

pub(crate) enum NoticeKind {
    Recall {
        state: StateRef,
        truncate: bool,
    },
    RecallLayout {
        state: StateRef,
        form: LayoutForm,
    },
    /// Recalls the layouts of the file system of the handle, or all.
    RecallLayouts {
        all: bool,
        form: LayoutForm,
    },
    GetAttr {
        query: u64,
    },
    LockAvailable {
        owner: Box<[u8]>,
    },
}

impl Notice {
    pub(crate) fn deliver(self) {
        let (client, handle) = (self.client.key(), &self.handle);
        let front: Option<Arc<dyn Front>> = self.client.front();
        let Some(front) = front else { return };
        match self.what {
            NoticeKind::Recall { state, truncate } => {
                front.recall(client, handle, state, truncate);
            }
            NoticeKind::RecallLayout { state, form } => {
                front.recall_layout(client, handle, state, form);
            }
            NoticeKind::RecallLayouts { all, form } => {
                front.recall_layouts(client, (!all).then_some(handle), form);
            }
            NoticeKind::GetAttr { query } => front.get_attr(client, handle, query),
            NoticeKind::LockAvailable { owner } => front.lock_available(client, handle, &owner),
        }
    }
}

/// The work that ended state leaves, to be done without the lock.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) held: Vec<Held>,
    /// To close a file may take long.
    pub(crate) files: Vec<Arc<dyn OpenFile>>,
    pub(crate) notices: Vec<Notice>,
    /// Files that were watched for a delegation.
    pub(crate) unwatch: Vec<(Arc<dyn Store>, FileId)>,
    /// Files whose exposure ends before the caller goes on.
    pub(crate) withdrawn: Vec<Handle>,
    /// To take memory back from readers may take long.
    pub(crate) grants: Vec<Grant>,
}

pub(crate) struct StateTable {
    pub(crate) files: FxHashMap<Handle, FileState>,
    pub(crate) by_client: FxHashMap<ClientKey, Holdings>,
    pub(crate) index: Arc<Index>,
    pub(crate) guards: Arc<Guards>,
    pub(crate) writers: Arc<Writers>,
    /// Files on which a delegation was recalled a short time ago, with that time.
    pub(crate) recalled: FxHashMap<Handle, u64>,
    /// Delegations that were recalled and not returned yet.
    pub(crate) recalling: FxHashMap<StateId, Arc<DelegationState>>,
    /// Layouts that were recalled and not returned yet.
    pub(crate) recalling_layouts: FxHashMap<StateId, Arc<LayoutState>>,
    /// Files whose layouts were revoked, and may still be honoured by data servers.
    pub(crate) fencing: Fencing,
    /// Files whose layouts were returned, and may be honoured by data servers for a while.
    pub(crate) returned_layouts: Returned,
    /// Attribute queries to holders of write delegations that are not answered yet. At most one for
    /// each holder.
    pub(crate) queries: FxHashMap<u64, Arc<DelegationState>>,
    pub(crate) counts: TableCounts,
    pub(crate) lock_log: Arc<LockLog>,
    /// Files with orphaned persistent locks.
    pub(crate) left_files: FxHashSet<Handle>,
    /// The most opens, and the most delegations.
    pub(crate) files_max: usize,
    pub(crate) expired: ExpiredClients,
}

/// Counts of the state in the table.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TableCounts {
    pub(crate) opens: usize,
    pub(crate) open_files: usize,
    pub(crate) locks: usize,
    pub(crate) ranges: usize,
    pub(crate) delegations: usize,
    pub(crate) layouts: usize,
    pub(crate) revoked: usize,
    pub(crate) waiters: usize,
}

impl StateTable {
    pub(crate) fn new(config: &ServiceConfig) -> Self {
        Self {
            files: FxHashMap::default(),
            by_client: FxHashMap::default(),
            index: Arc::new(Index::new(config.instance)),
            guards: Arc::new(Guards::new()),
            writers: Arc::new(Writers::new()),
            recalled: FxHashMap::default(),
            recalling: FxHashMap::default(),
            recalling_layouts: FxHashMap::default(),
            fencing: Fencing::default(),
            returned_layouts: Returned::default(),
            queries: FxHashMap::default(),
            counts: TableCounts::default(),
            lock_log: Arc::default(),
            left_files: FxHashSet::default(),
            files_max: config.files_max,
            expired: ExpiredClients::default(),
        }
    }

    pub(crate) fn holds_anything(&self, client: ClientKey) -> bool {
        self.by_client.contains_key(&client)
    }

    /// Refuses to enter state for a record that has ended. A record is marked as ended before its
    /// state is released under the table's lock. So that release sees a new entry, or the entry is
    /// refused.
    pub(crate) fn check_current(client: &Client) -> Result<()> {
        if client.is_gone() { Err(ServiceError::Expired) } else { Ok(()) }
    }

    /// Removes the entry of a file that is idle.
    pub(crate) fn tidy(&mut self, key: &Handle) {
        if self.files.get(key).is_some_and(FileState::is_idle) {
            self.files.remove_and_shrink(key);
        }
    }

    pub(crate) fn tidy_client(&mut self, client: ClientKey) {
        if self.by_client.get(&client).is_some_and(Holdings::is_empty) {
            self.by_client.remove_and_shrink(&client);
        }
    }

    pub(crate) fn enter_open(&mut self, open: &Arc<OpenState>) {
        let file = self.files.entry(open.key).or_default();
        self.counts.open_files += usize::from(file.opens.is_empty());
        file.opens.push(open.clone());
        self.counts.opens += 1;
        open.client.host().add(Shared::Opens, 1);
        self.by_client.entry(open.client.key()).or_default().opens.insert(open.id());
        self.index.insert(Held::Open(open.clone()));
    }

    /// Ends an open with the byte-range locks under it.
    pub(crate) fn release_open(&mut self, open: &Arc<OpenState>, ended: &mut Ended) {
        self.withdraw_open(open, ended);
        open.life.end();
        self.index.remove(open.id());
    }

    /// Removes an open from everything but the index.
    pub(crate) fn withdraw_open(&mut self, open: &Arc<OpenState>, ended: &mut Ended) {
        let (key, client) = (open.key, open.client.key());
        let Some(file) = self.files.get_mut(&key) else { return };
        let before = file.opens.len();
        file.opens.retain(|other| !Arc::ptr_eq(other, open));
        if file.opens.len() == before {
            return;
        }
        self.counts.opens -= 1;
        open.client.host().remove(Shared::Opens, 1);
        self.counts.open_files -= usize::from(file.opens.is_empty());
        let under = |lock: &&Arc<LockState>| Arc::ptr_eq(&lock.open, open);
        let locks: Vec<_> = file.lock_states.iter().filter(under).cloned().collect();
        for lock in &locks {
            self.release_lock(lock, ended);
        }
        let file = self.files.get(&key);
        let is_last = file.is_none_or(|file| {
            !file.opens.iter().any(|other| Arc::ptr_eq(&other.client, &open.client))
        });
        if is_last {
            self.forget_file_waiters(&open.client, &key);
        }
        if open.set_guarded(false) {
            self.guards.remove(&key);
        }
        ended.files.extend(open.take_file());
        ended.grants.extend(open.take_grant());
        if let Some(holdings) = self.by_client.get_mut(&client) {
            holdings.opens.remove_and_shrink(&open.id());
        }
        ended.held.push(Held::Open(open.clone()));
        self.drop_unheld_layouts(&key, &open.client, ended);
        self.tidy_client(client);
        self.tidy(&key);
    }

    pub(crate) fn enter_lock(&mut self, lock: &Arc<LockState>) {
        let file = self.files.entry(lock.open.key).or_default();
        file.lock_states.push(lock.clone());
        self.counts.locks += 1;
        lock.open.client.host().add(Shared::Locks, 1);
        self.by_client.entry(lock.open.client.key()).or_default().locks.insert(lock.id);
        self.index.insert(Held::Lock(lock.clone()));
    }

    /// Ends a lock state with its ranges.
    pub(crate) fn release_lock(&mut self, lock: &Arc<LockState>, ended: &mut Ended) {
        self.withdraw_lock(lock, ended);
        lock.life.end();
        self.index.remove(lock.id);
    }

    fn withdraw_lock(&mut self, lock: &Arc<LockState>, ended: &mut Ended) {
        let (key, client) = (lock.open.key, lock.open.client.key());
        let Some(file) = self.files.get_mut(&key) else { return };
        let before = file.lock_states.len();
        file.lock_states.retain(|other| !Arc::ptr_eq(other, lock));
        if file.lock_states.len() == before {
            return;
        }
        self.counts.locks -= 1;
        lock.open.client.host().remove(Shared::Locks, 1);
        // Persistent ranges are left behind as orphans: an orderly release has removed them before.
        let holder = Arc::new(LockHolder::of(&lock.open.client, &lock.owner));
        let (ranges, left) = file.locks.withdraw(lock.id, &holder);
        self.count_ranges(&lock.open.client, ranges, 0);
        if left > 0 {
            self.left_files.insert(key);
        }
        if let Some(holdings) = self.by_client.get_mut(&client) {
            holdings.locks.remove_and_shrink(&lock.id);
        }
        ended.held.push(Held::Lock(lock.clone()));
        if ranges > 0 {
            self.wake_waiters(&key, ended);
        }
        self.tidy_client(client);
    }

    /// Counts removed and added ranges of a client.
    pub(crate) fn count_ranges(&mut self, client: &Client, removed: usize, added: usize) {
        self.counts.ranges = self.counts.ranges + added - removed;
        client.host().add(Shared::Ranges, added);
        client.host().remove(Shared::Ranges, removed);
        if let Some(holdings) = self.by_client.get_mut(&client.key()) {
            holdings.ranges = holdings.ranges + added - removed;
        }
    }

    pub(crate) fn enter_delegation(&mut self, delegation: &Arc<DelegationState>) {
        let client = &delegation.client;
        let file = self.files.entry(delegation.key).or_default();
        file.delegations.push(delegation.clone());
        self.counts.delegations += 1;
        client.host().add(Shared::Delegations, 1);
        client.delegated.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.by_client.entry(client.key()).or_default().delegations.insert(delegation.id);
        self.index.insert(Held::Delegation(delegation.clone()));
    }

    /// Ends a delegation that was returned.
    pub(crate) fn release_delegation(
        &mut self,
        delegation: &Arc<DelegationState>,
        ended: &mut Ended,
    ) {
        self.withdraw_delegation(delegation, ended);
        delegation.life.end();
        self.index.remove(delegation.id);
    }

    /// Removes a delegation from everything but the index.
    fn withdraw_delegation(&mut self, delegation: &Arc<DelegationState>, ended: &mut Ended) {
        let (key, client) = (delegation.key, delegation.client.key());
        let Some(file) = self.files.get_mut(&key) else { return };
        let before = file.delegations.len();
        file.delegations.retain(|other| !Arc::ptr_eq(other, delegation));
        if file.delegations.len() == before {
            return;
        }
        ended.unwatch.push((delegation.store.clone(), key.file));
        self.counts.delegations -= 1;
        delegation.client.host().remove(Shared::Delegations, 1);
        delegation.client.delegated.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        self.guards.remove(&key);
        self.recalling.remove_and_shrink(&delegation.id);
        if let Some(query) = delegation.awaited_query() {
            self.queries.remove_and_shrink(&query);
        }
        ended.files.extend(delegation.take_file());
        if let Some(holdings) = self.by_client.get_mut(&client) {
            holdings.delegations.remove_and_shrink(&delegation.id);
        }
        ended.held.push(Held::Delegation(delegation.clone()));
        self.drop_unheld_layouts(&key, &delegation.client, ended);
        self.tidy_client(client);
        self.tidy(&key);
    }

    /// Revokes state. The index knows its state-id as revoked until the client frees it. Layouts
    /// are an exception: Linux frees none of those, and drops all its layouts at each reply which
    /// says that some revoked state is not freed.
    pub(crate) fn revoke(&mut self, held: &Held, by_admin: bool, ended: &mut Ended) {
        if !held.life().is_live() {
            return;
        }
        let key = match held {
            Held::Open(open) => Some(open.key),
            Held::Delegation(delegation) => Some(delegation.key),
            Held::Lock(_) | Held::Layout(_) => None,
        };
        if let Some(key) = key {
            // Otherwise these layouts would count as returned.
            self.abandon_layouts(&key, held.handle(), held.client(), ended);
        }
        if let Held::Delegation(delegation) = held
            && delegation.client.kind() == ClientKind::Dafs
        {
            // A DAFS client has no way to free it. To such a client its state-id is one that was
            // freed.
            return self.release_delegation(delegation, ended);
        }
        if let Held::Layout(layout) = held {
            return self.take_layout(layout, ended);
        }
        held.life().revoke(by_admin);
        let client = held.client().clone();
        self.by_client.entry(client.key()).or_default().revoked.insert(held.id());
        match held {
            Held::Open(open) => self.withdraw_open(open, ended),
            Held::Lock(lock) => self.withdraw_lock(lock, ended),
            Held::Delegation(delegation) => self.withdraw_delegation(delegation, ended),
            Held::Layout(_) => {}
        }
        self.counts.revoked += 1;
        client.host().add(Shared::Delegations, 1);
        let count = if by_admin { &client.admin_revoked } else { &client.revoked };
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Frees revoked state: its client has acknowledged the revocation, or is gone.
    pub(crate) fn free_revoked(&mut self, held: &Held) {
        let client = held.client();
        let holdings = self.by_client.get_mut(&client.key());
        if holdings.is_none_or(|own| own.revoked.remove_and_shrink(&held.id()).is_none()) {
            return;
        }
        self.counts.revoked -= 1;
        client.host().remove(Shared::Delegations, 1);
        let by_admin = held.life().check() == Err(ServiceError::AdminRevoked);
        let count = if by_admin { &client.admin_revoked } else { &client.revoked };
        count.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        held.life().end();
        self.index.remove(held.id());
        self.tidy_client(client.key());
    }

    /// Ends all state of a client. Returns the number of its opens too.
    pub(crate) fn release_client(&mut self, client: &Arc<Client>) -> (Ended, usize) {
        let mut ended = Ended::default();
        ended.grants.extend(client.shown.revoke());
        let Some(holdings) = self.by_client.get(&client.key()) else { return (ended, 0) };
        let opens = holdings.opens.len();
        // Layouts first: after the end of the last open they would count as returned.
        let ids = holdings.layouts.iter().chain(&holdings.opens);
        let ids = ids.chain(&holdings.delegations).chain(&holdings.revoked);
        let ids: Vec<StateId> = ids.copied().collect();
        let waiting = holdings.waiting > 0;
        for id in ids {
            match self.index.find(id) {
                Ok(held) if !held.life().is_live() => self.free_revoked(&held),
                Ok(Held::Open(open)) => self.release_open(&open, &mut ended),
                Ok(Held::Delegation(delegation)) => {
                    self.release_delegation(&delegation, &mut ended);
                }
                Ok(Held::Lock(lock)) => self.release_lock(&lock, &mut ended),
                Ok(Held::Layout(layout)) => self.abandon_layout(&layout, &mut ended),
                Err(_) => {}
            }
        }
        if waiting {
            self.forget_waiters(client, &mut ended);
        }
        debug_assert!(
            client.kind() == ClientKind::Stateless || !self.holds_anything(client.key()),
            "a released client holds nothing"
        );
        (ended, opens)
    }

    /// All layouts, opens and delegations. Locks end with their opens.
    pub(crate) fn all_held(&self) -> Vec<Held> {
        let files = self.files.values();
        let held = files.flat_map(|file| {
            let opens = file.opens.iter().cloned().map(Held::Open);
            let layouts = file.layouts.iter().cloned().map(Held::Layout);
            layouts.chain(opens).chain(file.delegations.iter().cloned().map(Held::Delegation))
        });
        held.collect()
    }

    /// Some files that a client has open under this handle. The first can be read, if any can.
    pub(crate) fn advised(&self, key: &Handle, client: &Arc<Client>) -> Vec<Arc<dyn OpenFile>> {
        let Some(file) = self.files.get(key) else { return Vec::new() };
        let own = || file.opens.iter().filter(|open| Arc::ptr_eq(&open.client, client));
        let mut files: Vec<_> =
            own().filter_map(|open| open.any_file()).take(ADVISED_OPENS_MAX).collect();
        let read = OpenMode { read: true, write: false };
        if let Some(readable) = own().find_map(|open| open.file_for(read)) {
            files.retain(|file| !Arc::ptr_eq(file, &readable));
            files.insert(0, readable);
        }
        files
    }

    /// All open files.
    pub(crate) fn all_files(&self) -> Vec<Arc<dyn OpenFile>> {
        let mut files = Vec::new();
        for file in self.files.values() {
            files.extend(file.opens.iter().filter_map(|open| open.any_file()));
            files.extend(file.delegations.iter().filter_map(|delegation| delegation.any_file()));
        }
        files
    }

    /// Any open file of this handle, for attributes of a file without a name.
    pub(crate) fn any_file(&self, key: &Handle) -> Option<Arc<dyn OpenFile>> {
        let file = self.files.get(key)?;
        let opens = file.opens.iter().find_map(|open| open.any_file());
        opens.or_else(|| file.delegations.iter().find_map(|delegation| delegation.any_file()))
    }
}
