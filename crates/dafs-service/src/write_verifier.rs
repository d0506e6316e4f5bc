//! The write verifier: by its change clients learn that unstable data may be lost.

use std::sync::atomic::{AtomicU64, Ordering};

/// The write verifier, the same for every protocol. It changes when the server starts, unless it takes
/// over from one that has ended in order, and when a write to a device has failed: the kernel reports
/// that failure once and then drops the data.
#[derive(Debug)]
pub struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// Makes a verifier. It differs from those of other runs whose unstable data may be lost.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// The bytes for the wire.
    pub fn current(&self) -> [u8; 8] {
        self.0.load(Ordering::Relaxed).to_be_bytes()
    }

    /// Makes all clients send their unstable data again.
    pub fn change(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
