//! Names and directories: ACCESS, CREATE, LINK, LOOKUP, LOOKUPP, OPENATTR, READDIR, READLINK,
//! REMOVE, RENAME, GET_ROOT_HANDLE (DAFS 6, 10.4).
//!
//! Invariants
//! * Names are any bytes (a decision of dafs); the server decides whether a name is acceptable.

use super::attributes::{AttrMask, Attributes};
use super::checksum::Checksum;
use super::codec::{Field, Scope, WordBool, Writer, layout, word_enum};
use super::entries::DirEntry;
use super::error::{DecodeError, EncodeError};
use super::ids::{
    AccessMask, ChangeInfo, DirectBuffer, FileHandle, ObjectType, SpecData, Verifier,
};
use super::seq::{Path, Seq};

layout! {
    /// Arguments of ACCESS.
    pub struct Access [72] {
        /// The object.
        fh: FileHandle = 0,
        /// The rights to check.
        mask: AccessMask = 64,
    }

    /// Result of ACCESS.
    pub struct AccessReply [8] {
        /// The rights that the server can check.
        supported: AccessMask = 0,
        /// The checked rights that the caller has.
        access: AccessMask = 4,
    }
}

/// The object that CREATE makes. OPEN makes regular files; a server refuses them here (DAFS 10.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewObject<'a> {
    /// A block device.
    BlockDevice(SpecData),
    /// A character device.
    CharDevice(SpecData),
    /// A symbolic link with this text.
    Symlink(&'a [u8]),
    /// A type without further data. It excludes the three types above.
    Plain(ObjectType),
}

impl NewObject<'_> {
    /// The type of the object.
    pub fn object_type(&self) -> ObjectType {
        match self {
            Self::BlockDevice(_) => ObjectType::BlockDevice,
            Self::CharDevice(_) => ObjectType::CharDevice,
            Self::Symlink(_) => ObjectType::Symlink,
            Self::Plain(object_type) => *object_type,
        }
    }
}

/// Type word, then the union 4 bytes later.
impl<'a> Field<'a> for NewObject<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(match ObjectType::read(scope, at)? {
            ObjectType::BlockDevice => Self::BlockDevice(Field::read(scope, at + 4)?),
            ObjectType::CharDevice => Self::CharDevice(Field::read(scope, at + 4)?),
            ObjectType::Symlink => Self::Symlink(Field::read(scope, at + 4)?),
            plain => Self::Plain(plain),
        })
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        self.object_type().write(writer, at)?;
        match self {
            Self::BlockDevice(device) | Self::CharDevice(device) => device.write(writer, at + 4),
            Self::Symlink(text) => text.write(writer, at + 4),
            Self::Plain(_) => Ok(()),
        }
    }
}

