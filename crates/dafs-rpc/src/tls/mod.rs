//! RPC-with-TLS (RFC 9289): the probe, the handshakes of a server, and the records of either end.
//!
//! | part | file |
//! |---|---|
//! | the probe AUTH_TLS and its answer | `probe.rs` |
//! | certificates, and a bounded number of handshakes | `host.rs` |
//! | a handshake as a state of a server's connection | `handshake.rs` |
//! | records in user space | `records.rs` |
//!
//! The reactors use them in `server/tls.rs`, the client in `client/tcp/tls.rs`.
//!
//! Invariants
//! * A connection that has left the clear never returns to it.
//! * Nothing that came in the clear is taken for something that came inside TLS: the probe is the
//!   last record in the clear, and bytes behind it end the connection.

mod ending;
mod handshake;
mod host;
pub(crate) mod probe;
mod records;

pub use crate::gss::Job;
pub use dafs_tls::TransportSecurity;
pub(crate) use ending::{TlsEnding, of_kernel};
pub(crate) use handshake::{Shaking, Stepped, Wait};
pub(crate) use host::now_seconds;
pub use host::{RunJob, ServerTls};
pub(crate) use probe::Offer;
pub(crate) use records::{Next, Receiving, Sending};
