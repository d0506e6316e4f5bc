//! A table whose entries have names that are never reused.

/// Generations of one place; after that the place is retired.
const GENERATION_MAX: u32 = (1 << 30) - 1;

/// Entries by name. A name is the place in the table below, the generation above.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds the value that `make` builds from its name.
    pub(super) fn insert(&mut self, make: impl FnOnce(u64) -> T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (generation, place) = &mut self.places[index as usize];
        *generation += 1;
        let name = u64::from(*generation) << 32 | u64::from(index);
        *place = Some(make(name));
        self.len += 1;
        name
    }

    pub(super) fn get(&self, name: u64) -> Option<&T> {
        let (generation, place) = self.places.get(name as u32 as usize)?;
        if u64::from(*generation) == name >> 32 { place.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        let (generation, place) = self.places.get_mut(name as u32 as usize)?;
        if u64::from(*generation) == name >> 32 { place.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, name: u64) -> Option<T> {
        let (generation, place) = self.places.get_mut(name as u32 as usize)?;
        if u64::from(*generation) != name >> 32 {
            return None;
        }
        let value = place.take()?;
        self.len -= 1;
        if *generation < GENERATION_MAX {
            self.free.push(name as u32);
        }
        Some(value)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|(_, place)| place.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_dies_with_its_entry() {
        let mut slab = Slab::new();
        let first = slab.insert(|name| name);
        assert_eq!(slab.get(first), Some(&first));
        assert_eq!(slab.remove(first), Some(first));
        let second = slab.insert(|name| name);
        assert_ne!(first, second);
        assert_eq!((slab.get(first), slab.len()), (None, 1));
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.iter_mut().count(), 1);
    }
}
