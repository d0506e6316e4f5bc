//! All limits and defaults of this store.

use std::ffi::CStr;
use std::time::Duration;

/// The ceph options that this store depends on. They override the configuration.
pub(crate) const SETTINGS: [(&CStr, &CStr); 4] = [
    // No cache of data: other clients' writes are visible at once, and written data is at the
    // storage daemons when a call returns.
    (c"client_oc", c"false"),
    // The library checks the caller's rights.
    (c"fuse_default_permissions", c"false"),
    (c"client_permissions", c"true"),
    // The timeout of mounting, in seconds.
    (c"client_mount_timeout", c"30"),
];

/// The options for connections to the monitors: the timeouts, in seconds.
pub(crate) const MONITOR_SETTINGS: [(&CStr, &CStr); 2] =
    [(c"client_mount_timeout", c"30"), (c"rados_mon_op_timeout", c"10")];

/// The most attempts to read a map that changes meanwhile.
pub(crate) const MAP_TRIES_MAX: usize = 8;

/// The most attempts to find the placement of a file while it changes.
pub(crate) const PLACE_TRIES_MAX: usize = 4;

/// The timeout of opening a store. Mounting alone may wait for ever for an MDS that hangs.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// The most mounts of one store.
pub(crate) const MOUNTS_MAX: usize = 64;

/// The most views in one call of the library (the kernel's IOV_MAX).
pub(crate) const VIEWS_MAX: usize = 1024;

/// The most files that one data server has open.
pub(crate) const DATA_FILES_OPEN_MAX: usize = 1024;

/// The time for which a data server keeps an unused file open.
pub(crate) const DATA_IDLE: Duration = Duration::from_secs(2);

/// The most devices that the store remembers, of at most 16 KiB each.
pub(crate) const DEVICES_MAX: usize = 1024;

/// The bytes of a file that its pattern covers at least. Fewer if it would become too long.
pub(crate) const PATTERN_BYTES_MIN: u64 = 256 * 1024 * 1024;

/// The longest pattern of a file. The protocol permits up to 4096 places. But the kernel's client
/// reads a pattern through a buffer of one page, and uses no data server at all if it does not fit.
pub(crate) const PATTERN_PLACES_MAX: usize = 1024;
const _: () = assert!(PATTERN_PLACES_MAX <= dafs_store::PATTERN_PLACES_MAX);

/// The most files with misplaced writes that a data server remembers.
pub(crate) const ENDS_MAX: usize = 4096;

/// The interval at which the monitors are asked for changes of the map.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The time after which a slow request makes the store flush the MDS journal.
pub(crate) const NUDGE_AFTER: Duration = Duration::from_millis(20);

/// The number of idle rounds after which the watching thread sleeps.
pub(crate) const NUDGE_IDLE_ROUNDS: u32 = 50;

/// The default stripe unit of files, in bytes.
pub(crate) const UNIT_BYTES_USUAL: u32 = 4 * 1024 * 1024;
