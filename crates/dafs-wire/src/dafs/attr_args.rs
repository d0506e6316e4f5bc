//! GETATTR, SETATTR, VERIFY, NVERIFY, GET_FSATTR, BC_GETATTR (DAFS 6, 14), and the extension
//! X_GETXATTR.
//!
//! Invariants
//! * The direct variants carry the bare attribute block in the buffer (DAFS O12).

use super::attributes::{AttrMask, Attributes};
use super::checksum::Checksum;
use super::codec::{layout, word_enum};
use super::fs_attributes::{FsAttrMask, FsAttributes};
use super::ids::{DirectBuffer, FileHandle, StateId};

layout! {
    /// Arguments of GETATTR_INLINE and of BC_GETATTR.
    pub struct GetAttrInline [72] {
        /// The object.
        fh: FileHandle = 0,
        /// The requested attributes.
        attributes: AttrMask = 64,
    }

    /// Result of GETATTR_INLINE and of BC_GETATTR.
    pub struct GetAttrInlineReply<'a> [8] {
        /// The attributes.
        attributes: Attributes<'a> = 0,
    }

    /// Arguments of GETATTR_DIRECT.
    pub struct GetAttrDirect [88] {
        /// The object.
        fh: FileHandle = 0,
        /// Client memory that the server fills with the attribute block.
        attributes: AttrMask = 64,
        /// Client memory that the server fills with the attribute block.
        buffer: DirectBuffer = 72,
    }

    /// Arguments of SETATTR_INLINE.
    pub struct SetAttrInline<'a> [80] {
        /// The object.
        fh: FileHandle = 0,
        /// The open; `ZERO` unless the size changes.
        state_id: StateId = 64,
        /// The new values.
        attributes: Attributes<'a> = 72,
    }

    /// Arguments of SETATTR_DIRECT.
    pub struct SetAttrDirect [96] {
        /// The object.
        fh: FileHandle = 0,
        /// The open; `ZERO` unless the size changes.
        state_id: StateId = 64,
        /// Checksum of the bytes in the buffer, when checksums are on (DAFS O20).
        direct_checksum: Checksum = 72,
        /// Client memory that holds the attribute block.
        buffer: DirectBuffer = 80,
    }

    /// Result of SETATTR_INLINE and of SETATTR_DIRECT, also sent with an error (DAFS O13).
    pub struct SetAttrReply [8] {
        /// The attributes that were set.
        attributes: AttrMask = 0,
    }

    /// Arguments of VERIFY and of NVERIFY.
    pub struct Verify<'a> [72] {
        /// The object.
        fh: FileHandle = 0,
        /// The values to compare with.
        attributes: Attributes<'a> = 64,
    }

    /// Arguments of GET_FSATTR.
    pub struct GetFsAttr [72] {
        /// Any object of the file system.
        fh: FileHandle = 0,
        /// The requested attributes.
        attributes: FsAttrMask = 64,
    }

    /// Result of GET_FSATTR.
    pub struct GetFsAttrReply<'a> [8] {
        /// The attributes.
        attributes: FsAttributes<'a> = 0,
    }
}

word_enum! {
    /// The effect of SETATTR on an extended attribute.
    pub enum XattrHow {
        /// Create or replace it.
        Either = 1,
        /// Create it; EXIST if it exists.
        Create = 2,
        /// Replace it; NOENT if it does not exist.
        Replace = 3,
        /// Remove it; NOENT if it does not exist.
        Remove = 4,
    }
}

layout! {
    /// Arguments of X_GETXATTR.
    pub struct XGetXattr<'a> [88] {
        /// The object.
        fh: FileHandle = 0,
        /// Client memory that the server fills with the value as a counted string (DAFS O12).
        buffer: DirectBuffer = 64,
        /// The name of the extended attribute, without "user.".
        name: &'a [u8] = 80,
    }
}
