//! A bounded pool for calls that may wait for a device, and the way back to the reactor.
//!
//! Invariants
//! * The queue holds at most one job per request in hand and one per file with changes to be undone,
//!   so credits and the service bound it.
//! * A job's result always comes back: a job that panics reports an I/O error.
//! * Each lane has threads of its own, so a store whose machines do not answer holds up its own exports
//!   and nothing else. There are as many lanes as such exports, and one.

use crate::limits::POOL_THREADS_MAX;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Something to run that may wait.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs elsewhere. The simulator brings its own.
pub trait Pool: Send + Sync {
    /// Takes a job; never waits.
    fn submit(&self, job: Job);

    /// Takes a job that may wait for other machines. Those of one lane never keep the jobs of others from
    /// running, however long they wait; lane 0 is that of jobs that wait for none.
    fn submit_to(&self, lane: u64, job: Job) {
        let _ = lane;
        self.submit(job);
    }
}

#[derive(Debug)]
struct Contents<T> {
    items: Vec<T>,
    /// The reactor sleeps or is about to, and nobody has woken it yet.
    asleep: bool,
}

/// Results on their way back to one reactor.
///
/// Invariants
/// * The reactor says that it sleeps only while there is nothing, in one step; so whoever finds it
///   awake knows that it will look again. What is in and whether it sleeps are under one lock, so
///   no order of memory has to be thought of.
/// * The descriptor is written at most once for each time that the reactor says so. When that
///   comes late, after the reactor has woken for another reason, it sleeps once less.
#[derive(Debug)]
pub struct Inbox<T> {
    contents: Mutex<Contents<T>>,
    /// Wakes the reactor; `None` where somebody else drives it.
    waker: Option<OwnedFd>,
}

impl<T> Inbox<T> {
    /// An inbox that nobody sleeps on.
    pub fn unwatched() -> Self {
        Self::with_waker(None)
    }

