//! The protocol violations of a peer, as text for the log and as the codes of a Terminate.

use crate::PostError;
use dafs_mem::Inaccessible;
use dafs_wire::iwarp::ddp::DdpError;
use dafs_wire::iwarp::rdmap::Terminate;
use thiserror::Error;

/// A protocol violation of a peer. Each of them ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The checksum of an FPDU does not match.
    #[error("the CRC of an FPDU does not match")]
    Crc,
    /// The target memory of a message or an own read is no longer accessible. The peer is not at
    /// fault, but the stream cannot continue.
    #[error(transparent)]
    Inaccessible(#[from] Inaccessible),
    /// A malformed segment header.
    #[error("{0}")]
    Header(#[from] DdpError),
    /// A Send with Invalidate for a key that the peer was not given, or that is invalid already.
    #[error("a send asks to invalidate key {key:#010x}: {reason}")]
    Invalidate {
        /// The key.
        key: u32,
        /// The reason.
        reason: PostError,
    },
    /// A control message (read request, Terminate) of the wrong shape.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// A send is longer than the receive that it matched.
    #[error("a message of at least {bytes} bytes met a receive of {posted} bytes")]
    MessageTooLong {
        /// Bytes so far.
        bytes: u64,
        /// Bytes of the receive.
        posted: usize,
    },
    /// A message sequence number or message offset that does not follow the last one.
    #[error("{what} {found} on queue {queue} where {expected} was expected")]
    MessageOrder {
        /// "message number" or "message offset".
        what: &'static str,
        /// The queue number.
        queue: u32,
        /// The received value.
        found: u64,
        /// The expected value.
        expected: u64,
    },
    /// A send without a posted receive.
    #[error("a message arrived and no receive was posted")]
    NoReceive,
    /// A read request for memory that the peer may not read.
    #[error("RDMA read of {bytes} bytes at {address:#x} with key {key:#010x}: {reason}")]
    Read {
        /// The key.
        key: u32,
        /// The address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
        /// The reason.
        reason: PostError,
    },
    /// More reads at a time than the agreed IRD.
    #[error("more than {0} RDMA reads outstanding")]
    ReadDepth(u16),
    /// A read response that matches no outstanding read.
    #[error("a read response does not match the read it answers")]
    ReadResponse,
    /// A tagged message that starts inside another one, or does not continue at its address.
    #[error("a tagged segment does not continue the message before it")]
    TaggedOrder,
    /// A write to memory that the peer may not write.
    #[error("RDMA write of {bytes} bytes at {address:#x} with key {key:#010x}: {reason}")]
    Write {
        /// The key.
        key: u32,
        /// The address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
        /// The reason.
        reason: PostError,
    },
}

impl Violation {
    /// The codes for the Terminate message (RFC 5040 4.8).
    pub fn terminate(&self) -> Terminate {
        match self {
            Violation::Crc => Terminate::CRC,
            Violation::Header(error) => match error {
                DdpError::DdpVersion(_) => Terminate::DDP_VERSION,
                DdpError::Opcode { .. } => Terminate::OPCODE,
                DdpError::Queue { .. } => Terminate::QUEUE,
                DdpError::RdmapVersion(_) => Terminate::RDMAP_VERSION,
                _ => Terminate::UNSPECIFIED,
            },
            Violation::Invalidate { .. } => Terminate::INVALIDATE,
            Violation::Inaccessible(_)
            | Violation::Malformed(_)
            | Violation::ReadResponse
            | Violation::TaggedOrder => Terminate::UNSPECIFIED,
            Violation::MessageTooLong { .. } => Terminate::TOO_LONG,
            Violation::MessageOrder { what: "message number", .. } => Terminate::MSN,
            Violation::MessageOrder { .. } => Terminate::OFFSET,
            Violation::NoReceive | Violation::ReadDepth(_) => Terminate::NO_BUFFER,
            Violation::Read { reason, .. } => match reason {
                PostError::Access => Terminate::ACCESS,
                PostError::Bounds => Terminate::READ_BOUNDS,
                _ => Terminate::READ_STAG,
            },
            Violation::Write { reason, .. } => match reason {
                PostError::Access => Terminate::ACCESS,
                PostError::Bounds => Terminate::WRITE_BOUNDS,
                _ => Terminate::WRITE_STAG,
            },
        }
    }
}
