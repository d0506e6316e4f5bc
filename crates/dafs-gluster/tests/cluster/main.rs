//! Tests against a real cluster of three bricks on loopback. The first test starts it, and the end
//! of this process stops it. Without GlusterFS all tests are skipped.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod processes;
mod store;
#[path = "../support/mod.rs"]
mod support;
