//! The bounded queue between the walk through a tree and the workers.
//!
//! The walk is most often faster than the workers. A walk that has met a full queue goes on when half of it
//! is free, so that the two do not wake each other for each object.

use super::report::Report;
use crate::limits::{QUEUED_OBJECTS_MAX, WORKERS};
use dafs_mem::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

/// Time after which a waiting thread checks whether the copy has been stopped.
const STOP_CHECK: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// Workers that wait for an object. A wake-up is a system call, also without a waiter.
    idle: usize,
    /// Threads that wait for room.
    blocked: usize,
    closed: bool,
}

/// The objects between walk and workers.
#[derive(Debug)]
pub(super) struct Queue<'a, T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    emptied: Condvar,
    report: &'a Report,
}

impl<'a, T> Queue<'a, T> {
    fn new(report: &'a Report) -> Self {
        let state = State { waiting: VecDeque::new(), idle: 0, blocked: 0, closed: false };
        let (filled, emptied) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), filled, emptied, report }
    }

    /// Adds an object, waiting for room. Drops it when the copy has been stopped.
    pub(super) fn push(&self, object: T) {
        let mut state = self.state.lock();
        while state.waiting.len() >= QUEUED_OBJECTS_MAX && !self.report.is_stopped() {
            state.blocked += 1;
            state = self.emptied.wait_timeout(state, STOP_CHECK).0;
            state.blocked -= 1;
        }
        if !self.report.is_stopped() {
            state.waiting.push_back(object);
            if state.idle > 0 {
                self.filled.notify_one();
            }
        }
    }

    /// The next object; `None` after the last, or when the copy has been stopped.
    pub(super) fn pop(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(object) = self.take(&mut state) {
                return Some(object);
            }
            if state.closed || self.report.is_stopped() {
                return None;
            }
            state.idle += 1;
            state = self.filled.wait_timeout(state, STOP_CHECK).0;
            state.idle -= 1;
        }
    }

    /// The next object if one waits.
    pub(super) fn pop_now(&self) -> Option<T> {
        self.take(&mut self.state.lock())
    }

    fn take(&self, state: &mut State<T>) -> Option<T> {
        if self.report.is_stopped() {
            return None;
        }
        let object = state.waiting.pop_front()?;
        if state.blocked > 0 && state.waiting.len() == QUEUED_OBJECTS_MAX / 2 {
            self.emptied.notify_all();
        }
        Some(object)
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }
}

/// Lets `walk` fill a queue that workers empty. Each worker runs `work` once.
pub(super) fn run<T: Send>(
    report: &Report,
    walk: impl FnOnce(&Queue<'_, T>),
    work: impl Fn(&Queue<'_, T>) + Sync,
) {
    let queue = Queue::new(report);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&queue));
        }
        walk(&queue);
        queue.close();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_object_is_worked_on_once() {
        let report = Report::new();
        let sum = AtomicUsize::new(0);
        run(
            &report,
            |queue| (1..=10_000).for_each(|number| queue.push(number)),
            |queue| {
                while let Some(number) = queue.pop() {
                    sum.fetch_add(number, Ordering::Relaxed);
                }
            },
        );
        assert_eq!(sum.into_inner(), 50_005_000);
    }

    #[test]
    fn a_walk_that_met_a_full_queue_goes_on() {
        let report = Report::new();
        let queue = Queue::new(&report);
        std::thread::scope(|scope| {
            let walk =
                scope.spawn(|| (0..=QUEUED_OBJECTS_MAX).for_each(|number| queue.push(number)));
            while queue.state.lock().blocked == 0 {
                std::thread::yield_now();
            }
            for number in 0..=QUEUED_OBJECTS_MAX {
                assert_eq!(queue.pop(), Some(number));
            }
            walk.join().unwrap();
        });
        assert_eq!(queue.state.lock().blocked, 0);
        assert_eq!(queue.pop_now(), None);
    }

    #[test]
    fn a_stopped_copy_ends_with_a_full_queue() {
        let report = Report::new();
        run(
            &report,
            |queue| (0..QUEUED_OBJECTS_MAX * 4).for_each(|number| queue.push(number)),
            |queue| {
                queue.pop();
                report.stop(Failure::Reported);
            },
        );
        assert!(report.result().is_err());
    }
}
