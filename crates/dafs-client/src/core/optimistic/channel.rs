//! The connection over which the client reads the server's memory by RDMA.
//!
//! Invariants
//! * After its end no data of the server reaches this process over it.
//! * Entries are read behind the data of the same read, over the same connection, which answers reads in
//!   their order.

use super::directory::{ENTRY_BYTES, PAGE_BYTES, PageFetch};
use super::reads::Read;
use crate::core::failure::Failure;
use crate::core::messages::MessagePool;
use crate::core::proofs::ProofChannel;
use crate::limits::{
    MESSAGE_BYTES_MIN, OPTIMISTIC_BYTES_MAX, OPTIMISTIC_FETCHES_MAX, OPTIMISTIC_READS_MAX,
};
use dafs_dat::{Adapter, EndpointId, Instant, ProtectionDomain};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A message, or the page of a window.
pub(super) const SLOT_BYTES: usize = MESSAGE_BYTES_MIN as usize;

/// The entries of the longest read.
const ENTRIES_BYTES: usize = (OPTIMISTIC_BYTES_MAX / PAGE_BYTES + 1) * ENTRY_BYTES;

/// The phases of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being made.
    Dialing,
    /// CONNECT_BIND has been sent.
    Binding,
    /// The client may read.
    Bound,
}

/// The connection, with what is under way on it.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) endpoint: EndpointId,
    pub(super) phase: Phase,
    /// The protection of proofs on it, once it is established.
    pub(super) protection: ProofChannel,
    /// The timeout of the attempt to bind the channel.
    pub(super) due: Instant,
    /// The time when it was bound.
    pub(super) bound_at: Instant,
    /// Slots for messages and for pages.
    slots: MessagePool,
    /// Slots for the entries of a read.
    entries: MessagePool,
    /// Reads of the application under way, by the tag of their work.
    reads: FxHashMap<u64, Read>,
    /// Fetches of pages under way, with their slots.
    fetches: FxHashMap<u64, (PageFetch, u32)>,
    /// The times when reads and fetches began, in their order. The first of them is under way.
    begun: VecDeque<(u64, Instant)>,
    next_work: u64,
}

impl Channel {
    pub(super) fn new(domain: ProtectionDomain, endpoint: EndpointId, due: Instant) -> Self {
        Self {
            endpoint,
            phase: Phase::Dialing,
            protection: ProofChannel::default(),
            due,
            bound_at: due,
            slots: MessagePool::new(domain, SLOT_BYTES, 2 + OPTIMISTIC_FETCHES_MAX),
            entries: MessagePool::new(domain, ENTRIES_BYTES, OPTIMISTIC_READS_MAX),
            reads: FxHashMap::default(),
            fetches: FxHashMap::default(),
            begun: VecDeque::new(),
            next_work: 0,
        }
    }

    /// Sends the one message of the client, and posts the receive for its answer.
    pub(super) fn send(
        &mut self,
        adapter: &mut dyn Adapter,
        message: &[u8],
    ) -> Result<(), Failure> {
        let slot = self.take_slot(adapter)?;
        let segment = self.slots.segment(slot, SLOT_BYTES);
        adapter.post_receive(self.endpoint, slot.into(), segment).map_err(Failure::lost)?;
        let slot = self.take_slot(adapter)?;
        self.slots.store(slot, message);
        let segment = self.slots.segment(slot, message.len());
        adapter.post_send(self.endpoint, slot.into(), &[segment]).map_err(Failure::lost)
    }

    fn take_slot(&mut self, adapter: &mut dyn Adapter) -> Result<u32, Failure> {
        self.slots.take(adapter)?.ok_or_else(|| Failure::lost("the slots are used up"))
    }

    /// The message of `bytes` bytes in a slot, which is freed.
    pub(super) fn take_message(&mut self, slot: u32, bytes: usize) -> Vec<u8> {
        let mut message = vec![0; bytes.min(SLOT_BYTES)];
        self.slots.fetch(slot, &mut message);
        self.slots.put(slot);
        message
    }

    /// Frees the slot of a message that was sent, or of a receive without one.
    pub(super) fn free(&mut self, slot: u32) {
        self.slots.put(slot);
    }

    /// The number of reads of the application under way.
    pub(super) fn read_count(&self) -> usize {
        self.reads.len()
    }

    /// True if a read of this tag is under way.
    pub(super) fn has(&self, tag: u64) -> bool {
        self.reads.values().any(|read| read.tag == tag)
    }

