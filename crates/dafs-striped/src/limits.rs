//! Every limit of the striped store, in one place.

use std::time::Duration;

/// Removed files whose components one sweep takes away.
pub(crate) const REMOVALS_PER_SWEEP: usize = 256;

/// The longest entry of a list of files; one has the numbers of some nodes.
pub(crate) const LIST_ENTRY_BYTES_MAX: usize = 16 << 10;

/// The longest list of nodes that are being emptied, or have lost what they had.
pub(crate) const NODE_MARKS_BYTES_MAX: usize = 64 << 10;

/// What is copied at once of a file that is moved, while nobody else uses the file.
pub(crate) const MOVE_BYTES: usize = 1 << 20;

/// Entries of a directory that are looked at in one go for files to be moved.
pub(crate) const WALK_ENTRIES: usize = 1024;

/// The most devices that are remembered.
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
