//! Loads: transfers that are executed together.
//!
//! Invariants
//! * A load holds all the chunks it needs or none, so two loads never deadlock.
//! * With a checksum no byte is written before the data has been compared (DAFS O21).
//! * Read data is sent before the completion that reports it, on the same connection.

use super::io::{Ending, LoadIo, Memory};
use super::plan::{Move, moves};
use super::{Finished, Transfer, completion};
use crate::engine::connection::Phase;
use crate::engine::convert;
use crate::engine::request::{Call, Context, check_span};
use crate::engine::work::{JobResult, Pending, PendingId, Work};
use crate::engine::{Link, PIECE_ONLY, Tag};
use crate::limits::{LOAD_MOVES_MAX, LOAD_TRANSFERS_MAX, STAGING_CHUNK_BYTES};
use dafs_dat::{Access, RemoteBuffer};
use dafs_service::Subject;
use dafs_store::Wait;
use dafs_wire::dafs::{BatchCompletions, Checksum, CompletionNotification, Reply, Seq, Status};
use smallvec::SmallVec;

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
pub(in crate::engine) struct Load {
    owner: Owner,
    transfers: Vec<Transfer>,
    chunks: SmallVec<[u32; 1]>,
    /// Transfers that were refused meanwhile.
    refused: Vec<(usize, Status)>,
    stage: Stage,
}

/// A synchronous batch that waits for its loads.
pub(in crate::engine) struct SyncBatch {
    pub(super) completions: Vec<CompletionNotification>,
    pub(super) left: usize,
}

impl Load {
    pub(in crate::engine) fn has_job(&self) -> bool {
        matches!(self.stage, Stage::Job)
    }

    pub(in crate::engine) fn abandon(self, link: &mut Link) {
        self.chunks.into_iter().for_each(|chunk| link.staging.give_back(chunk));
    }

    fn write(&self) -> bool {
        self.transfers.first().is_some_and(|transfer| transfer.write)
    }

    fn bytes(&self) -> usize {
        self.transfers.iter().map(|transfer| transfer.bytes).sum()
    }

