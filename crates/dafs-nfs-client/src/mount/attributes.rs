//! Attributes of objects and of file systems, the same for all versions.

use crate::files::Handle;
pub use dafs_parallel::{Owner, SpecialFile};
use dafs_wire::{nfs3, nfs4};
pub use nfs4::{FileType, Fsid, SetTime, StableHow, Time};

/// Attributes of an object. An attribute that the server does not keep is zero or `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Kind of object.
    pub kind: FileType,
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
    /// The file system.
    pub file_system: Fsid,
    /// Number in the file system.
    pub file_id: u64,
    /// Differs after every change; in NFSv3, the time of the last one in nanoseconds.
    pub change: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of the attributes.
    pub changed: Time,
    /// Birth.
    pub created: Option<Time>,
}

impl Attributes {
    /// The attributes that NFSv4 servers are asked for.
    pub(crate) const REQUEST: nfs4::Bitmap = nfs4::Attr::set(&[
        nfs4::Attr::Type,
        nfs4::Attr::Change,
        nfs4::Attr::Size,
        nfs4::Attr::Fsid,
        nfs4::Attr::Fileid,
        nfs4::Attr::Mode,
        nfs4::Attr::Numlinks,
        nfs4::Attr::Owner,
        nfs4::Attr::OwnerGroup,
        nfs4::Attr::Rawdev,
        nfs4::Attr::SpaceUsed,
        nfs4::Attr::TimeAccess,
        nfs4::Attr::TimeCreate,
        nfs4::Attr::TimeMetadata,
        nfs4::Attr::TimeModify,
    ]);

    /// Converts the attributes of an NFSv4 server; `None` if the type is missing.
    pub(crate) fn from_nfs4(read: &nfs4::Attributes<'_>) -> Option<Self> {
        let device = read.rawdev.unwrap_or_default();
        Some(Self {
            kind: read.kind?,
            mode: read.mode.unwrap_or(0) & 0o7777,
            links: read.numlinks.unwrap_or(1),
            owner: owner(read.owner),
            group: owner(read.owner_group),
            size: read.size.unwrap_or(0),
            space_used: read.space_used.unwrap_or(0),
            file_system: read.fsid.unwrap_or_default(),
            file_id: read.fileid.unwrap_or(0),
            change: read.change.unwrap_or(0),
            device: (device.major, device.minor),
            accessed: read.time_access.unwrap_or_default(),
            modified: read.time_modify.unwrap_or_default(),
            changed: read.time_metadata.unwrap_or_default(),
            created: read.time_create,
        })
    }

    pub(crate) fn from_nfs3(read: &nfs3::Attributes) -> Self {
        let time = |time: nfs3::Time| Time {
            seconds: i64::from(time.seconds),
            nanoseconds: time.nanoseconds,
        };
        Self {
            kind: match read.file_type {
                nfs3::FileType::Regular => FileType::Regular,
                nfs3::FileType::Directory => FileType::Directory,
                nfs3::FileType::BlockDevice => FileType::BlockDevice,
                nfs3::FileType::CharDevice => FileType::CharacterDevice,
                nfs3::FileType::Symlink => FileType::Symlink,
                nfs3::FileType::Socket => FileType::Socket,
                nfs3::FileType::Fifo => FileType::Fifo,
            },
            mode: read.mode & 0o7777,
            links: read.links,
            owner: Owner::Id(read.uid),
            group: Owner::Id(read.gid),
            size: read.size,
            space_used: read.used,
            file_system: Fsid { major: read.file_system, minor: 0 },
            file_id: read.file_id,
            change: u64::from(read.ctime.seconds) * 1_000_000_000
                + u64::from(read.ctime.nanoseconds),
            device: read.device,
            accessed: time(read.atime),
            modified: time(read.mtime),
            changed: time(read.ctime),
            created: None,
        }
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, FileType::Directory | FileType::AttributeDirectory)
    }

    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileType::Symlink
    }
}

/// Attributes to change.
pub type SetAttributes = dafs_parallel::SetAttributes<SetTime>;

/// The owner that a string of NFSv4 names; a number counts as one (RFC 8881 5.9).
fn owner(text: Option<&[u8]>) -> Owner {
    let Some(text) = text else { return Owner::Unknown };
    let number = std::str::from_utf8(text)
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    match number.and_then(|text| text.parse().ok()) {
        Some(id) => Owner::Id(id),
        None => Owner::Name(text.to_vec()),
    }
}

/// Converts to NFSv4 for `take`, with owners as numbers in text.
pub(crate) fn with_nfs4<T>(
    set: &SetAttributes,
    take: impl FnOnce(&nfs4::SetAttributes<'_>) -> T,
) -> T {
    let owner = set.owner.map(|id| id.to_string());
    let group = set.group.map(|id| id.to_string());
    take(&nfs4::SetAttributes {
        mode: set.mode,
        owner: owner.as_deref().map(str::as_bytes),
        owner_group: group.as_deref().map(str::as_bytes),
        size: set.size,
        time_access: set.accessed,
        time_modify: set.modified,
        ..nfs4::SetAttributes::default()
    })
}

/// Converts to NFSv3. Times before 1970 and after 2106 become the nearest possible ones.
pub(crate) fn to_nfs3(set: SetAttributes) -> nfs3::SetAttributes {
    let time = |time: Option<SetTime>| match time {
        None => nfs3::SetTime::Keep,
        Some(SetTime::Server) => nfs3::SetTime::ToServer,
        Some(SetTime::Client(time)) => nfs3::SetTime::ToClient(nfs3::Time {
            seconds: time.seconds.clamp(0, i64::from(u32::MAX)) as u32,
            nanoseconds: time.nanoseconds,
        }),
    };
    nfs3::SetAttributes {
        mode: set.mode,
        uid: set.owner,
        gid: set.group,
        size: set.size,
        atime: time(set.accessed),
        mtime: time(set.modified),
    }
}

/// Space and limits of a file system. `None` where the server does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStatus {
    /// Bytes in all.
    pub space_total: Option<u64>,
    /// Bytes free.
    pub space_free: Option<u64>,
    /// Bytes that the caller can still use.
    pub space_available: Option<u64>,
    /// Objects that there can be.
    pub files_total: Option<u64>,
    /// Objects that can still be made.
    pub files_free: Option<u64>,
    /// Objects that the caller can still make.
    pub files_available: Option<u64>,
    /// The longest name, in bytes.
    pub name_bytes_max: Option<u32>,
    /// The longest file, in bytes.
    pub file_bytes_max: Option<u64>,
    /// Bytes that count for the caller's quota. NFSv3 has no quotas.
    pub quota_used: Option<u64>,
    /// Bytes that the caller's quota leaves, or the free space if that is less.
    pub quota_left: Option<u64>,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its handle, where the server gave it.
    pub handle: Option<Handle>,
    /// Its attributes, where the server gave them.
    pub attributes: Option<Attributes>,
}
