//! Access control lists as NFSv4 has them (RFC 8881 6.2.1), in types of our own.

mod posix;

pub use posix::{PosixAcl, PosixAcls};

use crate::Result;
use bitflags::bitflags;

/// An access control list: entries in the order in which they are looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Acl {
    /// At most [`ACL_ENTRIES_MAX`](crate::ACL_ENTRIES_MAX) of them are taken.
    pub entries: Vec<Ace>,
}

impl Acl {
    /// The list that says what the permission bits of a mode say.
    pub fn from_mode(mode: u32, directory: bool) -> Self {
        PosixAcls::from_mode(mode).to_acl(directory)
    }

    /// What [`Store::acl`](crate::Store::acl) tells once this list was set: what no store keeps is
    /// not in it.
    ///
    /// # Errors
    /// Those of [`Store::set_acl`](crate::Store::set_acl) for a list that no store takes.
    pub fn as_kept(&self, directory: bool) -> Result<Self> {
        Ok(PosixAcls::from_acl(self, directory)?.to_acl(directory))
    }
}

/// One entry of an [`Acl`]. Entries that only audit or alarm are no part of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ace {
    /// Whether it grants or refuses.
    pub kind: AceKind,
    /// For whom it is and is not inherited.
    pub flags: AceFlags,
    /// The rights that it is about.
    pub mask: AceMask,
    /// Whom it is about.
    pub who: AceWho,
}

/// Whether an entry grants or refuses. The values are those of RFC 8881 6.2.1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum AceKind {
    Allow,
    Deny,
}

/// Whom an entry is about (RFC 8881 6.2.1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AceWho {
    /// OWNER@: the owner of the object.
    Owner,
    /// GROUP@: members of the object's group.
    Group,
    /// EVERYONE@, with the owner and the group.
    Everyone,
    /// The user with this id.
    User(u32),
    /// Members of the group with this id.
    NamedGroup(u32),
}

bitflags! {
    /// Inheritance of an entry, with the values of RFC 8881 6.2.1.4.1. That an entry is about a
    /// group is said by its [`AceWho`], so ACE4_IDENTIFIER_GROUP is not among them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AceFlags: u32 {
        /// New files in the directory get it.
        const FILE_INHERIT = 0x01;
        /// New directories in the directory get it.
        const DIRECTORY_INHERIT = 0x02;
        /// Directories that get it do not hand it on. No store here keeps this.
        const NO_PROPAGATE_INHERIT = 0x04;
        /// It is not about the directory itself.
        const INHERIT_ONLY = 0x08;
        /// It was inherited. No store here keeps this.
        const INHERITED = 0x80;
    }
}

bitflags! {
    /// Rights, with the values of RFC 8881 6.2.1.3.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AceMask: u32 {
        /// Read data or list a directory.
        const READ_DATA = 0x0000_0001;
        /// Change data or add a file to a directory.
        const WRITE_DATA = 0x0000_0002;
        /// Append data or add a directory to a directory.
        const APPEND_DATA = 0x0000_0004;
        /// Open the directory of named attributes.
        const READ_NAMED_ATTRS = 0x0000_0008;
        /// Make that directory.
        const WRITE_NAMED_ATTRS = 0x0000_0010;
        /// Execute a file or look up a name in a directory.
        const EXECUTE = 0x0000_0020;
        /// Remove an entry of a directory.
        const DELETE_CHILD = 0x0000_0040;
        /// Read attributes that are not content or ACL.
        const READ_ATTRIBUTES = 0x0000_0080;
        /// Set times to any value.
        const WRITE_ATTRIBUTES = 0x0000_0100;
        /// Set the event-based retention.
        const WRITE_RETENTION = 0x0000_0200;
        /// Set the administrative retention hold.
        const WRITE_RETENTION_HOLD = 0x0000_0400;
        /// Remove the object.
        const DELETE = 0x0001_0000;
        /// Read the ACL.
        const READ_ACL = 0x0002_0000;
        /// Change the ACL or the mode.
        const WRITE_ACL = 0x0004_0000;
        /// Change owner or group.
        const WRITE_OWNER = 0x0008_0000;
        /// Use the object synchronously; means nothing here.
        const SYNCHRONIZE = 0x0010_0000;
    }
}
