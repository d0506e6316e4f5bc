//! Nodes that have lost all that they had: their copies are given up, and then an empty directory can take
//! their place, in which the copies are mended.
//!
//! Invariants
//! * A copy is given up only where another one is up to date. Stripes are never given up: nobody else
//!   has them.

use super::super::StripedStore;
use super::super::moving::Walk;
use super::super::record::Record;
use super::super::state::FileState;
use super::copied;
use crate::limits::COPY_ATTEMPTS_MAX;
use dafs_store::{FileId, Result, StoreError};

impl StripedStore {
    /// All that a node had is lost, or it is not after all. That is kept, until what lay there
    /// [has been given up](Self::give_up_lost).
    ///
    /// # Errors
    /// [`StoreError::NotFound`] for one that is not known, [`StoreError::Busy`] for one that is there and
    /// is to have lost all; those of the directory in which that is kept.
    pub fn set_lost(&self, number: u32, lost: bool) -> Result<()> {
        let slot = self.shared.slots.find(number).ok_or(StoreError::NotFound)?;
        if lost && slot.node.is_there() {
            return Err(StoreError::Busy);
        }
        let _server = self.shared.as_server()?;
        self.shared.slots.set_lost(number, lost)
    }

    /// The numbers of the nodes that have lost all that they had.
    pub fn lost(&self) -> Vec<u32> {
        self.shared.slots.lost().into_iter().collect()
    }

    /// The next files that count on what a node has, perhaps none; `None` at the end.
    ///
    /// # Errors
    /// Those of the metadata directory.
    pub fn relying_on(&self, number: u32, walk: &mut Walk) -> Result<Option<Vec<FileId>>> {
        self.next_where(walk, |record| relies_on(record, number))
    }

    /// Gives up what a file has on a node that has lost it.
    ///
    /// # Errors
    /// [`StoreError::NotSupported`] for a file with stripes there, [`StoreError::Busy`] for one whose only
    /// copy that is up to date was there, or that cannot be used now; those of the list of files to be
    /// mended and of the metadata.
    pub fn give_up_lost(&self, file: &FileId, number: u32) -> Result<()> {
        self.shared.state(file).give_up_lost(number)
    }

    /// The same for all files that are in use: they may have no name.
    ///
    /// # Errors
    /// As there; the last one.
    pub fn give_up_lost_in_use(&self, number: u32) -> Result<()> {
        let mut outcome = Ok(());
        for state in &self.shared.in_use() {
            match state.give_up_lost(number) {
                // Such as a directory, or what was removed meanwhile.
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
        // Copies may leave and come meanwhile.
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

/// Whether what a node has is the file's: a stripe, or a copy that counts.
fn relies_on(record: &Record, number: u32) -> bool {
    record.usable().unwrap_or_else(|| record.nodes.clone()).contains(&number)
}
