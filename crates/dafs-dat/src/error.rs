//! What can go wrong, worded for the person who must act.

use crate::types::PrivateData;
use dafs_mem::Gone;
use std::io;
use thiserror::Error;

/// Why a connection could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address belongs to another provider.
    #[error("this transport cannot reach an address of that kind")]
    AddressKind,
    /// The request or endpoint is gone.
    #[error("the peer has left before the connection was made")]
    Gone,
    /// The operating system refused.
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
    /// The private data is longer than the transport carries.
    #[error("private data of {bytes} bytes is longer than the {max} bytes a connection carries")]
    PrivateData {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The peer does not speak this transport's protocol.
    #[error("the peer does not speak {protocol}: {detail}")]
    Protocol {
        /// Which protocol was expected.
        protocol: &'static str,
        /// What arrived instead.
        detail: String,
    },
    /// The peer said no.
    #[error("the peer rejected the connection")]
    Rejected(PrivateData),
    /// Nobody answered in time.
    #[error("no answer from the peer within {0:?}")]
    TimedOut(std::time::Duration),
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// This side asked for it.
    #[error("closed by this side")]
    Local,
    /// The peer closed in order.
    #[error("closed by the peer")]
    Peer,
    /// The peer vanished: reset, killed, unreachable.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The peer broke a rule of the transport: a message without a receive, a forged or foreign
    /// key, a range outside its region, malformed framing, a checksum that does not match.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The peer told us that we broke a rule.
    #[error("terminated by the peer: {0}")]
    Terminated(String),
}

impl From<Gone> for DisconnectReason {
    fn from(gone: Gone) -> Self {
        DisconnectReason::Lost(gone.to_string())
    }
}

/// Why work could not be posted. Nothing was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// No such endpoint, or it is no longer connected.
    #[error("the endpoint is not connected")]
    NotConnected,
    /// No such region, or one of another protection domain.
    #[error("the memory region is unknown in this protection domain")]
    Region,
    /// The segment leaves its region.
    #[error("the segment lies outside its memory region")]
    Bounds,
    /// The application has taken the memory away.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The region was registered without the right that this work needs.
    #[error("the memory region was registered without the access this work needs")]
    Access,
    /// The memory could not be registered with the device for work of this side; the log says why.
    #[error("the memory cannot be registered with the RDMA device")]
    Memory,
    /// Too many segments, or lengths that do not fit each other.
    #[error("the lengths or the number of segments do not fit")]
    Length,
    /// More work is outstanding than the provider allows.
    #[error("too much work is outstanding on this endpoint")]
    QueueFull,
}

/// Why memory could not be registered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// More memory would be locked than this process may lock.
    #[error(
        "{bytes} bytes of registered memory on top of {registered} exceed the limit on locked \
         memory, which is {limit} bytes; raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity \
         in a systemd unit, memlock in /etc/security/limits.conf) or give the process CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that this process has registered.
        registered: u64,
        /// The limit (`RLIMIT_MEMLOCK`).
        limit: u64,
    },
    /// The adapter's table is full.
    #[error("{0} memory regions are registered, which is the limit; release some")]
    TooMany(usize),
    /// The region is longer than a key can address.
    #[error("a memory region may have at most {max} bytes; this one has {bytes}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The operating system refused.
    #[error("cannot register memory: {0}")]
    Io(#[from] io::Error),
}
