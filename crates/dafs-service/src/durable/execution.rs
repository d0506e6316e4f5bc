//! The owners of a logged change: its front end, and the jobs that execute it.
//!
//! Invariants
//! * A change that is not settled ends when the last of its owners has dropped it. So it has its
//!   change locks while a job may be executing it, also when its front end has ended.
//! * It is recorded as not executed only if no part of it can have happened. Otherwise it is in
//!   doubt, and a retry gets an error.

use super::journal::Journal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a logged change when the last of its owners drops it.
pub(super) struct Ending {
    pub(super) journal: Arc<Journal>,
    /// Its number in the journal.
    pub(super) number: u64,
    /// The change has a guard only, and no record.
    pub(super) is_guard: bool,
    has_begun: AtomicBool,
    is_settled: AtomicBool,
}

impl Ending {
    pub(super) fn new(journal: Arc<Journal>, number: u64, is_guard: bool) -> Arc<Self> {
        let (has_begun, is_settled) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { journal, number, is_guard, has_begun, is_settled })
    }

    /// Notes that the change may have happened, at least in part.
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Notes that the journal ends the change.
    pub(super) fn settle(&self) {
        self.is_settled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let (has_begun, is_settled) = (*self.has_begun.get_mut(), *self.is_settled.get_mut());
        match is_settled {
            true => {}
            false if self.is_guard => self.journal.end_guard(self.number),
            // A panic may have come in the middle of the change.
            false if has_begun || std::thread::panicking() => self.journal.doubt(self.number),
            false => self.journal.abandon(self.number),
        }
    }
}

/// The handle by which a job executes a logged change. A job that is dropped before it runs has not
/// begun the change.
#[must_use]
pub struct Execution(Arc<Ending>);

impl Execution {
    pub(super) fn new(ending: Arc<Ending>) -> Self {
        Self(ending)
    }

    /// Runs a job that executes the change.
    pub fn run<T>(self, job: impl FnOnce() -> T) -> T {
        self.0.begin();
        job()
    }
}
