//! Ids, attributes and arguments.

use crate::{LayoutForm, OpenFile, Result, StoreError};
use bitflags::bitflags;
use std::fmt;
use std::sync::Arc;

/// Length of a [`FileId`] in bytes (the file part of a DAFS file handle).
pub const FILE_ID_BYTES: usize = 48;

/// The longest name of one component, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// A persistent name of an object in one store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub [u8; FILE_ID_BYTES]);

impl FileId {
    /// The first byte of ids that protocols can shorten: the zeros before the last
    /// [`FileId::MAC_BYTES`] need not be sent. No id of another form begins with this byte.
    pub const SHORT: u8 = 2;

    /// Bytes of the MAC at the end of an id.
    pub const MAC_BYTES: usize = 8;
}

/// A persistent name of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FsId(pub [u8; 16]);

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The identity of the caller of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cred {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

impl Cred {
    /// Makes a caller without supplementary groups.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Arc::new([]) }
    }

    /// True if the caller belongs to a group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns the rights to read (4), to write (2) and to execute or search (1) that a mode gives
    /// the caller.
    pub fn rights(&self, kind: Kind, mode: u32, uid: u32, gid: u32) -> u32 {
        let is_directory = matches!(kind, Kind::Directory | Kind::AttrDirectory);
        match () {
            // If no class may execute a file, root may not either.
            () if self.uid == 0 => 6 | u32::from(is_directory || mode & 0o111 != 0),
            () if self.uid == uid => mode >> 6 & 7,
            () if self.is_in(gid) => mode >> 3 & 7,
            () => mode & 7,
        }
    }
}

/// The kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Kind {
    Regular,
    Directory,
    BlockDevice,
    CharDevice,
    Symlink,
    Socket,
    Fifo,
    AttrDirectory,
    NamedAttr,
}

/// Seconds and nanoseconds since 1970 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeSpec {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanoseconds: u32,
}

/// Attributes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The kind of the object.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: 0o7777.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes allocated.
    pub space_used: u64,
    /// Inode number.
    pub file_id: u64,
    /// Device numbers (major, minor) of a device file.
    pub raw_device: (u32, u32),
    /// Last access.
    pub atime: TimeSpec,
    /// Last change of the content.
    pub mtime: TimeSpec,
    /// Last change of the attributes.
    pub ctime: TimeSpec,
    /// Birth, where the file system keeps it.
    pub btime: Option<TimeSpec>,
    /// A value that differs after every change of content or attributes.
    pub change: u64,
}

/// A new value for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// To the server's clock.
    Now,
    /// To the caller's value.
    To(TimeSpec),
}

/// Attributes to change; `None` means unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "as in Attr")]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}

bitflags! {
    /// Rights that can be asked about (the values of DAFS and NFS ACCESS).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AccessMask: u32 {
        /// Read data or list a directory.
        const READ = 0x01;
        /// Look up a name in a directory.
        const LOOKUP = 0x02;
        /// Rewrite data, or change entries of a directory.
        const MODIFY = 0x04;
        /// Write new data, or add entries.
        const EXTEND = 0x08;
        /// Delete an entry of a directory.
        const DELETE = 0x10;
        /// Execute a file.
        const EXECUTE = 0x20;
    }
}

/// The access that a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub struct OpenMode {
    pub read: bool,
    pub write: bool,
}

/// How to treat an existing file in `create`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// Open it.
    Unchecked,
    /// Fail with `Exists`.
    Guarded,
    /// Fail with `Exists` unless it was made by a create with the same verifier, which is kept
    /// in stable storage.
    Exclusive([u8; 8]),
}

/// An object other than a regular file, to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum NewObject<'a> {
    Directory,
    Symlink(&'a [u8]),
    BlockDevice { major: u32, minor: u32 },
    CharDevice { major: u32, minor: u32 },
    Socket,
    Fifo,
}

impl NewObject<'_> {
    /// Returns the kind of the object.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Directory => Kind::Directory,
            Self::Symlink(_) => Kind::Symlink,
            Self::BlockDevice { .. } => Kind::BlockDevice,
            Self::CharDevice { .. } => Kind::CharDevice,
            Self::Socket => Kind::Socket,
            Self::Fifo => Kind::Fifo,
        }
    }
}

/// The change attribute of an object, most often a directory, before and after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirChange {
    /// The value before.
    pub before: u64,
    /// The value after.
    pub after: u64,
    /// True if no other operation can have changed the object in between.
    pub atomic: bool,
    /// The attributes afterwards, if the store has them at no cost.
    pub attr: Option<Attr>,
}

/// The kind of object that a removal accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveKind {
    /// Anything.
    Any,
    /// A directory.
    Directory,
    /// Anything but a directory.
    NoDirectory,
}

impl RemoveKind {
    /// Checks the kind of an object that is to be removed.
    ///
    /// # Errors
    /// [`StoreError::IsDirectory`] and [`StoreError::NotDirectory`] for one of the other kind.
    pub fn check(self, kind: Kind) -> Result<()> {
        let directory = matches!(kind, Kind::Directory | Kind::AttrDirectory);
        match self {
            Self::Directory if !directory => Err(StoreError::NotDirectory),
            Self::NoDirectory if directory => Err(StoreError::IsDirectory),
            _ => Ok(()),
        }
    }
}

/// The result of `make`.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub struct Made {
    pub id: FileId,
    pub attr: Attr,
    pub dir: DirChange,
}

/// The result of `create`.
#[derive(Clone)]
pub struct Created {
    /// The file.
    pub id: FileId,
    /// Its attributes.
    pub attr: Attr,
    /// The change of the directory.
    pub dir: DirChange,
    /// The open file.
    pub file: Arc<dyn OpenFile>,
    /// True if the call made the file, false if it existed.
    pub created: bool,
}

