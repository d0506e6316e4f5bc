//! Every limit and default of this store, in one place.

use std::ffi::CStr;
use std::time::Duration;

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

/// The same for connections to the monitors, which are waited for in seconds.
pub(crate) const MONITOR_SETTINGS: [(&CStr, &CStr); 2] =
    [(c"client_mount_timeout", c"30"), (c"rados_mon_op_timeout", c"10")];

/// How often a map is read again that changes while it is read.
pub(crate) const MAP_TRIES_MAX: usize = 8;

/// How often it is found out where a file lies while that changes.
pub(crate) const PLACE_TRIES_MAX: usize = 4;

/// How long all of that may take before the store is given up. Mounting waits without end for a
/// metadata server that hangs.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

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

/// The most files that one data server has open.
pub(crate) const DATA_FILES_OPEN_MAX: usize = 1024;

/// How long a data server keeps a file open that nobody uses.
pub(crate) const DATA_IDLE: Duration = Duration::from_secs(2);

/// The most devices that are remembered, of at most 16 KiB each.
pub(crate) const DEVICES_MAX: usize = 1024;

/// How much of a file its pattern covers at least, in bytes; less where it would become too long.
pub(crate) const PATTERN_BYTES_MIN: u64 = 256 * 1024 * 1024;

/// The longest pattern of a file. The kernel's client takes one of up to 4096 places in name, but reads
/// it through a buffer of one page, and uses no data server at all for one that does not fit there.
pub(crate) const PATTERN_PLACES_MAX: usize = 1024;
const _: () = assert!(PATTERN_PLACES_MAX <= dafs_store::PATTERN_PLACES_MAX);

/// How many files a data server remembers of which something was written to the wrong place.
pub(crate) const ENDS_MAX: usize = 4096;

/// The most files whose placement is watched.
pub(crate) const PLACED_MAX: usize = 65_536;

/// How often the monitors are asked whether the map of daemons has changed.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// How long a request may take before the metadata server is asked to write its journal.
pub(crate) const NUDGE_AFTER: Duration = Duration::from_millis(20);

/// After so many times of that without any request nobody looks any more.
pub(crate) const NUDGE_IDLE_ROUNDS: u32 = 50;

/// The stripe unit of files for which nobody has chosen another one, in bytes.
pub(crate) const UNIT_BYTES_USUAL: u32 = 4 * 1024 * 1024;
