//! The view that a data transfer has of its connection: staging chunks, RDMA, its authorisation.
//!
//! Invariants
//! * A transfer sees no session, credit, reply or other request.
//! * Posted RDMA counts among the work of its connection, so that a stalled client is noticed.

use super::connection::{Connection, Phase};
use super::convert;
use super::flows::{Flow, Need};
use super::request::Context;
use super::staging::Staging;
use super::work::{PendingId, Work};
use super::{Link, PIECE_ONLY, Shared, Tag};
use crate::limits::BUFFERS_PER_REQUEST_MAX;
use dafs_dat::{Access, Instant, RemoteBuffer, RemoteWindow};
use dafs_mem::Buffer;
use dafs_store::StoreError;
use dafs_wire::dafs::{ByteOrder, DirectBuffer, Seq, Status, Verifier};
use smallvec::SmallVec;
use std::sync::Arc;

/// The client's buffers of one request.
pub(crate) type Buffers = SmallVec<[DirectBuffer; 2]>;

/// The chunks of one transfer, in the order of its data.
pub(crate) type Chunks = SmallVec<[u32; 4]>;

/// The client's memory of one transfer, mapped into this process.
pub(crate) type Windows = SmallVec<[RemoteWindow; 2]>;

/// The part of a connection that a data transfer may use.
pub(crate) struct Transfers<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) link: &'a mut Link,
    pub(super) connection: &'a mut Connection,
    pub(super) now: Instant,
}

impl Context<'_> {
    pub(crate) fn transfers(&mut self) -> Transfers<'_> {
        let Self { shared, link, connection, now, .. } = self;
        Transfers { shared, link, connection, now: *now }
    }

    /// Returns the work of a waiting request, and what its transfer may use.
    pub(crate) fn work(&mut self, id: PendingId) -> Option<(&mut Work, Transfers<'_>)> {
        let Self { shared, link, connection, now, pending, .. } = self;
        let work = &mut pending.get_mut(id)?.work;
        Some((work, Transfers { shared, link, connection, now: *now }))
    }
}

impl Transfers<'_> {
    pub(crate) fn checksums(&self) -> bool {
        self.connection.checksums()
    }

    pub(crate) fn order(&self) -> ByteOrder {
        self.connection.order
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.connection.phase == Phase::Closing
    }

    /// Returns the number of sends and RDMA operations that have not completed.
    pub(crate) fn posted(&self) -> usize {
        self.connection.work_posted as usize
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.shared.limits.transfer_bytes_max as usize
    }

    /// True if changes are logged, for which the digest of the data is needed.
    pub(crate) fn logs_changes(&self) -> bool {
        self.shared.service.durable.has_journal()
    }

    /// Maps the client's buffers into this process, if the transport can do that for all.
    pub(crate) fn map(&mut self, buffers: &[DirectBuffer], need: Access) -> Option<Windows> {
        let (adapter, endpoint) = (&mut self.link.adapter, self.connection.endpoint);
        let windows = buffers.iter().map(|buffer| {
            adapter.map_remote(endpoint, remote(buffer, 0, buffer.byte_count as usize), need)
        });
        windows.collect()
    }

    /// True if so many chunks are available, within the share of the connection.
    pub(crate) fn fits(&self, count: usize, flow: Flow) -> bool {
        self.link.staging.fits(&self.connection.owner, Need { chunks: count, flow })
    }

    /// Takes a chunk that fits, or of which the transfer has others.
    pub(crate) fn take(&mut self, flow: Flow) -> Option<u32> {
        self.link.staging.take(&mut *self.link.adapter, &self.connection.owner, flow)
    }

    /// Takes a chunk, if one is available now.
    pub(crate) fn take_chunk(&mut self, flow: Flow) -> Option<u32> {
        if self.fits(1, flow) { self.take(flow) } else { None }
    }

    /// Takes so many chunks, or none. Memory may be short.
    pub(crate) fn take_chunks(&mut self, count: usize, flow: Flow) -> Option<Chunks> {
        let mut chunks = Chunks::new();
        if self.fits(count, flow) {
            while chunks.len() < count
                && let Some(chunk) = self.take(flow)
            {
                chunks.push(chunk);
            }
            if chunks.len() == count {
                return Some(chunks);
            }
        }
        chunks.into_iter().for_each(|chunk| self.give_back(chunk));
        None
    }

    pub(crate) fn give_back(&mut self, chunk: u32) {
        self.link.staging.give_back(chunk);
    }

    /// Returns a chunk's memory, for a job.
    pub(crate) fn buffer(&self, chunk: u32) -> Arc<Buffer> {
        self.link.staging.buffer(chunk).clone()
    }

    /// Returns a chunk's memory, to read or to encode into.
    pub(crate) fn bytes_mut(&mut self, chunk: u32) -> &mut [u8] {
        self.link.staging.bytes_mut(chunk)
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.link.staging.is_calm()
    }

    /// Queues a transfer for its turn to get chunks.
    pub(crate) fn wait(&mut self, id: PendingId, flow: Flow) {
        self.link.staging.wait(&self.connection.owner, id, flow);
    }

    /// Notes that transfers that wait for chunks may go on.
    pub(crate) fn note_due(&mut self) {
        self.link.staging.note_due();
    }

    /// Begins to fetch data of the client into a chunk. Returns false when the connection breaks,
    /// whose end releases all its resources.
    pub(crate) fn fetch(
        &mut self,
        id: PendingId,
        (chunk, at): (u32, usize),
        remote: RemoteBuffer,
    ) -> bool {
        let segment = self.link.staging.segment(chunk, at, remote.len as usize);
        let work = Tag::ChunkIn { pending: id.index(), chunk }.pack();
        let posted = self.link.adapter.rdma_read(self.connection.endpoint, work, segment, remote);
        match posted {
            Ok(()) => self.connection.count_fetch(self.now),
            Err(error) => self.drop_session(&format!("data cannot be fetched: {error}")),
        }
        posted.is_ok()
    }

    /// Begins to place a part of a chunk in the client's memory. The chunk is free when its `last`
    /// part is sent. Returns false when the connection is broken: no completion frees the chunk.
    pub(crate) fn place(
        &mut self,
        (chunk, at): (u32, usize),
        remote: RemoteBuffer,
        last: bool,
    ) -> bool {
        let segment = self.link.staging.segment(chunk, at, remote.len as usize);
        let work = Tag::ChunkOut(if last { chunk } else { PIECE_ONLY }).pack();
        self.connection.count_posted(self.now);
        self.link.adapter.rdma_write(self.connection.endpoint, work, &[segment], remote).is_ok()
    }

    /// Places the first `len` bytes of a chunk in a list of buffers. The chunk is free again when
    /// the last part is sent.
    pub(crate) fn place_all(&mut self, chunk: u32, len: usize, buffers: &[DirectBuffer]) {
        let mut at = 0;
        let mut pieces = buffers.iter().filter(|buffer| buffer.byte_count > 0).peekable();
        while at < len
            && let Some(buffer) = pieces.next()
        {
            let part = (buffer.byte_count as usize).min(len - at);
            let last = at + part == len || pieces.peek().is_none();
            if !self.place((chunk, at), remote(buffer, 0, part), last) {
                // Parts that are posted already are flushed before the end of the connection, and
                // only the last one would have freed the chunk.
                return self.give_back(chunk);
            }
            at += part;
        }
        if len == 0 {
            self.give_back(chunk);
        }
    }

    pub(crate) fn flush(&mut self) {
        self.link.adapter.flush();
    }

    /// Ends the connection because the client violated a rule, or because it broke.
    pub(crate) fn drop_session(&mut self, reason: &str) {
        self.connection.abort(&mut *self.link.adapter, reason);
    }

    /// Returns the write verifier. Called before any data is written: if data is lost meanwhile,
    /// the client must see that.
    pub(crate) fn write_verifier(&self) -> Verifier {
        Verifier(self.shared.write_verifier.current())
    }

    /// Returns the status for data that could not be made stable. If a device failed, unstable data
    /// of any client may be lost with it.
    pub(crate) fn sync_failed(&self, error: StoreError) -> Status {
        if error == StoreError::Io {
            // The verifier changes first: the next commit of the file may succeed.
            self.shared.write_verifier.change();
            tracing::error!(%error, "data could not be made stable");
        }
        convert::store_status(error)
    }
}

