//! Fetching the read chunks of a call, which lie in the client's memory.
//!
//! Invariants
//! * RDMA reads place data directly: at its position in the message, or in a block of its own if it
//!   may stay outside. The inline part is copied there, and is never more than one message.
//! * The server uses the memory only when every read into it is complete and no peer can reach it.

use super::call::{Described, Taken};
use super::connection::Arrived;
use super::layout::{Place, ReadChunks, cut};
use super::link::{Context, Link, Tag};
use crate::call::ConnectionId;
use crate::call_chunks::{CallChunks, Data};
use crate::handler::Handler;
use crate::limits::RDMA_WORK_BYTES;
use crate::memory::{Block, block_bytes};
use crate::server::group::add;
use dafs_dat::{Access, MemoryRegion, PostError, RegionId, RegisterError, RemoteBuffer};
use dafs_mem::Site;
use dafs_wire::rpc::peek;
use dafs_wire::rpcrdma::HeaderFault;
use dafs_wire::xdr::{MovedItem, padded};
use smallvec::SmallVec;
use std::sync::Arc;

/// A call whose read chunks are being fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    connection: ConnectionId,
    arrived: Arrived,
    xid: u32,
    /// Offset of the inline part in the message.
    sent_at: usize,
    /// The message under reassembly, unless its data stays outside.
    whole: Option<(Block, usize)>,
    call_chunks: Option<Arc<CallChunks>>,
    regions: SmallVec<[RegionId; 2]>,
    /// Reads in progress.
    remaining: u32,
    held_bytes: usize,
}

