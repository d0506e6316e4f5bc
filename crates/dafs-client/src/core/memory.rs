//! The application's registered memory.
//!
//! Invariants
//! * A registration lives as long as the application or an operation in flight holds it. So a
//!   buffer may be dropped in mid-transfer.
//! * Memory is freed only after its registration has ended. The adapter keeps a buffer that owns
//!   its memory until then. For borrowed memory the last holder makes sure that
//!   [`SessionCore::reap`](super::SessionCore::reap) runs before the drop returns. So the server
//!   can never reach memory that has been freed.
//! * A registration belongs to one connection. When that is lost it ends at once, and the next
//!   connection makes another one under a new key; the application's handle stays valid. So a
//!   request may name memory as it was first registered: the session renames it when it sends the
//!   request.
//! * A registration is ended at the adapter that made it. A session may have two, of which one is in
//!   use at a time.

use super::failure::Failure;
use crate::fork::ForkMutex;
use dafs_dat::{
    Access, Adapter, LocalSegment, MemoryRegion, ProtectionDomain, RegionId, RegisterError,
};
use dafs_mem::{Buffer, CheckedSlice, VolatileSlice};
use dafs_wire::dafs::DirectBuffer;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// The memory that one request names; nearly always none or one piece.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// Which of the two adapters of a session has made a registration.
type Side = bool;

/// A registration, and the adapter that has made it.
#[derive(Debug, Clone, Copy)]
struct Registration {
    region: MemoryRegion,
    side: Side,
}

/// Registrations without a user, which wait for the adapter's driver to end them.
#[derive(Debug, Default)]
struct RetiredRegistrations {
    occupied: AtomicBool,
    regions: ForkMutex<Vec<(Side, RegionId)>>,
}

impl RetiredRegistrations {
    fn retire(&self, registration: Registration) {
        // A fork has no registrations.
        if let Ok(mut regions) = self.regions.lock() {
            regions.push((registration.side, registration.region.id));
            self.occupied.store(true, Ordering::Release);
        }
    }

    /// The registrations to end at the adapter of one side, if there are any.
    fn take(&self, side: Side) -> Vec<RegionId> {
        // A cheap check first: this runs with every request.
        if !self.occupied.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut regions = self.regions.lock_here();
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *regions).into_iter().partition(|(of, _)| *of == side);
        self.occupied.store(!later.is_empty(), Ordering::Relaxed);
        *regions = later;
        due.into_iter().map(|(_, region)| region).collect()
    }
}

/// The memory that the application has registered in one session.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    retired: Arc<RetiredRegistrations>,
    /// For the next connection; only kept when there may be one.
    kept: Vec<Weak<RegisteredMemory>>,
    /// The adapter in use.
    side: Side,
}

impl Memories {
    /// Registers a buffer; with `keep` the next connection registers it, too.
    pub(crate) fn register(
        &mut self,
        adapter: &mut dyn Adapter,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        keep: bool,
    ) -> Result<Arc<RegisteredMemory>, RegisterError> {
        let region = adapter.register(domain, buffer.clone(), ACCESS)?;
        let (mappable, retired) = (adapter.is_mappable(&buffer), self.retired.clone());
        let registration = Registration { region, side: self.side };
        let memory = Arc::new(RegisteredMemory::new(buffer, registration, retired, mappable));
        if keep {
            if self.kept.len() == self.kept.capacity() {
                self.kept.retain(|memory| memory.strong_count() > 0);
            }
            self.kept.push(Arc::downgrade(&memory));
        }
        Ok(memory)
    }

    /// True when the memory was registered here.
    pub(crate) fn own(&self, memory: &RegisteredMemory) -> bool {
        Arc::ptr_eq(&memory.retired, &self.retired)
    }

    /// Ends registrations without a holder.
    pub(crate) fn reap(&self, adapter: &mut dyn Adapter) {
        for region in self.retired.take(self.side) {
            adapter.deregister(region);
        }
    }

    /// Goes on with the other adapter of the session; `adapter` is the one so far.
    pub(crate) fn change_sides(&mut self, adapter: &mut dyn Adapter) {
        self.withdraw(adapter);
        self.side = !self.side;
    }

