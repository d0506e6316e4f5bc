//! The thread that repairs copies of files: writes that an absent node has missed, and differences
//! that writers left behind.

use crate::limits::{MEND_BYTES_PER_SECOND, MEND_CHECKS};
use dafs_striped::StripedStore;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread. When it is dropped, it ends after its present piece.
pub(super) struct Mender {
    /// Dropped to stop the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Mender {
    /// Starts it. It repairs copies of files without a write for `idle`.
    pub(super) fn start(store: &Arc<StripedStore>, idle: Duration) -> io::Result<Self> {
        let (running, ended) = channel();
        let store = Arc::downgrade(store);
        let thread = std::thread::Builder::new().name("dafs-mending".to_owned());
        let thread = thread.spawn(move || run(&store, idle, &ended))?;
        Ok(Self { running: Some(running), thread: Some(thread) })
    }
}

fn run(store: &Weak<StripedStore>, idle: Duration, ended: &Receiver<()>) {
    let goes_on = |pause| ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
    // Other work needs the nodes and the network, too.
    let pace = |bytes: usize| {
        goes_on(Duration::from_secs_f64(bytes as f64 / MEND_BYTES_PER_SECOND as f64))
    };
    while goes_on(idle / MEND_CHECKS) {
        let Some(store) = store.upgrade() else { return };
        if catch_unwind(AssertUnwindSafe(|| store.repair(idle, &pace))).is_err() {
            tracing::error!("copies were not repaired; the server retries");
        }
    }
}

impl Drop for Mender {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A failed thread has reported its panic.
            let _ = thread.join();
        }
    }
}
