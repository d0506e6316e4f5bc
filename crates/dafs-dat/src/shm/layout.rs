//! The memory that the two sides of a connection share.
//!
//! | offset | content | written by |
//! |---|---|---|
//! | 0 | control page of the initiator | the initiator (its sleep word is cleared by the peer) |
//! | 4096 | control page of the acceptor | the acceptor, likewise |
//! | 8192 | ring from initiator to acceptor | the initiator |
//! | 8192 + N | ring from acceptor to initiator | the acceptor |
//!
//! A control page: at 0 the consumer index of the ring that this side reads, at 128 its sleep word,
//! at 256 the number of region packets that it has sent, from 512 the keys of the regions that it
//! shares with the peer. Each kind of word has two cache lines of its own, because the processor
//! prefetches neighbouring lines in pairs.
//!
//! Invariants
//! * No value from here is trusted: the peer can write all of it at any time.

use super::limits::{KEY_SLOTS, RING_BYTES_MAX, RING_BYTES_MIN};
use super::ring::{Consumer, Producer, RingMemory};
use super::sys::Mapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const PAGE: usize = 4096;
const HEAD: usize = 0;
const SLEEP: usize = 128;
const REGION_PACKETS: usize = 256;
const KEYS: usize = 512;

/// The sleep word: awake, no doorbell wanted.
const AWAKE: u32 = 0;
/// Asleep until records arrive.
const WANTS_RECORDS: u32 = 1;
/// Asleep until records arrive or room appears in the ring to the peer.
const WANTS_ROOM: u32 = 3;

/// The side of the connection that this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Initiator,
    Acceptor,
}

/// The bytes of connection memory with rings of `ring_bytes`, if that size is valid.
pub(super) fn connection_bytes(ring_bytes: u32) -> Option<usize> {
    let fits =
        ring_bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes);
    fits.then_some(2 * PAGE + 2 * ring_bytes as usize)
}

/// The control words, from one side's point of view.
#[derive(Debug)]
pub(super) struct Control {
    memory: Arc<Mapping>,
    own: usize,
    peer: usize,
}

/// Splits connection memory into its parts for one side.
pub(super) fn open(
    memory: Arc<Mapping>,
    ring_bytes: u32,
    side: Side,
) -> (Control, Producer, Consumer) {
    let ring_bytes = ring_bytes as usize;
    assert!(memory.len() >= 2 * PAGE + 2 * ring_bytes);
    let (own, peer, out, into) = match side {
        Side::Initiator => (0, PAGE, 2 * PAGE, 2 * PAGE + ring_bytes),
        Side::Acceptor => (PAGE, 0, 2 * PAGE + ring_bytes, 2 * PAGE),
    };
    let producer = Producer::new(RingMemory::new(&memory, out, ring_bytes, peer + HEAD));
    let consumer = Consumer::new(RingMemory::new(&memory, into, ring_bytes, own + HEAD));
    (Control { memory, own, peer }, producer, consumer)
}

impl Control {
    fn own_sleep(&self) -> &AtomicU32 {
        self.memory.word32(self.own + SLEEP)
    }

    fn peer_sleep(&self) -> &AtomicU32 {
        self.memory.word32(self.peer + SLEEP)
    }

    /// Asks the peer to ring the doorbell. A full fence and another check of the rings must follow
    /// before the thread sleeps.
    pub(super) fn sleep(&self, wants_room: bool) {
        let word = if wants_room { WANTS_ROOM } else { WANTS_RECORDS };
        self.own_sleep().store(word, Ordering::Relaxed);
    }

    /// Tells the peer that it need not ring.
    pub(super) fn wake(&self) {
        self.own_sleep().store(AWAKE, Ordering::Relaxed);
    }

    /// True if the peer must be rung after records were published (`records`) or room was freed;
    /// clears its sleep word, so that it is rung once. A full fence is required between
    /// the publication and this call.
    pub(super) fn take_peer_sleep(&self, records: bool) -> bool {
        let wanted = if records { WANTS_RECORDS } else { WANTS_ROOM & !WANTS_RECORDS };
        let word = self.peer_sleep();
        word.load(Ordering::Relaxed) & wanted != 0 && word.swap(AWAKE, Ordering::Relaxed) != AWAKE
    }

    /// Counts a region packet that was sent.
    pub(super) fn count_region_packet(&self) {
        self.memory.word32(self.own + REGION_PACKETS).fetch_add(1, Ordering::Release);
    }

    /// Region packets that the peer claims to have sent.
    pub(super) fn peer_region_packets(&self) -> u32 {
        self.memory.word32(self.peer + REGION_PACKETS).load(Ordering::Acquire)
    }

    /// Publishes `key` in a slot, or removes the slot's key with zero.
    pub(super) fn set_key(&self, slot: u16, key: u32) {
        assert!((slot as usize) < KEY_SLOTS);
        self.memory.word32(self.own + KEYS + 4 * slot as usize).store(key, Ordering::Release);
    }

    /// True if the peer still publishes `key` in the slot that it named.
    pub(super) fn peer_shows(&self, slot: u16, key: u32) -> bool {
        (slot as usize) < KEY_SLOTS
            && self.memory.word32(self.peer + KEYS + 4 * slot as usize).load(Ordering::Acquire)
                == key
    }
}

/// The word in which a ring's reader publishes its progress.
pub(super) fn head_word(memory: &Mapping, offset: usize) -> &AtomicU64 {
    memory.word64(offset)
}
