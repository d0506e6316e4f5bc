//! Persistent locks of failed holders, which keep all others out until a repair (DAFS 9.3, 9.4).
//!
//! Invariants
//! * A broken lock is counted in the guards before any client is told of it, and until it is
//!   repaired.
//! * A client is told that a lock is broken only after the record of the lock says so.

use super::book::{LockHolder, Orphan};
use super::records::{LockChange, LockRecord};
use super::{LockConflict, Locks, Range};
use crate::Result;
use crate::client::Client;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::hosts::Host;
use crate::index::Held;
use crate::limits::LEFT_FILES_SWEPT_MAX;
use crate::table::{Ended, StateTable};
use dafs_mem::Shrinking as _;
use dafs_store::{StoreError, Wait};
use std::sync::Arc;

impl LockHolder {
    pub(crate) fn of(client: &Client, owner: &[u8]) -> Self {
        Self {
            client: client.key(),
            name: client.name().to_vec(),
            verifier: client.verifier(),
            mechanism: client.identity().mechanism.to_owned(),
            principal: client.identity().principal.clone(),
            owner: owner.to_vec(),
        }
    }
}

impl Orphan {
    /// The lock, in the answer to others.
    pub(super) fn conflict(&self) -> LockConflict {
        LockConflict {
            offset: self.range.first,
            length: self.range.length(),
            kind: self.kind,
            client: self.holder.client,
            owner: self.holder.owner.as_slice().into(),
        }
    }
}

impl StateTable {
    /// Breaks the orphaned locks of a file that match, and queues their records. All layouts of the
    /// file are revoked, because data servers would let clients access the broken ranges.
    pub(super) fn break_orphans(
        &mut self,
        key: &Handle,
        matches: impl Fn(&Orphan) -> bool,
        ended: &mut Ended,
    ) -> usize {
        let Some(file) = self.files.get_mut(key) else { return 0 };
        let broken = file.locks.break_orphans(matches);
        let changes: Vec<_> = broken
            .iter()
            .map(|orphan| LockChange::Put(LockRecord::of(key, orphan, true)))
            .collect();
        broken.iter().for_each(|_| self.guards.add_broken(key));
        if !changes.is_empty() {
            ended.withdrawn.push(*key);
            self.lock_log.put(changes, true);
            self.revoke_layouts(key, ended);
        }
        broken.len()
    }

    /// Enters a lock from its record.
    fn restore_lock(&mut self, key: Handle, record: &LockRecord) {
        self.lock_log.skip_to(record.number);
        self.lock_log.add_kept(&record.holder.name, Host::Unknown);
        if record.broken {
            self.guards.add_broken(&key);
        }
        self.left_files.insert(key);
        self.files.entry(key).or_default().locks.restore(record.orphan(), record.broken);
    }

    /// True when a client holds a persistent lock.
    pub(crate) fn keeps_locks(&self, client: &Client) -> bool {
        if self.lock_log.kept() == 0 {
            return false;
        }
        let held = self.by_client.get(&client.key());
        let mut ids = held.into_iter().flat_map(|held| &held.locks);
        ids.any(|&id| match self.index.find(id) {
            Ok(Held::Lock(lock)) => {
                let file = self.files.get(&lock.open.key);
                file.is_some_and(|file| file.locks.ranges.specials(Some(id)).next().is_some())
            }
            _ => false,
        })
    }

    /// Updates the set of files with orphaned or broken locks.
    pub(crate) fn note_left(&mut self, key: &Handle) {
        if self.files.get(key).is_some_and(|file| file.locks.has_left()) {
            self.left_files.insert(*key);
        } else {
            self.left_files.remove_and_shrink(key);
        }
    }

    /// Forgets the orphaned and broken locks of a file that is gone.
    fn forget_all_orphans(&mut self, key: &Handle) {
        let Some(file) = self.files.get_mut(key) else { return };
        for _ in file.locks.broken() {
            self.guards.remove_broken(key);
        }
        let orphans = file.locks.forget_orphans();
        orphans.iter().for_each(|orphan| self.lock_log.remove_kept(&orphan.holder.name, 1));
        let gone = orphans.iter().map(|orphan| LockChange::Remove(orphan.special.number));
        self.lock_log.put(gone.collect(), true);
        self.left_files.remove_and_shrink(key);
        self.tidy(key);
    }
}

