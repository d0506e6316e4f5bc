//! A join of a database: records at places that a hash chooses, some of them fetched ahead, and work
//! on each.
//!
//! Invariants
//! * The oldest fetch is waited for, so that the place of each in memory is free when it comes again.
//! * Each record is compared with the expected one.

use crate::files::FILE_BYTES;
use crate::rdma;
use anyhow::{Context, Result, ensure};
use dafs_client::{File, IoBuffer, Pending};
use dafs_mem::{Site, VolatileSlice};
use dafs_nfs_client::mount::PendingRead;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The work on a record.
const WORK: Duration = Duration::from_micros(10);

/// A file of fixed records whose fetches can be started ahead.
pub(super) trait Table {
    type Pending;

    /// Starts to fetch a record at `offset` to a place in memory.
    fn fetch(&self, slot: usize, offset: u64) -> Result<Self::Pending>;

    /// Waits for a record; returns its length.
    fn wait(&self, pending: Self::Pending) -> Result<usize>;

    /// The memory of a place.
    fn memory(&self, slot: usize) -> Option<VolatileSlice<'_>>;
}

/// The file of a DAFS client.
pub(super) struct DafsTable<'a> {
    pub(super) file: &'a File,
    pub(super) buffer: &'a IoBuffer,
    pub(super) block: usize,
}

impl Table for DafsTable<'_> {
    type Pending = Pending<usize>;

    fn fetch(&self, slot: usize, offset: u64) -> Result<Self::Pending> {
        let range = slot * self.block..(slot + 1) * self.block;
        Ok(self.file.submit_read(self.buffer, range, offset)?)
    }

    fn wait(&self, pending: Self::Pending) -> Result<usize> {
        Ok(pending.wait()?)
    }

    fn memory(&self, slot: usize) -> Option<VolatileSlice<'_>> {
        self.buffer.slice(slot * self.block, self.block)
    }
}

/// The file of an NFS client.
pub(super) struct NfsTable<'a> {
    pub(super) target: &'a rdma::Target,
    pub(super) block: usize,
}

impl Table for NfsTable<'_> {
    type Pending = PendingRead;

    fn fetch(&self, slot: usize, offset: u64) -> Result<Self::Pending> {
        self.target.fetch(slot * self.block..(slot + 1) * self.block, offset)
    }

    fn wait(&self, pending: Self::Pending) -> Result<usize> {
        Ok(pending.wait()?)
    }

    fn memory(&self, slot: usize) -> Option<VolatileSlice<'_>> {
        self.target.memory().view().slice(slot * self.block, self.block)
    }
}

/// Fetches records of `block` bytes for `time`, `depth` of them at a time. With `copied` the program's
/// memory is not aligned, and each record is copied there. Returns their number.
pub(super) fn run<T: Table>(
    table: &T,
    block: usize,
    depth: usize,
    copied: bool,
    time: Duration,
) -> Result<u64> {
    let mut waiting = VecDeque::with_capacity(depth);
    let mut own = vec![0; block + 1];
    let (mut submitted, mut done) = (0u64, 0u64);
    let began = Instant::now();
    loop {
        // At least one, however late this thread runs.
        while waiting.len() < depth && (submitted == 0 || began.elapsed() < time) {
            let slot = submitted as usize % depth;
            let offset = mix(submitted) % (FILE_BYTES / block as u64) * block as u64;
            waiting.push_back((table.fetch(slot, offset)?, slot, offset));
            submitted += 1;
        }
        let Some((pending, slot, offset)) = waiting.pop_front() else { return Ok(done) };
        ensure!(table.wait(pending)? == block, "a short read");
        let memory = table.memory(slot).context("too little memory")?;
        let mut first = [0; 8];
        if copied {
            memory.copy_to(&mut own[1..], Site::Inspect);
            first.copy_from_slice(&own[1..9]);
        } else {
            memory.copy_to(&mut first, Site::Inspect);
        }
        // The file has the numbers of its words.
        ensure!(u64::from_le_bytes(first) == offset / 8, "another record was read");
        work();
        done += 1;
    }
}

/// Keeps the processor busy, as a program does with a record.
fn work() {
    let began = Instant::now();
    while began.elapsed() < WORK {
        std::hint::spin_loop();
    }
}

/// A number in which each bit depends on all of `number` (splitmix64).
pub(super) fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Buffer;
    use std::cell::Cell;

    const BLOCK: usize = 16;

    /// A table in memory, which counts what is under way.
    struct Memory {
        buffer: Buffer,
        under_way: Cell<usize>,
        most: Cell<usize>,
        /// Added to the content of each record.
        wrong: u64,
    }

    impl Memory {
        fn new(depth: usize, wrong: u64) -> Self {
            let buffer = Buffer::zeroed(depth * BLOCK).expect("memory");
            Self { buffer, under_way: Cell::new(0), most: Cell::new(0), wrong }
        }
    }

    impl Table for Memory {
        type Pending = ();

        fn fetch(&self, slot: usize, offset: u64) -> Result<()> {
            let content = (offset / 8 + self.wrong).to_le_bytes();
            let memory = self.memory(slot).context("a place")?;
            memory.copy_from(&content, Site::Inspect);
            self.under_way.set(self.under_way.get() + 1);
            self.most.set(self.most.get().max(self.under_way.get()));
            Ok(())
        }

        fn wait(&self, (): ()) -> Result<usize> {
            self.under_way.set(self.under_way.get() - 1);
            Ok(BLOCK)
        }

        fn memory(&self, slot: usize) -> Option<VolatileSlice<'_>> {
            self.buffer.view().slice(slot * BLOCK, BLOCK)
        }
    }

    #[test]
    fn records_are_fetched_ahead_and_compared() {
        for (depth, copied) in [(1, false), (4, false), (4, true)] {
            let table = Memory::new(depth, 0);
            let time = Duration::from_millis(1);
            let done = run(&table, BLOCK, depth, copied, time).expect("all are right");
            assert!(done > 0);
            assert!(table.most.get() <= depth, "{} of {depth}", table.most.get());
            assert_eq!(table.under_way.get(), 0);
        }
        let table = Memory::new(1, 1);
        assert!(run(&table, BLOCK, 1, false, Duration::ZERO).is_err());
    }
}
