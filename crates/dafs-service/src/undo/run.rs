//! The undo logs of locks: when a log begins, when its changes are kept, and when they are undone.
//!
//! A lock is released in many ways, and only two of them keep the changes: LOCKU and CLOSE, which
//! mark them first. Every other log without its lock belongs to a lost lock, and its changes are
//! undone: by the next tick, and at the latest before another lock is granted on the file. Those of
//! a persistent lock wait for such a request, because its holder may come back (DAFS 9.4).
//!
//! Invariants
//! * No lock is granted on a file whose changes are to be undone.
//! * A log is marked for undo under the table's lock, so that its holder cannot reclaim the lock
//!   meanwhile.
//! * A persistent lock is released when its record is removed, and its log is discarded after that.
//!   So a log of a persistent lock without a record belongs to a released lock.

use super::{Entry, Holder, UndoError};
use crate::client::ClientKey;
use crate::enter::Conflicts;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::lock::{LockExtras, LockHolder, LockKind, LockRequest, LockState, Locks};
use crate::open::OpenState;
use crate::table::StateTable;
use crate::{Caller, Namespace, Result};
use dafs_journal::Spawn;
use dafs_store::{Cred, OpenFile, OpenMode, StoreError, Wait};
use std::path::Path;
use std::sync::Arc;

/// The server itself reads pre-images and restores files, for any holder.
fn server() -> Cred {
    Cred::new(0, 0)
}

const BOTH: OpenMode = OpenMode { read: true, write: true };

impl Holder {
    fn of(holder: &LockHolder) -> Self {
        let LockHolder { name, verifier, mechanism, principal, owner, .. } = holder.clone();
        Self { name, verifier, mechanism, principal, owner }
    }

    /// Converts without the key, which belongs to one run of the server.
    pub(crate) fn to_holder(&self) -> LockHolder {
        let Self { name, verifier, mechanism, principal, owner } = self.clone();
        LockHolder { client: ClientKey(0), name, verifier, mechanism, principal, owner }
    }

    fn of_lock(lock: &LockState) -> Self {
        Self::of(&LockHolder::of(&lock.open.client, &lock.owner))
    }

    fn is(&self, holder: &LockHolder) -> bool {
        (&self.name, self.verifier, &self.owner) == (&holder.name, holder.verifier, &holder.owner)
            && (&self.mechanism, &self.principal) == (&holder.mechanism, &holder.principal)
    }
}

/// True if changes under such a lock are to be undone with it. There are no changes under a lock
/// for reading.
fn recovers(request: &LockRequest<'_>) -> bool {
    request.extras.autorecover && request.kind == LockKind::Write
}

impl Locks {
    /// Keeps undo logs in a directory, and reads those of an earlier run. The server calls it once,
    /// before it serves any request. Until then no lock with recovery is granted.
    ///
    /// # Errors
    /// The directory cannot be read, or a file in it is damaged. The directory is left unchanged.
    pub fn keep_undo_in(&self, directory: &Path) -> std::result::Result<(), UndoError> {
        for key in self.state.writers.undo.open(directory)? {
            let Some(entry) = self.state.writers.undo.find(&key) else { continue };
            if entry.head.persist && !self.state.lock().has_record(&entry) {
                self.state.writers.undo.keep(&entry).map_err(std::io::Error::other)?;
                continue;
            }
            match open_as_server(&self.exports.namespace(), &key) {
                Ok(file) => entry.set_file(file),
                Err(StoreError::Stale) => {
                    self.conflicts.undo(&entry).map_err(std::io::Error::other)?
                }
                Err(error) => entry.note_trouble(&error, 0),
            }
        }
        Ok(())
    }

    /// Makes `spawn` run the undo work of [`tick`](Self::tick), and of callers that may not wait.
    /// Without it, `tick` and those callers wait for the disk.
    pub fn undo_elsewhere(&self, spawn: Spawn) {
        // INVARIANT: set once, at the start.
        let _ = self.state.writers.undo.elsewhere.set(spawn);
    }

    /// Refuses a lock with recovery that cannot be granted.
    ///
    /// # Errors
    /// `NotSupported` for a part of a file, because its log would be more than the server keeps
    /// (DAFS O40), and without a directory for logs. `WouldWait`.
    pub(crate) fn check_recovery(
        &self,
        caller: Caller<'_>,
        request: &LockRequest<'_>,
    ) -> Result<()> {
        let LockExtras { autorecover, .. } = request.extras;
        if !autorecover {
            return Ok(());
        }
        if (request.offset, request.length) != (0, u64::MAX) || !self.state.writers.undo.is_open() {
            return Err(ServiceError::NotSupported);
        }
        if recovers(request) && caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        Ok(())
    }

