//! Fixtures and suites that the tests of several crates share.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(missing_docs, reason = "messages of the protocol, by their names there")]
pub mod raw;

pub mod engines;
mod served;
pub mod stores;
mod wire;

pub use served::{Served, Setup};
pub use wire::Wire;

/// Bytes that differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}
