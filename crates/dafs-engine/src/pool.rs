//! A bounded pool for calls that may wait for a device.
//!
//! Invariants
//! * The queue holds at most one job per request in progress, as many emptied jobs of cancelled
//!   requests, and one per file with changes to undo. So credits and the service bound it.
//! * Owners of waiting jobs take turns, and the last threads of a lane are reserved for owners
//!   without a running job. So a job finds a thread even if the jobs of another client or host
//!   never end.
//! * A job always has a result: a job that panics reports an I/O error.
//! * A thread that waits for a job is in `idle` until another thread takes it out to wake it. The
//!   last to come is the first to be woken. Those that wait for long end, except the first few: each
//!   thread keeps freed blocks of the heap for itself, and these keep their pages.
//! * Only the first of those that may end waits with a timeout, for all behind it. A timer for each
//!   wait would cost more than many jobs do.
//! * Each lane has threads of its own, so a store whose machines do not answer blocks only its own
//!   exports. There is one lane for each such export, one for Kerberos and users, one
//!   for handshakes of TLS, and one more.

use crate::limits::{POOL_IDLE_TIME, POOL_KEPT_SHARE, POOL_THREADS_MAX};
use dafs_mem::{Condvar, Mutex};
use dafs_service::{Job, Origin, Owner, Place, Pool, Turn, Turns};
use dafs_store::vital;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Queue {
    jobs: Turns<Job>,
    /// The number of jobs that have ever come.
    submitted: u64,
    /// The owners of running jobs.
    busy: Busy,
    /// The waiting threads, the last to come at the end.
    idle: Vec<Idle>,
    threads: usize,
    /// Threads that are on their way to `take`: started, or no longer in `idle`.
    coming: usize,
    /// Threads that have to end.
    leaving: usize,
    stopping: bool,
}

/// A thread that waits for a job.
struct Idle {
    wake: Arc<Condvar>,
    since: Instant,
}

impl Queue {
    fn is_finished(&self) -> bool {
        self.jobs.is_empty() && self.idle.len() == self.threads
    }

    /// Takes the next job that may begin.
    fn take(&mut self, bounds: Bounds) -> Option<(Owner, Job)> {
        let busy = &self.busy;
        let (owner, job) = self.jobs.take(|owner, _| busy.judge(&owner, bounds))?;
        self.busy.begin(owner);
        Some((owner, job))
    }

    /// Takes a thread out of `idle`, for the caller to wake, if there are more jobs than threads on
    /// their way.
    fn call_one(&mut self) -> Option<Idle> {
        if self.coming >= self.jobs.len() {
            return None;
        }
        let thread = self.idle.pop()?;
        self.coming += 1;
        Some(thread)
    }

    fn wake_all(&mut self) {
        self.coming += self.idle.len();
        self.idle.drain(..).for_each(|thread| thread.wake.notify_one());
    }
}

/// The running jobs.
#[derive(Default)]
struct Busy {
    total: usize,
    origins: FxHashMap<Origin, usize>,
    owners: FxHashMap<Owner, usize>,
}

impl Busy {
    /// Decides if a job of an owner may begin. The last threads run only jobs of clients without a
    /// running job, and the very last only those of origins without one.
    fn judge(&self, owner: &Owner, bounds: Bounds) -> Turn {
        let free = bounds.threads_max.saturating_sub(self.total);
        let kept = bounds.kept();
        if free > 2 * kept || !self.origins.contains_key(&owner.origin) {
            Turn::Take
        } else if free <= kept {
            Turn::NextOrigin
        } else if self.owners.contains_key(owner) {
            Turn::NextOwner
        } else {
            Turn::Take
        }
    }

    fn begin(&mut self, owner: Owner) {
        self.total += 1;
        *self.origins.entry(owner.origin).or_default() += 1;
        *self.owners.entry(owner).or_default() += 1;
    }

    fn end(&mut self, owner: Owner) {
        self.total -= 1;
        end_one(&mut self.origins, owner.origin);
        end_one(&mut self.owners, owner);
    }
}

fn end_one<K: Eq + Hash>(running: &mut FxHashMap<K, usize>, key: K) {
    if let Entry::Occupied(mut count) = running.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when the last job has ended.
    finished: Condvar,
}

/// A pool of threads, which are started when there is work and none is idle.
pub struct ThreadPool {
    /// Lane 0.
    shared: Arc<Shared>,
    lanes: Mutex<FxHashMap<u64, Arc<Shared>>>,
    bounds: Bounds,
}

