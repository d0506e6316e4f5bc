//! The disk of a world's server: a file system that survives its server, and loses unsynced changes
//! in a power failure.
//!
//! Names and attributes change in order, as in a journalling file system. A power failure undoes
//! all changes after some point of that order, but none up to the last synced one. Unsynced data is
//! kept, lost or torn, each page independently.
//!
//! Invariants
//! * Stable changes survive every power failure. All changes survive the end of the process.
//! * After its end, a server that still holds the disk can neither change nor read it.

mod contents;
mod file;
mod journal;
mod power;
mod store;

pub(crate) use journal::JournalDisk;
pub(crate) use power::{Off, Plug, Power};
pub(crate) use store::DiskStore;

use contents::Contents;
use dafs_dat::sim::SimRng;
use dafs_mem::Mutex;
use dafs_store::{FileId, MemoryImage, MemoryStore, Result, Store};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most unsynced changes of names and attributes. Beyond that the oldest ones become stable.
const CHANGES_MAX: usize = 16;

/// A disk. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SimDisk {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    memory: MemoryStore,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// The states that a power failure may return to, oldest first. The first is stable, the last
    /// is current.
    states: VecDeque<Moment>,
    contents: Contents,
    lies: bool,
}

#[derive(Debug)]
struct Moment {
    image: MemoryImage,
    /// The objects that the change touched.
    touched: Vec<FileId>,
}

impl SimDisk {
    /// A disk with the names of `memory`, all stable; its files must be empty. With `lies` it
    /// reports syncs that it has not done; this proves that the checks notice.
    pub(crate) fn new(memory: MemoryStore, lies: bool) -> Self {
        let image = memory.image(None);
        let states = VecDeque::from([Moment { image, touched: Vec::new() }]);
        let log = Mutex::new(Log { states, contents: Contents::default(), lies });
        Self { shared: Arc::new(Shared { memory, log }) }
    }

    /// The file system, for the server that holds `plug`.
    pub(crate) fn store(&self, plug: Plug) -> DiskStore {
        DiskStore::new(self.shared.clone(), plug)
    }

    /// Applies a power failure: unsynced changes are kept, lost or torn, as `rng` decides. The
    /// server must have ended.
    pub(crate) fn cut_power(&self, rng: &mut SimRng) -> Result<()> {
        let mut log = self.shared.log.lock();
        let kept = 1 + rng.below(log.states.len() as u64) as usize;
        log.states.truncate(kept);
        while log.states.len() > 1 {
            log.states.pop_front();
        }
        let Log { states, contents, .. } = &mut *log;
        let Some(Moment { image, .. }) = states.front() else { return Ok(()) };
        contents.cut_power(rng, |id| image.holds(id));
        self.shared.memory.restore(image, &mut |id| contents.content(id))
    }

    /// The current file system, to compare with.
    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.shared.memory
    }

    /// Makes everything stable.
    #[cfg(test)]
    fn settle(&self) {
        let mut log = self.shared.log.lock();
        while log.states.len() > 1 {
            log.states.pop_front();
        }
        log.contents.settle_all();
    }
}

impl Shared {
    /// Records a change of names or attributes.
    fn changed(&self, touched: Vec<FileId>) {
        let mut log = self.log.lock();
        let image = self.memory.image(log.states.back().map(|moment| &moment.image));
        log.states.push_back(Moment { image, touched });
        if log.states.len() > CHANGES_MAX {
            log.states.pop_front();
        }
        let Log { states, contents, .. } = &mut *log;
        contents.keep(|id| states.iter().any(|moment| moment.image.holds(id)));
    }

    /// Makes all changes up to the latest one of any of `ids` stable.
    fn settle_names(&self, ids: &[FileId]) {
        let mut log = self.log.lock();
        if log.lies {
            return;
        }
        let touches = |moment: &Moment| moment.touched.iter().any(|id| ids.contains(id));
        let last = log.states.iter().rposition(touches).unwrap_or(0);
        log.states.drain(..last);
        ids.iter().for_each(|id| log.contents.settle_size(id));
    }

    /// Makes the data and the attributes of a file stable.
    fn settle_data(&self, id: &FileId, offset: u64, len: u64) {
        let mut log = self.log.lock();
        log.contents.settle(id, offset, len);
        let image = self.memory.image(log.states.back().map(|moment| &moment.image));
        log.states.iter_mut().for_each(|moment| moment.image.take_attributes(&image, id));
    }

    /// Records a change of a file's data within a range.
    fn data_changed(&self, id: &FileId, offset: u64, end: u64) -> Result<()> {
        let root = dafs_store::Cred::new(0, 0);
        let mode = dafs_store::OpenMode { read: true, write: false };
        let file = self.memory.open(&root, id, mode)?;
        self.log.lock().contents.changed(id, file.as_ref(), offset, end)
    }
}

#[cfg(test)]
mod tests;
