//! Whether this process is a fork of the one that made something.
//!
//! A system call per operation to ask for the process id would cost more than the check is worth;
//! the C library tells us about forks instead.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the start of the program and this process, since the first call of [`count`].
static FORKS: AtomicU32 = AtomicU32::new(0);

static INSTALL: Once = Once::new();

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that differs between a process and its forks.
pub(crate) fn count() -> u32 {
    if !INSTALL.is_completed() {
        INSTALL.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is allowed in a forked child. If
            // the handler cannot be installed, forks are not noticed.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
    }
    FORKS.load(Ordering::Relaxed)
}
