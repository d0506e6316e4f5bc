//! Numbers for the kernel's open files and directories.
//!
//! Invariants
//! * A number is given once and is invalid after it was removed.

use dafs_mem::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;

#[derive(Debug)]
struct Inner<T> {
    next: u64,
    open: FxHashMap<u64, Arc<T>>,
}

/// Open objects, by number.
#[derive(Debug)]
pub(crate) struct Handles<T>(RwLock<Inner<T>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(RwLock::new(Inner { next: 1, open: FxHashMap::default() }))
    }
}

impl<T> Handles<T> {
    /// Gives an object a number.
    pub(crate) fn insert(&self, value: T) -> u64 {
        let mut inner = self.0.write();
        let number = inner.next;
        inner.next += 1;
        let before = inner.open.insert(number, Arc::new(value));
        assert!(before.is_none(), "a number is given once");
        number
    }

    /// Reserves a number for a later object.
    pub(crate) fn reserve(&self) -> u64 {
        let mut inner = self.0.write();
        inner.next += 1;
        inner.next - 1
    }

    /// Inserts an object under a number that was reserved, or that another process has given; false
    /// when it is in use.
    pub(crate) fn take_over(&self, number: u64, value: T) -> bool {
        let mut inner = self.0.write();
        if number == u64::MAX || inner.open.contains_key(&number) {
            return false;
        }
        inner.next = inner.next.max(number + 1);
        inner.open.insert(number, Arc::new(value));
        true
    }

    /// The number of the next object.
    pub(crate) fn next_number(&self) -> u64 {
        self.0.read().next
    }

    /// Gives no object a number below this one: another process has given those, and the kernel may
    /// still use one whose object is lost.
    pub(crate) fn begin_at(&self, next: u64) {
        let mut inner = self.0.write();
        inner.next = inner.next.max(next);
    }

    /// All open objects.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<T>)> {
        let inner = self.0.read();
        inner.open.iter().map(|(number, value)| (*number, value.clone())).collect()
    }

    /// The object of a number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        let inner = self.0.read();
        inner.open.get(&number).cloned()
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        let mut inner = self.0.write();
        inner.open.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_nothing_after_it_was_taken_back() {
        let handles = Handles::default();
        let (a, b) = (handles.insert("a"), handles.insert("b"));
        assert_ne!(a, b);
        assert_eq!(handles.remove(a).as_deref(), Some(&"a"));
        assert!(handles.get(a).is_none());
        assert_ne!(handles.insert("c"), a);
        assert_eq!(handles.get(b).as_deref(), Some(&"b"));
    }

    #[test]
    fn numbers_of_another_process_are_not_given_again() {
        let handles = Handles::default();
        assert!(handles.take_over(7, "a") && !handles.take_over(7, "b"));
        assert_eq!(handles.get(7).as_deref(), Some(&"a"));
        assert_eq!(handles.insert("c"), 8);
        assert_eq!(handles.next_number(), 9);
        handles.begin_at(21);
        handles.begin_at(10);
        assert!(handles.get(20).is_none());
        assert_eq!(handles.insert("d"), 21);
        assert_eq!(handles.all().len(), 3);
    }
}