    pub(in crate::engine) fn chunks_needed(&self) -> usize {
        self.bytes().div_ceil(STAGING_CHUNK_BYTES)
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
                chunks: SmallVec::new(),
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

impl Context<'_> {
    fn load(&mut self, id: PendingId) -> Option<&mut Load> {
        match &mut self.pending.get_mut(id)?.work {
            Work::Load(load) => Some(load),
            _ => None,
        }
    }

    /// Begins a load. It waits for its turn when there are not enough chunks.
    pub(in crate::engine) fn load_start(&mut self, id: PendingId) {
        let Some(load) = self.load(id) else { return };
        let need = if load.write() { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let lists: Vec<_> =
            load.transfers.iter().map(|t| SmallVec::from_slice(&t.buffers)).collect();
        let windows = lists.iter().map(|list| self.map(list, need));
        let windows: Option<Vec<_>> = windows.collect();
        if let Some(windows) = windows {
            let memory =
                windows.into_iter().map(|list| Memory::Windows(list.into_iter().collect()));
            let memory = memory.collect();
            return self.load_ready(id, memory, Vec::new());
        }
        let Some(needed) = self.load(id).map(|load| load.chunks_needed()) else { return };
        let (staging, owner) = (&mut self.link.staging, &self.connection.owner);
        if !staging.fits(owner, needed) {
            return staging.wait(owner, id);
        }
        let mut chunks = SmallVec::new();
        while chunks.len() < needed {
            match staging.take(&mut *self.link.adapter, owner) {
                Some(chunk) => chunks.push(chunk),
                None => {
                    // Memory is short. The load waits for the next attempt.
                    chunks.into_iter().for_each(|chunk| staging.give_back(chunk));
                    return staging.wait(owner, id);
                }
            }
        }
        let Some(load) = self.load(id) else { return };
        load.chunks = chunks;
        if load.write() && load.bytes() > 0 {
            self.load_fetch(id);
        } else {
            self.load_staged(id);
        }
    }

    /// Fetches the data to write.
    fn load_fetch(&mut self, id: PendingId) {
        let Some(load) = self.load(id) else { return };
        let mut fetches = Vec::new();
        for (base, transfer) in load.bases().zip(&load.transfers) {
            moves(base, transfer.bytes, &transfer.buffers, &mut fetches);
        }
        load.stage = Stage::Fetching(fetches.len());
        let chunks = load.chunks.clone();
        for Move { chunk, offset, remote } in fetches {
            let chunk = chunks[chunk];
            let segment = self.link.staging.segment(chunk, offset, remote.len as usize);
            let (endpoint, work) = (self.connection.endpoint, Self::tag_in(id, chunk));
            match self.link.adapter.rdma_read(endpoint, work, segment, remote) {
                Ok(()) => self.connection.count_fetch(self.now),
                // The end of the connection releases all its resources.
                Err(error) => {
                    return self.drop_session(&format!("data cannot be fetched: {error}"));
                }
            }
        }
    }

    /// Handles the end of one RDMA read of a load.
    pub(in crate::engine) fn load_fetched(&mut self, id: PendingId, ok: bool) {
        let Some(load) = self.load(id) else { return };
        let Stage::Fetching(left) = &mut load.stage else {
            return debug_assert!(false, "a load was fetched that had not asked for it");
        };
        *left -= 1;
        // Otherwise the connection has broken, and its end releases all its resources.
        if ok && *left == 0 && self.connection.phase != Phase::Closing {
            self.load_staged(id);
        }
    }

    /// Goes on when the chunks are here, with the data if it is to be written.
    fn load_staged(&mut self, id: PendingId) {
        let Some(load) = self.load(id) else { return };
        let memory = load.bases().map(Memory::Staged).collect();
        let chunks = load.chunks.clone();
        let chunks = chunks.iter().map(|chunk| self.link.staging.buffer(*chunk).clone()).collect();
        self.load_ready(id, memory, chunks);
    }

    /// Goes on when the data is where the file side needs it.
    fn load_ready(
        &mut self,
        id: PendingId,
        memory: Vec<Memory>,
        chunks: Vec<std::sync::Arc<dafs_mem::Buffer>>,
    ) {
        let Some(load) = self.load(id) else { return };
        let mut io = LoadIo::new(&load.transfers, memory, chunks);
        let barred = self.barred(id);
        let Some(load) = self.load(id) else { return };
        load.refused = barred;
        for (index, transfer) in load.transfers.iter().enumerate() {
            let wrong = |sum| io.checksum(index, transfer.bytes) != sum;
            if transfer.expected.is_some_and(wrong) {
                load.refused.push((index, Status::ChkSum));
            }
        }
        io.plan(&load.transfers, |index| load.refused.iter().all(|(other, _)| *other != index));
        if !self.connection.batch.as_ref().is_some_and(|queue| queue.start_work()) {
            return self.drop_session("its session is over");
        }
        // A longer load would block other requests.
        if io.bytes() <= STAGING_CHUNK_BYTES && io.proceed(Wait::Never) {
            self.load_worked();
            return self.load_done(id, Some(&io));
        }
        let Some(load) = self.load(id) else { return };
        load.stage = Stage::Job;
        let Some(handle) = load.transfers.first().map(|transfer| transfer.handle) else { return };
        self.submit(id, &handle, move || {
            io.proceed(Wait::Allowed);
            JobResult::Load(Box::new(io))
        });
    }

    /// Returns the transfers that a fence or a broken lock forbids, perhaps since the batch was
    /// submitted (DAFS 9.3, 11).
    fn barred(&mut self, id: PendingId) -> Vec<(usize, Status)> {
        let fence_id = self.connection.fence_id().to_vec();
        let service = self.shared.service.clone();
        let Some(load) = self.load(id) else { return Vec::new() };
        let subject = Subject::Session(&fence_id);
        let check = |transfer: &Transfer| {
            let handle = &transfer.handle;
            service.fences.check(&subject, handle).map_err(convert::status)?;
            transfer.chunks.iter().try_for_each(|chunk| {
                let span = (chunk.offset, chunk.byte_count.into());
                check_span(&service, handle, transfer.open.is_none(), span)
            })
        };
        let transfers = load.transfers.iter().enumerate();
        transfers.filter_map(|(index, transfer)| Some((index, check(transfer).err()?))).collect()
    }

    /// Ends a load's access to files, for which the end of the session may wait.
    fn load_worked(&self) {
        if self.connection.batch.as_ref().is_some_and(|queue| queue.stop_work())
            && let Some(session) = self.connection.session.as_ref()
        {
            self.shared.registry.settled(session.id);
        }
    }

    /// Handles a load that the pool has finished.
    pub(in crate::engine) fn load_job_done(&mut self, id: PendingId, result: JobResult) {
        self.load_worked();
        if self.connection.phase == Phase::Closing {
            if let Some(pending) = self.pending.take(id) {
                pending.work.abandon(self.link);
            }
            return;
        }
        match result {
            JobResult::Load(io) => self.load_done(id, Some(&io)),
            // The job panicked.
            _ => self.load_done(id, None),
        }
        self.batch_turn();
    }

    /// Reports the results of a load, and sends read data.
    fn load_done(&mut self, id: PendingId, io: Option<&LoadIo>) {
        let Some(Pending { work: Work::Load(load), .. }) = self.pending.take(id) else { return };
        if let Some(queue) = &mut self.connection.batch {
            queue.load_over(load.moves_max());
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
            let sum = match io {
                Some(io) if transfer.sum => io.checksum(index, bytes),
                _ => Checksum::ZERO,
            };
            finished.push((transfer.index, completion(transfer.id, status, bytes, sum)));
        }
        self.send_out(&load, &finished);
        match load.owner {
            Owner::Request(request) => self.sync_progress(request, &finished),
            Owner::Channel => {
                let finished = finished
                    .into_iter()
                    .map(|(_, completion)| Finished { completion, entered: true });
                if let Some(queue) = &mut self.connection.batch {
                    queue.finished(finished);
                }
            }
        }
    }

    /// Writes read data into the client's memory. The last write of a chunk frees it.
    fn send_out(&mut self, load: &Load, finished: &[(usize, CompletionNotification)]) {
        let mut writes = Vec::new();
        if !load.write() && !load.chunks.is_empty() {
            for ((base, transfer), (_, done)) in load.bases().zip(&load.transfers).zip(finished) {
                moves(base, done.bytes_transferred as usize, &transfer.buffers, &mut writes);
            }
        }
        for (index, &chunk) in load.chunks.iter().enumerate() {
            let mut own = writes.iter().filter(|part| part.chunk == index).peekable();
            if own.peek().is_none() {
                self.link.staging.give_back(chunk);
            }
            while let Some(Move { offset, remote, .. }) = own.next() {
                let last = own.peek().is_none();
                let tag = if last { chunk } else { PIECE_ONLY };
                if !self.write_out(chunk, *offset, *remote, Tag::ChunkOut(tag)) {
                    // The connection broke. Posted work still completes, and a chunk whose last
                    // write was not posted is free when the writes before it are flushed.
                    self.link.staging.give_back(chunk);
                    break;
                }
            }
        }
    }

    fn write_out(&mut self, chunk: u32, offset: usize, remote: RemoteBuffer, tag: Tag) -> bool {
        let segment = self.link.staging.segment(chunk, offset, remote.len as usize);
        let (endpoint, work) = (self.connection.endpoint, tag.pack());
        let posted = self.link.adapter.rdma_write(endpoint, work, &[segment], remote);
        match posted {
            Ok(()) => self.connection.count_posted(self.now),
            Err(error) => self.drop_session(&format!("data cannot be placed: {error}")),
        }
        posted.is_ok()
    }

    /// Handles the end of a load of a synchronous batch. With the last load the batch is answered.
    fn sync_progress(&mut self, id: PendingId, finished: &[(usize, CompletionNotification)]) {
        let Some(Pending { work: Work::Batch(batch), .. }) = self.pending.get_mut(id) else {
            return;
        };
        for (index, completion) in finished {
            batch.completions[*index] = *completion;
        }
        batch.left -= finished.len();
        if batch.left > 0 {
            return;
        }
        let Some(Pending { work: Work::Batch(batch), call, .. }) = self.take_pending(id) else {
            return;
        };
        let outcome = self.batch_reply(&call, &batch.completions);
        self.finish(&call, outcome);
    }

    pub(super) fn batch_reply(
        &mut self,
        call: &Call,
        completions: &[CompletionNotification],
    ) -> Result<(), Status> {
        let completions = Seq::new(completions);
        self.reply(call, &Reply::BatchSubmit(BatchCompletions { completions }))
    }
}
