//! Mounts of the user-level NFS client against a real server on a directory: what programs do with
//! files, and what happens to them when connections are cut and servers restart.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

mod files;
mod harness;
mod names;
mod recovery;
