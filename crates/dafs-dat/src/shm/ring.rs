//! The ring: records of variable size from one writer to one reader, in memory that both processes
//! map.
//!
//! A record is a header word, control words and payload, padded to eight bytes. The header carries
//! a mark and is never zero. The writer clears the header after its record before it publishes the
//! record's own. So the reader detects a record by the header at its own position. A small message
//! moves in one or two cache lines, and no shared tail index bounces between the processors. The
//! reader's position is the only shared index.
//!
//! Invariants
//! * Positions are counted in bytes since the start and never wrap in practice (2^64 bytes).
//! * The writer keeps its own tail, and the reader its own head, in private memory. The writer
//!   accepts the shared head only if it moves forward, stays behind the tail and is a multiple of
//!   eight; the reader accepts a header only if mark, kind and length fit. So invalid data from a
//!   peer leads to [`Corrupt`], never to an access outside of the ring.
//! * Payload is copied in once and out once. The reader reads the header once and works from that
//!   copy.
//!
//! The design excludes two classic bugs. A full ring cannot look empty, because emptiness does not
//! depend on comparing indices. A reader cannot see a stale header of the previous lap: the writer
//! clears it first, ordered by the release store of the record that leads there.

use super::layout::head_word;
use super::sys::Mapping;
use dafs_mem::{CheckedSlice, Inaccessible, Site, VolatileSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a header word, and the alignment of records.
const WORD: usize = 8;

/// The upper 16 bits of every header.
const MARK: u64 = 0xDA75 << 48;

/// Set in a header when the record ends its message or transfer.
const LAST: u64 = 1 << 40;

/// The most control words of a record.
pub(super) const WORDS_MAX: usize = 2;

/// The peer wrote invalid data; worded for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Corrupt(pub(super) &'static str);

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A message or a part of one.
    Message = 1,
    /// Bytes for a region of the reader: words key, address.
    Write = 2,
    /// A request for bytes of a region of the reader: words key and length, address.
    Read = 3,
    /// Bytes that the reader has requested.
    ReadData = 4,
    /// A message that invalidates a key of the reader, or a part of one: word key.
    MessageInvalidate = 5,
}

/// A record's header, read once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    pub(super) last: bool,
    /// Control words, as the kind requires.
    pub(super) words: [u64; WORDS_MAX],
    /// Bytes of payload, without the control words.
    pub(super) len: usize,
    /// Position of the payload.
    start: u64,
    /// Position of the next record.
    end: u64,
}

impl Kind {
    fn words(self) -> usize {
        match self {
            Kind::Message | Kind::ReadData => 0,
            Kind::MessageInvalidate => 1,
            Kind::Write | Kind::Read => 2,
        }
    }

    fn parse(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Kind::Message,
            2 => Kind::Write,
            3 => Kind::Read,
            4 => Kind::ReadData,
            5 => Kind::MessageInvalidate,
            _ => return None,
        })
    }
}

/// One ring inside shared memory.
#[derive(Debug)]
pub(super) struct RingMemory {
    memory: Arc<Mapping>,
    offset: usize,
    bytes: usize,
    head_offset: usize,
}

impl RingMemory {
    /// The ring of `bytes` (a power of two) at `offset`, whose reader publishes its position in the
    /// word at `head_offset`.
    pub(super) fn new(
        memory: &Arc<Mapping>,
        offset: usize,
        bytes: usize,
        head_offset: usize,
    ) -> Self {
        assert!(bytes.is_power_of_two() && offset.is_multiple_of(WORD));
        assert!(offset + bytes <= memory.len());
        Self { memory: memory.clone(), offset, bytes, head_offset }
    }

    fn head(&self) -> &AtomicU64 {
        head_word(&self.memory, self.head_offset)
    }

    /// The word at a position that is a multiple of eight.
    fn word(&self, position: u64) -> &AtomicU64 {
        self.memory.word64(self.offset + (position as usize & (self.bytes - 1)))
    }

    /// The one or two pieces of `len` bytes from `position`.
    fn pieces(&self, position: u64, len: usize) -> [VolatileSlice<'_>; 2] {
        let start = position as usize & (self.bytes - 1);
        let first = len.min(self.bytes - start);
        // INVARIANT: `start` lies in the ring and `first` ends at its end at the latest; callers
        // pass at most the size of the ring, so the rest fits in front of `start`.
        let piece = |at, len| self.memory.view(self.offset + at, len).expect("inside the ring");
        [piece(start, first), piece(0, len - first)]
    }
}

