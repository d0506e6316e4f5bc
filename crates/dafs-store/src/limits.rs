//! Every limit and default of the stores, in one place.

use std::time::Duration;

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

/// The most entries of an access control list.
pub const ACL_ENTRIES_MAX: usize = 1024;

/// The longest value of an extended attribute, in bytes (the kernel's XATTR_SIZE_MAX). File systems
/// may take less.
pub const XATTR_BYTES_MAX: usize = 64 * 1024;

/// The longest name of an extended attribute, in bytes (the kernel's XATTR_NAME_MAX less "user.").
pub(crate) const XATTR_NAME_BYTES_MAX: usize = 250;

/// The longest list of names of extended attributes of one object, in bytes with a final zero each
/// and the kernel's "user." (the kernel's XATTR_LIST_MAX).
pub(crate) const XATTR_LIST_BYTES_MAX: usize = 64 * 1024;

/// The most bytes that one call copies from file to file.
pub(crate) const COPY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How much of a file is held in memory while it is copied to another.
pub(crate) const COPY_BUFFER_BYTES: usize = 256 * 1024;

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

/// Posix store: shards of the node cache, each with its own lock.
pub(crate) const NODE_SHARDS: usize = 16;

/// Posix store: the share of the process's descriptors that cached nodes of one store may take
/// when nothing else is asked for.
pub(crate) const NODE_DESCRIPTOR_SHARE: u64 = 4;

/// Posix store: the least and the most descriptors that cached nodes of one store take.
pub(crate) const NODES_MIN: usize = 64;
/// See [`NODES_MIN`].
pub(crate) const NODES_MAX: usize = 65_536;

/// Posix store: names of which it is remembered that what they lead to is held.
pub(crate) const NAME_HINTS: usize = 1 << 14;

/// Posix store: how many nodes make one sweep enough.
pub(crate) const SWEEP_NODES: usize = 4096;

/// Posix store: nodes dropped at once when the process runs out of descriptors.
pub(crate) const NODES_EVICTED_ON_SHORTAGE: usize = 64;

/// Posix store: how often an operation is tried again after making room for descriptors.
pub(crate) const DESCRIPTOR_RETRIES_MAX: usize = 3;

/// Posix store: how often opening by handle is tried again when the kernel claims to have no memory.
pub(crate) const HANDLE_RETRIES_MAX: usize = 32;

/// Posix store: the pause between the later ones of these.
pub(crate) const HANDLE_RETRY_PAUSE: Duration = Duration::from_micros(200);

/// Posix store: how often a create is tried again when the name comes and goes meanwhile.
pub(crate) const CREATE_RETRIES_MAX: usize = 8;

/// Posix store: the most entries of the index from ids to names.
pub(crate) const INDEX_ENTRIES_MAX: usize = 1 << 18;

/// Posix store: the most ids remembered as gone for good.
pub(crate) const GONE_IDS_MAX: usize = 1 << 14;

/// Posix store: the most entries that one scan for a lost object looks at.
pub(crate) const SCAN_ENTRIES_MAX: usize = 1_000_000;

/// Posix store: the most entries that one call takes a scan further.
pub(crate) const SCAN_SLICE_ENTRIES_MAX: usize = 4096;

/// Posix store: the time after which a call leaves a scan to the next one.
pub(crate) const SCAN_SLICE_MS: u64 = 20;

/// Posix store: how many entries a call looks at whatever the time, so that a scan gets somewhere.
pub(crate) const SCAN_SLICE_ENTRIES_MIN: usize = 256;

/// Posix store: the most objects that are looked for at once.
pub(crate) const SCAN_WANTED_MAX: usize = 1 << 12;

/// Posix store: how long an object that a scan did not find counts as gone.
pub(crate) const MISSING_KEEP_MS: u64 = 3_000;

/// Posix store: the deepest directory that is followed up or down, so that a check takes less than a
/// tenth of a second.
pub(crate) const DEPTH_MAX: usize = 1 << 14;

/// Posix store: how long a directory counts as inside the export after that was checked.
pub(crate) const CONTAINED_CHECK_MS: u64 = 100;

/// Posix store: the same for other objects, of which there are many more.
pub(crate) const CONTAINED_FILE_CHECK_MS: u64 = 1000;

/// Posix store: directory listings kept open between pages.
pub(crate) const DIRECTORY_STREAMS_MAX: usize = 32;

/// Posix store: bytes of directory entries fetched by one system call.
pub(crate) const DIRECTORY_BUFFER_BYTES: usize = 32 * 1024;

/// Posix store: the largest buffered write done inline where the file system cannot promise not to
/// wait.
pub(crate) const INLINE_WRITE_BYTES_MAX: usize = 128 * 1024;

/// Posix store: the most objects whose changes within one tick of the clock are counted.
pub(crate) const CHANGE_COUNTS_MAX: usize = 1 << 16;

