//! Turns of threads to wait for a request of the kernel.
//!
//! The kernel gives each request to the thread that has waited longest. If all of many threads
//! waited, a program with one request at a time would have them all in turn, and the data of each
//! request would go to other memory, which no cache has. So few threads wait.
//!
//! Invariants
//! * While a thread has no request, one waits for a request, or is being woken to do so.

use crate::limits::RECEIVERS_MAX;
use dafs_mem::{Condvar, Mutex};

/// The turns of the threads of a mount.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that have a turn.
    taken: usize,
    /// Threads that wait for one.
    waiting: usize,
    /// Every thread gets a turn at once.
    is_open: bool,
}

impl Turns {
    /// Waits for a turn.
    pub(crate) fn take(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        let is_crowded = |state: &mut State| state.taken >= RECEIVERS_MAX && !state.is_open;
        let mut state = self.changed.wait_while(state, is_crowded);
        state.waiting -= 1;
        state.taken += 1;
    }

    /// Ends a turn. If no other thread has one, a waiting thread gets one.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock();
        state.taken -= 1;
        let is_last = state.taken == 0 && state.waiting > 0;
        drop(state);
        if is_last {
            self.changed.notify_one();
        }
    }

    /// Gives every thread a turn at once, or few of them again.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.state.lock().is_open = is_open;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until a thread waits for a turn.
    fn await_waiting(turns: &Turns) {
        while turns.state.lock().waiting == 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_gets_a_turn_when_no_other_one_has_any() {
        let turns = Turns::default();
        (0..RECEIVERS_MAX).for_each(|_| turns.take());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| turns.take());
            await_waiting(&turns);
            (0..RECEIVERS_MAX).for_each(|_| turns.pass());
            late.join().unwrap();
        });
        let state = turns.state.lock();
        assert_eq!((state.taken, state.waiting), (1, 0));
    }

    #[test]
    fn a_stop_holds_nobody_back() {
        let turns = Turns::default();
        (0..RECEIVERS_MAX).for_each(|_| turns.take());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| turns.take());
            await_waiting(&turns);
            turns.set_open(true);
            late.join().unwrap();
        });
        turns.take();
        assert_eq!(turns.state.lock().taken, RECEIVERS_MAX + 2);
    }
}
