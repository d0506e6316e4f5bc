//! Cuts of files some of whose nodes are away.
//!
//! Invariants
//! * A cut is over when each node has cut its component, or when it is stable which nodes have not and
//!   none of those goes by what it was told before.
//! * A component that is still to be cut is used by nobody: not through the store, and not by clients
//!   themselves, because data servers that ask about them are told to wait.

use super::record::Record;
use super::state::{FileState, Place};
use super::{Shared, StripedStore, lock};
use dafs_store::node::ComponentHandle;
use dafs_store::{Result, StoreError};

impl StripedStore {
    /// Whether clients may use a component by themselves.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while it is not what the file has there.
    pub fn admits(&self, handle: &ComponentHandle) -> Result<()> {
        let owes = lock(&self.shared.owing).contains_key(&(handle.component, handle.node));
        let moves = lock(&self.shared.moving).contains(&handle.component);
        if owes || moves { Err(StoreError::Busy) } else { Ok(()) }
    }
}

impl Shared {
    /// Has components cut whose nodes have come back, of files in use.
    pub(super) fn pay_all(self: &std::sync::Arc<Self>) {
        let owing: Vec<_> = lock(&self.owing).iter().map(|(key, file)| (*key, *file)).collect();
        for ((_, number), file) in owing {
            if self.slot(number).is_ok_and(|slot| slot.node.is_there())
                && let Err(error) = self.state(&file).enter().map(drop)
            {
                tracing::debug!(number, %error, "a component is not cut yet");
            }
        }
    }
}

impl FileState {
    /// Whether some node owes a cut and is there.
    pub(super) fn can_pay(&self, place: &Place) -> bool {
        let Place::Striped(record) = place else { return false };
        record.owed.iter().any(|&(place, _)| self.is_there(record, place.into()))
    }

    fn is_there(&self, record: &Record, place: usize) -> bool {
        self.shared().slot(record.nodes[place]).is_ok_and(|slot| slot.node.is_there())
    }

    /// Cuts the components that are to be cut still and whose nodes are there. Those for which that fails
    /// go on owing it.
    pub(super) fn pay(&self, record: &mut Record) {
        if record.owed.is_empty() {
            return;
        }
        let Ok(_server) = self.shared().as_server() else { return };
        let cut = |place: u16, size| {
            let node = self.shared().slot(record.nodes[usize::from(place)])?.node.clone();
            if node.is_there() { node.cut(&record.component, size) } else { Err(StoreError::Busy) }
        };
        let mut left = record.clone();
        left.owed.retain(|&(place, size)| cut(place, size).is_err());
        if left.owed.len() == record.owed.len() {
            return;
        }
        drop(_server);
        // Whoever makes later data stable makes this stable, too: it is not cut a second time.
        if let Err(error) = self.keep(&left) {
            tracing::warn!(component = %record.component, %error, "a cut cannot be noted as done");
            return;
        }
        tracing::info!(component = %record.component, "a cut is finished on nodes that are back");
        *record = left;
        self.note_owing(record);
    }

    /// Cuts the components of a record. Those of nodes that are away will owe it: where, and what to.
    pub(super) fn cut_components(&self, record: &Record, size: u64) -> Result<Vec<(u16, u64)>> {
        let shared = self.shared();
        let _server = shared.as_server()?;
        let mut owed = Vec::new();
        for (place, &number) in (0..).zip(&record.nodes) {
            let node = shared.slot(number)?.node.clone();
            // One from before is not forgotten for a larger one.
            let size = record.owed_at(place.into()).map_or(size, |owed| owed.min(size));
            match node.cut(&record.component, size) {
                Err(StoreError::Busy) => {
                    // Before it can ask anew.
                    lock(&shared.owing).insert((record.component, number), self.id());
                    node.forget(&record.component)?;
                    owed.push((place, size));
                }
                done => done?,
            }
        }
        Ok(owed)
    }

    /// Lets data servers know which components of a file are not to be used.
    pub(super) fn note_owing(&self, record: &Record) {
        let mut owing = lock(&self.shared().owing);
        if owing.is_empty() && record.owed.is_empty() {
            return;
        }
        owing.retain(|(component, _), _| *component != record.component);
        for &(place, _) in &record.owed {
            let number = record.nodes[usize::from(place)];
            owing.insert((record.component, number), self.id());
        }
    }
}
