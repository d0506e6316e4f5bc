//! The table of operations in flight, as the interface sees them.
//!
//! Invariants
//! * An entry is used again only when its operation has completed and its result has been taken or
//!   given up; a generation number makes a stale name of it harmless.
//! * The table grows up to a bound and never shrinks, so starting an operation allocates nothing
//!   once it is warm.
//! * `watched` counts the operations in flight that somebody sleeps for outside of this library.

use crate::batch::Sent;
use crate::cache::DirectUse;
use crate::core::Done;
use crate::group::GroupState;
use crate::limits::OPERATIONS_MAX;
use crate::uncommitted::{Mark, Uncommitted};
use dafs_wire::dafs::Stability;
use std::sync::Arc;
use std::task::Waker;

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
    /// In flight, and somebody wants the result: a thread, or a task that is to be woken.
    Awaited(Option<Waker>),
    /// In flight; the result goes to a group.
    Grouped(Grouped),
    /// In flight, and nobody wants the result.
    Abandoned,
    /// Over, result not taken yet.
    Done(Done),
}

/// What an operation of a group is.
#[derive(Debug)]
pub(crate) struct Grouped {
    pub(crate) group: Arc<GroupState>,
    pub(crate) kind: GroupedKind,
}

#[derive(Debug)]
pub(crate) enum GroupedKind {
    /// A read or write, with the caller's word for it.
    Transfer(u64),
    /// A COMMIT: the caller's word, what it is to make stable, where it began, whether it is of the
    /// whole file.
    Commit { user_data: u64, writes: Arc<Uncommitted>, mark: Mark, whole: bool },
    /// A message with transfers of a batch.
    Batch(Sent),
}

