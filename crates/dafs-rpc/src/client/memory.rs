//! Memory for the data of calls. The transport moves data from and to it without a copy where it
//! can.
//!
//! Invariants
//! * A registration lives as long as any handle to the memory, and outstanding calls hold one. So a
//!   key that a server knows never reaches memory that was freed.
//! * Memory that a server may still write after its call has ended is never offered again
//!   ([`Memory::is_spoiled`]).

use dafs_dat::{MemoryRegion, RemoteBuffer};
use dafs_mem::{Buffer, Mutex, Site, VolatileSlice};
use dafs_wire::xdr::Payload;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory for the data of calls. Clones share the memory.
///
/// While a call uses the memory, its content may change at any time, so access is through
/// [`VolatileSlice`] only. The transport registers the memory once, when it is made; any number of
/// calls can use it. Its key lives as long as the memory. A server that received a key for a part
/// can read and write all of it for that time. Memory that one server must not reach belongs to a
/// port of its own.
#[derive(Debug, Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    buffer: Arc<Buffer>,
    /// None for memory without a registration.
    registration: Option<Registration>,
    spoiled: AtomicBool,
}

/// A registration with the adapter of a port; the thread that drives the adapter ends it.
#[derive(Debug)]
struct Registration {
    region: MemoryRegion,
    retired: Arc<RetiredRegistrations>,
}

/// Registrations that are no longer in use.
#[derive(Debug, Default)]
pub(crate) struct RetiredRegistrations {
    occupied: AtomicBool,
    regions: Mutex<Vec<Retired>>,
}

/// A registration to be ended.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) region: MemoryRegion,
    /// The memory, if a server may still write it.
    pub(crate) spoiled: Option<Arc<Buffer>>,
}

impl RetiredRegistrations {
    fn retire(&self, registration: Retired) {
        self.regions.lock().push(registration);
        self.occupied.store(true, Ordering::Release);
    }

    /// Takes the registrations to end, if there are any.
    pub(crate) fn take(&self) -> Vec<Retired> {
        // Check the flag first: this runs with every call.
        if !self.occupied.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.occupied.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.regions.lock())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(Registration { region, retired }) = self.registration.take() else { return };
        let spoiled = self.spoiled.load(Ordering::Relaxed).then(|| self.buffer.clone());
        retired.retire(Retired { region, spoiled });
    }
}

impl Memory {
    /// Zeroed memory for calls over TCP, without registration.
    ///
    /// # Errors
    /// `ENOMEM` and similar errors.
    pub fn plain(bytes: usize) -> io::Result<Self> {
        Ok(Self::new(Arc::new(Buffer::zeroed(bytes)?), None))
    }

    /// Memory that is registered with an adapter.
    pub(crate) fn registered(
        buffer: Arc<Buffer>,
        region: MemoryRegion,
        retired: Arc<RetiredRegistrations>,
    ) -> Self {
        Self::new(buffer, Some(Registration { region, retired }))
    }

    fn new(buffer: Arc<Buffer>, registration: Option<Registration>) -> Self {
        Self { inner: Arc::new(Inner { buffer, registration, spoiled: AtomicBool::new(false) }) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner.buffer.len()
    }

    /// True when the memory is empty.
    pub fn is_empty(&self) -> bool {
        self.inner.buffer.is_empty()
    }

    /// A view of the whole memory.
    pub fn view(&self) -> VolatileSlice<'_> {
        self.inner.buffer.view()
    }

    /// A part of the memory; none if the range does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<MemorySlice> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len() {
            return None;
        }
        Some(MemorySlice { memory: self.clone(), offset: range.start, len })
    }

    /// The whole memory as a slice, for a call.
    pub fn whole(&self) -> MemorySlice {
        MemorySlice { memory: self.clone(), offset: 0, len: self.len() }
    }

    /// True when a server may still write to the memory although its call has ended. The connection
    /// ended before the reply arrived, and the server maps the memory of this process (shared
    /// memory). Later calls refuse such memory, and its content is undefined.
    pub fn is_spoiled(&self) -> bool {
        self.inner.spoiled.load(Ordering::Relaxed)
    }

    pub(crate) fn spoil(&self) {
        self.inner.spoiled.store(true, Ordering::Relaxed);
    }

    /// True when the memory is registered with the adapter whose registrations these are.
    pub(crate) fn belongs_to(&self, retired: &Arc<RetiredRegistrations>) -> bool {
        let registration = self.inner.registration.as_ref();
        registration.is_some_and(|registration| Arc::ptr_eq(&registration.retired, retired))
    }

    fn region(&self) -> Option<MemoryRegion> {
        self.inner.registration.as_ref().map(|registration| registration.region)
    }
}

/// A part of a [`Memory`]; it keeps the memory alive.
#[derive(Debug, Clone)]
pub struct MemorySlice {
    memory: Memory,
    offset: usize,
    len: usize,
}

impl MemorySlice {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory that this slice is a part of.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Offset of the slice in its memory, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// A part of the slice; none if the range does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<MemorySlice> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len {
            return None;
        }
        Some(Self { memory: self.memory.clone(), offset: self.offset + range.start, len })
    }

    /// A view of the bytes.
    pub fn view(&self) -> VolatileSlice<'_> {
        // INVARIANT: the slice was made inside the memory, whose length is fixed.
        self.memory.inner.buffer.slice(self.offset, self.len).expect("a slice lies inside")
    }

    /// Places the data of a result in this sink, if it is not there yet, and returns its length.
    /// Data that came inside the results is copied, up to the length of the sink.
    pub fn take(&self, data: Payload<'_>) -> usize {
        match data {
            Payload::Here(bytes) => self.view().copy_from(bytes, Site::RpcPlacement),
            Payload::Moved(moved) => moved.len.min(self.len),
        }
    }

    /// The remote descriptor for the server; none for memory without registration, or too long for
    /// one segment.
    pub(crate) fn remote(&self) -> Option<RemoteBuffer> {
        self.memory.region()?.remote(self.offset, u32::try_from(self.len).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::xdr::MovedData;

    #[test]
    fn slices_stay_inside_and_keep_the_memory() {
        let memory = Memory::plain(100).unwrap();
        assert!(memory.slice(0..101).is_none() && memory.slice(101..101).is_none());
        let part = memory.slice(10..90).unwrap();
        assert!(part.slice(0..81).is_none());
        let inner = part.slice(70..80).unwrap();
        drop((memory, part));
        assert_eq!(inner.take(Payload::Here(b"hello")), 5);
        assert_eq!(inner.take(Payload::Moved(MovedData { index: 0, len: 9 })), 9);
        assert_eq!(inner.memory().view().slice(80, 5).unwrap().to_vec(Site::Inspect), b"hello");
        assert_eq!((inner.offset(), inner.len()), (80, 10));
        assert!(inner.remote().is_none());
    }
}
