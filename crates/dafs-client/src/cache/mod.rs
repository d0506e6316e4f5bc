//! A cache of file content in the client: a read cache, a write-back cache, and read-ahead for
//! sequential readers.
//!
//! It holds content of a file only under a delegation, the server's promise to recall it before
//! anybody else changes the file: a read delegation allows to cache reads, a write delegation
//! writes, too. All open files of one client that are the same file share its content.
//!
//! | file | what it does |
//! |---|---|
//! | `content`, `block`, `pool`, `ranges` | valid, dirty and moving bytes, and their memory |
//! | `stream` | detection of sequential readers, and their read-ahead |
//! | `run` | sequential runs after which a delegation is asked for |
//! | `state` | the state of each file beside its content, under the one lock |
//! | `moves` | requests that fill memory and write dirty data back |
//! | `file` | reads and writes through the cache |
//! | `direct` | uses of a file that bypass the cache, and their coherence |
//! | `recall` | delegations come and go |
//!
//! Invariants
//! * Without a delegation no data is cached and none is dirty, so every operation goes to the
//!   server.
//! * Cached data is used only while the client knows that its lease holds.
//! * Data is copied in and out under the lock, atomically with the check that it may be; the lock
//!   is never held while a request is made or waited for.
//! * This lock is taken before the driver's, never under it. So the end of a [`DirectUse`] under
//!   the driver's lock takes none, and holders of delegations are called without it.
//! * Dirty data of a file belongs to one open file at a time, which gets the error of its loss.
//! * A use of a file that bypasses the cache sees all writes before it; while one that changes the
//!   file is under way, no data of it is cached.
//! * Every entry point of the application checks that this is no fork before it takes the lock.

mod block;
mod content;
mod direct;
mod file;
mod moves;
mod pool;
mod ranges;
mod recall;
mod run;
mod state;
mod stream;

#[cfg(test)]
mod content_prop;

pub(crate) use direct::{DirectUse, Effect};
pub(crate) use file::CacheUse;
#[cfg(test)]
pub(crate) use file::CachedFile;

use crate::fork::ForkMutex;
use crate::limits::{CACHE_BYTES_DEFAULT, CACHE_BYTES_MIN, READ_AHEAD_BYTES_DEFAULT};
use dafs_mem::Condvar;
use state::State;
use std::sync::MutexGuard;

/// Options of a client's cache. Fields may be added, so it is best written with
/// `..CacheOptions::new(bytes)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheOptions {
    /// The most memory it takes, in bytes; rounded down to MiB, and at least 4 MiB.
    pub bytes: usize,
    /// The most dirty data, in bytes; at most half of `bytes`.
    pub unwritten_bytes: u64,
    /// The most that is read ahead for a sequential reader at a time, in bytes; 0 for none.
    pub read_ahead_bytes: u64,
    /// Ask for delegations only for files that are open for reading alone, and only after they have
    /// been read in sequence for a while; cache no writes. It suits programs that mostly have no
    /// use for a cache, and that may be killed at any time.
    pub readers_only: bool,
}

impl CacheOptions {
    /// Options with so much memory.
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes,
            unwritten_bytes: (bytes / 4) as u64,
            read_ahead_bytes: READ_AHEAD_BYTES_DEFAULT,
            readers_only: false,
        }
    }

    /// Options with so much memory, for sequential readers alone.
    pub fn for_readers(bytes: usize) -> Self {
        Self { unwritten_bytes: 0, readers_only: true, ..Self::new(bytes) }
    }
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self::new(CACHE_BYTES_DEFAULT)
    }
}

/// The cache of one client.
#[derive(Debug)]
pub(crate) struct Cache {
    options: CacheOptions,
    state: ForkMutex<State>,
    /// Signals that a request has ended, or that one in flight can be waited for.
    changed: Condvar,
}

impl Cache {
    pub(crate) fn new(options: CacheOptions) -> Self {
        let bytes = options.bytes.max(CACHE_BYTES_MIN);
        let half = bytes as u64 / 2;
        let options = CacheOptions {
            bytes,
            unwritten_bytes: options.unwritten_bytes.min(half),
            read_ahead_bytes: options.read_ahead_bytes.min(half / 2),
            ..options
        };
        Self { options, state: ForkMutex::new(State::new(bytes)), changed: Condvar::new() }
    }

    /// True when delegations are asked for at the open.
    pub(crate) fn wants_at_open(&self) -> bool {
        !self.options.readers_only
    }

    /// Holds the lock, for tests.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock_here()
    }
}
