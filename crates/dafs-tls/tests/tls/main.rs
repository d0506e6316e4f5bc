//! Whole connections: handshakes cut into any pieces, trust and its absence, hostile peers.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod foreign;
mod handshakes;
mod hostile;
mod trust;
mod users;
mod world;
