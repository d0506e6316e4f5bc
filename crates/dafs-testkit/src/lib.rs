//! Fixtures and suites that the tests of several crates share.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(missing_docs, reason = "messages of the protocol, by their names there")]
pub mod raw;

#[allow(missing_docs, reason = "requests of the protocol, by their names there")]
pub mod requests;

mod cached;
pub mod engines;
pub mod realm;
mod served;
pub mod stores;
mod wire;

pub use cached::{Cached, PAGE_BYTES};
pub use served::{Served, Setup, device};
pub use wire::Wire;

use std::time::{Duration, Instant};

/// Waits until a condition holds, for longer than any working operation takes.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Bytes that differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}
