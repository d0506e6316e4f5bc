//! iWARP over TCP in user space: MPA, DDP and RDMAP (RFC 5044, 6581, 5041, 5040) behind
//! [`Adapter`](crate::Adapter), wire-compatible with adapters and with Linux siw.
//!
//! | file | what |
//! |---|---|
//! | `handshake` | MPA set-up: offers, answers, what both sides agreed on. No sockets |
//! | `opening` | the first word to a stranger, which Linux siw may miss. No sockets |
//! | `plain_tcp` | what to tell of clients that speak no iWARP at all |
//! | `receive`, `judge`, `expect` | bytes in, placement and messages out: a state machine without sockets |
//! | `transmit`, `plan` | posted work in, FPDUs out, partial writes kept |
//! | `connection` | one TCP connection with both machines and its life |
//! | `adapter`, `poller`, `setup`, `teardown` | the trait, the poll loop, how connections come and go |
//!
//! Invariants
//! * Payload of a large segment goes from the socket straight into its place; what arrives small
//!   passes one staging area that all connections of the adapter share, and is counted there.
//! * A connection keeps no received bytes beyond a partial header or trailer, so an idle one costs
//!   a few hundred bytes and its posted work.
//! * A key is looked up for every piece that is placed or read, so it is refused from the moment
//!   of its deregistration; what the other side of a socket call points at stays alive by an
//!   `Arc` in the posted work.
//! * A CRC, when agreed, is right before anything of that segment is reported.
//! * Nothing here blocks. Answers to the peer's reads are sent from `poll` and never wait behind
//!   our own reads.

mod adapter;
mod config;
mod connection;
mod core;
mod expect;
mod handshake;
mod judge;
pub mod limits;
pub(crate) mod opening;
mod plain_tcp;
mod plan;
mod poller;
mod receive;
mod setup;
pub(crate) mod slots;
mod sys;
mod teardown;
mod transmit;
mod violation;

pub use adapter::IwarpAdapter;
pub use config::IwarpConfig;
pub use receive::{Inbound, PostedRead, PostedReceive, Receiver};
pub use violation::Violation;
