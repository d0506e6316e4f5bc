//! The interface of the log to its environment.

use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Runs a job that waits for the disk, later than the call itself. Such a job never waits for
/// another one.
pub type Spawn = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

/// A store of segments, by number.
pub trait Disk: Send + Sync + 'static {
    /// The numbers of all segments, in any order.
    fn list(&self) -> io::Result<Vec<u64>>;

    /// The key of the checksums of records: random, the same for the life of the journal, and
    /// secret. A client that knows it can store payloads that are taken for records after a crash.
    fn key(&self) -> [u8; 16];

    /// A whole segment.
    fn read(&self, segment: u64) -> io::Result<Vec<u8>>;

    /// Makes a segment of `len_bytes`. Writes to it need no other data to be stable than their own.
    /// From now on the segment exists with its size, also after a loss of power. Its content does
    /// not matter: it may be that of a removed segment. An existing one is replaced.
    fn make(&self, segment: u64, len_bytes: u64) -> io::Result<()>;

    /// Writes into a segment, which grows beyond its end if necessary. Later reads see the data,
    /// also by another process.
    fn write(&self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all writes to a segment stable.
    fn sync(&self, segment: u64) -> io::Result<()>;

    /// How long it pays to wait for other requests for a sync, when as many are expected as the
    /// last one served. Zero where time does not pass by itself.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// Removes a segment. It may reappear after a loss of power.
    fn remove(&self, segment: u64) -> io::Result<()>;

    /// The name of a segment in messages.
    fn name(&self, segment: u64) -> String;
}
