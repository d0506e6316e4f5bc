//! Fixtures of the tests of the striped store.

pub(crate) mod copies;
pub(crate) mod nodes;
pub(crate) mod steps;
pub(crate) mod striped;
