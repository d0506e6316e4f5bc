//! Memory from which clients read blocks of files without a request: those of this host map it, others
//! read it by RDMA.
//!
//! Invariants
//! * A segment has frames or window pages, for its whole life, and is not used again afterwards. Its
//!   number comes again last of all.
//! * The memory of all segments stays within a budget.
//! * A discarded segment is empty in every mapping of it, also in those that clients keep. A device that
//!   holds its pages finds no entry with a block there.
//! * Blocks that a device may read are not overwritten, not even when their segment is discarded. It may
//!   read a block after the entry that follows it, and would take what is written for the block.

use crate::limits::EXPOSED_LOOK_AGE_MAX;
use dafs_dat::Instant;
use dafs_dat::shm::{self, Life};
use dafs_mem::{Buffer, RwLock, VolatileSlice};
use dafs_service::{BLOCK_BYTES, BlockEntry, Fill, Memory, PagePlace, SegmentKind, WINDOW_BLOCKS};
use dafs_store::{OpenFile, Wait};
use dafs_wire::dafs::{EntryBlock, EntryWord, ExposedKind};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// The length of a window page in bytes.
const PAGE_BYTES: usize = WINDOW_BLOCKS * size_of::<u64>();

/// The memory is scarce when more than so many of so many parts are in use. The rest is for blocks that
/// requests ask for again.
const SCARCE_PARTS: (usize, usize) = (3, 4);

/// The number of the last segment.
const SEGMENTS_MAX: usize = u16::MAX as usize;

/// A segment of memory that clients can read.
pub(crate) struct Segment {
    pub(crate) number: u16,
    pub(crate) kind: ExposedKind,
    pub(crate) buffer: Arc<Buffer>,
    /// Its part of the budget in bytes.
    cost: usize,
    /// Its pages stay in memory from their first use on.
    is_locked: bool,
    /// False when it is discarded.
    is_live: AtomicBool,
    /// An RDMA device may hold its pages, and answers reads out of them after they have left the file.
    has_device: AtomicBool,
}

impl Segment {
    pub(crate) fn is_live(&self) -> bool {
        self.is_live.load(Ordering::SeqCst)
    }

    /// Notes that a device is about to hold its pages. The caller then looks if it is still live: one
    /// that is discarded meanwhile sees the note, or is not live any more.
    pub(crate) fn note_device(&self) {
        self.has_device.store(true, Ordering::SeqCst);
    }

    /// Takes the entries away from a device that holds their pages.
    fn clear_entries(&self) {
        if self.kind == ExposedKind::Index && self.has_device.load(Ordering::SeqCst) {
            self.buffer.view().fill(0);
            // The device finds none once the caller goes on.
            fence(Ordering::SeqCst);
        }
    }
}

#[derive(Default)]
struct Segments {
    by_number: Vec<Option<Arc<Segment>>>,
    /// The number from which on the next segment looks for a free one.
    next: usize,
}

impl Segments {
    fn get(&self, number: u16) -> Option<&Arc<Segment>> {
        self.by_number.get(usize::from(number)).and_then(Option::as_ref)
    }

    /// Returns the next free number.
    fn free(&mut self) -> Option<u16> {
        if self.by_number.len() <= SEGMENTS_MAX {
            self.by_number.push(None);
            return u16::try_from(self.by_number.len() - 1).ok();
        }
        let mut numbers = (self.next..=SEGMENTS_MAX).chain(0..self.next);
        let free = numbers.find(|number| self.by_number[*number].is_none())?;
        self.next = free + 1;
        u16::try_from(free).ok()
    }
}

