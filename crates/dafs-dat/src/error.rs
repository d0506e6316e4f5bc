//! The errors of this crate, worded for the person who must act.

use crate::types::PrivateData;
use dafs_mem::Inaccessible;
use std::io;
use thiserror::Error;

/// The reason why a connection could not be established.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address belongs to another provider.
    #[error("this transport cannot reach an address of that kind")]
    AddressKind,
    /// The request or endpoint no longer exists.
    #[error("the peer has left before the connection was made")]
    Gone,
    /// The operating system refused.
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
    /// The private data is longer than the transport carries.
    #[error("private data of {bytes} bytes is longer than the {max} bytes a connection carries")]
    PrivateData {
        /// Length of the private data.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The peer does not speak this transport's protocol.
    #[error("the peer does not speak {protocol}: {detail}")]
    Protocol {
        /// The expected protocol.
        protocol: &'static str,
        /// The bytes that arrived instead.
        detail: String,
    },
    /// The peer rejected the connection.
    #[error("the peer rejected the connection")]
    Rejected(PrivateData),
    /// There is no TLS with the peer, and this side demands it.
    #[error("no connection by TLS: {0}")]
    Tls(String),
    /// The peer has left in the handshake of TLS.
    #[error("no connection by TLS: {0}")]
    TlsCut(String),
    /// The peer did not answer before the timeout.
    #[error("no answer from the peer within {0:?}")]
    TimedOut(std::time::Duration),
}

/// The reason why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// This side ended it.
    #[error("closed by this side")]
    Local,
    /// The peer closed it gracefully.
    #[error("closed by the peer")]
    Peer,
    /// The connection to the peer was lost: reset, killed, unreachable.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The peer broke a rule of the transport: a message without a receive, a forged or foreign
    /// key, a range outside its region, malformed framing, a wrong checksum.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The peer reported that this side broke a rule.
    #[error("terminated by the peer: {0}")]
    Terminated(String),
}

impl From<Inaccessible> for DisconnectReason {
    fn from(gone: Inaccessible) -> Self {
        DisconnectReason::Lost(gone.to_string())
    }
}

/// The reason why work could not be posted. The provider has queued none of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The endpoint does not exist, or is no longer connected.
    #[error("the endpoint is not connected")]
    NotConnected,
    /// The region does not exist, or belongs to another protection domain.
    #[error("the memory region is unknown in this protection domain")]
    Region,
    /// The segment exceeds its region.
    #[error("the segment lies outside its memory region")]
    Bounds,
    /// The application has unmapped, write-protected or truncated the memory.
    #[error(transparent)]
    Inaccessible(#[from] Inaccessible),
    /// The region was registered without the right that this work needs.
    #[error("the memory region was registered without the access this work needs")]
    Access,
    /// The memory could not be registered with the device for local work; the log has the reason.
    #[error("the memory cannot be registered with the RDMA device")]
    Memory,
    /// Too many segments, or lengths that do not match.
    #[error("the lengths or the number of segments do not fit")]
    Length,
    /// More work is outstanding than the provider allows.
    #[error("too much work is outstanding on this endpoint")]
    QueueFull,
}

/// The reason why memory could not be registered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The process would lock more memory than its limit.
    #[error(
        "{bytes} bytes of registered memory on top of {registered} exceed the limit on locked \
         memory, which is {limit} bytes; raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity \
         in a systemd unit, memlock in /etc/security/limits.conf) or give the process CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// Requested bytes.
        bytes: usize,
        /// Bytes that this process has registered already.
        registered: u64,
        /// The limit (`RLIMIT_MEMLOCK`).
        limit: u64,
    },
    /// The adapter's region table is full.
    #[error("{0} memory regions are registered, which is the limit; release some")]
    TooMany(usize),
    /// The region is longer than a key can address.
    #[error("a memory region may have at most {max} bytes; this one has {bytes}")]
    TooLong {
        /// Length of the region.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The operating system refused.
    #[error("cannot register memory: {0}")]
    Io(#[from] io::Error),
}

impl From<RegisterError> for io::Error {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Io(error) => error,
            error => io::Error::other(error),
        }
    }
}
