//! The metadata server, for data servers of a file system that all of its clients see alike. They
//! are in the same process, or behind a control connection.

use dafs_cluster::Metadata;
use dafs_service::{ForeignStates, ForeignUse, Service};
use dafs_store::{FileId, StoreError};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The metadata server for such data servers. Its reference to the service is weak, to avoid a
/// cycle: control connections keep this, the service keeps stores, and those keep the connections.
pub(super) struct LocalMetadata {
    service: Weak<Service>,
}

impl LocalMetadata {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        Self { service: Arc::downgrade(service) }
    }
}

impl ForeignStates for LocalMetadata {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        self.service.upgrade().ok_or(StoreError::Busy)?.layouts.vouch(wanted)
    }

    fn size(&self, _component: &FileId) -> Result<u64, StoreError> {
        Err(StoreError::NotSupported)
    }
}

impl Metadata for LocalMetadata {}
