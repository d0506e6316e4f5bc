//! One adapter with the memory and the work that its connections share, and the context of the code
//! that serves one connection.
//!
//! Invariants
//! * Each posted work request completes once; the memory that it uses is kept until then.

use super::connection::{Connection, Ending};
use super::fetch::Fetch;
use super::send::Outgoing;
use super::table::Table;
use crate::call::ConnectionId;
use crate::call_chunks::CallChunks;
use crate::connection::{Tally, TurnContext};
use crate::handler::Handler;
use crate::inbox::Inbox;
use crate::limits::{RDMA_CALL_CHUNKS_KEPT_MAX, RDMA_HOST_SHARE};
use crate::record::Budget;
use crate::server::group::{Counters, Shared};
use dafs_dat::connections::Origin;
use dafs_dat::slots::SlotPool;
use dafs_dat::{Adapter, ProtectionDomain};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Send slots in one slab.
const SENDS_PER_SLAB: usize = 32;

pub(super) struct Link {
    pub(super) adapter: Box<dyn Adapter>,
    pub(super) domain: ProtectionDomain,
    pub(super) sends: SlotPool,
    pub(super) outgoing: Table<Outgoing>,
    pub(super) fetches: Table<Fetch>,
}

impl Link {
    pub(super) fn new(mut adapter: Box<dyn Adapter>, inline_bytes: usize) -> Self {
        let domain = adapter.protection_domain();
        let sends = SlotPool::new(domain, inline_bytes, SENDS_PER_SLAB);
        Self { adapter, domain, sends, outgoing: Table::default(), fetches: Table::default() }
    }
}

/// The meaning of a work tag: the kind in the high bits, an index in the low bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// A posted receive, by its slot.
    Receive(u32),
    /// An outgoing message, or a write that belongs to it.
    Out(u32),
    /// A read of a part of a call.
    Fetch(u32),
}

impl Tag {
    pub(super) fn pack(self) -> u64 {
        match self {
            Tag::Receive(slot) => u64::from(slot),
            Tag::Out(index) => 1 << 56 | u64::from(index),
            Tag::Fetch(index) => 2 << 56 | u64::from(index),
        }
    }

    pub(super) fn unpack(work: u64) -> Self {
        let index = work as u32;
        match work >> 56 {
            0 => Tag::Receive(index),
            1 => Tag::Out(index),
            _ => Tag::Fetch(index),
        }
    }
}

/// The parts of a reactor that every connection needs.
pub(super) struct Core<H: Handler> {
    pub(super) shared: Arc<Shared>,
    pub(super) number: usize,
    pub(super) inbox: Arc<Inbox>,
    pub(super) handler: H,
    pub(super) now_ns: u64,
    pub(super) tally: Tally,
    /// Memory that all connections hold, and memory per host.
    pub(super) held_bytes: usize,
    pub(super) held_by_host: FxHashMap<Origin, usize>,
    pub(super) receive_slots: usize,
    /// Connections that resume when some of that memory is free again.
    pub(super) starved: VecDeque<ConnectionId>,
    /// Cached call chunks.
    spare: Vec<Arc<CallChunks>>,
    /// Scratch memory for headers.
    pub(super) scratch: Vec<u8>,
    /// Unused: only byte streams have partial records.
    budget: Budget,
}

impl<H: Handler> Core<H> {
    pub(super) fn new(shared: Arc<Shared>, number: usize, handler: H) -> Self {
        Self {
            inbox: shared.members[number].inbox.clone(),
            shared,
            number,
            handler,
            now_ns: 0,
            tally: Tally::default(),
            held_bytes: 0,
            held_by_host: FxHashMap::default(),
            receive_slots: 0,
            starved: VecDeque::new(),
            spare: Vec::new(),
            scratch: Vec::new(),
            budget: Budget::new(0),
        }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.members[self.number].counters
    }

