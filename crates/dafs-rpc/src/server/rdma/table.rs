//! A table of items under small, reused numbers.

/// A table of items under small, reused numbers.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, entry: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.entries[number as usize] = Some(entry);
            return number;
        }
        self.entries.push(Some(entry));
        (self.entries.len() - 1) as u32
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(entry)
    }

    /// Removes all items that match.
    pub(super) fn remove_all(&mut self, mut is_one: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for (number, place) in self.entries.iter_mut().enumerate() {
            if let Some(entry) = place.take_if(|entry| is_one(entry)) {
                self.free.push(number as u32);
                removed.push(entry);
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again() {
        let mut table = Table::default();
        assert_eq!([table.insert('a'), table.insert('b')], [0, 1]);
        assert_eq!(table.remove(0), Some('a'));
        assert_eq!(table.remove(0), None);
        assert_eq!(table.insert('c'), 0);
        assert_eq!(table.get_mut(0), Some(&mut 'c'));
        table.insert('c');
        assert_eq!(table.remove_all(|&entry| entry == 'c'), ['c', 'c']);
        assert_eq!((table.insert('d'), table.get_mut(1)), (2, Some(&mut 'b')));
    }
}
