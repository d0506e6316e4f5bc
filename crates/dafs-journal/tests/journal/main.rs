//! The journal's log: on a simulated disk and on files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod log;
mod log_prop;
