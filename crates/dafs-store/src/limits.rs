//! Every limit and default of the stores, in one place.

/// Permission bits of a regular file whose maker named none.
pub(crate) const FILE_MODE_DEFAULT: u32 = 0o644;

/// Permission bits of a directory whose maker named none.
pub(crate) const DIRECTORY_MODE_DEFAULT: u32 = 0o755;

/// Permission bits of a special file whose maker named none.
pub(crate) const SPECIAL_MODE_DEFAULT: u32 = 0o600;

/// Every bit that a mode can carry: permissions, setuid, setgid and sticky.
pub(crate) const MODE_BITS: u32 = 0o7777;

/// The longest text of a symlink, in bytes (the kernel's PATH_MAX less the final zero).
pub(crate) const SYMLINK_BYTES_MAX: usize = 4095;

/// The longest file, in bytes: offsets are signed in every kernel interface.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The first value of a directory cookie; protocols reserve those below.
pub(crate) const COOKIE_FIRST: u64 = 3;

/// Memory store: the unit in which content is kept and looked up.
pub(crate) const MEMORY_BLOCK_BYTES: u64 = 64 * 1024;

/// Memory store: the unit in which a block grows and space is counted.
pub(crate) const MEMORY_PAGE_BYTES: u64 = 4 * 1024;

/// Memory store: the most names of one file, as ext4 has it.
pub(crate) const MEMORY_LINKS_MAX: u32 = 65_000;

const _: () = assert!(MEMORY_BLOCK_BYTES.is_multiple_of(MEMORY_PAGE_BYTES));
const _: () = assert!(MODE_BITS & FILE_MODE_DEFAULT == FILE_MODE_DEFAULT);
const _: () = assert!(MODE_BITS & DIRECTORY_MODE_DEFAULT == DIRECTORY_MODE_DEFAULT);
