//! What a striped store asks of the places that hold its stripes.

mod components;
mod directory;
mod handle;

pub use components::{ComponentFile, ComponentStore, Elsewhere, component_store_fs, word};
pub use directory::{DirectoryError, DirectoryNode};
pub use handle::{ComponentHandle, place_of};

use crate::{NfsAddresses, Result, Stability};
use dafs_mem::VolatileSlice;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The part of a file that lies on one node is called by this on all of them. Random; never used
/// for two files.
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
    /// The id that is written like this, if it is one.
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

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes that were written.
    pub count: usize,
    /// The node's write verifier: another one than before means that unstable data may be lost.
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

/// A place that holds components. Calls may wait for a device or a network, and end in bounded time:
/// [`StoreError::Busy`](crate::StoreError::Busy) when the node cannot be reached now,
/// [`StoreError::Crowded`](crate::StoreError::Crowded) when it answers, but so many others that this call has
/// not been made.
///
/// A component comes into being by the first write to it. One that is not there is empty.
pub trait Node: Send + Sync {
    /// What the node is called in the placements of files: always the same, and no other node's.
    fn number(&self) -> u32;

    /// Where clients reach it themselves; empty if they do not, or if it is not known yet.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Whether clients reach it themselves, or may have in an earlier run, for all that is known.
    fn serves_clients(&self) -> bool {
        !self.addresses().is_empty()
    }

    /// Where they reach it over RDMA, too; empty if it serves none.
    fn rdma_addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// All of these.
    fn nfs_addresses(&self) -> NfsAddresses {
        NfsAddresses { tcp: self.addresses(), rdma: self.rdma_addresses() }
    }

    /// Where it serves them DAFS; empty if it does not.
    fn dafs_addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Another number after each start of what clients reach there. Clients that have found it dead go
    /// there again when they hear of it under another name.
    fn run(&self) -> u64 {
        0
    }

    /// Whether it can be reached, as far as is known without asking it.
    fn is_there(&self) -> bool {
        true
    }

    /// How long it may go by what it was told of state-ids; zero if it asks each time.
    fn belief(&self) -> Duration {
        Duration::ZERO
    }

    /// Fills the views from `offset` of a component; fewer bytes mean its end.
    ///
    /// # Errors
    /// The node's.
    fn read(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize>;

    /// Writes the views to `offset`, or as much as could be written before an error.
    ///
    /// # Errors
    /// The node's, when nothing was written.
    fn write(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<Written>;

    /// Makes all of a component stable, and gives the write verifier.
    ///
    /// # Errors
    /// The node's; unstable data may be lost then.
    fn commit(&self, component: &ComponentId) -> Result<u64>;

    /// Cuts a component so that it does not reach beyond `size`. Stable when the call returns.
    ///
    /// # Errors
    /// The node's; it may have been cut all the same.
    fn cut(&self, component: &ComponentId, size: u64) -> Result<()>;

    /// How far a component reaches; 0 for none.
    ///
    /// # Errors
    /// The node's.
    fn size(&self, component: &ComponentId) -> Result<u64>;

    /// Removes a component, if it is there.
    ///
    /// # Errors
    /// The node's.
    fn remove(&self, component: &ComponentId) -> Result<()>;

    /// Space for components.
    ///
    /// # Errors
    /// The node's.
    fn space(&self) -> Result<NodeSpace>;

    /// From the return of this call on the node carries out nothing on a component that clients ask of
    /// it by what it was told before; it asks anew who may.
    ///
    /// # Errors
    /// The node's; it may go on as before then.
    fn forget(&self, component: &ComponentId) -> Result<()>;

    /// Waits for the end of all requests of clients that have begun, whatever component they work on:
    /// another metadata server is there.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) when that takes longer than `limit`.
    fn await_uses(&self, _limit: Duration) -> Result<()> {
        Ok(())
    }

    /// Has a node that can be reached come again, as after a lost connection.
    fn rejoin(&self) {}

    /// Which components clients have asked for here since the last call that do not lie here, as far as
    /// nobody but the node can know it.
    ///
    /// # Errors
    /// The node's.
    fn take_astray(&self) -> Result<Vec<ComponentId>> {
        Ok(Vec::new())
    }

    /// The node goes by nothing that an earlier run of this server has said.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) while that is not sure.
    fn settled(&self) -> Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these hold is whole between any two steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
