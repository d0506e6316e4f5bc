//! iWARP over TCP in user space: MPA, DDP and RDMAP (RFC 5044, 6581, 5041, 5040) behind
//! [`Adapter`](crate::Adapter), wire-compatible with hardware adapters and with Linux siw.
//!
//! | module | purpose |
//! |---|---|
//! | `handshake` | MPA set-up: offer, answer, agreement. No sockets |
//! | `opening` | the first FPDU to another implementation, which Linux siw may miss. No sockets |
//! | `plain_tcp` | log lines about clients that speak no iWARP |
//! | `receive`, `validate`, `expect` | bytes in, placement and messages out. No sockets |
//! | `transmit`, `plan` | posted work in, FPDUs out |
//! | `secure`, `sealed`, `records` | TLS below MPA: the handshake, a connection inside, its records |
//! | `connection` | one TCP connection with its receiver and its transmitter |
//! | `adapter`, `poller`, `setup`, `teardown` | the trait, the poll loop, set-up and end |
//!
//! Invariants
//! * Payload of a large segment goes from the socket straight into its target memory. Small
//!   arrivals pass one staging area that all connections of the adapter share, and are counted
//!   there. Inside TLS all payload passes a shared block, where its records are opened.
//! * A connection keeps no received bytes beyond a partial header or trailer, so an idle one costs
//!   a few hundred bytes and its posted work. Inside TLS it keeps the part of a record, too.
//! * A key is looked up for every piece that is placed or read, so it is refused from the moment of
//!   its deregistration. An `Arc` in the posted work keeps the memory of a socket call alive.
//! * When a CRC was agreed, the receiver checks it before it reports any part of the segment.
//! * No code here blocks. `poll` sends the answers to the peer's reads, and they never wait behind
//!   own reads.

mod adapter;
mod config;
mod connection;
mod core;
mod expect;
mod handshake;
pub mod limits;
pub(crate) mod opening;
mod plain_tcp;
mod plan;
mod poller;
mod receive;
mod records;
mod sealed;
mod secure;
mod setup;
pub(crate) mod slots;
mod sys;
mod teardown;
mod transmit;
mod validate;
mod violation;

pub use adapter::IwarpAdapter;
pub use config::IwarpConfig;
pub use receive::{Inbound, PostedRead, PostedReceive, Receiver};
pub use violation::Violation;
