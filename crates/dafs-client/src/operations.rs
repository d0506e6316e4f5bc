//! The table of operations in flight, as the interface sees them.
//!
//! Invariants
//! * An entry is reused only when its operation has completed and its result has been taken or
//!   abandoned; a generation number makes a stale tag of it harmless. One that has had all its
//!   generations is never used again.
//! * The table grows up to a bound and never shrinks, so starting an operation allocates nothing
//!   once it is warm.
//! * `watched` counts the operations in flight for which a program sleeps outside of this library,
//!   and `followed` those with a continuation and without a waiter. `ahead` counts read-ahead:
//!   operations whose result is not needed before a thread waits for it.
//! * An operation whose result goes to a mailbox leaves its entry when it ends, whether or not a thread
//!   looks into the mailbox.
//! * No waker is cloned or dropped here, nor a continuation called, because that may run any code
//!   of the application's: the callers get them to call or drop when the lock is free.

use crate::batch::Sent;
use crate::cache::DirectUse;
use crate::core::Done;
use crate::fork::ForkMutex;
use crate::group::GroupState;
use crate::limits::OPERATIONS_MAX;
use crate::outcome::CommitWatch;
use crate::uncommitted::Uncommitted;
use dafs_wire::dafs::Stability;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

/// Bits of a tag that hold the entry's index.
const INDEX_BITS: u32 = 16;

/// The last generation of an entry; the tag that is all ones belongs to no operation.
const GENERATION_MAX: u64 = (1 << (u64::BITS - INDEX_BITS)) - 2;

const _: () = assert!(OPERATIONS_MAX <= 1 << INDEX_BITS);

/// The handle of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    index: u32,
    generation: u64,
}

impl Slot {
    pub(crate) fn tag(&self) -> u64 {
        self.generation << INDEX_BITS | u64::from(self.index)
    }

    fn of(tag: u64) -> Self {
        Self { index: (tag & ((1 << INDEX_BITS) - 1)) as u32, generation: tag >> INDEX_BITS }
    }
}

#[derive(Debug)]
enum State {
    Free,
    /// In flight, and the result is wanted: by a thread, or by a task with a waker.
    Awaited(Option<Waker>),
    /// In flight; the result goes to a group.
    Grouped(Grouped),
    /// In flight, with a continuation that is called with the result.
    Followed(Continuation),
    /// In flight; the result goes to a mailbox.
    Posted(Mailbox),
    /// In flight, and the result is not wanted.
    Abandoned,
    /// Over, result not taken yet.
    Done(Done),
}

/// The place of a result that no thread waits for. Its lock is held for moments alone, and may be taken
/// under that of the driver.
pub(crate) type Mailbox = Arc<ForkMutex<Option<Done>>>;

/// The continuation of an operation. The thread that polled its completion calls it when the lock
/// is free.
pub(crate) struct Continuation(Box<dyn FnOnce(Done) + Send>);

impl Continuation {
    pub(crate) fn new(call: impl FnOnce(Done) + Send + 'static) -> Self {
        Self(Box::new(call))
    }

    /// Called without any lock. A panic has been reported, and ends nothing else.
    pub(crate) fn call(self, done: Done) {
        let _ = catch_unwind(AssertUnwindSafe(|| (self.0)(done)));
    }
}

impl std::fmt::Debug for Continuation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Continuation")
    }
}

/// The group and kind of an operation.
#[derive(Debug)]
pub(crate) struct Grouped {
    pub(crate) group: Arc<GroupState>,
    pub(crate) kind: GroupedKind,
}

#[derive(Debug)]
pub(crate) enum GroupedKind {
    /// A read or write, with the caller's `user_data`.
    Transfer(u64),
    /// A COMMIT, with the caller's `user_data`.
    Commit(u64, CommitWatch),
    /// An append, with the caller's `user_data`.
    Append(u64),
    /// A message with transfers of a batch.
    Batch(Sent),
}