    /// True if one more read can begin.
    pub(super) fn has_room(&self) -> bool {
        self.phase == Phase::Bound && self.reads.len() < OPTIMISTIC_READS_MAX
    }

    /// The time when the first of the reads and fetches under way began.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.begun.front().map(|(_, at)| *at)
    }

    /// Forgets the times of reads and fetches that are over, up to the first one under way.
    fn forget_times(&mut self) {
        let Self { reads, fetches, begun, .. } = self;
        let is_over = |work: &u64| !reads.contains_key(work) && !fetches.contains_key(work);
        while begun.front().is_some_and(|(work, _)| is_over(work)) {
            begun.pop_front();
        }
    }

    /// Begins a read: its data, then its entries. It is under way in any case, so a failure ends it with
    /// the channel.
    pub(super) fn begin(
        &mut self,
        adapter: &mut dyn Adapter,
        (mut read, now): (Read, Instant),
    ) -> Result<(), Failure> {
        let (endpoint, work) = (self.endpoint, self.next_work);
        self.next_work += 1;
        self.begun.push_back((work, now));
        let slot = self.entries.take(adapter);
        read.left = read.plan.runs.len() + read.plan.checks.len();
        let read = self.reads.entry(work).insert_entry(read).into_mut();
        let slot = slot?.ok_or_else(|| Failure::lost("the slots are used up"))?;
        read.slot = Some(slot);
        let target = read.call.into.local()?;
        for run in &read.plan.runs {
            let mut segment = target;
            segment.offset += run.at as usize;
            segment.len = run.source.len as usize;
            adapter.rdma_read(endpoint, work, segment, run.source).map_err(Failure::lost)?;
        }
        let whole = self.entries.segment(slot, read.plan.entries_bytes());
        let mut offset = whole.offset;
        for check in &read.plan.checks {
            let mut segment = whole;
            (segment.offset, segment.len) = (offset, check.source.len as usize);
            offset += segment.len;
            adapter.rdma_read(endpoint, work, segment, check.source).map_err(Failure::lost)?;
        }
        Ok(())
    }

    /// Begins to fetch a page.
    pub(super) fn fetch(
        &mut self,
        adapter: &mut dyn Adapter,
        (fetch, now): (PageFetch, Instant),
    ) -> Result<(), Failure> {
        let work = self.next_work;
        self.next_work += 1;
        let slot = self.take_slot(adapter)?;
        self.fetches.insert(work, (fetch, slot));
        self.begun.push_back((work, now));
        let segment = self.slots.segment(slot, PAGE_BYTES);
        adapter.rdma_read(self.endpoint, work, segment, fetch.source).map_err(Failure::lost)
    }

    /// True if one more page can be fetched.
    pub(super) fn may_fetch(&self) -> bool {
        self.phase == Phase::Bound && self.fetches.len() < OPTIMISTIC_FETCHES_MAX
    }

    /// Notes that one of the RDMA reads of a read is done. Returns the read with its entries when all
    /// are.
    pub(super) fn done(&mut self, work: u64) -> Option<(Read, Vec<u8>)> {
        let read = self.reads.get_mut(&work)?;
        read.left = read.left.saturating_sub(1);
        if read.left > 0 {
            return None;
        }
        let mut read = self.reads.remove(&work)?;
        self.forget_times();
        let mut entries = vec![0; read.plan.entries_bytes()];
        if let Some(slot) = read.slot.take() {
            self.entries.fetch(slot, &mut entries);
            self.entries.put(slot);
        }
        Some((read, entries))
    }

    /// Takes a page that has been fetched.
    pub(super) fn fetched(&mut self, work: u64) -> Option<(PageFetch, Box<[u8; PAGE_BYTES]>)> {
        let (fetch, slot) = self.fetches.remove(&work)?;
        self.forget_times();
        let mut page = Box::new([0; PAGE_BYTES]);
        self.slots.fetch(slot, &mut page[..]);
        self.slots.put(slot);
        Some((fetch, page))
    }

    /// Ends the connection at once. Returns the reads that were under way, in the order in which they
    /// began.
    pub(super) fn cut(mut self, adapter: &mut dyn Adapter) -> Vec<Read> {
        adapter.abort(self.endpoint);
        self.slots.release(adapter);
        self.entries.release(adapter);
        let mut reads: Vec<_> = self.reads.into_iter().collect();
        reads.sort_unstable_by_key(|(work, _)| *work);
        reads.into_iter().map(|(_, read)| read).collect()
    }
}

const _: () = assert!(PAGE_BYTES <= SLOT_BYTES);
