//! The server's pool for calls that may block, with seeded delays instead of threads.

use dafs_dat::Instant;
use dafs_dat::sim::SimRng;
use dafs_mem::Mutex;
use dafs_service::{Job, Pool};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A job's longest delay, in steps of 10 microseconds.
const JOB_STEPS_MAX: u64 = 200;

/// Jobs that await their time.
#[derive(Clone, Default)]
pub(crate) struct SimPool {
    fresh: Arc<Mutex<Vec<Job>>>,
}

impl Pool for SimPool {
    fn submit(&self, job: Job) {
        self.fresh.lock().push(job);
    }
}

/// The schedule of the jobs; the world owns it.
pub(crate) struct PoolSchedule {
    pool: SimPool,
    rng: SimRng,
    waiting: BTreeMap<(Instant, u64), Job>,
    submitted: u64,
}

impl PoolSchedule {
    pub(crate) fn new(pool: SimPool, rng: SimRng) -> Self {
        Self { pool, rng, waiting: BTreeMap::new(), submitted: 0 }
    }

    /// Assigns times to new jobs.
    pub(crate) fn admit(&mut self, now: Instant) {
        let fresh = std::mem::take(&mut *self.pool.fresh.lock());
        for job in fresh {
            let steps = self.rng.log_below(JOB_STEPS_MAX);
            self.submitted += 1;
            self.waiting.insert((now + Duration::from_micros(10 * steps), self.submitted), job);
        }
    }

    /// When the next job is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Runs the jobs that are due; true if there were any.
    pub(crate) fn run(&mut self, now: Instant) -> bool {
        let mut ran = false;
        while let Some(entry) = self.waiting.first_entry().filter(|entry| entry.key().0 <= now) {
            (entry.remove())();
            ran = true;
        }
        ran
    }

    /// Goes on counting where another schedule, whose jobs never run any more, has ended.
    pub(crate) fn follow(&mut self, former: &Self) {
        self.submitted = former.submitted;
    }

    /// Jobs submitted so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted
    }

    /// True when every job up to number `last` has run.
    pub(crate) fn has_run(&self, last: u64) -> bool {
        self.waiting.keys().all(|(_, number)| *number > last)
    }
}
