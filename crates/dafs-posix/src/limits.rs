//! All limits and defaults of the store of a local directory.

use std::time::Duration;

/// Shards of the node cache, each with its own lock.
pub(crate) const NODE_SHARDS: usize = 16;

/// The share of the process's descriptors that cached nodes of one store may use by default.
pub(crate) const NODE_DESCRIPTOR_SHARE: u64 = 4;

/// The least and the most descriptors that cached nodes of one store take.
pub(crate) const NODES_MIN: usize = 64;
/// See [`NODES_MIN`].
pub(crate) const NODES_MAX: usize = 65_536;

/// The most names with a hint that the store holds their object.
pub(crate) const NAME_HINTS: usize = 1 << 14;

/// The most ids that listings remember.
pub(crate) const KNOWN_IDS_MAX: usize = 1 << 16;

/// Shards of the table of these ids, each with its own lock.
pub(crate) const KNOWN_SHARDS: usize = 16;

/// The least age of the times of an inode whose id is remembered. It is no less than the step of
/// any clock from which a file system takes them.
pub(crate) const KNOWN_AGE_SECONDS: i64 = 1;

/// The nodes that end one sweep.
pub(crate) const SWEEP_NODES: usize = 4096;

/// Nodes dropped at once when the process runs out of descriptors.
pub(crate) const NODES_EVICTED_ON_SHORTAGE: usize = 64;

/// The most retries of an operation after descriptors were freed.
pub(crate) const DESCRIPTOR_RETRIES_MAX: usize = 3;

/// The most retries of opening by handle while the kernel reports a lack of memory.
pub(crate) const HANDLE_RETRIES_MAX: usize = 32;

/// The pause between the later retries.
pub(crate) const HANDLE_RETRY_PAUSE: Duration = Duration::from_micros(200);

/// The most attempts of a create while the name appears and disappears.
pub(crate) const CREATE_RETRIES_MAX: usize = 8;

/// The most entries of the index from ids to names.
pub(crate) const INDEX_ENTRIES_MAX: usize = 1 << 18;

/// The most ids remembered as gone for good.
pub(crate) const GONE_IDS_MAX: usize = 1 << 14;

/// The most entries that one scan for a lost object reads.
pub(crate) const SCAN_ENTRIES_MAX: usize = 1_000_000;

/// The most entries that one call reads of a scan.
pub(crate) const SCAN_SLICE_ENTRIES_MAX: usize = 4096;

/// The time after which a call leaves a scan to the next one.
pub(crate) const SCAN_SLICE_MS: u64 = 20;

/// The entries that a call reads at least, so that a scan makes progress.
pub(crate) const SCAN_SLICE_ENTRIES_MIN: usize = 256;

/// The most objects that are looked for at once.
pub(crate) const SCAN_WANTED_MAX: usize = 1 << 12;

/// The time for which an object that a scan did not find counts as gone.
pub(crate) const MISSING_KEEP_MS: u64 = 3_000;

/// The greatest depth of a directory that is followed up or down, so that a check takes less than a
/// tenth of a second.
pub(crate) const DEPTH_MAX: usize = 1 << 14;

/// The time for which a check that a directory is inside the export is valid.
pub(crate) const CONTAINED_CHECK_MS: u64 = 100;

/// The time for which the check of other objects is valid, of which there are many more.
pub(crate) const CONTAINED_FILE_CHECK_MS: u64 = 1000;

/// Directory listings kept open between pages.
pub(crate) const DIRECTORY_STREAMS_MAX: usize = 32;

/// Bytes of directory entries fetched by one system call.
pub(crate) const DIRECTORY_BUFFER_BYTES: usize = 32 * 1024;

/// The largest buffered write that is done inline where the file system cannot promise not to
/// block. Front ends hand over no larger pieces.
pub(crate) const INLINE_WRITE_BYTES_MAX: usize = 1024 * 1024;

/// The most objects with a count of changes within one tick of the clock.
pub(crate) const CHANGE_COUNTS_MAX: usize = 1 << 16;

/// The bits that remember dropped counts.
pub(crate) const CHANGE_GONE_BITS: usize = 1 << 20;

/// The bound of the count that is added to a ctime for changes within one tick, in nanoseconds. It
/// is less than any tick.
pub(crate) const COUNTS_PER_TICK: u64 = 999_999;

/// The most files that are watched for local changes at once; each keeps a descriptor.
pub(crate) const WATCHES_MAX: usize = 1 << 14;

/// Bytes of events fetched by one system call.
pub(crate) const WATCH_BUFFER_BYTES: usize = 16 * 1024;

/// The most system calls for events in one turn.
pub(crate) const WATCH_READS_MAX: usize = 16;

/// The reported limit of links of a file. The kernel enforces its own.
pub(crate) const POSIX_LINKS_MAX: u32 = 65_000;

const _: () = assert!(SCAN_SLICE_ENTRIES_MIN < SCAN_SLICE_ENTRIES_MAX);
const _: () = assert!(SCAN_WANTED_MAX < GONE_IDS_MAX);
const _: () = assert!(NODES_MIN >= NODE_SHARDS && NODES_MIN <= NODES_MAX);
