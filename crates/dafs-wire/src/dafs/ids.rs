//! Identities and small values that appear in many messages (DAFS 4.1, 5.4).
//!
//! Invariants
//! * Opaque values are never swapped (DAFS 5.1).

use super::codec::{Field, Scope, Writer, layout, mask_field, opaque_bytes, word_enum};
use super::error::{DecodeError, EncodeError};
use super::hint::HintWord;
use super::limits::UNLIMITED;
use bitflags::bitflags;
use std::fmt;

opaque_bytes! {
    /// Identifies a session; later the key to its response cache (DAFS 4.1).
    SessionId [8];
    /// The server's short identifier of a client-id-string and verifier (DAFS 4.1).
    ClientId [8];
    /// Identifies an open file of an owner (DAFS 4.1); `ZERO` means none, or anonymous I/O (DAFS
    /// O37).
    StateId [8];
    /// A tag of the client that the server echoes unchanged (DAFS 4.1).
    Analyzer [8];
    /// Eight bytes that are only compared: the verifier of a client's incarnation, of a write, of
    /// an exclusive create or of a directory (DAFS 4.1, 6).
    Verifier [8];
}

impl StateId {
    /// The value that is never valid (DAFS O37).
    pub const ONES: Self = Self([0xff; 8]);
}

/// A registered credential; 0 means the default of the session (DAFS 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CredHandle(pub u32);

impl CredHandle {
    /// The default credential of the session.
    pub const SESSION: Self = Self(0);
}

/// Handles are opaque32, so they are not swapped, but travel as a word that only the server which
/// made it interprets.
impl<'a> Field<'a> for CredHandle {
    const TRIVIAL: bool = true;

    #[inline(always)]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(Self(u32::from_be_bytes(scope.array(at)?)))
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put(at, self.0.to_be_bytes())
    }
}

/// A file handle (DAFS 5.4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle {
    /// The file system; a different value shows that a path has crossed into another one.
    pub fs: [u8; 16],
    /// The file in the file system; all zero names the file system itself in fencing (DAFS O43).
    pub file: [u8; 48],
}

impl FileHandle {
    /// Length in bytes.
    pub const BYTES: usize = 64;
    /// All bytes zero, for places without a handle.
    pub const ZERO: Self = Self { fs: [0; 16], file: [0; 48] };
}

impl Default for FileHandle {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fs.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(":")?;
        // Trailing zeros carry no information and clutter logs.
        let end = self.file.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.file.iter().take(end).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<'a> Field<'a> for FileHandle {
    const TRIVIAL: bool = true;

    #[inline(always)]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(Self { fs: scope.array(at)?, file: scope.array(at + 16)? })
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put(at, self.fs)?;
        writer.put(at + 16, self.file)
    }
}

layout! {
    /// Memory of the client that the server may read or write (DAFS 5.4, direct_op_buffer).
    pub struct DirectBuffer [16, array 8 max UNLIMITED] {
        /// The start address, in the terms of the transport.
        address: u64 = 0,
        /// Length in bytes.
        byte_count: u32 = 8,
        /// The remote key of its registration.
        context: u32 = 12,
    }

    /// A range of a file in a batch (DAFS 5.4, file_chunk).
    pub struct FileChunk [16, array 8 max UNLIMITED] {
        /// First byte.
        offset: u64 = 0,
        /// Length in bytes.
        byte_count: u32 = 8,
        /// Advice on caching (DAFS 13.4).
        cache_hint: HintWord = 12,
    }

    /// The change of a directory by an operation (DAFS 5.4).
    #[derive(Default)]
    pub struct ChangeInfo [24] {
        /// The change attribute before.
        before: u64 = 0,
        /// The change attribute after.
        after: u64 = 8,
        /// True when no other operation can have changed the directory in between.
        atomic: bool as super::codec::WordBool = 16,
    }

    /// A point in time (DAFS 5.4).
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub struct Time [16] {
        /// Seconds since 1970 UTC; negative before.
        seconds: i64 as SignedLong = 0,
        /// Nanoseconds, below 10^9.
        nseconds: u32 = 8,
    }
}

/// An i64 on the wire.
pub(crate) struct SignedLong(u64);

impl From<i64> for SignedLong {
    fn from(value: i64) -> Self {
        Self(value.cast_unsigned())
    }
}

impl From<SignedLong> for i64 {
    fn from(value: SignedLong) -> Self {
        value.0.cast_signed()
    }
}

impl<'a> Field<'a> for SignedLong {
    const TRIVIAL: bool = true;

    #[inline(always)]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(Self(scope.u64(at)?))
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put_u64(at, self.0)
    }
}

/// A new value for a time (DAFS 5.4, settime).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Server,
    /// The client's value.
    Client(Time),
}

impl SetTime {
    const HOW_SERVER: u32 = 1;
    const HOW_CLIENT: u32 = 2;
}

impl<'a> Field<'a> for SetTime {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.u32(at + 16)? {
            Self::HOW_SERVER => Ok(Self::Server),
            Self::HOW_CLIENT => Ok(Self::Client(Time::read(scope, at)?)),
            value => Err(DecodeError::BadValue { field: "settime", value: value.into() }),
        }
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        match self {
            Self::Server => writer.put_u32(at + 16, Self::HOW_SERVER),
            Self::Client(time) => {
                time.write(writer, at)?;
                writer.put_u32(at + 16, Self::HOW_CLIENT)
            }
        }
    }
}

