//! Keeping the lease alive while nobody uses the mount (RFC 8881 8.3).
//!
//! Invariants
//! * The thread ends with its mount.

use super::client::Client;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Ends the thread when it is dropped.
#[derive(Debug)]
pub(crate) struct Renewer {
    stop: Arc<Stop>,
}

#[derive(Debug, Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Renewer {
    /// Begins to look after a client whose lease is this long.
    pub(crate) fn start(client: &Arc<Client>, lease: Duration) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let (client, seen) = (Arc::downgrade(client), stop.clone());
        // Well before its end, so that there is time for a new connection.
        let idle_max = lease / 3;
        std::thread::Builder::new()
            .name("dafs-nfs-lease".to_owned())
            .spawn(move || run(&client, &seen, idle_max))?;
        Ok(Self { stop })
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        *self.stop.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.changed.notify_all();
    }
}

fn run(client: &Weak<Client>, stop: &Stop, idle_max: Duration) {
    let mut wait = idle_max;
    loop {
        let stopped = stop.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = stop.changed.wait_timeout_while(stopped, wait, |stopped| !*stopped);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        let Some(client) = client.upgrade() else { return };
        let idle = client.idle();
        if idle < idle_max {
            wait = idle_max - idle;
            continue;
        }
        wait = idle_max;
        if let Err(error) = client.ask(&|_| {}).map(drop) {
            tracing::warn!(%error, "the lease could not be renewed");
        }
    }
}
