//! Registered memory for messages: receive slots of each connection, send slots of each adapter.
//!
//! Invariants
//! * This memory is private to this process and not registered for remote access. A peer reaches it
//!   only by sending a message.
//! * A receive slot is posted, in hand (its message is in use or waits) or free. A send slot is
//!   free or belongs to one outgoing message.

use dafs_dat::{Access, Adapter, LocalSegment, MemoryRegion, ProtectionDomain, RegisterError};
use dafs_mem::Buffer;
use std::sync::Arc;

/// Slots of equal size in one registration.
#[derive(Debug)]
struct Slab {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    slot_bytes: usize,
}

impl Slab {
    fn new(
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
        assert!((slot + 1) * self.slot_bytes <= self.buffer.len(), "a slot outside its slab");
        // SAFETY: the slot lies inside the buffer, as was just checked.
        unsafe { self.buffer.as_ptr().add(slot * self.slot_bytes) }
    }
}

/// A message in its receive slot; it keeps the memory mapped.
pub(super) struct Message {
    _buffer: Arc<Buffer>,
    ptr: *const u8,
    len: usize,
}

impl Message {
    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // The creator of a `Message` frees its slot only after the last use. The memory is private
        // and not registered for remote access, so no other code writes to it meanwhile.
        // SAFETY: as above, and the range lies in the buffer that `_buffer` keeps mapped.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

/// The receive slots of one connection.
#[derive(Debug, Default)]
pub(super) struct Receives {
    /// Slabs with the number of their first slot.
    slabs: Vec<(usize, Slab)>,
    free: Vec<u32>,
    total: usize,
}

impl Receives {
    /// Adds slots.
    ///
    /// # Errors
    /// When memory is short or cannot be registered.
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

    /// Takes a free slot to post, with its segment. The lowest number comes first, so that memory
    /// at the end can be freed when fewer slots are needed.
    pub(super) fn take(&mut self) -> Option<(u32, LocalSegment)> {
        let (at, _) = self.free.iter().enumerate().min_by_key(|(_, slot)| **slot)?;
        let slot = self.free.swap_remove(at);
        let (slab, index) = self.find(slot);
        Some((slot, slab.segment(index, slab.slot_bytes)))
    }

    /// Returns a slot that is neither posted nor in hand any more.
    pub(super) fn give_back(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "a receive slot was freed twice");
        self.free.push(slot);
    }

    /// The number of slots.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Frees the slabs at the end whose slots are all free, except for the first ones.
    pub(super) fn shrink(&mut self, adapter: &mut dyn Adapter) {
        while let [_, .., (first, slab)] = &self.slabs[..] {
            let first = *first;
            let free = self.free.iter().filter(|&&slot| slot as usize >= first).count();
            if free < self.total - first {
                return;
            }
            adapter.deregister(slab.region.id);
            self.free.retain(|&slot| (slot as usize) < first);
            self.total = first;
            self.slabs.pop();
        }
    }

