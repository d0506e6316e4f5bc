//! Nodes: a striped store's interface to the places of its stripes.

mod components;
mod digest;
mod directory;
mod handle;

pub use components::{ComponentFile, ComponentStore, Elsewhere, component_store_fs, mac};
pub use digest::{DIGEST_BYTES_MAX, Digest};
pub use directory::{DirectoryError, DirectoryNode};
pub use handle::{ComponentHandle, place_of};

use crate::{Advised, CacheAdvice, NfsAddresses, Result, Stability, StoreError};
use dafs_mem::VolatileSlice;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The id of a file's component on all nodes. Random; never used for two files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ComponentId(pub [u8; 16]);

impl fmt::Display for ComponentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ComponentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ComponentId {
    /// Parses the displayed form of an id.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 32 || digits.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
        }
        Some(Self(bytes))
    }
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes that were written.
    pub count: usize,
    /// The node's write verifier: a change means that unstable data may be lost.
    pub verifier: u64,
}

/// Space of a node, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "as in FsStat")]
pub struct NodeSpace {
    pub total: u64,
    pub free: u64,
    pub available: u64,
}

/// A place of components. Calls may wait for a device or a network, and end in bounded time:
/// [`StoreError::Busy`](crate::StoreError::Busy) when the node cannot be reached now,
/// [`StoreError::Crowded`](crate::StoreError::Crowded) when it is reachable but has too many calls,
/// so that this one was not made.
///
/// The first write to a component makes it. A missing component reads as empty. The provided methods
/// are for a node whose files the metadata server reaches by itself: they refuse data.
pub trait Node: Send + Sync {
    /// Returns the number that identifies the node in the placements of files. It never changes,
    /// and no other node has it.
    fn number(&self) -> u32;

    /// Returns the addresses for clients; empty if clients cannot reach the node, or if they are
    /// unknown.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// True if clients can reach the node, or may have reached it in an earlier run.
    fn serves_clients(&self) -> bool {
        !self.addresses().is_empty()
    }

    /// Returns the addresses for clients over RDMA; empty if it serves none.
    fn rdma_addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Returns all NFS addresses.
    fn nfs_addresses(&self) -> NfsAddresses {
        NfsAddresses { tcp: self.addresses(), rdma: self.rdma_addresses() }
    }

    /// Returns the DAFS addresses; empty if it does not serve DAFS.
    fn dafs_addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Returns a number that changes with each start of the data server. Clients that have marked
    /// the data server as dead retry it when they get a device with another number.
    fn run(&self) -> u64 {
        0
    }

    /// True if the node can be reached, as far as is known without asking it.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Returns the lifetime of its cached authorisations; zero if it asks each time.
    fn grant_ttl(&self) -> Duration {
        Duration::ZERO
    }

    /// Fills the views from `offset` of a component; a short count means its end.
    ///
    /// # Errors
    /// The node's.
    fn read(
        &self,
        _component: &ComponentId,
        _views: &[VolatileSlice<'_>],
        _offset: u64,
    ) -> Result<usize> {
        Err(StoreError::NotSupported)
    }

    /// Returns the digest of `len` bytes from `offset` of a component, of at most
    /// [`DIGEST_BYTES_MAX`].
    ///
    /// # Errors
    /// The node's. [`StoreError::Io`] means that its device cannot read the range, and nothing else does.
    fn digest(&self, component: &ComponentId, offset: u64, len: usize) -> Result<Digest> {
        let mut bytes = vec![0; len.min(DIGEST_BYTES_MAX)];
        let count = self.read(component, &[VolatileSlice::from_mut(&mut bytes)], offset)?;
        Ok(Digest::of(component, &bytes, count))
    }

    /// Writes the views to `offset`, or as much as possible before an error.
    ///
    /// # Errors
    /// The node's, when no byte was written.
    fn write(
        &self,
        _component: &ComponentId,
        _views: &[VolatileSlice<'_>],
        _offset: u64,
        _stability: Stability,
    ) -> Result<Written> {
        Err(StoreError::NotSupported)
    }

    /// Gives advice about the future use of a range of a component (0 bytes: to its end), as
    /// [`WholeFile::advise`](crate::WholeFile::advise) does. Clients share a component, so a pattern
    /// is ignored.
    ///
    /// # Errors
    /// The node's.
    fn advise(
        &self,
        _component: &ComponentId,
        _offset: u64,
        _len: u64,
        _advice: CacheAdvice,
    ) -> Result<Advised> {
        Ok(Advised::Ignored)
    }

    /// Makes the whole component stable, and returns the write verifier.
    ///
    /// # Errors
    /// The node's; unstable data may be lost then.
    fn commit(&self, _component: &ComponentId) -> Result<u64> {
        Err(StoreError::NotSupported)
    }

    /// Truncates a component that is longer than `size`. Stable when the call returns.
    ///
    /// # Errors
    /// The node's; it may have been truncated nevertheless.
    fn truncate(&self, _component: &ComponentId, _size: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    /// Returns the size of a component; 0 if it is missing.
    ///
    /// # Errors
    /// The node's.
    fn size(&self, component: &ComponentId) -> Result<u64>;

    /// Removes a component, if it exists.
    ///
    /// # Errors
    /// The node's.
    fn remove(&self, _component: &ComponentId) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    /// Returns the space for components; zeros where the file system alone knows it.
    ///
    /// # Errors
    /// The node's.
    fn space(&self) -> Result<NodeSpace> {
        Ok(NodeSpace::default())
    }

    /// Makes the data server drop its cached authorisations for a component, and waits for running
    /// requests. After the return it asks the metadata server again before it executes a client's
    /// request.
    ///
    /// # Errors
    /// The node's; the authorisations may still be valid then.
    fn drop_grants(&self, component: &ComponentId) -> Result<()>;

    /// Waits for the end of all running requests of clients on all components, because another
    /// metadata server has taken over.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) when that takes longer than `limit`.
    fn await_uses(&self, _limit: Duration) -> Result<()> {
        Ok(())
    }

    /// Makes a reachable node join again, as after a lost connection.
    fn rejoin(&self) {}

    /// Returns the components that clients have asked for here since the last call, and that are on
    /// another node. It returns only those that the metadata server cannot find itself.
    ///
    /// # Errors
    /// The node's.
    fn take_astray(&self) -> Result<Vec<ComponentId>> {
        Ok(Vec::new())
    }

    /// Checks that the node honours no authorisation of an earlier run of this server.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) while that is not certain.
    fn old_grants_expired(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back_as_they_are_written_and_no_other_way() {
        let id = ComponentId(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(ComponentId::parse(&id.to_string()), Some(id));
        for wrong in ["", "0", "00112233445566778899AABBCCDDEEFF", "../etc/passwd", "\u{e9}"] {
            assert_eq!(ComponentId::parse(wrong), None, "{wrong}");
        }
        assert_eq!(ComponentId::parse(&"\u{e9}".repeat(16)), None);
        assert_eq!(ComponentId::parse(&format!("{id}0")), None);
    }
}
