//! Termination signals end programs also while a server is unreachable: a waiting call gives up.
//!
//! Invariants
//! * A call waits for a connected server for longer than that should take.
//! * After a call has given up, no other waits for long until one succeeds with all servers
//!   connected: signal handlers, and the program's cleanup at its end, use files once more.

use crate::failure::Result;
use crate::limits::{GIVEN_UP_PATIENCE, INTERRUPTED_PATIENCE};
use crate::{session, signals};
use dafs_client::interruptible;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A call has given up since all servers were last connected.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// When a termination signal was first seen during the call of this thread.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// True if a waiting call is to give up. The call polls this several times a second.
fn is_to_end() -> bool {
    let given_up = has_given_up();
    if !given_up && !signals::is_ending() {
        return false;
    }
    let since = SINCE.get().unwrap_or_else(Instant::now);
    SINCE.set(Some(since));
    let patience = if given_up { GIVEN_UP_PATIENCE } else { INTERRUPTED_PATIENCE };
    // A server that neither answers nor is known to be disconnected may be unreachable, too.
    let is_to_end = session::is_any_away() || since.elapsed() >= patience;
    GIVEN_UP.fetch_or(is_to_end, Ordering::Relaxed);
    is_to_end
}

/// Runs `work`, which serves a call and may wait for a server.
pub(crate) fn watched<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // Without a handler such a signal ends the program by itself.
    if !signals::handles_endings() {
        return work();
    }
    SINCE.set(None);
    let done = interruptible(is_to_end, work);
    if has_given_up() && done.is_ok() && !session::is_any_away() {
        GIVEN_UP.store(false, Ordering::Relaxed);
    }
    done
}

/// True if a call has given up.
pub(crate) fn has_given_up() -> bool {
    GIVEN_UP.load(Ordering::Relaxed)
}

/// A fork has its own sessions.
pub(crate) fn after_fork_in_child() {
    GIVEN_UP.store(false, Ordering::Relaxed);
}
