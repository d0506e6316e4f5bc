//! The queue of a client's recall thread: layouts to give back, and other work of a protocol, in
//! order.
//!
//! Invariants
//! * Each layout is queued at most once, so the number of held layouts bounds the queue.

use crate::{Grant, Held, Lock, Protocol};
use dafs_mem::Condvar;
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::sync::Arc;

/// The queue of the recall thread.
#[derive(Debug)]
pub struct Returns<P: Protocol> {
    queue: P::Lock<Queue<P>>,
    changed: Condvar,
}

/// A task of the recall thread.
#[derive(Debug)]
pub enum Work<P: Protocol> {
    /// A layout to give back.
    GiveBack(Held<P>),
    /// Work after everything before it was given back.
    Next(P::Work),
}

#[derive(Debug)]
struct Queue<P: Protocol> {
    work: VecDeque<Work<P>>,
    /// The layouts in `work`.
    queued: FxHashSet<usize>,
    stopped: bool,
}

impl<P: Protocol> Default for Queue<P> {
    fn default() -> Self {
        Self { work: VecDeque::new(), queued: FxHashSet::default(), stopped: false }
    }
}

impl<P: Protocol> Default for Returns<P> {
    fn default() -> Self {
        Self { queue: P::Lock::default(), changed: Condvar::new() }
    }
}

/// Identifies a layout in the queue.
fn mark<P: Protocol>(grant: &Arc<Grant<P>>) -> usize {
    Arc::as_ptr(grant) as usize
}

impl<P: Protocol> Returns<P> {
    /// Queues layouts to be given back, without those that are queued already.
    pub fn add(&self, layouts: impl IntoIterator<Item = Held<P>>) {
        let mut queue = self.queue.hold();
        for held in layouts {
            if queue.queued.insert(mark(&held.1)) {
                queue.work.push_back(Work::GiveBack(held));
            }
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Queues work once, behind everything that waits now. True if it was queued already.
    pub fn add_then(&self, work: P::Work) -> bool {
        let mut queue = self.queue.hold();
        let before = queue.work.len();
        queue.work.retain(|other| !matches!(other, Work::Next(other) if *other == work));
        let has_waited = queue.work.len() < before;
        queue.work.push_back(Work::Next(work));
        drop(queue);
        self.changed.notify_all();
        has_waited
    }

    /// Waits for the next task; `None` after [`Self::stop`].
    pub fn next(&self) -> Option<Work<P>> {
        let mut queue = self.queue.hold();
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(work) = queue.take() {
                return Some(work);
            }
            queue = self.changed.wait(queue);
        }
    }

    /// Returns the next task, if there is one.
    pub fn try_next(&self) -> Option<Work<P>> {
        self.queue.hold().take()
    }

    /// Ends the queue. A fork has no recall thread.
    pub fn stop(&self) {
        if let Some(mut queue) = self.queue.hold_unless_forked() {
            queue.stopped = true;
            self.changed.notify_all();
        }
    }
}

impl<P: Protocol> Queue<P> {
    fn take(&mut self) -> Option<Work<P>> {
        let work = self.work.pop_front()?;
        if let Work::GiveBack((_, grant)) = &work {
            self.queued.remove(&mark(grant));
        }
        Some(work)
    }
}
