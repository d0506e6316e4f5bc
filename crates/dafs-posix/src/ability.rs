//! The optional features of the export's file system, detected once.

use super::acl;
use super::export::descriptor_path;
use dafs_store::{Capabilities, LocalChanges, Result, Waits};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

const BTRFS_MAGIC: u64 = 0x9123_683e;
const XFS_MAGIC: u64 = 0x5846_5342;
const BCACHEFS_MAGIC: u64 = 0xca45_1a4e;

/// Examines the root of the export.
pub(super) fn find(root: BorrowedFd<'_>) -> Result<Capabilities> {
    let stat = rustix::fs::fstatfs(root)?;
    // Only an attempt on files of the export would prove it. Where this is wrong, the call fails.
    let clone = [BTRFS_MAGIC, XFS_MAGIC, BCACHEFS_MAGIC].contains(&(stat.f_type as u64));
    let block_bytes = u32::try_from(stat.f_bsize).unwrap_or(0);
    Ok(Capabilities {
        xattrs: has_user_xattrs(root),
        acls: acl::support(root),
        clone,
        clone_block_bytes: if clone { block_bytes } else { 0 },
        allocate: true,
        deallocate: true,
        holes: true,
        quotas: false,
        local_changes: LocalChanges::Unseen,
        layouts: None,
        layout_unit_bytes: 0,
        waits: Waits::Never,
    })
}

fn has_user_xattrs(root: BorrowedFd<'_>) -> bool {
    let asked = rustix::fs::getxattr(descriptor_path(root), c"user.dafs", &mut [0u8; 0][..]);
    matches!(asked, Ok(_) | Err(Errno::NODATA | Errno::RANGE))
}
