//! One thread per port that receives callbacks while no other thread polls the port.
//!
//! Invariants
//! * The helper polls only when no other thread has polled since its last look. It sleeps without
//!   being the leader, so no thread has to wake it to become the leader.

use super::driver::Leader;
use super::port::{Shared, coarse_now};
use super::sleep::watch;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause of the helper after it has seen another thread poll.
const PAUSE: Duration = Duration::from_millis(10);

/// Time that the helper waits for an event before it checks whether it is still needed.
const WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Helper {
    is_running: AtomicBool,
}

impl Helper {
    /// Starts the thread, unless it runs.
    pub(super) fn start(&self, port: Weak<Shared>) -> io::Result<()> {
        if self.is_running.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let thread = std::thread::Builder::new().name("dafs-rpc-helper".to_owned());
        let started = thread.spawn(move || run(&port));
        if started.is_err() {
            self.is_running.store(false, Ordering::SeqCst);
        }
        started.map(drop)
    }
}

fn run(port: &Weak<Shared>) {
    let mut seen = 0;
    while let Some(shared) = port.upgrade() {
        let mut driver = shared.lock();
        if !driver.may_be_called() {
            // A thread that connects checks under the same lock whether there is a helper, so the
            // end of the helper and the check do not race.
            shared.helper.is_running.store(false, Ordering::SeqCst);
            return;
        }
        let is_driven = driver.drives != seen || driver.leader != Leader::Nobody;
        let mut transport = None;
        if !is_driven {
            shared.progress_beside(&mut driver, coarse_now());
            driver = shared.take_back_calls(driver);
            let adapter = &mut *driver.base.adapter;
            adapter.flush();
            if driver.leader == Leader::Nobody && matches!(driver.base.adapter.arm(), Ok(true)) {
                transport = shared.sleep.transport(&*driver.base.adapter);
            }
        }
        seen = driver.drives;
        drop(driver);
        drop(shared);
        match transport {
            Some(transport) => watch(&transport, WAIT),
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// Starts the helper. The caller holds the driver's lock, which excludes a race with the end of the
/// previous helper.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    shared.helper.start(shared.weak())
}
