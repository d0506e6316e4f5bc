//! The operations that the kernel carries out, by number and generation.
//!
//! Invariants
//! * A tag names one operation for ever: the next operation in its slot has another generation. (A
//!   slot would have to be used four billion times before one comes again.)
//! * An operation stays in the table until it is taken out.

/// The name of an operation, which its completion carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tag(pub(super) u64);

impl Tag {
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Operations under way.
pub(super) struct Table<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn insert(&mut self, operation: T) -> Tag {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let (generation, slot) = &mut self.slots[index as usize];
        debug_assert!(slot.is_none());
        *slot = Some(operation);
        Tag::new(index, *generation)
    }

    pub(super) fn get_mut(&mut self, tag: Tag) -> Option<&mut T> {
        let (generation, slot) = self.slots.get_mut(tag.index())?;
        slot.as_mut().filter(|_| *generation == tag.generation())
    }

    pub(super) fn take(&mut self, tag: Tag) -> Option<T> {
        let (generation, slot) = self.slots.get_mut(tag.index())?;
        if *generation != tag.generation() {
            return None;
        }
        let operation = slot.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(tag.index() as u32);
        Some(operation)
    }

    /// Returns the operations that were not taken out.
    pub(super) fn into_operations(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().filter_map(|(_, operation)| operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Numbers stand for operations. Each is found by its own tag alone, until it is taken.
        #[test]
        fn a_tag_names_one_operation(
            steps in proptest::collection::vec((0u8..3, 0usize..20), 0..200),
        ) {
            let mut table = Table::default();
            let mut tags: Vec<Tag> = Vec::new();
            let mut under_way: Vec<usize> = Vec::new();
            for (kind, pick) in steps {
                match kind {
                    0 => {
                        let tag = table.insert(tags.len());
                        prop_assert!(!tags.contains(&tag));
                        under_way.push(tags.len());
                        tags.push(tag);
                    }
                    // Any tag that there ever was.
                    1 if pick < tags.len() => {
                        let was = under_way.iter().position(|&number| number == pick);
                        prop_assert_eq!(table.take(tags[pick]), was.map(|at| under_way.remove(at)));
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), under_way.len());
                prop_assert_eq!(table.is_empty(), under_way.is_empty());
                for (number, &tag) in tags.iter().enumerate() {
                    let found = table.get_mut(tag).copied();
                    prop_assert_eq!(found, under_way.contains(&number).then_some(number));
                }
            }
            prop_assert_eq!(table.get_mut(Tag::new(1000, 0)), None);
        }
    }
}
