//! The keys of what clients show to data servers: handles in layouts, and tickets.
//!
//! Invariants
//! * The metadata server seals with one key. A data server accepts that one, and during a change of
//!   the keys a second one, so what was sealed before the change stays valid.
//! * The file system of the handles does not depend on the keys.

use dafs_mem::RwLock;
use std::fmt;
use std::sync::Arc;

/// The keys of one store. Clones share them, so a change is in force for all users at once.
#[derive(Clone)]
pub struct DataKeys {
    store: [u8; 16],
    keys: Arc<RwLock<Pair>>,
}

/// The key that seals, and another one that is accepted.
type Pair = ([u8; 16], Option<[u8; 16]>);

impl fmt::Debug for DataKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKeys(..)")
    }
}

impl DataKeys {
    /// Makes the keys of a store, with one key. `store` identifies the store, and is no secret.
    pub fn new(store: [u8; 16], key: [u8; 16]) -> Self {
        Self { store, keys: Arc::new(RwLock::new((key, None))) }
    }

    /// Replaces the keys: the one that seals, and another one that is accepted.
    pub fn replace(&self, key: [u8; 16], other: Option<[u8; 16]>) {
        *self.keys.write() = (key, other);
    }

    /// Returns the identity of the store.
    pub fn store(&self) -> &[u8; 16] {
        &self.store
    }

    /// Returns the key that seals.
    pub fn own(&self) -> [u8; 16] {
        self.keys.read().0
    }

    /// Returns the accepted keys, the one that seals first.
    pub fn accepted(&self) -> impl Iterator<Item = [u8; 16]> + use<> {
        let (own, other) = *self.keys.read();
        std::iter::once(own).chain(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_follow_a_change() {
        let keys = DataKeys::new([9; 16], [1; 16]);
        let other = keys.clone();
        assert_eq!(other.accepted().collect::<Vec<_>>(), [[1; 16]]);
        keys.replace([2; 16], Some([1; 16]));
        assert_eq!((other.own(), other.store()), ([2; 16], &[9; 16]));
        assert_eq!(other.accepted().collect::<Vec<_>>(), [[2; 16], [1; 16]]);
        assert_eq!(format!("{other:?}"), "DataKeys(..)");
    }
}
