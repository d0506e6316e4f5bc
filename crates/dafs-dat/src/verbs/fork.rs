//! Children of fork() share the parent's queue pairs and registrations, and any operation on them
//! would affect the parent.
//!
//! Invariants
//! * In a child of a process that had opened the libraries, no function of theirs is called: new
//!   work is refused, and a drop of a handle has no effect.

use super::error::VerbsError;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if this process was forked from one that used RDMA devices.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Installs the detection of forks.
pub(super) fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in a child of a fork.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if failed != 0 {
            tracing::warn!("forks of this process are not noticed: {failed}");
        }
    });
}

/// True if this process must not touch the devices.
pub(super) fn is_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// # Errors
/// [`VerbsError::Forked`] in a child.
pub(super) fn check() -> Result<(), VerbsError> {
    if is_child() { Err(VerbsError::Forked) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        watch();
        assert!(!is_child());
        // SAFETY: the child makes only an atomic load and `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: ends the child without running any code of the parent.
            unsafe { libc::_exit(if is_child() { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        assert!(!is_child());
    }
}
