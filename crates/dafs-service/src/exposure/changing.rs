//! Changes of exposed files: the entries of their blocks are absent from before a change begins until
//! it has ended.
//!
//! Invariants
//! * A file may have an exposure of its own and a part of one that small files share. A change takes
//!   blocks away in both.
//! * A change of a small file takes all of its blocks away, so its end is never found where the file
//!   has gone on.

use super::file::{ChangeId, blocks};
use super::files::{ExposedFile, Exposure};
use crate::handle::Handle;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A change in one exposure.
struct Change {
    file: Arc<ExposedFile>,
    id: ChangeId,
}

impl Change {
    fn begin(file: Arc<ExposedFile>, changed: RangeInclusive<u64>) -> Self {
        let id = file.file.lock().begin_change(changed, file.shared.now_ns(), &*file.memory);
        Self { file, id }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.file.file.lock().end_change(self.id);
    }
}

/// A change of an exposed file. It ends when this is dropped.
pub(crate) struct Changing {
    _own: Option<Change>,
    _small: Option<Change>,
}

impl Exposure {
    /// Takes the entries of bytes away until the end of a change of them: all behind `offset` for
    /// `u64::MAX` bytes.
    pub(crate) fn begin_change(&self, key: &Handle, offset: u64, bytes: u64) -> Option<Changing> {
        self.begin_change_from(key, || offset, bytes)
    }

    /// The same, where the first byte costs a question. One relaxed load for most files that are not
    /// exposed, and a look into one list for most of the others.
    pub(crate) fn begin_change_from(
        &self,
        key: &Handle,
        offset: impl FnOnce() -> u64,
        bytes: u64,
    ) -> Option<Changing> {
        let (has_own, has_small) = self.slot(key).has();
        let own = has_own.then(|| self.files.read().get(key).cloned()).flatten();
        let small = has_small.then(|| self.small.read().get(key).cloned()).flatten();
        let own = own.map(|file| Change::begin(file, blocks(offset(), bytes)));
        let small = small.map(|(file, part)| Change::begin(file, part.blocks()));
        (own.is_some() || small.is_some()).then_some(Changing { _own: own, _small: small })
    }

    /// Ends the exposure of a file, if it is exposed, also where it shares that with others. On return
    /// its memory is taken back, also if another thread was doing that. Not for a thread with the lock
    /// of the table: it discards memory.
    pub(crate) fn withdraw(&self, key: &Handle) {
        // The caller has just forbidden new exposures of the file. Only the lock of the list orders
        // that against one that was on its way; a load of the slot would not.
        let own = self.files.read().get(key).cloned();
        let small = self.small.read().get(key).map(|(file, _)| file.clone());
        own.iter().chain(&small).for_each(|file| self.end(file));
    }

    /// Takes the blocks of a file away that a local program has changed, bypassing the server.
    pub(crate) fn changed_locally(&self, key: &Handle) {
        let own = self.files.read().get(key).cloned();
        // The names in a root directory are none of the content of its small files.
        let own = own.filter(|file| file.small.is_none());
        own.iter().for_each(|file| self.end(file));
        let small = self.small.read().get(key).cloned();
        let Some((file, part)) = small else { return };
        // A fill that has read the former content is thrown away.
        drop(Change::begin(file.clone(), part.blocks()));
        // The watch would keep the space of a file that has lost its last name.
        let has_name = file.store.getattr(&key.file).is_ok_and(|attr| attr.links > 0);
        if !has_name {
            self.removed(key);
        }
    }
}