/// The bounds of each lane.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    threads_max: usize,
    /// See [`POOL_IDLE_TIME`].
    idle_time: Duration,
}

impl Bounds {
    /// Threads that are reserved for origins without a running job, and as many for owners.
    const fn kept(self) -> usize {
        self.threads_max / POOL_KEPT_SHARE
    }
}

impl ThreadPool {
    /// Makes a pool without threads yet, for calls that wait for devices.
    pub fn new() -> Self {
        Self::with_threads(POOL_THREADS_MAX)
    }

    /// Makes a pool that starts at most so many threads for each lane.
    pub fn with_threads(threads_max: usize) -> Self {
        Self::with_bounds(Bounds { threads_max, idle_time: POOL_IDLE_TIME })
    }

    fn with_bounds(bounds: Bounds) -> Self {
        Self { shared: Arc::default(), lanes: Mutex::default(), bounds }
    }

    /// Returns the lanes whose number is `wanted`.
    fn lanes(&self, wanted: impl Fn(u64) -> bool) -> Vec<Arc<Shared>> {
        let lanes = self.lanes.lock();
        let others = lanes.iter().map(|(&lane, shared)| (lane, shared));
        let all = std::iter::once((0, &self.shared)).chain(others);
        all.filter(|(lane, _)| wanted(*lane)).map(|(_, shared)| shared.clone()).collect()
    }

    /// Waits up to `time` until no job waits or runs and no thread is about to end. Returns false
    /// when some still do.
    pub fn finish(&self, time: Duration) -> bool {
        self.finish_lanes(time, |_| true)
    }

    /// Does the same for the lanes whose number is `wanted`.
    pub fn finish_lanes(&self, time: Duration, wanted: impl Fn(u64) -> bool) -> bool {
        let deadline = Instant::now() + time;
        let left = || deadline.saturating_duration_since(Instant::now());
        self.lanes(wanted).iter().all(|shared| shared.finish(left()))
    }

    /// Returns the number of jobs that have ever come, in all lanes. A job may submit others to lanes
    /// that have finished, and this number tells of them.
    pub fn submitted(&self) -> u64 {
        self.lanes(|_| true).iter().map(|shared| shared.queue.lock().submitted).sum()
    }
}

impl Default for ThreadPool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool for ThreadPool {
    fn submit(&self, job: Job) {
        self.shared.submit(Owner::SERVER, job, self.bounds);
    }

    fn submit_to(&self, Place { lane, owner }: Place, job: Job) {
        if lane == 0 {
            return self.shared.submit(owner, job, self.bounds);
        }
        let shared = self.lanes.lock().entry(lane).or_default().clone();
        shared.submit(owner, job, self.bounds);
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for shared in self.lanes(|_| true) {
            let mut queue = shared.queue.lock();
            queue.stopping = true;
            queue.wake_all();
        }
    }
}

impl Shared {
    fn submit(self: &Arc<Self>, owner: Owner, job: Job, bounds: Bounds) {
        let mut queue = self.queue.lock();
        queue.submitted += 1;
        queue.jobs.push(owner, job);
        if let Some(thread) = queue.call_one() {
            drop(queue);
            return thread.wake.notify_one();
        }
        // A new thread inherits the user of the thread that starts it, which may be a caller's.
        if queue.coming < queue.jobs.len()
            && queue.threads < bounds.threads_max
            && dafs_mem::sys::as_server().is_ok()
        {
            let shared = self.clone();
            match vital::spawn("dafs-pool", move || shared.run(bounds)) {
                Ok(_) => {
                    queue.threads += 1;
                    queue.coming += 1;
                }
                Err(error) => tracing::warn!(%error, "cannot start a thread for blocking calls"),
            }
        }
        if queue.threads == 0 {
            // A blocked reactor is better than a request that is never answered.
            let mut jobs = std::mem::take(&mut queue.jobs);
            drop(queue);
            std::iter::from_fn(|| jobs.pop()).for_each(|(_, job)| job());
        }
    }

    fn finish(&self, time: Duration) -> bool {
        let queue = self.queue.lock();
        let busy = |queue: &mut Queue| !queue.is_finished();
        self.finished.wait_timeout_while(queue, time, busy).0.is_finished()
    }

