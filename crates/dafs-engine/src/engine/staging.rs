//! Chunks of registered memory through which data passes where the transport cannot access the
//! client's memory itself, and their distribution.
//!
//! Invariants
//! * None of this memory is registered for remote access, so no peer can reach it by RDMA.
//! * A chunk is either free or held for one connection.
//! * Each direction has a part of them, and in that each connection, each origin and each file system
//!   has a share ([`super::flows`]). Reads go past writes that wait for their part, and the other way
//!   round.
//! * Waiting transfers get chunks in turn. One that needs many keeps its turn until there are
//!   enough, so that small ones do not starve it. A few of new origins may go before it.

use super::flows::{Flow, Flows, Need};
use super::work::PendingId;
use crate::limits::{STAGING_CHUNK_BYTES, STAGING_CHUNKS_IDLE, STAGING_CHUNKS_MAX};
use dafs_dat::slots::Slab;
use dafs_dat::{Adapter, LocalSegment, ProtectionDomain};
use dafs_mem::Buffer;
use dafs_service::{Owner, Turn, Turns};
use std::sync::Arc;

/// Returns the owner under which a transfer waits. Writes of a connection, and its other transfers,
/// have a turn each.
fn in_line(owner: &Owner, is_in: bool) -> Owner {
    Owner { number: owner.number << 1 | u64::from(is_in), ..*owner }
}

/// Returns the owner of a transfer that waits.
fn of_line(line: Owner) -> Owner {
    Owner { number: line.number >> 1, ..line }
}

/// The chunks of one transport, and the transfers that wait for some.
#[derive(Debug)]
pub(crate) struct Staging {
    domain: ProtectionDomain,
    chunks: Vec<Option<Slab>>,
    free: Vec<u32>,
    /// The owner of each chunk, and the direction of its data.
    holders: Vec<Option<(Owner, Flow)>>,
    flows: Flows,
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
            flows: Flows::default(),
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

    /// Returns the bytes of chunks with data that no store has taken yet.
    pub(super) fn pulled_bytes(&self) -> usize {
        self.flows.pulled() * STAGING_CHUNK_BYTES
    }

    /// True if a connection may take so many chunks now.
    pub(super) fn fits(&self, owner: &Owner, need: Need) -> bool {
        self.available() >= need.chunks
            && self.flows.is_share_free(owner, need)
            && self.flows.is_free(need)
    }

    /// Takes a chunk for a connection that it [fits](Self::fits). Returns `None` when memory is
    /// short.
    pub(super) fn take(
        &mut self,
        adapter: &mut dyn Adapter,
        owner: &Owner,
        flow: Flow,
    ) -> Option<u32> {
        let chunk = match self.free.pop() {
            Some(chunk) => chunk,
            None => self.make(adapter)?,
        };
        self.holders[chunk as usize] = Some((*owner, flow));
        self.flows.enter(owner, flow);
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
        if let Some((owner, flow)) = self.holders[chunk as usize].take() {
            self.flows.leave(&owner, flow);
        }
    }

    /// Drops chunks that an ended connection has lost, without posted work. A lost job may still
    /// use the memory, and keeps it alive.
    pub(super) fn reclaim(&mut self, adapter: &mut dyn Adapter, owner: &Owner) {
        for chunk in 0..self.holders.len() {
            if self.holders[chunk].is_some_and(|(holder, _)| holder == *owner)
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

    pub(super) fn wait(&mut self, owner: &Owner, id: PendingId, flow: Flow) {
        self.waiting.push(in_line(owner, matches!(flow, Flow::In(_))), id);
        self.due = true;
    }

    /// Notes that waiting transfers have to be checked.
    pub(super) fn note_due(&mut self) {
        self.due = true;
    }

    /// Forgets a transfer that was cancelled. Others may go on: it may have had a turn, or chunks.
    pub(super) fn forget(&mut self, owner: &Owner, id: PendingId) {
        for is_in in [false, true] {
            self.waiting.remove(in_line(owner, is_in), |waiting| *waiting == id);
        }
        self.due = true;
    }

    /// True when a transfer waits that has not been checked since.
    pub(super) fn is_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// Returns the transfer that goes on next, if there are chunks for it. `need` returns those that
    /// a transfer needs to go on.
    pub(super) fn next(&mut self, need: impl Fn(PendingId) -> Need) -> Option<PendingId> {
        if self.waiting.is_empty() || self.short {
            return None;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let available = self.available();
        // The directions in which a transfer keeps its turn, because all is taken. Smaller transfers
        // behind it would starve it.
        let mut is_taken = [false; 2];
        let next = waiting.take(|line, id| {
            let (owner, need) = (of_line(line), need(*id));
            let is_taken = &mut is_taken[usize::from(matches!(need.flow, Flow::In(_)))];
            if need.chunks == 0 {
                Turn::Take
            } else if *is_taken || !self.flows.is_share_free(&owner, need) {
                Turn::NextOwner
            } else if !self.flows.is_free(need) {
                *is_taken = true;
                Turn::NextOwner
            } else if available < need.chunks {
                Turn::Wait
            } else {
                Turn::Take
            }
        });
        self.waiting = waiting;
        next.map(|(_, id)| id)
    }

    /// True if a transfer of another holder could go on if a connection held no chunks.
    pub(super) fn others_wait_for(&self, holder: &Owner, need: impl Fn(PendingId) -> Need) -> bool {
        let available = self.available();
        self.flows.has_any(holder)
            && self.waiting.firsts().any(|(line, id)| {
                let (owner, need) = (of_line(line), need(*id));
                let waits = available < need.chunks && self.flows.is_share_free(&owner, need)
                    || self.flows.are_others_in_the_way(&owner, need);
                owner != *holder && waits
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