layout! {
    /// The numbers of a device (DAFS 5.4, specdata).
    #[derive(Default, Hash)]
    pub struct SpecData [16] {
        /// Major number.
        major: u64 = 0,
        /// Minor number.
        minor: u64 = 8,
    }
}

word_enum! {
    /// The type of an object (DAFS 6, O16).
    pub enum ObjectType {
        /// No object.
        Invalid = 0,
        /// A regular file.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        BlockDevice = 3,
        /// A character device.
        CharDevice = 4,
        /// A symbolic link.
        Symlink = 5,
        /// A socket.
        Socket = 6,
        /// A named pipe.
        Fifo = 7,
        /// A directory of named attributes.
        AttrDirectory = 8,
        /// A named attribute.
        NamedAttr = 9,
    }

    /// The data that must be on stable storage before the reply to a write (DAFS 6).
    pub enum Stability {
        /// None; COMMIT makes it stable later.
        Unstable = 0,
        /// The data and the metadata that is needed to find it.
        DataSync = 1,
        /// Data and all attributes.
        FileSync = 2,
    }

    /// The access of an open (DAFS 10.1).
    pub enum ShareAccess {
        /// Reading.
        Read = 1,
        /// Writing.
        Write = 2,
        /// Reading and writing.
        Both = 3,
    }
}

impl ShareAccess {
    /// True when it includes reading.
    pub fn reads(self) -> bool {
        self as u32 & 1 != 0
    }

    /// True when it includes writing.
    pub fn writes(self) -> bool {
        self as u32 & 2 != 0
    }
}

word_enum! {
    /// The access that an open denies to others (DAFS 10.1).
    pub enum ShareDeny {
        /// No access is denied.
        None = 0,
        /// Reading is denied.
        Read = 1,
        /// Writing is denied.
        Write = 2,
        /// Both are denied.
        Both = 3,
    }
}

bitflags! {
    /// The chain dependency of a request on its neighbours (DAFS 8). Unknown bits are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ChainFlags: u16 {
        /// A dependent request follows.
        const FORW = 0x01;
        /// Depends on the previous request.
        const BACK = 0x02;
        /// Cache the reply of this simple request, because a modifying one follows.
        const SAVE = 0x04;
        /// Use the file handle that the previous request used or produced.
        const FH = 0x08;
        /// Use the state-id of the latest request of the chain that used or produced one.
        const STATEID = 0x10;
    }

    /// Special conditions of the server in a reply header (DAFS 5.3). Unknown bits are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SpecCond: u16 {
        /// A lease has moved.
        const LEASE_MOVED = 0x0001;
        /// The file-system attribute failover_locations has changed.
        const FAILOVER_LOCATIONS_CHANGED = 0x0002;
    }

    /// Rights that ACCESS checks (DAFS 6). Unknown bits are kept, so that a server can report them
    /// as not supported.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AccessMask: u32 {
        /// Read data or list a directory.
        const READ = 0x01;
        /// Look up a name.
        const LOOKUP = 0x02;
        /// Rewrite data, or change entries.
        const MODIFY = 0x04;
        /// Write new data, or add entries.
        const EXTEND = 0x08;
        /// Delete an entry.
        const DELETE = 0x10;
        /// Execute a file.
        const EXECUTE = 0x20;
    }

    /// Properties of an open file (DAFS 10.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenResultFlags: u32 {
        /// Locks on it are mandatory.
        const MLOCK = 0x1;
    }

    /// Options of a lock (DAFS 9.2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct LockOptions: u32 {
        /// Reclaim it after a server restart.
        const RECLAIM = 0x1;
        /// Keep it as a broken lock if its owner fails.
        const PERSIST = 0x2;
        /// Roll back changes under it if its owner fails.
        const AUTORECOVERY = 0x4;
        /// Take over a broken lock (DAFS O34).
        const REPAIR = 0x8;
    }
}

mask_field!(OpenResultFlags, u32);
mask_field!(LockOptions, u32);

impl<'a> Field<'a> for AccessMask {
    const TRIVIAL: bool = true;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(Self::from_bits_retain(scope.u32(at)?))
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put_u32(at, self.bits())
    }
}

layout! {
    /// One entry of an access control list (DAFS 5.4, 14); flags and masks as in RFC 3010.
    pub struct Ace<'a> [16, array 4 max super::limits::ACES_MAX] {
        /// The effect of the entry.
        ace_type: AceType = 0,
        /// Inheritance and auditing.
        flag: u32 = 4,
        /// The rights that the entry covers.
        access_mask: u32 = 8,
        /// The user or group that the entry names.
        who: &'a [u8] = 12,
    }
}

word_enum! {
    /// The effect of an access control entry (DAFS 14, O17).
    pub enum AceType {
        /// Allows.
        Allow = 0,
        /// Denies.
        Deny = 1,
        /// Logs.
        Audit = 2,
        /// Raises an alarm.
        Alarm = 4,
    }
}
