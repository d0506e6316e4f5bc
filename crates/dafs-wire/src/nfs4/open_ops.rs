//! Opens: OPEN, CLOSE, OPEN_DOWNGRADE, and the delegations that come with them (RFC 8881 18.2,
//! 18.16, 18.18; RFC 9754).

use super::acl::Ace;
use super::bitmap::Bitmap;
use super::codec::{xdr_enum, xdr_flags, xdr_struct};
use super::limits::*;
use super::types::{ChangeInfo, DelegationType, Fattr, StateOwner, Stateid, Verifier};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

xdr_struct! {
    /// Arguments of CLOSE (RFC 8881 18.2).
    #[derive(Copy)]
    pub struct CloseArgs {
        /// Not used in 4.1.
        pub seqid: u32,
        /// The open.
        pub stateid: Stateid,
    }

    /// A result that is a state-id: CLOSE, OPEN_DOWNGRADE, LOCK, LOCKU.
    #[derive(Copy)]
    pub struct StateidResult {
        /// The current state-id.
        pub stateid: Stateid,
    }
}

/// Access and wants of an OPEN (`share_access`, RFC 8881 18.16, RFC 9754): all received bits; the
/// methods extract the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShareAccess(pub u32);

xdr_enum! {
    open
    /// The delegation that a client wants (`OPEN4_SHARE_ACCESS_WANT_*`).
    pub enum Want {
        /// No preference.
        NoPreference = 0x0000,
        /// A read delegation.
        Read = 0x0100,
        /// A write delegation.
        Write = 0x0200,
        /// Any delegation.
        Any = 0x0300,
        /// No delegation.
        None = 0x0400,
        /// No delegation, and earlier wants are cancelled.
        Cancel = 0x0500,
    }
}

impl ShareAccess {
    /// Read access.
    pub const READ: u32 = 0x1;
    /// Write access.
    pub const WRITE: u32 = 0x2;
    /// Read and write access.
    pub const BOTH: u32 = 0x3;
    /// The bits of the access.
    pub const ACCESS_MASK: u32 = 0xff;
    /// The bits of [`Want`].
    pub const WANT_MASK: u32 = 0xff00;
    /// Signal when a delegation becomes available.
    pub const SIGNAL_WHEN_AVAILABLE: u32 = 0x1_0000;
    /// Push a delegation when it becomes available.
    pub const PUSH_WHEN_UNCONTENDED: u32 = 0x2_0000;
    /// The holder of the delegation wants to maintain the times (RFC 9754).
    pub const DELEGATED_TIMESTAMPS: u32 = 0x10_0000;
    /// The client needs no open state-id besides a delegation (RFC 9754).
    pub const OPEN_XOR_DELEGATION: u32 = 0x20_0000;
    /// Every defined bit.
    pub const KNOWN: u32 = Self::BOTH
        | Self::WANT_MASK
        | Self::SIGNAL_WHEN_AVAILABLE
        | Self::PUSH_WHEN_UNCONTENDED
        | Self::DELEGATED_TIMESTAMPS
        | Self::OPEN_XOR_DELEGATION;

    /// The requested access. READ, WRITE or BOTH; any other value is INVAL.
    #[inline]
    pub fn access(self) -> u32 {
        self.0 & Self::ACCESS_MASK
    }

    /// The wanted delegation.
    #[inline]
    pub fn want(self) -> Want {
        Want::from_u32(self.0 & Self::WANT_MASK)
    }

    /// True if all these bits are set.
    #[inline]
    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

impl<'a> Decode<'a> for ShareAccess {
    #[inline]
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self(d.u32()?))
    }
}

impl Encode for ShareAccess {
    #[inline]
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(self.0);
    }
}

/// Deny bits of an OPEN: none.
pub const DENY_NONE: u32 = 0;
/// Deny bits of an OPEN: others must not read.
pub const DENY_READ: u32 = 1;
/// Deny bits of an OPEN: others must not write.
pub const DENY_WRITE: u32 = 2;
/// Deny bits of an OPEN: others must neither read nor write.
pub const DENY_BOTH: u32 = 3;

