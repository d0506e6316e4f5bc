//! The resources that all connections of a port share: the adapter, its protection domain, the
//! memory.

use super::staging::Staging;
use crate::client::memory::{Memory, RetiredRegistrations};
use dafs_dat::{Access, Adapter, ProtectionDomain};
use dafs_mem::Buffer;
use std::io;
use std::sync::Arc;

pub(super) struct Base {
    pub(super) adapter: Box<dyn Adapter>,
    pub(super) domain: ProtectionDomain,
    pub(super) retired: Arc<RetiredRegistrations>,
    pub(super) staging: Staging,
    /// True when servers map memory of this process and may still write it after a connection has
    /// ended.
    pub(super) is_mapped: bool,
    /// Memory that a server may still write. The port keeps it for its own lifetime, so that no
    /// other use can be corrupted. Only server threads that are writing when a connection ends can
    /// still write, so the quarantine grows with lost calls only.
    quarantine: Vec<Arc<Buffer>>,
}

impl Base {
    pub(super) fn new(mut adapter: Box<dyn Adapter>) -> Self {
        let domain = adapter.protection_domain();
        Self {
            domain,
            retired: Arc::default(),
            staging: Staging::default(),
            is_mapped: adapter.name() == "shm",
            quarantine: Vec::new(),
            adapter,
        }
    }

    /// Ends the registrations that are no longer in use.
    pub(super) fn reap(&mut self) {
        for registration in self.retired.take() {
            self.adapter.deregister(registration.region.id);
            self.quarantine.extend(registration.spoiled);
        }
    }

    /// Allocates zeroed, registered memory.
    pub(super) fn allocate(&mut self, bytes: usize) -> io::Result<Memory> {
        let buffer = self.adapter.allocate(bytes)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = self.adapter.register(self.domain, buffer.clone(), access);
        let region = region.map_err(io::Error::other)?;
        Ok(Memory::registered(buffer, region, self.retired.clone()))
    }

    /// Takes staging memory, from which a server reads a call or to which it writes a reply.
    pub(super) fn stage(&mut self, bytes: usize) -> io::Result<Memory> {
        match self.staging.take(bytes) {
            Ok(memory) => Ok(memory),
            Err(bytes) => self.allocate(bytes),
        }
    }
}
