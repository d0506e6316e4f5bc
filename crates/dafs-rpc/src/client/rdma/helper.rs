//! One thread per port whose servers may call while nobody waits for them.
//!
//! Invariants
//! * It moves things along only when nobody else has done so since its last look, and it waits
//!   without leading, so that no thread has to wake it to lead itself.

use super::driver::Leader;
use super::port::{Shared, coarse_now};
use super::sleep::watch;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long it stays away after it has seen somebody else drive.
const PAUSE: Duration = Duration::from_millis(10);

/// How long it waits for something to happen before it looks whether it is still needed.
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
            // Whoever connects looks under the same lock whether there is a helper.
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

/// For the helper's end and the next one's start to exclude each other.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    shared.helper.start(shared.weak())
}
