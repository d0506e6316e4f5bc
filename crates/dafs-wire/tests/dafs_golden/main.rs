//! DAFS messages laid out by hand from the tables of DAFS 5 and 6, and the extensions, byte by
//! byte, in both orders.
//!
//! Positions count from the start of the message, so a field at n of a fixed section is at 40 + n.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

mod files;
mod layout;
mod layouts;
mod session;
