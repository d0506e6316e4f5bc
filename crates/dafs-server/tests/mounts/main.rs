//! Mounts of the user-level NFS client against a real server on a directory: the file operations of
//! programs, with cut connections and restarted servers.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

mod files;
mod harness;
mod names;
mod recovery;