impl GroupedKind {
    /// Completions that it yields.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Transfer(_) | Self::Commit(..) | Self::Append(_) => 1,
            Self::Batch(sent) => sent.len(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    generation: u64,
    state: State,
    /// The record to update when an unstable write is answered.
    writes: Option<Arc<Uncommitted>>,
    /// A use of a file, which ends with the operation.
    used: Option<Arc<DirectUse>>,
    watched: bool,
    ahead: bool,
}

/// The action that a completion requires.
#[derive(Debug)]
pub(crate) enum Finished {
    /// None: the result waits in its entry, or was abandoned.
    Waiting,
    /// The result waits in its entry, and a task is to be woken.
    Wake(Waker),
    /// The result belongs to a group.
    Grouped(Grouped, Done),
    /// The continuation is to be called when the lock is free.
    Followed(Continuation, Done),
}

/// The operations of a session.
#[derive(Debug)]
pub(crate) struct Operations {
    entries: Vec<Entry>,
    free: Vec<u32>,
    watched: usize,
    followed: usize,
    ahead: usize,
}

impl Operations {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), watched: 0, followed: 0, ahead: 0 }
    }

    /// Operations in flight for which the mover thread must make progress.
    pub(crate) fn watched(&self) -> usize {
        self.watched
    }

    /// Operations in flight that have a continuation.
    pub(crate) fn followed(&self) -> usize {
        self.followed
    }

    /// Operations in flight that need no progress for a while.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Marks an operation in flight as read-ahead: its result is not needed before a thread waits
    /// for it.
    pub(crate) fn is_ahead(&mut self, slot: &Slot) {
        let entry = &mut self.entries[slot.index as usize];
        if matches!(entry.state, State::Awaited(_)) && !std::mem::replace(&mut entry.ahead, true) {
            self.ahead += 1;
        }
    }

    /// Ends that mark: the operation is over, waited for or abandoned.
    fn is_behind(&mut self, index: u32) {
        if std::mem::take(&mut self.entries[index as usize].ahead) {
            self.ahead -= 1;
        }
    }

    /// Gives an operation that was started just now a continuation, in place of a waiter.
    pub(crate) fn follow(&mut self, slot: Slot, then: Continuation) {
        let entry = &mut self.entries[slot.index as usize];
        debug_assert!(matches!(entry.state, State::Awaited(None)), "it has just been started");
        entry.state = State::Followed(then);
        self.followed += 1;
    }

    /// Lets the result of an operation that was started just now go to a mailbox, in place of a waiter.
    pub(crate) fn post(&mut self, slot: Slot, mailbox: Mailbox) {
        let entry = &mut self.entries[slot.index as usize];
        debug_assert!(matches!(entry.state, State::Awaited(None)), "it has just been started");
        entry.state = State::Posted(mailbox);
    }

    /// Removes the continuations of all operations that end now.
    pub(crate) fn take_followed(&mut self) -> Vec<Continuation> {
        let mut all = Vec::new();
        for entry in &mut self.entries {
            if matches!(entry.state, State::Followed(_))
                && let State::Followed(then) = std::mem::replace(&mut entry.state, State::Abandoned)
            {
                all.push(then);
            }
        }
        self.followed = 0;
        all
    }

    /// A new operation with a waiter; `None` when there are too many.
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

    /// Marks the operations of a group as watched: a thread sleeps on the group's descriptor.
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

    /// Sets the waker of an operation in flight. Returns a waker that is not needed (any more).
    #[must_use = "it is dropped when the lock is free"]
    pub(crate) fn wake(&mut self, slot: &Slot, waker: Waker) -> Option<Waker> {
        let entry = &mut self.entries[slot.index as usize];
        debug_assert_eq!(entry.generation, slot.generation, "the slot is in use");
        let State::Awaited(waiting) = &mut entry.state else { return Some(waker) };
        let old = waiting.replace(waker);
        if !entry.watched {
            entry.watched = true;
            self.watched += 1;
        }
        old
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
        let entry =
            Entry { generation: 0, state, writes: None, used: None, watched: false, ahead: false };
        self.entries.push(entry);
        Some(Slot { index, generation: 0 })
    }

    fn release(&mut self, index: u32) -> State {
        self.is_behind(index);
        let entry = &mut self.entries[index as usize];
        entry.used = None;
        if std::mem::take(&mut entry.watched) {
            self.watched -= 1;
        }
        if entry.generation < GENERATION_MAX {
            entry.generation += 1;
            self.free.push(index);
        }
        std::mem::replace(&mut entry.state, State::Free)
    }

    fn entry(&mut self, tag: u64) -> Option<&mut Entry> {
        let Slot { index, generation } = Slot::of(tag);
        self.entries.get_mut(index as usize).filter(|entry| entry.generation == generation)
    }

    /// Removes an operation that was not started after all. The room that its group reserved for it
    /// stays taken.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.entries[slot.index as usize].writes = None;
        if let State::Grouped(grouped) = self.release(slot.index) {
            grouped.group.not_begun(grouped.kind.count());
        }
    }

    /// Marks the operation as a write of this file.
    pub(crate) fn watch(&mut self, tag: u64, writes: Option<Arc<Uncommitted>>) {
        if let Some(entry) = self.entry(tag) {
            entry.writes = writes;
        }
    }

    /// Ties a use of a file that bypasses the cache to the operation.
    pub(crate) fn keep(&mut self, tag: u64, used: Option<Arc<DirectUse>>) {
        if let Some(entry) = self.entry(tag) {
            entry.used = used;
        }
    }

    /// Ends an operation.
    pub(crate) fn finish(&mut self, tag: u64, done: Done) -> Finished {
        let index = Slot::of(tag).index;
        if self.entry(tag).is_none() {
            debug_assert!(false, "an operation completed twice");
            return Finished::Waiting;
        }
        self.is_behind(index);
        let entry = &mut self.entries[index as usize];
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
                return waker.map_or(Finished::Waiting, Finished::Wake);
            }
            State::Grouped(_) => {
                let State::Grouped(grouped) = self.release(index) else { return Finished::Waiting };
                return Finished::Grouped(grouped, done);
            }
            State::Followed(_) => {
                self.followed -= 1;
                let State::Followed(then) = self.release(index) else { return Finished::Waiting };
                return Finished::Followed(then, done);
            }
            State::Posted(mailbox) => {
                *mailbox.lock_here() = Some(done);
                self.release(index);
            }
            State::Abandoned => {
                self.release(index);
            }
            State::Free | State::Done(_) => debug_assert!(false, "an operation completed twice"),
        }
        Finished::Waiting
    }

    pub(crate) fn is_done(&self, slot: &Slot) -> bool {
        matches!(self.entries[slot.index as usize].state, State::Done(_))
    }

    /// True when an operation that a thread waits for has ended.
    pub(crate) fn is_over(&self, tag: u64) -> bool {
        let Slot { index, generation } = Slot::of(tag);
        let entry = self.entries.get(index as usize);
        entry.is_none_or(|entry| {
            entry.generation != generation || matches!(entry.state, State::Free | State::Done(_))
        })
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

    /// Abandons the result. Returns the waker that was to be called.
    pub(crate) fn abandon(&mut self, slot: Slot) -> Option<Waker> {
        self.entry(slot.tag())?;
        self.is_behind(slot.index);
        let entry = self.entry(slot.tag())?;
        match &mut entry.state {
            State::Awaited(waker) => {
                let waker = waker.take();
                entry.state = State::Abandoned;
                if std::mem::take(&mut entry.watched) {
                    self.watched -= 1;
                }
                waker
            }
            State::Done(_) => {
                self.release(slot.index);
                None
            }
            State::Free
            | State::Grouped(_)
            | State::Followed(_)
            | State::Posted(_)
            | State::Abandoned => None,
        }
    }

    /// True while an operation of a group is in flight.
    pub(crate) fn is_in_flight(&mut self, tag: u64) -> bool {
        let entry = self.entry(tag);
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
        assert!(operations.abandon(slot).is_none());
        assert!(matches!(operations.finish(tag, read(1)), Finished::Waiting));
        let slot = operations.open().unwrap();
        operations.finish(slot.tag(), Done::Lost(Failure::Closed));
        assert!(operations.abandon(slot).is_none());
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
    fn a_continuation_is_handed_out_with_its_result() {
        let mut operations = Operations::new();
        let (said, hears) = std::sync::mpsc::channel();
        let then = |said: &std::sync::mpsc::Sender<u32>| {
            let said = said.clone();
            Continuation::new(move |done| {
                let Done::Read { bytes, .. } = done else { panic!("{done:?}") };
                said.send(bytes).unwrap();
            })
        };
        let slots: Vec<_> = (0..3).map(|_| operations.open().unwrap()).collect();
        let tags: Vec<_> = slots.iter().map(Slot::tag).collect();
        slots.into_iter().for_each(|slot| operations.follow(slot, then(&said)));
        assert_eq!((operations.followed(), operations.watched()), (3, 0));
        let Finished::Followed(then, done) = operations.finish(tags[0], read(3)) else { panic!() };
        assert!(hears.try_recv().is_err() && operations.followed() == 2);
        then.call(done);
        assert_eq!(hears.try_recv(), Ok(3));
        assert_eq!((operations.take_followed().len(), operations.followed()), (2, 0));
        assert!(matches!(operations.finish(tags[1], read(3)), Finished::Waiting));
    }

    #[test]
    fn a_posted_result_leaves_the_table() {
        let mut operations = Operations::new();
        let slot = operations.open().unwrap();
        let (tag, mailbox) = (slot.tag(), Mailbox::default());
        operations.post(slot, mailbox.clone());
        assert!(mailbox.lock_here().is_none());
        assert!(matches!(operations.finish(tag, read(3)), Finished::Waiting));
        assert!(matches!(mailbox.lock_here().take(), Some(Done::Read { bytes: 3, .. })));
        assert_eq!(operations.free.len(), 1);
    }

    #[test]
    fn a_watched_operation_counts_until_its_end() {
        let mut operations = Operations::new();
        let slot = operations.open().unwrap();
        assert!(operations.wake(&slot, Waker::noop().clone()).is_none());
        assert!(operations.wake(&slot, Waker::noop().clone()).is_some());
        assert_eq!(operations.watched(), 1);
        assert!(matches!(operations.finish(slot.tag(), read(3)), Finished::Wake(_)));
        assert_eq!(operations.watched(), 0);
        let slot = operations.open().unwrap();
        assert!(operations.wake(&slot, Waker::noop().clone()).is_none());
        assert!(operations.abandon(slot).is_some());
        assert_eq!(operations.watched(), 0);
    }

    #[test]
    fn a_read_ahead_counts_until_its_end_or_its_abandonment() {
        let mut operations = Operations::new();
        let slots: Vec<_> = (0..4).map(|_| operations.open().unwrap()).collect();
        for slot in &slots {
            operations.is_ahead(slot);
            operations.is_ahead(slot);
        }
        assert_eq!(operations.ahead(), 4);
        let [over, abandoned, forgotten, late] = slots.try_into().unwrap();
        operations.finish(over.tag(), read(3));
        assert_eq!(operations.ahead(), 3);
        operations.is_ahead(&over);
        assert!(operations.take(&over).is_some() && operations.ahead() == 3);
        assert!(operations.abandon(abandoned).is_none() && operations.ahead() == 2);
        operations.forget(forgotten);
        assert_eq!(operations.ahead(), 1);
        operations.finish(late.tag(), read(3));
        assert!(operations.abandon(late).is_none() && operations.ahead() == 0);
        assert!(!operations.entries.iter().any(|entry| entry.ahead));
    }

    #[test]
    fn no_name_is_used_twice() {
        let mut operations = Operations::new();
        let slot = operations.open().unwrap();
        let first = slot.tag();
        operations.forget(slot);
        // The generation at which 32 bits would wrap around.
        operations.entries[0].generation = 1 << 32;
        let slot = operations.open().unwrap();
        assert!(!operations.is_in_flight(first) && slot.tag() != first);
        operations.forget(slot);
        operations.entries[0].generation = GENERATION_MAX;
        let last = operations.open().unwrap();
        assert_ne!(last.tag(), u64::MAX);
        operations.forget(last);
        assert_eq!(operations.open().unwrap().tag(), 1, "the entry has had all its names");
    }

    #[test]
    fn the_table_is_bounded() {
        let mut operations = Operations::new();
        let slots: Vec<_> = (0..OPERATIONS_MAX).map(|_| operations.open().unwrap()).collect();
        assert!(operations.open().is_none());
        drop(slots);
    }
}
