//! Attributes of objects and of file systems, in owned form.

pub use dafs_parallel::{Owner, SpecialFile};
pub use dafs_wire::dafs::{AccessMask, FileHandle, ObjectType, SetTime, Stability, Time};

/// Attributes of an object. An attribute that the server does not keep is zero or `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Kind of object.
    pub kind: ObjectType,
    /// Permission bits with setuid, setgid and sticky: 0o7777.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub owner: Owner,
    /// Group.
    pub group: Owner,
    /// Length of the content, in bytes.
    pub size: u64,
    /// Bytes allocated on the server.
    pub space_used: u64,
    /// Inode number.
    pub file_id: u64,
    /// Differs after every change of content or attributes.
    pub change: u64,
    /// Major and minor number of a device.
    pub raw_device: (u64, u64),
    /// Last access.
    pub accessed: Option<Time>,
    /// Last change of the content.
    pub modified: Option<Time>,
    /// Last change of the attributes.
    pub changed: Option<Time>,
    /// Birth.
    pub created: Option<Time>,
    /// True when it has named attributes.
    pub has_named_attributes: bool,
    /// Its handle, good for every later operation.
    pub handle: FileHandle,
}

impl Attributes {
    /// True for a directory, of files or of named attributes.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, ObjectType::Directory | ObjectType::AttrDirectory)
    }

    /// True for a regular file or a named attribute.
    pub fn is_file(&self) -> bool {
        matches!(self.kind, ObjectType::Regular | ObjectType::NamedAttr)
    }

    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == ObjectType::Symlink
    }
}

/// Attributes to change.
pub type SetAttributes = dafs_parallel::SetAttributes<SetTime>;

/// Space and limits of a file system. `None` where the server does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStatus {
    /// Bytes in all.
    pub space_total: Option<u64>,
    /// Bytes free.
    pub space_free: Option<u64>,
    /// Bytes free for this caller.
    pub space_available: Option<u64>,
    /// Files in all.
    pub files_total: Option<u64>,
    /// Files that can still be made.
    pub files_free: Option<u64>,
    /// Files that this caller can still make.
    pub files_available: Option<u64>,
    /// Longest name, in bytes.
    pub name_bytes_max: Option<u32>,
    /// Most links of a file.
    pub links_max: Option<u32>,
    /// Longest file, in bytes.
    pub file_bytes_max: Option<u64>,
    /// Longest read, in bytes.
    pub read_bytes_max: Option<u64>,
    /// Longest write, in bytes.
    pub write_bytes_max: Option<u64>,
    /// Longest append, in bytes.
    pub append_bytes_max: Option<u64>,
    /// The preferred size of reads and writes, in bytes.
    pub io_bytes_preferred: Option<u64>,
    /// The lease period in seconds.
    pub lease_seconds: Option<u32>,
    /// Bytes that count for the caller's quota.
    pub quota_used: Option<u64>,
    /// Bytes that the caller's quota leaves. `None` without a limit.
    pub quota_left: Option<u64>,
}
