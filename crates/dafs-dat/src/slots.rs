//! Registered memory for messages, in slots.
//!
//! Invariants
//! * The memory is private to this process and not registered for remote access. A peer reaches it
//!   only by sending a message.
//! * A slot is in exactly one place: the free list, one posted send or receive, or with one user.

use crate::{Access, Adapter, LocalSegment, MemoryRegion, ProtectionDomain, RegisterError};
use dafs_mem::{Buffer, VolatileSlice};
use std::sync::Arc;

/// Slots of equal size in one registration.
#[derive(Debug)]
pub struct Slab {
    /// The memory.
    pub buffer: Arc<Buffer>,
    /// Its registration.
    pub region: MemoryRegion,
    /// Bytes of one slot.
    pub slot_bytes: usize,
}

impl Slab {
    /// Allocates and registers zeroed memory.
    ///
    /// # Errors
    /// When memory is short or cannot be registered.
    pub fn new(
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

    fn view(&self, slot: usize) -> VolatileSlice<'_> {
        let view = self.buffer.slice(slot * self.slot_bytes, self.slot_bytes);
        // INVARIANT: a slab holds whole slots, and the owner of the slab counts them.
        view.expect("a slot lies inside its slab")
    }
}

/// A message in its receive slot. It keeps the memory mapped.
#[derive(Debug)]
pub struct Message {
    _buffer: Arc<Buffer>,
    ptr: *const u8,
    len: usize,
}

impl Message {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the buffer that `_buffer` keeps mapped. The caller of
        // `Receives::message` has promised that the slot is not posted meanwhile. It is registered
        // without remote access, and private to this process, so no other writer exists.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

/// The receive slots of one connection. Their sizes may differ from slab to slab.
#[derive(Debug, Default)]
pub struct Receives {
    /// Slabs with the number of their first slot.
    slabs: Vec<(usize, Slab)>,
    free: Vec<u32>,
    total: usize,
    /// Slots shorter than this are not used again.
    slot_bytes_min: usize,
}

impl Receives {
    /// Stops the use of slots shorter than `bytes`: messages may be that long from now on.
    pub fn retire_shorter(&mut self, bytes: usize) {
        self.slot_bytes_min = bytes;
        let free = std::mem::take(&mut self.free);
        self.free =
            free.into_iter().filter(|&slot| self.find(slot).0.slot_bytes >= bytes).collect();
    }

    /// Adds slots.
    ///
    /// # Errors
    /// When memory is short or cannot be registered.
    pub fn grow(
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

    /// Frees the slabs at the end whose slots are all free. The first slab stays, and those that
    /// have one of the first `keep` slots.
    pub fn shrink(&mut self, adapter: &mut dyn Adapter, keep: usize) {
        while let [_, .., (first, slab)] = &self.slabs[..] {
            let first = *first;
            let free = self.free.iter().filter(|&&slot| slot as usize >= first).count();
            if first < keep || free != self.total - first {
                return;
            }
            adapter.deregister(slab.region.id);
            self.free.retain(|&slot| (slot as usize) < first);
            self.total = first;
            self.slabs.pop();
        }
    }

    /// The number of slots.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The number of free slots.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Takes the free slot that was used last, to post it, with its segment.
    #[inline]
    pub fn take(&mut self) -> Option<(u32, LocalSegment)> {
        let slot = self.free.pop()?;
        Some((slot, self.whole(slot)))
    }

    /// Takes the free slot with the lowest number, so that memory at the end becomes free when
    /// fewer slots are needed.
    pub fn take_lowest(&mut self) -> Option<(u32, LocalSegment)> {
        let (at, _) = self.free.iter().enumerate().min_by_key(|(_, slot)| **slot)?;
        let slot = self.free.swap_remove(at);
        Some((slot, self.whole(slot)))
    }

    /// Frees a slot that is neither posted nor in use any more.
    pub fn give_back(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "a receive slot was freed twice");
        if self.find(slot).0.slot_bytes >= self.slot_bytes_min {
            self.free.push(slot);
        }
    }

