//! Gives new objects the modes that clients ask for. The umask applies to the server's own files.
//!
//! With a umask of zero the kernel does what clients expect: the permission bits are those of the
//! call, and a default list of the directory may remove some. But the umask belongs to the whole
//! process. So each thread that makes objects gets its own (`unshare` with CLONE_FS), which is zero
//! only during the call. Where the system refuses that, as the filters of some containers do, the
//! umask of the process is zero meanwhile. A umask that would remove no bit of the call stays.
//!
//! Invariants
//! * When no object is being made, every thread has the umask of the process.
//! * No file of the server's own relies on the umask: `own` gives them their modes.

use super::sys;
use dafs_mem::Mutex;
use rustix::fs::Mode;
use std::sync::{MutexGuard, OnceLock};

thread_local! {
    /// True if this thread has a umask of its own.
    static SEPARATE: bool = sys::separate_umask().is_ok();
}

/// The number of running calls that have cleared the umask of the process.
static SHARED: Mutex<usize> = Mutex::new(0);

/// Returns the original umask of the process.
fn umask() -> Mode {
    static UMASK: OnceLock<Mode> = OnceLock::new();
    *UMASK.get_or_init(|| {
        // A process can only read it by setting it.
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        umask
    })
}

/// Runs a call that makes an object with these permission bits, without the umask.
pub(super) fn without<T>(bits: Mode, make: impl FnOnce() -> T) -> T {
    let separate = SEPARATE.with(|separate| *separate);
    if !umask().intersects(bits) {
        return make();
    }
    let _without = Without::begin(separate);
    make()
}

/// The thread has no umask while this guard lives.
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
    SHARED.lock()
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
        // Other tests of this process run at the same time.
        if let Err(errno) = sys::separate_umask() {
            return eprintln!("SKIPPED: no thread gets a umask of its own here: {errno:?}");
        }
        let (first, second) = (Without::begin(false), Without::begin(false));
        assert_eq!(now(), Mode::empty());
        drop(first);
        assert_eq!(now(), Mode::empty());
        drop(second);
        assert_eq!(now(), umask());
        without(Mode::all(), || assert_eq!(now(), Mode::empty()));
        assert_eq!(now(), umask());
        without(!umask(), || assert_eq!(now(), umask(), "it removes none of these bits"));
        assert_eq!(now(), umask());
    }
}