    /// Begins the undo log of a granted lock, if the request asks for recovery. Releases the lock
    /// if that fails.
    pub(crate) fn begin_recovery(
        &self,
        caller: Caller<'_>,
        request: &LockRequest<'_>,
        open: &OpenState,
        holder: Option<&LockHolder>,
    ) -> Result<()> {
        let Some(holder) = holder.filter(|_| recovers(request)) else { return Ok(()) };
        let persist = request.extras.persist || request.extras.repair;
        let writers = &self.state.writers;
        // No pre-images exist for writes at data servers. So layouts are returned first, and no new
        // ones are granted until the log exists, which forbids them.
        let begun =
            self.conflicts.begin_change(caller, open.key, Some(u64::MAX)).and_then(|_change| {
                let file = open_as_server(&self.exports.namespace(), &open.key)?;
                let holds = |entry: &Entry| self.state.lock().is_held(entry);
                let holder = (Holder::of(holder), caller.client.host().host());
                writers.undo.begin(open.key, holder, persist, file, writers, holds)
            });
        if begun.is_err() {
            self.unlock(caller, open.handle(), open.reference(), 0, u64::MAX)?;
        }
        begun
    }

    /// Keeps the changes under a lock that the holder is about to release. For a lock with a
    /// record, the removal of the record decides. The caller removes it, and then reports that to
    /// the returned entry.
    ///
    /// # Errors
    /// `LockRange` for a part of a lock with recovery. `WouldWait`. Those of the disk.
    pub(crate) fn keep_changes(
        &self,
        caller: Caller<'_>,
        lock: &LockState,
        whole: bool,
    ) -> Result<Option<Arc<Entry>>> {
        let Some(entry) = self.undo_of(lock) else { return Ok(None) };
        if !whole {
            return Err(ServiceError::LockRange);
        }
        if caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        if entry.head.persist && self.state.lock().has_special(lock) {
            return Ok(Some(entry));
        }
        self.state.writers.undo.keep(&entry).map(|()| None)
    }

    /// Keeps the changes of a lock whose record is removed.
    ///
    /// # Errors
    /// `Expired` when the lock was lost before.
    pub(crate) fn changes_kept(&self, entry: &Arc<Entry>) -> Result<()> {
        if self.state.writers.undo.keep_given_up(entry) {
            Ok(())
        } else {
            Err(ServiceError::Expired)
        }
    }

    /// Returns the undo log of a lock.
    fn undo_of(&self, lock: &LockState) -> Option<Arc<Entry>> {
        let entry = self.state.writers.undo.find(&lock.open.key)?;
        entry.is_of(lock).then_some(entry)
    }

    /// Undoes the changes under a lock with recovery, and releases the lock (LOCK and LOCKU with
    /// type ABORT). The state-id is that of the owner's open.
    ///
    /// # Errors
    /// `Invalid` when the owner has no such lock. Those of the state-id. `WouldWait`. Those of the
    /// disk, with the lock still held.
    pub fn abort(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<crate::StateRef>,
    ) -> Result<()> {
        let open = self.state.open_state(caller, handle, state)?;
        let lock = self.state_under(&open);
        let entry = lock.and_then(|lock| self.undo_of(&lock)).ok_or(StoreError::Invalid)?;
        if caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        self.conflicts.undo(&entry)?;
        self.unlock(caller, handle, open.reference(), 0, u64::MAX).map(drop)
    }
}

impl Conflicts {
    fn undo(&self, entry: &Arc<Entry>) -> Result<()> {
        let open = || open_as_server(&self.exports.namespace(), &entry.head.key);
        self.state.writers.undo.roll_back(entry, &self.state.writers, open)
    }

    /// Undoes the changes of a lost lock in a file, so that a lock can be granted. Waits for the
    /// disk.
    pub(crate) fn undo_lost(&self, key: &Handle, now_ns: u64) -> Result<()> {
        let Some(entry) = self.state.writers.undo.find(key) else { return Ok(()) };
        self.undo(&entry).inspect_err(|error| entry.note_trouble(error, now_ns))
    }
}

