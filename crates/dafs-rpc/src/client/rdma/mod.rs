//! RPC-over-RDMA version 1 (RFC 8166), the calling side.
//!
//! A [`Port`] is an adapter with the connections on it; [`core`] is one connection without threads.
//! Memory is registered for long and never invalidated by the server (RFC 8797): a key that is
//! used for every call costs nothing.

mod base;
mod core;
mod driver;
mod helper;
mod link;
mod port;
mod sleep;
mod slots;
mod staging;
mod waiter;

pub(super) use link::Link;
pub use port::Port;
pub(super) use port::Shared;
