//! All limits and defaults of the stores.

use std::time::Duration;

/// Permission bits of a regular file whose creator gave no mode.
pub const FILE_MODE_DEFAULT: u32 = 0o644;

/// Permission bits of a directory whose creator gave no mode.
pub const DIRECTORY_MODE_DEFAULT: u32 = 0o755;

/// Permission bits of a special file whose creator gave no mode.
pub const SPECIAL_MODE_DEFAULT: u32 = 0o600;

/// All bits of a mode: permissions, setuid, setgid and sticky.
pub const MODE_BITS: u32 = 0o7777;

/// The longest text of a symlink, in bytes (the kernel's PATH_MAX less the final zero).
pub(crate) const SYMLINK_BYTES_MAX: usize = 4095;

/// The longest file, in bytes: offsets are signed in every kernel interface.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The most entries of an access control list.
pub const ACL_ENTRIES_MAX: usize = 1024;

/// The longest value of an extended attribute, in bytes (the kernel's XATTR_SIZE_MAX). The limit of
/// a file system may be lower.
pub const XATTR_BYTES_MAX: usize = 64 * 1024;

/// The longest name of an extended attribute, in bytes (the kernel's XATTR_NAME_MAX less "user.").
pub const XATTR_NAME_BYTES_MAX: usize = 250;

/// The longest list of names of extended attributes of one object, in bytes with a final zero each
/// and the kernel's "user." (the kernel's XATTR_LIST_MAX).
pub const XATTR_LIST_BYTES_MAX: usize = 64 * 1024;

/// The most bytes that one call copies from file to file.
pub const COPY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The bytes of a file that are held in memory while it is copied to another.
pub(crate) const COPY_BUFFER_BYTES: usize = 256 * 1024;

/// The most bytes that one advice reads ahead, so that no client makes a server read a file that is
/// larger than its memory. A client that needs more says so range by range.
pub const WILL_NEED_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The bytes that one system call reads ahead. Linux reads no more than its read-ahead window at
/// once, which has at least this size by default, and drops the rest of a longer request.
pub(crate) const WILL_NEED_STEP_BYTES: u64 = 128 * 1024;

/// The most bytes that stay in memory although their clients do not expect to need them again. Beyond
/// it the oldest of them leave.
pub const LEAVING_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The most ranges with such advice that a store remembers.
pub(crate) const LEAVING_RANGES_MAX: usize = 256;

/// The size and alignment of the largest pages that a kernel keeps files in, in bytes.
pub(crate) const LEAVING_STEP_BYTES: u64 = 2 * 1024 * 1024;

/// The most files that are read through at a time, for advice to engines without a call for it.
pub(crate) const READ_THROUGH_MAX: usize = 2;

/// The first value of a directory cookie; protocols reserve the values below.
pub const COOKIE_FIRST: u64 = 3;

/// Inode file systems: the most attempts of a create while the name appears and disappears.
pub(crate) const CREATE_TRIES_MAX: usize = 32;

/// Inode file systems: the reported limit of links of a file. The engines enforce their own.
pub(crate) const INODE_LINKS_MAX: u32 = 65_000;

/// Inode file systems: the most files whose placement is watched.
pub(crate) const PLACED_MAX: usize = 65_536;

/// Memory store: the unit in which content is kept and looked up.
pub(crate) const MEMORY_BLOCK_BYTES: u64 = 64 * 1024;

/// Memory store: the unit in which a block grows and space is counted.
pub(crate) const MEMORY_PAGE_BYTES: u64 = 4 * 1024;

/// Memory store: the most names of one file, the same as in ext4.
pub(crate) const MEMORY_LINKS_MAX: u32 = 65_000;

const _: () = assert!(MEMORY_BLOCK_BYTES.is_multiple_of(MEMORY_PAGE_BYTES));
const _: () = assert!(LEAVING_STEP_BYTES <= LEAVING_BYTES_MAX);
const _: () = assert!(MODE_BITS & FILE_MODE_DEFAULT == FILE_MODE_DEFAULT);
const _: () = assert!(MODE_BITS & DIRECTORY_MODE_DEFAULT == DIRECTORY_MODE_DEFAULT);

/// Striped store: the least and the most bytes of a stripe.
pub const STRIPE_BYTES_MIN: u32 = 4096;
/// See [`STRIPE_BYTES_MIN`].
pub const STRIPE_BYTES_MAX: u32 = 1 << 30;

/// Striped store: components that a local node keeps open.
pub(crate) const COMPONENTS_OPEN_MAX: usize = 512;

/// Striped store: the number of them that are closed at once when there are too many.
pub(crate) const COMPONENTS_CLOSED: usize = COMPONENTS_OPEN_MAX / 8;

/// Striped store: the longest time that a local node waits for running requests on a component.
pub(crate) const FORGET_WAIT: Duration = Duration::from_secs(2);

/// Striped store: the longest marker file of a node's directory.
pub(crate) const NODE_MARKER_BYTES_MAX: usize = 256;

/// The most running attempts to open a cluster of an engine. Some of these waits never end, so
/// repeated attempts must not accumulate threads.
pub(crate) const OPENS_MAX: usize = 16;

const _: () = assert!(STRIPE_BYTES_MIN.is_multiple_of(64));
