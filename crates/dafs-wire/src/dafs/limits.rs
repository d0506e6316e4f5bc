//! Sizes, positions and limits of DAFS messages, all in bytes unless the name says otherwise.

/// Length of the header of requests and of replies (DAFS 5.2, 5.3).
pub const HEADER_BYTES: usize = 40;
/// First word of a request: "DAFS" (DAFS 5.2).
pub const REQUEST_MAGIC: u32 = 0x4441_4653;
/// First word of a reply: "DAFR" (DAFS 5.3).
pub const REPLY_MAGIC: u32 = 0x4441_4652;
/// The protocol version spoken here (DAFS O1).
pub const PROTOCOL_VERSION: u32 = 1;
/// Every receiver takes a first message of at least this length (DAFS 4.3).
pub const FIRST_MESSAGE_BYTES: usize = 4096;
/// Where the checksum sits in both headers (DAFS 5.2, 5.3).
pub const CHECKSUM_AT: usize = 24;

/// Where the data of an unpadded WRITE_INLINE begins, from the start of the message (DAFS 6).
pub const WRITE_INLINE_DATA_AT: usize = 136;
/// Where the data of an unpadded APPEND_INLINE begins, from the start of the message (DAFS 6).
pub const APPEND_INLINE_DATA_AT: usize = 128;
/// Where the data of a READ_INLINE reply begins, from the start of the message (DAFS 6).
pub const READ_INLINE_REPLY_DATA_AT: usize = 48;
/// Where the entries of our READDIR_INLINE replies begin, from the start of the message.
pub const READDIR_INLINE_REPLY_ENTRIES_AT: usize = 56;
/// The smallest `inline_write_header_size` other than zero (DAFS O23).
pub const INLINE_WRITE_HEADER_BYTES_MIN: usize = 136;
/// The `inline_write_header_size` a server of ours answers when the client leaves it open
/// (DAFS O23).
pub const INLINE_WRITE_HEADER_BYTES_DEFAULT: u32 = 512;

/// The most entries of an access control list that is taken from the wire, so that a short message
/// cannot ask for much work.
pub const ACES_MAX: usize = 1024;
/// The most components of a path that is taken from the wire, for the same reason.
pub const PATH_COMPONENTS_MAX: usize = 1024;
/// The most alternate locations of a file system that are taken from the wire, for the same reason.
pub const FS_LOCATIONS_MAX: usize = 64;
/// The most groups of a credential that are taken from the wire.
pub const GROUPS_MAX: usize = 65_536;
/// The most names of a file at data servers that a layout may carry.
pub const LAYOUT_COMPONENTS_MAX: usize = 4096;
/// The most data servers of a device that are taken from the wire.
pub const LAYOUT_SERVERS_MAX: usize = 256;
/// The most errors that come with the return of a layout.
pub const LAYOUT_ERRORS_MAX: usize = 64;
/// No limit beyond the length of the message.
pub(crate) const UNLIMITED: usize = usize::MAX;