    /// The message of `len` bytes that arrived in a slot.
    pub(super) fn message(&self, slot: u32, len: usize) -> Message {
        let (slab, index) = self.find(slot);
        let len = len.min(slab.slot_bytes);
        Message { _buffer: slab.buffer.clone(), ptr: slab.address(index), len }
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

/// Send slots in one slab.
const SENDS_PER_SLAB: usize = 32;

/// Slots for outgoing messages. Their number follows from the credits of all connections.
#[derive(Debug)]
pub(super) struct Sends {
    domain: ProtectionDomain,
    slabs: Vec<Slab>,
    free: Vec<u32>,
    slot_bytes: usize,
}

impl Sends {
    pub(super) fn new(domain: ProtectionDomain, slot_bytes: usize) -> Self {
        Self { domain, slabs: Vec::new(), free: Vec::new(), slot_bytes }
    }

    /// Takes a slot.
    ///
    /// # Errors
    /// When memory is short or cannot be registered.
    pub(super) fn take(&mut self, adapter: &mut dyn Adapter) -> Result<u32, RegisterError> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let first = self.slabs.len() * SENDS_PER_SLAB;
        self.slabs.push(Slab::new(adapter, self.domain, SENDS_PER_SLAB, self.slot_bytes)?);
        self.free.extend((first + 1..first + SENDS_PER_SLAB).rev().map(|slot| slot as u32));
        Ok(first as u32)
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Frees slabs at the end that are wholly free, at most half of all at a time.
    pub(super) fn trim(&mut self, adapter: &mut dyn Adapter) {
        let keep = (self.slabs.len() / 2).max(1);
        if self.slabs.len() <= keep {
            return;
        }
        // From now on low slots are used first, so that those at the end become free.
        self.free.sort_unstable_by(|one, other| other.cmp(one));
        while self.slabs.len() > keep {
            let first = (self.slabs.len() - 1) * SENDS_PER_SLAB;
            if self.free.get(SENDS_PER_SLAB - 1).is_none_or(|&slot| (slot as usize) < first) {
                return;
            }
            self.free.drain(..SENDS_PER_SLAB);
            if let Some(slab) = self.slabs.pop() {
                adapter.deregister(slab.region.id);
            }
        }
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "a send slot was freed twice");
        self.free.push(slot);
    }

    /// The slot's memory, to write a message into.
    pub(super) fn bytes_mut(&mut self, slot: u32) -> &mut [u8] {
        let slab = &self.slabs[slot as usize / SENDS_PER_SLAB];
        let ptr = slab.address(slot as usize % SENDS_PER_SLAB);
        // SAFETY: the slot is private memory of the slab, taken by the caller and not yet posted,
        // and borrowed through `self`, so this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(ptr, slab.slot_bytes) }
    }

    pub(super) fn segment(&self, slot: u32, len: usize) -> LocalSegment {
        let slab = &self.slabs[slot as usize / SENDS_PER_SLAB];
        slab.segment(slot as usize % SENDS_PER_SLAB, len)
    }
}

/// A table of items under small, reused numbers.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, entry: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.entries[number as usize] = Some(entry);
            return number;
        }
        self.entries.push(Some(entry));
        (self.entries.len() - 1) as u32
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(entry)
    }

    /// Removes all items that match.
    pub(super) fn remove_all(&mut self, mut is_one: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for (number, place) in self.entries.iter_mut().enumerate() {
            if let Some(entry) = place.take_if(|entry| is_one(entry)) {
                self.free.push(number as u32);
                removed.push(entry);
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_dat::sim::{SimFaults, SimNetwork};

    #[test]
    fn slots_are_found_in_slabs_of_different_sizes() {
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
        assert_eq!(receives.message(2, 5000).bytes().len(), 1024);
        receives.give_back(4);
        assert_eq!(receives.take().map(|(slot, _)| slot), Some(4));
        (3..7).for_each(|slot| receives.give_back(slot));
        receives.shrink(&mut adapter);
        assert_eq!((receives.total, network.region_count(1)), (8, 2));
        receives.give_back(7);
        receives.shrink(&mut adapter);
        assert_eq!((receives.total, network.region_count(1)), (3, 1));
        receives.release(&mut adapter);
        assert_eq!((receives.total, network.region_count(1)), (0, 0));
    }

    #[test]
    fn send_slots_do_not_overlap() {
        let network = SimNetwork::new(1, SimFaults::none());
        let mut adapter = network.adapter(1);
        let domain = adapter.protection_domain();
        let mut sends = Sends::new(domain, 1024);
        let slots: Vec<_> = (0..70).map(|_| sends.take(&mut adapter).unwrap()).collect();
        for &slot in &slots {
            sends.bytes_mut(slot).fill(slot as u8);
        }
        for &slot in &slots {
            assert!(sends.bytes_mut(slot).iter().all(|&byte| byte == slot as u8));
            sends.give_back(slot);
        }
        assert_eq!(sends.free.len(), 3 * SENDS_PER_SLAB);
        let slot = sends.take(&mut adapter).unwrap();
        sends.trim(&mut adapter);
        assert_eq!(network.region_count(1), 3);
        sends.give_back(slot);
        sends.trim(&mut adapter);
        assert_eq!((network.region_count(1), sends.free.len()), (1, SENDS_PER_SLAB));
    }

    #[test]
    fn numbers_are_used_again() {
        let mut table = Table::default();
        assert_eq!([table.insert('a'), table.insert('b')], [0, 1]);
        assert_eq!(table.remove(0), Some('a'));
        assert_eq!(table.remove(0), None);
        assert_eq!(table.insert('c'), 0);
        assert_eq!(table.get_mut(0), Some(&mut 'c'));
        table.insert('c');
        assert_eq!(table.remove_all(|&entry| entry == 'c'), ['c', 'c']);
        assert_eq!((table.insert('d'), table.get_mut(1)), (2, Some(&mut 'b')));
    }
}
