//! Compounds (RFC 8881 2.3): the parts that operations see, and the engine that runs operations.

pub(crate) mod context;
pub(crate) mod end;
pub(crate) mod engine;
mod lanes;
mod resume;
