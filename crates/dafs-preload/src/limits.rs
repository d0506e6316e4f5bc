//! The limits of this crate.

use std::time::Duration;

/// Descriptors above this number are not given out for served files.
pub(crate) const DESCRIPTORS_MAX: usize = 1 << 16;

/// The longest file that is mapped, in bytes: its content is in this process's memory then.
pub(crate) const MAPPED_BYTES_MAX: usize = 1 << 30;

/// Entries of one directory that are kept while it is read.
pub(crate) const DIRECTORY_ENTRIES_MAX: usize = 4 << 20;

/// Bytes that one call of `copy_file_range` or `sendfile` moves at most.
pub(crate) const COPY_BYTES_MAX: usize = 1 << 20;

/// Memory for what is read ahead, for all files of a server together.
pub(crate) const READ_AHEAD_MEMORY_BYTES: usize = 8 << 20;

/// The most that one read or write moves, as in Linux.
pub(crate) const IO_BYTES_MAX: usize = 0x7fff_f000;

/// Buffers of one vectored call, as in Linux.
pub(crate) const VECTORS_MAX: usize = 1024;

/// The longest record that a descriptor carries, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 10;

/// The longest path, in bytes, as in Linux.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// Time for saying goodbye to the servers when the program ends.
pub(crate) const GOODBYE_TIME: Duration = Duration::from_secs(2);

/// How long a call goes on that a signal is to end, while the connection to the server is there.
pub(crate) const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(10);

/// The same for the calls after one that has been given up.
pub(crate) const GIVEN_UP_PATIENCE: Duration = Duration::from_secs(1);

/// How often a name is made up for a temporary file before giving up.
pub(crate) const TEMPORARY_TRIES_MAX: u32 = 100;

/// Descriptors of our own are this number or above, where the limit of the process allows.
pub(crate) const OWN_DESCRIPTORS_MIN: i32 = 896;

/// How long a lock is waited for before a look whether a signal is to be handled.
pub(crate) const LOCK_WAIT_TIME: Duration = Duration::from_millis(200);

/// How long a lock of a directory is waited for before another try.
pub(crate) const HOST_LOCK_MILLISECONDS: i32 = 20;

/// How often a lock is taken anew because its file was closed by another thread meanwhile.
pub(crate) const OWNERS_TRIES_MAX: u32 = 100;

/// How deep `nftw` walks.
pub(crate) const WALK_DEPTH_MAX: usize = 1024;

/// Actions of one thread that send children to directories, at a time.
pub(crate) const SPAWN_PLACES_MAX: usize = 1 << 12;

/// Blocks of one `lio_listio` that are looked at.
pub(crate) const AIO_BLOCKS_MAX: usize = 1 << 16;

/// Pages of memory are at least so long, and begin at multiples.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Names of functions in a report, and bytes of the path of each.
pub(crate) const NAMED_KINDS_MAX: usize = 16;
pub(crate) const NAMED_BYTES_MAX: usize = 256;

/// Scripts that are interpreted by scripts, and so on, as in Linux.
pub(crate) const INTERPRETERS_MAX: usize = 5;

/// After how long a holder looks again whether another one of the same open file has got the lock.
pub(crate) const HOLDER_LOOK_MILLISECONDS: i32 = 5;
