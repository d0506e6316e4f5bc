//! The metadata server, for data servers of a file system that all of its clients see alike: those of the
//! same process, and those behind a control connection.

use dafs_cluster::Metadata;
use dafs_dat::Instant;
use dafs_mem::VolatileSlice;
use dafs_service::{ForeignStates, ForeignUse, Identity, Service, StateRef};
use dafs_store::striped::ComponentId;
use dafs_store::{FileId, StoreError};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Whom such data servers ask. It does not keep the service: control connections keep this, the service
/// keeps stores, and those keep the connections.
pub(super) struct Here {
    service: Weak<Service>,
}

impl Here {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        Self { service: Arc::downgrade(service) }
    }

    fn judge(
        &self,
        client: (&[u8], &Identity),
        component: &[u8],
        state: StateRef,
        write: bool,
        now_ns: u64,
    ) -> dafs_service::Result<Option<Duration>> {
        let service = self.service.upgrade().ok_or(StoreError::Busy)?;
        service.vouch(client, component, state, write, now_ns)
    }
}

impl ForeignStates for Here {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let ForeignUse { owner, identity, component, state, write, now_ns } = *wanted;
        self.judge((owner, identity), component, state, write, now_ns)
    }

    /// They see for themselves.
    fn size(&self, _file: &FileId) -> Result<u64, StoreError> {
        Err(StoreError::Busy)
    }
}

impl Metadata for Here {
    fn check(
        &self,
        client: (&[u8], &Identity),
        component: &[u8],
        state: StateRef,
        write: bool,
    ) -> dafs_service::Result<Option<Duration>> {
        self.judge(client, component, state, write, Instant::now().0)
    }

    fn size(&self, _component: &ComponentId) -> Result<u64, StoreError> {
        Err(StoreError::Busy)
    }

    /// They can reach every byte by way of their file system.
    fn read(
        &self,
        _component: &ComponentId,
        _views: &[VolatileSlice<'_>],
        _offset: u64,
    ) -> Result<usize, StoreError> {
        Err(StoreError::NotSupported)
    }

    /// As for reads.
    fn write(
        &self,
        _component: &ComponentId,
        _views: &[VolatileSlice<'_>],
        _offset: u64,
    ) -> Result<usize, StoreError> {
        Err(StoreError::NotSupported)
    }
}
