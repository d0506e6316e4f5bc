//! A cache of file content in the client: what was read is kept, what is written is collected, and
//! sequential readers are read ahead for.
//!
//! It keeps content of a file only while the server has promised to ask before anybody else changes
//! the file: by right of a read delegation what was read, by right of a write delegation what is
//! written, too. All open files of one client that are the same file share what is kept.
//!
//! | file | what it does |
//! |---|---|
//! | `content`, `block`, `pool`, `ranges` | which bytes are known, changed, in flight, and where; no I/O |
//! | `stream` | who reads in sequence, and how far ahead to read for it |
//! | `run` | who reads in sequence for so long that a delegation is asked for |
//! | `state` | what is kept of each file beside its content, under the one lock |
//! | `moves` | requests that fill memory and write changed data back |
//! | `file` | reads and writes through the cache |
//! | `direct` | uses of a file beside the cache, which are kept right |
//! | `recall` | delegations come and go |
//!
//! Invariants
//! * Without a delegation nothing is kept and nothing unwritten, so every operation goes to the server.
//! * What is kept is used only while the client knows that its lease holds.
//! * Data is copied in and out under the lock, in one step with the check that it may be; the lock is
//!   never held while a request is made or waited for.
//! * This lock is taken before that of the driver, never under it. So what ends under the driver's
//!   lock ([`DirectUse`]) takes none, and holders of delegations are called without it.
//! * Changed data of a file belongs to one open file at a time, which is told of a loss.
//! * A use of a file beside the cache sees what was written before it; while one that changes the
//!   file is under way, nothing is kept of it.
//! * Whatever the application calls makes sure that this is no fork before it takes the lock.

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

pub(crate) use direct::{DirectUse, Use};
pub(crate) use file::CacheUse;
#[cfg(test)]
pub(crate) use file::CachedFile;

use crate::fork::ForkMutex;
use crate::limits::{CACHE_BYTES_DEFAULT, CACHE_BYTES_MIN, READ_AHEAD_BYTES_DEFAULT};
use state::State;
use std::sync::{Condvar, MutexGuard};

/// What a client may keep of files. There may be more of it one day, so it is best written with
/// `..CacheOptions::new(bytes)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheOptions {
    /// The most memory it takes, in bytes; rounded down to MiB, and at least 4 MiB.
    pub bytes: usize,
    /// The most data that is changed and not written back yet, in bytes; at most half of `bytes`.
    pub unwritten_bytes: u64,
    /// The most that is read ahead for a sequential reader at a time, in bytes; 0 for nothing.
    pub read_ahead_bytes: u64,
    /// Ask the server for its promise only for files that are opened for reading alone, and when they
    /// have been read in sequence for a while; keep nothing that is written. For programs most of
    /// which have no use for a cache, and which may be killed at any time.
    pub readers_only: bool,
}

impl CacheOptions {
    /// With so much memory.
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes,
            unwritten_bytes: (bytes / 4) as u64,
            read_ahead_bytes: READ_AHEAD_BYTES_DEFAULT,
            readers_only: false,
        }
    }

    /// With so much memory, for sequential readers alone.
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
    /// A request has ended, or one that is in flight can be waited for.
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

    /// Whether delegations are asked for when files are opened.
    pub(crate) fn wants_at_open(&self) -> bool {
        !self.options.readers_only
    }

    /// Keeps everybody else out of it.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock_here()
    }
}
