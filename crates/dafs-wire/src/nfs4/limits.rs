//! Sizes and limits of NFSv4 messages, in bytes unless the name says otherwise.

/// The program number of NFS (RFC 8881 18).
pub const PROGRAM: u32 = 100_003;
/// The version of the program that has minor versions.
pub const VERSION: u32 = 4;
/// The procedure that does nothing.
pub const PROCEDURE_NULL: u32 = 0;
/// The procedure that carries operations.
pub const PROCEDURE_COMPOUND: u32 = 1;
/// The version of the callback program (RFC 8881 20); the client chooses its number.
pub const CALLBACK_VERSION: u32 = 1;
/// The callback procedure that does nothing.
pub const PROCEDURE_CB_NULL: u32 = 0;
/// The callback procedure that carries callback operations.
pub const PROCEDURE_CB_COMPOUND: u32 = 1;

/// The longest file handle (NFS4_FHSIZE).
pub const FILE_HANDLE_BYTES_MAX: usize = 128;
/// Length of a verifier (NFS4_VERIFIER_SIZE).
pub const VERIFIER_BYTES: usize = 8;
/// Length of the opaque part of a state-id (NFS4_OTHER_SIZE).
pub const STATEID_OTHER_BYTES: usize = 12;
/// Length of a session id (NFS4_SESSIONID_SIZE).
pub const SESSION_ID_BYTES: usize = 16;
/// Length of a device id (NFS4_DEVICEID4_SIZE).
pub const DEVICE_ID_BYTES: usize = 16;
/// The longest client, server, open or lock owner (NFS4_OPAQUE_LIMIT).
pub const OPAQUE_BYTES_MAX: usize = 1024;

/// The longest tag of a compound that a decoder accepts; the reply must echo it.
pub const TAG_BYTES_MAX: usize = 1024;
/// The stored words of a bitmap; they hold every defined attribute and operation number.
pub const BITMAP_WORDS: usize = 3;
/// The most words of a bitmap that a decoder accepts. Words beyond the stored ones can only hold
/// undefined numbers.
pub const BITMAP_WORDS_MAX: usize = 64;
/// The most entries of an access control list that a decoder accepts.
pub const ACES_MAX: usize = 4096;
/// The most state-ids of one TEST_STATEID that a decoder accepts.
pub const STATEIDS_MAX: usize = 4096;
/// The most callback security parameters of one request that a decoder accepts.
pub const CALLBACK_SECURITY_MAX: usize = 16;
/// The most supplementary groups of AUTH_SYS (RFC 5531 appendix A).
pub const GROUPS_MAX: usize = 16;
/// The longest machine name of AUTH_SYS (RFC 5531 appendix A).
pub const MACHINE_NAME_BYTES_MAX: usize = 255;
/// The most algorithms of state protection by SSV that a decoder accepts.
pub const ALGORITHMS_MAX: usize = 64;
/// The most referring-call lists, and calls of one list, that a decoder accepts.
pub const REFERRING_CALLS_MAX: usize = 1024;
/// The most components of a path that a decoder accepts.
pub const PATH_COMPONENTS_MAX: usize = 1024;
/// The most locations, servers, layout types, devices, hints and similar items in one list that a
/// decoder accepts.
pub const LIST_ITEMS_MAX: usize = 1024;
/// The most indices of a stripe pattern, and handles of a file at data servers (the limit of common
/// clients).
pub const STRIPES_MAX: usize = 4096;
/// The most data servers of a device (the limit of common clients).
pub const DATA_SERVERS_MAX: usize = 256;
/// The most NFS versions that one data server announces.
pub const FLEX_VERSIONS_MAX: usize = 16;
/// The most mirrors of a file in a layout.
pub const FLEX_MIRRORS_MAX: usize = 16;
/// The longest user or group name at a data server, in bytes.
pub const OWNER_NAME_BYTES_MAX: usize = 1024;
/// The most addresses of one data server that a decoder accepts.
pub const MULTIPATHS_MAX: usize = 64;
/// The most extended attribute names of one reply that a decoder accepts.
pub const XATTR_NAMES_MAX: usize = 65_536;
/// No limit beyond the length of the message: the field borrows, so its length costs nothing.
pub(super) const UNLIMITED: usize = usize::MAX;