    fn run(&self, bounds: Bounds) {
        let wake = Arc::new(Condvar::new());
        let mut queue = self.queue.lock();
        queue.coming -= 1;
        loop {
            if let Some((owner, job)) = queue.take(bounds) {
                // More than one job may have waited for this turn.
                let other = queue.call_one();
                drop(queue);
                if let Some(thread) = other {
                    thread.wake.notify_one();
                }
                // A panic in one request must not end the thread, which serves all. The job's guard
                // reports the failure while it unwinds.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                queue = self.queue.lock();
                queue.busy.end(owner);
            } else if queue.stopping && queue.jobs.is_empty() {
                queue.wake_all();
                return;
            } else if queue.leaving > 0 {
                queue.leaving -= 1;
                queue.threads -= 1;
                self.tell_if_finished(&queue);
                return;
            } else {
                queue.idle.push(Idle { wake: wake.clone(), since: Instant::now() });
                self.tell_if_finished(&queue);
                queue = Self::wait(queue, &wake, bounds);
                queue.coming -= 1;
            }
        }
    }

    fn tell_if_finished(&self, queue: &Queue) {
        if queue.is_finished() {
            self.finished.notify_all();
        }
    }

    /// Waits until another thread takes this one out of `idle`, or this one has waited for long.
    fn wait<'a>(
        mut queue: MutexGuard<'a, Queue>,
        wake: &Arc<Condvar>,
        bounds: Bounds,
    ) -> MutexGuard<'a, Queue> {
        let place = |queue: &Queue| queue.idle.iter().position(|it| Arc::ptr_eq(&it.wake, wake));
        while let Some(index) = place(&queue) {
            // The first ones stay, so that the next jobs find some even if the system can start no
            // more by then.
            if index != bounds.kept() + 1 {
                queue = wake.wait(queue);
                continue;
            }
            let left = bounds.idle_time.saturating_sub(queue.idle[index].since.elapsed());
            if !left.is_zero() {
                queue = wake.wait_timeout(queue, left).0;
                continue;
            }
            let is_over = |it: &mut Idle| it.since.elapsed() >= bounds.idle_time;
            let over: Vec<Idle> = queue.idle.extract_if(index.., is_over).collect();
            queue.leaving += over.len();
            queue.coming += over.len();
            // The next one behind them has this place now, and waits with the timeout.
            let next = queue.idle.get(index).into_iter();
            over.iter().chain(next).for_each(|thread| thread.wake.notify_one());
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Inbox;
    use std::sync::atomic::{AtomicU32, Ordering};

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
        let shut = gate.lock();
        for _ in 0..5 {
            let (gate, done) = (gate.clone(), done.clone());
            pool.submit_to(
                Place { lane: 7, owner: Owner::SERVER },
                Box::new(move || {
                    drop(gate.lock());
                    done.send(7).unwrap();
                }),
            );
        }
        for lane in [0, 8] {
            let done = done.clone();
            let place = Place { lane, owner: Owner::SERVER };
            pool.submit_to(place, Box::new(move || done.send(lane).unwrap()));
            assert_eq!(results.recv_timeout(Duration::from_secs(60)), Ok(lane));
        }
        assert!(!pool.finish(Duration::from_millis(1)));
        assert!(!pool.finish_lanes(Duration::from_millis(1), |lane| lane == 7));
        assert!(pool.finish_lanes(Duration::from_secs(60), |lane| lane != 7));
        drop(shut);
        assert!(pool.finish(Duration::from_secs(60)));
        assert_eq!(results.try_iter().collect::<Vec<_>>(), [7; 5]);
        assert_eq!(pool.submitted(), 7);
    }

    fn place(user: u32, number: u64) -> Place {
        Place { lane: 0, owner: Owner { origin: Origin::User(user), number } }
    }

    #[test]
    fn jobs_of_clients_run_in_turn() {
        let pool = ThreadPool::with_threads(1);
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let (done, results) = std::sync::mpsc::channel();
        pool.submit(Box::new(move || {
            let _ = gate.recv();
        }));
        let jobs = [(1, 1), (1, 1), (1, 1), (1, 2), (2, 1), (3, 1)];
        for (index, (user, number)) in jobs.into_iter().enumerate() {
            let done = done.clone();
            pool.submit_to(place(user, number), Box::new(move || done.send(index).unwrap()));
        }
        go.send(()).unwrap();
        assert!(pool.finish(Duration::from_secs(60)));
        assert_eq!(results.try_iter().collect::<Vec<_>>(), [0, 4, 5, 3, 1, 2]);
    }

    /// Jobs that do not end take all threads but the reserved ones.
    #[test]
    fn no_client_takes_the_last_threads() {
        let pool = ThreadPool::with_threads(16);
        let (done, results) = std::sync::mpsc::channel();
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        let hold = |place| {
            let gate = gate.clone();
            pool.submit_to(place, Box::new(move || drop(gate.lock())));
        };
        (0..100).for_each(|_| hold(place(1, 1)));
        (0..100).for_each(|_| hold(place(2, 1)));
        // Another client of the same host, and one of another host.
        for place in [place(1, 2), place(3, 1), place(4, 1)] {
            let done = done.clone();
            pool.submit_to(place, Box::new(move || done.send(place.owner).unwrap()));
            assert_eq!(results.recv_timeout(Duration::from_secs(60)), Ok(place.owner));
        }
        drop(shut);
        assert!(pool.finish(Duration::from_secs(60)));
    }

    #[test]
    fn threads_end_when_they_have_no_job_for_a_while() {
        let bounds =
            Bounds { threads_max: 2 * POOL_KEPT_SHARE, idle_time: Duration::from_millis(1) };
        let pool = ThreadPool::with_bounds(bounds);
        let threads = || pool.shared.queue.lock().threads;
        for _ in 0..2 {
            let gate = Arc::new(Mutex::new(()));
            let shut = gate.lock();
            for owner in 0..bounds.threads_max {
                let gate = gate.clone();
                let place = place(owner as u32, 0);
                pool.submit_to(place, Box::new(move || drop(gate.lock())));
            }
            assert_eq!(threads(), bounds.threads_max);
            drop(shut);
            assert!(pool.finish(Duration::from_secs(60)));
            let deadline = Instant::now() + Duration::from_secs(60);
            while threads() > bounds.kept() + 1 {
                assert!(Instant::now() < deadline, "threads without a job stay");
                std::thread::yield_now();
            }
            std::thread::sleep(20 * bounds.idle_time);
            assert_eq!(threads(), bounds.kept() + 1, "some stay for the next jobs");
        }
    }

    #[test]
    fn all_jobs_run_while_threads_come_and_go() {
        const ROUNDS: u32 = 40;
        let bounds = Bounds { threads_max: 8, idle_time: Duration::from_micros(100) };
        let pool = ThreadPool::with_bounds(bounds);
        let ran = Arc::new(AtomicU32::new(0));
        std::thread::scope(|scope| {
            for user in 0..4 {
                let (pool, ran) = (&pool, &ran);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        for number in 0..10 {
                            let ran = ran.clone();
                            let job = move || {
                                ran.fetch_add(1, Ordering::Relaxed);
                            };
                            pool.submit_to(place(user, number), Box::new(job));
                        }
                        std::thread::sleep(Duration::from_micros(u64::from(round % 7) * 50));
                    }
                });
            }
        });
        assert!(pool.finish(Duration::from_secs(60)));
        assert_eq!(ran.load(Ordering::Relaxed), 4 * ROUNDS * 10);
        // Threads may end just now.
        let deadline = Instant::now() + Duration::from_secs(60);
        let queue = loop {
            let queue = pool.shared.queue.lock();
            if queue.is_finished() {
                break queue;
            }
            drop(queue);
            assert!(Instant::now() < deadline, "threads are counted that do not come");
            std::thread::yield_now();
        };
        assert_eq!((queue.coming, queue.leaving, queue.busy.total), (0, 0, 0));
    }

    #[test]
    fn the_last_thread_to_come_gets_the_next_job() {
        let pool = ThreadPool::with_bounds(Bounds { threads_max: 2, idle_time: Duration::MAX });
        let (done, results) = std::sync::mpsc::channel();
        let gate = Arc::new(Mutex::new(()));
        let run = |gate: Option<&Arc<Mutex<()>>>| {
            let (gate, done) = (gate.cloned(), done.clone());
            pool.submit(Box::new(move || {
                drop(gate.as_ref().map(|gate| gate.lock()));
                done.send(std::thread::current().id()).unwrap();
            }));
        };
        let shut = gate.lock();
        run(Some(&gate));
        run(None);
        let first = results.recv().unwrap();
        while pool.shared.queue.lock().idle.is_empty() {
            std::thread::yield_now();
        }
        drop(shut);
        let last = results.recv().unwrap();
        assert_ne!(first, last);
        for _ in 0..5 {
            assert!(pool.finish(Duration::from_secs(60)));
            run(None);
            assert_eq!(results.recv().unwrap(), last);
        }
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
}
