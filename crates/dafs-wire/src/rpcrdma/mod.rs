//! RPC-over-RDMA version 1 (RFC 8166): the header before each message, and the private data of
//! connection set-up (RFC 8797).
//!
//! Invariants
//! * A decoded header names at most [`limits::SEGMENTS_MAX`] segments; no sum of their lengths
//!   overflows.
//! * The error for any other header has all details for the right answer.
//! * This module does not know the owner or the rights of a segment's memory.

mod chunk;
mod header;
pub mod limits;
mod private_data;
#[cfg(test)]
mod tests;

pub use chunk::{Chunk, Chunks, ReadSegment, Segment};
pub use header::{Body, Header, HeaderError, HeaderFault, HeaderProblem};
pub use limits::VERSION;
pub use private_data::PrivateData;
