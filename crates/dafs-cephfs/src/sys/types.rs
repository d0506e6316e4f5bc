//! Types of libcephfs's interface, as in its headers.

/// A mount, opaque.
#[repr(C)]
pub(crate) struct MountInfo {
    _opaque: [u8; 0],
}

/// An inode, opaque.
#[repr(C)]
pub(crate) struct RawInode {
    _opaque: [u8; 0],
}

/// An open file, opaque.
#[repr(C)]
pub(crate) struct Fh {
    _opaque: [u8; 0],
}

/// An open directory, opaque.
#[repr(C)]
pub(crate) struct DirResult {
    _opaque: [u8; 0],
}

/// A caller, opaque.
#[repr(C)]
pub(crate) struct UserPerm {
    _opaque: [u8; 0],
}

/// `inodeno_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct InodeNumber(pub(crate) u64);

/// `vinodeno_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct VersionedInode {
    pub(crate) ino: u64,
    pub(crate) snap: u64,
}

/// `ceph_statx`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct StatX {
    pub(crate) mask: u32,
    pub(crate) blksize: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) dev: u64,
    pub(crate) rdev: u64,
    pub(crate) atime: libc::timespec,
    pub(crate) ctime: libc::timespec,
    pub(crate) mtime: libc::timespec,
    pub(crate) btime: libc::timespec,
    pub(crate) version: u64,
}

impl StatX {
    /// Returns attributes without a set field.
    pub(crate) const fn empty() -> Self {
        const NEVER: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        Self {
            mask: 0,
            blksize: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            mode: 0,
            ino: 0,
            size: 0,
            blocks: 0,
            dev: 0,
            rdev: 0,
            atime: NEVER,
            ctime: NEVER,
            mtime: NEVER,
            btime: NEVER,
            version: 0,
        }
    }
}

// As the C compiler lays out the header on 64-bit systems.
const _: () = assert!(size_of::<StatX>() == 136);
const _: () = assert!(std::mem::offset_of!(StatX, ino) == 24);
const _: () = assert!(size_of::<VersionedInode>() == 16);

/// Every attribute (`CEPH_STATX_ALL_STATS`).
pub(crate) const STATX_ALL: u32 = 0x1fff;

/// Asks no metadata server (`AT_NO_ATTR_SYNC`, later `AT_STATX_DONT_SYNC`).
pub(crate) const STAT_AS_KNOWN: u32 = 0x4000;

/// The snapshot id of an object that is not in a snapshot (`CEPH_NOSNAP`).
pub(crate) const NO_SNAPSHOT: u64 = -2_i64 as u64;

/// The attributes that a change sets (`CEPH_SETATTR_*`).
pub(crate) mod set {
    pub(crate) const MODE: i32 = 1 << 0;
    pub(crate) const UID: i32 = 1 << 1;
    pub(crate) const GID: i32 = 1 << 2;
    pub(crate) const MTIME: i32 = 1 << 3;
    pub(crate) const ATIME: i32 = 1 << 4;
    pub(crate) const SIZE: i32 = 1 << 5;
    pub(crate) const MTIME_NOW: i32 = 1 << 7;
    pub(crate) const ATIME_NOW: i32 = 1 << 8;
}
