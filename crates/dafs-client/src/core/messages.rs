//! Registered memory for messages, in slots of one size.
//!
//! Invariants
//! * A slot is in exactly one place: the free list, or one posted send or receive.
//! * The pool never holds more than the slots it was made for.
//! * The memory is private: a transport that maps memory of peers does not share it, and no other
//!   process can write here.
//! * Control information is copied as a whole between a slot and private memory before it is
//!   parsed, so that it cannot change between check and use.

use super::failure::Failure;
use dafs_dat::{Access, Adapter, LocalSegment, MemoryRegion, ProtectionDomain};
use dafs_mem::{Buffer, VolatileSlice};
use std::sync::Arc;

/// Slots are allocated this many at a time, so that an idle session stays small.
const SLOTS_PER_CHUNK: usize = 16;

/// Slots start on cache lines.
const SLOT_ALIGN_BYTES: usize = 64;

/// A pool of message slots.
#[derive(Debug)]
pub(crate) struct MessagePool {
    domain: ProtectionDomain,
    message_bytes: usize,
    stride: usize,
    slots_max: usize,
    chunks: Vec<(MemoryRegion, Arc<Buffer>)>,
    free: Vec<u32>,
}

impl MessagePool {
    /// An empty pool for up to `slots_max` messages of `message_bytes`.
    pub(crate) fn new(domain: ProtectionDomain, message_bytes: usize, slots_max: usize) -> Self {
        Self {
            domain,
            message_bytes,
            stride: message_bytes.next_multiple_of(SLOT_ALIGN_BYTES),
            slots_max,
            chunks: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Bytes of one message.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// True when the bound allows [`take`](Self::take) to yield a slot.
    pub(crate) fn available(&self) -> bool {
        !self.free.is_empty() || self.chunks.len() * SLOTS_PER_CHUNK < self.slots_max
    }

    /// The number of slots that can be taken now.
    pub(crate) fn room(&self) -> usize {
        let chunks_max = self.slots_max.div_ceil(SLOTS_PER_CHUNK);
        self.free.len() + (chunks_max - self.chunks.len()) * SLOTS_PER_CHUNK
    }

    /// Takes a free slot; allocates more memory when there is none. `None` when all slots are in
    /// use.
    pub(crate) fn take(&mut self, adapter: &mut dyn Adapter) -> Result<Option<u32>, Failure> {
        if let Some(slot) = self.free.pop() {
            return Ok(Some(slot));
        }
        if !self.available() {
            return Ok(None);
        }
        let buffer = Buffer::zeroed(self.stride * SLOTS_PER_CHUNK).map_err(Failure::memory)?;
        let buffer = Arc::new(buffer);
        let region = adapter
            .register(self.domain, buffer.clone(), Access::LOCAL_WRITE)
            .map_err(Failure::memory)?;
        let first = (self.chunks.len() * SLOTS_PER_CHUNK) as u32;
        self.chunks.push((region, buffer));
        self.free.extend((first + 1..first + SLOTS_PER_CHUNK as u32).rev());
        Ok(Some(first))
    }

    /// Frees a slot.
    pub(crate) fn put(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot));
        self.free.push(slot);
    }

    /// The first `len` bytes of a slot, for posting.
    pub(crate) fn segment(&self, slot: u32, len: usize) -> LocalSegment {
        debug_assert!(len <= self.stride);
        let (chunk, at) = self.place(slot);
        self.chunks[chunk].0.local(at, len)
    }

    /// A view of part of a slot; `None` if it is not inside.
    pub(crate) fn view(&self, slot: u32, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        let (chunk, at) = self.place(slot);
        if offset.checked_add(len)? > self.stride {
            return None;
        }
        self.chunks[chunk].1.slice(at + offset, len)
    }

    /// Stores a message at the start of a slot.
    pub(crate) fn store(&self, slot: u32, message: &[u8]) {
        assert!(message.len() <= self.stride, "a message fits its slot");
        let (chunk, at) = self.place(slot);
        let target = self.chunks[chunk].1.as_ptr();
        // SAFETY: the slot lies inside its chunk, which `self` keeps mapped, and the message fits,
        // checked above; `message` is private memory, so the ranges do not overlap; no reference to
        // the slot exists.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), target.add(at), message.len());
        }
    }

    /// Fetches bytes from a slot, from `offset`, up to the slot's end; returns how many.
    pub(crate) fn fetch(&self, slot: u32, offset: usize, target: &mut [u8]) -> usize {
        let (chunk, at) = self.place(slot);
        let len = target.len().min(self.stride.saturating_sub(offset));
        let source = self.chunks[chunk].1.as_ptr();
        // SAFETY: as in `store`: `offset + len` stays inside the slot; `target` is private memory.
        unsafe {
            std::ptr::copy_nonoverlapping(source.add(at + offset), target.as_mut_ptr(), len);
        }
        len
    }

    /// Ends the registrations.
    pub(crate) fn release(&mut self, adapter: &mut dyn Adapter) {
        for (region, _) in self.chunks.drain(..) {
            adapter.deregister(region.id);
        }
        self.free.clear();
        self.slots_max = 0;
    }

    fn place(&self, slot: u32) -> (usize, usize) {
        let slot = slot as usize;
        (slot / SLOTS_PER_CHUNK, slot % SLOTS_PER_CHUNK * self.stride)
    }
}
