//! Programs end when they are told to, also while a server is away: what waits for it gives up then.
//!
//! Invariants
//! * A server whose connection is there is waited for, for longer than it should take.
//! * After a call has been given up no other waits for long, until one succeeds with all servers there:
//!   handlers, and what a program does at its end, ask for files once more.

use crate::failure::Result;
use crate::limits::{GIVEN_UP_PATIENCE, INTERRUPTED_PATIENCE};
use crate::{session, signals};
use dafs_client::interruptible;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A call has been given up since all servers were there last.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Since when the call of this thread has been wanted to end.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Asked several times a second by a call that waits.
fn is_to_end() -> bool {
    let given_up = has_given_up();
    if !given_up && !signals::is_ending() {
        return false;
    }
    let since = SINCE.get().unwrap_or_else(Instant::now);
    SINCE.set(Some(since));
    let patience = if given_up { GIVEN_UP_PATIENCE } else { INTERRUPTED_PATIENCE };
    // One that neither answers nor is seen to be gone may be away, too.
    let is_to_end = session::is_any_away() || since.elapsed() >= patience;
    GIVEN_UP.fetch_or(is_to_end, Ordering::Relaxed);
    is_to_end
}

/// Runs what serves a call, which may wait for a server.
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

/// Whether a call has been given up.
pub(crate) fn has_given_up() -> bool {
    GIVEN_UP.load(Ordering::Relaxed)
}

/// A fork has its own sessions.
pub(crate) fn after_fork_in_child() {
    GIVEN_UP.store(false, Ordering::Relaxed);
}
