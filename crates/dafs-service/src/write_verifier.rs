//! The write verifier: how clients learn that unstable data may be gone.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Writes down a verifier for the next run of the server.
type KeepVerifier = Box<dyn Fn(u64) + Send>;

/// What tells clients that unstable data may have been lost, the same for every protocol. It changes
/// when a write to a device has failed, since the kernel reports that once and then forgets the data; and
/// when the server starts, unless it is known that nothing was lost meanwhile.
pub struct WriteVerifier {
    value: AtomicU64,
    keep: Mutex<Option<KeepVerifier>>,
}

impl fmt::Debug for WriteVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteVerifier").field(&self.value).finish()
    }
}

impl WriteVerifier {
    /// A verifier that differs from those of other runs.
    pub fn new(value: u64) -> Self {
        Self { value: AtomicU64::new(value), keep: Mutex::new(None) }
    }

    /// A verifier that the next run goes on with, if that may. `keep` is told of those that replace it
    /// before anybody gets them; it should not wait for a disk.
    pub fn kept(value: u64, keep: KeepVerifier) -> Self {
        Self { value: AtomicU64::new(value), keep: Mutex::new(Some(keep)) }
    }

    /// The bytes for the wire.
    pub fn current(&self) -> [u8; 8] {
        self.value.load(Ordering::Relaxed).to_be_bytes()
    }

    /// Tells all clients to send their unstable data again.
    pub fn change(&self) {
        let keep = self.keep.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.value.load(Ordering::Relaxed).wrapping_add(1);
        if let Some(keep) = &*keep {
            keep(next);
        }
        self.value.store(next, Ordering::Relaxed);
    }
}