impl<H: Handler> Context<'_, H> {
    /// Begins to fetch. With `args_at`, the length of the call's header, the data stays outside of
    /// the message.
    pub(super) fn fetch(
        &mut self,
        arrived: Arrived,
        sent: Option<&[u8]>,
        call: Described,
        reads: &ReadChunks,
        args_at: Option<usize>,
    ) -> Taken {
        let total = reads.total(sent.map_or(0, <[u8]>::len))
            + reads.message.as_ref().map_or(0, |message| message.len);
        // Data outside of the message is counted even if it need not be fetched.
        let memory_bytes = match args_at {
            Some(_) => reads.parts.iter().map(|part| block_bytes(padded(part.len))).sum(),
            None => block_bytes(total),
        };
        let segments = call.chunks.reads.len();
        let held_bytes = memory_bytes.saturating_add(segments * RDMA_WORK_BYTES);
        if !self.may_take(held_bytes) {
            return Taken::NotYet;
        }
        let (xid, sent_at) = (call.xid, call.sent_at.unwrap_or_default());
        let call_chunks = self.call_chunks(call.chunks);
        let mut fetch = Fetch {
            connection: self.connection.id,
            arrived,
            xid,
            sent_at,
            whole: None,
            call_chunks,
            regions: SmallVec::new(),
            remaining: 0,
            held_bytes,
        };
        self.hold(held_bytes);
        let index = self.link.fetches.insert(fetch.empty());
        let begun = match args_at {
            Some(args_at) => self.fetch_apart(&mut fetch, index, reads, args_at),
            None => self.fetch_whole(&mut fetch, index, sent, reads, total),
        };
        // A further call is no progress of those that are stalled.
        if self.connection.fetches == 0 {
            self.connection.fetches_since_ns = self.core.now_ns;
            self.connection.fetched_since_ns = self.core.now_ns;
        }
        self.connection.fetches += 1;
        let remaining = fetch.remaining;
        if let Some(place) = self.link.fetches.get_mut(index) {
            *place = fetch;
        }
        if let Err(error) = begun {
            match error {
                Trouble::Memory(error) => self.fail(error),
                Trouble::Post(error) => self.fail(error),
            }
        }
        Taken::Fetching { index, over: remaining == 0 }
    }

    fn fetch_apart(
        &mut self,
        fetch: &mut Fetch,
        index: u32,
        reads: &ReadChunks,
        args_at: usize,
    ) -> Result<(), Trouble> {
        // INVARIANT: the call chunks were made for this call, which has chunks.
        let Some(mut shared) = fetch.call_chunks.take() else { return Ok(()) };
        let Some(call_chunks) = Arc::get_mut(&mut shared) else { return Ok(()) };
        let mut begun = Ok(());
        for (part, at) in reads.parts.iter().zip(reads.reduced_positions()) {
            let window = match part.segments[..] {
                [segment] => self.window(segment, Access::REMOTE_READ),
                _ => None,
            };
            let data = match window {
                Some(window) => Data::Window(window),
                None => {
                    let read = Block::new(padded(part.len)).map_err(RegisterError::from);
                    let read = read.map_err(Trouble::from).and_then(|block| {
                        let region = self.sink(fetch, &block)?;
                        let remote = cut(&part.segments, 0, part.len);
                        self.read(fetch, index, region, 0, remote)?;
                        Ok(block)
                    });
                    match read {
                        Ok(block) => Data::Block(block),
                        Err(error) => {
                            begun = Err(error);
                            break;
                        }
                    }
                }
            };
            call_chunks.items.push(MovedItem { at: Some(at - args_at), len: part.len });
            call_chunks.data.push(data);
        }
        fetch.call_chunks = Some(shared);
        begun
    }

    fn fetch_whole(
        &mut self,
        fetch: &mut Fetch,
        index: u32,
        sent: Option<&[u8]>,
        reads: &ReadChunks,
        total: usize,
    ) -> Result<(), Trouble> {
        let mut block = Block::new(total).map_err(RegisterError::from)?;
        let region = self.sink(fetch, &block)?;
        let space = block.space(total);
        let message = reads.message.as_ref();
        let sent_bytes = sent.map_or_else(|| message.map_or(0, |chunk| chunk.len), <[u8]>::len);
        let mut begun = Ok(());
        reads.lay_out(sent_bytes, |place| {
            if begun.is_err() {
                return;
            }
            begun = match (place, sent) {
                (Place::Sent { from, to, len }, Some(sent)) => {
                    if let (Some(place), Some(bytes)) =
                        (space.slice(to, len), sent.get(from..from + len))
                    {
                        place.copy_from(bytes, Site::RpcStaging);
                    }
                    Ok(())
                }
                (Place::Sent { from, to, len }, None) => {
                    let segments = message.map_or(&[][..], |chunk| &chunk.segments);
                    self.read(fetch, index, region, to, cut(segments, from, len))
                }
                (Place::Part { to, part }, _) => {
                    // Blocks are reused; clear the padding, so that no old bytes leak.
                    if let Some(padding) = space.slice(to + part.len, padded(part.len) - part.len) {
                        padding.fill(0);
                    }
                    self.read(fetch, index, region, to, cut(&part.segments, 0, part.len))
                }
            };
        });
        fetch.whole = Some((block, total));
        begun
    }

    /// Registers a block as the target of reads.
    fn sink(&mut self, fetch: &mut Fetch, block: &Block) -> Result<MemoryRegion, Trouble> {
        // INVARIANT: only a block that is being dropped has no memory.
        let Some(buffer) = block.lend() else { return Err(PostError::Region.into()) };
        let access = Access::LOCAL_WRITE;
        let region = self.link.adapter.register(self.link.domain, buffer.clone(), access)?;
        fetch.regions.push(region.id);
        Ok(region)
    }

    fn read(
        &mut self,
        fetch: &mut Fetch,
        index: u32,
        region: MemoryRegion,
        mut to: usize,
        remotes: impl Iterator<Item = RemoteBuffer>,
    ) -> Result<(), Trouble> {
        let work = Tag::Fetch(index).pack();
        for remote in remotes {
            let segment = region.local(to, remote.len as usize);
            self.link.adapter.rdma_read(self.connection.endpoint, work, segment, remote)?;
            fetch.remaining += 1;
            to += remote.len as usize;
            add(&self.core.counters().rdma_reads, 1);
            add(&self.core.counters().rdma_read_bytes, u64::from(remote.len));
        }
        Ok(())
    }

    /// Handles the end of one read.
    pub(super) fn fetched_part(&mut self, index: u32) {
        self.connection.fetches_since_ns = self.core.now_ns;
        let Some(fetch) = self.link.fetches.get_mut(index) else { return };
        debug_assert!(fetch.remaining > 0, "a read that nobody waits for");
        fetch.remaining = fetch.remaining.saturating_sub(1);
        if fetch.remaining == 0 {
            self.connection.fetched_since_ns = self.core.now_ns;
            self.fetched(index);
        }
    }

    /// Handles the end of all reads of a call.
    pub(super) fn fetched(&mut self, index: u32) {
        let Some(mut fetch) = self.link.fetches.remove(index) else { return };
        self.connection.fetches -= 1;
        for region in fetch.regions.drain(..) {
            self.link.adapter.deregister(region);
        }
        // The code below counts its memory itself.
        self.release(fetch.held_bytes);
        let arrived = fetch.arrived;
        if self.connection.is_closing() {
            self.connection.credits.end();
            return self.connection.receives.give_back(arrived.slot);
        }
        if let Some((mut block, total)) = fetch.whole {
            block.take_back();
            block.fill(total);
            let block = Arc::new(block);
            let taken = match peek(block.bytes()) {
                Ok((xid, _)) if xid != fetch.xid => {
                    Taken::Refused { xid: fetch.xid, fault: HeaderFault::Chunk }
                }
                _ => self.serve(block.bytes(), Some(&block), fetch.call_chunks, fetch.held_bytes),
            };
            self.conclude(arrived, taken);
            return;
        }
        if let Some(call_chunks) = fetch.call_chunks.as_mut().and_then(Arc::get_mut) {
            for (data, item) in call_chunks.data.iter_mut().zip(&call_chunks.items) {
                if let Data::Block(block) = data {
                    block.take_back();
                    block.fill(item.len);
                }
            }
        }
        // SAFETY: the slot is posted only after it was given back, when no code uses the message.
        let message = unsafe { self.connection.receives.message(arrived.slot, arrived.len) };
        let record = &message.bytes()[fetch.sent_at..];
        let taken = self.serve(record, None, fetch.call_chunks, fetch.held_bytes);
        drop(message);
        self.conclude(arrived, taken);
    }
}

impl Fetch {
    /// A placeholder without reads, which keeps the call's slot in the table.
    fn empty(&self) -> Self {
        let (whole, call_chunks, regions) = (None, None, SmallVec::new());
        Self { whole, call_chunks, regions, ..*self }
    }
}

impl Link {
    /// Forgets the calls of a connection that has ended, so that no further read is posted. Their
    /// memory does not return to the pool, because the reads may still be in progress.
    pub(super) fn reclaim_fetches(&mut self, id: ConnectionId) {
        for fetch in self.fetches.remove_all(|fetch| fetch.connection == id) {
            for region in fetch.regions {
                self.adapter.deregister(region);
            }
        }
    }
}

/// The reason why fetching cannot begin.
#[derive(Debug)]
enum Trouble {
    Memory(RegisterError),
    Post(PostError),
}

impl From<RegisterError> for Trouble {
    fn from(error: RegisterError) -> Self {
        Self::Memory(error)
    }
}

impl From<PostError> for Trouble {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}
