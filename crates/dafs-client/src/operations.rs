//! The table of operations in flight, as the interface sees them.
//!
//! Invariants
//! * An entry is used again only when its operation has completed and its result has been taken or
//!   given up; a generation number makes a stale name of it harmless.
//! * The table grows up to a bound and never shrinks, so starting an operation allocates nothing
//!   once it is warm.

use crate::cache::DirectUse;
use crate::core::Done;
use crate::limits::OPERATIONS_MAX;
use crate::uncommitted::Uncommitted;
use dafs_wire::dafs::Stability;
use std::sync::Arc;

/// Names an operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    index: u32,
    generation: u32,
}

impl Slot {
    pub(crate) fn tag(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

#[derive(Debug)]
enum State {
    Free,
    /// In flight, and somebody wants the result.
    Awaited,
    /// In flight; the result goes out under the caller's tag.
    Tagged(u64),
    /// In flight, and nobody wants the result.
    Abandoned,
    /// Over, result not taken yet.
    Done(Done),
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    state: State,
    /// Whom to tell of a write that is not stable.
    writes: Option<Arc<Uncommitted>>,
    /// Ends with the operation.
    used: Option<DirectUse>,
}

/// What became of a completion.
#[derive(Debug)]
pub(crate) enum Finished {
    /// It waits in its entry, or nobody wanted it.
    Kept,
    /// It is to be handed out under this tag.
    Tagged(u64, Done),
}

/// The table.
#[derive(Debug)]
pub(crate) struct Operations {
    entries: Vec<Entry>,
    free: Vec<u32>,
    tagged: usize,
}

impl Operations {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), tagged: 0 }
    }

    /// Tagged operations in flight.
    pub(crate) fn tagged(&self) -> usize {
        self.tagged
    }

    /// A new operation that somebody will wait for; `None` when there are too many.
    pub(crate) fn open(&mut self) -> Option<Slot> {
        self.insert(State::Awaited)
    }

    /// A new operation whose result goes out under `tag`.
    pub(crate) fn open_tagged(&mut self, tag: u64) -> Option<Slot> {
        let slot = self.insert(State::Tagged(tag))?;
        self.tagged += 1;
        Some(slot)
    }

    fn insert(&mut self, state: State) -> Option<Slot> {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            entry.state = state;
            return Some(Slot { index, generation: entry.generation });
        }
        if self.entries.len() >= OPERATIONS_MAX {
            return None;
        }
        let index = self.entries.len() as u32;
        self.entries.push(Entry { generation: 0, state, writes: None, used: None });
        Some(Slot { index, generation: 0 })
    }

    fn release(&mut self, index: u32) -> State {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.used = None;
        self.free.push(index);
        std::mem::replace(&mut entry.state, State::Free)
    }

    fn entry(&mut self, index: u32, generation: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize).filter(|entry| entry.generation == generation)
    }

    /// The operation was not started after all.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.entries[slot.index as usize].writes = None;
        if let State::Tagged(_) = self.release(slot.index) {
            self.tagged -= 1;
        }
    }

    /// The operation is a write of this file.
    pub(crate) fn watch(&mut self, tag: u64, writes: Option<Arc<Uncommitted>>) {
        if let Some(entry) = self.entry(tag as u32, (tag >> 32) as u32) {
            entry.writes = writes;
        }
    }

    /// The operation is a use of a file beside the cache.
    pub(crate) fn keep(&mut self, tag: u64, used: Option<DirectUse>) {
        if let Some(entry) = self.entry(tag as u32, (tag >> 32) as u32) {
            entry.used = used;
        }
    }

    /// An operation has completed.
    pub(crate) fn finish(&mut self, tag: u64, done: Done) -> Finished {
        let (index, generation) = (tag as u32, (tag >> 32) as u32);
        let Some(entry) = self.entry(index, generation) else {
            debug_assert!(false, "an operation completed twice");
            return Finished::Kept;
        };
        entry.used = None;
        if let Some(writes) = entry.writes.take()
            && let Done::Written { committed: Stability::Unstable, verifier, .. } = done
        {
            writes.written(verifier);
        }
        match entry.state {
            State::Awaited => entry.state = State::Done(done),
            State::Tagged(tag) => {
                self.tagged -= 1;
                self.release(index);
                return Finished::Tagged(tag, done);
            }
            State::Abandoned => {
                self.release(index);
            }
            State::Free | State::Done(_) => debug_assert!(false, "an operation completed twice"),
        }
        Finished::Kept
    }

    pub(crate) fn is_done(&self, slot: &Slot) -> bool {
        matches!(self.entries[slot.index as usize].state, State::Done(_))
    }

    /// Takes the result, if the operation is over.
    pub(crate) fn take(&mut self, slot: &Slot) -> Option<Done> {
        if !self.is_done(slot) {
            return None;
        }
        match self.release(slot.index) {
            State::Done(done) => Some(done),
            _ => None,
        }
    }

    /// Nobody wants the result any more.
    pub(crate) fn abandon(&mut self, slot: Slot) {
        let Some(entry) = self.entry(slot.index, slot.generation) else { return };
        match entry.state {
            State::Awaited => entry.state = State::Abandoned,
            State::Done(_) => {
                self.release(slot.index);
            }
            State::Free | State::Tagged(_) | State::Abandoned => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Failure;

    fn read(bytes: u32) -> Done {
        Done::Read { bytes, end_of_file: false }
    }

    #[test]
    fn a_result_waits_for_its_owner() {
        let mut operations = Operations::new();
        let slot = operations.open().unwrap();
        assert!(operations.take(&slot).is_none());
        operations.finish(slot.tag(), read(7));
        assert!(operations.is_done(&slot));
        assert!(matches!(operations.take(&slot), Some(Done::Read { bytes: 7, .. })));
        let again = operations.open().unwrap();
        assert_ne!(again.tag(), slot.tag());
    }

    #[test]
    fn abandoned_operations_free_their_entry() {
        let mut operations = Operations::new();
        let slot = operations.open().unwrap();
        let tag = slot.tag();
        operations.abandon(slot);
        assert!(matches!(operations.finish(tag, read(1)), Finished::Kept));
        let slot = operations.open().unwrap();
        operations.finish(slot.tag(), Done::Lost(Failure::Closed));
        operations.abandon(slot);
        assert_eq!(operations.free.len(), 1);
    }

    #[test]
    fn tagged_results_go_straight_out() {
        let mut operations = Operations::new();
        let slot = operations.open_tagged(42).unwrap();
        assert_eq!(operations.tagged(), 1);
        assert!(matches!(operations.finish(slot.tag(), read(3)), Finished::Tagged(42, _)));
        assert_eq!(operations.tagged(), 0);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut operations = Operations::new();
        let slots: Vec<_> = (0..OPERATIONS_MAX).map(|_| operations.open().unwrap()).collect();
        assert!(operations.open().is_none());
        drop(slots);
    }
}
