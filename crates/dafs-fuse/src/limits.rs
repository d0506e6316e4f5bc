//! Every limit and default of the mount, in one place.

use std::time::Duration;

/// The longest write that the kernel sends, in bytes.
pub const WRITE_BYTES_MAX: u32 = 1 << 20;

/// The longest read that is answered, in bytes: the kernel asks for no more pages than a write has.
pub const READ_BYTES_MAX: usize = WRITE_BYTES_MAX as usize;

/// The longest answer to a listing, in bytes.
pub const LISTING_BYTES_MAX: usize = 1 << 20;

/// How far the kernel reads ahead, in bytes, if it is willing to.
pub const READ_AHEAD_BYTES: u32 = 1 << 20;

/// Requests in the background, such as reading ahead, that the kernel has outstanding.
pub const BACKGROUND_REQUESTS: u16 = 64;

/// Threads that carry out requests, each one at a time.
pub const THREADS_DEFAULT: usize = 32;

/// The most threads that may be asked for.
pub const THREADS_MAX: usize = 256;

/// Threads beside these, each for one request that may wait for other mounts, when all others are busy.
pub const ASIDE_MAX: usize = 256;

/// Reads at a time that are answered by others than the threads which have received them.
pub const HANDED_READS_MAX: usize = 64;

/// The longest of these, in bytes: whoever answers one keeps all others waiting while it is copied.
pub const HANDED_READ_BYTES_MAX: usize = 16 << 10;

/// How long the kernel believes attributes and names without asking again.
pub const BELIEF_DEFAULT: Duration = Duration::from_secs(1);

/// Requests for locks that wait or are about to be answered at a time; each has a thread of its own.
pub const LOCK_WAITERS_MAX: usize = 256;

/// Requests that were given up before they were known to wait for a lock, to remember.
pub const INTERRUPTS_KEPT: usize = 64;

/// How long a waiting request for a lock may take to notice a signal to its process.
pub const LOCK_SIGNAL_PAUSE: Duration = Duration::from_millis(100);

/// How long a process that hands a mount over and the one that takes it wait for each other. All
/// programs that use the mount wait as well.
pub const HANDOVER_PATIENCE: Duration = Duration::from_secs(60);

/// How long the second of them takes at most to open and lock what the first has: surely less than that
/// waits for it.
pub const HANDOVER_FILL: Duration = Duration::from_secs(45);

/// How long the first of them waits for operations that are under way to end.
pub const HANDOVER_STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How long the first of them takes at most to let the kernel drop what it keeps, and the server know
/// what is open.
pub const HANDOVER_KEEPING_PATIENCE: Duration = Duration::from_secs(10);

/// How long the first of them waits for requests for locks that are under way.
pub const HANDOVER_LOCKS_PATIENCE: Duration = Duration::from_secs(5);

/// How long a process pauses that waits for the place of the one before it to be free.
pub const HANDOVER_PAUSE: Duration = Duration::from_millis(10);

/// The most that a process may be told that takes a mount over, in bytes: enough for ten million nodes.
pub const HANDOVER_BYTES_MAX: u64 = 1 << 30;

/// The most memory, in bytes, for what was written to all files of a mount and is not stable yet. When it
/// is used up, the data of one file is made stable first.
pub const KEPT_BYTES_MAX: usize = 64 << 20;

/// From this length on, in bytes, a write is kept where it was received, in a buffer as long as the
/// longest write; shorter ones are copied together.
pub const KEPT_UNCOPIED_MIN: usize = 256 << 10;

/// The longest piece into which short writes are copied, in bytes.
pub const KEPT_PIECE_BYTES_MAX: usize = 64 << 10;

/// What a piece is taken to cost beside its data, in bytes: its place in a tree whose nodes are half full,
/// and what a short allocation takes more.
pub const KEPT_PIECE_COST: usize = 320;

/// How often one after the other what is kept of a file is written again, for a server that loses it
/// again and again, or more is added than is made stable.
pub const KEPT_ATTEMPTS_MAX: usize = 8;

/// How long the server may take to make stable what is kept when the mount ends or is handed over.
pub const KEPT_PATIENCE: Duration = Duration::from_secs(30);

/// Files that are kept by right of a delegation; each costs the server a descriptor.
pub const DELEGATED_FILES_MAX: usize = 8192;

/// How often it is looked whether the server still keeps its promises, while files are kept. A small part
/// of the third of a lease (10 s) that is left when a client stops to believe in it.
pub const PROMISE_LOOK: Duration = Duration::from_secs(1);

/// Threads that let the kernel drop files when the server may not keep its promises any more: so many at
/// first.
pub const DROPPING_THREADS_AT_ONCE: usize = 32;

/// And so many when the kernel waits for reads that nobody answers.
pub const DROPPING_THREADS_MAX: usize = 1024;

/// For how long the kernel drops something at most that does not wait for reads.
pub const DROP_HANGS: Duration = Duration::from_millis(100);

/// What the kernel is let drop in one step even if it waits for a read there, in bytes.
pub const DROPPED_TOGETHER: u64 = 1 << 20;

/// How long the server may take to hear that a mount is gone.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// Files that are known for a while to lend nobody's rights, at most.
pub const PLAIN_FILES_MAX: usize = 1024;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The longest value of an extended attribute, in bytes, as Linux limits it.
pub const XATTR_BYTES_MAX: usize = 64 << 10;

/// The most that the names of a file's extended attributes may be long together, in bytes, as Linux
/// limits it.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// The space that a server has that does not say how much, in bytes.
pub const SPACE_UNKNOWN_BYTES: u64 = 1 << 50;

/// Places for what was changed lately. Changes that share one make some entries of listings names alone,
/// which the kernel looks up.
pub const CHANGE_PLACES: usize = 4096;

/// The unit in which space is told, in bytes.
pub const BLOCK_BYTES: u32 = 4096;

const _: () = assert!(HANDED_READ_BYTES_MAX <= READ_BYTES_MAX);
const _: () = assert!(KEPT_UNCOPIED_MIN <= WRITE_BYTES_MAX as usize);
const _: () = assert!(KEPT_BYTES_MAX >= 2 * (WRITE_BYTES_MAX as usize + KEPT_PIECE_COST));
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
