//! Bounds of mounts.

use std::time::Duration;

/// The shortest transfer that a URL may ask for, in bytes.
pub(crate) const TRANSFER_BYTES_MIN: u32 = 4 << 10;

/// The longest transfer, in bytes.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 4 << 20;

/// The transfers of a mount that is not told otherwise, in bytes, where the server takes them.
pub(crate) const TRANSFER_BYTES_DEFAULT: u32 = 1 << 20;

/// The most READs under way ahead of a sequential reader.
pub(crate) const READ_AHEAD_MAX: u32 = 256;

/// How many times as many READs a sequential reader has under way after each that found all it asked for.
/// It begins with one, which is enough for most files.
pub(crate) const READ_AHEAD_GROWTH: usize = 4;

/// READs under way ahead of a sequential reader that is not told otherwise.
pub(crate) const READ_AHEAD_DEFAULT: u32 = 8;

/// The longest path, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// Symbolic links followed in one path.
pub(crate) const SYMLINKS_FOLLOWED_MAX: u32 = 40;

/// The most bytes of a reply to READDIR or READDIRPLUS that are asked for.
pub(crate) const DIRECTORY_BYTES: u32 = 64 << 10;

/// Room for the results of operations without bulk data: attributes, a handle, a short list. Over
/// RDMA they go inline, with all headers in [`INLINE_BYTES`]: a reply chunk would cost a write more,
/// and beside a full write chunk it makes the server of Linux 6.12 end the connection.
pub(crate) const SMALL_RESULT_BYTES: usize = 3584;

/// The inline threshold that this client and the usual servers announce.
const INLINE_BYTES: usize = 4096;

const _: () = assert!(SMALL_RESULT_BYTES + 256 <= INLINE_BYTES);

/// The longest text of a symbolic link, in bytes.
pub(crate) const LINK_TEXT_BYTES_MAX: usize = 4096;

/// What a compound or a call takes besides its data, in bytes.
pub(crate) const HEAD_BYTES: u32 = 4096;

/// Slots of a session, and NFSv3 transfers under way.
pub(crate) const REQUESTS_MAX: u32 = 256;

/// The most bytes of a list of exports.
pub(crate) const EXPORT_LIST_BYTES_MAX: usize = 256 << 10;

/// The most exports that a list of them may hold.
pub(crate) const EXPORTS_MAX: usize = 4096;

/// The first pause before something is tried again.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(2);

/// The longest such pause.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What no mount does with less of, in bytes of one record: listings and lists of exports.
pub(crate) const RECORD_BYTES_MIN: usize = EXPORT_LIST_BYTES_MAX;

const _: () = assert!(DIRECTORY_BYTES as usize <= RECORD_BYTES_MIN);
const _: () = assert!(TRANSFER_BYTES_MIN <= TRANSFER_BYTES_DEFAULT);
const _: () = assert!(TRANSFER_BYTES_DEFAULT <= TRANSFER_BYTES_MAX);
const _: () = assert!(READ_AHEAD_DEFAULT <= READ_AHEAD_MAX && READ_AHEAD_MAX <= REQUESTS_MAX);

/// The most devices that one layout makes a client ask about.
pub(crate) const LAYOUT_DEVICES_MAX: usize = 64;

/// How much of each copy of a file is looked at before its driver is gone by, in bytes.
pub(crate) const DRIVER_SAMPLE_BYTES: u64 = 1 << 20;

/// Devices that a mount remembers; more, and it asks again.
pub(crate) const DEVICES_MAX: usize = 256;

/// The longest layout or device that is asked for, in bytes.
pub(crate) const LAYOUT_BYTES_MAX: u32 = 64 << 10;

/// How long after a request to call back over a connection it is made again, if it was not agreed to.
pub(crate) const BIND_PAUSE: Duration = Duration::from_secs(1);

/// Slots of the back channel, where a server has layouts to recall.
pub(crate) const BACK_SLOTS: u32 = 4;
