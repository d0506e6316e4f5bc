//! Waits for the libraries of engines, some of whose waits have no end.
//!
//! Invariants
//! * Of the works that one [`Tries`] has begun, at most [`OPENS_MAX`] are under way, those that nobody waits for
//!   any more included.

use crate::limits::OPENS_MAX;
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Works of which nothing may ever come, such as tries to open a cluster.
#[derive(Debug)]
pub struct Tries {
    /// Each work under way has one.
    under_way: Mutex<Weak<()>>,
}

/// Why nothing has come of a try.
#[derive(Debug)]
pub enum NoOutcome {
    /// So many are under way already: it was not begun.
    Stuck(usize),
    /// It was waited for this long, and is still under way.
    Timeout(Duration),
    /// A thread cannot be started.
    Thread(io::Error),
}

impl Tries {
    /// None is under way.
    #[expect(clippy::new_without_default, reason = "only statics are made of it, by `const`")]
    pub const fn new() -> Self {
        Self { under_way: Mutex::new(Weak::new()) }
    }

    /// Has a thread of this name do something, and waits for that so long at most. A thread that is caught in
    /// a wait is left there; what comes of it later is dropped by it.
    ///
    /// # Errors
    /// When there is nothing to tell.
    pub fn run<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoOutcome> {
        let one = {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
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
        // The threads end a moment after.
        while let Err(NoOutcome::Stuck(_)) = tries.run("again", SOON, || ()) {
            std::thread::yield_now();
        }
        let outcome = tries.run("outcome", Duration::from_secs(60), || 7);
        assert!(matches!(outcome, Ok(7)), "{outcome:?}");
    }
}
