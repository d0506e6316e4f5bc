//! The file side of a load: reads or writes, sorted, adjacent ones in one call.
//!
//! Invariants
//! * A load runs on one thread at a time: on the reactor until it has to wait, then on the pool. It
//!   keeps the files and memory that it uses alive.
//! * A failure is isolated: a part that cannot be read or written does not affect its neighbours.

use super::Transfer;
use super::plan::{self, Part};
use crate::engine::allowed::{Anonymous, LateWrites};
use crate::engine::transfers::{Transfers, Windows};
use crate::limits::STAGING_CHUNK_BYTES;
use crate::ops::read::{READ, checksum_of, views};
use crate::ops::write::WRITE;
use dafs_mem::{Buffer, VolatileSlice};
use dafs_service::{Handle, OpenState, ServiceError};
use dafs_store::{OpenFile, Stability, StoreError, Wait};
use dafs_wire::dafs::Checksum;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// Memory views of one call. The kernel would not take more.
const VIEWS_MAX: usize = 256;

/// The memory of a transfer's data.
pub(super) enum Memory {
    /// In the client's own memory, mapped.
    Windows(Windows),
    /// In the load's chunks, from this position on.
    Staged(usize),
}

/// The data of a transfer for the file side.
struct Data {
    handle: Handle,
    file: Arc<dyn OpenFile>,
    open: Option<Arc<OpenState>>,
    /// It has no open.
    anonymous: Option<Anonymous>,
    late_writes: Option<LateWrites>,
    memory: Memory,
    bytes: usize,
}

/// A part of one run. The parts of a run are adjacent in one file.
#[derive(Debug)]
struct Step {
    part: Part,
    done: usize,
    error: Option<StoreError>,
    /// The index of the part behind the run.
    run_end: usize,
}

/// The file side of a load, opaque outside.
pub struct LoadIo {
    write: bool,
    data: Vec<Data>,
    chunks: Vec<Arc<Buffer>>,
    steps: Vec<Step>,
    next: usize,
}

impl fmt::Debug for LoadIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadIo({} of {} parts)", self.next, self.steps.len())
    }
}

/// The result of a transfer on the file side.
pub(super) struct Ending {
    /// Bytes from the start of its data without a gap.
    pub(super) bytes: usize,
    pub(super) error: Option<StoreError>,
}

impl LoadIo {
    /// Makes the load of transfers with data in `memory`.
    pub(super) fn new(
        transfers: &[Transfer],
        memory: Vec<Memory>,
        chunks: Vec<Arc<Buffer>>,
        by: &Transfers<'_>,
    ) -> Self {
        let write = transfers.first().is_some_and(|transfer| transfer.write);
        let need = if write { WRITE } else { READ };
        let data = transfers.iter().zip(memory).map(|(transfer, memory)| Data {
            handle: transfer.handle,
            file: transfer.file.clone(),
            open: transfer.open.clone(),
            anonymous: by.anonymous(&transfer.handle, transfer.open.as_ref(), need),
            late_writes: transfer.late_writes.clone(),
            memory,
            bytes: transfer.bytes,
        });
        Self { write, data: data.collect(), chunks, steps: Vec::new(), next: 0 }
    }

    /// Plans the calls for the `transfers` that `wanted` selects.
    pub(super) fn plan(&mut self, transfers: &[Transfer], wanted: impl Fn(usize) -> bool) {
        let mut parts = Vec::with_capacity(transfers.len());
        for (index, transfer) in transfers.iter().enumerate().filter(|(index, _)| wanted(*index)) {
            plan::parts(index, &transfer.chunks, transfer.bytes, &mut parts);
        }
        // Opens of a file in the order of their arrival, which is the same in every run.
        let identity = |index: usize| {
            let file = &self.data[index].file;
            let first = self.data.iter().position(|data| Arc::ptr_eq(&data.file, file));
            (file.id().0, first)
        };
        let order = |one: usize, other: usize| {
            let same = Arc::ptr_eq(&self.data[one].file, &self.data[other].file);
            if same { Ordering::Equal } else { identity(one).cmp(&identity(other)) }
        };
        plan::sort(&mut parts, order);
        let mut ends: Vec<usize> = Vec::with_capacity(parts.len());
        for index in (0..parts.len()).rev() {
            let joins = parts.get(index + 1).is_some_and(|next| {
                order(parts[index].transfer, next.transfer).is_eq() && parts[index].meets(next)
            });
            let end = if joins { ends.last().copied() } else { None };
            ends.push(end.unwrap_or(index + 1));
        }
        let steps = parts.into_iter().zip(ends.into_iter().rev());
        self.steps =
            steps.map(|(part, run_end)| Step { part, done: 0, error: None, run_end }).collect();
    }