impl Locks {
    /// Undoes the changes of lost locks. Retries failed ones at longer and longer intervals.
    pub(crate) fn tick(&self, now_ns: u64) {
        if self.state.writers.undo.is_empty() {
            return;
        }
        let in_grace = self.clients.in_grace();
        for entry in self.state.writers.undo.all() {
            let waits = match entry.head.persist {
                true => !self.state.lock().is_broken(&entry.head.key),
                false => entry.is_restored() && in_grace,
            };
            if waits && !entry.is_forfeited() || !entry.is_due(now_ns) {
                continue;
            }
            let table = self.state.lock();
            let held = !entry.is_forfeited() && table.is_held(&entry);
            if !held {
                entry.forfeit();
            }
            drop(table);
            if held {
                continue;
            }
            let (writers, namespace) = (self.state.writers.clone(), self.exports.namespace());
            self.state.writers.undo.run(&entry, move |entry| {
                let open = || open_as_server(&namespace, &entry.head.key);
                if let Err(error) = writers.undo.roll_back(entry, &writers, open) {
                    entry.note_trouble(&error, now_ns);
                }
            });
        }
    }
}

/// Opens the file of a key, in an export that leads to it and may be written to.
fn open_as_server(namespace: &Namespace, key: &Handle) -> dafs_store::Result<Arc<dyn OpenFile>> {
    let mut exports = namespace.exports().filter(|export| export.store().fs_id() == key.fs);
    let first = exports.next().ok_or(StoreError::BadHandle)?;
    let writable = std::iter::once(first).chain(exports).find(|export| export.writable().is_ok());
    writable.ok_or(StoreError::ReadOnly)?.store().open(&server(), &key.file, BOTH)
}

impl Entry {
    /// True if it is the undo log of this lock.
    pub(crate) fn is_of(&self, lock: &LockState) -> bool {
        self.head.holder == Holder::of_lock(lock) && !self.is_forfeited()
    }
}

impl StateTable {
    /// True if an orphaned or broken lock of this holder, with recovery, is on the file.
    fn has_record(&self, entry: &Entry) -> bool {
        let Some(file) = self.files.get(&entry.head.key) else { return false };
        let mut left = file.locks.orphans().iter().chain(file.locks.broken());
        left.any(|left| left.special.autorecover && entry.head.holder.is(&left.holder))
    }

    /// True if a lock has a record.
    fn has_special(&self, lock: &LockState) -> bool {
        let file = self.files.get(&lock.open.key);
        file.is_some_and(|file| file.locks.ranges.specials(Some(lock.id)).next().is_some())
    }

    /// True if the holder still has the lock.
    fn is_held(&self, entry: &Entry) -> bool {
        let Some(file) = self.files.get(&entry.head.key) else { return false };
        file.lock_states.iter().any(|lock| {
            lock.life.is_live()
                && file.locks.ranges.has_owner(lock.id)
                && entry.head.holder == Holder::of_lock(lock)
        })
    }

    /// True if a lock with recovery on the file is broken: then its holder has lost it.
    fn is_broken(&self, key: &Handle) -> bool {
        let broken = self.files.get(key).map_or(&[][..], |file| file.locks.broken());
        broken.iter().any(|left| left.special.autorecover)
    }

    /// True if changes are to be undone before an owner gets a lock that conflicts with no other.
    /// Then the log is marked, and the lock cannot be reclaimed any more.
    pub(crate) fn must_undo(
        &self,
        key: &Handle,
        me: Option<&LockHolder>,
        request: &LockRequest<'_>,
    ) -> bool {
        let Some(entry) = self.writers.undo.find(key) else { return false };
        let own = me.is_some_and(|me| entry.head.holder.is(me)) && !entry.is_forfeited();
        let kept = own
            && !request.extras.repair
            && match (entry.head.persist, entry.is_restored()) {
                // The lock was left as an orphan for its holder.
                (true, _) => true,
                (false, true) => request.reclaim,
                (false, false) => self.is_held(&entry),
            };
        if !kept {
            entry.forfeit();
        }
        !kept
    }

    /// True if a grant that [`must_undo`](Self::must_undo) allows would replace a lock with
    /// recovery by one for reading. Others could then read changes that may still be undone, and
    /// their locks would undo them while the holder lives.
    pub(crate) fn would_share_undone(&self, key: &Handle, request: &LockRequest<'_>) -> bool {
        request.kind == LockKind::Read && self.writers.undo.find(key).is_some()
    }
}
