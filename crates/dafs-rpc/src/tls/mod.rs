//! RPC-with-TLS (RFC 9289): the probe, the handshakes of a server, and the records of either end.
//!
//! | part | file |
//! |---|---|
//! | the probe AUTH_TLS and its answer | `probe.rs` |
//! | certificates, and handshakes under way | `dafs_dat::tls` |
//! | records in user space | `records.rs` |
//!
//! The reactors use them in `server/tls.rs`, the client in `client/tcp/tls.rs`.
//!
//! Invariants
//! * A connection that has left the clear never returns to it.
//! * Nothing that came in the clear is taken for something that came inside TLS: the probe is the
//!   last record in the clear, and bytes behind it end the connection.

mod ending;
pub(crate) mod probe;
mod records;

pub use dafs_dat::tls::{Job, RunJob, ServerTls};
pub(crate) use dafs_dat::tls::{Shaking, Stepped, Wait, now_seconds};
pub use dafs_tls::TransportSecurity;
pub(crate) use ending::{TlsEnding, of_kernel};
pub(crate) use probe::Offer;
pub(crate) use records::{Next, Receiving, Sending};
