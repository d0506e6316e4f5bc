//! New objects get the modes that their makers ask for, and the umask is for the server's own files.
//!
//! With a umask of zero the kernel does what clients expect: the permission bits are those of the call, and
//! a default list of the directory may take some away. But the umask belongs to the whole process. So each
//! thread that makes objects gets its own (`unshare` with CLONE_FS), which is zero during the call only.
//! Where the system refuses that, as the filters of some containers do, the process has none meanwhile.
//!
//! Invariants
//! * When nothing is being made, every thread has the umask of the process.
//! * No file of the server's own relies on the umask: `own` gives them their modes.

use super::sys;
use rustix::fs::Mode;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

thread_local! {
    /// Whether the umask of this thread is no other thread's.
    static SEPARATE: bool = sys::separate_umask().is_ok();
}

/// Calls under way that go without the umask of the process.
static SHARED: Mutex<usize> = Mutex::new(0);

/// The umask to go back to.
fn umask() -> Mode {
    static UMASK: OnceLock<Mode> = OnceLock::new();
    *UMASK.get_or_init(|| {
        // It can only be read by setting it.
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        umask
    })
}

/// Runs a call that makes an object whose mode is meant as it is.
pub(super) fn without<T>(make: impl FnOnce() -> T) -> T {
    let _without = Without::begin(SEPARATE.with(|separate| *separate));
    make()
}

/// While it lives, this thread has no umask.
struct Without {
    separate: bool,
}

impl Without {
    fn begin(separate: bool) -> Self {
        let umask = umask();
        let mut shared = (!separate).then(shared);
        if shared.as_ref().is_none_or(|shared| **shared == 0) && !umask.is_empty() {
            rustix::process::umask(Mode::empty());
        }
        shared.iter_mut().for_each(|shared| **shared += 1);
        Self { separate }
    }
}

impl Drop for Without {
    fn drop(&mut self) {
        let mut shared = (!self.separate).then(shared);
        shared.iter_mut().for_each(|shared| **shared -= 1);
        if shared.is_none_or(|shared| *shared == 0) && !umask().is_empty() {
            rustix::process::umask(umask());
        }
    }
}

fn shared() -> MutexGuard<'static, usize> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_threads_share_one_it_is_back_after_the_last_call() {
        let now = || {
            let now = rustix::process::umask(Mode::empty());
            rustix::process::umask(now);
            now
        };
        // Other tests of this process go on.
        if let Err(errno) = sys::separate_umask() {
            return eprintln!("SKIPPED: no thread gets a umask of its own here: {errno:?}");
        }
        let (first, second) = (Without::begin(false), Without::begin(false));
        assert_eq!(now(), Mode::empty());
        drop(first);
        assert_eq!(now(), Mode::empty());
        drop(second);
        assert_eq!(now(), umask());
        without(|| assert_eq!(now(), Mode::empty()));
        assert_eq!(now(), umask());
    }
}
