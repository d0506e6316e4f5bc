//! Loads: transfers that are executed together.
//!
//! Invariants
//! * A load holds all the chunks it needs or none, so two loads never deadlock.
//! * With a checksum no byte is written before the data has been compared (DAFS O21).
//! * Read data is sent before the completion that reports it, on the same connection.

use super::io::{Ending, LoadIo, Memory};
use super::plan::{Move, moves};
use super::{Batches, Finished, Transfer, completion, queue};
use crate::engine::convert;
use crate::engine::flows::{Flow, Need};
use crate::engine::hints::Ride;
use crate::engine::request::{Call, Context};
use crate::engine::staging::Staging;
use crate::engine::transfers::{Chunks, Transfers, release};
use crate::engine::work::{JobResult, Pending, PendingId, Work};
use crate::limits::{LOAD_MOVES_MAX, LOAD_TRANSFERS_MAX, STAGING_CHUNK_BYTES};
use crate::ops::read::READ;
use crate::ops::write::WRITE;
use dafs_dat::Access;
use dafs_mem::Buffer;
use dafs_store::Wait;
use dafs_wire::dafs::{BatchCompletions, Checksum, CompletionNotification, Reply, Seq, Status};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The receiver of a load's results.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner {
    /// A synchronous batch.
    Request(PendingId),
    /// The back-control channel.
    Channel,
}

enum Stage {
    /// Not begun, or without chunks yet.
    Waiting,
    /// RDMA reads under way.
    Fetching(usize),
    /// On the pool.
    Job,
}

/// Transfers that are executed together, all in one direction.
pub(crate) struct Load {
    owner: Owner,
    transfers: Vec<Transfer>,
    chunks: Chunks,
    /// Transfers that were refused meanwhile.
    refused: Vec<(usize, Status)>,
    stage: Stage,
}

/// A synchronous batch that waits for its loads.
pub(crate) struct SyncBatch {
    pub(super) completions: Vec<CompletionNotification>,
    pub(super) left: usize,
    /// The number of its transfers that were accepted.
    pub(super) transfers: usize,
    /// Its loads, until it is cancelled: what has begun by then cannot be cancelled later.
    pub(super) loads: Vec<PendingId>,
}

impl Load {
    pub(crate) fn has_job(&self) -> bool {
        matches!(self.stage, Stage::Job)
    }

    pub(crate) fn abandon(self, staging: &mut Staging) {
        release(staging, self.chunks);
    }

    /// True when all its transfers were cancelled.
    pub(super) fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Takes the cancelled transfers of asynchronous batches out of a load that has not begun.
    /// Returns their request-ids.
    pub(super) fn take_canceled(&mut self, canceled: &FxHashSet<u64>) -> Vec<u64> {
        if !self.is_unbegun() {
            return Vec::new();
        }
        let taken = self.transfers.extract_if(.., |transfer| canceled.contains(&transfer.id));
        taken.map(|transfer| transfer.id).collect()
    }

    /// True while it waits for its turn, or for chunks.
    fn is_unbegun(&self) -> bool {
        matches!(self.stage, Stage::Waiting) && self.chunks.is_empty()
    }

    fn is_refused(&self, index: usize) -> bool {
        self.refused.iter().any(|(other, _)| *other == index)
    }

    fn write(&self) -> bool {
        self.transfers.first().is_some_and(|transfer| transfer.write)
    }

    fn bytes(&self) -> usize {
        self.transfers.iter().map(|transfer| transfer.bytes).sum()
    }

    fn chunks_needed(&self) -> usize {
        self.bytes().div_ceil(STAGING_CHUNK_BYTES)
    }

    /// Returns the chunks that it needs to begin. Its writes count for the file system of the first.
    pub(crate) fn need(&self) -> Need {
        let flow = match self.transfers.first() {
            Some(transfer) if transfer.write => Flow::In(transfer.handle.fs),
            _ => Flow::Out,
        };
        Need { chunks: self.chunks_needed(), flow }
    }

    /// Returns the start of each transfer's data in the chunks.
    fn bases(&self) -> impl Iterator<Item = usize> {
        self.transfers.iter().scan(0, |base, transfer| {
            let at = *base;
            *base += transfer.bytes;
            Some(at)
        })
    }

    /// Returns the most RDMA operations that it can take.
    pub(super) fn moves_max(&self) -> usize {
        let buffers: usize = self.transfers.iter().map(|transfer| transfer.buffers.len()).sum();
        buffers + self.chunks_needed()
    }

