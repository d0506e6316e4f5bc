//! Every limit and default of the mount, in one place.

use std::time::Duration;

/// The longest write that the kernel sends, in bytes.
pub const WRITE_BYTES_MAX: u32 = 1 << 20;

/// The longest read that is answered, in bytes: the kernel asks for no more pages than a write has.
pub const READ_BYTES_MAX: usize = WRITE_BYTES_MAX as usize;

/// The longest answer to a listing, in bytes.
pub const LISTING_BYTES_MAX: usize = 1 << 20;

/// The kernel's read-ahead, in bytes, if it agrees.
pub const READ_AHEAD_BYTES: u32 = 1 << 20;

/// Requests in the background, such as read-ahead, that the kernel has outstanding.
pub const BACKGROUND_REQUESTS: u16 = 64;

/// Threads that carry out requests, each one at a time.
pub const THREADS_DEFAULT: usize = 32;

/// The most threads that may be asked for.
pub const THREADS_MAX: usize = 256;

/// Threads that wait for a request at a time. With one request after the other they take turns, and
/// so does their memory.
pub const RECEIVERS_MAX: usize = 4;

/// Further threads, each for one request that may wait for other mounts, when all others are busy.
pub const ASIDE_MAX: usize = 256;

/// Reads at a time that were handed over to the thread that drives the client.
pub const HANDED_READS_MAX: usize = 64;

/// The longest of these, in bytes: copying one delays all other operations of the client.
pub const HANDED_READ_BYTES_MAX: usize = 16 << 10;

/// The default timeout of the kernel's cache of attributes and names.
pub const CACHE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);

/// Requests for locks that wait or are about to be answered at a time; each has a thread of its
/// own.
pub const LOCK_WAITERS_MAX: usize = 256;

/// Interrupted requests that are remembered because they may turn out to wait for a lock.
pub const INTERRUPTS_KEPT: usize = 64;

/// The longest delay until a waiting request for a lock notices an interrupt.
pub const LOCK_SIGNAL_PAUSE: Duration = Duration::from_millis(100);

/// The timeout for messages between the two processes of a handover. All programs that use the
/// mount wait as well.
pub const HANDOVER_PATIENCE: Duration = Duration::from_secs(60);

/// The longest time in which the second of them opens and locks the state of the first: surely less
/// than the first waits for it.
pub const HANDOVER_FILL: Duration = Duration::from_secs(45);

/// The time that the first of them waits for operations that are under way to end.
pub const HANDOVER_STOP_PATIENCE: Duration = Duration::from_secs(10);

/// The longest time in which the first of them makes the kernel drop its pages, and the server
/// learn of deferred opens.
pub const HANDOVER_KEEPING_PATIENCE: Duration = Duration::from_secs(10);

/// The time that the first of them waits for requests for locks that are under way.
pub const HANDOVER_LOCKS_PATIENCE: Duration = Duration::from_secs(5);

/// How long a process that asks for a mount waits until one listens: a moment after the hand-over before.
pub const HANDOVER_MEETING: Duration = Duration::from_secs(5);

/// The pause of a process that waits until the address of the former process is free, or in use again.
pub const HANDOVER_PAUSE: Duration = Duration::from_millis(10);

/// The longest message of a handover, in bytes: enough for ten million nodes.
pub const HANDOVER_BYTES_MAX: u64 = 1 << 30;

/// The most memory, in bytes, for unstable writes to all files of a mount. When it is used up, the
/// data of one file is made stable first.
pub const KEPT_BYTES_MAX: usize = 64 << 20;

/// From this length on, in bytes, a write is retained in its receive buffer, which is as long as
/// the longest write; shorter ones are copied together.
pub const KEPT_UNCOPIED_MIN: usize = 256 << 10;

/// The longest piece into which short writes are copied, in bytes.
pub const KEPT_PIECE_BYTES_MAX: usize = 64 << 10;

/// The assumed overhead of a piece, in bytes: its place in a tree whose nodes are half full, and
/// the overhead of a short allocation.
pub const KEPT_PIECE_COST: usize = 320;