/// The position of the next record after one of `bytes` (words and payload) at `position`.
fn end_of(position: u64, bytes: usize) -> u64 {
    position + (WORD + bytes.next_multiple_of(WORD)) as u64
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer {
    ring: RingMemory,
    tail: u64,
    head_seen: u64,
}

impl Producer {
    pub(super) fn new(ring: RingMemory) -> Self {
        Self { ring, tail: 0, head_seen: 0 }
    }

    /// Bytes of the whole ring.
    pub(super) fn ring_bytes(&self) -> usize {
        self.ring.bytes
    }

    /// The payload that one record of `kind` can take now, if that is at least `wanted`. Reads the
    /// shared index only if the cached one shows less room.
    pub(super) fn fits(&mut self, kind: Kind, wanted: usize) -> Result<Option<usize>, Corrupt> {
        if let Some(known) = self.fits_known(kind).filter(|&known| known >= wanted) {
            return Ok(Some(known));
        }
        let head = self.ring.head().load(Ordering::Acquire);
        if !head.is_multiple_of(WORD as u64)
            || head.wrapping_sub(self.head_seen) > self.tail - self.head_seen
        {
            return Err(Corrupt("the reader's position in the ring makes no sense"));
        }
        self.head_seen = head;
        Ok(self.fits_known(kind).filter(|&known| known >= wanted))
    }

    fn fits_known(&self, kind: Kind) -> Option<usize> {
        let free = self.ring.bytes - (self.tail - self.head_seen) as usize;
        // Two headers: the record's own, and the cleared one after it.
        free.checked_sub((2 + kind.words()) * WORD)
    }

    /// Writes one record; `fits` must have confirmed the payload's size.
    ///
    /// # Errors
    /// The payload is no longer accessible; the ring is unchanged.
    pub(super) fn push(
        &mut self,
        kind: Kind,
        last: bool,
        words: [u64; WORDS_MAX],
        payload: &[CheckedSlice<'_>],
        site: Site,
    ) -> Result<(), Inaccessible> {
        let len: usize = payload.iter().map(CheckedSlice::len).sum();
        assert!(self.fits_known(kind).is_some_and(|known| len <= known), "fits() before push()");
        let word_count = kind.words();
        let bytes = word_count * WORD + len;
        let end = end_of(self.tail, bytes);
        self.ring.word(end).store(0, Ordering::Relaxed);
        let mut position = self.tail + WORD as u64;
        for word in &words[..word_count] {
            self.ring.word(position).store(*word, Ordering::Relaxed);
            position += WORD as u64;
        }
        for part in payload {
            let [first, second] = self.ring.pieces(position, part.len());
            let done = part.copy_to(first, site)?;
            if let Some(rest) = part.slice(done, part.len() - done).filter(|rest| !rest.is_empty())
            {
                rest.copy_to(second, site)?;
            }
            position += part.len() as u64;
        }
        let last = if last { LAST } else { 0 };
        let header = MARK | last | (kind as u64) << 32 | bytes as u64;
        self.ring.word(self.tail).store(header, Ordering::Release);
        self.tail = end;
        Ok(())
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: RingMemory,
    head: u64,
}

impl Consumer {
    pub(super) fn new(ring: RingMemory) -> Self {
        Self { ring, head: 0 }
    }

    /// True if there is a record at the reader's position.
    pub(super) fn ready(&self) -> bool {
        self.ring.word(self.head).load(Ordering::Relaxed) != 0
    }

    /// The next record, if there is one.
    pub(super) fn peek(&self) -> Result<Option<Record>, Corrupt> {
        let header = self.ring.word(self.head).load(Ordering::Acquire);
        if header == 0 {
            return Ok(None);
        }
        if header & (0xFFFF << 48) != MARK || header & (0xFE << 40) != 0 {
            return Err(Corrupt("a record header in the ring makes no sense"));
        }
        let kind = Kind::parse((header >> 32) as u8).ok_or(Corrupt("a record of unknown kind"))?;
        let bytes = header as u32 as usize;
        let len = bytes.checked_sub(kind.words() * WORD).ok_or(Corrupt("a record too short"))?;
        if bytes > self.ring.bytes - 2 * WORD {
            return Err(Corrupt("a record longer than the ring"));
        }
        let mut words = [0; WORDS_MAX];
        let mut start = self.head + WORD as u64;
        for word in &mut words[..kind.words()] {
            *word = self.ring.word(start).load(Ordering::Relaxed);
            start += WORD as u64;
        }
        let end = end_of(self.head, bytes);
        Ok(Some(Record { kind, last: header & LAST != 0, words, len, start, end }))
    }

    /// Copies the record's payload to `target`, up to the shorter length.
    ///
    /// # Errors
    /// The target is no longer accessible.
    pub(super) fn copy_to(
        &self,
        record: &Record,
        target: CheckedSlice<'_>,
        site: Site,
    ) -> Result<(), Inaccessible> {
        let [first, second] = self.ring.pieces(record.start, record.len);
        let done = target.copy_from(first, site)?;
        if let Some(rest) = target.slice(done, target.len() - done).filter(|_| !second.is_empty()) {
            rest.copy_from(second, site)?;
        }
        Ok(())
    }

    /// Consumes a record and frees its room.
    pub(super) fn consume(&mut self, record: &Record) {
        self.head = record.end;
        self.ring.head().store(self.head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::sys::memory_file;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::os::fd::AsFd;

    const RING: usize = 4096;

    fn ring() -> (Producer, Consumer, Arc<Mapping>) {
        let file = memory_file("ring-test", 2 * RING).unwrap();
        let memory = Arc::new(Mapping::new(file.as_fd(), 2 * RING, true).unwrap());
        let part = || RingMemory::new(&memory, RING, RING, 0);
        (Producer::new(part()), Consumer::new(part()), memory)
    }

    fn push(producer: &mut Producer, kind: Kind, words: [u64; 2], bytes: &[u8]) -> bool {
        if producer.fits(kind, bytes.len()).unwrap().is_none() {
            return false;
        }
        let mut copy = bytes.to_vec();
        let view = CheckedSlice::from_mut(&mut copy);
        let half = bytes.len() / 2;
        let parts = [view.slice(0, half).unwrap(), view.slice(half, bytes.len() - half).unwrap()];
        producer.push(kind, true, words, &parts, Site::Inspect).unwrap();
        true
    }

    fn pop(consumer: &mut Consumer) -> Option<(Kind, [u64; 2], Vec<u8>)> {
        let record = consumer.peek().unwrap()?;
        let mut bytes = vec![0; record.len];
        consumer.copy_to(&record, CheckedSlice::from_mut(&mut bytes), Site::Inspect).unwrap();
        consumer.consume(&record);
        Some((record.kind, record.words, bytes))
    }

    proptest! {
        #[test]
        fn a_ring_behaves_like_a_queue(
            steps in prop::collection::vec((any::<bool>(), 0usize..1500, any::<u64>()), 1..400),
        ) {
            let (mut producer, mut consumer, _) = ring();
            let mut model = VecDeque::new();
            for (write, len, seed) in steps {
                if write {
                    let bytes: Vec<u8> = (0..len).map(|i| (seed as usize + i) as u8).collect();
                    let (kind, words) = match seed % 3 {
                        0 => (Kind::Message, [0, 0]),
                        1 => (Kind::MessageInvalidate, [seed, 0]),
                        _ => (Kind::Write, [seed, !seed]),
                    };
                    if push(&mut producer, kind, words, &bytes) {
                        model.push_back((kind, words, bytes));
                    } else {
                        prop_assert!(!model.is_empty(), "an empty ring refused {len} bytes");
                    }
                } else {
                    prop_assert_eq!(pop(&mut consumer), model.pop_front());
                }
            }
            while let Some(expected) = model.pop_front() {
                prop_assert_eq!(pop(&mut consumer), Some(expected));
            }
            prop_assert_eq!(pop(&mut consumer), None);
        }

        #[test]
        fn garbage_is_refused_or_harmless(words in prop::collection::vec(any::<u64>(), 512)) {
            let (mut producer, mut consumer, memory) = ring();
            for (index, word) in words.iter().enumerate() {
                // Half of the headers look valid, so that lengths and kinds are tested as well.
                let word = if word % 2 == 0 { MARK | (word & 0x0107_0000_1FFF) } else { *word };
                memory.word64(RING + 8 * index).store(word, Ordering::Relaxed);
            }
            for _ in 0..2000 {
                match consumer.peek() {
                    Ok(Some(record)) => {
                        prop_assert!(record.len < RING);
                        let mut bytes = vec![0; record.len];
                        let view = CheckedSlice::from_mut(&mut bytes);
                        consumer.copy_to(&record, view, Site::Inspect).unwrap();
                        consumer.consume(&record);
                    }
                    Ok(None) | Err(_) => break,
                }
            }
            memory.word64(0).store(words[0] | 1, Ordering::Relaxed);
            prop_assert!(producer.fits(Kind::Message, RING).is_err());
        }
    }

    #[test]
    fn two_threads_exchange_records_of_all_sizes() {
        let (mut producer, mut consumer, _) = ring();
        const COUNT: u64 = 200_000;
        let writer = std::thread::spawn(move || {
            for number in 0..COUNT {
                let len = (number * 7919 % 700) as usize;
                let bytes = vec![number as u8; len];
                while !push(&mut producer, Kind::Write, [number, len as u64], &bytes) {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..COUNT {
            let (_, words, bytes) = loop {
                if let Some(record) = pop(&mut consumer) {
                    break record;
                }
                std::thread::yield_now();
            };
            assert_eq!(words, [number, bytes.len() as u64]);
            assert!(bytes.iter().all(|&byte| byte == number as u8));
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_reader_that_runs_ahead_or_back_is_caught() {
        for head in [8, 72, 3, u64::MAX - 7] {
            let (mut producer, _, memory) = ring();
            assert!(push(&mut producer, Kind::Message, [0, 0], &[7; 40]));
            memory.word64(0).store(head, Ordering::Relaxed);
            let sane = head == 8;
            assert_eq!(producer.fits(Kind::Message, RING).is_ok(), sane, "head {head}");
        }
    }
}
