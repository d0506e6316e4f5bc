//! Chunks of registered memory through which data passes where the transport cannot access the
//! client's memory itself, and their distribution.
//!
//! Invariants
//! * None of this memory is registered for remote access, so no peer can reach it by RDMA.
//! * A chunk is either free or held for one connection.
//! * A connection holds no more than its share of them, and neither do all connections of one
//!   origin together. The exception is a transfer that needs more at once and whose holder has no
//!   other.
//! * Waiting transfers get chunks in turn. One that needs many keeps its turn until there are
//!   enough, so that small ones do not starve it. A few of new origins may go before it.

use super::work::PendingId;
use crate::limits::{
    STAGING_CHUNK_BYTES, STAGING_CHUNKS_IDLE, STAGING_CHUNKS_MAX, STAGING_CHUNKS_PER_ORIGIN_MAX,
    STAGING_CHUNKS_PER_SESSION_MAX,
};
use dafs_dat::slots::Slab;
use dafs_dat::{Adapter, LocalSegment, ProtectionDomain};
use dafs_mem::Buffer;
use dafs_service::{Origin, Owner, Turn, Turns};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::Arc;

/// The number of chunks of each holder.
type Held<K> = FxHashMap<K, usize>;

/// True if a holder may have `count` more.
fn fits<K: Eq + Hash>(held: &Held<K>, holder: &K, count: usize, max: usize) -> bool {
    held.get(holder).is_none_or(|held| held + count <= max)
}

/// The chunks of one transport, and the transfers that wait for some.
#[derive(Debug)]
pub(crate) struct Staging {
    domain: ProtectionDomain,
    chunks: Vec<Option<Slab>>,
    free: Vec<u32>,
    /// The owner of each chunk.
    holders: Vec<Option<Owner>>,
    by_owner: Held<Owner>,
    by_origin: Held<Origin>,
    waiting: Turns<PendingId>,
    /// A transfer waits that has not been checked since.
    due: bool,
    /// The system had no memory for a chunk.
    short: bool,
}

impl Staging {
    pub(super) fn new(domain: ProtectionDomain) -> Self {
        Self {
            domain,
            chunks: Vec::new(),
            free: Vec::new(),
            holders: Vec::new(),
            by_owner: Held::default(),
            by_origin: Held::default(),
            waiting: Turns::default(),
            due: false,
            short: false,
        }
    }

    /// Returns the number of chunks that can still be taken.
    fn available(&self) -> usize {
        let absent = self.chunks.iter().filter(|chunk| chunk.is_none()).count();
        self.free.len() + absent + (STAGING_CHUNKS_MAX - self.chunks.len())
    }

    pub(super) fn in_use(&self) -> usize {
        STAGING_CHUNKS_MAX - self.available()
    }

    /// True if so many chunks are available for a connection, within its share.
    pub(super) fn fits(&self, owner: &Owner, count: usize) -> bool {
        self.available() >= count && self.owner_fits(owner, count) && self.origin_fits(owner, count)
    }

    fn owner_fits(&self, owner: &Owner, count: usize) -> bool {
        fits(&self.by_owner, owner, count, STAGING_CHUNKS_PER_SESSION_MAX)
    }

    fn origin_fits(&self, owner: &Owner, count: usize) -> bool {
        fits(&self.by_origin, &owner.origin, count, STAGING_CHUNKS_PER_ORIGIN_MAX)
    }

    /// Takes a chunk for a connection that it [fits](Self::fits). Returns `None` when memory is
    /// short.
    pub(super) fn take(&mut self, adapter: &mut dyn Adapter, owner: &Owner) -> Option<u32> {
        let chunk = match self.free.pop() {
            Some(chunk) => chunk,
            None => self.make(adapter)?,
        };
        self.holders[chunk as usize] = Some(*owner);
        *self.by_owner.entry(*owner).or_default() += 1;
        *self.by_origin.entry(owner.origin).or_default() += 1;
        Some(chunk)
    }

    fn make(&mut self, adapter: &mut dyn Adapter) -> Option<u32> {
        let absent = self.chunks.iter().position(Option::is_none);
        if absent.is_none() && self.chunks.len() >= STAGING_CHUNKS_MAX {
            return None;
        }
        let slab = Slab::new(adapter, self.domain, 1, STAGING_CHUNK_BYTES);
        let slab = slab.inspect_err(|error| tracing::warn!(%error, "no memory for staging"));
        self.short = slab.is_err();
        let index = absent.unwrap_or_else(|| {
            self.chunks.push(None);
            self.holders.push(None);
            self.chunks.len() - 1
        });
        self.chunks[index] = Some(slab.ok()?);
        Some(index as u32)
    }

