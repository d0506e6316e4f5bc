//! OPEN and CLOSE (DAFS 6, 10).
//!
//! Invariants
//! * A union is as large as its largest arm; unused bytes are zero (DAFS 5.1, O7).

use super::attributes::Attributes;
use super::codec::{Field, Scope, Writer, layout, word_enum};
use super::error::{DecodeError, EncodeError};
use super::ids::{
    Ace, ChangeInfo, FileHandle, OpenResultFlags, ShareAccess, ShareDeny, StateId, Verifier,
};
use super::seq::Path;

/// The claim of an open (DAFS 10.1, O41).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenClaim<'a> {
    /// A new open by name.
    Null {
        /// The directory in which the path starts.
        dir: FileHandle,
        /// The path without empty components; an empty path means `dir` itself.
        path: Path<'a>,
    },
    /// An open held before a server restart.
    Previous {
        /// The file.
        fh: FileHandle,
        /// The delegation held with it.
        delegate_type: DelegationType,
    },
    /// An open made locally under a delegation that the client still holds.
    DelegateCur {
        /// The directory in which the path starts.
        dir: FileHandle,
        /// The path.
        path: Path<'a>,
        /// The delegation.
        state_id: StateId,
    },
    /// An open made under a delegation of an earlier incarnation of the client.
    DelegatePrev {
        /// The directory in which the path starts.
        dir: FileHandle,
        /// The path.
        path: Path<'a>,
    },
    /// A new file without a name (DAFS 10.3).
    CreateUnlinked {
        /// A directory of the file system in which the file is created.
        dir: FileHandle,
    },
}

impl OpenClaim<'_> {
    /// The handle inside the claim, which the chain flag FH replaces (DAFS O30).
    pub fn handle(&self) -> FileHandle {
        match *self {
            Self::Previous { fh, .. } => fh,
            Self::Null { dir, .. }
            | Self::DelegateCur { dir, .. }
            | Self::DelegatePrev { dir, .. }
            | Self::CreateUnlinked { dir } => dir,
        }
    }
}

/// Type word, then the union 8 bytes later: handle 0, path 64, state-id 72 (DAFS 5.4).
impl<'a> Field<'a> for OpenClaim<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        let dir = FileHandle::read(scope, at + 8)?;
        let path = || Path::read(scope, at + 72);
        Ok(match scope.u32(at)? {
            0 => Self::Null { dir, path: path()? },
            1 => Self::Previous { fh: dir, delegate_type: Field::read(scope, at + 72)? },
            2 => Self::DelegateCur { dir, path: path()?, state_id: Field::read(scope, at + 80)? },
            3 => Self::DelegatePrev { dir, path: path()? },
            4 => Self::CreateUnlinked { dir },
            value => {
                return Err(DecodeError::BadValue { field: "OpenClaim", value: value.into() });
            }
        })
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        self.handle().write(writer, at + 8)?;
        match self {
            Self::Null { path, .. } => path.write(writer, at + 72),
            Self::Previous { delegate_type, .. } => {
                writer.put_u32(at, 1)?;
                delegate_type.write(writer, at + 72)
            }
            Self::DelegateCur { path, state_id, .. } => {
                writer.put_u32(at, 2)?;
                path.write(writer, at + 72)?;
                state_id.write(writer, at + 80)
            }
            Self::DelegatePrev { path, .. } => {
                writer.put_u32(at, 3)?;
                path.write(writer, at + 72)
            }
            Self::CreateUnlinked { .. } => writer.put_u32(at, 4),
        }
    }
}

/// The treatment of an existing file by an open (DAFS 10.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode<'a> {
    /// Open it.
    Unchecked {
        /// First attributes of a new file.
        attributes: Attributes<'a>,
    },
    /// Fail with EXIST.
    Guarded {
        /// First attributes of a new file.
        attributes: Attributes<'a>,
    },
    /// Fail with EXIST unless the same verifier made it.
    Exclusive {
        /// Kept in stable storage with the file.
        verifier: Verifier,
    },
}

/// open_type and, 8 bytes later, the create union; `None` is NOCREATE.
impl<'a> Field<'a> for Option<CreateMode<'a>> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.u32(at)? {
            0 => return Ok(None),
            1 => {}
            value => return Err(DecodeError::BadValue { field: "open_type", value: value.into() }),
        }
        Ok(Some(match scope.u32(at + 8)? {
            0 => CreateMode::Unchecked { attributes: Field::read(scope, at + 16)? },
            1 => CreateMode::Guarded { attributes: Field::read(scope, at + 16)? },
            2 => CreateMode::Exclusive { verifier: Field::read(scope, at + 16)? },
            value => {
                return Err(DecodeError::BadValue { field: "createmode", value: value.into() });
            }
        }))
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        let Some(mode) = self else { return Ok(()) };
        writer.put_u32(at, 1)?;
        match mode {
            CreateMode::Unchecked { attributes } => attributes.write(writer, at + 16),
            CreateMode::Guarded { attributes } => {
                writer.put_u32(at + 8, 1)?;
                attributes.write(writer, at + 16)
            }
            CreateMode::Exclusive { verifier } => {
                writer.put_u32(at + 8, 2)?;
                verifier.write(writer, at + 16)
            }
        }
    }
}

word_enum! {
    /// Permission to remove the file while this open exists (DAFS 10.1).
    pub enum DeleteDisposition {
        /// It allows removal.
        DontCare = 0,
        /// It denies removal.
        Deny = 1,
    }
}

