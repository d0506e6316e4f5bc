//! All limits and defaults of this store.

use std::ffi::CStr;
use std::num::NonZeroU32;
use std::time::Duration;

/// The options of GlusterFS that this store depends on. They override the volume's. Parts of the
/// client that cache or delay operations must pass everything through.
pub(crate) const SETTINGS: [(&CStr, &CStr, &CStr); 9] = [
    (c"*-md-cache", c"pass-through", c"true"),
    (c"*-nl-cache", c"pass-through", c"true"),
    (c"*-io-cache", c"pass-through", c"true"),
    (c"*-read-ahead", c"pass-through", c"true"),
    (c"*-readdir-ahead", c"pass-through", c"true"),
    (c"*-write-behind", c"pass-through", c"true"),
    (c"*-open-behind", c"pass-through", c"true"),
    // This part has no such option. No file is small enough for it.
    (c"*-quick-read", c"max-file-size", c"0"),
    (c"*-quick-read", c"cache-timeout", c"0"),
];

/// The version of the ids of this store. The key in an id is the object's gfid: GlusterFS generates
/// gfids at random, so an id never names another object later.
pub(crate) const ID_VERSION: u8 = 0x61;

/// The log level of the library: no messages.
pub(crate) const LOG_LEVEL: i32 = 0;

/// The default port of management daemons.
pub(crate) const PORT_USUAL: u16 = 24007;

/// The longest description of a volume, in bytes.
pub(crate) const VOLFILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The most attempts to read it while it grows.
pub(crate) const VOLFILE_TRIES_MAX: usize = 8;

/// The timeout of opening a store.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// The most views in one call of the library (the kernel's IOV_MAX).
pub(crate) const VIEWS_MAX: usize = 1024;

/// The most attempts of a request that a brick refuses although the mode allows it, for the owner and
/// for others.
pub(crate) const OWNER_TRIES_MAX: usize = 7;
pub(crate) const OTHERS_TRIES_MAX: usize = 4;

/// The first pause between two of them; each is twice as long as the one before. A brick needs
/// microseconds; its thread may have to wait for a processor.
pub(crate) const ACCESS_PAUSE: Duration = Duration::from_millis(2);

/// The most attempts to find the parent of a directory that is moved meanwhile.
pub(crate) const PARENT_TRIES_MAX: usize = 4;

/// The most attempts of a data server to find a file that seems to be removed: a file that is just
/// being moved to another brick is on neither for a moment.
pub(crate) const MOVED_TRIES_MAX: u32 = 5;

/// The increment of the pause between two of them.
pub(crate) const MOVED_PAUSE: Duration = Duration::from_millis(5);

/// The bit by which GlusterFS marks files that it moves or has moved. This store gives it to no
/// regular file.
pub(crate) const MOVED_BIT: u32 = 0o1000;

/// The bits that a write clears: setuid and setgid.
pub(crate) const PRIVILEGE_BITS: u32 = 0o6000;

/// The longest path of a directory from the root of the volume, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 64 * 1024;

/// The most files that one data server has open.
pub(crate) const DATA_FILES_OPEN_MAX: usize = 1024;

/// The time for which a data server keeps an unused file open.
pub(crate) const DATA_IDLE: Duration = Duration::from_secs(2);

/// The most files that a data server remembers as written, and as not being there.
pub(crate) const DATA_NOTES_MAX: usize = 65_536;

/// The interval at which the description of the volume is read.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The reported stripe unit. A file has one place, so it only limits the size of clients' requests.
pub(crate) const UNIT_BYTES: NonZeroU32 = NonZeroU32::new(4 * 1024 * 1024).unwrap();
