//! RPC-over-RDMA version 1 (RFC 8166), the client side.
//!
//! A [`Port`] is an adapter with the connections on it; [`core`] is one connection without threads.
//! Memory stays registered, and the client does not ask the server for remote invalidation (RFC
//! 8797): a key that serves every call costs nothing per call.

mod base;
mod core;
mod driver;
mod helper;
mod link;
mod port;
mod sleep;
mod staging;
mod waiter;

pub(super) use link::Link;
pub use port::Port;
pub(super) use port::Shared;