/// Posix store: bits that remember counts which had to go.
pub(crate) const CHANGE_GONE_BITS: usize = 1 << 20;

/// Posix store: the end of what is added to a ctime for changes within one tick, in nanoseconds;
/// less than any tick.
pub(crate) const COUNTS_PER_TICK: u64 = 999_999;

/// Posix store: the most files that are watched for changes by others at once; each keeps a
/// descriptor.
pub(crate) const WATCHES_MAX: usize = 1 << 14;

/// Posix store: bytes of events fetched by one system call.
pub(crate) const WATCH_BUFFER_BYTES: usize = 16 * 1024;

/// Posix store: system calls for events in one go.
pub(crate) const WATCH_READS_MAX: usize = 16;

/// Posix store: what is told as the most links of a file; the kernel has the last word.
pub(crate) const POSIX_LINKS_MAX: u32 = 65_000;

const _: () = assert!(SCAN_SLICE_ENTRIES_MIN < SCAN_SLICE_ENTRIES_MAX);
const _: () = assert!(SCAN_WANTED_MAX < GONE_IDS_MAX);
const _: () = assert!(NODES_MIN >= NODE_SHARDS && NODES_MIN <= NODES_MAX);

/// Striped store: the least and the most bytes of a stripe.
pub(crate) const STRIPE_BYTES_MIN: u32 = 4096;
/// See [`STRIPE_BYTES_MIN`].
pub(crate) const STRIPE_BYTES_MAX: u32 = 1 << 30;

/// Striped store: components that a local node keeps open.
pub(crate) const COMPONENTS_OPEN_MAX: usize = 512;

/// Striped store: of these, those that are closed at once when there are too many.
pub(crate) const COMPONENTS_CLOSED: usize = COMPONENTS_OPEN_MAX / 8;

/// Striped store: how long a local node waits for requests that are under way on a component.
pub(crate) const FORGET_WAIT: Duration = Duration::from_secs(2);

/// Striped store: removed files whose components one sweep takes away.
pub(crate) const REMOVALS_PER_SWEEP: usize = 256;

/// Striped store: the longest entry of a list of files; one has the numbers of some nodes.
pub(crate) const LIST_ENTRY_BYTES_MAX: usize = 16 << 10;

/// Striped store: the longest list of nodes that are being emptied, or have lost what they had.
pub(crate) const NODE_MARKS_BYTES_MAX: usize = 64 << 10;

/// Striped store: the longest file that says which node a directory is of.
pub(crate) const NODE_MARKER_BYTES_MAX: usize = 256;

/// Striped store: what is copied at once of a file that is moved, while nobody else uses the file.
pub(crate) const MOVE_BYTES: usize = 1 << 20;

/// Striped store: entries of a directory that are looked at in one go for files to be moved.
pub(crate) const WALK_ENTRIES: usize = 1024;

/// Striped store: the most devices that are remembered.
pub(crate) const DEVICES_MAX: usize = 1024;

/// Copies of a file: how often something is attempted while copies are given up or clients come between.
pub(crate) const COPY_ATTEMPTS_MAX: usize = 16;

/// Copies of a file: how long a thread naps that waits for data servers which cannot be reached, and how
/// often: longer than these believe anything.
pub(crate) const SURE_NAP: Duration = Duration::from_millis(100);
/// See [`SURE_NAP`].
pub(crate) const SURE_NAPS_MAX: usize = 100;

/// Copies of a file: how often it is tried again to write to a node that serves others first. It lets the
/// caller wait each time.
pub(crate) const COPY_TURNS_MAX: usize = 10;

/// Copies of files: the most threads that do so at once.
pub(crate) const SURE_WAITERS_MAX: usize = 4;

/// Copies of a file: how long this server waits for clients to give their layouts back before it writes.
pub(crate) const RETURN_WAIT: Duration = Duration::from_secs(2);

/// Copies of a file: how long clients get no layouts for writing after that.
pub(crate) const LENDING_PAUSE: Duration = Duration::from_secs(5);

/// Copies of a file: the same after a piece was mended.
pub(crate) const MEND_BAR: Duration = Duration::from_secs(10);

/// Copies of a file: how much is mended in one piece.
pub(crate) const MEND_PIECE_BYTES: usize = 1 << 20;

/// Copies of a file: how long one is left alone that a client could not write to, at first and at most.
pub(crate) const COPY_REPORT_PAUSE: Duration = Duration::from_secs(15);
/// See [`COPY_REPORT_PAUSE`].
pub(crate) const COPY_REPORT_PAUSE_MAX: Duration = Duration::from_secs(600);

/// Copies of files: the most files that are kept in mind because their copies may differ.
pub(crate) const TORN_FILES_MAX: usize = 4096;

/// The most tries to open a cluster of an engine that are under way at a time: who tries again and again leaves no
/// more behind in waits that have no end.
pub(crate) const OPENS_MAX: usize = 16;

const _: () = assert!(STRIPE_BYTES_MIN.is_multiple_of(64));
