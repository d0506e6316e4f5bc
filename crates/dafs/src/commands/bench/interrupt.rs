//! SIGINT and SIGTERM during a measurement: the first ends it in order and removes its file, the
//! second ends the process.

use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Records the first signal.
#[derive(Debug)]
pub(super) struct Interrupt {
    /// The number of the signal; zero before it.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Handles signals from now on, to the end of the process.
    pub(super) fn watch() -> Result<Self, Failure> {
        let (signal, before) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for number in [SIGINT, SIGTERM] {
            let value = usize::try_from(number).unwrap_or(0);
            // In this order: the first signal only sets the flags.
            flag::register_conditional_shutdown(number, 128 + number, before.clone())
                .and_then(|_| flag::register(number, before.clone()))
                .and_then(|_| flag::register_usize(number, signal.clone(), value))
                .map_err(|error| Failure::local("cannot handle signals", &error))?;
        }
        Ok(Self { signal })
    }

    pub(super) fn is_there(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// Fails if a signal has come.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match i32::try_from(self.signal.load(Ordering::Relaxed)) {
            Ok(0) => Ok(()),
            Ok(signal) => Err(Failure::Interrupted(signal)),
            Err(_) => Err(Failure::Reported),
        }
    }
}
