//! The application's registered memory.
//!
//! Invariants
//! * A registration lives until nobody holds it any more: neither the application nor an operation
//!   in flight. So a buffer that is dropped in mid-transfer breaks nothing.
//! * The memory is not given back before the registration has ended: the adapter keeps a buffer
//!   that owns its memory until then, and for memory of the caller's the last holder sees to it
//!   that [`SessionCore::reap`](super::SessionCore::reap) runs before the caller hears of it. So
//!   the server can never reach memory that has been given back.

use dafs_dat::{LocalSegment, MemoryRegion, RegionId, RemoteBuffer};
use dafs_mem::{Buffer, VolatileSlice};
use dafs_wire::dafs::DirectBuffer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Registrations that nobody uses any more and that wait for the adapter's driver.
#[derive(Debug, Default)]
pub(crate) struct Graveyard {
    occupied: AtomicBool,
    regions: Mutex<Vec<RegionId>>,
}

impl Graveyard {
    fn bury(&self, region: RegionId) {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).push(region);
        self.occupied.store(true, Ordering::Release);
    }

    /// The registrations to end, if there are any.
    pub(crate) fn exhume(&self) -> Vec<RegionId> {
        // A cheap look first: this runs with every request.
        if !self.occupied.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.occupied.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.regions.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A buffer that the server may read and write while requests name it.
#[derive(Debug)]
pub struct RegisteredMemory {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    graveyard: Arc<Graveyard>,
}

impl RegisteredMemory {
    pub(crate) fn new(
        buffer: Arc<Buffer>,
        region: MemoryRegion,
        graveyard: Arc<Graveyard>,
    ) -> Self {
        Self { buffer, region, graveyard }
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

    /// True when both names mean registrations of one session.
    pub(crate) fn belongs_to(&self, graveyard: &Arc<Graveyard>) -> bool {
        Arc::ptr_eq(&self.graveyard, graveyard)
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        self.graveyard.bury(self.region.id);
    }
}

/// A piece of registered memory as the source or target of a transfer.
#[derive(Debug, Clone)]
pub struct Piece {
    memory: Arc<RegisteredMemory>,
    offset: usize,
    len: u32,
}

impl Piece {
    /// `len` bytes from `offset`; `None` if they are not inside.
    pub fn new(memory: &Arc<RegisteredMemory>, offset: usize, len: u32) -> Option<Self> {
        if offset.checked_add(len as usize)? > memory.len() {
            return None;
        }
        Some(Self { memory: memory.clone(), offset, len })
    }

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True when it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory.
    pub fn view(&self) -> VolatileSlice<'_> {
        self.first(self.len)
    }

    /// Its first `len` bytes, or all of it if it is shorter.
    pub(crate) fn first(&self, len: u32) -> VolatileSlice<'_> {
        let len = len.min(self.len) as usize;
        // INVARIANT: `new` checked that the piece lies inside the memory, whose length is fixed.
        self.memory.slice(self.offset, len).expect("a piece lies inside its memory")
    }

    pub(crate) fn memory(&self) -> &Arc<RegisteredMemory> {
        &self.memory
    }

    pub(crate) fn local(&self) -> LocalSegment {
        self.memory.region.local(self.offset, self.len as usize)
    }

    /// How a request names it.
    pub fn direct_buffer(&self) -> DirectBuffer {
        let remote = self.remote();
        DirectBuffer { address: remote.address, byte_count: remote.len, context: remote.key }
    }

    pub(crate) fn remote(&self) -> RemoteBuffer {
        // INVARIANT: as in `first`.
        self.memory.region.remote(self.offset, self.len).expect("a piece lies inside its memory")
    }
}
