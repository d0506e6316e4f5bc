//! Registered memory of one transport for messages: receives for each connection, replies for all.
//!
//! Invariants
//! * None of this memory is registered for remote access, so no peer can reach it by RDMA.
//! * A receive slot is either posted, in use (its message is being processed) or free. A reply slot
//!   is either free or owned by exactly one piece of work.
//! * The bytes of a slot are read only while it is not posted, and written only while no send is
//!   posted from it.

use crate::limits::SMALL_REPLY_BYTES;
use dafs_dat::{Access, Adapter, LocalSegment, MemoryRegion, ProtectionDomain, RegisterError};
use dafs_mem::{Buffer, VolatileSlice};
use dafs_service::Owner;
use std::sync::Arc;

/// Several slots of equal size in one registration.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) buffer: Arc<Buffer>,
    pub(super) region: MemoryRegion,
    pub(super) slot_bytes: usize,
}

impl Slab {
    pub(super) fn new(
        adapter: &mut dyn Adapter,
        domain: ProtectionDomain,
        slots: usize,
        slot_bytes: usize,
    ) -> Result<Self, RegisterError> {
        let buffer = Arc::new(Buffer::zeroed(slots * slot_bytes)?);
        let region = adapter.register(domain, buffer.clone(), Access::LOCAL_WRITE)?;
        Ok(Self { buffer, region, slot_bytes })
    }

    fn segment(&self, slot: usize, len: usize) -> LocalSegment {
        debug_assert!(len <= self.slot_bytes);
        self.region.local(slot * self.slot_bytes, len)
    }

    fn address(&self, slot: usize) -> *mut u8 {
        debug_assert!((slot + 1) * self.slot_bytes <= self.buffer.len());
        // SAFETY: the slot lies inside the buffer, because its number came from this slab's free
        // list.
        unsafe { self.buffer.as_ptr().add(slot * self.slot_bytes) }
    }
}

/// A received message that stays in its slot. It keeps the memory alive.
pub(super) struct Message {
    _buffer: Arc<Buffer>,
    ptr: *const u8,
    len: usize,
}

impl Message {
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the buffer that `_buffer` keeps mapped. The slot is in use
        // while a `Message` exists (the dispatcher reposts it only afterwards). It is registered
        // without remote access, and private to this process, so no other writer exists.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

/// The receive slots of one connection.
#[derive(Debug, Default)]
pub(super) struct Receives {
    slabs: Vec<(usize, Slab)>,
    free: Vec<u32>,
    total: usize,
    /// Slots shorter than this are not used again.
    slot_bytes_min: usize,
}

impl Receives {
    /// Stops the use of slots shorter than `bytes`: messages may be that long from now on.
    pub(super) fn retire_shorter(&mut self, bytes: usize) {
        self.slot_bytes_min = bytes;
        let free = std::mem::take(&mut self.free);
        self.free =
            free.into_iter().filter(|&slot| self.find(slot).0.slot_bytes >= bytes).collect();
    }

    pub(super) fn grow(
        &mut self,
        adapter: &mut dyn Adapter,
        domain: ProtectionDomain,
        slots: usize,
        slot_bytes: usize,
    ) -> Result<(), RegisterError> {
        let slab = Slab::new(adapter, domain, slots, slot_bytes)?;
        self.slabs.push((self.total, slab));
        self.free.extend((self.total..self.total + slots).rev().map(|slot| slot as u32));
        self.total += slots;
        Ok(())
    }

    /// Frees slabs behind the first `keep` slots that are wholly free.
    pub(super) fn shrink(&mut self, adapter: &mut dyn Adapter, keep: usize) {
        while let Some((first, slab)) = self.slabs.last() {
            let first = *first;
            let free = self.free.iter().filter(|&&slot| slot as usize >= first).count();
            if first < keep || self.slabs.len() == 1 || free != self.total - first {
                return;
            }
            adapter.deregister(slab.region.id);
            self.free.retain(|&slot| (slot as usize) < first);
            self.total = first;
            self.slabs.pop();
        }
    }

    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Takes a free slot to post, with its segment.
    pub(super) fn take(&mut self) -> Option<(u32, LocalSegment)> {
        let slot = self.free.pop()?;
        let (slab, index) = self.find(slot);
        Some((slot, slab.segment(index, slab.slot_bytes)))
    }