    pub(crate) fn give_back(&mut self, chunk: u32) {
        debug_assert!(!self.free.contains(&chunk), "a staging chunk was freed twice");
        self.free.push(chunk);
        self.let_go(chunk);
    }

    fn let_go(&mut self, chunk: u32) {
        if let Some(owner) = self.holders[chunk as usize].take() {
            give_up(&mut self.by_owner, owner);
            give_up(&mut self.by_origin, owner.origin);
        }
    }

    /// Drops chunks that an ended connection has lost, without posted work. A lost job may still
    /// use the memory, and keeps it alive.
    pub(super) fn reclaim(&mut self, adapter: &mut dyn Adapter, owner: &Owner) {
        for chunk in 0..self.holders.len() {
            if self.holders[chunk].as_ref() == Some(owner)
                && let Some(slab) = self.chunks[chunk].take()
            {
                adapter.deregister(slab.region.id);
                self.let_go(chunk as u32);
            }
        }
    }

    pub(super) fn is_calm(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn wait(&mut self, owner: &Owner, id: PendingId) {
        self.waiting.push(*owner, id);
        self.due = true;
    }

    /// True when a transfer waits that has not been checked since.
    pub(super) fn is_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// Returns the transfer that goes on next, if there are chunks for it. `wanted` returns the
    /// number that a transfer needs to go on: none if it is gone.
    pub(super) fn next(&mut self, mut wanted: impl FnMut(PendingId) -> usize) -> Option<PendingId> {
        if self.waiting.is_empty() || self.short {
            return None;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let available = self.available();
        let next = waiting.take(|owner, id| {
            let wanted = wanted(*id);
            if wanted == 0 {
                Turn::Take
            } else if !self.owner_fits(&owner, wanted) {
                Turn::NextOwner
            } else if !self.origin_fits(&owner, wanted) {
                Turn::NextOrigin
            } else if available < wanted {
                Turn::Wait
            } else {
                Turn::Take
            }
        });
        self.waiting = waiting;
        next.map(|(_, id)| id)
    }

    /// True if a transfer of another holder could go on if a connection held no chunks.
    pub(super) fn others_wait_for(
        &self,
        holder: &Owner,
        mut wanted: impl FnMut(PendingId) -> usize,
    ) -> bool {
        let available = self.available();
        self.by_owner.contains_key(holder)
            && self.waiting.firsts().any(|(owner, id)| {
                let wanted = wanted(*id);
                let shares = owner.origin == holder.origin && !self.origin_fits(&owner, wanted);
                owner != *holder
                    && self.owner_fits(&owner, wanted)
                    && (shares || available < wanted)
            })
    }

    /// Frees the memory of unused chunks except for a few, and allows new allocations.
    pub(super) fn trim(&mut self, adapter: &mut dyn Adapter) {
        self.short = false;
        while self.free.len() > STAGING_CHUNKS_IDLE {
            if let Some(chunk) = self.free.pop()
                && let Some(slab) = self.chunks[chunk as usize].take()
            {
                adapter.deregister(slab.region.id);
            }
        }
    }

    fn slab(&self, chunk: u32) -> &Slab {
        // INVARIANT: only chunks that were taken and not given back are named.
        self.chunks[chunk as usize].as_ref().expect("the chunk is in use")
    }

    pub(super) fn segment(&self, chunk: u32, offset: usize, len: usize) -> LocalSegment {
        let slab = self.slab(chunk);
        debug_assert!(offset + len <= slab.slot_bytes);
        slab.region.local(offset, len)
    }

    pub(super) fn buffer(&self, chunk: u32) -> &Arc<Buffer> {
        &self.slab(chunk).buffer
    }

    /// Returns a chunk's memory, to read or to encode into.
    pub(super) fn bytes_mut(&mut self, chunk: u32) -> &mut [u8] {
        let slab = self.slab(chunk);
        // SAFETY: the chunk is private memory owned by the caller's work. No transfer and no job
        // uses it at this time (the state machines access a chunk only between them), and it is
        // borrowed through `self`.
        unsafe { std::slice::from_raw_parts_mut(slab.buffer.as_ptr(), slab.slot_bytes) }
    }
}

fn give_up<K: Eq + Hash>(held: &mut Held<K>, holder: K) {
    if let Some(count) = held.get_mut(&holder) {
        *count -= 1;
        if *count == 0 {
            held.remove(&holder);
        }
    }
}
