//! A bounded map that evicts entries that were not used lately (the clock algorithm).

use rustc_hash::FxHashMap;
use std::hash::Hash;

struct Slot<K, V> {
    key: K,
    value: V,
    used: bool,
}

/// A map of at most `capacity` entries. Hits cost one hash look-up; a full map drops an entry that
/// was not used since the hand last passed it.
pub(super) struct ClockCache<K, V> {
    places: FxHashMap<K, usize>,
    slots: Vec<Slot<K, V>>,
    hand: usize,
    capacity: usize,
}

impl<K: Copy + Eq + Hash, V> ClockCache<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { places: FxHashMap::default(), slots: Vec::new(), hand: 0, capacity }
    }

    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        let slot = &mut self.slots[*self.places.get(key)?];
        slot.used = true;
        Some(&slot.value)
    }

    /// Adds or replaces an entry. Returns the replaced or evicted value.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(&place) = self.places.get(&key) {
            return Some(std::mem::replace(&mut self.slots[place].value, value));
        }
        let evicted = if self.slots.len() >= self.capacity { self.evict() } else { None };
        self.places.insert(key, self.slots.len());
        self.slots.push(Slot { key, value, used: false });
        evicted
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let place = *self.places.get(key)?;
        Some(self.take(place))
    }

    /// Evicts the first entry that the hand finds unused.
    pub(super) fn evict(&mut self) -> Option<V> {
        // Two rounds suffice: the first clears every mark.
        for _ in 0..2 * self.slots.len() {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            if !std::mem::take(&mut self.slots[self.hand].used) {
                return Some(self.take(self.hand));
            }
            self.hand += 1;
        }
        None
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().map(|slot| &slot.value)
    }

    fn take(&mut self, place: usize) -> V {
        let slot = self.slots.swap_remove(place);
        self.places.remove(&slot.key);
        if let Some(moved) = self.slots.get(place) {
            self.places.insert(moved.key, place);
        }
        slot.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_entries_outlive_unused_ones() {
        let mut cache = ClockCache::new(4);
        for key in 0..4 {
            assert_eq!(cache.insert(key, key * 10), None);
        }
        assert_eq!(cache.get(&0), Some(&0));
        assert_eq!(cache.get(&2), Some(&20));
        let evicted = [cache.insert(4, 40), cache.insert(5, 50)];
        assert!(evicted.iter().all(|v| [Some(10), Some(30), Some(40)].contains(v)), "{evicted:?}");
        assert_eq!(cache.get(&0), Some(&0));
        assert_eq!(cache.values().count(), 4);
    }

    #[test]
    fn a_busy_cache_still_makes_room() {
        let mut cache = ClockCache::new(3);
        for key in 0..100 {
            cache.insert(key, key);
            cache.get(&key);
        }
        assert_eq!(cache.values().count(), 3);
        for key in 0..100 {
            cache.remove(&key);
        }
        assert_eq!((cache.values().count(), cache.evict()), (0, None));
    }
}