/// The way in which OPEN creates the file (`openflag4`, `createhow4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenHow<'a> {
    /// The file must exist.
    NoCreate,
    /// Create the file if it does not exist.
    Unchecked(Fattr<'a>),
    /// The file must not exist.
    Guarded(Fattr<'a>),
    /// The file must not exist, unless the same verifier created it (4.0).
    Exclusive(Verifier),
    /// The file must not exist, unless the same verifier created it (4.1).
    Exclusive41(Verifier, Fattr<'a>),
}

impl<'a> Decode<'a> for OpenHow<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => return Ok(Self::NoCreate),
            1 => {}
            kind => return Err(no_such("opentype4", kind)),
        }
        Ok(match d.u32()? {
            0 => Self::Unchecked(Fattr::decode(d)?),
            1 => Self::Guarded(Fattr::decode(d)?),
            2 => Self::Exclusive(Verifier::decode(d)?),
            3 => Self::Exclusive41(Verifier::decode(d)?, Fattr::decode(d)?),
            mode => return Err(no_such("createmode4", mode)),
        })
    }
}

impl Encode for OpenHow<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        let mode = match self {
            Self::NoCreate => return e.u32(0),
            Self::Unchecked(_) => 0,
            Self::Guarded(_) => 1,
            Self::Exclusive(_) => 2,
            Self::Exclusive41(..) => 3,
        };
        e.u32(1);
        e.u32(mode);
        match self {
            Self::NoCreate => {}
            Self::Unchecked(attributes) | Self::Guarded(attributes) => attributes.encode(e),
            Self::Exclusive(verifier) => verifier.encode(e),
            Self::Exclusive41(verifier, attributes) => {
                verifier.encode(e);
                attributes.encode(e);
            }
        }
    }
}

/// The claim of an OPEN (`open_claim4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenClaim<'a> {
    /// A name in the current directory.
    Null(&'a [u8]),
    /// An open from before the server's restart, and the delegation held then; the current file
    /// handle is the file.
    Previous(DelegationType),
    /// A delegation that the client holds, and the name in the current directory.
    DelegateCurrent(Stateid, &'a [u8]),
    /// A delegation from before the client's restart, and the name in the current directory.
    DelegatePrevious(&'a [u8]),
    /// The current file handle is the file.
    Handle,
    /// A delegation that the client holds; the current file handle is the file.
    DelegateCurrentHandle(Stateid),
    /// A delegation from before the client's restart; the current file handle is the file.
    DelegatePreviousHandle,
}

impl OpenClaim<'_> {
    /// The number of the claim (`open_claim_type4`).
    pub fn number(&self) -> u32 {
        match self {
            Self::Null(_) => 0,
            Self::Previous(_) => 1,
            Self::DelegateCurrent(..) => 2,
            Self::DelegatePrevious(_) => 3,
            Self::Handle => 4,
            Self::DelegateCurrentHandle(_) => 5,
            Self::DelegatePreviousHandle => 6,
        }
    }
}

impl<'a> Decode<'a> for OpenClaim<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.u32()? {
            0 => Self::Null(d.opaque(UNLIMITED)?),
            1 => Self::Previous(DelegationType::decode(d)?),
            2 => Self::DelegateCurrent(Stateid::decode(d)?, d.opaque(UNLIMITED)?),
            3 => Self::DelegatePrevious(d.opaque(UNLIMITED)?),
            4 => Self::Handle,
            5 => Self::DelegateCurrentHandle(Stateid::decode(d)?),
            6 => Self::DelegatePreviousHandle,
            claim => return Err(no_such("open_claim_type4", claim)),
        })
    }
}

