//! The limits of this crate.

use std::time::Duration;

/// Served files get no descriptors above this number.
pub(crate) const DESCRIPTORS_MAX: usize = 1 << 16;

/// The longest file that can be mapped, in bytes: its whole content is copied to memory.
pub(crate) const MAPPED_BYTES_MAX: usize = 1 << 30;

/// Most entries of one directory that are cached during a listing.
pub(crate) const DIRECTORY_ENTRIES_MAX: usize = 4 << 20;

/// Most bytes that one call of `copy_file_range` or `sendfile` moves.
pub(crate) const COPY_BYTES_MAX: usize = 1 << 20;

/// Memory for read-ahead, for all files of a server together.
pub(crate) const READ_AHEAD_MEMORY_BYTES: usize = 8 << 20;

/// Most bytes that one read or write moves, as in Linux.
pub(crate) const IO_BYTES_MAX: usize = 0x7fff_f000;

/// Buffers of one vectored call, as in Linux.
pub(crate) const VECTORS_MAX: usize = 1024;

/// The longest record that a descriptor carries, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 10;

/// The longest path, in bytes, as in Linux.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// Time for ending the sessions when the program ends.
pub(crate) const GOODBYE_TIME: Duration = Duration::from_secs(2);

/// Time that a call goes on after a termination signal, while the connection to the server is up.
pub(crate) const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(10);

/// The same for calls after one that has given up.
pub(crate) const GIVEN_UP_PATIENCE: Duration = Duration::from_secs(1);

/// Attempts to find a free name for a temporary file.
pub(crate) const TEMPORARY_TRIES_MAX: u32 = 100;

/// Descriptors of this library have this number or above, where the limit of the process allows.
pub(crate) const OWN_DESCRIPTORS_MIN: i32 = 896;

/// Time that a lock request waits before it checks for a signal.
pub(crate) const LOCK_WAIT_TIME: Duration = Duration::from_millis(200);

/// Time between two attempts to lock a directory.
pub(crate) const HOST_LOCK_MILLISECONDS: i32 = 20;

/// Attempts to take a lock whose file another thread closes meanwhile.
pub(crate) const OWNERS_TRIES_MAX: u32 = 100;

/// Most levels that `nftw` walks.
pub(crate) const WALK_DEPTH_MAX: usize = 1024;

/// Most file actions of one thread, at a time, that change a child's directory.
pub(crate) const SPAWN_PLACES_MAX: usize = 1 << 12;

/// Most blocks of one `lio_listio`.
pub(crate) const AIO_BLOCKS_MAX: usize = 1 << 16;

/// Smallest size of a page of memory.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Most function names in a report, and most bytes of the path of each.
pub(crate) const NAMED_KINDS_MAX: usize = 16;
pub(crate) const NAMED_BYTES_MAX: usize = 256;

/// Time after which a holder checks again whether another holder of the same open file has the
/// lock.
pub(crate) const HOLDER_LOOK_MILLISECONDS: i32 = 5;
