//! Reads that wait for the disk, and the way of each: the kernel's ring (io_uring) where there is one
//! and the file lends its descriptor, else the pool.
//!
//! Invariants
//! * The ring owns each of its reads, with the open file and the memory, until the kernel has
//!   completed it: also when its connection is gone. With a ring that ends before, the memory stays for
//!   ever. The open file goes: it may keep the state of the server open, and the next one needs that.
//! * A read in the ring has begun, so X_CANCEL comes too late for it.
//! * A ring that is full, refuses or fails leaves a read to the pool, which then tells the result.
//! * Reads that the kernel cannot begin now, for want of memory for instance, wait in the ring for a
//!   bounded time. Then the ring is given up, and the pool has them.
//! * A reactor has at most [`DISK_READS_MAX`] reads in its ring, and one host or local user has at most
//!   [`DISK_READS_PER_ORIGIN_MAX`] of them. Others are on the pool, where they have their turns.
//! * The reads of a turn begin together at its end.

mod kernel;
mod pages;
mod read;
mod table;
#[cfg(test)]
mod tests;

pub use kernel::ReadRing;
pub use pages::PageRing;
pub(crate) use read::{DiskRead, ReadMemory};

use super::Engine;
use super::request::{Call, Context};
use super::work::{JobResult, PendingId, ReadEnd, Work, submit};
use crate::limits::{DISK_READS_MAX, DISK_READS_PER_ORIGIN_MAX, DISK_RETRY_TIME, DISK_STALL_TIME};
use dafs_dat::Instant;
use dafs_service::{Handle, Origin};
use kernel::{Kernel, Unbegun};
use read::Next;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::iter::Sum;
use std::os::fd::BorrowedFd;
use table::{Table, Tag};

/// The reads of single requests that had to wait for the disk so far, by their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskReads {
    /// Those that the kernel's ring has taken.
    pub ring: u64,
    /// Those that the pool has taken, also after the ring.
    pub pool: u64,
}

impl Sum for DiskReads {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, reads| Self {
            ring: sum.ring + reads.ring,
            pool: sum.pool + reads.pool,
        })
    }
}

/// An engine's ways to the disk.
#[derive(Default)]
pub(super) struct Disk {
    ring: Option<DiskRing<PendingId>>,
    reads: DiskReads,
    /// Kept for its memory.
    ended: Vec<Ended<PendingId>>,
}

/// A read in the ring.
struct Reading<P> {
    /// The request that waits for it.
    pending: P,
    origin: Origin,
    /// The lane of the pool for its store.
    lane: u64,
    read: DiskRead,
}

/// A read that has left the ring.
enum Ended<P> {
    Done(P, ReadEnd),
    /// The pool reads the rest.
    Refused(Reading<P>),
}

/// A ring and its reads. A front end names its requests by `P`.
struct DiskRing<P> {
    kernel: Kernel,
    table: Table<Reading<P>>,
    /// The number of reads in the table by origin, where there is any.
    origins: FxHashMap<Origin, usize>,
    /// The reads that have not begun, in the order of the queue.
    fresh: Vec<Tag>,
    /// The kernel did not begin them the last time.
    stall: Option<Stall>,
    /// Kept for its memory.
    completions: Vec<(u64, i32)>,
}

/// A time in which the kernel begins no reads.
#[derive(Debug, Clone, Copy)]
struct Stall {
    since: Instant,
    /// The time of the next attempt, if the reactor has no other turn before.
    retry_at: Instant,
}

impl<P: Copy> DiskRing<P> {
    fn enable(ring: ReadRing, wakes: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let (kernel, table) = (ring.enable(wakes)?, Table::default());
        let (origins, fresh, completions) = (FxHashMap::default(), Vec::new(), Vec::new());
        Ok(Self { kernel, table, origins, fresh, stall: None, completions })
    }