impl Encode for OpenClaim<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(self.number());
        match self {
            Self::Null(name) | Self::DelegatePrevious(name) => e.opaque(name),
            Self::Previous(kind) => kind.encode(e),
            Self::DelegateCurrent(stateid, name) => {
                stateid.encode(e);
                e.opaque(name);
            }
            Self::Handle | Self::DelegatePreviousHandle => {}
            Self::DelegateCurrentHandle(stateid) => stateid.encode(e),
        }
    }
}

xdr_struct! {
    /// Arguments of OPEN (RFC 8881 18.16).
    #[derive(Copy)]
    pub struct OpenArgs<'a> {
        /// Not used in 4.1.
        pub seqid: u32,
        /// The requested access and delegation.
        pub share_access: ShareAccess,
        /// The access to deny to others; a value above [`DENY_BOTH`] is INVAL.
        pub share_deny: u32,
        /// The owner of the open.
        pub owner: StateOwner<'a>,
        /// The way in which the file is created.
        pub how: OpenHow<'a>,
        /// The claim.
        pub claim: OpenClaim<'a>,
    }
}

/// The space that a client may write under a write delegation before it must inform the server
/// (`nfs_space_limit4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceLimit {
    /// The file may grow to this many bytes.
    Size(u64),
    /// Blocks may be written.
    Blocks {
        /// Number of blocks.
        count: u32,
        /// Length of a block, in bytes.
        block_bytes: u32,
    },
}

impl<'a> Decode<'a> for SpaceLimit {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            1 => Ok(Self::Size(d.u64()?)),
            2 => Ok(Self::Blocks { count: d.u32()?, block_bytes: d.u32()? }),
            kind => Err(no_such("limit_by4", kind)),
        }
    }
}

impl Encode for SpaceLimit {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Size(bytes) => {
                e.u32(1);
                e.u64(*bytes);
            }
            Self::Blocks { count, block_bytes } => {
                e.u32(2);
                e.u32(*count);
                e.u32(*block_bytes);
            }
        }
    }
}

xdr_struct! {
    /// A read delegation (`open_read_delegation4`).
    #[derive(Copy)]
    pub struct ReadDelegation<'a> {
        /// The state-id of the delegation.
        pub stateid: Stateid,
        /// True if it is being recalled already.
        pub recall: bool,
        /// The users for whom the client may open without a request to the server.
        pub permissions: Ace<'a>,
    }

    /// A write delegation (`open_write_delegation4`).
    #[derive(Copy)]
    pub struct WriteDelegation<'a> {
        /// The state-id of the delegation.
        pub stateid: Stateid,
        /// True if it is being recalled already.
        pub recall: bool,
        /// The space that the client may write without a request.
        pub space_limit: SpaceLimit,
        /// The users for whom the client may open without a request to the server.
        pub permissions: Ace<'a>,
    }
}

xdr_enum! {
    open
    /// The reason for no delegation (`why_no_delegation4`). The two that carry a flag are
    /// [`OpenDelegation::Contention`] and [`OpenDelegation::Resource`].
    pub enum WhyNone {
        /// The client did not want one.
        NotWanted = 0,
        /// Others use the file.
        Contention = 1,
        /// The server lacks resources.
        Resource = 2,
        /// This type of object has no delegations.
        UnsupportedType = 3,
        /// This type of object has no write delegations.
        UnsupportedWrite = 4,
        /// A read delegation cannot become a write delegation.
        UnsupportedUpgrade = 5,
        /// A write delegation cannot become a read delegation.
        UnsupportedDowngrade = 6,
        /// The client cancelled its want.
        Cancelled = 7,
        /// The object is a directory.
        IsDirectory = 8,
    }
}

