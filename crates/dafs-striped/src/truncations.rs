//! Pending truncations: components on unreachable nodes that are still to be truncated.
//!
//! Invariants
//! * A truncation is complete when each node has truncated its component, or when the record stably
//!   names the nodes that have not, and these hold no cached authorisations any more.
//! * A component with a pending truncation is not used: neither through the store nor by clients,
//!   because data servers that ask for an authorisation get `Busy`.

use super::record::Record;
use super::state::{FileState, Place};
use super::{Shared, StripedStore};
use dafs_store::node::ComponentHandle;
use dafs_store::{Result, StoreError};

impl StripedStore {
    /// Checks that clients may access a component.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while its truncation is pending or its file is moving.
    pub fn admits(&self, handle: &ComponentHandle) -> Result<()> {
        let is_pending =
            self.shared.truncations.lock().contains_key(&(handle.component, handle.node));
        let moves = self.shared.moving.lock().contains(&handle.component);
        if is_pending || moves { Err(StoreError::Busy) } else { Ok(()) }
    }
}

impl Shared {
    /// Does the pending truncations of files in use whose nodes are reachable again.
    pub(super) fn finish_all_pending(self: &std::sync::Arc<Self>) {
        let pending: Vec<_> =
            self.truncations.lock().iter().map(|(key, file)| (*key, *file)).collect();
        for ((_, number), file) in pending {
            if self.slot(number).is_ok_and(|slot| slot.node.is_reachable())
                && let Err(error) = self.state(&file).enter().map(drop)
            {
                tracing::debug!(number, %error, "a component is not truncated yet");
            }
        }
    }
}

impl FileState {
    /// True if a pending truncation can be done, because its node is reachable.
    pub(super) fn can_finish_pending(&self, place: &Place) -> bool {
        let Place::Striped(record) = place else { return false };
        record.truncations.iter().any(|&(place, _)| self.is_reachable(record, place.into()))
    }

    fn is_reachable(&self, record: &Record, place: usize) -> bool {
        self.shared().slot(record.nodes[place]).is_ok_and(|slot| slot.node.is_reachable())
    }

    /// Does the pending truncations whose nodes are reachable. Those that fail stay pending.
    pub(super) fn finish_pending(&self, record: &mut Record) {
        if record.truncations.is_empty() {
            return;
        }
        let Ok(_server) = self.shared().as_server() else { return };
        let truncate = |place: u16, size| {
            let node = self.shared().slot(record.nodes[usize::from(place)])?.node.clone();
            if node.is_reachable() {
                node.truncate(&record.component, size)
            } else {
                Err(StoreError::Busy)
            }
        };
        let mut left = record.clone();
        left.truncations.retain(|&(place, size)| truncate(place, size).is_err());
        if left.truncations.len() == record.truncations.len() {
            return;
        }
        drop(_server);
        // Needs no sync: the sync of later data makes this change stable, too. So a crash repeats
        // the truncation only where no later data is stable.
        if let Err(error) = self.keep(&left) {
            tracing::warn!(component = %record.component, %error, "a truncation cannot be recorded as done");
            return;
        }
        tracing::info!(component = %record.component, "a truncation is finished on nodes that are back");
        *record = left;
        self.note_pending(record);
    }

    /// Truncates the components of a record. Returns the places and sizes of the truncations that
    /// stay pending, because their nodes are unreachable.
    pub(super) fn truncate_components(
        &self,
        record: &Record,
        size: u64,
    ) -> Result<Vec<(u16, u64)>> {
        let shared = self.shared();
        let _server = shared.as_server()?;
        let mut pending = Vec::new();
        for (place, &number) in (0..).zip(&record.nodes) {
            let node = shared.slot(number)?.node.clone();
            // A pending truncation to a smaller size stays.
            let size = record.truncation(place.into()).map_or(size, |pending| pending.min(size));
            match node.truncate(&record.component, size) {
                Err(StoreError::Busy) => {
                    // First, so that the data server cannot renew its authorisation.
                    shared.truncations.lock().insert((record.component, number), self.id());
                    node.drop_grants(&record.component)?;
                    pending.push((place, size));
                }
                done => done?,
            }
        }
        Ok(pending)
    }

    /// Publishes the components of a file whose truncations are pending, for the questions of data
    /// servers.
    pub(super) fn note_pending(&self, record: &Record) {
        let mut pending = self.shared().truncations.lock();
        if pending.is_empty() && record.truncations.is_empty() {
            return;
        }
        pending.retain(|(component, _), _| *component != record.component);
        for &(place, _) in &record.truncations {
            let number = record.nodes[usize::from(place)];
            pending.insert((record.component, number), self.id());
        }
    }
}
