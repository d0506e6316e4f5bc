//! Sizes, positions and limits of DAFS messages, all in bytes unless the name says otherwise.

/// Length of the header of requests and of replies (DAFS 5.2, 5.3).
pub const HEADER_BYTES: usize = 40;
/// First word of a request: "DAFS" (DAFS 5.2).
pub const REQUEST_MAGIC: u32 = 0x4441_4653;
/// First word of a reply: "DAFR" (DAFS 5.3).
pub const REPLY_MAGIC: u32 = 0x4441_4652;
/// The supported protocol version (DAFS O1).
pub const PROTOCOL_VERSION: u32 = 1;
/// The private data of the rejection of a connection by a server that is about to end. Another process may take
/// its place, so a client connects again.
pub const SERVER_STOPS: &str = "the server stops";
/// Every receiver accepts a first message of at least this length (DAFS 4.3).
pub const FIRST_MESSAGE_BYTES: usize = 4096;
/// Position of the checksum in both headers (DAFS 5.2, 5.3).
pub const CHECKSUM_AT: usize = 24;

/// Start of the data of an unpadded WRITE_INLINE, from the start of the message (DAFS 6).
pub const WRITE_INLINE_DATA_AT: usize = 136;
/// Start of the data of an unpadded APPEND_INLINE, from the start of the message (DAFS 6).
pub const APPEND_INLINE_DATA_AT: usize = 128;
/// Start of the data of a READ_INLINE reply, from the start of the message (DAFS 6).
pub const READ_INLINE_REPLY_DATA_AT: usize = 48;
/// Start of the entries of this server's READDIR_INLINE replies, from the start of the message.
pub const READDIR_INLINE_REPLY_ENTRIES_AT: usize = 56;
/// The smallest `inline_write_header_size` other than zero (DAFS O23).
pub const INLINE_WRITE_HEADER_BYTES_MIN: usize = 136;

/// The most entries of an access control list that a decoder accepts, so that a short message
/// cannot cause much work.
pub const ACES_MAX: usize = 1024;
/// The most components of a path that a decoder accepts, for the same reason.
pub const PATH_COMPONENTS_MAX: usize = 1024;
/// The most alternate locations of a file system that a decoder accepts, for the same reason.
pub const FS_LOCATIONS_MAX: usize = 64;
/// The most groups of a credential that a decoder accepts.
pub const GROUPS_MAX: usize = 65_536;
/// The most components of a layout.
pub const LAYOUT_COMPONENTS_MAX: usize = 4096;
/// The most data servers of a device that a decoder accepts.
pub const LAYOUT_SERVERS_MAX: usize = 256;
/// The most errors in the return of a layout.
pub const LAYOUT_ERRORS_MAX: usize = 64;
/// The most windows in one X_EXPOSE_GET.
pub const EXPOSED_WINDOWS_MAX: usize = 64;
/// The most segments in its reply that a decoder accepts.
pub const EXPOSED_SEGMENTS_MAX: usize = 4096;
/// No limit beyond the length of the message.
pub(crate) const UNLIMITED: usize = usize::MAX;
