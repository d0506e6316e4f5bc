//! Hash tables that release memory as they empty.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

/// Tables with fewer places than this stay as they are.
const PLACES_MIN: usize = 1024;
/// A table shrinks when less than one place of so many is in use.
const PLACES_PER_ENTRY_MAX: usize = 8;

/// A table from which an entry is removed, and its memory with the last of many.
///
/// The library's tables only grow. A table that a burst of clients has filled would stay large for
/// as long as the server runs.
pub trait Shrinking {
    /// The key of an entry.
    type Key;
    /// The value of an entry.
    type Value;

    /// Removes an entry, and shrinks a table that is nearly empty. This takes constant time in the
    /// average over all removals.
    fn remove_and_shrink(&mut self, key: &Self::Key) -> Option<Self::Value>;

    /// Shrinks a table that is nearly empty.
    fn shrink_if_sparse(&mut self);
}

/// The capacity for a table with so many entries and places, if it should have another one. A place
/// that a removal has left unusable does not count as one, so a table may shrink somewhat late.
fn smaller(len: usize, places: usize) -> Option<usize> {
    let is_sparse = places >= PLACES_MIN && len < places / PLACES_PER_ENTRY_MAX;
    is_sparse.then_some(2 * len)
}

impl<K: Eq + Hash, V, S: BuildHasher> Shrinking for HashMap<K, V, S> {
    type Key = K;
    type Value = V;

    fn remove_and_shrink(&mut self, key: &K) -> Option<V> {
        let removed = self.remove(key);
        self.shrink_if_sparse();
        removed
    }

    fn shrink_if_sparse(&mut self) {
        if let Some(places) = smaller(self.len(), self.capacity()) {
            self.shrink_to(places);
        }
    }
}

impl<K: Eq + Hash, S: BuildHasher> Shrinking for HashSet<K, S> {
    type Key = K;
    type Value = K;

    fn remove_and_shrink(&mut self, key: &K) -> Option<K> {
        let removed = self.take(key);
        self.shrink_if_sparse();
        removed
    }

    fn shrink_if_sparse(&mut self) {
        if let Some(places) = smaller(self.len(), self.capacity()) {
            self.shrink_to(places);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shrinks_as_it_empties_and_seldom() {
        let mut table: HashMap<u64, u64> = (0..100_000).map(|key| (key, 2 * key)).collect();
        let mut shrunk = 0;
        for key in 0..99_990 {
            shrunk += usize::from(smaller(table.len() - 1, table.capacity()).is_some());
            assert_eq!(table.remove_and_shrink(&key), Some(2 * key));
            assert_eq!(table.remove_and_shrink(&key), None);
        }
        assert!(table.capacity() < PLACES_MIN && (1..10).contains(&shrunk), "{shrunk} times");
        assert_eq!((99_990..100_000).filter(|key| table.contains_key(key)).count(), 10);
        let mut set: HashSet<u64> = (0..100_000).collect();
        set.retain(|key| key % 50_000 == 0);
        set.shrink_if_sparse();
        assert!(set.capacity() < PLACES_MIN && set.contains(&50_000));
    }
}
