//! Prevents waits for the next tick of the MDS.
//!
//! Notes
//! * A request about a directory under change waits until the changes are in the journal of the
//!   MDS. For some changes (several clients make and remove the same name at once) the MDS does not
//!   flush its journal immediately. It does so at its next tick, up to 5 seconds later, unless a
//!   client asks for it. Seen with 16.2; programs that use libcephfs directly have the same wait.
//!
//! Invariants
//! * While all requests are quick, the thread asks for no flush.

use crate::limits::{NUDGE_AFTER, NUDGE_IDLE_ROUNDS};
use crate::sys::Mount;
use dafs_mem::{Condvar, Mutex};
use dafs_store::vital;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// The running requests, with the times of their beginnings.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    begun: BTreeMap<u64, Instant>,
    /// True while the watching thread sleeps until it is woken.
    asleep: bool,
    ended: bool,
}

/// A request runs while this guard lives.
#[derive(Debug)]
pub(crate) struct Waiting {
    waits: Arc<Waits>,
    number: u64,
}

impl Waits {
    /// Begins a request.
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
        self.state.lock()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.lock().begun.remove(&self.number);
    }
}

/// The thread that asks for flushes. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Nudge {
    waits: Arc<Waits>,
    thread: Option<JoinHandle<()>>,
}

impl Nudge {
    /// Starts the thread for the mounts of these requests. It does not keep them alive.
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
    /// Calls `nudge` whenever a request has taken long, until `ended` is set.
    fn watch(&self, nudge: impl Fn()) {
        let mut idle_rounds = 0;
        let mut state = self.lock();
        while !state.ended {
            if state.begun.is_empty() && idle_rounds >= NUDGE_IDLE_ROUNDS {
                state.asleep = true;
                state = self.changed.wait(state);
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
            state = waited.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn slow_requests_cause_a_flush_and_quick_ones_do_not() {
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
        // Independent of the speed of the machine.
        nudged.recv().unwrap();
        nudged.recv().unwrap();
        drop(waiting);
        waits.lock().ended = true;
        waits.changed.notify_all();
        thread.join().unwrap();
        assert!(waits.lock().begun.is_empty());
    }
}
