//! Messages on the wire: laid out by hand from the specifications, generated at random, and refused.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

mod dafs_golden;
mod dafs_prop;
mod dafs_refused;
mod nfs4_golden;
mod nfs4_prop;
