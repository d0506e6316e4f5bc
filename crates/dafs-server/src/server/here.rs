//! The metadata server in the same process, for data servers of a file system that all of its clients see
//! alike.

use dafs_nfs::{ForeignStates, ForeignUse};
use dafs_service::Service;
use dafs_store::{FileId, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// Whom such data servers ask.
pub(super) struct Here {
    service: Arc<Service>,
}

impl Here {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        Self { service: service.clone() }
    }
}

impl ForeignStates for Here {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let ForeignUse { owner, identity, component, state, write, now_ns } = *wanted;
        self.service.vouch((owner, identity), component, state, write, now_ns)
    }

    /// They see for themselves.
    fn size(&self, _file: &FileId) -> Result<u64, StoreError> {
        Err(StoreError::Busy)
    }
}
