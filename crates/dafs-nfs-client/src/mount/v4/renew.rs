//! Keeping the leases of an idle mount alive (RFC 8881 8.3): at the server, and at the data servers
//! of layouts that are held (13.1).
//!
//! Invariants
//! * The threads end with their mount.
//! * The thread that renews the lease of the server waits for no data server.

use super::client::Client;
use dafs_dat::confine::confined;
use dafs_mem::{Condvar, Mutex};
use std::io;
use std::sync::{Arc, Weak};
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
    /// Starts to renew the leases of a client, which are this long.
    pub(crate) fn start(client: &Arc<Client>, lease: Duration) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        // Well before its end, so that there is time for a new connection.
        let idle_max = lease / 3;
        let spawn = |name: &str, renew: fn(&Client, Duration) -> Duration| {
            let (client, seen) = (Arc::downgrade(client), stop.clone());
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(move || run(&client, &seen, idle_max, renew)).map(drop)
        };
        spawn("dafs-nfs-lease", renew)?;
        if client.layouts().is_some() {
            spawn("dafs-nfs-leases", renew_nodes)?;
        }
        Ok(Self { stop })
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
    }
}

fn run(
    client: &Weak<Client>,
    stop: &Stop,
    idle_max: Duration,
    renew: fn(&Client, Duration) -> Duration,
) {
    let mut wait = idle_max;
    loop {
        let stopped = stop.stopped.lock();
        let waited = stop.changed.wait_timeout_while(stopped, wait, |stopped| !*stopped);
        if *waited.0 {
            return;
        }
        let Some(client) = client.upgrade() else { return };
        // A panic does not end the thread: the lease is kept alive.
        wait = confined(|| renew(&client, idle_max)).unwrap_or(idle_max);
    }
}

/// Renews the lease if no other request has done so. Returns the time to the next check.
fn renew(client: &Client, idle_max: Duration) -> Duration {
    let idle = client.idle();
    if idle < idle_max {
        return idle_max - idle;
    }
    if let Err(error) = client.ask(&|_| {}).map(drop) {
        tracing::warn!(%error, "the lease could not be renewed");
    }
    idle_max
}

/// As [`renew`], at the data servers, which use the lease time of their server.
fn renew_nodes(client: &Client, idle_max: Duration) -> Duration {
    if let Some(layouts) = client.layouts() {
        layouts.renew(idle_max / 2);
    }
    idle_max / 2
}
