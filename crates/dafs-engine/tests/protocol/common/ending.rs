//! The end of a server that does not wait for its jobs.

use super::{World, run};

impl World {
    /// Drops the engine, as a reactor does that has waited long enough. Then runs so many of the jobs
    /// that are left, and drops the others.
    pub fn end_before_jobs(self, most: usize) {
        let Self { engine, pool, .. } = self;
        drop(engine);
        for _ in 0..most {
            let job = pool.jobs.lock().unwrap().pop_front();
            job.into_iter().for_each(run);
        }
        let others = std::mem::take(&mut *pool.jobs.lock().unwrap());
        drop(others);
    }
}
