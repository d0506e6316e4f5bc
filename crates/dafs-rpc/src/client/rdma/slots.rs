//! Registered memory for messages, in slots of one size.
//!
//! Invariants
//! * A slot is in exactly one place: the free list, a posted send or receive, or a call that waits.
//! * The memory is private to this process: no peer maps it. So only the adapter writes a received
//!   message before it is copied out.

use crate::memory::Block;
use dafs_dat::{Access, Adapter, LocalSegment, MemoryRegion, ProtectionDomain};
use dafs_mem::{Buffer, Site, VolatileSlice};
use std::io;
use std::sync::Arc;

/// Slots are allocated this many at a time, so that an idle connection stays small.
const SLOTS_PER_CHUNK: usize = 16;

/// A pool of message slots that grows with use.
#[derive(Debug)]
pub(super) struct Slots {
    domain: ProtectionDomain,
    slot_bytes: usize,
    chunks: Vec<(MemoryRegion, Arc<Buffer>)>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) fn new(domain: ProtectionDomain, slot_bytes: usize) -> Self {
        Self { domain, slot_bytes, chunks: Vec::new(), free: Vec::new() }
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Takes a free slot; allocates more memory when there is none.
    pub(super) fn take(&mut self, adapter: &mut dyn Adapter) -> io::Result<u32> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let buffer = Arc::new(Buffer::zeroed(self.slot_bytes * SLOTS_PER_CHUNK)?);
        let region = adapter
            .register(self.domain, buffer.clone(), Access::LOCAL_WRITE)
            .map_err(io::Error::other)?;
        let first = (self.chunks.len() * SLOTS_PER_CHUNK) as u32;
        self.chunks.push((region, buffer));
        self.free.extend((first + 1..first + SLOTS_PER_CHUNK as u32).rev());
        Ok(first)
    }

    /// Returns a slot to the free list.
    pub(super) fn put(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "a slot was given back twice");
        self.free.push(slot);
    }

    /// The first `len` bytes of a slot, for posting.
    pub(super) fn segment(&self, slot: u32, len: usize) -> LocalSegment {
        debug_assert!(len <= self.slot_bytes);
        let (chunk, at) = self.place(slot);
        self.chunks[chunk].0.local(at, len)
    }

    /// A slot's memory.
    pub(super) fn view(&self, slot: u32) -> VolatileSlice<'_> {
        let (chunk, at) = self.place(slot);
        // INVARIANT: a chunk holds whole slots, and `place` names one of them.
        self.chunks[chunk].1.slice(at, self.slot_bytes).expect("a slot lies inside its chunk")
    }

    /// A private copy of the first `len` bytes of a slot.
    pub(super) fn fetch(&self, slot: u32, len: usize) -> io::Result<Block> {
        private_copy(self.view(slot), len, Site::RpcRdmaInline)
    }

    /// Ends the registrations. No work may be posted on them.
    pub(super) fn release(&mut self, adapter: &mut dyn Adapter) {
        for (region, _) in self.chunks.drain(..) {
            adapter.deregister(region.id);
        }
        self.free.clear();
    }

    fn place(&self, slot: u32) -> (usize, usize) {
        let slot = slot as usize;
        (slot / SLOTS_PER_CHUNK, slot % SLOTS_PER_CHUNK * self.slot_bytes)
    }
}

/// A private copy of the first `len` bytes of memory that others may write; a shorter memory is
/// copied whole.
pub(super) fn private_copy(view: VolatileSlice<'_>, len: usize, site: Site) -> io::Result<Block> {
    let len = len.min(view.len());
    let mut block = Block::new(len)?;
    let copied = match view.slice(0, len) {
        Some(view) => block.space(len).copy_from_volatile(view, site),
        None => 0,
    };
    block.fill(copied);
    Ok(block)
}