impl Locks {
    /// Enters the persistent locks of earlier runs. Holders can reclaim locks that they held until
    /// another client's request conflicts.
    pub(crate) fn restore(&self, records: &[LockRecord]) {
        let mut table = self.state.lock();
        for record in records {
            table.restore_lock(record.handle, record);
        }
    }

    /// Breaks the locks of a client's older instances, because the client has restarted and they
    /// will not come back. An instance that another one has replaced meanwhile breaks none: only the
    /// verifiers differ, so locks of its successor would count as older. Delegations that were
    /// compatible with a shared lock are recalled: their holders would go on granting locks locally.
    /// Waits for the disk if it may.
    pub(crate) fn break_older(&self, client: &Client, wait: Wait, now_ns: u64) {
        let mut table = self.state.lock();
        // The successor gets locks under this lock, and only once this one is gone.
        if client.is_gone() {
            return;
        }
        let keys: Vec<Handle> = table.left_files.iter().copied().collect();
        let (verifier, identity) = (client.verifier(), client.identity());
        let older = |orphan: &Orphan| {
            let (mechanism, principal) = (identity.mechanism, &identity.principal);
            orphan.holder.is_older(client.name(), verifier, mechanism, principal)
        };
        let (mut broken, mut files) = (0, Vec::new());
        let mut ended = Ended::default();
        for key in &keys {
            let count = table.break_orphans(key, older, &mut ended);
            broken += count;
            files.extend((count > 0).then_some(key));
        }
        drop(table);
        self.state.finish(ended);
        files.into_iter().for_each(|key| self.delegations.recall_all(key, now_ns));
        if broken > 0 {
            let client = client.name().escape_ascii();
            tracing::warn!(%client, broken, "the holder has restarted; its locks are broken");
            // Otherwise the change stays queued, and no client is told of it before it is written.
            if wait == Wait::Allowed {
                let _logged = self.lock_log.flush(&*self.clients.records);
            }
        }
    }

    /// Checks that bytes may be read or written. Under a broken lock they may not, because its
    /// holder may have left them half changed. Costs one load while no lock is broken.
    ///
    /// # Errors
    /// `LockBroken`, and the store's for the file.
    pub fn check_span(&self, handle: &Handle, offset: u64, length: u64) -> Result<()> {
        if !self.state.guards.any_broken() || length == 0 {
            return Ok(());
        }
        let key = self.exports.namespace().export(handle)?.key(handle);
        if !self.state.guards.maybe_broken(&key) {
            return Ok(());
        }
        let range = Range { first: offset, last: offset.saturating_add(length - 1) };
        let table = self.state.lock();
        match table.files.get(&key).is_some_and(|file| file.locks.is_broken_in(range)) {
            true => Err(ServiceError::LockBroken),
            false => Ok(()),
        }
    }

    /// Returns the range in which an append may write, for [`check_span`](Self::check_span).
    ///
    /// # Errors
    /// The store's.
    pub fn append_span(&self, handle: &Handle) -> Result<(u64, u64)> {
        if !self.state.guards.any_broken() {
            return Ok((0, 0));
        }
        let namespace = self.exports.namespace();
        let size = self.state.getattr_in(namespace.export(handle)?, handle)?.size;
        Ok((size, u64::MAX))
    }

    /// Forgets the orphaned and broken locks of files that are gone, some at a time, and writes
    /// records that could not be written before. Waits for the disk.
    pub(crate) fn sweep(&self) {
        let table = self.state.lock();
        let unused = |key: &&Handle| table.files.get(key).is_some_and(|file| file.opens.is_empty());
        let keys: Vec<Handle> =
            table.left_files.iter().filter(unused).take(LEFT_FILES_SWEPT_MAX).copied().collect();
        drop(table);
        let namespace = self.exports.namespace();
        for key in keys {
            let store = namespace.exports().find(|export| export.store().fs_id() == key.fs);
            let found = store.map(|export| export.store().getattr(&key.file));
            if matches!(found, Some(Err(StoreError::Stale))) {
                tracing::info!("a file with orphaned locks is gone");
                self.state.lock().forget_all_orphans(&key);
            }
        }
        let _logged = self.lock_log.flush(&*self.clients.records);
    }
}

/// Names an owner that may have persistent locks.
pub(super) fn holder(client: &Client, owner: &[u8]) -> Option<Arc<LockHolder>> {
    let keeps = client.kind() == crate::ClientKind::Dafs;
    keeps.then(|| Arc::new(LockHolder::of(client, owner)))
}
