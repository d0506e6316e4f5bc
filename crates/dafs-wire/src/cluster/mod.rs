//! The control protocol between a metadata server and its data servers.
//!
//! On the connection there is TLS 1.3 and nothing else. Every message inside is a record: its length in
//! four bytes, then XDR. The messages of [`hello`] come first; they prove that both sides know the
//! secret of the cluster, and that no third one is between them. The crate `dafs-cluster` computes
//! the MACs.
//!
//! Invariants
//! * Lengths are checked against the limits below before any data is stored.

mod hello;
mod message;

pub use hello::{Challenge, Hello, Join, Joined, Membership, Refusal, VERSION};
pub use message::{Answer, Call, Frame, RangeAdvice, StateUse};

/// The most bytes of file data in one message.
pub const DATA_BYTES_MAX: usize = 1 << 20;

/// The most bytes of a record.
pub const RECORD_BYTES_MAX: usize = DATA_BYTES_MAX + 4096;

/// The most bytes of a record before the handshake is complete.
pub const HELLO_BYTES_MAX: usize = 4096;

/// The most bytes of a client's owner string (as in NFSv4.1, co_ownerid).
pub const OWNER_BYTES_MAX: usize = 1024;

/// The most bytes of an authenticated principal.
pub const PRINCIPAL_BYTES_MAX: usize = 1024;

/// The most bytes of the name of an authentication mechanism.
pub const MECHANISM_BYTES_MAX: usize = 16;

/// The most bytes of the name of an RPC security flavour.
pub const FLAVOUR_BYTES_MAX: usize = 16;

/// The most bytes of the name of a connection's protection.
pub const SECURITY_BYTES_MAX: usize = 16;

/// The most bytes of a handle (NFS4_FHSIZE).
pub const HANDLE_BYTES_MAX: usize = 128;

/// The most addresses that a data server announces.
pub const ADDRESSES_MAX: usize = 8;

/// The most bytes of an address as text.
pub const ADDRESS_BYTES_MAX: usize = 64;

const _: () = assert!(
    OWNER_BYTES_MAX
        + PRINCIPAL_BYTES_MAX
        + MECHANISM_BYTES_MAX
        + FLAVOUR_BYTES_MAX
        + SECURITY_BYTES_MAX
        + HANDLE_BYTES_MAX
        + 96
        <= RECORD_BYTES_MAX - DATA_BYTES_MAX
);
const _: () = assert!(3 * ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 4) + 128 <= HELLO_BYTES_MAX);
