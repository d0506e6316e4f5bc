//! Fixtures of the tests of the striped store.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod copies;
pub(crate) mod nodes;
pub(crate) mod steps;
pub(crate) mod striped;