    /// Frees a slot that is neither posted nor in use any more.
    pub(crate) fn give_back(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "a receive slot was freed twice");
        if self.find(slot).0.slot_bytes >= self.slot_bytes_min {
            self.free.push(slot);
        }
    }

    /// Returns the message that arrived in a slot.
    pub(super) fn message(&self, slot: u32, len: usize) -> Message {
        let (slab, index) = self.find(slot);
        let len = len.min(slab.slot_bytes);
        Message { _buffer: slab.buffer.clone(), ptr: slab.address(index), len }
    }

    /// Returns the bytes of `data`, which lie in the message of `slot`, from `skip` on, for a job
    /// that outlives the borrow of the message.
    pub(super) fn part(&self, slot: u32, data: &[u8], skip: usize) -> SlotPart {
        let (slab, _) = self.find(slot);
        let at = data.as_ptr() as usize - slab.buffer.as_ptr() as usize;
        SlotPart { buffer: slab.buffer.clone(), at: at + skip, len: data.len() - skip }
    }

    /// Ends all registrations.
    pub(super) fn release(&mut self, adapter: &mut dyn Adapter) {
        for (_, slab) in self.slabs.drain(..) {
            adapter.deregister(slab.region.id);
        }
        self.free.clear();
        self.total = 0;
    }

    fn find(&self, slot: u32) -> (&Slab, usize) {
        let at = self.slabs.partition_point(|(first, _)| *first <= slot as usize) - 1;
        let (first, slab) = &self.slabs[at];
        (slab, slot as usize - first)
    }
}

/// A part of a receive slot whose request waits. It keeps the memory alive.
pub(crate) struct SlotPart {
    buffer: Arc<Buffer>,
    at: usize,
    len: usize,
}

impl SlotPart {
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
    slabs: Vec<Slab>,
    free: Vec<u32>,
    /// The owner of each slot in use.
    holders: Vec<Option<Owner>>,
    slot_bytes: usize,
    per_slab: usize,
}

impl ReplyPool {
    fn take(
        &mut self,
        adapter: &mut dyn Adapter,
        domain: ProtectionDomain,
        owner: Owner,
    ) -> Result<u32, RegisterError> {
        if self.free.is_empty() {
            let first = self.slabs.len() * self.per_slab;
            self.slabs.push(Slab::new(adapter, domain, self.per_slab, self.slot_bytes)?);
            self.free.extend((first..first + self.per_slab).rev().map(|slot| slot as u32));
            self.holders.resize(first + self.per_slab, None);
        }
        // INVARIANT: a slab was just added if there was no free slot.
        let slot = self.free.pop().expect("a slab was just added");
        self.holders[slot as usize] = Some(owner);
        Ok(slot)
    }

    /// Frees the slots of an owner. Returns their number.
    fn reclaim(&mut self, owner: &Owner) -> usize {
        let before = self.free.len();
        for (slot, holder) in self.holders.iter_mut().enumerate() {
            if holder.take_if(|holder| holder == owner).is_some() {
                self.free.push(slot as u32);
            }
        }
        self.free.len() - before
    }

    /// Frees slabs at the end that are wholly free, at most half of all at a time.
    fn trim(&mut self, adapter: &mut dyn Adapter) {
        let keep = (self.slabs.len() / 2).max(1);
        if self.slabs.len() <= keep {
            return;
        }
        // From now on the first slots are used first, so that those at the end become free.
        self.free.sort_unstable_by(|one, other| other.cmp(one));
        while self.slabs.len() > keep {
            let first = (self.slabs.len() - 1) * self.per_slab;
            if self.free.get(self.per_slab - 1).is_none_or(|&slot| (slot as usize) < first) {
                return;
            }
            self.free.drain(..self.per_slab);
            if let Some(slab) = self.slabs.pop() {
                adapter.deregister(slab.region.id);
            }
        }
    }
}

/// The memory for replies of one transport, in two sizes. The credits of all sessions bound its
/// use, because each request in progress has at most one reply.
#[derive(Debug)]
pub(crate) struct Replies {
    domain: ProtectionDomain,
    small: ReplyPool,
    large: ReplyPool,
    in_use: usize,
}

