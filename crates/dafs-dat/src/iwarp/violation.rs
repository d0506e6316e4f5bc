//! The rules that a peer can break, in words for the log and as the codes of a Terminate.

use crate::PostError;
use dafs_mem::Gone;
use dafs_wire::iwarp::ddp::DdpError;
use dafs_wire::iwarp::rdmap::Terminate;
use thiserror::Error;

/// What a peer did wrong. Every one of them ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The checksum of an FPDU does not match.
    #[error("the CRC of an FPDU does not match")]
    Crc,
    /// The application has taken away the memory that a message or a read of ours goes into. No fault of
    /// the peer's, but nothing can follow.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// A malformed segment header.
    #[error("{0}")]
    Header(#[from] DdpError),
    /// A send that wants to invalidate a key which the peer was not given, or which is dead
    /// already.
    #[error("a send asks to invalidate key {key:#010x}: {reason}")]
    Invalidate {
        /// The key.
        key: u32,
        /// Why not.
        reason: PostError,
    },
    /// A control message (read request, Terminate) of the wrong shape.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// A send is longer than the receive that it met.
    #[error("a message of at least {bytes} bytes met a receive of {posted} bytes")]
    MessageTooLong {
        /// Bytes so far.
        bytes: u64,
        /// Bytes of the receive.
        posted: usize,
    },
    /// A message number or an offset within a message that does not follow the last one.
    #[error("{what} {found} on queue {queue} where {expected} was expected")]
    MessageOrder {
        /// "message number" or "message offset".
        what: &'static str,
        /// The queue.
        queue: u32,
        /// What came.
        found: u64,
        /// What should have come.
        expected: u64,
    },
    /// A send without a posted receive.
    #[error("a message arrived and no receive was posted")]
    NoReceive,
    /// A read request that names memory the peer may not read.
    #[error("RDMA read of {bytes} bytes at {address:#x} with key {key:#010x}: {reason}")]
    Read {
        /// The key.
        key: u32,
        /// The address.
        address: u64,
        /// Bytes.
        bytes: u64,
        /// Why not.
        reason: PostError,
    },
    /// More reads at a time than we agreed to answer.
    #[error("more than {0} RDMA reads outstanding")]
    ReadDepth(u16),
    /// A read response that fits no outstanding read.
    #[error("a read response does not match the read it answers")]
    ReadResponse,
    /// A tagged message started inside another one, or does not continue where it was.
    #[error("a tagged segment does not continue the message before it")]
    TaggedOrder,
    /// A write to memory the peer may not write.
    #[error("RDMA write of {bytes} bytes at {address:#x} with key {key:#010x}: {reason}")]
    Write {
        /// The key.
        key: u32,
        /// The address.
        address: u64,
        /// Bytes.
        bytes: u64,
        /// Why not.
        reason: PostError,
    },
}

impl Violation {
    /// The codes that tell the peer (RFC 5040 4.8).
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
            Violation::Gone(_)
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