/// Releases the chunks of a transfer that does not go on.
pub(crate) fn release(staging: &mut Staging, chunks: impl IntoIterator<Item = u32>) {
    chunks.into_iter().for_each(|chunk| staging.give_back(chunk));
}

/// Returns `len` bytes of a client's buffer, from `at` on.
pub(crate) fn remote(buffer: &DirectBuffer, at: usize, len: usize) -> RemoteBuffer {
    let address = buffer.address.wrapping_add(at as u64);
    RemoteBuffer { key: buffer.context, address, len: len as u32 }
}

/// Checks the list of buffers of a request (DAFS O52) and copies it out of the message.
pub(crate) fn buffers(list: Seq<'_, DirectBuffer>, wanted: usize) -> Result<Buffers, Status> {
    if list.len() > BUFFERS_PER_REQUEST_MAX {
        return Err(Status::Inval);
    }
    let buffers: Buffers = list.iter().filter(|buffer| buffer.byte_count > 0).collect();
    let sum: u64 = buffers.iter().map(|buffer| u64::from(buffer.byte_count)).sum();
    if sum < wanted as u64 { Err(Status::Inval) } else { Ok(buffers) }
}

/// The client's buffers of a transfer, and the position where it goes on.
pub(crate) struct Cursor {
    pub(crate) buffers: Buffers,
    index: usize,
    used: usize,
}

impl Cursor {
    pub(crate) fn new(buffers: Buffers) -> Self {
        Self { buffers, index: 0, used: 0 }
    }

    /// Returns the bytes of the present buffer that are left.
    pub(crate) fn room(&self) -> usize {
        self.buffers.get(self.index).map_or(0, |buffer| buffer.byte_count as usize - self.used)
    }

    /// Takes the next `len` bytes, which the present buffer has.
    pub(crate) fn take(&mut self, len: usize) -> RemoteBuffer {
        debug_assert!(len <= self.room());
        let taken = remote(&self.buffers[self.index], self.used, len);
        self.used += len;
        if self.room() == 0 {
            (self.index, self.used) = (self.index + 1, 0);
        }
        taken
    }
}