    /// Ends the registrations of a connection that is lost.
    pub(crate) fn withdraw(&self, adapter: &mut dyn Adapter) {
        for memory in self.kept.iter().filter_map(Weak::upgrade) {
            if let Some(region) = memory.withdraw() {
                adapter.deregister(region);
            }
        }
        self.reap(adapter);
    }

    /// Registers the memory on a new connection.
    pub(crate) fn renew(
        &self,
        adapter: &mut dyn Adapter,
        domain: ProtectionDomain,
    ) -> Result<(), Failure> {
        for memory in self.kept.iter().filter_map(Weak::upgrade) {
            if memory.region().is_none() {
                let region = adapter.register(domain, memory.buffer.clone(), ACCESS);
                let region = region.map_err(Failure::memory)?;
                memory.renew(Registration { region, side: self.side });
            }
        }
        Ok(())
    }
}

/// A buffer that the server may read and write by its key, as long as it is registered.
#[derive(Debug)]
pub struct RegisteredMemory {
    buffer: Arc<Buffer>,
    /// Its name for the application: its first registration.
    name: MemoryRegion,
    /// `None` while there is no connection to register it for.
    region: ForkMutex<Option<Registration>>,
    retired: Arc<RetiredRegistrations>,
    /// The server may map it, and so reach it after its registration and the connection have ended.
    mappable: bool,
    /// The application never sees it.
    private: AtomicBool,
}

impl RegisteredMemory {
    fn new(
        buffer: Arc<Buffer>,
        registration: Registration,
        retired: Arc<RetiredRegistrations>,
        mappable: bool,
    ) -> Self {
        Self {
            buffer,
            name: registration.region,
            region: ForkMutex::new(Some(registration)),
            retired,
            mappable,
            private: AtomicBool::new(false),
        }
    }

    /// Marks memory that the application never sees, so that it is not reused while an operation
    /// may still be under way on it.
    pub(crate) fn keep_private(&self) {
        self.private.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_private(&self) -> bool {
        self.private.load(Ordering::Relaxed)
    }

    /// True when the server may reach it even after the end of a connection.
    pub(crate) fn is_mappable(&self) -> bool {
        self.mappable
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// True when there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The whole memory.
    pub fn view(&self) -> VolatileSlice<'_> {
        self.buffer.view()
    }

    /// `len` bytes from `offset`; `None` if they are not inside.
    pub fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.buffer.slice(offset, len)
    }

    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// Holds the locks, for tests.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized {
        (self.region(), self.retired.regions.lock_here())
    }

    /// Removes the registration, to end it.
    fn withdraw(&self) -> Option<RegionId> {
        self.region().take().map(|registration| registration.region.id)
    }

    /// Gives it a new registration, on a new connection.
    fn renew(&self, registration: Registration) {
        let old = self.region().replace(registration);
        debug_assert!(old.is_none(), "memory has one registration at a time");
    }

    fn region(&self) -> MutexGuard<'_, Option<Registration>> {
        self.region.lock_here()
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if let Some(registration) = self.region.lock().ok().and_then(|mut region| region.take()) {
            self.retired.retire(registration);
        }
    }
}

/// A piece of registered memory as the source or target of a transfer.
#[derive(Debug, Clone)]
pub struct Piece {
    memory: Arc<RegisteredMemory>,
    offset: usize,
    len: u32,
    /// The buffer's counter of losses when the operation began.
    losses: u64,
}

impl Piece {
    /// `len` bytes from `offset`; `None` if they are not inside.
    pub fn new(memory: &Arc<RegisteredMemory>, offset: usize, len: u32) -> Option<Self> {
        if offset.checked_add(len as usize)? > memory.len() {
            return None;
        }
        let losses = memory.buffer.losses();
        Some(Self { memory: memory.clone(), offset, len, losses })
    }

