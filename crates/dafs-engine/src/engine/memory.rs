//! Registered memory of one transport for messages: receives for each connection, replies for all.
//!
//! Invariants
//! * None of this memory is registered for remote access, so no peer can reach it by RDMA.
//! * A receive slot is either posted, in use (its message is being processed) or free. A reply slot
//!   is either free or owned by exactly one piece of work.
//! * The bytes of a slot are read only while it is not posted, and written only while no send is
//!   posted from it.

use crate::limits::SMALL_REPLY_BYTES;
use dafs_dat::slots::SlotPool;
use dafs_dat::{Adapter, LocalSegment, ProtectionDomain, RegisterError};
use dafs_mem::{Buffer, VolatileSlice};
use dafs_service::Owner;
use std::sync::Arc;

/// A part of a receive slot whose request waits. It keeps the memory alive.
pub(crate) struct SlotPart {
    buffer: Arc<Buffer>,
    at: usize,
    len: usize,
}

impl SlotPart {
    /// The bytes of `data`, which lie in a slot of `buffer`, from `skip` on, for a job that
    /// outlives the borrow of the message.
    pub(super) fn new(buffer: &Arc<Buffer>, data: &[u8], skip: usize) -> Self {
        let at = data.as_ptr() as usize - buffer.as_ptr() as usize;
        Self { buffer: buffer.clone(), at: at + skip, len: data.len() - skip }
    }

    pub(crate) fn view(&self) -> VolatileSlice<'_> {
        self.buffer.slice(self.at, self.len).unwrap_or_else(|| VolatileSlice::from_mut(&mut []))
    }
}

/// A reply slot in use: its pool and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplySlot(pub(super) u32);

const LARGE_BIT: u32 = 1 << 23;
const SMALL_PER_SLAB: usize = 64;
const LARGE_PER_SLAB: usize = 16;

/// Slots of one size for outgoing replies.
#[derive(Debug)]
struct ReplyPool {
    slots: SlotPool,
    /// The owner of each slot in use.
    holders: Vec<Option<Owner>>,
}

impl ReplyPool {
    fn take(&mut self, adapter: &mut dyn Adapter, owner: Owner) -> Result<u32, RegisterError> {
        let slot = self.slots.take(adapter)?;
        if self.holders.len() < self.slots.total() {
            self.holders.resize(self.slots.total(), None);
        }
        self.holders[slot as usize] = Some(owner);
        Ok(slot)
    }

    /// Frees the slots of an owner. Returns their number.
    fn reclaim(&mut self, owner: &Owner) -> usize {
        let before = self.slots.free_count();
        for (slot, holder) in self.holders.iter_mut().enumerate() {
            if holder.take_if(|holder| holder == owner).is_some() {
                self.slots.give_back(slot as u32);
            }
        }
        self.slots.free_count() - before
    }
}

/// The memory for replies of one transport, in two sizes. The credits of all sessions bound its
/// use, because each request in progress has at most one reply.
#[derive(Debug)]
pub(crate) struct Replies {
    small: ReplyPool,
    large: ReplyPool,
    in_use: usize,
}

impl Replies {
    pub(super) fn new(domain: ProtectionDomain, large_bytes: usize) -> Self {
        let pool = |slot_bytes, per_slab| ReplyPool {
            slots: SlotPool::new(domain, slot_bytes, per_slab),
            holders: Vec::new(),
        };
        Self {
            small: pool(SMALL_REPLY_BYTES, SMALL_PER_SLAB),
            large: pool(large_bytes, LARGE_PER_SLAB),
            in_use: 0,
        }
    }

    /// Returns the size of the largest slot.
    pub(super) fn bytes_max(&self) -> usize {
        self.small.slots.slot_bytes().max(self.large.slots.slot_bytes())
    }

    /// Takes a slot that holds `bytes`, for a reply over one connection.
    pub(super) fn take(
        &mut self,
        adapter: &mut dyn Adapter,
        bytes: usize,
        owner: Owner,
    ) -> Result<ReplySlot, RegisterError> {
        let slot = if bytes <= self.small.slots.slot_bytes() {
            ReplySlot(self.small.take(adapter, owner)?)
        } else {
            ReplySlot(self.large.take(adapter, owner)? | LARGE_BIT)
        };
        self.in_use += 1;
        Ok(slot)
    }

