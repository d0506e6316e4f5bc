//! Memory from which clients of this host read blocks of files without a request.
//!
//! Invariants
//! * A segment has frames or window pages, for its whole life, and is not used again afterwards.
//! * The memory of all segments stays within a budget.
//! * A discarded segment is empty in every mapping of it, also in those that clients keep.

use dafs_dat::shm::{self, Life};
use dafs_mem::{Buffer, RwLock, VolatileSlice};
use dafs_service::{BLOCK_BYTES, BlockEntry, Fill, Memory, PagePlace, SegmentKind, WINDOW_BLOCKS};
use dafs_store::{OpenFile, Wait};
use dafs_wire::dafs::{EntryBlock, EntryWord, ExposedKind};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// The length of a segment in bytes: of the first one of a file, and of others.
const SMALL_SEGMENT_BYTES: usize = 64 << 10;
const SEGMENT_BYTES: usize = 1 << 20;

/// The length of a window page in bytes.
const PAGE_BYTES: usize = WINDOW_BLOCKS * size_of::<u64>();

/// Bytes that the service keeps for each window, at most.
const WINDOW_BYTES: usize = 16 << 10;

/// The number of the last segment.
const SEGMENTS_MAX: usize = u16::MAX as usize;

/// A segment of memory that clients of this host can map.
pub(crate) struct Segment {
    pub(crate) number: u16,
    pub(crate) kind: ExposedKind,
    pub(crate) buffer: Arc<Buffer>,
    /// Its part of the budget in bytes.
    cost: usize,
    /// False when it is discarded.
    is_live: AtomicBool,
}

impl Segment {
    pub(crate) fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Relaxed)
    }
}

/// The memory of one server, in which it exposes files.
pub struct ExposedMemory {
    /// The segments, by number. The life page has the number 0.
    segments: RwLock<Vec<Option<Arc<Segment>>>>,
    used_bytes: AtomicUsize,
    bytes_max: usize,
    /// The kernel has refused memory, and the log has said so.
    has_failed: AtomicBool,
    _life: Life,
}

impl ExposedMemory {
    /// Makes the memory of a server, with at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The kernel has no memory, no file descriptor or no thread left.
    pub fn start(bytes_max: usize) -> io::Result<Self> {
        let life = Life::start()?;
        let page = Segment {
            number: 0,
            kind: ExposedKind::Life,
            buffer: life.page().clone(),
            cost: 0,
            is_live: AtomicBool::new(true),
        };
        let segments = RwLock::new(vec![Some(Arc::new(page))]);
        let (used_bytes, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Self { segments, used_bytes, bytes_max, has_failed, _life: life })
    }

    /// Returns the bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn segment(&self, number: u16) -> Option<Arc<Segment>> {
        self.segments.read().get(usize::from(number)).cloned().flatten()
    }

    /// Reads a block of a file into its frame, as far as it is in memory. Returns the number of its
    /// bytes.
    pub(crate) fn read_block(&self, file: &dyn OpenFile, fill: &Fill) -> usize {
        let Some(segment) = self.segment(fill.place.segment) else { return 0 };
        let at = usize::from(fill.place.frame) * BLOCK_BYTES;
        let Some(frame) = segment.buffer.slice(at, BLOCK_BYTES) else { return 0 };
        let offset = fill.block.saturating_mul(BLOCK_BYTES as u64);
        let mut done = 0;
        while let Some(rest) = frame.slice(done, BLOCK_BYTES - done).filter(|rest| !rest.is_empty())
        {
            match file.read_at(&[rest], offset + done as u64, Wait::Never) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) => return 0,
            }
        }
        if let Some(rest) = frame.slice(done, BLOCK_BYTES - done) {
            rest.fill(0);
        }
        done
    }

    fn reserve(&self, cost: usize) -> bool {
        let fits = |used: usize| used.checked_add(cost).filter(|used| *used <= self.bytes_max);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Enters a new segment under a free number.
    fn enter(&self, kind: ExposedKind, buffer: Buffer, cost: usize) -> Option<u16> {
        let mut segments = self.segments.write();
        let free = segments.iter().position(Option::is_none).unwrap_or(segments.len());
        let number = u16::try_from(free).ok().filter(|_| free <= SEGMENTS_MAX)?;
        let (buffer, is_live) = (Arc::new(buffer), AtomicBool::new(true));
        let segment = Some(Arc::new(Segment { number, kind, buffer, cost, is_live }));
        match segments.get_mut(free) {
            Some(place) => *place = segment,
            None => segments.push(segment),
        }
        Some(number)
    }
}

/// Returns the word of an entry.
fn word_of(entry: BlockEntry) -> EntryWord {
    let block = entry.block.map(|(place, bytes)| EntryBlock {
        segment: place.segment,
        frame: place.frame,
        bytes,
    });
    EntryWord::new(entry.generation, block)
}

