//! Every limit and default of this store, in one place.

use std::ffi::CStr;

/// Options of ceph that this store depends on, whatever the configuration says.
pub(crate) const SETTINGS: [(&CStr, &CStr); 4] = [
    // What others have written is seen at once, and what was written here is at the storage nodes
    // when a call returns.
    (c"client_oc", c"false"),
    // The caller's rights are checked.
    (c"fuse_default_permissions", c"false"),
    (c"client_permissions", c"true"),
    // Seconds to wait for the cluster when mounting.
    (c"client_mount_timeout", c"30"),
];

/// The most mounts of one store.
pub(crate) const MOUNTS_MAX: usize = 64;

/// The most views in one call of the library (the kernel's IOV_MAX).
pub(crate) const VIEWS_MAX: usize = 1024;

/// How often a create is tried again when the name comes and goes meanwhile.
pub(crate) const CREATE_RETRIES_MAX: usize = 8;

/// Permission bits of a regular file, a directory and a special file whose maker named none.
pub(crate) const FILE_MODE_DEFAULT: u32 = 0o644;
/// See [`FILE_MODE_DEFAULT`].
pub(crate) const DIRECTORY_MODE_DEFAULT: u32 = 0o755;
/// See [`FILE_MODE_DEFAULT`].
pub(crate) const SPECIAL_MODE_DEFAULT: u32 = 0o600;

/// Every bit that a mode can carry.
pub(crate) const MODE_BITS: u32 = 0o7777;

/// The longest text of a symlink, in bytes.
pub(crate) const SYMLINK_BYTES_MAX: usize = 4095;

/// The longest file, in bytes; the file system has a lower limit of its own.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The most bytes that one call copies from file to file.
pub(crate) const COPY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The longest list of names of extended attributes, in bytes.
pub(crate) const XATTR_LIST_BYTES_MAX: usize = 64 * 1024;

/// What is told as the most links of a file; the metadata server has the last word.
pub(crate) const LINKS_MAX: u32 = 65_000;
