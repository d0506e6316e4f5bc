//! Ids, attributes and arguments.

use crate::{LayoutForm, OpenFile};
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

/// On whose behalf an operation runs.
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
    /// A caller with no supplementary groups.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Arc::new([]) }
    }
}

/// What an object is.
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
    /// What it is.
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
    /// The server's clock.
    Now,
    /// The caller's value.
    To(TimeSpec),
}

/// Attributes to change; `None` leaves alone.
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

/// For what a file is opened.
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

/// The change attribute of an object, most often a directory, before and after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirChange {
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
    /// True when nothing else can have changed the object in between.
    pub atomic: bool,
    /// Its attributes afterwards, where the store has seen them anyway.
    pub attr: Option<Attr>,
}

/// What `make` made.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub struct Made {
    pub id: FileId,
    pub attr: Attr,
    pub dir: DirChange,
}

/// What `create` opened.
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
    /// False when it existed.
    pub created: bool,
}

/// One entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// One component, any bytes but '/' and 0.
    pub name: &'a [u8],
    /// Where to go on after this entry.
    pub cookie: u64,
    /// Inode number.
    pub file_id: u64,
    /// Id and attributes, when asked for and available.
    pub object: Option<(FileId, Attr)>,
}

/// Whether a call may wait for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Fail with `WouldBlock` instead.
    Never,
    /// Yes.
    Allowed,
}

/// What must be on stable storage before a write returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// Nothing; a later commit will do it.
    Unstable,
    /// The data and what is needed to find it.
    Data,
    /// Data and all attributes.
    File,
}

/// Advice about a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheAdvice {
    /// No particular pattern.
    Normal,
    /// Random access.
    Random,
    /// Front to back.
    Sequential,
    /// Will be needed soon: read it ahead.
    WillNeed,
    /// Not needed again: may be dropped.
    DontNeed,
}

/// What [`OpenFile::seek`] looks for (RFC 7862 11.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhat {
    /// The next byte that was written or allocated.
    Data,
    /// The next byte that never was; the end of the file counts as one.
    Hole,
}

/// Whether an extended attribute may, must not or must be there before it is set (RFC 8276 8.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// Makes or replaces.
    Either,
    /// Fails with `Exists` when it is there.
    Create,
    /// Fails with `NoXattr` when it is not.
    Replace,
}

/// What a store can do besides the ordinary. What it names here may still be refused for single
/// objects, such as extended attributes of symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Extended attributes, as [`Store::xattr`](crate::Store::xattr) and its kind give them.
    pub xattrs: bool,
    /// Which access control lists it keeps.
    pub acls: AclSupport,
    /// Files can share their content until one of them is changed.
    pub clone: bool,
    /// What offsets and lengths of a clone are multiples of, in bytes; 0 where there is no clone.
    pub clone_block_bytes: u32,
    /// Space can be set aside for a range of a file.
    pub allocate: bool,
    /// Space can be given back from the middle of a file.
    pub deallocate: bool,
    /// Holes are told apart from zeros.
    pub holes: bool,
    /// Changes that others make beneath the server are reported for watched objects.
    pub local_changes: LocalChanges,
    /// In what form it tells where files lie, if they are spread over data servers that clients may
    /// reach.
    pub layouts: Option<LayoutForm>,
    /// Bytes of a stripe, as a rule, in [`LayoutForm::Stripes`]; else 0.
    pub layout_unit_bytes: u32,
    /// Which of its calls may wait for other machines, and are not for a thread that serves many.
    pub waits: Waits,
}

/// Which calls of a store may wait for other machines. Those that transfer or commit data say so
/// themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waits {
    /// None.
    #[default]
    Never,
    /// Those that change where data ends or whether it is there, and that ask for space: content lies
    /// elsewhere, names and attributes here.
    Data,
    /// All.
    Always,
}

/// Which access control lists a store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclSupport {
    /// Those that say no more than a mode does.
    #[default]
    Mode,
    /// Those that a POSIX ACL can hold: named users and groups, and defaults of directories.
    Posix,
}

/// What is to be reported of a watched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Changes of its content, its attributes and its names.
    Changes,
    /// Opens too, be they only for reading.
    Uses,
}

/// How a store notices changes that do not come through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalChanges {
    /// Nobody else can change anything.
    #[default]
    Impossible,
    /// It cannot notice them.
    Unseen,
    /// It reports them for watched objects.
    Reported,
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
    /// Longest name, in bytes.
    pub name_bytes_max: u32,
    /// Most links of a file.
    pub links_max: u32,
    /// Longest file, in bytes.
    pub file_bytes_max: u64,
    /// Whether the file system is mounted or exported read-only.
    pub read_only: bool,
}
