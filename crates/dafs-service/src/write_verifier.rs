//! The write verifier: how clients learn that unstable data may be gone.

use std::sync::atomic::{AtomicU64, Ordering};

/// What tells clients that unstable data may have been lost, the same for every protocol. It changes
/// when the server starts, and when a write to a device has failed: the kernel reports that once and
/// then forgets the data.
#[derive(Debug)]
pub struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// A verifier that differs from those of other runs.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// The bytes for the wire.
    pub fn current(&self) -> [u8; 8] {
        self.0.load(Ordering::Relaxed).to_be_bytes()
    }

    /// Tells all clients to send their unstable data again.
    pub fn change(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