layout! {
    /// Arguments of CREATE.
    pub struct Create<'a> [96] {
        /// The directory.
        dir: FileHandle = 0,
        /// The name of the new object.
        name: &'a [u8] = 64,
        /// The object to create.
        object: NewObject<'a> = 68,
        /// First attributes, for directories.
        attributes: Attributes<'a> = 88,
    }

    /// Result of CREATE.
    pub struct CreateReply [88] {
        /// The new object.
        fh: FileHandle = 0,
        /// The change of the directory.
        change: ChangeInfo = 64,
    }

    /// Result of GET_ROOT_HANDLE, of LOOKUPP and of OPENATTR.
    pub struct HandleReply [64] {
        /// The root of the name space, the parent, or the directory of named attributes.
        fh: FileHandle = 0,
    }

    /// Arguments of LINK.
    pub struct Link<'a> [136] {
        /// The existing object.
        source: FileHandle = 0,
        /// The directory that gets the new name.
        target_dir: FileHandle = 64,
        /// The new name.
        name: &'a [u8] = 128,
    }

    /// Result of LINK and of REMOVE.
    pub struct ChangeReply [24] {
        /// The change of the directory.
        change: ChangeInfo = 0,
    }

    /// Arguments of LOOKUP.
    pub struct Lookup<'a> [72] {
        /// The directory in which the path starts.
        dir: FileHandle = 0,
        /// The path.
        path: Path<'a> = 64,
    }

    /// Result of LOOKUP, also sent with an error (DAFS O13).
    pub struct LookupReply [72] {
        /// The object; with an error the last one that was reached.
        fh: FileHandle = 0,
        /// Components that were resolved.
        component_count: u32 = 64,
    }

    /// Arguments of LOOKUPP.
    pub struct LookupP [64] {
        /// The object whose parent is requested.
        fh: FileHandle = 0,
    }

    /// Arguments of OPENATTR.
    pub struct OpenAttr [64] {
        /// The object whose directory of named attributes is requested.
        fh: FileHandle = 0,
    }

    /// Arguments of READDIR_INLINE.
    pub struct ReadDirInline [96] {
        /// The directory.
        fh: FileHandle = 0,
        /// The cookie of the last entry; 0 starts at the beginning.
        cookie: u64 = 64,
        /// The verifier that came with the cookie; zero with cookie 0.
        cookieverf: Verifier = 72,
        /// Hint: the requested bytes of names and cookies.
        dircount: u32 = 80,
        /// Limit of the encoded result, in bytes.
        maxcount: u32 = 84,
        /// The requested attributes of each entry.
        attributes: AttrMask = 88,
    }

    /// Arguments of READDIR_DIRECT.
    pub struct ReadDirDirect<'a> [104] {
        /// The directory.
        fh: FileHandle = 0,
        /// The cookie of the last entry; 0 starts at the beginning.
        cookie: u64 = 64,
        /// The verifier that came with the cookie; zero with cookie 0.
        cookieverf: Verifier = 72,
        /// Hint: the requested bytes of names and cookies.
        dircount: u32 = 80,
        /// Limit of the encoded result, in bytes.
        maxcount: u32 = 84,
        /// The requested attributes of each entry.
        attributes: AttrMask = 88,
        /// Client memory that the server fills with the counted array of entries (DAFS O12).
        buffers: Seq<'a, DirectBuffer> = 96,
    }

    /// Result of READDIR_INLINE.
    pub struct ReadDirInlineReply<'a> [16] {
        /// The cookie verifier; it shows whether cookies are still valid.
        cookieverf: Verifier = 0,
        /// True when no entry follows the last one.
        eof: bool as WordBool = 8,
        /// The entries.
        entries: Seq<'a, DirEntry<'a>> = 12,
    }

    /// Result of READDIR_DIRECT; the entries are in the buffers.
    pub struct ReadDirDirectReply [16] {
        /// The cookie verifier; it shows whether cookies are still valid.
        cookieverf: Verifier = 0,
        /// True when no entry follows the last one.
        eof: bool as WordBool = 8,
        /// Checksum of the bytes in the buffers, when checksums are on (DAFS O20).
        direct_checksum: Checksum = 12,
    }

    /// Arguments of READLINK_INLINE.
    pub struct ReadLinkInline [64] {
        /// The symbolic link.
        fh: FileHandle = 0,
    }

    /// Arguments of READLINK_DIRECT.
    pub struct ReadLinkDirect [80] {
        /// The symbolic link.
        fh: FileHandle = 0,
        /// Client memory that the server fills with the text as a counted string (DAFS O12).
        buffer: DirectBuffer = 64,
    }

    /// Result of READLINK_INLINE.
    pub struct ReadLinkInlineReply<'a> [8] {
        /// The text of the link.
        text: &'a [u8] = 0,
    }

    /// Result of the direct variants of GETATTR and READLINK.
    pub struct DirectReply [8] {
        /// Checksum of the bytes in the buffer, when checksums are on (DAFS O20).
        direct_checksum: Checksum = 0,
    }
}

word_enum! {
    /// The condition under which REMOVE fails (DAFS 10.4).
    pub enum RemoveMode {
        /// An open forbids removal.
        Unchecked = 0,
        /// The file is open.
        CheckOpen = 1,
    }
}

layout! {
    /// Arguments of REMOVE.
    pub struct Remove<'a> [72] {
        /// The directory.
        dir: FileHandle = 0,
        /// The name to remove.
        name: &'a [u8] = 64,
        /// The condition for failure.
        remove_mode: RemoveMode = 68,
    }

    /// Arguments of RENAME.
    pub struct Rename<'a> [136] {
        /// The directory of the old name.
        source_dir: FileHandle = 0,
        /// The directory of the new name.
        target_dir: FileHandle = 64,
        /// The old name.
        old_name: &'a [u8] = 128,
        /// The new name.
        new_name: &'a [u8] = 132,
    }

    /// Result of RENAME.
    pub struct RenameReply [48] {
        /// The change of the old name's directory.
        source: ChangeInfo = 0,
        /// The change of the new name's directory.
        target: ChangeInfo = 24,
    }
}
