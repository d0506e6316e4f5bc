//! Bounds of mounts.

use std::time::Duration;

/// The shortest transfer that a URL may ask for, in bytes.
pub(crate) const TRANSFER_BYTES_MIN: u32 = 4 << 10;

/// The longest transfer, in bytes.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 4 << 20;

/// The default length of transfers, in bytes, where the server accepts it.
pub(crate) const TRANSFER_BYTES_DEFAULT: u32 = 1 << 20;

/// The most READs under way ahead of a sequential reader.
pub(crate) const READ_AHEAD_MAX: u32 = 256;

/// The growth of a sequential reader's READs under way after each that returned all it asked for.
/// It begins with one, which is enough for most files, or with the pieces of a file of known size, up to
/// this number.
pub(crate) const READ_AHEAD_GROWTH: usize = 4;

/// READs under way ahead of a sequential reader, by default.
pub(crate) const READ_AHEAD_DEFAULT: u32 = 8;

/// The longest path, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// Symbolic links followed in one path.
pub(crate) const SYMLINKS_FOLLOWED_MAX: u32 = 40;

/// The most bytes of a reply to READDIR or READDIRPLUS that are asked for.
pub(crate) const DIRECTORY_BYTES: u32 = 64 << 10;

/// Room for the results of operations without bulk data: attributes, a handle, a short list. Over
/// RDMA they go inline, with all headers in [`INLINE_BYTES`]. A reply chunk would cost one write
/// more, and beside a full write chunk it makes the server of Linux 6.12 end the connection.
pub(crate) const SMALL_RESULT_BYTES: usize = 3584;

/// The inline threshold that this client and the usual servers announce.
const INLINE_BYTES: usize = 4096;

const _: () = assert!(SMALL_RESULT_BYTES + 256 <= INLINE_BYTES);

/// The longest text of a symbolic link, in bytes.
pub(crate) const LINK_TEXT_BYTES_MAX: usize = 4096;

/// The size of a compound or a call without its data, in bytes.
pub(crate) const HEAD_BYTES: u32 = 4096;

/// The longest content of a file that is made or read in one compound, in bytes.
pub(crate) const SMALL_FILE_BYTES_MAX: usize = 16 << 10;

/// Slots of a session, and NFSv3 transfers under way.
pub(crate) const REQUESTS_MAX: u32 = 256;

/// The most bytes of a list of exports.
pub(crate) const EXPORT_LIST_BYTES_MAX: usize = 256 << 10;

/// The most exports that a list of them may hold.
pub(crate) const EXPORTS_MAX: usize = 4096;

/// The first pause before a retry.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(2);

/// The longest such pause.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The smallest record that listings and lists of exports need, in bytes.
pub(crate) const RECORD_BYTES_MIN: usize = EXPORT_LIST_BYTES_MAX;

const _: () = assert!(DIRECTORY_BYTES as usize <= RECORD_BYTES_MIN);
const _: () = assert!(TRANSFER_BYTES_MIN <= TRANSFER_BYTES_DEFAULT);
const _: () = assert!(TRANSFER_BYTES_DEFAULT <= TRANSFER_BYTES_MAX);
const _: () = assert!(READ_AHEAD_DEFAULT <= READ_AHEAD_MAX && READ_AHEAD_MAX <= REQUESTS_MAX);

/// The most devices that a client asks about for one layout.
pub(crate) const LAYOUT_DEVICES_MAX: usize = 64;

/// The part of each copy of a file for which a driver is checked before it is used, in bytes.
pub(crate) const DRIVER_SAMPLE_BYTES: u64 = 1 << 20;

/// Devices that a mount remembers; for more it asks the server again.
pub(crate) const DEVICES_MAX: usize = 256;

/// Files of which a mount notes that the server has their unstable data. If there were more, the next
/// commit of each file goes to the server as well.
pub(crate) const MARKED_FILES_MAX: usize = 16 << 10;

/// The longest layout or device that is asked for, in bytes.
pub(crate) const LAYOUT_BYTES_MAX: u32 = 64 << 10;

/// The pause before the client repeats an unsuccessful request for a back channel on a connection.
pub(crate) const BIND_PAUSE: Duration = Duration::from_secs(1);

/// Slots of the back channel, where a server has layouts to recall.
pub(crate) const BACK_SLOTS: u32 = 4;
