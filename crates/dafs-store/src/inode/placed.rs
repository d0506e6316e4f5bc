//! The placements of files that clients have got.

use super::Ids;
use crate::limits::PLACED_MAX;
use crate::{DeviceKey, FsId, Packing, Placement, Spread, Stripes};
use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;
use siphasher::sip::SipHasher24;
use std::hash::Hash;
use std::num::NonZeroU32;

/// Files with placements in use, and those whose placement has changed.
pub struct Placed<K, V> {
    files: FxHashMap<K, Known<V>>,
    moved: Vec<K>,
    /// Counts the placements that were handed out.
    count: u64,
}

struct Known<V> {
    value: V,
    /// The number of this placement among all that were handed out.
    told: u64,
}

impl<K, V> Default for Placed<K, V> {
    fn default() -> Self {
        Self { files: FxHashMap::default(), moved: Vec::new(), count: 0 }
    }
}

impl<K: Copy + Eq + Hash, V> Placed<K, V> {
    /// Returns what is known about the placement of a file.
    pub fn get(&self, file: &K) -> Option<&V> {
        self.files.get(file).map(|known| &known.value)
    }

    /// Returns the same for a change.
    pub fn get_mut(&mut self, file: &K) -> Option<&mut V> {
        self.files.get_mut(file).map(|known| &mut known.value)
    }

    /// Returns all files with placements in use.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.files.iter().map(|(file, known)| (file, &known.value))
    }

    /// Records a placement, and returns what was known before. With too many, the oldest are not
    /// watched any more, so their layouts are recalled.
    pub fn insert(&mut self, file: K, value: V) -> Option<V> {
        if self.files.len() >= PLACED_MAX && !self.files.contains_key(&file) {
            let mut all: Vec<_> = self.files.values().map(|known| known.told).collect();
            let (_, &mut oldest, _) = all.select_nth_unstable(PLACED_MAX / 16);
            let gone = self.files.extract_if(|_, known| known.told < oldest);
            self.moved.extend(gone.map(|(file, _)| file));
        }
        self.count += 1;
        let known = Known { value, told: self.count };
        self.files.insert(file, known).map(|before| before.value)
    }

    /// Records that a placement was handed out again.
    pub fn renew(&mut self, file: &K) {
        self.count += 1;
        if let Some(known) = self.files.get_mut(file) {
            known.told = self.count;
        }
    }

    /// Records that the placement of a file has changed, if it is in use.
    pub fn remove(&mut self, file: K) {
        if self.files.remove_and_shrink(&file).is_some() {
            self.moved.push(file);
        }
    }

    /// Records that the placements of some files have changed.
    pub fn remove_all(&mut self, which: impl Fn(&K, &V) -> bool) {
        let gone = self.files.extract_if(|file, known| which(file, &known.value));
        self.moved.extend(gone.map(|(file, _)| file));
    }

    /// Records that clients may have got a previous placement of a file.
    pub fn note_moved(&mut self, file: K) {
        self.moved.push(file);
    }

    /// Returns the files whose placement has changed since the last call.
    pub fn take_moved(&mut self) -> Vec<K> {
        std::mem::take(&mut self.moved)
    }
}

impl Ids {
    /// Returns the epoch of a placement, which differs for other devices, and for another key of its
    /// handle.
    pub fn epoch_of(&self, device: &DeviceKey) -> u64 {
        SipHasher24::new_with_key(&self.own_key()).hash(&device.0)
    }

    /// Returns the placement of a file on a device, whose data servers all take the same handle.
    pub fn placement(
        &self,
        key: impl Into<[u8; 16]>,
        data_fs: FsId,
        device: DeviceKey,
        unit_bytes: NonZeroU32,
    ) -> Placement {
        // Before the handle is made.
        let epoch = self.epoch_of(&device);
        let file = self.seal(key);
        Placement {
            epoch,
            spread: Spread::Stripes(Stripes {
                device,
                first_place: 0,
                unit_bytes,
                packing: Packing::Sparse,
                handles: vec![[&data_fs.0[..], &file.0[..]].concat().into_boxed_slice()],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_placements_are_recalled() {
        let mut placed = Placed::default();
        let max = PLACED_MAX as u64;
        (0..max).for_each(|file| assert_eq!(placed.insert(file, 0), None));
        // The placements of the first two files are handed out again.
        assert_eq!(placed.insert(0, 1), Some(0));
        placed.renew(&1);
        assert!(placed.take_moved().is_empty());
        assert_eq!(placed.insert(max, 1), None);
        let mut moved = placed.take_moved();
        moved.sort_unstable();
        assert!(moved.into_iter().eq(2..=max / 16 + 1));
        assert_eq!(placed.iter().count() as u64, max + 1 - max / 16);
    }
}
