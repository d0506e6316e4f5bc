//! What the log asks of its surroundings.

use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Runs what waits for the disk, some time later and not before it returns. What is handed in never
/// waits for something else that was.
pub type Spawn = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

/// Where segments are kept, by number.
pub trait Disk: Send + Sync + 'static {
    /// The numbers of all segments, in any order.
    fn list(&self) -> io::Result<Vec<u64>>;

    /// What records are sealed with: random, the same for the life of the journal, and known to
    /// nobody else. Who knows it can have payloads stored that are taken for records after a crash.
    fn key(&self) -> [u8; 16];

    /// A whole segment.
    fn read(&self, segment: u64) -> io::Result<Vec<u8>>;

    /// Makes a segment of `len_bytes` that takes writes without needing more than their data to be
    /// stable. It is there, with its size, after a loss of power from now on. Its content does not
    /// matter: it may be that of a removed segment. One that is there already is replaced.
    fn make(&self, segment: u64, len_bytes: u64) -> io::Result<()>;

    /// Writes into a segment, which grows when the end is passed. Later reads see it, even by
    /// another process.
    fn write(&self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all that was written to a segment stable.
    fn sync(&self, segment: u64) -> io::Result<()>;

    /// How long it pays to wait for others that want a sync as well, when as many as last time are
    /// expected; nothing where time does not pass by itself.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// Removes a segment. It may come back after a loss of power.
    fn remove(&self, segment: u64) -> io::Result<()>;

    /// What to call a segment in a message.
    fn name(&self, segment: u64) -> String;
}