/// One entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// One component, any bytes but '/' and 0.
    pub name: &'a [u8],
    /// The cookie for continuing after this entry.
    pub cookie: u64,
    /// Inode number.
    pub file_id: u64,
    /// Id and attributes, when asked for and available.
    pub object: Option<(FileId, Attr)>,
}

/// Permission to block on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Do not block: fail with `WouldBlock` instead.
    Never,
    /// May block.
    Allowed,
}

/// The data that must be on stable storage before a write returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// None; a later commit makes it stable.
    Unstable,
    /// The data and what is needed to find it.
    Data,
    /// Data and all attributes.
    File,
}

/// Advice about the future use of a file or a range of it (DAFS 13.4, RFC 7862 15.5). It never changes
/// content, and a store may ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheAdvice {
    /// The open is used in no particular pattern.
    Normal,
    /// The open is used at random places.
    Random,
    /// The open is used from front to back.
    Sequential,
    /// The range will be needed soon: the store reads a bounded part of it ahead.
    WillNeed,
    /// The range is likely to be used again: it takes back [`LeaveFirst`](Self::LeaveFirst).
    Keep,
    /// The range is not likely to be used again: it leaves memory before data without such advice.
    LeaveFirst,
    /// The range will not be used again: it leaves memory at once, or when it is stable.
    DontNeed,
}

impl CacheAdvice {
    /// True for advice about an open as a whole, false for advice about a range.
    pub fn is_pattern(self) -> bool {
        matches!(self, Self::Normal | Self::Random | Self::Sequential)
    }
}

/// The effect of advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advised {
    /// The store acts on it.
    Followed,
    /// The store has no use for it.
    Ignored,
}

/// The target of [`OpenFile::seek`] (RFC 7862 11.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhat {
    /// The next byte that was written or allocated.
    Data,
    /// The next byte that was never written or allocated; the end of the file counts as one.
    Hole,
}

/// The condition of setting an extended attribute (RFC 8276 8.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// Makes or replaces.
    Either,
    /// Fails with `Exists` if the attribute exists.
    Create,
    /// Fails with `NoXattr` if it does not exist.
    Replace,
}

/// The optional features of a store. A feature may still fail for single objects, such as extended
/// attributes of symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Extended attributes, by [`Store::xattr`](crate::Store::xattr) and the calls beside it.
    pub xattrs: bool,
    /// The kind of access control lists that it keeps.
    pub acls: AclSupport,
    /// Files can share their content until one of them is changed.
    pub clone: bool,
    /// The alignment of offsets and lengths of a clone, in bytes; 0 without clones.
    pub clone_block_bytes: u32,
    /// Space can be allocated for a range of a file.
    pub allocate: bool,
    /// Space can be deallocated in the middle of a file.
    pub deallocate: bool,
    /// Holes are distinguished from zeros.
    pub holes: bool,
    /// Quotas of callers can be read, by [`Store::quota`](crate::Store::quota).
    pub quotas: bool,
    /// Local changes below the server are reported for watched objects.
    pub local_changes: LocalChanges,
    /// The form of its layouts, if it spreads files over data servers that clients may reach.
    pub layouts: Option<LayoutForm>,
    /// The usual bytes of a stripe in [`LayoutForm::Stripes`]; else 0.
    pub layout_unit_bytes: u32,
    /// The calls that may wait for other machines. A thread that serves many clients must not make
    /// them.
    pub waits: Waits,
}

/// The calls of a store that may wait for other machines. Calls that transfer or commit data have
/// an argument for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waits {
    /// No call.
    #[default]
    Never,
    /// Calls that change a size or remove a file, and that ask for space. Content is on other
    /// machines, names and attributes are local.
    Data,
    /// All calls.
    Always,
}

/// The kind of access control lists that a store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclSupport {
    /// Lists that are equivalent to a mode.
    #[default]
    Mode,
    /// Lists that a POSIX ACL can express: named users and groups, and defaults of directories.
    Posix,
}

/// The events to be reported of a watched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Changes of its content, its attributes and its names.
    Changes,
    /// Opens, too, also those for reading.
    Uses,
}

/// The store's ability to notice changes that do not come through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalChanges {
    /// Only this store can change objects.
    #[default]
    Impossible,
    /// It cannot notice such changes.
    Unseen,
    /// It reports such changes of watched objects.
    Reported,
}

/// A quota of space in a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Bytes in use.
    pub used: u64,
    /// Bytes from which on the user should be warned. `None` without such a limit.
    pub soft: Option<u64>,
    /// Bytes that cannot be exceeded. `None` without such a limit.
    pub hard: Option<u64>,
}

impl Quota {
    /// Returns the bytes that are left up to the hard limit. `None` without a limit.
    pub fn left(&self) -> Option<u64> {
        self.hard.map(|hard| hard.saturating_sub(self.used))
    }
}

/// Space and limits of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStat {
    /// Bytes in all.
    pub space_total: u64,
    /// Bytes free.
    pub space_free: u64,
    /// Bytes free for this caller.
    pub space_available: u64,
    /// Files in all.
    pub files_total: u64,
    /// Files that can still be made.
    pub files_free: u64,
    /// Files that this caller can still make.
    pub files_available: u64,
    /// The longest name, in bytes.
    pub name_bytes_max: u32,
    /// The most links of a file.
    pub links_max: u32,
    /// The longest file, in bytes.
    pub file_bytes_max: u64,
    /// True if the file system is mounted or exported read-only.
    pub read_only: bool,
}
