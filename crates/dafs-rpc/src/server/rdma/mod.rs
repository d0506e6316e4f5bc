//! The server for peers that connect over direct access transports. It speaks RPC-over-RDMA version
//! 1 (RFC 8166) with the private data of RFC 8797, and sends callbacks (RFC 8167).
//!
//! While one call waits for RDMA reads, others proceed. A reply is sent after its RDMA writes.
//! Where an adapter maps the memory of a peer, the server needs neither: the handler reads and
//! writes there itself.
//!
//! Invariants
//! * A peer costs bounded memory, whatever it sends, and at most its own connection.
//! * Memory that a peer can write at any time is only accessed through volatile views.

mod back;
mod call;
mod connection;
mod credits;
mod ends;
mod fetch;
mod layout;
mod link;
mod reactor;
mod reply;
mod send;
mod table;
mod wait;

pub use reactor::RdmaReactor;
