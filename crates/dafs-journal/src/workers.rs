//! Threads that run jobs which wait for the disk.
//!
//! Invariants
//! * A job is sent exactly once. A thread that holds back its jobs sends them, in their order, when
//!   it drops the guard, also in a panic.

use crate::disk::Spawn;
use dafs_mem::Mutex;
use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;
type Jobs = Arc<Mutex<Option<Sender<Job>>>>;

thread_local! {
    /// The jobs that this thread holds back. `None` when it does not.
    static HELD: RefCell<Option<Vec<(Jobs, Job)>>> = const { RefCell::new(None) };
}

/// Holds back the jobs that this thread gives to [`Workers`], until the guard is dropped. So a
/// thread with many requests lets them gather: one job then makes all of them stable, instead of
/// the first one alone. Meanwhile the thread must not wait for such a job.
pub fn hold_jobs() -> HeldJobs {
    HELD.with_borrow_mut(|held| {
        debug_assert!(held.is_none(), "jobs are held back already");
        held.get_or_insert_default();
    });
    HeldJobs(PhantomData)
}

/// See [`hold_jobs`].
#[must_use]
pub struct HeldJobs(PhantomData<*const ()>);

impl Drop for HeldJobs {
    fn drop(&mut self) {
        for (jobs, job) in HELD.take().into_iter().flatten() {
            // Without workers the job runs here. Its panic must not affect the other jobs, nor
            // abort the process if this thread panics already.
            let _ = catch_unwind(AssertUnwindSafe(|| hand_over(&jobs, job)));
        }
    }
}

fn hand_over(jobs: &Jobs, job: Job) {
    let sender = jobs.lock().clone();
    match sender {
        Some(sender) => {
            if let Err(refused) = sender.send(job) {
                (refused.0)();
            }
        }
        None => job(),
    }
}

/// A few threads. When they are dropped, they finish their jobs and end.
pub struct Workers {
    jobs: Option<Jobs>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads called `name`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(name: &str, count: usize) -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let mut workers =
            Self { jobs: Some(Arc::new(Mutex::new(Some(jobs)))), threads: Vec::new() };
        for index in 0..count {
            let queue = queue.clone();
            let work = move || {
                loop {
                    let job = queue.lock().recv();
                    let Ok(job) = job else { return };
                    // A panic in one job must not end the thread.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            workers.threads.push(thread.spawn(work)?);
        }
        Ok(workers)
    }

    /// Returns a function that sends them jobs. A job that comes after they have ended is run by
    /// the caller.
    pub fn spawn(&self) -> Spawn {
        let jobs = self.jobs.clone().unwrap_or_default();
        Arc::new(move |job| {
            let job = HELD.with_borrow_mut(|held| match held {
                Some(held) => {
                    held.push((jobs.clone(), job));
                    None
                }
                None => Some(job),
            });
            if let Some(job) = job {
                hand_over(&jobs, job);
            }
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(jobs) = self.jobs.take() {
            jobs.lock().take();
        }
        for thread in self.threads.drain(..) {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_are_held_back_come_when_the_guard_goes() {
        let workers = Workers::start("test", 1).unwrap();
        let (sender, received) = channel();
        let job = |text: &'static str| -> Job {
            let sender = sender.clone();
            Box::new(move || sender.send(text).unwrap())
        };
        let spawn = workers.spawn();
        let held = hold_jobs();
        spawn(job("first"));
        spawn(job("second"));
        // Jobs of other threads are not held back.
        std::thread::scope(|scope| scope.spawn(|| spawn(job("other"))).join().unwrap());
        assert_eq!(received.recv().unwrap(), "other");
        assert!(received.try_recv().is_err());
        drop(held);
        assert_eq!(received.recv().unwrap(), "first");
        assert_eq!(received.recv().unwrap(), "second");
        spawn(job("third"));
        assert_eq!(received.recv().unwrap(), "third");
    }

    #[test]
    fn a_panic_loses_no_job_that_was_held_back() {
        let workers = Workers::start("test", 1).unwrap();
        let (sender, received) = channel();
        let spawn = workers.spawn();
        let panicking = std::thread::spawn(move || {
            let _held = hold_jobs();
            spawn(Box::new(move || sender.send(()).unwrap()));
            panic!("in the middle of a turn");
        });
        assert!(panicking.join().is_err());
        received.recv().unwrap();
    }

    #[test]
    fn a_mistake_in_one_job_loses_no_other_when_the_workers_have_gone() {
        let workers = Workers::start("test", 1).unwrap();
        let (sender, received) = channel();
        let spawn = workers.spawn();
        let failing = std::thread::spawn(move || {
            let _held = hold_jobs();
            spawn(Box::new(|| panic!("a mistake")));
            spawn(Box::new(move || sender.send(()).unwrap()));
            drop(workers);
            panic!("in the middle of a turn");
        });
        assert!(failing.join().is_err());
        received.recv().unwrap();
    }
}
