//! Serving programs to peers that connect over direct access transports: RPC-over-RDMA version 1
//! (RFC 8166) with what RFC 8797 lets peers tell each other, and calls in the other direction
//! (RFC 8167).
//!
//! A call that has to fetch data waits for it while others go on; a reply leaves when its data has
//! been written. Where an adapter maps the memory of a peer, neither happens: the handler reads and
//! writes there itself.
//!
//! Invariants
//! * A peer costs bounded memory, whatever it sends, and at most its own connection.
//! * What a peer can write at any time is only seen through volatile views.

mod back;
mod call;
mod connection;
mod credits;
mod ends;
mod fetch;
mod layout;
mod link;
mod memory;
mod reactor;
mod reply;
mod send;
mod wait;

pub use reactor::RdmaReactor;
