//! Reads into the page cache by a ring, for the reactor of another front end.
//!
//! Invariants
//! * No client gets a byte that is read here. All reads of a ring fill the same memory at the same
//!   time, and no code reads that memory. A request whose pages have come runs again, with all its
//!   checks, and finds them in the page cache.
//! * A range that was taken ends once: its pages have come, or the kernel has refused or failed the
//!   read. Then the request finds out by itself that they are missing.
//! * Reads that the kernel cannot begin now, for want of memory for instance, are tried again in each
//!   turn of the reactor, which comes as soon as for an engine.
//! * The table of the ring keeps each file and the memory, as for reads of an engine. The memory stays
//!   when the reactor ends first.

use super::kernel::{Kernel, ReadRing, Unbegun};
use super::read::{DiskRead, ReadMemory};
use super::{DiskRing, Ended, Reading};
use crate::limits::PAGE_READ_BYTES_MAX;
use dafs_dat::Instant;
use dafs_mem::Buffer;
use dafs_service::{FileRange, Origin, PageReads};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A ring of io_uring that brings pages of files into memory.
pub struct PageRing {
    /// Until the thread that uses it is known.
    fresh: Option<ReadRing>,
    ring: Option<DiskRing<u64>>,
    memory: Arc<Buffer>,
    /// Kept for its memory.
    ended: Vec<Ended<u64>>,
}

impl PageRing {
    /// Wraps a ring. The thread of the first turn uses it from then on.
    ///
    /// # Errors
    /// There is no memory for 64 KiB.
    pub fn new(ring: ReadRing) -> io::Result<Self> {
        let memory = Arc::new(Buffer::zeroed(PAGE_READ_BYTES_MAX)?);
        Ok(Self { fresh: Some(ring), ring: None, memory, ended: Vec::new() })
    }

    pub(super) fn turn_by(
        &mut self,
        now_ns: u64,
        ended: &mut Vec<u64>,
        submit: impl FnOnce(&mut Kernel) -> Result<(), Unbegun>,
    ) -> Option<u64> {
        let ring = self.ring.as_mut()?;
        ring.reap(&mut self.ended);
        ring.flush_by(Instant(now_ns), &mut self.ended, submit);
        ended.extend(self.ended.drain(..).map(|ended| match ended {
            Ended::Done(token, _) => token,
            Ended::Refused(reading) => reading.pending,
        }));
        ring.retry_at().map(|time| time.0)
    }
}

impl PageReads for PageRing {
    fn begin(&mut self, token: u64, origin: Origin, range: FileRange) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let FileRange { file, offset, bytes } = range;
        if !(1..=PAGE_READ_BYTES_MAX).contains(&bytes) {
            return false;
        }
        let memory = (ReadMemory::Buffer(self.memory.clone()), 0);
        let read = DiskRead::new((file, None), memory, (offset, bytes));
        ring.begin(Reading { pending: token, origin, lane: 0, read }).is_none()
    }

    fn turn(&mut self, now_ns: u64, wakes: BorrowedFd<'_>, ended: &mut Vec<u64>) -> Option<u64> {
        if let Some(ring) = self.fresh.take() {
            match DiskRing::enable(ring, Some(wakes)) {
                Ok(ring) => self.ring = Some(ring),
                Err(error) => tracing::warn!(
                    %error,
                    "a reactor has no io_uring: the pool carries out its reads from disks"
                ),
            }
        }
        self.turn_by(now_ns, ended, Kernel::submit)
    }
}