impl GroupedKind {
    /// Completions that it yields.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Transfer(_) | Self::Commit { .. } => 1,
            Self::Batch(sent) => sent.len(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    state: State,
    /// Whom to tell of a write that is not stable.
    writes: Option<Arc<Uncommitted>>,
    /// Ends with the operation.
    used: Option<Arc<DirectUse>>,
    watched: bool,
}

/// What became of a completion.
#[derive(Debug)]
pub(crate) enum Finished {
    /// It waits in its entry, or nobody wanted it.
    Kept,
    /// It waits in its entry, and a task is to be woken.
    Wake(Waker),
    /// It is a group's.
    Grouped(Grouped, Done),
}

/// The table.
#[derive(Debug)]
pub(crate) struct Operations {
    entries: Vec<Entry>,
    free: Vec<u32>,
    watched: usize,
}

impl Operations {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), watched: 0 }
    }

    /// Operations in flight that must be moved along because nobody waits for them here.
    pub(crate) fn watched(&self) -> usize {
        self.watched
    }

    /// A new operation that somebody will wait for; `None` when there are too many.
    pub(crate) fn open(&mut self) -> Option<Slot> {
        self.insert(State::Awaited(None))
    }

    /// A new operation of a group, which has room for it.
    pub(crate) fn open_grouped(
        &mut self,
        group: &Arc<GroupState>,
        kind: GroupedKind,
    ) -> Option<Slot> {
        let grouped = Grouped { group: group.clone(), kind };
        let (count, watched) = (grouped.kind.count(), group.is_watched());
        let slot = self.insert(State::Grouped(grouped))?;
        group.begun(count);
        if watched {
            self.watched += 1;
            self.entries[slot.index as usize].watched = true;
        }
        Some(slot)
    }

    /// Somebody sleeps on a group's descriptor from now on.
    pub(crate) fn watch_group(&mut self, group: &Arc<GroupState>) {
        for entry in &mut self.entries {
            if let State::Grouped(grouped) = &entry.state
                && Arc::ptr_eq(&grouped.group, group)
                && !entry.watched
            {
                entry.watched = true;
                self.watched += 1;
            }
        }
    }

    /// A task waits for an operation in flight.
    pub(crate) fn wake(&mut self, slot: &Slot, waker: &Waker) {
        let entry = &mut self.entries[slot.index as usize];
        debug_assert_eq!(entry.generation, slot.generation, "the slot is in use");
        let State::Awaited(waiting) = &mut entry.state else { return };
        match waiting {
            Some(waiting) => waiting.clone_from(waker),
            None => *waiting = Some(waker.clone()),
        }
        if !entry.watched {
            entry.watched = true;
            self.watched += 1;
        }
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
        self.entries.push(Entry { generation: 0, state, writes: None, used: None, watched: false });
        Some(Slot { index, generation: 0 })
    }

    fn release(&mut self, index: u32) -> State {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.used = None;
        if std::mem::take(&mut entry.watched) {
            self.watched -= 1;
        }
        self.free.push(index);
        std::mem::replace(&mut entry.state, State::Free)
    }

    fn entry(&mut self, index: u32, generation: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize).filter(|entry| entry.generation == generation)
    }

    /// The operation was not started after all.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.entries[slot.index as usize].writes = None;
        if let State::Grouped(grouped) = self.release(slot.index) {
            grouped.group.forgotten(grouped.kind.count());
        }
    }

    /// The operation is a write of this file.
    pub(crate) fn watch(&mut self, tag: u64, writes: Option<Arc<Uncommitted>>) {
        if let Some(entry) = self.entry(tag as u32, (tag >> 32) as u32) {
            entry.writes = writes;
        }
    }

    /// The operation is a use of a file beside the cache.
    pub(crate) fn keep(&mut self, tag: u64, used: Option<Arc<DirectUse>>) {
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
        match &mut entry.state {
            State::Awaited(waker) => {
                let waker = waker.take();
                entry.state = State::Done(done);
                if std::mem::take(&mut entry.watched) {
                    self.watched -= 1;
                }
                return waker.map_or(Finished::Kept, Finished::Wake);
            }
            State::Grouped(_) => {
                let State::Grouped(grouped) = self.release(index) else { return Finished::Kept };
                return Finished::Grouped(grouped, done);
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
            State::Awaited(_) => {
                entry.state = State::Abandoned;
                if std::mem::take(&mut entry.watched) {
                    self.watched -= 1;
                }
            }
            State::Done(_) => {
                self.release(slot.index);
            }
            State::Free | State::Grouped(_) | State::Abandoned => {}
        }
    }

    /// True while an operation of a group is in flight.
    pub(crate) fn is_in_flight(&mut self, tag: u64) -> bool {
        let entry = self.entry(tag as u32, (tag >> 32) as u32);
        entry.is_some_and(|entry| matches!(entry.state, State::Grouped(_)))
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
    fn results_of_a_group_go_straight_out() {
        let mut operations = Operations::new();
        let group = Arc::<GroupState>::default();
        let slot = operations.open_grouped(&group, GroupedKind::Transfer(42)).unwrap();
        let finished = operations.finish(slot.tag(), read(3));
        let Finished::Grouped(grouped, Done::Read { bytes: 3, .. }) = finished else {
            panic!("{finished:?}")
        };
        assert!(matches!(grouped.kind, GroupedKind::Transfer(42)));
        assert!(!operations.is_in_flight(slot.tag()));
    }

    #[test]
    fn what_is_watched_is_counted_until_it_is_over() {
        let mut operations = Operations::new();
        let slot = operations.open().unwrap();
        operations.wake(&slot, Waker::noop());
        operations.wake(&slot, Waker::noop());
        assert_eq!(operations.watched(), 1);
        assert!(matches!(operations.finish(slot.tag(), read(3)), Finished::Wake(_)));
        assert_eq!(operations.watched(), 0);
        let slot = operations.open().unwrap();
        operations.wake(&slot, Waker::noop());
        operations.abandon(slot);
        assert_eq!(operations.watched(), 0);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut operations = Operations::new();
        let slots: Vec<_> = (0..OPERATIONS_MAX).map(|_| operations.open().unwrap()).collect();
        assert!(operations.open().is_none());
        drop(slots);
    }
}
