//! Every limit and default of the command, in one place.

use std::time::Duration;

/// Burst of log lines of one cause, and the interval of further ones.
pub(crate) const LOG_BURST: u32 = 50;
/// See [`LOG_BURST`].
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Quiet time of a cause after which any other line reports its suppressed lines.
pub(crate) const LOG_QUIET: Duration = Duration::from_secs(5);

/// The same for lines of one cause about one peer.
pub(crate) const LOG_PEER_BURST: u32 = 5;
/// See [`LOG_PEER_BURST`].
pub(crate) const LOG_PEER_INTERVAL: Duration = Duration::from_secs(10);

/// Most peers tracked for one cause, and most characters of their names.
pub(crate) const LOG_PEERS_MAX: usize = 256;
/// See [`LOG_PEERS_MAX`].
pub(crate) const LOG_PEER_CHARACTERS_MAX: usize = 64;

/// Blocks of this size and more are mapped one by one, unless a heap has room for them.
pub(crate) const MAPPED_BYTES_MIN: i32 = 4 << 20;

/// Interval of checks for unused memory, and the least amount to return.
pub(crate) const TRIM_INTERVAL: Duration = Duration::from_secs(5);
/// See [`TRIM_INTERVAL`].
pub(crate) const TRIM_BYTES_MIN: usize = 4 << 20;

/// Threads that copy or remove.
pub(crate) const WORKERS: usize = 8;

/// Small files that a worker has under way, each with its content in a message. Together they need more
/// credits than a session has, so the server never waits for a file.
pub(crate) const SMALL_UNDER_WAY_MAX: usize = 8;

/// Bytes of a piece in which files are copied.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Most outstanding pieces of one large file.
pub(crate) const PIECES_PER_FILE_MAX: usize = 8;

/// Pieces that all workers share, beyond the one that each has for itself. Together they bound the
/// memory of a copy.
pub(crate) const SHARED_PIECES: usize = PIECES_PER_FILE_MAX;

/// Most objects in the queue.
pub(crate) const QUEUED_OBJECTS_MAX: usize = 256;

/// Objects that met a full file system and are tried again at the end of the copy. Each keeps its
/// directory open.
pub(crate) const LATE_OBJECTS_MAX: usize = 1024;

/// After so many of them that are longer than a piece did not fit alone, no longer ones are tried:
/// each fills the file system once more.
pub(crate) const LATE_FAILURES_MAX: u32 = 4;

/// The pause before they are tried again. Some servers free space late.
pub(crate) const LATE_PAUSE: Duration = Duration::from_secs(1);

/// The longest time that all directories of a copy together wait for space.
pub(crate) const ROOM_WAIT: Duration = Duration::from_secs(10);

/// Granularity of the search for zeros in a sparse file, in bytes: the smallest hole of common file
/// systems.
pub(crate) const HOLE_BYTES: usize = 4096;

/// Attempts to find a free temporary name.
pub(crate) const TEMPORARY_NAME_TRIES: usize = 16;

/// Attempts to send a file after the server has lost acknowledged writes.
pub(crate) const SENDS_MAX: usize = 8;

/// Time for the workers to clean up after the first signal, before the process ends regardless.
pub(crate) const TIDY_TIME: Duration = Duration::from_secs(2);

/// Most outstanding pieces of one file in `cat`.
pub(crate) const CAT_PIECES: usize = 4;

/// Files below this length are read in one round trip, without an open. With its header, such a
/// file fits the message size that the client proposes.
pub(crate) const SMALL_BYTES: usize = 8192;

/// Entries that `rm -r` takes from a listing at a time.
pub(crate) const REMOVE_BATCH: usize = 512;

/// Removals that one thread of `rm -r` has under way.
pub(crate) const REMOVALS_UNDER_WAY_MAX: usize = 64;

/// Times that `rm -r` lists a directory again because it was not empty after all.
pub(crate) const REMOVE_PASSES_MAX: usize = 16;

/// Bytes of a password read from a file, standard input or the terminal.
pub(crate) const PASSWORD_BYTES_MAX: usize = 1024;

/// Bytes of a token for administration.
pub(crate) const TOKEN_BYTES_MAX: u64 = 1024;

/// Characters of a password that is made here: five random bits each.
pub(crate) const GENERATED_PASSWORD_CHARACTERS: usize = 24;

/// The time over which `dafs status` counts requests.
pub(crate) const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait of `dafs top` for a key, until it looks for new counts and another size of the terminal.
pub(crate) const TOP_TICK: Duration = Duration::from_millis(100);

const _: () = assert!(TOP_TICK.as_secs() == 0);

/// Bytes of one extended attribute, as Linux limits them.
pub(crate) const XATTR_BYTES_MAX: usize = 64 << 10;

/// Time between two redraws of the progress line.
pub(crate) const PROGRESS_TICK: Duration = Duration::from_millis(200);

/// Time between two lines about the progress of a server's work, where no line can be drawn again.
pub(crate) const PROGRESS_LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The age of an unfinished file that `dafs clean` removes where it cannot see whether a copy is writing
/// it.
pub(crate) const PART_AGE: Duration = Duration::from_secs(24 * 3600);

/// A file longer than this is made stable after each so many bytes by `dafs sync`, and a later run goes
/// on behind them.
pub(crate) const RESUME_BYTES: u64 = 128 << 20;

const _: () = assert!(RESUME_BYTES > PIECE_BYTES as u64);

/// Longest sleep of a copy with a bandwidth limit, between checks whether it has been stopped.
pub(crate) const PACE_STEP: Duration = Duration::from_millis(100);

/// The longest description of a workload, in bytes.
pub(crate) const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;

/// Most machines and servers whose constants `dafs advise` keeps, and most bytes of the file.
pub(crate) const MEASUREMENTS_MAX: usize = 16;
/// See [`MEASUREMENTS_MAX`].
pub(crate) const MEASUREMENTS_BYTES_MAX: u64 = 1 << 20;

/// Time for reactors to report their numbers before the counts are logged.
pub(crate) const COUNTS_SETTLE: Duration = Duration::from_millis(50);

const _: () = assert!(PIECE_BYTES.is_multiple_of(HOLE_BYTES));

/// Default deadline for a server's answer, in seconds.
pub(crate) const DEADLINE_SECONDS: u64 = 60;

/// Default time of retries after a lost connection, in seconds.
pub(crate) const RECOVERY_SECONDS: u64 = 120;

/// Practically unlimited, in seconds: ten years.
pub(crate) const EVER_SECONDS: u64 = 10 * 365 * 24 * 3600;
