//! Layouts that were taken from holders who did not give them back: until the data servers have let
//! go of them, what they stood against waits.
//!
//! Invariants
//! * A file is held back from the moment on at which a layout was taken away, in the same step under
//!   the table's lock, until the store has said that no data server goes by it any more. So long nobody
//!   is given opens, locks or delegations of it, and nobody writes without an open: what the holder had
//!   may have stood against that.
//! * What its holder may have written is looked for after that; nobody waits for it. Of a layout that
//!   was given back its holder waits, before it is answered.
//! * The store is asked never under a lock and never by a reactor, and in turns by one thread at a time. Of a store
//!   that says that it cannot be sure now no more is asked in that turn, and those that were asked least
//!   come first.

use super::LayoutState;
use crate::handle::Handle;
use crate::table::{Blocked, StateTable};
use crate::{Result, Service, ServiceError};
use dafs_store::{Store, StoreError};
use rustc_hash::FxHashMap;
use std::sync::{Arc, PoisonError, TryLockError};

/// The files concerned.
#[derive(Default)]
pub(crate) struct Fencing {
    files: FxHashMap<Handle, Fenced>,
}

struct Fenced {
    store: Arc<dyn Store>,
    /// Data servers may still go by a layout.
    believed: bool,
    /// The last holder may have written what it did not live to commit.
    written: bool,
    /// How many layouts were taken away, so that one that goes meanwhile is not passed over.
    count: u64,
    /// How often the store was asked in vain.
    tries: u32,
}

/// What is to be asked of a store about one file.
struct Due {
    key: Handle,
    store: Arc<dyn Store>,
    believed: bool,
    written: bool,
    count: u64,
}

impl Fencing {
    /// A layout was taken away. True when the file was not held back before.
    fn add(&mut self, store: &Arc<dyn Store>, key: Handle, written: bool) -> bool {
        let file = self.entry(store, key);
        file.written |= written;
        file.count += 1;
        !std::mem::replace(&mut file.believed, true)
    }

    /// A layout was given back whose holder may have written what it did not tell.
    pub(super) fn note_written(&mut self, store: &Arc<dyn Store>, key: Handle) {
        let file = self.entry(store, key);
        file.written = true;
        file.count += 1;
    }

    fn entry(&mut self, store: &Arc<dyn Store>, key: Handle) -> &mut Fenced {
        let store = store.clone();
        let fresh = || Fenced { store, believed: false, written: false, count: 0, tries: 0 };
        self.files.entry(key).or_insert_with(fresh)
    }

    /// Whether what changes this file, or who may use it, has to wait.
    pub(crate) fn holds_back(&self, key: &Handle) -> bool {
        self.files.get(key).is_some_and(|file| file.believed)
    }

    /// Whether it is to be looked yet for what somebody has written to this file.
    pub(super) fn has(&self, key: &Handle) -> bool {
        self.files.contains_key(key)
    }

    /// Files with layouts that were taken away.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    fn due(&self, wanted: impl Fn(&Handle, &Fenced) -> bool) -> Vec<Due> {
        let mut due: Vec<_> = self.files.iter().filter(|(key, file)| wanted(key, file)).collect();
        due.sort_by_key(|(_, file)| file.tries);
        due.into_iter().map(|(key, file)| file.due(key)).collect()
    }

    /// What is due of some files.
    fn due_of(&self, keys: &[Handle]) -> Vec<Due> {
        keys.iter().filter_map(|key| Some(self.files.get(key)?.due(key))).collect()
    }
}

impl Fenced {
    fn due(&self, key: &Handle) -> Due {
        Due {
            key: *key,
            store: self.store.clone(),
            believed: self.believed,
            written: self.written,
            count: self.count,
        }
    }
}

impl StateTable {
    /// A layout was taken away: the file is held back.
    pub(super) fn hold_back(&mut self, layout: &LayoutState, written: bool) {
        self.hold_back_file(&layout.store, layout.key, written);
    }

    /// The same of a file that a layout was of.
    pub(super) fn hold_back_file(&mut self, store: &Arc<dyn Store>, key: Handle, written: bool) {
        if self.fencing.add(store, key, written) {
            self.guards.add(&key);
        }
    }

