//! Where front ends have jobs run that may wait.

use crate::Place;

/// Something to run that may wait.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs elsewhere. The simulator brings its own.
pub trait Pool: Send + Sync {
    /// Takes a job of the server's own; never waits.
    fn submit(&self, job: Job);

    /// Takes a job of a client. It may wait for other machines: those of one lane never keep the jobs of
    /// others from running, however long they wait; lane 0 is that of jobs that wait for none.
    fn submit_to(&self, place: Place, job: Job) {
        let _ = place;
        self.submit(job);
    }
}
