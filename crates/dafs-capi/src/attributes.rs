//! Attributes of objects and of file systems.

use crate::error::{Failure, invalid};
use dafs_client::{Attributes, FsStatus, ObjectType, Owner, SetAttributes, SetTime, Time};

/// A regular file.
pub const DAP_TYPE_FILE: u32 = 1;
/// A directory.
pub const DAP_TYPE_DIRECTORY: u32 = 2;
/// A block device.
pub const DAP_TYPE_BLOCK: u32 = 3;
/// A character device.
pub const DAP_TYPE_CHARACTER: u32 = 4;
/// A symbolic link.
pub const DAP_TYPE_SYMLINK: u32 = 5;
/// A socket.
pub const DAP_TYPE_SOCKET: u32 = 6;
/// A named pipe.
pub const DAP_TYPE_FIFO: u32 = 7;

/// An owner or group whose number is not known.
pub const DAP_NO_ID: u32 = u32::MAX;

/// A time, relative to 1970.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct dap_time_t {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Below 10^9.
    pub nanoseconds: u32,
    /// 0.
    pub reserved: u32,
}

/// Attributes of an object. Those that the server does not support are zero.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct dap_attributes_t {
    /// DAP_TYPE_...; 0 for another one.
    pub kind: u32,
    /// Permission bits, up to 07777.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// The owner's number, or DAP_NO_ID.
    pub owner: u32,
    /// The group's number, or DAP_NO_ID.
    pub group: u32,
    /// 0.
    pub reserved: u32,
    /// Length, in bytes.
    pub size: u64,
    /// Bytes allocated on the server.
    pub space_used: u64,
    /// Inode number.
    pub file_id: u64,
    /// Differs after every change.
    pub change: u64,
    /// Major number of a device.
    pub device_major: u64,
    /// Minor number of a device.
    pub device_minor: u64,
    /// Last access.
    pub accessed: dap_time_t,
    /// Last change of the content.
    pub modified: dap_time_t,
    /// Last change of the attributes.
    pub changed: dap_time_t,
    /// Birth.
    pub created: dap_time_t,
}

/// Sets the permission bits.
pub const DAP_SET_MODE: u32 = 1;
/// Sets the owner.
pub const DAP_SET_OWNER: u32 = 2;
/// Sets the group.
pub const DAP_SET_GROUP: u32 = 4;
/// Sets the length.
pub const DAP_SET_SIZE: u32 = 8;
/// Sets the time of the last access.
pub const DAP_SET_ACCESSED: u32 = 16;
/// Sets the time of the last access from the server's clock.
pub const DAP_SET_ACCESSED_NOW: u32 = 32;
/// Sets the time of the last change.
pub const DAP_SET_MODIFIED: u32 = 64;
/// Sets the time of the last change from the server's clock.
pub const DAP_SET_MODIFIED_NOW: u32 = 128;

/// Attributes to change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_set_attributes_t {
    /// The attributes to change, as DAP_SET_...
    pub what: u32,
    /// Permission bits.
    pub mode: u32,
    /// The owner's number.
    pub owner: u32,
    /// The group's number.
    pub group: u32,
    /// Length, in bytes: truncates the file, or extends it with zeros.
    pub size: u64,
    /// Last access.
    pub accessed: dap_time_t,
    /// Last change of the content.
    pub modified: dap_time_t,
}

/// Space and limits of a file system; UINT64_MAX for a value that the server does not report.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_fs_status_t {
    /// Total bytes.
    pub space_total: u64,
    /// Bytes free.
    pub space_free: u64,
    /// Bytes free for this caller.
    pub space_available: u64,
    /// Total files.
    pub files_total: u64,
    /// Free files.
    pub files_free: u64,
    /// Free files for this caller.
    pub files_available: u64,
    /// The longest name, in bytes.
    pub name_bytes_max: u64,
    /// The longest file, in bytes.
    pub file_bytes_max: u64,
    /// The longest append, in bytes.
    pub append_bytes_max: u64,
    /// The server's preferred size of reads and writes, in bytes.
    pub io_bytes_preferred: u64,
}

