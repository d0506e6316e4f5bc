//! TLS 1.3 (RFC 8446) for all front ends and clients, without I/O, and its hand-over to the kernel.
//!
//! A connection has two lives. In the first, [`Handshake`] takes one record at a time, and rustls
//! does the work. In the second, its keys protect data: in user space ([`Channel`]), or in the
//! kernel ([`ktls`]).
//!
//! | step | call |
//! |---|---|
//! | configuration from files, followed by reloads | [`ReloadingServer`], [`ReloadingClient`] |
//! | read at most so much from the socket | [`Handshake::needed_bytes`] |
//! | give it over, let the arithmetic run | [`Handshake::feed`], [`Handshake::step`] |
//! | send | [`Handshake::take_output`] |
//! | at the end: protocol, peer, keys, exporter | [`Handshake::finish`] |
//! | data | [`Sealer::seal`], [`Opener::open`], or [`ktls::install`] |
//!
//! Invariants
//! * There is TLS 1.3 alone, with AES-GCM; no tickets, no resumption, no early data.
//! * Time is handed in. Random numbers come from AWS-LC.
//! * Everything that a stranger sends is bounded.
//! * Unsafe code is in `ktls/sys.rs` alone.

mod alert;
mod certificate;
mod config;
mod der;
mod exporter;
mod handshake;
mod keys;
pub mod ktls;
mod limits;
mod peer;
pub mod pki;
mod protocol;
mod provider;
mod record;
mod suite;
mod trust;
mod user;
mod witness;

pub use alert::{Alert, ControlError};
pub use certificate::{Certificate, MalformedCertificate, Purposes, SubjectName};
pub use config::{
    ClientFiles, ClientSide, ConfigError, Files, Identity, Reload, Reloading, ReloadingClient,
    ReloadingServer, ServerFiles, ServerSide,
};
pub use exporter::{CHANNEL_BINDING_BYTES, CHANNEL_BINDING_LABEL, ExportError, Exporter};
pub use handshake::{CLIENT_HELLO_FIRST_BYTE, Established, Handshake, HandshakeError, Progress};
pub use keys::{Side, TrafficKeys};
pub use limits::{
    HEADER_BYTES, OVERHEAD_BYTES, PLAIN_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_BEFORE_END,
    RECORDS_MAX,
};
pub use peer::{Facts, Peer, Standing};
pub use protocol::{NoTransportSecurity, Protocol, TransportSecurity};
pub use record::{Channel, End, OpenError, Opened, Opener, SealError, Sealer, sealed_bytes};
pub use suite::Suite;
pub use trust::Distrust;
pub use user::UserName;
