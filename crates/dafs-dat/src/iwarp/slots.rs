//! A table whose identifiers are never reused.

/// Bits of an identifier that name the slot; the rest is a serial number.
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// The most entries.
pub(crate) const SLOT_COUNT_MAX: usize = 1 << SLOT_BITS;

/// Entries by identifier.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<(u64, T)>>,
    free: Vec<u32>,
    serial: u64,
    count: usize,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), serial: 0, count: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Adds the value that `make` builds for its identifier; `None` when the table is full. 42 bits
    /// of serial number below the sign outlast any process.
    pub(crate) fn insert(&mut self, make: impl FnOnce(u64) -> T) -> Option<u64> {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None if self.entries.len() < SLOT_COUNT_MAX => {
                self.entries.push(None);
                self.entries.len() - 1
            }
            None => return None,
        };
        self.serial += 1;
        let id = self.serial << SLOT_BITS | slot as u64;
        self.entries[slot] = Some((id, make(id)));
        self.count += 1;
        Some(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten().map(|(_, entry)| entry)
    }

    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        match self.entries.get((id & SLOT_MASK) as usize)? {
            Some((known, entry)) if *known == id => Some(entry),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        match self.entries.get_mut((id & SLOT_MASK) as usize)? {
            Some((known, entry)) if *known == id => Some(entry),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        let slot = (id & SLOT_MASK) as usize;
        let entry = self.entries.get_mut(slot)?;
        if entry.as_ref().is_none_or(|(known, _)| *known != id) {
            return None;
        }
        self.free.push(slot as u32);
        self.count -= 1;
        entry.take().map(|(_, entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_dies_with_its_entry() {
        let mut slots = Slots::new();
        let one = slots.insert(|id| id).unwrap();
        assert_eq!(slots.get(one), Some(&one));
        assert_eq!(slots.remove(one), Some(one));
        assert_eq!(slots.remove(one), None);
        let two = slots.insert(|id| id).unwrap();
        assert_ne!(one, two);
        assert_eq!(one & SLOT_MASK, two & SLOT_MASK);
        assert_eq!(slots.get(one), None);
        assert_eq!(slots.count(), 1);
    }
}
