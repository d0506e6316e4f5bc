//! The memory for retained writes, of all files of a mount.
//!
//! Invariants
//! * The charged bytes are at most the bound, except for the overhead of a piece that grows. The
//!   same holds with the free buffers included, except for those that are about to be used.
//! * A buffer is reused only when it has no other user.

use super::pace::Pace;
use crate::limits::{KEPT_BYTES_MAX, WRITE_BYTES_MAX};
use dafs_client::IoBuffer;
use dafs_mem::{Mutex, VolatileSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory that the server can reach.
pub(crate) trait Reachable {
    fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>>;
    /// True when it has another user.
    fn is_shared(&self) -> bool;
}

impl Reachable for IoBuffer {
    fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        Self::slice(self, offset, len)
    }

    fn is_shared(&self) -> bool {
        Self::is_shared(self)
    }
}

/// The bytes in use, and free buffers.
#[derive(Debug)]
pub(super) struct Memory<B> {
    used_bytes: AtomicUsize,
    free: Mutex<Vec<B>>,
    /// When bytes are freed early.
    pub(super) pace: Pace,
}

impl<B> Default for Memory<B> {
    fn default() -> Self {
        Self { used_bytes: 0.into(), free: Mutex::default(), pace: Pace::default() }
    }
}

impl<B> Memory<B> {
    /// Charges bytes until the charge is dropped; `None` when they would be too many.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge<B>> {
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= KEPT_BYTES_MAX);
        let added = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        added.ok().map(|_| Charge { memory: self.clone(), bytes })
    }

    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// A free buffer.
    pub(super) fn take_free(&self) -> Option<B> {
        self.free.lock().pop()
    }

    /// Frees buffers whose bytes are charged now.
    pub(super) fn trim(&self) {
        let mut free = self.free.lock();
        while !free.is_empty() && !self.has_room(free.len()) {
            free.pop();
        }
    }

    fn has_room(&self, free: usize) -> bool {
        let used = self.used_bytes.load(Ordering::Relaxed);
        used + free * WRITE_BYTES_MAX as usize <= KEPT_BYTES_MAX
    }
}

impl<B: Reachable> Memory<B> {
    pub(super) fn put_free(&self, buffer: B) {
        let mut free = self.free.lock();
        if self.has_room(free.len() + 1) && !buffer.is_shared() {
            free.push(buffer);
        }
    }
}

/// Memory in use.
#[derive(Debug)]
pub(super) struct Charge<B> {
    memory: Arc<Memory<B>>,
    bytes: usize,
}

impl<B> Charge<B> {
    /// Sets the charge, even beyond the bound.
    pub(super) fn set(&mut self, bytes: usize) {
        let used = &self.memory.used_bytes;
        match bytes >= self.bytes {
            true => used.fetch_add(bytes - self.bytes, Ordering::Relaxed),
            false => used.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        };
        self.bytes = bytes;
    }

    pub(super) fn memory(&self) -> &Arc<Memory<B>> {
        &self.memory
    }
}

impl<B> Drop for Charge<B> {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Buffer;

    #[test]
    fn free_buffers_give_way_to_what_is_kept() {
        let memory = Arc::<Memory<Buffer>>::default();
        let buffers = KEPT_BYTES_MAX / WRITE_BYTES_MAX as usize;
        for _ in 0..2 * buffers {
            memory.put_free(Buffer::zeroed(1).unwrap());
        }
        assert_eq!(memory.free.lock().len(), buffers);
        let charge = memory.charge(KEPT_BYTES_MAX / 2).unwrap();
        memory.trim();
        assert_eq!(memory.free.lock().len(), buffers / 2);
        let rest = memory.charge(KEPT_BYTES_MAX / 2).unwrap();
        assert!(memory.charge(1).is_none());
        memory.trim();
        assert!(memory.take_free().is_none());
        drop((charge, rest));
        memory.put_free(Buffer::zeroed(1).unwrap());
        assert!(memory.take_free().is_some() && memory.used_bytes() == 0);
    }
}