/// The memory of one server, in which it exposes files.
pub struct ExposedMemory {
    /// The segments, by number. The life page has the number 0.
    segments: RwLock<Segments>,
    used_bytes: AtomicUsize,
    locked_bytes: AtomicUsize,
    bytes_max: usize,
    /// The kernel has refused memory, and the log has said so.
    has_failed: AtomicBool,
    /// The time of the last look for local changes.
    looked_ns: AtomicU64,
    /// Reads by RDMA.
    remote_reads: AtomicU64,
    life: Life,
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
            is_locked: false,
            is_live: AtomicBool::new(true),
            has_device: AtomicBool::new(false),
        };
        let by_number = vec![Some(Arc::new(page))];
        let segments = RwLock::new(Segments { by_number, ..Segments::default() });
        Ok(Self {
            segments,
            used_bytes: AtomicUsize::default(),
            locked_bytes: AtomicUsize::default(),
            bytes_max,
            has_failed: AtomicBool::default(),
            looked_ns: AtomicU64::default(),
            remote_reads: AtomicU64::default(),
            life,
        })
    }

    /// Says that the server has died: clients read no more. A simulation ends servers that way, which
    /// share its process.
    pub fn end(&self) {
        self.life.end();
    }

    /// Returns the bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of segments that the system does not swap out. The limit of locked memory
    /// (RLIMIT_MEMLOCK) bounds them.
    pub fn locked_bytes(&self) -> usize {
        self.locked_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of reads that clients have made by RDMA: two or more for a hit.
    pub fn remote_reads(&self) -> u64 {
        self.remote_reads.load(Ordering::Relaxed)
    }

    pub(crate) fn count_remote_reads(&self, count: u64) {
        self.remote_reads.fetch_add(count, Ordering::Relaxed);
    }

    /// True if the last look for local changes was a while ago.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        now.since(Instant(self.looked_ns.load(Ordering::Relaxed))) > EXPOSED_LOOK_AGE_MAX
    }

    pub(crate) fn segment(&self, number: u16) -> Option<Arc<Segment>> {
        self.segments.read().get(number).cloned()
    }

    /// Reads a block of a file into its frame. Returns the number of its bytes: 0 behind the end of
    /// the file, `None` if it is not in memory.
    pub(crate) fn read_block(&self, file: &dyn OpenFile, fill: &Fill) -> Option<usize> {
        let segment = self.segment(fill.place.segment)?;
        let at = usize::from(fill.place.frame) * BLOCK_BYTES;
        let frame = segment.buffer.slice(at, BLOCK_BYTES)?;
        let offset = fill.block.saturating_mul(BLOCK_BYTES as u64);
        let mut done = 0;
        while let Some(rest) = frame.slice(done, BLOCK_BYTES - done).filter(|rest| !rest.is_empty())
        {
            match file.read_at(&[rest], offset + done as u64, Wait::Never) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) => return None,
            }
        }
        if let Some(rest) = frame.slice(done, BLOCK_BYTES - done) {
            rest.fill(0);
        }
        Some(done)
    }

    fn reserve(&self, cost: usize) -> bool {
        let fits = |used: usize| used.checked_add(cost).filter(|used| *used <= self.bytes_max);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Enters a new segment under a free number.
    fn enter(&self, kind: ExposedKind, buffer: Buffer, cost: usize) -> Option<u16> {
        // Beyond the limit of the process a hit may wait for a page that was swapped out.
        let is_locked = shm::lock(&buffer).is_ok();
        let mut segments = self.segments.write();
        // The end of the buffer unlocks it.
        let number = segments.free()?;
        if is_locked {
            self.locked_bytes.fetch_add(buffer.len(), Ordering::Relaxed);
        }
        let (buffer, is_live) = (Arc::new(buffer), AtomicBool::new(true));
        let has_device = AtomicBool::new(false);
        let segment = Segment { number, kind, buffer, cost, is_locked, is_live, has_device };
        let segment = Arc::new(segment);
        segments.by_number[usize::from(number)] = Some(segment);
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
        let places = kind.places(is_first);
        let (cost, bytes) = (kind.cost(places), places * BLOCK_BYTES);
        let kind = match kind {
            SegmentKind::Frames => ExposedKind::Frames,
            SegmentKind::Index => ExposedKind::Index,
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
        let place = segments.by_number.get_mut(usize::from(number));
        let Some(segment) = place.and_then(Option::take) else { return };
        drop(segments);
        segment.is_live.store(false, Ordering::SeqCst);
        segment.clear_entries();
        if let Err(error) = shm::discard(&segment.buffer) {
            tracing::warn!(%error, "memory of optimistic reads is overwritten, not released");
            segment.buffer.view().fill(0);
        }
        // Connections may keep the mapping for a while.
        if segment.is_locked && shm::unlock(&segment.buffer).is_ok() {
            self.locked_bytes.fetch_sub(segment.buffer.len(), Ordering::Relaxed);
        }
        self.used_bytes.fetch_sub(segment.cost, Ordering::Relaxed);
    }

    fn is_scarce(&self) -> bool {
        self.used_bytes() > self.bytes_max / SCARCE_PARTS.1 * SCARCE_PARTS.0
    }

    fn looked(&self, now_ns: u64) {
        self.looked_ns.store(now_ns, Ordering::Relaxed);
        let segments = self.segments.read();
        let page: Option<VolatileSlice<'_>> = segments.get(0).map(|page| page.buffer.view());
        if let Some(word) = page.and_then(|page| page.word64(LOOKED_AT)) {
            word.store(now_ns.to_le(), Ordering::Release);
        }
    }
}

/// The place of the time of the last look in the life page.
const LOOKED_AT: usize = 8;

const _: () = assert!(PAGE_BYTES == BLOCK_BYTES && SegmentKind::Index.places(false) <= 256);

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
        assert!(memory.is_scarce());
        let locked_bytes = memory.locked_bytes();
        assert!(locked_bytes <= 3 << 20 && locked_bytes.is_multiple_of(1 << 20));
        memory.discard(2);
        memory.discard(3);
        assert!(!memory.is_scarce() && memory.locked_bytes() <= 1 << 20);
        // The numbers of the others come again last.
        assert_eq!(memory.add(SegmentKind::Index, true), Some((4, 16)));
        assert_eq!(memory.used_bytes(), (1 << 20) + 16 * (20 << 10));
    }

    #[test]
    fn a_server_that_is_held_up_is_late() {
        let memory = memory();
        let at = |milliseconds: u64| Instant(milliseconds * 1_000_000);
        assert!(memory.is_late(at(5_000)), "it has never looked");
        memory.looked(at(5_000).0);
        assert!(!memory.is_late(at(4_000)) && !memory.is_late(at(6_000)));
        assert!(memory.is_late(at(6_001)));
    }

    #[test]
    fn a_device_that_holds_pages_finds_no_entry_there_and_blocks_as_they_were() {
        let memory = memory();
        let first = |segment: &Segment| segment.buffer.slice(0, 1).unwrap().to_vec(Site::Inspect);
        for kind in [SegmentKind::Frames, SegmentKind::Index] {
            let (number, _) = memory.add(kind, true).unwrap();
            let segment = memory.segment(number).unwrap();
            segment.buffer.view().fill(7);
            segment.clear_entries();
            assert_eq!(first(&segment), [7], "no device has it");
            segment.note_device();
            assert!(segment.is_live());
            segment.clear_entries();
            let is_index = matches!(kind, SegmentKind::Index);
            assert_eq!(first(&segment), [if is_index { 0 } else { 7 }]);
            memory.discard(number);
            assert!(!segment.is_live());
            assert_eq!(first(&segment), [0], "it is for mappings");
        }
    }

    #[test]
    fn numbers_come_again_last_and_in_turn() {
        let mut segments = Segments::default();
        for number in 0..=u16::MAX {
            assert_eq!(segments.free(), Some(number));
        }
        assert_eq!((segments.free(), segments.free()), (Some(0), Some(1)));
        let memory = memory();
        segments.by_number[2] = memory.segment(0);
        assert_eq!(segments.free(), Some(3));
        segments.by_number.iter_mut().for_each(|place| *place = memory.segment(0));
        assert_eq!(segments.free(), None);
        segments.by_number[1] = None;
        assert_eq!((segments.free(), segments.get(1).is_some()), (Some(1), false));
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
        let (other, _) = memory.add(SegmentKind::Frames, true).unwrap();
        let segment = memory.segment(other).unwrap();
        assert!(other != number && !Arc::ptr_eq(&segment, &former));
        segment.buffer.view().fill(1);
        assert_eq!(former.buffer.slice(0, 1).unwrap().to_vec(Site::Inspect), [0]);
    }
}
