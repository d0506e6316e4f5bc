//! Stores to test with.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod copies;
pub(crate) mod nodes;
pub(crate) mod posix;
pub(crate) mod striped;