    /// Begins. The load waits for its turn when there are not enough chunks. Returns the file side
    /// when the data is where that needs it. The ledger of an asynchronous batch has the last word
    /// on what was cancelled.
    fn start(
        &mut self,
        id: PendingId,
        ledger: Option<&Batches>,
        by: &mut Transfers<'_>,
    ) -> Option<LoadIo> {
        let need = if self.write() { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let windows = self.transfers.iter().map(|transfer| by.map(&transfer.buffers, need));
        let windows: Option<Vec<_>> = windows.collect();
        if let Some(windows) = windows {
            let memory = windows.into_iter().map(Memory::Windows).collect();
            self.begin(ledger);
            return Some(self.file_side(memory, Vec::new(), by));
        }
        let Need { chunks, flow } = self.need();
        let Some(chunks) = by.take_chunks(chunks, flow) else {
            by.wait(id, flow);
            return None;
        };
        self.chunks = chunks;
        self.begin(ledger);
        if self.write() && self.fetch(id, by) {
            return None;
        }
        Some(self.staged(by))
    }

    /// Begins the transfers that were not cancelled.
    fn begin(&mut self, ledger: Option<&Batches>) {
        let (Owner::Channel, Some(ledger)) = (self.owner, ledger) else { return };
        let canceled = ledger.begin(self.transfers.iter().map(|transfer| transfer.id));
        self.refused.extend(canceled.into_iter().map(|index| (index, Status::XCanceled)));
    }

    /// Fetches the data of writes. Returns false when there is none.
    fn fetch(&mut self, id: PendingId, by: &mut Transfers<'_>) -> bool {
        let mut fetches = Vec::new();
        for (index, (base, transfer)) in self.bases().zip(&self.transfers).enumerate() {
            if !self.is_refused(index) {
                moves(base, transfer.bytes, &transfer.buffers, &mut fetches);
            }
        }
        if fetches.is_empty() {
            return false;
        }
        self.stage = Stage::Fetching(fetches.len());
        for Move { chunk, offset, remote } in fetches {
            if !by.fetch(id, (self.chunks[chunk], offset), remote) {
                break;
            }
        }
        true
    }

    /// Handles the end of one RDMA read. Returns the file side after the last one.
    fn fetched(&mut self, ok: bool, by: &Transfers<'_>) -> Option<LoadIo> {
        let Stage::Fetching(left) = &mut self.stage else {
            debug_assert!(false, "a load was fetched that had not asked for it");
            return None;
        };
        *left -= 1;
        // Otherwise the connection has broken, and its end releases all its resources.
        let all = ok && *left == 0 && !by.is_closing();
        all.then(|| self.staged(by))
    }

    /// Returns the file side for data in the chunks.
    fn staged(&mut self, by: &Transfers<'_>) -> LoadIo {
        let memory = self.bases().map(Memory::Staged).collect();
        let chunks = self.chunks.iter().map(|&chunk| by.buffer(chunk)).collect();
        self.file_side(memory, chunks, by)
    }

    /// Returns the file side for data in `memory`. A fence or a broken lock may forbid a transfer,
    /// perhaps since the batch was submitted (DAFS 9.3, 11).
    fn file_side(
        &mut self,
        memory: Vec<Memory>,
        chunks: Vec<Arc<Buffer>>,
        by: &Transfers<'_>,
    ) -> LoadIo {
        let mut io = LoadIo::new(&self.transfers, memory, chunks, by);
        let need = if self.write() { WRITE } else { READ };
        for (index, transfer) in self.transfers.iter().enumerate() {
            let spans = transfer.chunks.iter().map(|chunk| (chunk.offset, chunk.byte_count.into()));
            let anonymous = transfer.open.is_none().then_some(need);
            let access = by.check_access(&transfer.handle, anonymous, spans);
            self.refused.extend(access.err().map(|status| (index, status)));
        }
        for (index, transfer) in self.transfers.iter().enumerate() {
            let wrong = |sum| io.checksum(index, transfer.bytes) != sum;
            if !self.is_refused(index) && transfer.expected.is_some_and(wrong) {
                self.refused.push((index, Status::ChkSum));
            }
        }
        io.plan(&self.transfers, |index| self.refused.iter().all(|(other, _)| *other != index));
        io
    }

    /// Writes read data into the client's memory. The last write of a chunk frees it.
    fn place(&self, finished: &[(usize, CompletionNotification)], by: &mut Transfers<'_>) {
        let mut writes = Vec::new();
        if !self.write() && !self.chunks.is_empty() {
            for ((base, transfer), (_, done)) in self.bases().zip(&self.transfers).zip(finished) {
                moves(base, done.bytes_transferred as usize, &transfer.buffers, &mut writes);
            }
        }
        for (index, &chunk) in self.chunks.iter().enumerate() {
            let mut own = writes.iter().filter(|part| part.chunk == index).peekable();
            if own.peek().is_none() {
                by.give_back(chunk);
            }
            while let Some(Move { offset, remote, .. }) = own.next() {
                if !by.place((chunk, *offset), *remote, own.peek().is_none()) {
                    // The connection broke. Posted work still completes, and a chunk whose last
                    // write was not posted is free when the writes before it are flushed.
                    by.give_back(chunk);
                    by.drop_session("data cannot be placed");
                    break;
                }
            }
        }
    }
}

/// Gathers transfers into loads, sorted by direction, file and offset. A load has up to one staging
/// chunk, or one transfer.
pub(super) fn gather(mut transfers: Vec<Transfer>, owner: Owner) -> Vec<Load> {
    let key = |transfer: &Transfer| {
        let offset = transfer.chunks.first().map_or(0, |chunk| chunk.offset);
        (transfer.write, transfer.file.id().0, offset)
    };
    transfers.sort_by_cached_key(key);
    let mut loads: Vec<Load> = Vec::new();
    for transfer in transfers {
        let fits = |load: &&mut Load| {
            load.write() == transfer.write
                && load.bytes() + transfer.bytes <= STAGING_CHUNK_BYTES
                && load.transfers.len() < LOAD_TRANSFERS_MAX
                && load.moves_max() + transfer.buffers.len() < LOAD_MOVES_MAX
        };
        match loads.last_mut().filter(fits) {
            Some(load) => load.transfers.push(transfer),
            None => loads.push(Load {
                owner,
                transfers: vec![transfer],
                chunks: Chunks::new(),
                refused: Vec::new(),
                stage: Stage::Waiting,
            }),
        }
    }
    for load in &mut loads {
        // In the order of the client's list, its memory is most likely contiguous.
        load.transfers.sort_by_key(|transfer| transfer.index);
    }
    loads
}

/// Begins a load. It waits for its turn when there are not enough chunks.
pub(crate) fn start(cx: &mut Context<'_>, id: PendingId) {
    let ledger = cx.queue().as_ref().and_then(|queue| queue.batches().cloned());
    go_on(cx, id, |load, by| load.start(id, ledger.as_deref(), by));
}

/// Cancels the transfers of a synchronous batch that have not begun. The batch is answered when the
/// others are over, if there are any. Returns false if there are others, or were.
pub(crate) fn cancel_sync(cx: &mut Context<'_>, id: PendingId) -> bool {
    let Some((Work::Batch(batch), _)) = cx.work(id) else { return false };
    let loads = std::mem::take(&mut batch.loads);
    let (mut finished, mut gone) = (Vec::new(), FxHashMap::default());
    for load_id in loads {
        let Some((Work::Load(load), _)) = cx.work(load_id) else { continue };
        if !load.is_unbegun() {
            continue;
        }
        let canceled = load.transfers.iter().map(|transfer| {
            let completion = completion(transfer.id, Status::XCanceled, 0, Checksum::ZERO);
            (transfer.index, completion)
        });
        finished.extend(canceled);
        gone.insert(load_id, load.moves_max());
        if cx.queue().as_ref().is_some_and(|queue| queue.is_active(load_id)) {
            cx.forget_waiting(load_id);
        }
        cx.discard(load_id);
    }
    if let Some(queue) = cx.queue() {
        queue.drop_loads(&gone);
    }
    let Some((Work::Batch(batch), _)) = cx.work(id) else { return false };
    let all = finished.len() == batch.transfers;
    if !finished.is_empty() {
        progress(cx, id, &finished);
        queue::turn(cx);
    }
    all
}

/// Goes on with a load for which the end of an RDMA read has come.
pub(crate) fn fetched(cx: &mut Context<'_>, id: PendingId, ok: bool) {
    go_on(cx, id, |load, by| load.fetched(ok, by));
}

fn go_on(
    cx: &mut Context<'_>,
    id: PendingId,
    step: impl FnOnce(&mut Load, &mut Transfers<'_>) -> Option<LoadIo>,
) {
    let Some((Work::Load(load), mut by)) = cx.work(id) else { return };
    if let Some(io) = step(load, &mut by) {
        run(cx, id, io);
    }
}

/// Accesses the files, here or on the pool.
fn run(cx: &mut Context<'_>, id: PendingId, mut io: LoadIo) {
    if !cx.queue().as_ref().is_some_and(|queue| queue.start_work()) {
        return cx.drop_session("its session is over");
    }
    // A longer load would block other requests.
    if io.bytes() <= STAGING_CHUNK_BYTES && io.proceed(Wait::Never) {
        worked(cx);
        return finish(cx, id, Some(&io));
    }
    let Some((Work::Load(load), _)) = cx.work(id) else { return };
    load.stage = Stage::Job;
    let Some(handle) = load.transfers.first().map(|transfer| transfer.handle) else { return };
    cx.submit(id, &handle, move || {
        io.proceed(Wait::Allowed);
        JobResult::Load(Box::new(io))
    });
}

/// Ends a load's access to files, for which the end of the session may wait.
fn worked(cx: &mut Context<'_>) {
    if cx.queue().as_ref().is_some_and(|queue| queue.stop_work()) {
        cx.batches_settled();
    }
}

/// Handles a load that the pool has finished.
pub(crate) fn job_done(cx: &mut Context<'_>, id: PendingId, result: JobResult) {
    worked(cx);
    if cx.transfers().is_closing() {
        return cx.discard(id);
    }
    match result {
        JobResult::Load(io) => finish(cx, id, Some(&io)),
        // The job panicked.
        _ => finish(cx, id, None),
    }
    queue::turn(cx);
}

/// Reports the results of a load, and sends read data.
fn finish(cx: &mut Context<'_>, id: PendingId, io: Option<&LoadIo>) {
    let Some(Pending { work: Work::Load(load), .. }) = cx.take_in_slot(id) else { return };
    if let Some(queue) = cx.queue() {
        queue.load_over(id, load.moves_max());
    }
    let endings = io.map(LoadIo::endings).unwrap_or_default();
    let mut finished = Vec::with_capacity(load.transfers.len());
    for (index, transfer) in load.transfers.iter().enumerate() {
        let (bytes, status) = match endings.get(index) {
            Some(Ending { bytes: 0, error: Some(error) }) => (0, convert::store_status(*error)),
            // The part before the error is good. The client gets the error when it goes on.
            Some(ending) => (ending.bytes, Status::Ok),
            None => (0, Status::ServerFault),
        };
        let refused = load.refused.iter().find(|(other, _)| *other == index);
        let status = refused.map_or(status, |(_, status)| *status);
        if let Some(account) = &transfer.account {
            cx.count_transfer(account, bytes, transfer.write, !status.is_ok());
        }
        let sum = match io {
            Some(io) if transfer.sum => io.checksum(index, bytes),
            _ => Checksum::ZERO,
        };
        finished.push((transfer.index, completion(transfer.id, status, bytes, sum)));
    }
    load.place(&finished, &mut cx.transfers());
    let rides = rides(&load.transfers, &finished);
    match load.owner {
        Owner::Request(request) => progress(cx, request, &finished),
        Owner::Channel => {
            let finished =
                finished.into_iter().map(|(_, completion)| Finished { completion, entered: true });
            if let Some(queue) = cx.queue() {
                queue.finished(finished);
            }
        }
    }
    for (ride, bytes) in rides {
        cx.follow(Some(ride), bytes);
    }
}

/// Returns the hints of the bytes that were moved.
fn rides(
    transfers: &[Transfer],
    finished: &[(usize, CompletionNotification)],
) -> Vec<(Box<Ride>, usize)> {
    let mut rides = Vec::new();
    for (transfer, (_, done)) in transfers.iter().zip(finished) {
        let mut left = done.bytes_transferred as usize;
        for chunk in &transfer.chunks {
            let bytes = left.min(chunk.byte_count as usize);
            left -= bytes;
            let ride = Ride::of(chunk.cache_hint, &transfer.handle, &transfer.file, chunk.offset);
            rides.extend(ride.map(|ride| (ride, bytes)));
        }
    }
    rides
}

/// Handles the end of a load of a synchronous batch. With the last load the batch is answered.
fn progress(cx: &mut Context<'_>, id: PendingId, finished: &[(usize, CompletionNotification)]) {
    let Some((Work::Batch(batch), _)) = cx.work(id) else { return };
    for (index, completion) in finished {
        batch.completions[*index] = *completion;
    }
    batch.left -= finished.len();
    if batch.left > 0 {
        return;
    }
    let Some(Pending { work: Work::Batch(batch), call, .. }) = cx.take_pending(id) else {
        return;
    };
    let outcome = reply(cx, &call, &batch.completions);
    cx.finish(&call, outcome);
}

pub(super) fn reply(
    cx: &mut Context<'_>,
    call: &Call,
    completions: &[CompletionNotification],
) -> Result<(), Status> {
    let completions = Seq::new(completions);
    cx.reply(call, &Reply::BatchSubmit(BatchCompletions { completions }))
}
