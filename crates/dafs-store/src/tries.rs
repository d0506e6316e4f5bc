//! Calls of engines' libraries that may never return.
//!
//! Invariants
//! * One [`Tries`] has at most [`OPENS_MAX`] running calls. The bound includes those whose caller
//!   has timed out.

use crate::limits::OPENS_MAX;
use dafs_mem::Mutex;
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Calls that may never return, such as attempts to open a cluster.
#[derive(Debug)]
pub struct Tries {
    /// Each running call holds a reference.
    under_way: Mutex<Weak<()>>,
}

/// The reason for a missing result.
#[derive(Debug)]
pub enum NoOutcome {
    /// So many calls are running already; this one was not started.
    Stuck(usize),
    /// The call has not returned within this time, and is still running.
    Timeout(Duration),
    /// The system cannot start a thread.
    Thread(io::Error),
}

impl Tries {
    /// Makes an empty set.
    #[expect(clippy::new_without_default, reason = "only statics are made of it, by `const`")]
    pub const fn new() -> Self {
        Self { under_way: Mutex::new(Weak::new()) }
    }

    /// Runs a function on a thread of this name, and waits at most `limit` for its result. After a
    /// timeout the thread goes on, and drops a later result.
    ///
    /// # Errors
    /// The reason, if there is no result.
    pub fn run<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoOutcome> {
        let one = {
            let mut under_way = self.under_way.lock();
            if under_way.strong_count() >= OPENS_MAX {
                return Err(NoOutcome::Stuck(OPENS_MAX));
            }
            let one = under_way.upgrade().unwrap_or_default();
            *under_way = Arc::downgrade(&one);
            one
        };
        let (done, outcome) = channel();
        let work = move || {
            drop(done.send(work()));
            drop(one);
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(work).map_err(NoOutcome::Thread)?;
        outcome.recv_timeout(limit).map_err(|_| NoOutcome::Timeout(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn works_that_wait_without_an_end_do_not_pile_up() {
        let tries = Tries::new();
        let held: Vec<_> = (0..OPENS_MAX)
            .map(|_| {
                let (release, released) = channel::<()>();
                let waiting = tries.run("stuck", SOON, move || {
                    let _ = released.recv();
                });
                assert!(matches!(waiting, Err(NoOutcome::Timeout(SOON))), "{waiting:?}");
                release
            })
            .collect();
        let refused = tries.run("refused", SOON, || ());
        assert!(matches!(refused, Err(NoOutcome::Stuck(OPENS_MAX))), "{refused:?}");
        drop(held);
        // The threads end a moment later.
        let outcome = loop {
            match tries.run("outcome", Duration::from_secs(60), || 7) {
                Err(NoOutcome::Stuck(_)) => std::thread::yield_now(),
                outcome => break outcome,
            }
        };
        assert!(matches!(outcome, Ok(7)), "{outcome:?}");
    }
}
