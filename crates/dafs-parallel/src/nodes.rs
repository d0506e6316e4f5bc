//! The data servers that a client knows.

use crate::limits::DATA_SERVERS_MAX;
use crate::{Lock, Protocol};
use rustc_hash::FxHashMap;
use std::sync::Arc;

type Known<P> = FxHashMap<Arc<[<P as Protocol>::Address]>, Arc<<P as Protocol>::Node>>;

/// Data servers by their addresses.
#[derive(Debug)]
pub struct Nodes<P: Protocol> {
    known: P::Lock<Known<P>>,
}

impl<P: Protocol> Default for Nodes<P> {
    fn default() -> Self {
        Self { known: P::Lock::default() }
    }
}

impl<P: Protocol> Nodes<P> {
    /// Returns the data server with these addresses, and makes it if it was not known; `None` if
    /// there are too many.
    pub fn node(
        &self,
        addresses: &[P::Address],
        make: impl FnOnce(Arc<[P::Address]>) -> P::Node,
    ) -> Option<Arc<P::Node>> {
        let mut known = self.known.hold();
        if let Some(node) = known.get(addresses) {
            return Some(node.clone());
        }
        let mut unused = Vec::new();
        if known.len() >= DATA_SERVERS_MAX {
            // Addresses change, and no layout names the old ones.
            let old = known.extract_if(|_, node| Arc::strong_count(node) == 1);
            unused.extend(old.map(|(_, node)| node));
        }
        if known.len() >= DATA_SERVERS_MAX {
            return None;
        }
        let addresses: Arc<[_]> = addresses.into();
        let node = Arc::new(make(addresses.clone()));
        known.insert(addresses, node.clone());
        drop(known);
        if !unused.is_empty() {
            P::retire(unused);
        }
        Some(node)
    }

    /// The data servers that layouts name.
    pub fn used(&self) -> Vec<Arc<P::Node>> {
        let known = self.known.hold();
        known.values().filter(|node| Arc::strong_count(node) > 1).cloned().collect()
    }

    /// All known data servers.
    pub fn all(&self) -> Vec<Arc<P::Node>> {
        self.known.hold().values().cloned().collect()
    }
}
