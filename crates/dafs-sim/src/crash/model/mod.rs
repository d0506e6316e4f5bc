//! The required state after any number of crashes.

pub(super) mod board;
pub(super) mod gate;
pub(super) mod lease;
pub(super) mod log;
pub(super) mod names;
pub(super) mod slots;
pub(super) mod vault;