    pub(crate) fn give_back(&mut self, slot: ReplySlot) {
        debug_assert!(self.in_use > 0);
        self.in_use -= 1;
        let (pool, index) = self.pool_mut(slot);
        pool.slots.give_back(index);
        pool.holders[index as usize] = None;
    }

    /// Frees slots that an ended connection has lost, without posted work.
    pub(super) fn reclaim(&mut self, owner: &Owner) {
        self.in_use -= self.small.reclaim(owner) + self.large.reclaim(owner);
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Frees memory that has not been needed lately.
    pub(super) fn trim(&mut self, adapter: &mut dyn Adapter) {
        self.small.slots.trim(adapter);
        self.large.slots.trim(adapter);
    }

    /// Returns the slot's memory, to encode into.
    pub(crate) fn bytes_mut(&mut self, slot: ReplySlot) -> &mut [u8] {
        let (pool, index) = self.pool_mut(slot);
        // SAFETY: the caller has taken the slot, has not posted it, and borrows it through `self`.
        unsafe { pool.slots.bytes_mut(index) }
    }

    /// Returns a view of the slot for the kernel to fill, which outlives the borrow of the pool.
    pub(crate) fn view(&mut self, slot: ReplySlot, offset: usize, len: usize) -> VolatileSlice<'_> {
        let (pool, index) = self.pool_mut(slot);
        let view = pool.slots.view(index).slice(offset, len);
        debug_assert!(view.is_some());
        view.unwrap_or_else(|| VolatileSlice::from_mut(&mut []))
    }

    /// Returns the buffer and position of a slot, for a job that fills it on another thread.
    pub(crate) fn place(&mut self, slot: ReplySlot, offset: usize) -> (Arc<Buffer>, usize) {
        let (pool, index) = self.pool_mut(slot);
        let (buffer, at) = pool.slots.buffer(index);
        (buffer.clone(), at + offset)
    }

    pub(super) fn segment(&mut self, slot: ReplySlot, len: usize) -> LocalSegment {
        let (pool, index) = self.pool_mut(slot);
        pool.slots.segment(index, len)
    }

    fn pool_mut(&mut self, slot: ReplySlot) -> (&mut ReplyPool, u32) {
        let index = slot.0 & !LARGE_BIT;
        if slot.0 & LARGE_BIT == 0 { (&mut self.small, index) } else { (&mut self.large, index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_dat::sim::{SimFaults, SimNetwork};

    #[test]
    fn replies_that_few_need_at_a_time_take_little_memory() {
        let network = SimNetwork::new(1, SimFaults::none());
        let mut adapter = network.adapter(1);
        let domain = adapter.protection_domain();
        let mut replies = Replies::new(domain, 16 << 10);
        let take = |replies: &mut Replies, adapter: &mut dyn Adapter| {
            replies.take(adapter, 16 << 10, Owner::SERVER).unwrap()
        };
        let mut taken: Vec<_> = (0..1000).map(|_| take(&mut replies, &mut adapter)).collect();
        let slabs = |replies: &Replies| replies.large.slots.total() / LARGE_PER_SLAB;
        let most = slabs(&replies);
        replies.trim(&mut adapter);
        assert_eq!(slabs(&replies), most, "all are in use");
        // A slot in use keeps its position.
        let (low, high) = (taken.remove(0), taken.remove(700));
        for slot in taken {
            replies.give_back(slot);
        }
        (0..20).for_each(|_| replies.trim(&mut adapter));
        assert_eq!(slabs(&replies), 701 / LARGE_PER_SLAB + 1);
        replies.give_back(high);
        (0..20).for_each(|_| replies.trim(&mut adapter));
        assert_eq!(slabs(&replies), 1);
        assert_ne!(take(&mut replies, &mut adapter), low);
        assert_eq!(replies.in_use(), 2);
        let again: Vec<_> = (0..100).map(|_| take(&mut replies, &mut adapter)).collect();
        let mut numbers: Vec<_> = again.iter().map(|slot| slot.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 100);
    }
}