    /// Returns the message of `len` bytes that arrived in a slot.
    ///
    /// # Safety
    /// While the message exists, the slot is not posted, and nothing writes to it by
    /// [`buffer`](Self::buffer).
    #[inline]
    pub unsafe fn message(&self, slot: u32, len: usize) -> Message {
        let (slab, index) = self.find(slot);
        let len = len.min(slab.slot_bytes);
        Message { _buffer: slab.buffer.clone(), ptr: slab.view(index).as_ptr(), len }
    }

    /// The memory of the slab that a slot belongs to.
    pub fn buffer(&self, slot: u32) -> &Arc<Buffer> {
        &self.find(slot).0.buffer
    }

    /// Ends all registrations.
    pub fn release(&mut self, adapter: &mut dyn Adapter) {
        for (_, slab) in self.slabs.drain(..) {
            adapter.deregister(slab.region.id);
        }
        self.free.clear();
        self.total = 0;
    }

    #[inline]
    fn whole(&self, slot: u32) -> LocalSegment {
        let (slab, index) = self.find(slot);
        slab.segment(index, slab.slot_bytes)
    }

    #[inline]
    fn find(&self, slot: u32) -> (&Slab, usize) {
        let at = self.slabs.partition_point(|(first, _)| *first <= slot as usize) - 1;
        let (first, slab) = &self.slabs[at];
        (slab, slot as usize - first)
    }
}

/// Slots of one size. Their number grows with use.
#[derive(Debug)]
pub struct SlotPool {
    domain: ProtectionDomain,
    slot_bytes: usize,
    per_slab: usize,
    slabs: Vec<Slab>,
    free: Vec<u32>,
}

impl SlotPool {
    /// An empty pool that grows by `per_slab` slots, a power of two.
    pub fn new(domain: ProtectionDomain, slot_bytes: usize, per_slab: usize) -> Self {
        assert!(per_slab.is_power_of_two(), "slots are found without a division");
        Self { domain, slot_bytes, per_slab, slabs: Vec::new(), free: Vec::new() }
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The number of slots.
    pub fn total(&self) -> usize {
        self.slabs.len() * self.per_slab
    }

    /// The number of free slots.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Takes a free slot, and allocates more memory if there is none.
    ///
    /// # Errors
    /// When memory is short or cannot be registered.
    pub fn take(&mut self, adapter: &mut dyn Adapter) -> Result<u32, RegisterError> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let first = self.total();
        self.slabs.push(Slab::new(adapter, self.domain, self.per_slab, self.slot_bytes)?);
        self.free.extend((first + 1..first + self.per_slab).rev().map(|slot| slot as u32));
        Ok(first as u32)
    }

    /// Frees a slot.
    pub fn give_back(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "a slot was freed twice");
        self.free.push(slot);
    }

    /// Frees slabs at the end that are wholly free, at most half of all at a time.
    pub fn trim(&mut self, adapter: &mut dyn Adapter) {
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

    /// The first `len` bytes of a slot, for posting.
    pub fn segment(&self, slot: u32, len: usize) -> LocalSegment {
        let (slab, index) = self.find(slot);
        slab.segment(index, len)
    }

    /// A slot's memory.
    pub fn view(&self, slot: u32) -> VolatileSlice<'_> {
        let (slab, index) = self.find(slot);
        slab.view(index)
    }

    /// A slot's buffer, and its position there, for work that outlives the borrow of the pool.
    pub fn buffer(&self, slot: u32) -> (&Arc<Buffer>, usize) {
        let (slab, index) = self.find(slot);
        (&slab.buffer, index * self.slot_bytes)
    }