impl Replies {
    pub(super) fn new(domain: ProtectionDomain, large_bytes: usize) -> Self {
        let pool = |slot_bytes, per_slab| ReplyPool {
            slabs: Vec::new(),
            free: Vec::new(),
            holders: Vec::new(),
            slot_bytes,
            per_slab,
        };
        Self {
            domain,
            small: pool(SMALL_REPLY_BYTES, SMALL_PER_SLAB),
            large: pool(large_bytes, LARGE_PER_SLAB),
            in_use: 0,
        }
    }

    /// Returns the size of the largest slot.
    pub(super) fn bytes_max(&self) -> usize {
        self.small.slot_bytes.max(self.large.slot_bytes)
    }

    /// Takes a slot that holds `bytes`, for a reply over one connection.
    pub(super) fn take(
        &mut self,
        adapter: &mut dyn Adapter,
        bytes: usize,
        owner: Owner,
    ) -> Result<ReplySlot, RegisterError> {
        let slot = if bytes <= self.small.slot_bytes {
            ReplySlot(self.small.take(adapter, self.domain, owner)?)
        } else {
            ReplySlot(self.large.take(adapter, self.domain, owner)? | LARGE_BIT)
        };
        self.in_use += 1;
        Ok(slot)
    }

    pub(crate) fn give_back(&mut self, slot: ReplySlot) {
        debug_assert!(self.in_use > 0);
        self.in_use -= 1;
        let (pool, index) = self.pool_mut(slot);
        debug_assert!(!pool.free.contains(&index), "a reply slot was freed twice");
        pool.free.push(index);
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
        self.small.trim(adapter);
        self.large.trim(adapter);
    }

    /// Returns the slot's memory, to encode into.
    pub(crate) fn bytes_mut(&mut self, slot: ReplySlot) -> &mut [u8] {
        let (pool, index) = self.pool_mut(slot);
        let slab = &pool.slabs[index as usize / pool.per_slab];
        let ptr = slab.address(index as usize % pool.per_slab);
        // SAFETY: the slot is private memory of the slab, taken by the caller and not yet posted,
        // and borrowed through `self`, so this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(ptr, pool.slot_bytes) }
    }

    /// Returns a view of the slot for the kernel to fill, which outlives the borrow of the pool.
    pub(crate) fn view(&mut self, slot: ReplySlot, offset: usize, len: usize) -> VolatileSlice<'_> {
        let (pool, index) = self.pool_mut(slot);
        let slab = &pool.slabs[index as usize / pool.per_slab];
        let at = (index as usize % pool.per_slab) * pool.slot_bytes + offset;
        debug_assert!(offset + len <= pool.slot_bytes);
        slab.buffer.slice(at, len).unwrap_or_else(|| VolatileSlice::from_mut(&mut []))
    }

    /// Returns the buffer and position of a slot, for a job that fills it on another thread.
    pub(crate) fn place(&mut self, slot: ReplySlot, offset: usize) -> (Arc<Buffer>, usize) {
        let (pool, index) = self.pool_mut(slot);
        let slab = &pool.slabs[index as usize / pool.per_slab];
        let at = (index as usize % pool.per_slab) * pool.slot_bytes + offset;
        (slab.buffer.clone(), at)
    }

    pub(super) fn segment(&mut self, slot: ReplySlot, len: usize) -> LocalSegment {
        let (pool, index) = self.pool_mut(slot);
        let slab = &pool.slabs[index as usize / pool.per_slab];
        slab.segment(index as usize % pool.per_slab, len)
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
        let most = replies.large.slabs.len();
        replies.trim(&mut adapter);
        assert_eq!(replies.large.slabs.len(), most, "all are in use");
        // A slot in use keeps its position.
        let (low, high) = (taken.remove(0), taken.remove(700));
        for slot in taken {
            replies.give_back(slot);
        }
        (0..20).for_each(|_| replies.trim(&mut adapter));
        assert_eq!(replies.large.slabs.len(), 701 / LARGE_PER_SLAB + 1);
        replies.give_back(high);
        (0..20).for_each(|_| replies.trim(&mut adapter));
        assert_eq!(replies.large.slabs.len(), 1);
        assert_ne!(take(&mut replies, &mut adapter), low);
        assert_eq!(replies.in_use(), 2);
        let again: Vec<_> = (0..100).map(|_| take(&mut replies, &mut adapter)).collect();
        let mut numbers: Vec<_> = again.iter().map(|slot| slot.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 100);
    }
}
