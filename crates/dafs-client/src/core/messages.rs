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
use dafs_dat::slots::SlotPool;
use dafs_dat::{Adapter, LocalSegment, ProtectionDomain};
use dafs_mem::VolatileSlice;

/// Slots are allocated this many at a time, so that an idle session stays small.
const SLOTS_PER_SLAB: usize = 16;

/// Slots start on cache lines.
const SLOT_ALIGN_BYTES: usize = 64;

/// A pool of message slots.
#[derive(Debug)]
pub(crate) struct MessagePool {
    slots: SlotPool,
    message_bytes: usize,
    slots_max: usize,
}

impl MessagePool {
    /// An empty pool for up to `slots_max` messages of `message_bytes`.
    pub(crate) fn new(domain: ProtectionDomain, message_bytes: usize, slots_max: usize) -> Self {
        let slot_bytes = message_bytes.next_multiple_of(SLOT_ALIGN_BYTES);
        let slots = SlotPool::new(domain, slot_bytes, SLOTS_PER_SLAB);
        Self { slots, message_bytes, slots_max }
    }

    /// Bytes of one message.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// True when the bound allows [`take`](Self::take) to yield a slot.
    pub(crate) fn available(&self) -> bool {
        self.slots.free_count() > 0 || self.slots.total() < self.slots_max
    }

    /// The number of slots that can be taken now.
    pub(crate) fn room(&self) -> usize {
        let total_max = self.slots_max.next_multiple_of(SLOTS_PER_SLAB);
        self.slots.free_count() + total_max - self.slots.total()
    }

    /// Takes a free slot; allocates more memory when there is none. `None` when all slots are in
    /// use.
    pub(crate) fn take(&mut self, adapter: &mut dyn Adapter) -> Result<Option<u32>, Failure> {
        if !self.available() {
            return Ok(None);
        }
        self.slots.take(adapter).map(Some).map_err(Failure::memory)
    }

    /// Frees a slot.
    pub(crate) fn put(&mut self, slot: u32) {
        self.slots.give_back(slot);
    }

    /// The first `len` bytes of a slot, for posting.
    pub(crate) fn segment(&self, slot: u32, len: usize) -> LocalSegment {
        self.slots.segment(slot, len)
    }

    /// A view of part of a slot; `None` if it is not inside.
    pub(crate) fn view(&self, slot: u32, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.slots.view(slot).slice(offset, len)
    }

    /// Stores a message at the start of a slot.
    pub(crate) fn store(&self, slot: u32, message: &[u8]) {
        let target = self.slots.view(slot);
        assert!(message.len() <= target.len(), "a message fits its slot");
        // SAFETY: `target` is mapped, and the message fits, checked above; `message` is private
        // memory, so the ranges do not overlap; no reference to the slot exists.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), target.as_ptr(), message.len());
        }
    }

    /// Fetches bytes from the start of a slot; returns how many.
    pub(crate) fn fetch(&self, slot: u32, target: &mut [u8]) -> usize {
        let source = self.slots.view(slot);
        let len = target.len().min(source.len());
        // SAFETY: as in `store`: `len` bytes are inside the slot; `target` is private memory.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr(), len);
        }
        len
    }

    /// Ends the registrations.
    pub(crate) fn release(&mut self, adapter: &mut dyn Adapter) {
        self.slots.release(adapter);
        self.slots_max = 0;
    }
}
