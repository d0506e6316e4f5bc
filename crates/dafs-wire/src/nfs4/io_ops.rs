//! Data and byte-range locks: READ, WRITE, COMMIT, LOCK, LOCKT, LOCKU (RFC 8881 18.3, 18.10 -
//! 18.12, 18.22, 18.32).

use super::codec::{xdr_enum, xdr_struct};
use super::types::{StableHow, StateOwner, Stateid, Verifier};
use crate::xdr::{Decode, Decoder, Encode, Encoder, Payload, XdrError};

xdr_struct! {
    /// Arguments of COMMIT (RFC 8881 18.3).
    #[derive(Copy)]
    pub struct CommitArgs {
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes; 0 means to the end of the file.
        pub count: u32,
    }

    /// Results of COMMIT (RFC 8881 18.3).
    #[derive(Copy)]
    pub struct CommitResult {
        /// The write verifier; it changes when unstable data was lost.
        pub verifier: Verifier,
    }

    /// Arguments of READ (RFC 8881 18.22).
    #[derive(Copy)]
    pub struct ReadArgs {
        /// The open, lock or delegation, or a special state-id.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes to read.
        pub count: u32,
    }

    /// Results of READ (RFC 8881 18.22). A server writes the flag, the length and the data
    /// directly.
    #[derive(Copy)]
    pub struct ReadResult<'a> {
        /// True if the data reaches the end of the file.
        pub eof: bool,
        /// The data.
        pub data: Payload<'a>,
    }

    /// Arguments of WRITE (RFC 8881 18.32).
    #[derive(Copy)]
    pub struct WriteArgs<'a> {
        /// The open, lock or delegation, or a special state-id.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// The stability that the data must have before the reply.
        pub stable: StableHow,
        /// The data.
        pub data: Payload<'a>,
    }

    /// Results of WRITE (RFC 8881 18.32).
    #[derive(Copy)]
    pub struct WriteResult {
        /// Bytes written.
        pub count: u32,
        /// The stability of the written data.
        pub committed: StableHow,
        /// The write verifier; it changes when unstable data was lost.
        pub verifier: Verifier,
    }
}

xdr_enum! {
    closed
    /// The kind of a byte-range lock (`nfs_lock_type4`).
    pub enum LockType {
        /// Shared.
        Read = 1,
        /// Exclusive.
        Write = 2,
        /// Shared, and the client will retry.
        ReadWait = 3,
        /// Exclusive, and the client will retry.
        WriteWait = 4,
    }
}

impl LockType {
    /// True if the lock is exclusive.
    #[inline]
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteWait)
    }

    /// True if the client will wait.
    #[inline]
    pub fn is_wait(self) -> bool {
        matches!(self, Self::ReadWait | Self::WriteWait)
    }
}

/// The state of a lock request (`locker4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locker<'a> {
    /// The first lock of an owner under an open.
    New {
        /// Not used in 4.1.
        open_seqid: u32,
        /// The open.
        open: Stateid,
        /// Not used in 4.1.
        lock_seqid: u32,
        /// The owner of the lock.
        owner: StateOwner<'a>,
    },
    /// A further lock.
    Existing {
        /// The locks held.
        lock: Stateid,
        /// Not used in 4.1.
        lock_seqid: u32,
    },
}

impl<'a> Decode<'a> for Locker<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(if d.bool()? {
            Self::New {
                open_seqid: d.u32()?,
                open: Stateid::decode(d)?,
                lock_seqid: d.u32()?,
                owner: StateOwner::decode(d)?,
            }
        } else {
            Self::Existing { lock: Stateid::decode(d)?, lock_seqid: d.u32()? }
        })
    }
}

impl Encode for Locker<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::New { open_seqid, open, lock_seqid, owner } => {
                e.bool(true);
                e.u32(*open_seqid);
                open.encode(e);
                e.u32(*lock_seqid);
                owner.encode(e);
            }
            Self::Existing { lock, lock_seqid } => {
                e.bool(false);
                lock.encode(e);
                e.u32(*lock_seqid);
            }
        }
    }
}

xdr_struct! {
    /// Arguments of LOCK (RFC 8881 18.10).
    #[derive(Copy)]
    pub struct LockArgs<'a> {
        /// The kind.
        pub kind: LockType,
        /// True if the lock was held before the server's restart.
        pub reclaim: bool,
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes; all ones means to the largest offset.
        pub length: u64,
        /// The open or lock state.
        pub locker: Locker<'a>,
    }

    /// The conflicting lock (`LOCK4denied`): follows the status DENIED of LOCK and LOCKT.
    #[derive(Copy)]
    pub struct LockDenied<'a> {
        /// First byte of the lock.
        pub offset: u64,
        /// Length of the lock, in bytes.
        pub length: u64,
        /// The kind of the lock.
        pub kind: LockType,
        /// The owner of the lock.
        pub owner: StateOwner<'a>,
    }

    /// Arguments of LOCKT (RFC 8881 18.11).
    #[derive(Copy)]
    pub struct LocktArgs<'a> {
        /// The kind.
        pub kind: LockType,
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// The lock owner.
        pub owner: StateOwner<'a>,
    }

    /// Arguments of LOCKU (RFC 8881 18.12).
    #[derive(Copy)]
    pub struct LockuArgs {
        /// The kind, which is ignored.
        pub kind: LockType,
        /// Not used in 4.1.
        pub seqid: u32,
        /// The locks held.
        pub stateid: Stateid,
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
    }
}
