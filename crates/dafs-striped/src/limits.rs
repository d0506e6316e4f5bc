//! All limits of the striped store.

use dafs_store::node::DIGEST_BYTES_MAX;
use std::time::Duration;

/// The most stripes that one advice reads ahead, by a call each.
pub(crate) const AHEAD_STRIPES_MAX: usize = 128;

/// Entries of a list that one sweep works off.
pub(crate) const REMOVALS_PER_SWEEP: usize = 256;

/// The longest entry of a list of files, which holds the numbers of some nodes.
pub(crate) const LIST_ENTRY_BYTES_MAX: usize = 16 << 10;

/// The longest list of nodes that are being emptied or have lost their data.
pub(crate) const NODE_MARKS_BYTES_MAX: usize = 64 << 10;

/// The piece of a moving file that is copied at once, with the gate held exclusively.
pub(crate) const MOVE_BYTES: usize = 1 << 20;

/// Directory entries that are read at once in the search for files to be moved.
pub(crate) const WALK_ENTRIES: usize = 1024;
/// The longest path of a directory that a walk tells: the kernel's PATH_MAX.
pub(crate) const WALK_PATH_BYTES_MAX: usize = 4096;

/// The most devices that the store remembers.
pub(crate) const DEVICES_MAX: usize = 1024;

/// Attempts of an operation on copies, while copies are given up or clients get layouts.
pub(crate) const COPY_ATTEMPTS_MAX: usize = 16;

/// The pause between two attempts while data servers cannot be reached. All attempts together last
/// longer than their cached authorisations.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The most such pauses; see [`RETRY_PAUSE`].
pub(crate) const GRANT_WAITS_MAX: usize = 100;

/// Attempts to write to a crowded node. The node makes the caller wait each time.
pub(crate) const COPY_TURNS_MAX: usize = 10;

/// The most threads that pause at once for unreachable data servers.
pub(crate) const GRANT_WAITERS_MAX: usize = 4;

/// The longest wait for clients to return their layouts before this server writes.
pub(crate) const RETURN_WAIT: Duration = Duration::from_secs(2);

/// The time for which clients get no layouts for writing after that.
pub(crate) const LENDING_PAUSE: Duration = Duration::from_secs(5);

/// The time for which clients get no layouts for writing after a piece was repaired.
pub(crate) const REPAIR_BAR: Duration = Duration::from_secs(10);

/// The bytes of a copy that are repaired at once.
pub(crate) const REPAIR_PIECE_BYTES: usize = 1 << 20;

const _: () = assert!(REPAIR_PIECE_BYTES <= DIGEST_BYTES_MAX);

/// The bytes of each copy up to which a comparison asks the nodes one after the other. A thread takes longer to
/// start than a node to read so little.
pub(crate) const DIGEST_ALONE_BYTES: usize = 64 << 10;

/// The delay of the repair of a copy that a client could not write to, the first time.
pub(crate) const COPY_REPORT_PAUSE: Duration = Duration::from_secs(15);
/// The longest such delay; see [`COPY_REPORT_PAUSE`].
pub(crate) const COPY_REPORT_PAUSE_MAX: Duration = Duration::from_secs(600);

/// The most files that the store keeps in memory because their copies may differ.
pub(crate) const TORN_FILES_MAX: usize = 4096;
