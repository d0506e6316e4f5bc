//! Counts work that is going on, so that somebody can learn when all of it that had begun before some
//! moment is over.
//!
//! Whoever works enters under the present epoch; whoever waits ends the epoch, and has waited long enough
//! when nobody of it is left. Work that begins later counts for the next one, so that a busy server
//! does not make anybody wait for ever.
//!
//! Invariants
//! * Work is counted before it looks at what those who wait have changed, and they change it before
//!   they end the epoch; so work either sees the change or is waited for.
//! * There are two counters: an epoch ends only when nobody of the one before is left.
//! * A waiter is told outside of all locks.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Threads share this many counters.
const SHARDS: usize = 16;

/// A pair of counters that no other pair shares a cache line with.
#[derive(Default)]
#[repr(align(128))]
struct Shard([AtomicUsize; 2]);

/// The gate; what is dropped tells a waiter.
pub(super) struct Gate<W> {
    epoch: AtomicU64,
    shards: [Shard; SHARDS],
    /// Somebody waits.
    awaited: AtomicBool,
    waiters: Mutex<Waiters<W>>,
}

struct Waiters<W> {
    /// For the end of the epoch before the present one.
    now: Vec<W>,
    /// For the end of the present one.
    next: Vec<W>,
}

/// While it lives, work is going on.
pub(super) struct Entered<'a, W> {
    gate: &'a Gate<W>,
    counter: &'a AtomicUsize,
}

impl<W> Gate<W> {
    pub(super) fn new() -> Self {
        Self {
            epoch: AtomicU64::new(0),
            shards: Default::default(),
            awaited: AtomicBool::new(false),
            waiters: Mutex::new(Waiters { now: Vec::new(), next: Vec::new() }),
        }
    }

    /// Work begins.
    pub(super) fn enter(&self) -> Entered<'_, W> {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let counter = &self.shards[shard()].0[(epoch & 1) as usize];
            counter.fetch_add(1, Ordering::SeqCst);
            let entered = Entered { gate: self, counter };
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return entered;
            }
        }
    }

    /// Drops `waiter` when all work that goes on now is over.
    pub(super) fn when_over(&self, waiter: W) {
        self.lock().next.push(waiter);
        self.awaited.store(true, Ordering::SeqCst);
        self.advance();
    }

    /// Those who wait, for tests and metrics.
    pub(super) fn waiting(&self) -> usize {
        let waiters = self.lock();
        waiters.now.len() + waiters.next.len()
    }

    /// Tells those for whom it is time.
    fn advance(&self) {
        let mut told = Vec::new();
        let mut waiters = self.lock();
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            // The counter of the epoch before.
            let before = ((epoch + 1) & 1) as usize;
            let left = |shard: &Shard| shard.0[before].load(Ordering::SeqCst) > 0;
            if self.shards.iter().any(left) {
                break;
            }
            told.append(&mut waiters.now);
            if waiters.next.is_empty() {
                self.awaited.store(false, Ordering::SeqCst);
                break;
            }
            waiters.now = std::mem::take(&mut waiters.next);
            self.epoch.store(epoch + 1, Ordering::SeqCst);
        }
        drop(waiters);
        drop(told);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiters<W>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W> Drop for Entered<'_, W> {
    fn drop(&mut self) {
        let before = self.counter.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "work ended that had not begun");
        if self.gate.awaited.load(Ordering::SeqCst) {
            self.gate.advance();
        }
    }
}

/// Which counters this thread uses.
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

    struct Told(Arc<AtomicUsize>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waiter_waits_for_what_had_begun_and_for_nothing_else() {
        let gate = Gate::new();
        let told = Arc::new(AtomicUsize::new(0));
        let count = || told.load(Ordering::SeqCst);
        gate.when_over(Told(told.clone()));
        assert_eq!(count(), 1, "nothing was going on");
        let old = gate.enter();
        gate.when_over(Told(told.clone()));
        let new = gate.enter();
        assert_eq!((count(), gate.waiting()), (1, 1));
        drop(old);
        assert_eq!(count(), 2, "new work does not count");
        gate.when_over(Told(told.clone()));
        drop(new);
        assert_eq!((count(), gate.waiting()), (3, 0));
    }

    #[test]
    fn waiters_that_come_while_others_wait_have_their_own_end() {
        let gate = Gate::new();
        let told = Arc::new(AtomicUsize::new(0));
        let count = || told.load(Ordering::SeqCst);
        let first = gate.enter();
        gate.when_over(Told(told.clone()));
        let second = gate.enter();
        gate.when_over(Told(told.clone()));
        drop(second);
        assert_eq!(count(), 0, "the first goes on");
        let third = gate.enter();
        drop(first);
        assert_eq!(count(), 1, "the third began under the epoch that the second waits for");
        drop(third);
        assert_eq!((count(), gate.waiting()), (2, 0));
    }

    #[test]
    fn no_work_goes_on_behind_a_waiter_that_did_not_see_the_change() {
        let gate = Arc::new(Gate::new());
        let closed = Arc::new(AtomicBool::new(false));
        let over = Arc::new(AtomicBool::new(false));
        struct Over(Arc<AtomicBool>);
        impl Drop for Over {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (gate, closed, over) = (gate.clone(), closed.clone(), over.clone());
                std::thread::spawn(move || {
                    loop {
                        let _entered = gate.enter();
                        if closed.load(Ordering::SeqCst) {
                            return;
                        }
                        assert!(!over.load(Ordering::SeqCst), "work that did not see the change");
                    }
                })
            })
            .collect();
        for _ in 0..1000 {
            let told = Arc::new(AtomicBool::new(false));
            gate.when_over(Over(told.clone()));
            while !told.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        closed.store(true, Ordering::SeqCst);
        gate.when_over(Over(over.clone()));
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(over.load(Ordering::SeqCst));
        assert_eq!(gate.waiting(), 0);
    }
}