/// The share key of an open (DAFS 10.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ShareKey {
    /// SHARE_KEY_NONE: the open has no key.
    #[default]
    None,
    /// SHARE_KEY_BOTH: the open conflicts with opens under another key.
    Both(u64),
    /// X_SHARE_KEY_STRICT, an extension: the open also conflicts with opens without a key, with
    /// earlier and with later ones.
    XStrict(u64),
}

/// share_key_type and, 8 bytes later, share_key.
impl<'a> Field<'a> for ShareKey {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.u32(at)? {
            0 => Ok(Self::None),
            3 => Ok(Self::Both(scope.u64(at + 8)?)),
            7 => Ok(Self::XStrict(scope.u64(at + 8)?)),
            value => Err(DecodeError::BadValue { field: "share_key_type", value: value.into() }),
        }
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        let (kind, key) = match *self {
            Self::None => return Ok(()),
            Self::Both(key) => (3, key),
            Self::XStrict(key) => (7, key),
        };
        writer.put_u32(at, kind)?;
        writer.put_u64(at + 8, key)
    }
}

layout! {
    /// Arguments of OPEN.
    pub struct Open<'a> [144] {
        /// The claim.
        claim: OpenClaim<'a> = 0,
        /// open_type and createmode; `None` is NOCREATE.
        create: Option<CreateMode<'a>> = 88,
        /// Denies or allows removal of the file.
        delete_disposition: DeleteDisposition = 112,
        /// The lock owner.
        owner: &'a [u8] = 116,
        /// The access of the open.
        share_access: ShareAccess = 120,
        /// The access that it denies to others.
        share_deny: ShareDeny = 124,
        /// The share key.
        share_key: ShareKey = 128,
    }
}

word_enum! {
    /// The kind of a delegation (DAFS 10.1).
    pub enum DelegationType {
        /// There is none.
        None = 0,
        /// Opens for reading are local.
        Read = 1,
        /// All opens are local.
        Write = 2,
    }
}

/// The space that a client may write under a delegation without a request (DAFS 5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceLimit {
    /// The file may grow to this many bytes.
    Size(u64),
    /// This number of blocks may be written.
    Blocks {
        /// Number of blocks.
        blocks: u32,
        /// Length of a block in bytes.
        block_bytes: u32,
    },
}

/// limit_by and, 4 bytes later, the union.
impl<'a> Field<'a> for SpaceLimit {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.u32(at)? {
            1 => Ok(Self::Size(scope.u64(at + 4)?)),
            2 => Ok(Self::Blocks { blocks: scope.u32(at + 4)?, block_bytes: scope.u32(at + 8)? }),
            value => Err(DecodeError::BadValue { field: "limit_by", value: value.into() }),
        }
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        match *self {
            Self::Size(bytes) => {
                writer.put_u32(at, 1)?;
                writer.put_u64(at + 4, bytes)
            }
            Self::Blocks { blocks, block_bytes } => {
                writer.put_u32(at, 2)?;
                writer.put_u32(at + 4, blocks)?;
                writer.put_u32(at + 8, block_bytes)
            }
        }
    }
}

/// The delegation granted with an open (DAFS 5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegation<'a> {
    /// None.
    None,
    /// For reading.
    Read {
        /// Identifies the delegation.
        state_id: StateId,
        /// True when it is being recalled already.
        recall: bool,
        /// The users for whom the client may open locally.
        permissions: Ace<'a>,
    },
    /// For writing.
    Write {
        /// Identifies the delegation.
        state_id: StateId,
        /// True when it is being recalled already.
        recall: bool,
        /// The space that the client may write without a request.
        space_limit: SpaceLimit,
        /// The users for whom the client may open locally.
        permissions: Ace<'a>,
    },
}

/// delegation_type and, 8 bytes later, the union.
impl<'a> Field<'a> for Delegation<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        let kind = DelegationType::read(scope, at)?;
        if kind == DelegationType::None {
            return Ok(Self::None);
        }
        let state_id = Field::read(scope, at + 8)?;
        let recall = super::codec::WordBool::read(scope, at + 16)?.into();
        Ok(if kind == DelegationType::Read {
            Self::Read { state_id, recall, permissions: Field::read(scope, at + 20)? }
        } else {
            Self::Write {
                state_id,
                recall,
                space_limit: Field::read(scope, at + 20)?,
                permissions: Field::read(scope, at + 32)?,
            }
        })
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        let (kind, state_id, recall) = match *self {
            Self::None => return Ok(()),
            Self::Read { state_id, recall, .. } => (DelegationType::Read, state_id, recall),
            Self::Write { state_id, recall, .. } => (DelegationType::Write, state_id, recall),
        };
        kind.write(writer, at)?;
        state_id.write(writer, at + 8)?;
        super::codec::WordBool::from(recall).write(writer, at + 16)?;
        match self {
            Self::None => Ok(()),
            Self::Read { permissions, .. } => permissions.write(writer, at + 20),
            Self::Write { space_limit, permissions, .. } => {
                space_limit.write(writer, at + 20)?;
                permissions.write(writer, at + 32)
            }
        }
    }
}

layout! {
    /// Result of OPEN.
    pub struct OpenReply<'a> [152] {
        /// The file.
        fh: FileHandle = 0,
        /// Identifies the open.
        state_id: StateId = 64,
        /// The change of the directory.
        change: ChangeInfo = 72,
        /// Components that were resolved.
        component_count: u32 = 96,
        /// Properties of the open file.
        result_flags: OpenResultFlags = 100,
        /// The delegation.
        delegation: Delegation<'a> = 104,
    }

    /// Arguments of CLOSE.
    pub struct Close [72] {
        /// The file.
        fh: FileHandle = 0,
        /// The open.
        state_id: StateId = 64,
    }
}
