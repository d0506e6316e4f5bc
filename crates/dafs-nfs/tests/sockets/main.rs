//! The NFS front ends over real connections, with the user-level client: tests that need several
//! connections, threads or callbacks.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

mod dense;
mod harness;
mod hostile;
mod sessions;