    /// An inbox with a descriptor to sleep on.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn watched() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        Ok(Self::with_waker(Some(rustix::event::eventfd(0, flags)?)))
    }

    fn with_waker(waker: Option<OwnedFd>) -> Self {
        Self { contents: Mutex::new(Contents { items: Vec::new(), asleep: false }), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Contents<T>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in and wakes the reactor if it sleeps.
    pub fn push(&self, item: T) {
        let mut contents = self.lock();
        contents.items.push(item);
        let asleep = std::mem::take(&mut contents.asleep);
        drop(contents);
        if asleep {
            self.wake();
        }
    }

    /// Wakes the reactor.
    pub fn wake(&self) {
        if let Some(waker) = &self.waker {
            // The only failure is a full counter, which means that it is readable already.
            let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    /// Moves everything into `items`, which must be empty.
    pub fn take(&self, items: &mut Vec<T>) {
        debug_assert!(items.is_empty(), "results of an earlier turn were not handled");
        std::mem::swap(&mut self.lock().items, items);
    }

    /// Notes that the reactor is about to sleep on the descriptor; false when there is something to
    /// take first.
    pub fn fall_asleep(&self) -> bool {
        let mut contents = self.lock();
        contents.asleep = contents.items.is_empty();
        contents.asleep
    }

    /// Notes that the reactor is awake. `readable` tells whether the descriptor was.
    pub fn wake_up(&self, readable: bool) {
        self.lock().asleep = false;
        if let Some(waker) = self.waker.as_ref().filter(|_| readable) {
            let _ = rustix::io::read(waker, &mut [0; 8]);
        }
    }

    /// The descriptor to wait on.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(AsFd::as_fd)
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl Queue {
    fn is_finished(&self) -> bool {
        self.jobs.is_empty() && self.idle == self.threads
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    /// The last job is over.
    finished: Condvar,
}

/// A pool of threads, started when there is work and none is idle.
pub struct ThreadPool {
    /// Lane 0.
    shared: Arc<Shared>,
    lanes: Mutex<FxHashMap<u64, Arc<Shared>>>,
    /// Of each lane.
    threads_max: usize,
}

impl ThreadPool {
    /// A pool without threads yet, for calls that wait for devices.
    pub fn new() -> Self {
        Self::with_threads(POOL_THREADS_MAX)
    }

    /// A pool that starts at most so many threads for each lane.
    pub fn with_threads(threads_max: usize) -> Self {
        Self { shared: Arc::default(), lanes: Mutex::default(), threads_max }
    }

    fn lanes(&self) -> MutexGuard<'_, FxHashMap<u64, Arc<Shared>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Shared>> {
        let lanes = self.lanes();
        std::iter::once(&self.shared).chain(lanes.values()).cloned().collect()
    }

    /// Waits up to `time` until no job waits or runs; false when some still do.
    pub fn finish(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let left = || deadline.saturating_duration_since(Instant::now());
        self.all().iter().all(|shared| shared.finish(left()))
    }
}

impl Default for ThreadPool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool for ThreadPool {
    fn submit(&self, job: Job) {
        self.shared.submit(job, self.threads_max);
    }

    fn submit_to(&self, lane: u64, job: Job) {
        if lane == 0 {
            return self.submit(job);
        }
        let shared = self.lanes().entry(lane).or_default().clone();
        shared.submit(job, self.threads_max);
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for shared in self.all() {
            shared.queue.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
            shared.work.notify_all();
        }
    }
}

impl Shared {
    fn submit(self: &Arc<Self>, job: Job, threads_max: usize) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.jobs.push_back(job);
        // A new thread takes over the identity of the one that starts it, which may be a caller's.
        if queue.idle < queue.jobs.len()
            && queue.threads < threads_max
            && dafs_store::posix::as_server().is_ok()
        {
            let shared = self.clone();
            let thread = std::thread::Builder::new().name("dafs-pool".to_owned());
            match thread.spawn(move || shared.run()) {
                Ok(_) => queue.threads += 1,
                Err(error) => tracing::warn!(%error, "cannot start a thread for blocking calls"),
            }
        }
        if queue.threads == 0 {
            // Holding up the reactor is better than never answering.
            let jobs = std::mem::take(&mut queue.jobs);
            drop(queue);
            return jobs.into_iter().for_each(|job| job());
        }
        drop(queue);
        self.work.notify_one();
    }

    fn finish(&self, time: Duration) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = |queue: &mut Queue| !queue.is_finished();
        let waited = self.finished.wait_timeout_while(queue, time, busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_finished()
    }

    fn run(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A panic in one request must not take the thread from all others; the job's guard
                // reports the failure while it unwinds.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            } else if queue.stopping {
                return;
            } else {
                queue.idle += 1;
                if queue.is_finished() {
                    self.finished.notify_all();
                }
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn the_end_of_the_last_job_is_waited_for() {
        let pool = ThreadPool::with_threads(2);
        assert!(pool.finish(Duration::ZERO), "nothing is under way");
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(());
        let job_holds = held.clone();
        pool.submit(Box::new(move || {
            let _ = gate.recv();
            drop(job_holds);
        }));
        assert!(!pool.finish(Duration::from_millis(1)), "the job waits");
        go.send(()).unwrap();
        assert!(pool.finish(Duration::from_secs(60)));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn a_lane_whose_jobs_all_wait_holds_up_no_other() {
        let pool = ThreadPool::with_threads(2);
        let (done, results) = std::sync::mpsc::channel();
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock().unwrap();
        for _ in 0..5 {
            let (gate, done) = (gate.clone(), done.clone());
            pool.submit_to(
                7,
                Box::new(move || {
                    drop(gate.lock());
                    done.send(7).unwrap();
                }),
            );
        }
        for lane in [0, 8] {
            let done = done.clone();
            pool.submit_to(lane, Box::new(move || done.send(lane).unwrap()));
            assert_eq!(results.recv_timeout(Duration::from_secs(60)), Ok(lane));
        }
        assert!(!pool.finish(Duration::from_millis(1)));
        drop(shut);
        assert!(pool.finish(Duration::from_secs(60)));
        assert_eq!(results.try_iter().collect::<Vec<_>>(), [7; 5]);
    }

    #[test]
    fn every_job_runs_even_after_a_panic() {
        let pool = ThreadPool::new();
        let inbox = Arc::new(Inbox::watched().unwrap());
        for number in 0..100u32 {
            let inbox = inbox.clone();
            pool.submit(Box::new(move || {
                inbox.push(number);
                assert!(number != 50, "a job that fails");
            }));
        }
        let mut seen = Vec::new();
        while seen.len() < 100 {
            let mut some = Vec::new();
            inbox.take(&mut some);
            seen.append(&mut some);
            std::thread::yield_now();
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn only_a_reactor_that_sleeps_is_woken() {
        let inbox = Inbox::watched().unwrap();
        let readable = || {
            let mut set = [PollFd::from_borrowed_fd(inbox.descriptor().unwrap(), PollFlags::IN)];
            poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        let mut some = Vec::new();
        inbox.push(1);
        assert!(!readable() && !inbox.fall_asleep(), "there is something to take first");
        inbox.take(&mut some);
        assert!(inbox.fall_asleep());
        inbox.push(2);
        assert!(readable());
        // Who is awake again looks by itself.
        inbox.wake_up(true);
        assert!(!readable());
        inbox.push(3);
        assert!(!readable() && !inbox.fall_asleep());
        some.clear();
        inbox.take(&mut some);
        assert_eq!(some, [2, 3]);
        // Woken by something else.
        assert!(inbox.fall_asleep());
        inbox.wake_up(false);
        inbox.push(4);
        assert!(!readable());
        // By somebody who puts nothing in.
        inbox.wake();
        assert!(readable());
    }

    /// A wake-up that is lost leaves the reactor asleep with something in its inbox.
    #[test]
    fn no_wake_up_is_lost() {
        const THREADS: usize = 4;
        const ITEMS: usize = 20_000;
        let inbox = Inbox::watched().unwrap();
        let (mut taken, mut some) = (0, Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let inbox = &inbox;
                scope.spawn(move || {
                    for item in 0..ITEMS {
                        inbox.push(item);
                        // Now and then the reactor has nothing left, and falls asleep.
                        if item % (3 + thread) == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while taken < THREADS * ITEMS {
                inbox.take(&mut some);
                taken += some.drain(..).count();
                if taken == THREADS * ITEMS || !inbox.fall_asleep() {
                    continue;
                }
                let fd = inbox.descriptor().unwrap();
                let mut set = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                let woken = poll(&mut set, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap();
                inbox.wake_up(woken == 1);
                assert!(woken == 1, "asleep with {taken} taken");
            }
        });
        assert_eq!(taken, THREADS * ITEMS);
    }
}