    /// Takes a read, or returns it.
    fn begin(&mut self, reading: Reading<P>) -> Option<Reading<P>> {
        let own = self.origins.get(&reading.origin).copied().unwrap_or(0);
        let is_full = own >= DISK_READS_PER_ORIGIN_MAX || self.table.len() >= DISK_READS_MAX;
        if is_full || self.stall.is_some() {
            return Some(reading);
        }
        self.origins.insert(reading.origin, own + 1);
        let tag = self.table.insert(reading);
        if self.push(tag) { None } else { self.leave(tag) }
    }

    /// Takes a read out of the table.
    fn leave(&mut self, tag: Tag) -> Option<Reading<P>> {
        let reading = self.table.take(tag)?;
        if let Entry::Occupied(mut own) = self.origins.entry(reading.origin) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        Some(reading)
    }

    /// Queues the rest of a read for the kernel. Returns false if that cannot be.
    fn push(&mut self, tag: Tag) -> bool {
        let reading = self.table.get_mut(tag);
        let Some((file, offset, view)) = reading.and_then(|reading| reading.read.operation())
        else {
            return false;
        };
        // SAFETY: the table keeps the read, which owns the file and the memory, until this completion
        // was taken, or the ring is given up with the read in its queue. The drop below leaks the memory
        // of reads that are under way, and nothing is submitted after it.
        let pushed = unsafe { self.kernel.push(tag.0, (file, offset), view) };
        if pushed {
            self.fresh.push(tag);
        }
        pushed
    }

    /// Begins the queued reads.
    fn flush(&mut self, now: Instant, ended: &mut Vec<Ended<P>>) {
        self.flush_by(now, ended, Kernel::submit);
    }

    fn flush_by(
        &mut self,
        now: Instant,
        ended: &mut Vec<Ended<P>>,
        submit: impl FnOnce(&mut Kernel) -> Result<(), Unbegun>,
    ) {
        if self.fresh.is_empty() {
            return;
        }
        let Err(unbegun) = submit(&mut self.kernel) else {
            self.fresh.clear();
            self.stall = None;
            return;
        };
        let begun = self.fresh.len().saturating_sub(self.kernel.unsubmitted());
        self.fresh.drain(..begun);
        let since = self.stall.filter(|_| begun == 0).map_or(now, |stall| stall.since);
        let error = match unbegun {
            Unbegun::Later(error) if now.since(since) < DISK_STALL_TIME => {
                tracing::debug!(%error, "io_uring begins no more reads of a reactor for now");
                self.stall = Some(Stall { since, retry_at: now + DISK_RETRY_TIME });
                return;
            }
            Unbegun::Later(error) | Unbegun::Never(error) => error,
        };
        tracing::error!(
            %error,
            "io_uring takes no more reads of a reactor: until a restart the pool reads from disks"
        );
        // They stay in the kernel's queue, which begins none any more.
        self.kernel.give_up();
        self.stall = None;
        let refused = std::mem::take(&mut self.fresh).into_iter();
        let refused = refused.filter_map(|tag| self.leave(tag));
        ended.extend(refused.map(Ended::Refused));
    }

    /// Returns the time at which reads that have not begun are to be tried again.
    fn retry_at(&self) -> Option<Instant> {
        self.stall.map(|stall| stall.retry_at)
    }

    /// Takes the completions.
    fn reap(&mut self, ended: &mut Vec<Ended<P>>) {
        if self.table.is_empty() {
            return;
        }
        let mut completions = std::mem::take(&mut self.completions);
        self.kernel.take(&mut completions);
        for (tag, result) in completions.drain(..) {
            ended.extend(self.completed(Tag(tag), result));
        }
        self.completions = completions;
    }

    fn completed(&mut self, tag: Tag, result: i32) -> Option<Ended<P>> {
        let Some(reading) = self.table.get_mut(tag) else {
            debug_assert!(false, "the kernel completed a read that it did not have");
            return None;
        };
        let pending = reading.pending;
        match reading.read.completed(result) {
            Next::Over(end) => {
                self.leave(tag);
                Some(Ended::Done(pending, end))
            }
            Next::Ring if self.push(tag) => None,
            Next::Ring | Next::Pool => self.leave(tag).map(Ended::Refused),
        }
    }
}