impl Memory for ExposedMemory {
    fn add(&self, kind: SegmentKind, is_first: bool) -> Option<(u16, usize)> {
        let bytes = if is_first { SMALL_SEGMENT_BYTES } else { SEGMENT_BYTES };
        let (kind, places, cost) = match kind {
            SegmentKind::Frames => (ExposedKind::Frames, bytes / BLOCK_BYTES, bytes),
            SegmentKind::Index => {
                let pages = bytes / PAGE_BYTES;
                (ExposedKind::Index, pages, bytes + pages * WINDOW_BYTES)
            }
        };
        if !self.reserve(cost) {
            return None;
        }
        let buffer = shm::exposed_buffer(bytes).inspect_err(|error| {
            // Each read of a block tries again.
            if !self.has_failed.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "no memory for optimistic reads");
            }
        });
        let number = buffer.ok().and_then(|buffer| self.enter(kind, buffer, cost));
        if number.is_none() {
            self.used_bytes.fetch_sub(cost, Ordering::Relaxed);
        }
        number.map(|number| (number, places))
    }

    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry) {
        let Some(segment) = self.segment(page.segment) else { return };
        let offset = usize::from(page.page) * PAGE_BYTES + at * size_of::<u64>();
        if let Some(word) = segment.buffer.view().word64(offset) {
            word.store(word_of(entry).0.to_le(), Ordering::Release);
            // A reader that sees what the caller does next does not see the word before.
            fence(Ordering::SeqCst);
        }
    }

    fn discard(&self, number: u16) {
        let mut segments = self.segments.write();
        let Some(segment) = segments.get_mut(usize::from(number)).and_then(Option::take) else {
            return;
        };
        drop(segments);
        segment.is_live.store(false, Ordering::Relaxed);
        if let Err(error) = shm::discard(&segment.buffer) {
            tracing::warn!(%error, "memory of optimistic reads is overwritten, not released");
            segment.buffer.view().fill(0);
        }
        self.used_bytes.fetch_sub(segment.cost, Ordering::Relaxed);
    }

    fn looked(&self, now_ns: u64) {
        let segments = self.segments.read();
        let page: Option<VolatileSlice<'_>> =
            segments.first().and_then(Option::as_ref).map(|page| page.buffer.view());
        if let Some(word) = page.and_then(|page| page.word64(LOOKED_AT)) {
            word.store(now_ns.to_le(), Ordering::Release);
        }
    }
}

/// The place of the time of the last look in the life page.
const LOOKED_AT: usize = 8;

const _: () = {
    assert!(SEGMENT_BYTES / BLOCK_BYTES <= 256 && SEGMENT_BYTES / PAGE_BYTES <= 256);
};

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Site;

    fn memory() -> ExposedMemory {
        ExposedMemory::start(3 << 20).unwrap()
    }

    #[test]
    fn the_budget_bounds_segments() {
        let memory = memory();
        let mut numbers = Vec::new();
        while let Some((number, frames)) = memory.add(SegmentKind::Frames, false) {
            assert_eq!(frames, 256);
            numbers.push(number);
        }
        assert_eq!((numbers, memory.used_bytes()), (vec![1, 2, 3], 3 << 20));
        assert!(memory.add(SegmentKind::Frames, true).is_none());
        memory.discard(2);
        assert_eq!(memory.add(SegmentKind::Index, true), Some((2, 16)));
    }

    #[test]
    fn a_segment_is_for_frames_or_pages_and_never_used_again() {
        let memory = memory();
        let (number, _) = memory.add(SegmentKind::Index, true).unwrap();
        let former = memory.segment(number).unwrap();
        let place = dafs_service::FramePlace { segment: 9, frame: 3 };
        let entry = BlockEntry { generation: 5, block: Some((place, 100)) };
        memory.store(PagePlace { segment: number, page: 2 }, 7, entry);
        let word = former.buffer.view().word64(2 * 4096 + 7 * 8).unwrap();
        let block = EntryWord(u64::from_le(word.load(Ordering::Acquire))).block();
        assert_eq!(block, Some(EntryBlock { segment: 9, frame: 3, bytes: 100 }));
        memory.discard(number);
        assert_eq!(word.load(Ordering::Acquire), 0);
        assert!(!former.is_live());
        let (again, _) = memory.add(SegmentKind::Frames, true).unwrap();
        assert_eq!(again, number);
        let segment = memory.segment(number).unwrap();
        assert!(!Arc::ptr_eq(&segment, &former));
        segment.buffer.view().fill(1);
        assert_eq!(former.buffer.slice(0, 1).unwrap().to_vec(Site::Inspect), [0]);
    }
}
