//! Every limit and default of this store, in one place.

use std::ffi::CStr;
use std::num::NonZeroU32;
use std::time::Duration;

/// Options of GlusterFS that this store depends on, whatever the volume says: parts of the client that
/// keep what others may have changed, or hold back what was written, have to let everything through.
pub(crate) const SETTINGS: [(&CStr, &CStr, &CStr); 9] = [
    (c"*-md-cache", c"pass-through", c"true"),
    (c"*-nl-cache", c"pass-through", c"true"),
    (c"*-io-cache", c"pass-through", c"true"),
    (c"*-read-ahead", c"pass-through", c"true"),
    (c"*-readdir-ahead", c"pass-through", c"true"),
    (c"*-write-behind", c"pass-through", c"true"),
    (c"*-open-behind", c"pass-through", c"true"),
    // This one has no such option. No file is small enough for it.
    (c"*-quick-read", c"max-file-size", c"0"),
    (c"*-quick-read", c"cache-timeout", c"0"),
];

/// How much the library writes to its log: nothing.
pub(crate) const LOG_LEVEL: i32 = 0;

/// The port of management daemons.
pub(crate) const PORT_USUAL: u16 = 24007;

/// The longest description of a volume, in bytes.
pub(crate) const VOLFILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How often it is asked for anew because it has become longer meanwhile.
pub(crate) const VOLFILE_TRIES_MAX: usize = 8;

/// How long opening may take before the store is given up.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// The most views in one call of the library (the kernel's IOV_MAX).
pub(crate) const VIEWS_MAX: usize = 1024;

/// How often a create is tried again when the name comes and goes meanwhile.
pub(crate) const CREATE_RETRIES_MAX: usize = 8;

/// How often an open is asked for in all where a brick refuses what the mode allows.
pub(crate) const ACCESS_TRIES_MAX: usize = 4;

/// How long before it is asked again. A brick needs microseconds; its thread may have to wait for a processor.
pub(crate) const ACCESS_PAUSE: Duration = Duration::from_millis(2);

/// How often somebody looks for the directory above one that is moved meanwhile.
pub(crate) const PARENT_TRIES_MAX: usize = 4;

/// How often a data server looks for a file that seems to be gone: one that is just being moved to another
/// brick is at neither for a moment.
pub(crate) const MOVED_TRIES_MAX: u32 = 5;

/// How much longer it waits each time.
pub(crate) const MOVED_PAUSE: Duration = Duration::from_millis(5);

/// Permission bits of a regular file, a directory and a special file whose maker named none.
pub(crate) const FILE_MODE_DEFAULT: u32 = 0o644;
/// See [`FILE_MODE_DEFAULT`].
pub(crate) const DIRECTORY_MODE_DEFAULT: u32 = 0o755;
/// See [`FILE_MODE_DEFAULT`].
pub(crate) const SPECIAL_MODE_DEFAULT: u32 = 0o600;

/// Every bit that a mode can carry.
pub(crate) const MODE_BITS: u32 = 0o7777;

/// The bit by which GlusterFS marks files that are not where they seem to be. No regular file gets it
/// from this store.
pub(crate) const MOVED_BIT: u32 = 0o1000;

/// The bits that end when somebody writes: a program runs with its owner's rights or its group's.
pub(crate) const PRIVILEGE_BITS: u32 = 0o6000;

/// The longest text of a symlink, in bytes.
pub(crate) const SYMLINK_BYTES_MAX: usize = 4095;

/// The longest path of a directory from the top of the volume, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 64 * 1024;

/// The longest file, in bytes; the bricks have a lower limit of their own.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The most bytes that one call copies from file to file.
pub(crate) const COPY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The longest list of names of extended attributes, in bytes.
pub(crate) const XATTR_LIST_BYTES_MAX: usize = 64 * 1024;

/// What is told as the most links of a file; the brick has the last word.
pub(crate) const LINKS_MAX: u32 = 65_000;

/// The most files that one data server has open.
pub(crate) const DATA_FILES_OPEN_MAX: usize = 1024;

/// How long a data server keeps a file open that nobody uses.
pub(crate) const DATA_IDLE: Duration = Duration::from_secs(2);

/// The most files of which a data server remembers that they were written, or were not there.
pub(crate) const DATA_NOTES_MAX: usize = 65_536;

/// The most files whose placement is watched.
pub(crate) const PLACED_MAX: usize = 65_536;

/// How often the description of the volume is looked at.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The stripe unit that clients are told. A file has one place, so that it only says how large their
/// requests may be.
pub(crate) const UNIT_BYTES: NonZeroU32 = NonZeroU32::new(4 * 1024 * 1024).unwrap();
