//! Every limit and default of the command, in one place.

use std::time::Duration;

/// Lines of one cause that a server's log takes at once, and how often another one after that.
pub(crate) const LOG_BURST: u32 = 50;
/// See [`LOG_BURST`].
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// How long a cause is quiet before any other line tells what of it was left out.
pub(crate) const LOG_QUIET: Duration = Duration::from_secs(5);

/// The same for lines of one cause about one peer.
pub(crate) const LOG_PEER_BURST: u32 = 5;
/// See [`LOG_PEER_BURST`].
pub(crate) const LOG_PEER_INTERVAL: Duration = Duration::from_secs(10);

/// Peers that are told apart for one cause, and characters of their names.
pub(crate) const LOG_PEERS_MAX: usize = 256;
/// See [`LOG_PEERS_MAX`].
pub(crate) const LOG_PEER_CHARACTERS_MAX: usize = 64;

/// How often it is looked whether a server holds memory that nobody uses, and from how much on.
pub(crate) const TRIM_INTERVAL: Duration = Duration::from_secs(5);
/// See [`TRIM_INTERVAL`].
pub(crate) const TRIM_BYTES_MIN: usize = 4 << 20;

/// Threads that copy or remove, each with one object at a time in hand. Small files are bound by
/// round trips, so this is how many of them are under way together.
pub(crate) const WORKERS: usize = 8;

/// The piece that files are copied in, in bytes.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Pieces of one large file under way together.
pub(crate) const PIECES_PER_FILE_MAX: usize = 8;

/// Pieces that all workers share, beyond the one that each has for itself. With those, this bounds
/// the memory of a copy.
pub(crate) const SHARED_PIECES: usize = PIECES_PER_FILE_MAX;

/// Objects found and not yet taken by a worker.
pub(crate) const QUEUED_OBJECTS_MAX: usize = 256;

/// The step in which zeros of a sparse file are looked for, in bytes: the smallest unit in which
/// common file systems leave holes.
pub(crate) const HOLE_BYTES: usize = 4096;

/// Tries to find a temporary name that is free.
pub(crate) const TEMPORARY_NAME_TRIES: usize = 16;

/// Times that a file is sent because the server has lost what it had taken.
pub(crate) const SENDS_MAX: usize = 8;

/// Time for the workers to tidy up after the first signal, before the process ends regardless.
pub(crate) const TIDY_TIME: Duration = Duration::from_secs(2);

/// Pieces of one file that `cat` keeps under way.
pub(crate) const CAT_PIECES: usize = 4;

/// Files below this length are fetched in one round trip, without being opened; with its header that
/// fits the messages that are proposed to servers.
pub(crate) const SMALL_BYTES: usize = 8192;

/// Entries that `rm -r` takes from a listing at a time.
pub(crate) const REMOVE_BATCH: usize = 512;

/// Times that `rm -r` lists a directory again because it was not empty after all.
pub(crate) const REMOVE_PASSES_MAX: usize = 16;

/// Bytes of a password read from a file, standard input or the terminal.
pub(crate) const PASSWORD_BYTES_MAX: usize = 1024;

/// Bytes of one extended attribute, as Linux limits them.
pub(crate) const XATTR_BYTES_MAX: usize = 64 << 10;

/// Time between two redraws of the progress line.
pub(crate) const PROGRESS_TICK: Duration = Duration::from_millis(200);

/// Time that reactors get to say what they hold before the counts are logged.
pub(crate) const COUNTS_SETTLE: Duration = Duration::from_millis(50);

const _: () = assert!(PIECE_BYTES.is_multiple_of(HOLE_BYTES));

/// Scripts that are interpreted by scripts, as the kernel counts them.
pub(crate) const INTERPRETERS_MAX: usize = 5;

/// How long a server may take to answer, in seconds, if the command line does not say.
pub(crate) const DEADLINE_SECONDS: u64 = 60;

/// How long a lost connection is tried again, in seconds, if the command line does not say.
pub(crate) const RECOVERY_SECONDS: u64 = 120;

/// As good as for ever, in seconds: ten years.
pub(crate) const EVER_SECONDS: u64 = 10 * 365 * 24 * 3600;