/// The bytes of a file after which its retained writes are made stable early: at first, and the
/// fewest. About as many as the caches of a processor hold.
pub const EARLY_COMMIT_BYTES_FIRST: usize = 8 << 20;
/// See [`EARLY_COMMIT_BYTES_FIRST`].
pub const EARLY_COMMIT_BYTES_MIN: usize = 4 << 20;

/// The reciprocal of the part of the time of writing that early commits may take.
pub const EARLY_COMMIT_SHARE: u32 = 32;

/// Attempts in a row to retransmit the writes of a file, for a server that loses them again and
/// again, or while more is added than is made stable.
pub const KEPT_ATTEMPTS_MAX: usize = 8;

/// The timeout for making retained writes stable when the mount ends or is handed over.
pub const KEPT_PATIENCE: Duration = Duration::from_secs(30);

/// Delegated files; each costs the server a descriptor.
pub const DELEGATED_FILES_MAX: usize = 8192;

/// The interval at which the lease is checked while files are delegated. A small part of the third
/// of a lease (10 s) that is left when a client stops to trust it.
pub const PROMISE_LOOK: Duration = Duration::from_secs(1);

/// Threads that make the kernel drop pages when the lease may be over: the number at first.
pub const DROPPING_THREADS_AT_ONCE: usize = 32;

/// The number when the kernel waits for reads that are not answered.
pub const DROPPING_THREADS_MAX: usize = 1024;

/// A drop of pages that takes longer than this waits for reads.
pub const DROP_HANGS: Duration = Duration::from_millis(100);

/// The range that is dropped in one step even if it waits for a read there, in bytes.
pub const DROPPED_TOGETHER: u64 = 1 << 20;

/// The timeout of telling the server that a mount is gone.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// The most files that are known to have neither setuid nor setgid.
pub const PLAIN_FILES_MAX: usize = 1024;

/// Threads whose users are remembered.
pub const CALLERS_MAX: usize = 4096;

/// The longest time for which the supplementary groups of a thread are remembered.
pub const GROUPS_AGE_MAX: Duration = Duration::from_secs(1);

/// Users that may open a delegated file without the server.
pub const ADMITTED_USERS_MAX: usize = 64;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The longest value of an extended attribute, in bytes, as Linux limits it.
pub const XATTR_BYTES_MAX: usize = 64 << 10;

/// The longest list of names of a file's extended attributes, in bytes, as Linux limits it.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// The space reported for a server that does not report any, in bytes.
pub const SPACE_UNKNOWN_BYTES: u64 = 1 << 50;

/// Places for recent changes. For changes that share one, some entries of listings have only a
/// name, and the kernel looks them up.
pub const CHANGE_PLACES: usize = 4096;

/// The unit in which space is reported, in bytes.
pub const BLOCK_BYTES: u32 = 4096;

const _: () = assert!(HANDED_READ_BYTES_MAX <= READ_BYTES_MAX);
const _: () = assert!(KEPT_UNCOPIED_MIN <= WRITE_BYTES_MAX as usize);
const _: () = assert!(KEPT_BYTES_MAX >= 2 * (WRITE_BYTES_MAX as usize + KEPT_PIECE_COST));
const _: () = assert!(EARLY_COMMIT_BYTES_MIN <= EARLY_COMMIT_BYTES_FIRST);
const _: () = assert!(2 * EARLY_COMMIT_BYTES_FIRST <= KEPT_BYTES_MAX);
const _: () = assert!(HANDOVER_FILL.as_secs() + 5 <= HANDOVER_PATIENCE.as_secs());
const _: () = assert!(
    KEPT_PATIENCE.as_secs()
        + HANDOVER_KEEPING_PATIENCE.as_secs()
        + HANDOVER_LOCKS_PATIENCE.as_secs()
        + HANDOVER_STOP_PATIENCE.as_secs()
        < HANDOVER_PATIENCE.as_secs()
);
const _: () = assert!(DROPPING_THREADS_AT_ONCE <= DROPPING_THREADS_MAX);
const _: () = assert!(THREADS_DEFAULT <= THREADS_MAX && READ_AHEAD_BYTES <= WRITE_BYTES_MAX);