impl<P> Drop for DiskRing<P> {
    fn drop(&mut self) {
        if !self.table.is_empty() {
            tracing::warn!(reads = self.table.len(), "a reactor ends before its reads from a disk");
            for reading in std::mem::take(&mut self.table).into_operations() {
                reading.read.leave_memory();
            }
        }
    }
}

impl Engine {
    /// Lets the kernel carry out reads that wait for the disk, by a ring of the calling thread, which
    /// is the only one that may call `turn` from now on. Completions wake the sleeper on the inbox.
    ///
    /// # Errors
    /// The kernel does not enable the ring for this thread. The pool carries out all reads.
    pub fn use_ring(&mut self, ring: ReadRing) -> io::Result<()> {
        self.disk.ring = Some(DiskRing::enable(ring, self.inbox.descriptor())?);
        Ok(())
    }

    /// Returns the time at which reads that have not begun are to be tried again.
    pub(super) fn retry_of_reads(&self) -> Option<Instant> {
        self.disk.ring.as_ref()?.retry_at()
    }

    /// Counts the reads that had to wait for the disk.
    pub fn disk_reads(&self) -> DiskReads {
        self.disk.reads
    }

    /// Handles reads that the kernel has completed.
    pub(super) fn collect_reads(&mut self, now: Instant) -> bool {
        let mut ended = std::mem::take(&mut self.disk.ended);
        if let Some(ring) = &mut self.disk.ring {
            ring.reap(&mut ended);
        }
        self.end_reads(ended, now)
    }

    /// Begins the reads of this turn.
    pub(super) fn begin_reads(&mut self, now: Instant) {
        let mut ended = std::mem::take(&mut self.disk.ended);
        if let Some(ring) = &mut self.disk.ring {
            ring.flush(now, &mut ended);
        }
        self.end_reads(ended, now);
    }

    fn end_reads(&mut self, mut ended: Vec<Ended<PendingId>>, now: Instant) -> bool {
        let busy = !ended.is_empty();
        for ended in ended.drain(..) {
            match ended {
                Ended::Done(id, end) => self.job_over(id, JobResult::Read(Ok(end)), now),
                Ended::Refused(Reading { pending: id, lane, read, .. }) => {
                    let Some(pending) = self.pending.get_mut(id) else { continue };
                    let (endpoint, port) = (pending.endpoint, pending.call.port as usize);
                    self.with(port, endpoint, now, |context| context.read_on(id, lane, read));
                }
            }
        }
        self.disk.ended = ended;
        busy
    }
}

impl Context<'_> {
    /// Defers a request until a read from the disk is done, in the ring or on the pool.
    pub(crate) fn defer_read(
        &mut self,
        (call, handle): (&Call, &Handle),
        work: Work,
        read: DiskRead,
    ) {
        let id = self.defer(call, work);
        self.read_disk(id, handle, read);
    }

    /// Reads from the disk for a request that waits already.
    pub(crate) fn read_disk(&mut self, id: PendingId, handle: &Handle, read: DiskRead) {
        let lane = self.lane(handle);
        let origin = self.connection.owner.origin;
        let reading = Reading { pending: id, origin, lane, read };
        let left = match &mut self.disk.ring {
            Some(ring) => ring.begin(reading),
            None => Some(reading),
        };
        let Some(Reading { read, .. }) = left else {
            self.disk.reads.ring += 1;
            return;
        };
        self.disk.reads.pool += 1;
        self.submit_in(lane, id, move || JobResult::Read(read.run()));
    }

    /// Reads on the pool the rest of a read that has begun in the ring.
    fn read_on(&mut self, id: PendingId, lane: u64, read: DiskRead) {
        self.disk.reads.pool += 1;
        let pool = (&*self.shared.pool, self.place(lane));
        submit(pool, self.inbox, id, move || JobResult::Read(read.run()));
    }
}