    /// A slot's memory, to write a message into.
    ///
    /// # Safety
    /// The caller has taken the slot and has not posted it, and no view of it is in use.
    pub unsafe fn bytes_mut(&mut self, slot: u32) -> &mut [u8] {
        let view = self.view(slot);
        // SAFETY: the slot is private memory of a slab that `self` keeps mapped. The caller alone
        // uses it, and borrows it through `self`.
        unsafe { std::slice::from_raw_parts_mut(view.as_ptr(), view.len()) }
    }

    /// Ends all registrations. No work may be posted.
    pub fn release(&mut self, adapter: &mut dyn Adapter) {
        for slab in self.slabs.drain(..) {
            adapter.deregister(slab.region.id);
        }
        self.free.clear();
    }

    #[inline]
    fn find(&self, slot: u32) -> (&Slab, usize) {
        let slot = slot as usize;
        (&self.slabs[slot >> self.per_slab.trailing_zeros()], slot & (self.per_slab - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimFaults, SimNetwork};

    #[test]
    fn receives_find_slots_in_slabs_of_different_sizes() {
        let network = SimNetwork::new(1, SimFaults::none());
        let mut adapter = network.adapter(1);
        let domain = adapter.protection_domain();
        let mut receives = Receives::default();
        receives.grow(&mut adapter, domain, 3, 1024).unwrap();
        receives.grow(&mut adapter, domain, 5, 4096).unwrap();
        let mut taken: Vec<_> = std::iter::from_fn(|| receives.take()).collect();
        taken.sort_unstable_by_key(|(slot, _)| *slot);
        let lens: Vec<_> = taken.iter().map(|(_, segment)| segment.len).collect();
        assert_eq!(lens, [1024, 1024, 1024, 4096, 4096, 4096, 4096, 4096]);
        // SAFETY: the simulator posts nothing here.
        assert_eq!(unsafe { receives.message(2, 5000) }.bytes().len(), 1024);
        receives.give_back(4);
        assert_eq!(receives.take_lowest().map(|(slot, _)| slot), Some(4));
        (3..7).for_each(|slot| receives.give_back(slot));
        receives.shrink(&mut adapter, 0);
        assert_eq!((receives.total, network.region_count(1)), (8, 2));
        receives.give_back(7);
        receives.shrink(&mut adapter, 4);
        assert_eq!((receives.total, network.region_count(1)), (8, 2));
        assert_eq!(receives.take_lowest().map(|(slot, _)| slot), Some(3));
        receives.give_back(3);
        receives.shrink(&mut adapter, 0);
        assert_eq!((receives.total, network.region_count(1)), (3, 1));
        receives.retire_shorter(2048);
        receives.give_back(0);
        assert_eq!(receives.take(), None);
        receives.release(&mut adapter);
        assert_eq!((receives.total, network.region_count(1)), (0, 0));
    }

    #[test]
    fn the_slots_of_a_pool_do_not_overlap() {
        let network = SimNetwork::new(1, SimFaults::none());
        let mut adapter = network.adapter(1);
        let domain = adapter.protection_domain();
        let mut pool = SlotPool::new(domain, 1024, 32);
        let slots: Vec<_> = (0..70).map(|_| pool.take(&mut adapter).unwrap()).collect();
        for &slot in &slots {
            // SAFETY: this test has taken the slot, and posts none.
            unsafe { pool.bytes_mut(slot) }.fill(slot as u8);
        }
        for &slot in &slots {
            // SAFETY: as above.
            assert!(unsafe { pool.bytes_mut(slot) }.iter().all(|&byte| byte == slot as u8));
            pool.give_back(slot);
        }
        assert_eq!((pool.free_count(), pool.total()), (96, 96));
        let slot = pool.take(&mut adapter).unwrap();
        pool.trim(&mut adapter);
        assert_eq!(network.region_count(1), 3);
        pool.give_back(slot);
        pool.trim(&mut adapter);
        assert_eq!((network.region_count(1), pool.free_count()), (1, 32));
    }
}
