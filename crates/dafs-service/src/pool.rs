//! Where front ends have jobs run that may wait, and data read that is not in memory.

use crate::{Origin, Place};
use dafs_store::OpenFile;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Something to run that may wait.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs elsewhere. The simulator brings its own.
pub trait Pool: Send + Sync {
    /// Takes a job of the server's own; never waits.
    fn submit(&self, job: Job);

    /// Takes a job of a client. It may wait for other machines: those of one lane never keep the jobs of
    /// others from running, however long they wait; lane 0 is that of jobs that wait for none.
    fn submit_to(&self, place: Place, job: Job) {
        let _ = place;
        self.submit(job);
    }
}

/// A range of a file.
pub struct FileRange {
    /// The file.
    pub file: Arc<dyn OpenFile>,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: usize,
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file: _, offset, bytes } = self;
        f.debug_struct("FileRange")
            .field("offset", offset)
            .field("bytes", bytes)
            .finish_non_exhaustive()
    }
}

/// Reads ranges of local files into the page cache of the kernel, and waits for none of them. One
/// thread has it, that of a reactor.
pub trait PageReads: Send {
    /// Takes a range, which the next [`turn`](Self::turn) begins to read for a caller of `origin`.
    /// Returns false if a thread has to read it instead.
    fn begin(&mut self, token: u64, origin: Origin, range: FileRange) -> bool;

    /// Begins the reads that were taken, and adds the tokens of those that have ended, whether or not
    /// the pages are there now. A read that ends later makes the event descriptor `wakes` readable.
    /// The descriptor is the same in each call. `now_ns` is the time of the monotonic clock. Returns
    /// the time of the next turn if there are reads that the kernel could not begin.
    fn turn(&mut self, now_ns: u64, wakes: BorrowedFd<'_>, ended: &mut Vec<u64>) -> Option<u64>;
}