fn time(time: Option<Time>) -> dap_time_t {
    time.map_or_else(dap_time_t::default, |time| dap_time_t {
        seconds: time.seconds,
        nanoseconds: time.nseconds,
        reserved: 0,
    })
}

impl From<&Attributes> for dap_attributes_t {
    fn from(of: &Attributes) -> Self {
        let id = |owner: &Owner| owner.id().unwrap_or(DAP_NO_ID);
        Self {
            kind: match of.kind {
                ObjectType::Regular | ObjectType::NamedAttr => DAP_TYPE_FILE,
                ObjectType::Directory | ObjectType::AttrDirectory => DAP_TYPE_DIRECTORY,
                ObjectType::BlockDevice => DAP_TYPE_BLOCK,
                ObjectType::CharDevice => DAP_TYPE_CHARACTER,
                ObjectType::Symlink => DAP_TYPE_SYMLINK,
                ObjectType::Socket => DAP_TYPE_SOCKET,
                ObjectType::Fifo => DAP_TYPE_FIFO,
                ObjectType::Invalid => 0,
            },
            mode: of.mode,
            links: of.links,
            owner: id(&of.owner),
            group: id(&of.group),
            reserved: 0,
            size: of.size,
            space_used: of.space_used,
            file_id: of.file_id,
            change: of.change,
            device_major: of.raw_device.0,
            device_minor: of.raw_device.1,
            accessed: time(of.accessed),
            modified: time(of.modified),
            changed: time(of.changed),
            created: time(of.created),
        }
    }
}

impl From<&FsStatus> for dap_fs_status_t {
    fn from(of: &FsStatus) -> Self {
        let known = |value: Option<u64>| value.unwrap_or(u64::MAX);
        Self {
            space_total: known(of.space_total),
            space_free: known(of.space_free),
            space_available: known(of.space_available),
            files_total: known(of.files_total),
            files_free: known(of.files_free),
            files_available: known(of.files_available),
            name_bytes_max: known(of.name_bytes_max.map(u64::from)),
            file_bytes_max: known(of.file_bytes_max),
            append_bytes_max: known(of.append_bytes_max),
            io_bytes_preferred: known(of.io_bytes_preferred),
        }
    }
}

impl dap_set_attributes_t {
    pub(crate) fn parse(&self) -> Result<SetAttributes, Failure> {
        if self.what >= DAP_SET_MODIFIED_NOW << 1 {
            return Err(invalid("there is no such attribute to set"));
        }
        let has = |bit| self.what & bit != 0;
        let time = |to: bool, now: bool, time: dap_time_t| match (to, now) {
            (true, true) => Err(invalid("a time is set to two values")),
            (true, _) if time.nanoseconds >= 1_000_000_000 => {
                Err(invalid("a time has 10^9 nanoseconds or more"))
            }
            (true, _) => Ok(Some(SetTime::Client(Time {
                seconds: time.seconds,
                nseconds: time.nanoseconds,
            }))),
            (_, true) => Ok(Some(SetTime::Server)),
            (false, false) => Ok(None),
        };
        let accessed = time(has(DAP_SET_ACCESSED), has(DAP_SET_ACCESSED_NOW), self.accessed)?;
        let modified = time(has(DAP_SET_MODIFIED), has(DAP_SET_MODIFIED_NOW), self.modified)?;
        if has(DAP_SET_MODE) && self.mode > 0o7777 {
            return Err(invalid("a mode has bits beyond 07777"));
        }
        Ok(SetAttributes {
            mode: has(DAP_SET_MODE).then_some(self.mode),
            owner: has(DAP_SET_OWNER).then_some(self.owner),
            group: has(DAP_SET_GROUP).then_some(self.group),
            size: has(DAP_SET_SIZE).then_some(self.size),
            accessed,
            modified,
        })
    }
}