/// The delegation of an OPEN, or the reason for none (`open_delegation4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenDelegation<'a> {
    /// None, without a reason, because the client did not express a want.
    None,
    /// A read delegation.
    Read(ReadDelegation<'a>),
    /// A write delegation.
    Write(WriteDelegation<'a>),
    /// A read delegation whose holder maintains the access time (RFC 9754).
    ReadAttributes(ReadDelegation<'a>),
    /// A write delegation whose holder maintains the times (RFC 9754).
    WriteAttributes(WriteDelegation<'a>),
    /// None because others use the file.
    Contention {
        /// True if the server will push a delegation later.
        will_push: bool,
    },
    /// None, because the server lacks resources.
    Resource {
        /// True if the server will signal when it has resources again.
        will_signal: bool,
    },
    /// None, for a reason other than the two above.
    Why(WhyNone),
}

impl<'a> Decode<'a> for OpenDelegation<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match DelegationType::decode(d)? {
            DelegationType::None => Self::None,
            DelegationType::Read => Self::Read(ReadDelegation::decode(d)?),
            DelegationType::Write => Self::Write(WriteDelegation::decode(d)?),
            DelegationType::ReadAttributes => Self::ReadAttributes(ReadDelegation::decode(d)?),
            DelegationType::WriteAttributes => Self::WriteAttributes(WriteDelegation::decode(d)?),
            DelegationType::NoneExt => match WhyNone::decode(d)? {
                WhyNone::Contention => Self::Contention { will_push: d.bool()? },
                WhyNone::Resource => Self::Resource { will_signal: d.bool()? },
                why => Self::Why(why),
            },
            DelegationType::Other(kind) => return Err(no_such("open_delegation_type4", kind)),
        })
    }
}

impl Encode for OpenDelegation<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::None => DelegationType::None.encode(e),
            Self::Read(given) => {
                DelegationType::Read.encode(e);
                given.encode(e);
            }
            Self::Write(given) => {
                DelegationType::Write.encode(e);
                given.encode(e);
            }
            Self::ReadAttributes(given) => {
                DelegationType::ReadAttributes.encode(e);
                given.encode(e);
            }
            Self::WriteAttributes(given) => {
                DelegationType::WriteAttributes.encode(e);
                given.encode(e);
            }
            Self::Contention { will_push } => {
                DelegationType::NoneExt.encode(e);
                WhyNone::Contention.encode(e);
                e.bool(*will_push);
            }
            Self::Resource { will_signal } => {
                DelegationType::NoneExt.encode(e);
                WhyNone::Resource.encode(e);
                e.bool(*will_signal);
            }
            Self::Why(why) => {
                DelegationType::NoneExt.encode(e);
                why.encode(e);
            }
        }
    }
}

xdr_flags! {
    /// Flags of an OPEN result (`rflags`, RFC 8881 18.16, RFC 9754).
    pub struct OpenFlags {
        /// The client must confirm the open (4.0 only).
        const CONFIRM = 0x02;
        /// Byte-range locks split and merge as in POSIX.
        const LOCKTYPE_POSIX = 0x04;
        /// A removed file stays while it is open.
        const PRESERVE_UNLINKED = 0x08;
        /// There is a delegation and no open state-id (RFC 9754).
        const NO_OPEN_STATEID = 0x10;
        /// The server may send CB_NOTIFY_LOCK.
        const MAY_NOTIFY_LOCK = 0x20;
    }
}

xdr_struct! {
    /// Results of OPEN (RFC 8881 18.16).
    #[derive(Copy)]
    pub struct OpenResult<'a> {
        /// The open.
        pub stateid: Stateid,
        /// The change of the directory.
        pub change: ChangeInfo,
        /// Flags of the result.
        pub flags: OpenFlags,
        /// The attributes that were set when the file was created.
        pub attributes_set: Bitmap,
        /// The delegation.
        pub delegation: OpenDelegation<'a>,
    }

    /// Arguments of OPEN_DOWNGRADE (RFC 8881 18.18).
    #[derive(Copy)]
    pub struct OpenDowngradeArgs {
        /// The open.
        pub stateid: Stateid,
        /// Not used in 4.1.
        pub seqid: u32,
        /// The remaining access.
        pub share_access: ShareAccess,
        /// The remaining denied access.
        pub share_deny: u32,
    }
}
