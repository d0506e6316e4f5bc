//! What all connections of a port use: the adapter, its protection domain, the memory.

use super::staging::Staging;
use crate::client::memory::{Graveyard, Memory};
use dafs_dat::{Access, Adapter, ProtectionDomain};
use dafs_mem::Buffer;
use std::io;
use std::sync::Arc;

pub(super) struct Base {
    pub(super) adapter: Box<dyn Adapter>,
    pub(super) domain: ProtectionDomain,
    pub(super) graveyard: Arc<Graveyard>,
    pub(super) staging: Staging,
    /// Servers map memory of ours, so that they may still write it after a connection has ended.
    pub(super) is_mapped: bool,
    /// Memory that a server may still write; it is kept, so that it is not used for anything else,
    /// for as long as the port. A server has its threads write there by the time a connection
    /// ends, if at all, so there is as much of it as calls were lost.
    quarantine: Vec<Arc<Buffer>>,
}

impl Base {
    pub(super) fn new(mut adapter: Box<dyn Adapter>) -> Self {
        let domain = adapter.protection_domain();
        Self {
            domain,
            graveyard: Arc::default(),
            staging: Staging::default(),
            is_mapped: adapter.name() == "shm",
            quarantine: Vec::new(),
            adapter,
        }
    }

    /// Ends the registrations that nobody uses any more.
    pub(super) fn reap(&mut self) {
        for buried in self.graveyard.exhume() {
            self.adapter.deregister(buried.region.id);
            self.quarantine.extend(buried.spoiled);
        }
    }

    /// Zeroed memory that is registered.
    pub(super) fn allocate(&mut self, bytes: usize) -> io::Result<Memory> {
        let buffer = self.adapter.allocate(bytes)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = self.adapter.register(self.domain, buffer.clone(), access);
        let region = region.map_err(io::Error::other)?;
        Ok(Memory::registered(buffer, region, self.graveyard.clone()))
    }

    /// Memory of ours for a server to read a call from or to write a reply to.
    pub(super) fn stage(&mut self, bytes: usize) -> io::Result<Memory> {
        match self.staging.take(bytes) {
            Ok(memory) => Ok(memory),
            Err(bytes) => self.allocate(bytes),
        }
    }
}
