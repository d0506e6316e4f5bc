//! An adapter that connections share.

use crate::client::memory::{Graveyard, Memory};
use dafs_dat::{Access, Adapter, ProtectionDomain};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// An adapter for connections on direct access transports, and the memory that is registered with
/// it. Clones are the same port. It outlives its connections: memory can be used again after a
/// reconnect.
#[derive(Debug, Clone)]
pub struct Port {
    shared: Arc<Shared>,
}

struct Shared {
    driver: Mutex<Driver>,
    graveyard: Arc<Graveyard>,
}

struct Driver {
    adapter: Box<dyn Adapter>,
    domain: ProtectionDomain,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Port")
    }
}

impl Port {
    /// A port on this adapter.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(mut adapter: Box<dyn Adapter>) -> io::Result<Self> {
        let domain = adapter.protection_domain();
        let driver = Mutex::new(Driver { adapter, domain });
        Ok(Self { shared: Arc::new(Shared { driver, graveyard: Arc::default() }) })
    }

    /// Allocates `bytes` of zeroed memory where the transport moves data fastest and registers it,
    /// once for all calls that will use it.
    ///
    /// # Errors
    /// `ENOMEM` and its kind, or too many registrations.
    pub fn allocate(&self, bytes: usize) -> io::Result<Memory> {
        let mut driver = self.shared.driver.lock().unwrap_or_else(PoisonError::into_inner);
        let Driver { adapter, domain } = &mut *driver;
        for buried in self.shared.graveyard.exhume() {
            adapter.deregister(buried.region.id);
        }
        let buffer = adapter.allocate(bytes)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(*domain, buffer.clone(), access).map_err(io::Error::other)?;
        Ok(Memory::registered(buffer, region, self.shared.graveyard.clone()))
    }
}
