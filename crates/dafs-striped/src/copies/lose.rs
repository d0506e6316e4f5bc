//! Nodes that have lost all their data. Their copies are given up. Then an empty directory can take
//! the place of the node, and the copies are repaired there.
//!
//! Invariants
//! * A copy is given up only if another one is fresh. Stripes are never given up, because no other
//!   node has them.

use super::super::StripedStore;
use super::super::moving::Walk;
use super::super::record::Record;
use super::super::state::FileState;
use super::copied;
use crate::limits::COPY_ATTEMPTS_MAX;
use dafs_store::{FileId, Result, StoreError};

impl StripedStore {
    /// Marks a node as having lost all its data, or withdraws the mark. The mark is stable. It
    /// stays until it is withdrawn, after the copies there [have been given
    /// up](Self::give_up_lost).
    ///
    /// # Errors
    /// * [`StoreError::NotFound`] for an unknown node.
    /// * [`StoreError::Busy`] for a reachable node that is to be marked.
    /// * Those of the directory of the mark.
    pub fn set_lost(&self, number: u32, lost: bool) -> Result<()> {
        let slot = self.shared.slots.find(number).ok_or(StoreError::NotFound)?;
        if lost && slot.node.is_reachable() {
            return Err(StoreError::Busy);
        }
        let _server = self.shared.as_server()?;
        self.shared.slots.set_lost(number, lost)
    }

    /// Returns the numbers of the nodes that have lost all their data.
    pub fn lost(&self) -> Vec<u32> {
        self.shared.slots.lost().into_iter().collect()
    }

    /// Returns the next files, perhaps none, that need data of a node. `None` at the end.
    ///
    /// # Errors
    /// Those of the metadata directory.
    pub fn relying_on(&self, number: u32, walk: &mut Walk) -> Result<Option<Vec<FileId>>> {
        self.next_where(walk, |record| relies_on(record, number))
    }

    /// Gives up the copy of a file on a node that has lost it.
    ///
    /// # Errors
    /// * [`StoreError::NotSupported`] for a file with stripes there.
    /// * [`StoreError::Busy`] for a file whose only fresh copy was there, or that cannot be used
    ///   now.
    /// * Those of the list of files to be repaired and of the metadata.
    pub fn give_up_lost(&self, file: &FileId, number: u32) -> Result<()> {
        self.shared.state(file).give_up_lost(number)
    }

    /// Does the same for all files in use, which may have no name.
    ///
    /// # Errors
    /// As for [`give_up_lost`](Self::give_up_lost); the last one.
    pub fn give_up_lost_in_use(&self, number: u32) -> Result<()> {
        let mut outcome = Ok(());
        for state in &self.shared.in_use() {
            match state.give_up_lost(number) {
                // The object may be a directory, or a file that was removed meanwhile.
                Ok(()) | Err(StoreError::BadType | StoreError::Stale | StoreError::NotFound) => {}
                failed => outcome = failed,
            }
        }
        outcome
    }
}

impl FileState {
    fn give_up_lost(&self, number: u32) -> Result<()> {
        let Some(record) = self.look()? else { return Ok(()) };
        if !relies_on(&record, number) {
            return Ok(());
        }
        if record.whole.is_none() {
            return Err(StoreError::NotSupported);
        }
        // The places of copies may change meanwhile.
        for _ in 0..COPY_ATTEMPTS_MAX {
            let place = self.enter()?;
            let Some((record, _)) = copied(&place) else { return Err(StoreError::Busy) };
            let nodes = record.nodes.clone();
            let Some(at) = record.fresh().find(|at| nodes[*at] == number) else { return Ok(()) };
            drop(place);
            self.give_up(&nodes, 1 << at)?;
        }
        Err(StoreError::Busy)
    }
}

/// True if the file needs the node's data: a stripe, or a fresh copy.
fn relies_on(record: &Record, number: u32) -> bool {
    record.usable().unwrap_or_else(|| record.nodes.clone()).contains(&number)
}
