//! RPC-over-RDMA version 1 (RFC 8166): the header in front of each message, and what the two ends
//! tell each other when they connect (RFC 8797).
//!
//! Invariants
//! * A header that decodes names at most [`limits::SEGMENTS_MAX`] segments; no sum of their lengths
//!   overflows.
//! * What is wrong with another header is said so exactly that the right answer can be made from
//!   the error alone.
//! * Nothing here knows whose memory a segment names, or whether it may be touched.

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
