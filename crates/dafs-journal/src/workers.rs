//! Threads that run what waits for the disk.

use crate::disk::Spawn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A few threads; dropped, they finish what was handed in and end.
pub struct Workers {
    jobs: Option<Arc<Mutex<Option<Sender<Job>>>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads called `name`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(name: &str, count: usize) -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let mut workers =
            Self { jobs: Some(Arc::new(Mutex::new(Some(jobs)))), threads: Vec::new() };
        for index in 0..count {
            let queue = queue.clone();
            let work = move || {
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    // A mistake in one job must not take the thread from all others.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            workers.threads.push(thread.spawn(work)?);
        }
        Ok(workers)
    }

    /// What hands them jobs. A job that comes after they have ended is run by the caller.
    pub fn spawn(&self) -> Spawn {
        let jobs = self.jobs.clone().unwrap_or_default();
        Arc::new(move |job| {
            let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match jobs {
                Some(jobs) => {
                    if let Err(refused) = jobs.send(job) {
                        (refused.0)();
                    }
                }
                None => job(),
            }
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(jobs) = self.jobs.take() {
            jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        for thread in self.threads.drain(..) {
            // What failed has said so.
            let _ = thread.join();
        }
    }
}
