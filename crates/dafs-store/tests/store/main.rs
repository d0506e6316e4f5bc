//! The store in memory, and components of data servers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod behaviour;
mod components;
mod read_only;
