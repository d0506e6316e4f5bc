//! A gate that knows the work under way, so that a waiter learns when all work of some subjects
//! that had begun before a moment has ended.
//!
//! Work enters with its subject. A waiter leaves a mark with all work that concerns it, and its
//! wait is over when the last mark is dropped. Later work and work of other subjects bear no mark,
//! so a busy server starves no waiter.
//!
//! Invariants
//! * Work is entered before it reads the state that waiters change, and waiters change that state
//!   before they look for work. So work either sees the change or is waited for.
//! * A mark is dropped outside of all locks.

use dafs_mem::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of tables that threads share.
const SHARDS: usize = 16;

/// A table that shares no cache line with another.
#[repr(align(128))]
struct Shard<K, W>(Mutex<Table<K, W>>);

struct Table<K, W> {
    /// At most as many slots as there was concurrent work, including work within work.
    slots: Vec<Slot<K, W>>,
    free: Vec<usize>,
}

struct Slot<K, W> {
    /// The subject of the work. `None` in a free slot.
    whose: Option<K>,
    /// The marks of its waiters.
    marks: Vec<W>,
}

/// The gate. When the last clone of a waiter's mark is dropped, the waiter is notified.
pub(super) struct Gate<K, W>([Shard<K, W>; SHARDS]);

/// Marks work as under way while it lives.
pub(super) struct Entered<'a, K, W> {
    shard: &'a Shard<K, W>,
    slot: usize,
}

impl<K, W> Gate<K, W> {
    pub(super) fn new() -> Self {
        let table = || Mutex::new(Table { slots: Vec::new(), free: Vec::new() });
        Self(std::array::from_fn(|_| Shard(table())))
    }

    /// Begins work.
    pub(super) fn enter(&self, whose: K) -> Entered<'_, K, W> {
        let shard = &self.0[shard()];
        let mut table = shard.0.lock();
        let slot = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot { whose: None, marks: Vec::new() });
            table.slots.len() - 1
        });
        debug_assert!(table.slots[slot].whose.is_none() && table.slots[slot].marks.is_empty());
        table.slots[slot].whose = Some(whose);
        drop(table);
        Entered { shard, slot }
    }

    /// Leaves a clone of `mark` with all work under way whose subject it concerns.
    pub(super) fn mark(&self, mark: &W, concerns: impl Fn(&K) -> bool)
    where
        W: Clone,
    {
        for shard in &self.0 {
            let mut table = shard.0.lock();
            for slot in &mut table.slots {
                if slot.whose.as_ref().is_some_and(&concerns) {
                    slot.marks.push(mark.clone());
                }
            }
        }
    }
}

impl<K, W> Entered<'_, K, W> {
    /// Refines the subject of the work.
    pub(super) fn is_of(&self, whose: K) {
        self.shard.0.lock().slots[self.slot].whose = Some(whose);
    }
}

impl<K, W> Drop for Entered<'_, K, W> {
    fn drop(&mut self) {
        let mut table = self.shard.0.lock();
        let slot = &mut table.slots[self.slot];
        debug_assert!(slot.whose.is_some(), "work ended that had not begun");
        slot.whose = None;
        let marks = std::mem::take(&mut slot.marks);
        table.free.push(self.slot);
        drop(table);
        drop(marks);
    }
}

/// Returns the table that this thread uses.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    }
    OWN.with(Cell::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// The drop of its last clone is recorded.
    #[derive(Clone)]
    struct Mark(#[allow(dead_code, reason = "for its drop")] Arc<Last>);

    struct Last(Arc<AtomicBool>);

    impl Drop for Last {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Waits for work of `whose`. Returns the flag that is set when it is over.
    fn wait(gate: &Gate<u32, Mark>, whose: u32) -> Arc<AtomicBool> {
        let over = Arc::new(AtomicBool::new(false));
        gate.mark(&Mark(Arc::new(Last(over.clone()))), |&other| other == whose);
        over
    }

    fn is_over(over: &AtomicBool) -> bool {
        over.load(Ordering::SeqCst)
    }

    #[test]
    fn a_waiter_waits_for_what_had_begun_and_for_nothing_else() {
        let gate = Gate::new();
        assert!(is_over(&wait(&gate, 1)), "nothing was going on");
        let (old, other) = (gate.enter(1), gate.enter(2));
        assert!(is_over(&wait(&gate, 3)), "nothing of this one was going on");
        let first = wait(&gate, 1);
        let new = gate.enter(1);
        assert!(!is_over(&first));
        drop(old);
        assert!(is_over(&first), "neither new work nor that of others counts");
        let second = wait(&gate, 1);
        drop(new);
        assert!(is_over(&second));
        drop(other);
    }

    #[test]
    fn several_waiters_and_several_works_are_told_apart() {
        let gate = Gate::new();
        let works = [gate.enter(1), gate.enter(1), gate.enter(2)];
        let (one, two) = (wait(&gate, 1), wait(&gate, 2));
        let [first, second, third] = works;
        drop(first);
        assert!(!is_over(&one) && !is_over(&two));
        // The third work turns out to concern both waiters.
        third.is_of(1);
        let both = wait(&gate, 1);
        drop(second);
        assert!(is_over(&one) && !is_over(&both));
        drop(third);
        assert!(is_over(&two) && is_over(&both));
    }

    #[test]
    fn no_work_goes_on_behind_a_waiter_that_did_not_see_the_change() {
        let gate = Arc::new(Gate::new());
        let (closed, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (gate, closed, over) = (gate.clone(), closed.clone(), over.clone());
                std::thread::spawn(move || {
                    loop {
                        let _entered = gate.enter(1);
                        if closed.load(Ordering::SeqCst) {
                            return;
                        }
                        assert!(!over.load(Ordering::SeqCst), "work that did not see the change");
                    }
                })
            })
            .collect();
        for _ in 0..1000 {
            let told = wait(&gate, 1);
            while !is_over(&told) {
                std::thread::yield_now();
            }
        }
        closed.store(true, Ordering::SeqCst);
        gate.mark(&Mark(Arc::new(Last(over.clone()))), |_| true);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(is_over(&over));
    }
}