    /// Goes on with reads or writes. Returns false when it would have to wait and may not.
    pub(super) fn proceed(&mut self, wait: Wait) -> bool {
        while let Some(step) = self.steps.get(self.next) {
            let data = &self.data[step.part.transfer];
            let revoked = |open: &Arc<OpenState>| self.write && open.file(WRITE).is_err();
            if data.open.as_ref().is_some_and(revoked) {
                // Another client may hold the file by now.
                self.fail(StoreError::Stale);
                continue;
            }
            if let Err(error) = Anonymous::check(data.anonymous.as_ref()) {
                self.fail(error);
                continue;
            }
            let offset = step.part.offset + step.done as u64;
            let run_end = step.run_end;
            match self.overtake(data, run_end, wait) {
                Ok(()) => {}
                Err(ServiceError::WouldWait) => return false,
                Err(_) => {
                    self.fail(StoreError::Busy);
                    continue;
                }
            }
            let views = self.run_views(&self.steps[self.next..run_end]);
            let result = if self.write {
                data.file.write_at(&views, offset, Stability::Unstable, wait)
            } else {
                data.file.read_at(&views, offset, wait)
            };
            drop(views);
            match result {
                Ok(0) if !self.write => self.next = run_end,
                Ok(0) if wait == Wait::Never => return false,
                Ok(0) => self.fail(StoreError::NoSpace),
                Ok(count) => self.advance(count),
                Err(StoreError::WouldBlock) if wait == Wait::Never => return false,
                Err(error) => self.fail(error),
            }
        }
        true
    }

    /// Orders earlier writes of its client at data servers before a run.
    fn overtake(&self, data: &Data, run_end: usize, wait: Wait) -> dafs_service::Result<()> {
        let Some(late_writes) = &data.late_writes else { return Ok(()) };
        let run = &self.steps[self.next..run_end];
        let offset = run.first().map_or(0, |step| step.part.offset + step.done as u64);
        let len = run.iter().map(|step| (step.part.len - step.done) as u64).sum();
        late_writes.before(&data.handle, (offset, len), wait)
    }

    fn run_views(&self, run: &[Step]) -> SmallVec<[VolatileSlice<'_>; 16]> {
        let mut views = SmallVec::new();
        for step in run {
            let (at, len) = (step.part.at + step.done, step.part.len - step.done);
            self.transfer_views(step.part.transfer, at, len, &mut views);
            if views.len() >= VIEWS_MAX {
                break;
            }
        }
        views
    }

    fn transfer_views<'a>(
        &'a self,
        transfer: usize,
        at: usize,
        len: usize,
        views: &mut SmallVec<[VolatileSlice<'a>; 16]>,
    ) {
        let (mut at, mut left) = (at, len);
        match &self.data[transfer].memory {
            Memory::Windows(windows) => {
                for window in windows {
                    let skip = at.min(window.len());
                    let len = left.min(window.len() - skip);
                    views.extend(window.view().slice(skip, len).filter(|view| !view.is_empty()));
                    at -= skip;
                    left -= len;
                }
            }
            Memory::Staged(base) => {
                at += base;
                while left > 0 {
                    let (chunk, offset) = (at / STAGING_CHUNK_BYTES, at % STAGING_CHUNK_BYTES);
                    let len = left.min(STAGING_CHUNK_BYTES - offset);
                    views.extend(self.chunks.get(chunk).and_then(|c| c.slice(offset, len)));
                    at += len;
                    left -= len;
                }
            }
        }
    }

    fn fail(&mut self, error: StoreError) {
        self.steps[self.next].error = Some(error);
        self.next += 1;
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0
            && let Some(step) = self.steps.get_mut(self.next)
        {
            let took = count.min(step.part.len - step.done);
            step.done += took;
            count -= took;
            if step.done == step.part.len {
                self.next += 1;
            }
        }
    }

    /// Returns the result of each transfer.
    pub(super) fn endings(&self) -> Vec<Ending> {
        let mut order: Vec<&Step> = self.steps.iter().collect();
        order.sort_by_key(|step| (step.part.transfer, step.part.at));
        let mut endings: Vec<_> =
            self.data.iter().map(|_| Ending { bytes: 0, error: None }).collect();
        for step in order {
            let ending = &mut endings[step.part.transfer];
            if ending.bytes == step.part.at && ending.error.is_none() {
                ending.bytes += step.done;
                ending.error = step.error;
            }
        }
        endings
    }

    /// Returns the checksum of the first `bytes` bytes of a transfer's data.
    pub(super) fn checksum(&self, transfer: usize, bytes: usize) -> Checksum {
        match &self.data[transfer].memory {
            Memory::Windows(windows) => checksum_of(&views(windows, bytes), bytes),
            Memory::Staged(_) => {
                let mut staged = SmallVec::new();
                self.transfer_views(transfer, 0, bytes, &mut staged);
                checksum_of(&staged, bytes)
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.iter().map(|data| data.bytes).sum()
    }
}