    /// Merges `next` if that lies right behind it; false if it does not.
    pub(crate) fn extend(&mut self, next: &Self) -> bool {
        let end = self.offset + self.len as usize;
        let behind = end == next.offset && Arc::ptr_eq(&self.memory, &next.memory);
        let len = self.len.checked_add(next.len).filter(|_| behind);
        self.len = len.unwrap_or(self.len);
        self.losses = self.losses.min(next.losses);
        len.is_some()
    }

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True when it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory, which is mapped.
    pub fn view(&self) -> VolatileSlice<'_> {
        self.checked().view()
    }

    /// The memory, which the application may have unmapped.
    pub(crate) fn checked(&self) -> CheckedSlice<'_> {
        self.first(self.len)
    }

    /// Its first `len` bytes, or all of it if it is shorter.
    pub(crate) fn first(&self, len: u32) -> CheckedSlice<'_> {
        let len = len.min(self.len) as usize;
        // INVARIANT: `new` checked that the piece lies inside the memory, whose length is fixed.
        self.memory.buffer.checked(self.offset, len).expect("a piece lies inside its memory")
    }

    /// True when any of the memory was found unmapped since the operation began.
    pub(crate) fn is_lost(&self) -> bool {
        self.memory.buffer.is_lost(self.offset..self.offset + self.len as usize, self.losses)
    }

    /// True when memory to be sent was found unmapped since the operation began.
    pub(crate) fn is_unreadable(&self) -> bool {
        let range = self.offset..self.offset + self.len as usize;
        self.memory.buffer.is_unreadable(range, self.losses)
    }

    /// As [`is_unreadable`](Self::is_unreadable), or it is unmapped now. Touches every byte.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_unreadable() || self.checked().look().is_err()
    }

    pub(crate) fn memory(&self) -> &Arc<RegisteredMemory> {
        &self.memory
    }

    /// The current registration.
    fn region(&self) -> Result<MemoryRegion, Failure> {
        let registration = *self.memory.region();
        let known = registration.map(|registration| registration.region);
        known.ok_or_else(|| Failure::memory("it is not registered for this connection"))
    }

    pub(crate) fn local(&self) -> Result<LocalSegment, Failure> {
        Ok(self.region()?.local(self.offset, self.len as usize))
    }

    /// The name by which a request is given to the session. The session renames it when it sends
    /// the request over another connection than its first.
    pub fn direct_buffer(&self) -> DirectBuffer {
        self.in_region(&self.memory.name, self.offset, self.len)
    }

    /// Its name on the current connection.
    pub(crate) fn current_buffer(&self) -> Result<DirectBuffer, Failure> {
        Ok(self.in_region(&self.region()?, self.offset, self.len))
    }

    /// The current name of a part of its memory, which is given by the application's name; `None`
    /// when that is not in this memory.
    pub(crate) fn rename(&self, buffer: &DirectBuffer) -> Result<Option<DirectBuffer>, Failure> {
        let name = &self.memory.name;
        let offset = buffer.address.checked_sub(name.address).and_then(|at| at.try_into().ok());
        let Some(offset) = offset.filter(|_| name.key == buffer.context) else { return Ok(None) };
        if name.remote(offset, buffer.byte_count).is_none() {
            return Ok(None);
        }
        Ok(Some(self.in_region(&self.region()?, offset, buffer.byte_count)))
    }

    fn in_region(&self, region: &MemoryRegion, offset: usize, len: u32) -> DirectBuffer {
        // INVARIANT: as in `first`; all registrations are of the whole buffer.
        let remote = region.remote(offset, len).expect("a piece lies inside its memory");
        DirectBuffer { address: remote.address, byte_count: remote.len, context: remote.key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_ends_at_the_adapter_that_made_it() {
        let retired = RetiredRegistrations::default();
        for (id, side) in [(1, false), (2, true), (3, false)] {
            let region = MemoryRegion { id: RegionId(id), key: 0, address: 0, len: 0 };
            retired.retire(Registration { region, side });
        }
        assert_eq!(retired.take(false), [RegionId(1), RegionId(3)]);
        assert!(retired.take(false).is_empty());
        assert_eq!(retired.take(true), [RegionId(2)]);
    }
}
