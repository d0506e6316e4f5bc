//! The threads that search for the ends of files of one store. A search goes to one of them that has
//! nothing to do, or to a new one.
//!
//! Invariants
//! * A search that was taken runs: a thread ends only while no search waits for one.
//! * No more threads than searches may be under way wait for the next one, and each for some seconds. So a
//!   store that is no longer asked keeps none.

use crate::limits::ENDS_ASKED_MAX;
use dafs_mem::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that take one search after the other.
#[derive(Default)]
pub(super) struct Searchers {
    state: Mutex<State>,
    /// Notified for each search that waits for a thread.
    come: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Threads that wait for a search.
    idle: usize,
}

impl Searchers {
    /// Runs a search on another thread, which then waits for the next one for `idle_time`.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn run(self: &Arc<Self>, job: Job, idle_time: Duration) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.idle > state.queue.len() {
            state.queue.push_back(job);
            drop(state);
            self.come.notify_one();
            return Ok(());
        }
        drop(state);
        let this = self.clone();
        let work = move || {
            let mut job = Some(job);
            while let Some(next) = job.take() {
                next();
                job = this.next(idle_time);
            }
        };
        std::thread::Builder::new().name("dafs-end".to_owned()).spawn(work).map(drop)
    }

    /// Waits for a search. `None` if none comes in time, or enough threads wait.
    fn next(&self, idle_time: Duration) -> Option<Job> {
        let until = Instant::now() + idle_time;
        let mut state = self.state.lock();
        state.idle += 1;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let job = state.queue.pop_front();
            if job.is_some() || left.is_zero() || state.idle > ENDS_ASKED_MAX {
                state.idle -= 1;
                return job;
            }
            (state, _) = self.come.wait_timeout(state, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::ThreadId;

    const LONG: Duration = Duration::from_secs(60);

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The thread that runs a search.
    fn run(searchers: &Arc<Searchers>, idle_time: Duration) -> ThreadId {
        let (tell, told) = channel();
        let job = move || tell.send(std::thread::current().id()).unwrap();
        searchers.run(Box::new(job), idle_time).unwrap();
        told.recv().unwrap()
    }

    #[test]
    fn a_thread_that_waits_takes_the_next_search() {
        let searchers = Arc::<Searchers>::default();
        let first = run(&searchers, LONG);
        for _ in 0..3 {
            wait_until(|| searchers.state.lock().idle == 1);
            assert_eq!(run(&searchers, LONG), first);
        }
    }

    #[test]
    fn a_thread_ends_when_no_search_comes() {
        let searchers = Arc::<Searchers>::default();
        run(&searchers, Duration::ZERO);
        wait_until(|| Arc::strong_count(&searchers) == 1);
        assert_eq!(searchers.state.lock().idle, 0);
    }

    #[test]
    fn few_threads_wait() {
        let searchers = Arc::<Searchers>::default();
        let (go, wait) = channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..2 * ENDS_ASKED_MAX {
            let wait = wait.clone();
            let job = move || wait.lock().recv().unwrap();
            searchers.run(Box::new(job), LONG).unwrap();
        }
        (0..2 * ENDS_ASKED_MAX).for_each(|_| go.send(()).unwrap());
        wait_until(|| Arc::strong_count(&searchers) == 1 + ENDS_ASKED_MAX);
        assert_eq!(searchers.state.lock().idle, ENDS_ASKED_MAX);
    }
}
