//! Handles, attributes and places of both protocols in one form.

use dafs_client as dafs;
use dafs_client::{ObjectType, Owner, SetAttributes, SetTime, Time};
use dafs_nfs_client::mount as nfs;
use rustix::fs::{FileType, Stat, major, minor};

/// The longest handle of NFS, in bytes (NFS4_FHSIZE).
const NFS_HANDLE_BYTES_MAX: usize = 128;

/// The name of an object on its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Handle {
    Dafs(dafs::FileHandle),
    Nfs {
        len: u8,
        bytes: [u8; NFS_HANDLE_BYTES_MAX],
    },
    /// An object of this host, which no server knows.
    Local {
        device: u64,
        inode: u64,
    },
}

impl Handle {
    /// The handle for DAFS. Another one becomes one that no server knows.
    pub(super) fn dafs(&self) -> dafs::FileHandle {
        match self {
            Self::Dafs(handle) => *handle,
            Self::Nfs { .. } | Self::Local { .. } => dafs::FileHandle::ZERO,
        }
    }

    /// The handle for NFS. Another one becomes one that no server knows.
    pub(super) fn nfs(&self) -> nfs::Handle {
        match self {
            Self::Dafs(_) | Self::Local { .. } => nfs::Handle(Vec::new()),
            Self::Nfs { len, bytes } => nfs::Handle(bytes[..usize::from(*len)].to_vec()),
        }
    }
}

impl From<dafs::FileHandle> for Handle {
    fn from(handle: dafs::FileHandle) -> Self {
        Self::Dafs(handle)
    }
}

impl From<&nfs::Handle> for Handle {
    fn from(handle: &nfs::Handle) -> Self {
        let mut bytes = [0; NFS_HANDLE_BYTES_MAX];
        // The decoders refuse longer handles.
        let len = handle.0.len().min(NFS_HANDLE_BYTES_MAX);
        bytes[..len].copy_from_slice(&handle.0[..len]);
        Self::Nfs { len: len as u8, bytes }
    }
}

/// Attributes of an object. Those that the server does not support are zero or `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) kind: ObjectType,
    /// Permission bits with setuid, setgid and sticky: 0o7777.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) owner: Owner,
    pub(crate) group: Owner,
    pub(crate) size: u64,
    /// Bytes allocated on the server.
    pub(crate) space_used: u64,
    pub(crate) file_id: u64,
    /// Differs after every change of content or attributes.
    pub(crate) change: u64,
    /// Major and minor number of a device.
    pub(crate) raw_device: (u64, u64),
    pub(crate) accessed: Option<Time>,
    pub(crate) modified: Option<Time>,
    pub(crate) changed: Option<Time>,
    pub(crate) created: Option<Time>,
    pub(crate) handle: Handle,
}

impl Attributes {
    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.kind, ObjectType::Directory | ObjectType::AttrDirectory)
    }

    pub(crate) fn is_symlink(&self) -> bool {
        self.kind == ObjectType::Symlink
    }

    /// Attributes of an object of this host. Its handle is one that no server knows.
    pub(crate) fn of_stat(stat: &Stat) -> Self {
        let time = |seconds: i64, nanoseconds: u64| {
            Some(Time { seconds, nseconds: u32::try_from(nanoseconds).unwrap_or(0) })
        };
        Self {
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => ObjectType::Directory,
                FileType::Symlink => ObjectType::Symlink,
                FileType::BlockDevice => ObjectType::BlockDevice,
                FileType::CharacterDevice => ObjectType::CharDevice,
                FileType::Fifo => ObjectType::Fifo,
                FileType::Socket => ObjectType::Socket,
                _ => ObjectType::Regular,
            },
            mode: stat.st_mode & 0o7777,
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            owner: Owner::Id(stat.st_uid),
            group: Owner::Id(stat.st_gid),
            size: stat.st_size.unsigned_abs(),
            space_used: stat.st_blocks.unsigned_abs().saturating_mul(512),
            file_id: stat.st_ino,
            change: 0,
            raw_device: (major(stat.st_rdev).into(), minor(stat.st_rdev).into()),
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
            created: None,
            handle: Handle::Local { device: stat.st_dev, inode: stat.st_ino },
        }
    }

    pub(super) fn nfs(handle: &nfs::Handle, attributes: &nfs::Attributes) -> Self {
        let time =
            |time: nfs::Time| Some(Time { seconds: time.seconds, nseconds: time.nanoseconds });
        let (major, minor) = attributes.device;
        Self {
            kind: kind(attributes.kind),
            mode: attributes.mode,
            links: attributes.links,
            owner: attributes.owner.clone(),
            group: attributes.group.clone(),
            size: attributes.size,
            space_used: attributes.space_used,
            file_id: attributes.file_id,
            change: attributes.change,
            raw_device: (major.into(), minor.into()),
            accessed: time(attributes.accessed),
            modified: time(attributes.modified),
            changed: time(attributes.changed),
            created: attributes.created.and_then(time),
            handle: handle.into(),
        }
    }
}

impl From<dafs::Attributes> for Attributes {
    fn from(attributes: dafs::Attributes) -> Self {
        Self {
            kind: attributes.kind,
            mode: attributes.mode,
            links: attributes.links,
            owner: attributes.owner,
            group: attributes.group,
            size: attributes.size,
            space_used: attributes.space_used,
            file_id: attributes.file_id,
            change: attributes.change,
            raw_device: attributes.raw_device,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            created: attributes.created,
            handle: attributes.handle.into(),
        }
    }
}

fn kind(kind: nfs::FileType) -> ObjectType {
    match kind {
        nfs::FileType::Directory => ObjectType::Directory,
        nfs::FileType::BlockDevice => ObjectType::BlockDevice,
        nfs::FileType::CharacterDevice => ObjectType::CharDevice,
        nfs::FileType::Symlink => ObjectType::Symlink,
        nfs::FileType::Socket => ObjectType::Socket,
        nfs::FileType::Fifo => ObjectType::Fifo,
        nfs::FileType::AttributeDirectory => ObjectType::AttrDirectory,
        nfs::FileType::NamedAttribute => ObjectType::NamedAttr,
        _ => ObjectType::Regular,
    }
}

/// The attributes in NFS form.
pub(super) fn nfs_set(new: &SetAttributes) -> nfs::SetAttributes {
    let time = |time: SetTime| match time {
        SetTime::Server => nfs::SetTime::Server,
        SetTime::Client(time) => {
            nfs::SetTime::Client(nfs::Time { seconds: time.seconds, nanoseconds: time.nseconds })
        }
    };
    nfs::SetAttributes {
        mode: new.mode,
        owner: new.owner,
        group: new.group,
        size: new.size,
        accessed: new.accessed.map(time),
        modified: new.modified.map(time),
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DirEntry {
    pub(crate) name: Vec<u8>,
    /// The attributes, if the server has sent them.
    pub(crate) attributes: Option<Attributes>,
}

/// An object found by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) handle: Handle,
    pub(crate) attributes: Attributes,
}

/// The place of a new name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dir: Handle,
    /// The name in it, not looked up.
    pub(crate) name: Vec<u8>,
}

impl From<dafs::Place> for Place {
    fn from(place: dafs::Place) -> Self {
        Self { dir: place.dir.into(), name: place.name }
    }
}

impl From<nfs::Place> for Place {
    fn from(place: nfs::Place) -> Self {
        Self { dir: (&place.dir).into(), name: place.name }
    }
}
