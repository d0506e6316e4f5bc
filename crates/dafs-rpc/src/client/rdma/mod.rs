//! RPC-over-RDMA version 1 (RFC 8166), the calling side.

mod port;

pub use port::Port;
