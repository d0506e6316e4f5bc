//! Compounds (RFC 8881 2.3): the parts that operations see, and the engine that runs operations.
//!
//! Imports go one way: the engine uses the dispatch, the dispatch uses the operations, and the
//! operations use the context.

pub(crate) mod context;
pub(crate) mod end;
pub(crate) mod engine;
mod lanes;
pub(crate) mod names;
mod resume;
mod security;
