//! Keeps requests from waiting for the metadata server's next tick.
//!
//! What is not obvious
//! * Who asks about a directory that is being changed waits until the changes are in the metadata
//!   server's journal. Of some changes (a name that several make and remove at once) that server forgets
//!   to hurry: it writes them at its next tick, 5 seconds apart, unless a client asks it to. Seen with
//!   16.2; libcephfs by itself has the same wait.
//!
//! Invariants
//! * Nobody is asked for anything while all requests are quick.

use crate::limits::{NUDGE_AFTER, NUDGE_IDLE_ROUNDS};
use crate::sys::Mount;
use dafs_store::vital;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// Requests under way, by when they began.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    begun: BTreeMap<u64, Instant>,
    /// Nobody watches until he is woken.
    asleep: bool,
    ended: bool,
}

/// While it lives, a request is under way.
#[derive(Debug)]
pub(crate) struct Waiting {
    waits: Arc<Waits>,
    number: u64,
}

impl Waits {
    /// A request begins.
    pub(crate) fn begin(self: &Arc<Self>) -> Waiting {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.begun.insert(number, Instant::now());
        if state.asleep {
            self.changed.notify_all();
        }
        Waiting { waits: self.clone(), number }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // It is whole between any two steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.lock().begun.remove(&self.number);
    }
}

/// The thread that asks. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Nudge {
    waits: Arc<Waits>,
    thread: Option<JoinHandle<()>>,
}

impl Nudge {
    /// Starts it for the mounts whose requests these are. It does not keep them.
    pub(crate) fn start<'a>(
        waits: &Arc<Waits>,
        mounts: impl Iterator<Item = &'a Arc<Mount>>,
    ) -> std::io::Result<Self> {
        let mounts: Vec<_> = mounts.map(Arc::downgrade).collect();
        let watched = waits.clone();
        let run = move || watched.watch(|| mounts.iter().filter_map(Weak::upgrade).for_each(ask));
        let thread = vital::spawn("dafs-ceph-nudge", run)?;
        Ok(Self { waits: waits.clone(), thread: Some(thread) })
    }
}

fn ask(mount: Arc<Mount>) {
    if let Err(error) = mount.sync_all() {
        tracing::debug!(%error, "the metadata server of ceph does not write its journal");
    }
}

impl Drop for Nudge {
    fn drop(&mut self) {
        self.waits.lock().ended = true;
        self.waits.changed.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that hurries the metadata server of ceph had failed");
        }
    }
}

impl Waits {
    /// Calls `nudge` whenever a request has taken long, until it is ended.
    fn watch(&self, nudge: impl Fn()) {
        let mut idle_rounds = 0;
        let mut state = self.lock();
        while !state.ended {
            if state.begun.is_empty() && idle_rounds >= NUDGE_IDLE_ROUNDS {
                state.asleep = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asleep = false;
                continue;
            }
            idle_rounds = if state.begun.is_empty() { idle_rounds + 1 } else { 0 };
            let oldest = state.begun.first_key_value().map(|(_, &begun)| begun);
            if oldest.is_some_and(|oldest| oldest.elapsed() >= NUDGE_AFTER) {
                drop(state);
                nudge();
                state = self.lock();
            }
            let waited = self.changed.wait_timeout(state, NUDGE_AFTER);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn who_waits_long_is_helped_and_who_does_not_is_left_alone() {
        let waits = Arc::new(Waits::default());
        let (sender, nudged) = channel();
        let watched = waits.clone();
        let thread = std::thread::spawn(move || {
            watched.watch(|| {
                let _ = sender.send(());
            });
        });
        drop(waits.begin());
        let waiting = waits.begin();
        // Comes true however slow this is.
        nudged.recv().unwrap();
        nudged.recv().unwrap();
        drop(waiting);
        waits.lock().ended = true;
        waits.changed.notify_all();
        thread.join().unwrap();
        assert!(waits.lock().begun.is_empty());
    }
}