    /// Has whoever wants to use a file wait for as long as it is held back.
    pub(crate) fn check_held_back(&self, key: &Handle) -> std::result::Result<(), Blocked> {
        if self.fencing.holds_back(key) { Err(Blocked::Recall(Vec::new())) } else { Ok(()) }
    }
}

impl Service {
    /// Has the data servers let go of the layouts that were taken away, and looks for what their holders
    /// have written. Waits for them, so it is for a thread that has nothing else to do; to be called
    /// several times a second.
    pub fn fence_layouts(&self) {
        let turn = match self.fencing_turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let due = self.lock_table().fencing.due(|_, _| true);
        let mut unsure: Vec<Arc<dyn Store>> = Vec::new();
        for due in due {
            if !unsure.iter().any(|store| Arc::ptr_eq(store, &due.store))
                && let Err(error) = self.fence(&due)
            {
                tracing::debug!(%error, "data servers have not let go of a layout yet");
                unsure.push(due.store);
            }
        }
        drop(turn);
    }

    /// The same at once for some files, until nothing of theirs is held back.
    ///
    /// # Errors
    /// `Delay` when that is not sure yet.
    pub(super) fn fence_now(&self, wanted: impl Fn(&Handle) -> bool) -> Result<()> {
        let turn = self.fencing_turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.fence_all(wanted)?;
        drop(turn);
        Ok(())
    }

    /// The same for one file, unless somebody else is asking stores now.
    ///
    /// # Errors
    /// `Delay` when it is not sure.
    pub(crate) fn fence_if_free(&self, key: &Handle) -> Result<()> {
        let turn = match self.fencing_turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(ServiceError::Delay),
        };
        self.fence_all(|file| file == key)?;
        drop(turn);
        Ok(())
    }

    /// Does for layouts that were given back what is due. What cannot be done now is done in the next
    /// turns, as is all else of a store that cannot be sure.
    pub(super) fn settle_now(&self, keys: &[Handle]) {
        let due = self.lock_table().fencing.due_of(keys);
        let mut unsure: Vec<Arc<dyn Store>> = Vec::new();
        for due in due {
            if !unsure.iter().any(|store| Arc::ptr_eq(store, &due.store))
                && let Err(error) = self.fence(&due)
            {
                tracing::debug!(%error, "a layout was given back and data servers do not answer");
                unsure.push(due.store);
            }
        }
    }

    fn fence_all(&self, wanted: impl Fn(&Handle) -> bool) -> Result<()> {
        let due = self.lock_table().fencing.due(|key, file| file.believed && wanted(key));
        due.iter().try_for_each(|due| self.fence(due)).map_err(|_| ServiceError::Delay)
    }

    /// Asks the store what is due, and notes what it has done.
    fn fence(&self, due: &Due) -> std::result::Result<(), StoreError> {
        let key = &due.key;
        let Some(layouts) = due.store.layouts() else { return Ok(()) };
        if due.believed {
            self.note_fencing(due, gone_is_fine(layouts.forget(&key.file)), |file| {
                if std::mem::take(&mut file.believed) {
                    self.guards.remove(key);
                }
            })?;
            self.returned.notify_all();
        }
        if due.written {
            self.note_fencing(due, gone_is_fine(layouts.settle(&key.file)), |file| {
                file.written = false;
            })?;
        }
        let mut table = self.lock_table();
        if table.fencing.files.get(key).is_some_and(|file| !file.believed && !file.written) {
            table.fencing.files.remove(key);
        }
        Ok(())
    }

    fn note_fencing(
        &self,
        due: &Due,
        outcome: std::result::Result<(), StoreError>,
        done: impl FnOnce(&mut Fenced),
    ) -> std::result::Result<(), StoreError> {
        let mut table = self.lock_table();
        if let Some(file) = table.fencing.files.get_mut(&due.key) {
            match outcome {
                // Another one may have been taken away meanwhile.
                Ok(()) if file.count == due.count => done(file),
                _ => file.tries = file.tries.saturating_add(1),
            }
        }
        outcome
    }
}

/// Of a file that is gone there is nothing left to let go of.
fn gone_is_fine(
    outcome: std::result::Result<(), StoreError>,
) -> std::result::Result<(), StoreError> {
    match outcome {
        Err(StoreError::Stale) => Ok(()),
        other => other,
    }
}
