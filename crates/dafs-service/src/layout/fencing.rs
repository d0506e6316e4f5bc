//! Layouts that were taken from holders who did not give them back: until the data servers have let
//! go of them, what they stood against waits.
//!
//! Invariants
//! * A file is held back from the moment on at which a layout was taken away, in the same step under
//!   the table's lock, until the store has said that no data server goes by it any more.
//! * The store is asked by the service's clock, never under a lock and never by a reactor.

use crate::Service;
use crate::handle::Handle;
use dafs_store::Store;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The files concerned.
#[derive(Default)]
pub(crate) struct Fencing {
    files: FxHashMap<Handle, Fenced>,
}

struct Fenced {
    store: Arc<dyn Store>,
    /// The last holder may have written what it did not live to commit.
    written: bool,
    /// How many layouts were taken away, so that one that goes meanwhile is not passed over.
    count: u64,
}

impl Fencing {
    /// A layout was taken away.
    pub(super) fn add(&mut self, store: &Arc<dyn Store>, key: Handle, written: bool) {
        let fresh = || Fenced { store: store.clone(), written: false, count: 0 };
        let file = self.files.entry(key).or_insert_with(fresh);
        file.written |= written;
        file.count += 1;
    }

    /// Whether what changes this file has to wait.
    pub(super) fn holds_back(&self, key: &Handle) -> bool {
        self.files.contains_key(key)
    }

    /// Files that are held back.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }
}

impl Service {
    /// Has the data servers let go of the layouts that were taken away. Waits for them.
    pub(crate) fn tick_fencing(&self) {
        let table = self.lock_table();
        let files = table.fencing.files.iter();
        let due: Vec<_> =
            files.map(|(key, file)| (*key, file.store.clone(), file.written, file.count)).collect();
        drop(table);
        for (key, store, written, count) in due {
            let Some(layouts) = store.layouts() else { continue };
            let settle = || if written { layouts.settle(&key.file) } else { Ok(()) };
            match layouts.forget(&key.file).and_then(|()| settle()) {
                // A file that is gone has nothing left to settle.
                Ok(()) | Err(dafs_store::StoreError::Stale) => {}
                Err(error) => {
                    tracing::debug!(%error, "data servers have not let go of a layout yet");
                    continue;
                }
            }
            let mut table = self.lock_table();
            if table.fencing.files.get(&key).is_some_and(|file| file.count == count) {
                table.fencing.files.remove(&key);
            }
            drop(table);
            self.returned.notify_all();
        }
    }
}
