//! Access control lists as in NFSv4 (RFC 8881 6.2.1), in types of our own.

mod list;
mod posix;

pub use list::{PosixAcl, PosixEntry, PosixTag};
pub use posix::PosixAcls;

use crate::Result;
use bitflags::bitflags;

/// An access control list: entries in the order of their evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Acl {
    /// At most [`ACL_ENTRIES_MAX`](crate::ACL_ENTRIES_MAX) entries are accepted.
    pub entries: Vec<Ace>,
}

impl Acl {
    /// Makes the list that is equivalent to the permission bits of a mode.
    pub fn from_mode(mode: u32, directory: bool) -> Self {
        PosixAcls::from_mode(mode).to_acl(directory)
    }

    /// Returns the list that [`Store::acl`](crate::Store::acl) returns once this one was set,
    /// without the parts that no store keeps.
    ///
    /// # Errors
    /// Those of [`Store::set_acl`](crate::Store::set_acl) for a list that no store accepts.
    pub fn as_kept(&self, directory: bool) -> Result<Self> {
        Ok(PosixAcls::from_acl(self, directory)?.to_acl(directory))
    }
}

/// One entry of an [`Acl`]. Stores do not keep audit and alarm entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ace {
    /// Grants or denies the rights.
    pub kind: AceKind,
    /// Its inheritance.
    pub flags: AceFlags,
    /// The rights that it grants or denies.
    pub mask: AceMask,
    /// The callers that it applies to.
    pub who: AceWho,
}

/// The type of an entry. The values are those of RFC 8881 6.2.1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum AceKind {
    Allow,
    Deny,
}

/// The callers that an entry applies to (RFC 8881 6.2.1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AceWho {
    /// OWNER@: the owner of the object.
    Owner,
    /// GROUP@: members of the object's group.
    Group,
    /// EVERYONE@, which includes the owner and the group.
    Everyone,
    /// The user with this id.
    User(u32),
    /// Members of the group with this id.
    NamedGroup(u32),
}

bitflags! {
    /// Inheritance of an entry, with the values of RFC 8881 6.2.1.4.1. ACE4_IDENTIFIER_GROUP is not
    /// among them, because [`AceWho`] distinguishes users from groups.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AceFlags: u32 {
        /// New files in the directory get it.
        const FILE_INHERIT = 0x01;
        /// New directories in the directory get it.
        const DIRECTORY_INHERIT = 0x02;
        /// Directories that inherit it do not pass it on. No store here keeps this.
        const NO_PROPAGATE_INHERIT = 0x04;
        /// The entry does not apply to the directory itself.
        const INHERIT_ONLY = 0x08;
        /// The entry was inherited. No store here keeps this.
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
        /// Use the object synchronously; no effect here.
        const SYNCHRONIZE = 0x0010_0000;
    }
}