    pub(super) fn turn(&mut self) -> TurnContext<'_, H> {
        TurnContext {
            handler: &mut self.handler,
            inbox: &self.inbox,
            budget: &mut self.budget,
            config: &self.shared.config,
            tally: &mut self.tally,
            now_ns: self.now_ns,
        }
    }

    /// Counts memory that a connection of a host releases.
    pub(super) fn release(&mut self, host: Origin, bytes: usize) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
        if let Some(held) = self.held_by_host.get_mut(&host) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.held_by_host.remove(&host);
            }
        }
    }

    /// Empty call chunks without another holder.
    pub(super) fn call_chunks(&mut self) -> Arc<CallChunks> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes call chunks back, if they have no other holder.
    pub(super) fn keep(&mut self, mut call_chunks: Arc<CallChunks>) {
        if self.spare.len() < RDMA_CALL_CHUNKS_KEPT_MAX
            && let Some(own) = Arc::get_mut(&mut call_chunks)
        {
            own.clear();
            self.spare.push(call_chunks);
        }
    }
}

/// The context of the code that serves one connection.
pub(super) struct Context<'a, H: Handler> {
    pub(super) core: &'a mut Core<H>,
    pub(super) link: &'a mut Link,
    pub(super) connection: &'a mut Connection,
}

impl<H: Handler> Context<'_, H> {
    /// Aborts the connection. The connection is removed when the adapter reports the end.
    pub(super) fn fail(&mut self, ending: impl Into<Ending>) {
        if self.connection.ending.is_none() {
            self.connection.ending = Some(ending.into());
            self.link.adapter.abort(self.connection.endpoint);
        }
    }

    /// Counts memory that the connection takes.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.connection.held_bytes += bytes;
        self.core.held_bytes += bytes;
        *self.core.held_by_host.entry(self.connection.host).or_default() += bytes;
    }

    /// Counts memory that the connection releases.
    pub(super) fn release(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.connection.held_bytes, "more is given back than was taken");
        let bytes = bytes.min(self.connection.held_bytes);
        self.connection.held_bytes -= bytes;
        self.core.release(self.connection.host, bytes);
    }

    /// True if the connection may take a call that needs `bytes` of memory.
    pub(super) fn may_take(&self, bytes: usize) -> bool {
        let config = &self.core.shared.config;
        let connection = &self.connection;
        // A connection that holds no memory may always take one call; otherwise the server could
        // deadlock.
        let fits = |held: usize, max: usize| held == 0 || held.saturating_add(bytes) <= max;
        connection.pending < config.calls_per_connection_max
            && fits(connection.held_bytes, config.pending_bytes_max)
            && match (connection.held_bytes, bytes) {
                // Holders of memory must not shut out calls that need none.
                (0, 0) => self.core.held_bytes <= config.waiting_bytes_max.saturating_mul(2),
                (0, _) => self.is_roomy(0) && self.is_within_share(0),
                _ => self.is_roomy(bytes) && self.is_within_share(bytes),
            }
    }

    /// Memory that connections of the same host hold, and their limit.
    fn share(&self) -> (usize, usize) {
        let held = self.core.held_by_host.get(&self.connection.host);
        let config = &self.core.shared.config;
        // One connection may hold its own limit.
        let max = config.pending_bytes_max.max(config.waiting_bytes_max / RDMA_HOST_SHARE);
        (held.copied().unwrap_or_default(), max)
    }

    /// True if the connections of this host may hold `bytes` more together.
    fn is_within_share(&self, bytes: usize) -> bool {
        let (held, max) = self.share();
        held == 0 || held.saturating_add(bytes) <= max
    }

    /// True if half of the memory of all connections is taken, or half of this host's share while
    /// others wait for memory.
    pub(super) fn is_short(&self) -> bool {
        let (held, max) = self.share();
        let others_wait = self.core.starved.len() > usize::from(self.connection.starved);
        held > max / 2 && others_wait
            || self.core.held_bytes > self.core.shared.config.waiting_bytes_max / 2
    }

    /// True if all connections together may hold `bytes` more.
    fn is_roomy(&self, bytes: usize) -> bool {
        let max = self.core.shared.config.waiting_bytes_max;
        self.core.held_bytes == 0 || self.core.held_bytes.saturating_add(bytes) <= max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_survive() {
        for tag in [Tag::Receive(0), Tag::Out(u32::MAX), Tag::Fetch(7)] {
            assert_eq!(Tag::unpack(tag.pack()), tag);
        }
    }
}
