//! Access control lists (RFC 8881 6).

use super::codec::{xdr_flags, xdr_struct};
use super::limits::ACES_MAX;

/// An entry that allows (`ACE4_ACCESS_ALLOWED_ACE_TYPE`).
pub const ACE_ALLOWED: u32 = 0;
/// An entry that denies (`ACE4_ACCESS_DENIED_ACE_TYPE`).
pub const ACE_DENIED: u32 = 1;
/// An entry that logs (`ACE4_SYSTEM_AUDIT_ACE_TYPE`).
pub const ACE_AUDIT: u32 = 2;
/// An entry that raises an alarm (`ACE4_SYSTEM_ALARM_ACE_TYPE`).
pub const ACE_ALARM: u32 = 3;

xdr_flags! {
    /// Inheritance and scope of an entry (RFC 8881 6.2.1.4).
    pub struct AceFlags {
        /// New files inherit it.
        const FILE_INHERIT = 0x01;
        /// New directories inherit it.
        const DIRECTORY_INHERIT = 0x02;
        /// The entry is inherited only once.
        const NO_PROPAGATE_INHERIT = 0x04;
        /// The entry does not apply to the object itself.
        const INHERIT_ONLY = 0x08;
        /// Successes are logged.
        const SUCCESSFUL_ACCESS = 0x10;
        /// Failures are logged.
        const FAILED_ACCESS = 0x20;
        /// The entry names a group.
        const IDENTIFIER_GROUP = 0x40;
        /// The entry was inherited.
        const INHERITED = 0x80;
    }

    /// The rights that an entry allows or denies (RFC 8881 6.2.1.3).
    pub struct AceMask {
        /// Read data, list a directory.
        const READ_DATA = 0x0000_0001;
        /// Write data, add a file.
        const WRITE_DATA = 0x0000_0002;
        /// Append data, add a directory.
        const APPEND_DATA = 0x0000_0004;
        /// Read named attributes.
        const READ_NAMED_ATTRS = 0x0000_0008;
        /// Write named attributes.
        const WRITE_NAMED_ATTRS = 0x0000_0010;
        /// Execute, traverse.
        const EXECUTE = 0x0000_0020;
        /// Remove entries of the directory.
        const DELETE_CHILD = 0x0000_0040;
        /// Read attributes.
        const READ_ATTRIBUTES = 0x0000_0080;
        /// Write attributes.
        const WRITE_ATTRIBUTES = 0x0000_0100;
        /// Change retention.
        const WRITE_RETENTION = 0x0000_0200;
        /// Change retention holds.
        const WRITE_RETENTION_HOLD = 0x0000_0400;
        /// Remove the object.
        const DELETE = 0x0001_0000;
        /// Read the list.
        const READ_ACL = 0x0002_0000;
        /// Write the list.
        const WRITE_ACL = 0x0004_0000;
        /// Change the owner.
        const WRITE_OWNER = 0x0008_0000;
        /// Wait for the object.
        const SYNCHRONIZE = 0x0010_0000;
    }
}

xdr_struct! {
    /// One entry (`nfsace4`).
    #[derive(Copy)]
    pub struct Ace<'a> {
        /// [`ACE_ALLOWED`], [`ACE_DENIED`] or another.
        pub kind: u32,
        /// Inheritance and scope.
        pub flags: AceFlags,
        /// The rights that it allows or denies.
        pub mask: AceMask,
        /// The principal: a name such as `OWNER@` or `user@domain`, or a number.
        pub who: &'a [u8],
    }
}

impl Ace<'_> {
    /// The entry that allows no access. As the permissions of a delegation it means "ask the
    /// server".
    pub const NOBODY: Ace<'static> =
        Ace { kind: ACE_ALLOWED, flags: AceFlags::empty(), mask: AceMask::empty(), who: b"" };
}

xdr_struct! {
    /// A list (`fattr4_acl`).
    #[derive(Default)]
    pub struct Acl<'a> {
        /// The entries, in order.
        pub aces: Vec<Ace<'a>> [max ACES_MAX],
    }
}

xdr_flags! {
    /// Flags of a whole list (`aclflag4`, RFC 8881 6.4.2.3).
    pub struct AclFlags {
        /// Inheritance propagates automatically.
        const AUTO_INHERIT = 0x1;
        /// Inheritance does not change the list.
        const PROTECTED = 0x2;
        /// The list is a default.
        const DEFAULTED = 0x4;
    }
}

xdr_struct! {
    /// A list with flags (`nfsacl41`): the attributes dacl and sacl.
    #[derive(Default)]
    pub struct Acl41<'a> {
        /// Flags of the whole list.
        pub flags: AclFlags,
        /// The entries, in order.
        pub aces: Vec<Ace<'a>> [max ACES_MAX],
    }
}
