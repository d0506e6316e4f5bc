//! SIGINT and SIGTERM during a copy: the first ends it in order. If that takes too long, or at a
//! second signal, the process ends at once. Unfinished files on this host are removed either way.

use super::report::Report;
use crate::failure::Failure;
use crate::limits::TIDY_TIME;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use std::time::Duration;

/// Watches for signals until it ends.
#[derive(Debug)]
pub(super) struct Watch {
    handle: Handle,
}

/// Poll interval for signals after the first.
const STEP: Duration = Duration::from_millis(20);

/// Starts to watch for signals on behalf of a copy.
pub(super) fn watch(report: &Arc<Report>) -> Result<Watch, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::local("cannot handle signals", &error))?;
    let handle = signals.handle();
    let report = report.clone();
    std::thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        report.stop(Failure::Interrupted(signal));
        let mut left = TIDY_TIME;
        while !left.is_zero() && signals.pending().next().is_none() {
            if signals.is_closed() {
                return;
            }
            std::thread::sleep(STEP);
            left = left.saturating_sub(STEP);
        }
        if !signals.is_closed() {
            report.temporaries.remove_all();
            std::process::exit(128 + signal);
        }
    });
    Ok(Watch { handle })
}

impl Watch {
    /// Ends the watch after the copy.
    pub(super) fn end(self) {
        self.handle.close();
    }
}
