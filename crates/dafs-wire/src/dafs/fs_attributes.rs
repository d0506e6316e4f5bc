//! File-system attributes and their block (DAFS 14, O12).
//!
//! Invariants
//! * As for file attributes.

use super::attributes::attribute_block;
use super::codec::{Field, Scope, Writer, layout};
use super::error::{DecodeError, EncodeError};
use super::limits::FS_LOCATIONS_MAX;
use super::seq::{Path, Seq};

layout! {
    /// Another server of the same file system (DAFS 5.4).
    pub struct FsLocation<'a> [8, array 4 max FS_LOCATIONS_MAX] {
        /// The server.
        server: &'a [u8] = 0,
        /// The root of the file system there.
        root_path: Path<'a> = 4,
    }

    /// Other locations of a file system (DAFS 5.4).
    pub struct FsLocations<'a> [8] {
        /// The root of the file system on this server.
        fs_root: Path<'a> = 0,
        /// The other locations.
        locations: Seq<'a, FsLocation<'a>> = 4,
    }
}

/// The attribute holds the offset of the 8-byte struct, and all offsets count from the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailoverLocations<'a>(pub FsLocations<'a>);

impl<'a> Field<'a> for FailoverLocations<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.target(at, 4)? {
            Some(target) => Ok(Self(FsLocations::read(scope, target)?)),
            None => Ok(Self(FsLocations { fs_root: Path::empty(), locations: Seq::empty() })),
        }
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        let target = writer.allocate(8, 8)?;
        writer.put_offset(at, target)?;
        self.0.write(writer, target)
    }
}

attribute_block! {
    mask FsAttrMask "file-system attributes"; block FsAttributes 'a;
    /// True if hard links exist.
    1 LINK_SUPPORT link_support: bool, 1, 1;
    /// True if symbolic links exist.
    2 SYMLINK_SUPPORT symlink_support: bool, 1, 1;
    /// True if times can be set.
    3 CAN_SET_TIME can_set_time: bool, 1, 1;
    /// True if names that differ only in case are the same.
    4 CASE_INSENSITIVE case_insensitive: bool, 1, 1;
    /// True if names keep their case.
    5 CASE_PRESERVING case_preserving: bool, 1, 1;
    /// True if only privileged callers may change the owner of a file.
    6 CHOWN_RESTRICTED chown_restricted: bool, 1, 1;
    /// True if all objects have the same attributes.
    7 HOMOGENEOUS homogeneous: bool, 1, 1;
    /// True if names that are too long are refused.
    8 NO_TRUNC no_trunc: bool, 1, 1;
    /// True if an object has one handle.
    9 UNIQUE_HANDLE unique_handle: bool, 1, 1;
    /// The lease period in seconds.
    10 LEASE_TIME lease_time: u32, 4, 4;
    /// The error of reading an entry's attributes (DAFS O59).
    11 RD_ATTR_ERROR rd_attr_error: u32, 4, 4;
    /// Kinds of access control entries: ALLOW 1, DENY 2, AUDIT 4, ALARM 8.
    12 ACL_SUPPORT acl_support: u32, 4, 4;
    /// Most hard links of an object.
    13 MAX_LINK max_link: u32, 4, 4;
    /// Longest name in bytes.
    14 MAX_NAME max_name: u32, 4, 4;
    /// The supported file attributes.
    15 SUPPORTED_FATTR supported_fattr: u64, 8, 8;
    /// The supported file-system attributes.
    16 SUPPORTED_FSATTR supported_fsattr: u64, 8, 8;
    /// Files that the caller can still create.
    17 FILES_AVAILABLE files_available: u64, 8, 8;
    /// Files that can still be created.
    18 FILES_FREE files_free: u64, 8, 8;
    /// Total number of files.
    19 FILES_TOTAL files_total: u64, 8, 8;
    /// Longest file in bytes.
    20 MAX_FILE_SIZE max_file_size: u64, 8, 8;
    /// Longest read in bytes.
    21 MAX_READ max_read: u64, 8, 8;
    /// Longest write in bytes.
    22 MAX_WRITE max_write: u64, 8, 8;
    /// The hard quota of the caller, in bytes.
    23 QUOTA_HARD quota_hard: u64, 8, 8;
    /// The soft quota of the caller, in bytes.
    24 QUOTA_SOFT quota_soft: u64, 8, 8;
    /// Bytes that the caller uses.
    25 QUOTA_USED quota_used: u64, 8, 8;
    /// Bytes that the caller can still use.
    26 SPACE_AVAILABLE space_available: u64, 8, 8;
    /// Bytes free.
    27 SPACE_FREE space_free: u64, 8, 8;
    /// Total bytes.
    28 SPACE_TOTAL space_total: u64, 8, 8;
    /// The file-system part of the handles.
    29 FSHANDLE fshandle: [u8; 16], 16, 8;
    /// Other locations of the file system.
    30 FAILOVER_LOCATIONS failover_locations: FailoverLocations<'a>, 4, 4;
    /// Longest append in bytes; at least 65536.
    32 MAX_APPEND max_append: u64, 8, 8;
    /// The preferred transfer length, in bytes.
    33 PREF_IO_SIZE pref_io_size: u64, 8, 8;
    /// Expiry of handles: persistent 0, noexpire-with-open 1, volatile-any 2, vol-rename 8.
    34 FH_EXPIRE_TYPE fh_expire_type: u32, 4, 4;
    /// True if clients may request layouts and access the data servers (an extension).
    48 X_LAYOUTS x_layouts: bool, 1, 1;
    /// True if sessions can cancel work by X_CANCEL (an extension).
    49 X_CANCEL x_cancel: bool, 1, 1;
    /// True if clients may read blocks from memory of the server (an extension).
    50 X_OPTIMISTIC x_optimistic: bool, 1, 1;
    /// True if clients can say that they have reclaimed all, by X_RECLAIM_COMPLETE (an extension).
    51 X_RECLAIM_COMPLETE x_reclaim_complete: bool, 1, 1;
}
