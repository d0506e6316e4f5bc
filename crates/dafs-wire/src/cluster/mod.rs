//! What a metadata server and its data servers say to each other: the control program of a cluster.
//!
//! On the connection every message is a record: its length in four bytes, then XDR. First come the
//! messages of [`hello`], which show that both know the secret of the cluster. Each record after them
//! ends with a code that only the two can make, so it is whole and in order. How codes are made is
//! `dafs-cluster`'s.
//!
//! Invariants
//! * Lengths are checked against the limits below before anything is kept.

mod hello;
mod message;

pub use hello::{Challenge, Hello, Join, Joined, Membership, Refusal, VERSION};
pub use message::{Answer, Call, Frame, StateUse};

/// The most bytes of file content in one message.
pub const DATA_BYTES_MAX: usize = 1 << 20;

/// The most bytes of a record, without its code.
pub const RECORD_BYTES_MAX: usize = DATA_BYTES_MAX + 4096;

/// The most bytes of a record before both have shown who they are.
pub const HELLO_BYTES_MAX: usize = 4096;

/// The most bytes of what a client calls itself (as in NFSv4.1, co_ownerid).
pub const OWNER_BYTES_MAX: usize = 1024;

/// The most bytes of a name that a client has proved.
pub const PRINCIPAL_BYTES_MAX: usize = 1024;

/// The most bytes of the name of a way to prove a name.
pub const MECHANISM_BYTES_MAX: usize = 16;

/// The most bytes of a handle (NFS4_FHSIZE).
pub const HANDLE_BYTES_MAX: usize = 128;

/// The most addresses that a data server tells.
pub const ADDRESSES_MAX: usize = 8;

/// The most bytes of an address as text.
pub const ADDRESS_BYTES_MAX: usize = 64;

const _: () = assert!(
    OWNER_BYTES_MAX + PRINCIPAL_BYTES_MAX + MECHANISM_BYTES_MAX + HANDLE_BYTES_MAX + 64
        <= RECORD_BYTES_MAX - DATA_BYTES_MAX
);
const _: () = assert!(3 * ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 4) + 128 <= HELLO_BYTES_MAX);
