//! Memory that leaves a file, a segment at a time, because another file has none.
//!
//! The blocks of the segment become absent and keep their frames for a while. If requests ask for more
//! than half of them meanwhile, the segment stays, and the next one is looked at. Else it is discarded.
//! A file with more than its share of the memory loses a segment after a few such looks in any case.
//!
//! A file that lacks window pages, and has no less than its share, gives a segment for them in the same
//! way, and in any case. Else the frames of the windows that were read first would take all memory.
//!
//! Where small files share an exposure, a segment also leaves after a reader has lost its right: its frames
//! are filled no more, and it stays as long as half of them have blocks.
//!
//! Invariants
//! * No entry names a frame of a segment that is discarded, and no fill writes there.
//! * A number of a segment is used once in an exposure, so an entry names the segment that a reader
//!   knows by it.

use super::chance::Chances;
use super::entry::{BLOCK_BYTES, FramePlace};
use super::file::File;
use super::window::Loss;
use super::{Memory, SegmentKind};
use crate::limits::{
    EXPOSED_PERIOD_NS, EXPOSED_REUSE_DELAY_NS as REUSE_DELAY_NS, EXPOSED_SPARED_MAX,
};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The part of a file's memory up to which it gives frames for window pages of its own, and gets pages for
/// windows that no read needs yet.
const PAGES_PART: usize = 4;

/// A segment that leaves.
#[derive(Debug)]
pub(super) struct Leaving {
    segment: u16,
    since_ns: u64,
    /// It leaves also if requests ask for its blocks.
    is_for_pages: bool,
    /// The frames of its absent blocks. Each is as the file has the block.
    pub(super) blocks: BTreeMap<u64, FramePlace>,
}

impl Leaving {
    /// Takes the frames of blocks that change.
    pub(super) fn changed(&mut self, range: &RangeInclusive<u64>) -> Vec<FramePlace> {
        let blocks: Vec<u64> = self.blocks.range(range.clone()).map(|(block, _)| *block).collect();
        blocks.into_iter().filter_map(|block| self.blocks.remove(&block)).collect()
    }
}

/// The most memory that a file may have until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) bytes: usize,
    pub(super) until_ns: u64,
}

impl File {
    /// Adds a segment. Returns its number and the number of its places.
    pub(super) fn add_segment(
        &mut self,
        kind: SegmentKind,
        is_first: bool,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<(u16, usize)> {
        let cost = kind.cost(kind.places(is_first));
        if kind == SegmentKind::Frames && now_ns < self.lacks_pages_until_ns {
            return None;
        }
        let limit = self.limit.filter(|limit| now_ns < limit.until_ns);
        if limit.is_some_and(|limit| self.bytes.saturating_add(cost) > limit.bytes) {
            return None;
        }
        let Some((segment, places)) = memory.add(kind, is_first) else {
            self.lacking = Some(cost);
            if kind == SegmentKind::Index {
                self.lacks_pages_until_ns = now_ns.saturating_add(EXPOSED_PERIOD_NS);
            }
            return None;
        };
        if self.gone.contains(&segment) {
            // A reader may know it as the one that has left.
            memory.discard(segment);
            return None;
        }
        self.lacking = None;
        if kind == SegmentKind::Index {
            self.lacks_pages_until_ns = 0;
        }
        self.bytes += kind.cost(places);
        self.segments.push(Some(segment));
        Some((segment, places))
    }

    /// True if a segment of frames can begin to leave.
    pub(super) fn may_leave(&self) -> bool {
        !self.is_over && self.frames.may_leave()
    }

    /// Makes the blocks of the next segment absent.
    pub(super) fn begin_leaving(&mut self, now_ns: u64, memory: &dyn Memory) {
        let segment = self.may_leave().then(|| self.frames.begin_leaving()).flatten();
        let Some(segment) = segment else { return };
        let mut blocks = self.chances.take_segment(segment);
        for block in self.frames.published_in(segment) {
            if self.is_short(block) {
                self.take_away(block..=block, Loss::Eviction, now_ns, memory);
            } else if let Some(place) = self.hide(block, now_ns, memory) {
                blocks.insert(block, place);
            }
        }
        self.leaving.push(Leaving { segment, since_ns: now_ns, is_for_pages: false, blocks });
    }

    /// The same for window pages of this file, if it lacks them and most of its memory is frames.
    pub(super) fn begin_leaving_for_pages(&mut self, now_ns: u64, memory: &dyn Memory) {
        let lacks_pages = now_ns < self.lacks_pages_until_ns && self.has_few_pages();
        if !lacks_pages || !self.leaving.is_empty() {
            return;
        }
        self.begin_leaving(now_ns, memory);
        if let Some(leaving) = self.leaving.last_mut() {
            leaving.is_for_pages = true;
        }
    }

    /// True if window pages are a small part of its memory.
    pub(super) fn has_few_pages(&self) -> bool {
        let frames_bytes = SegmentKind::Frames.cost(self.frames.len());
        self.bytes.saturating_sub(frames_bytes) < self.bytes / PAGES_PART
    }

    /// True if the time of a segment that leaves is over.
    pub(super) fn has_left(&self, now_ns: u64) -> bool {
        let is_due = |leaving: &Leaving| leaving.since_ns.saturating_add(REUSE_DELAY_NS) <= now_ns;
        self.leaving.first().is_some_and(is_due)
    }

    /// Decides about the segments whose time is over, and removes those of which requests have not
    /// asked for more than half. `has_much` is true for a file with more than its share. Returns the
    /// removed ones, to be discarded before any fill begins.
    pub(super) fn end_leaving(
        &mut self,
        now_ns: u64,
        has_much: bool,
        memory: &dyn Memory,
    ) -> Vec<u16> {
        let mut removed = Vec::new();
        while self.has_left(now_ns) {
            let Leaving { segment, is_for_pages, blocks, .. } = self.leaving.remove(0);
            let published = self.frames.published_in(segment);
            let is_spared = !is_for_pages && (!has_much || self.spared < EXPOSED_SPARED_MAX);
            if published.len() > blocks.len() && is_spared {
                self.spared += 1;
                self.frames.keep(segment);
                blocks
                    .into_iter()
                    .for_each(|(block, place)| self.chances.add(block, place, None, now_ns));
                continue;
            }
            self.spared = 0;
            self.remove_segment(segment, now_ns, memory);
            removed.push(segment);
        }
        removed
    }

    fn remove_segment(&mut self, segment: u16, now_ns: u64, memory: &dyn Memory) {
        for block in self.frames.published_in(segment) {
            self.take_away(block..=block, Loss::Eviction, now_ns, memory);
        }
        self.fills.retain(|(fill, _)| fill.place.segment != segment);
        self.bytes -= SegmentKind::Frames.cost(self.frames.remove(segment));
        let place = self.segments.iter_mut().find(|known| **known == Some(segment));
        if let Some(place) = place {
            *place = None;
        }
        self.gone.push(segment);
    }

    /// Lets no frame be filled that a reader without a grant may know. Blocks keep theirs, so other readers
    /// go on. Returns segments of which little is in use, to be discarded before any fill begins.
    ///
    /// A segment keeps its blocks at the first call after it came, and while half of its frames have some.
    /// So readers that come and go cost others little, and little memory.
    pub(super) fn bar_frames(&mut self, now_ns: u64, memory: &dyn Memory) -> Vec<u16> {
        self.fills.clear();
        self.chances = Chances::default();
        let mut removed = self.frames.bar();
        for Leaving { segment, .. } in std::mem::take(&mut self.leaving) {
            if !removed.contains(&segment) {
                removed.push(segment);
            }
        }
        for segment in &removed {
            self.remove_segment(*segment, now_ns, memory);
        }
        self.has_former_readers = false;
        removed
    }
}

impl SegmentKind {
    /// Returns the number of frames or pages of a segment, of 4096 bytes each: few in the first one of
    /// its kind for a file, 256 in others.
    pub const fn places(self, is_first: bool) -> usize {
        if is_first { 16 } else { 256 }
    }

    /// Returns the bytes of the memory that a segment with so many places takes: its own, and at most
    /// 16 KiB for what the service keeps for each window.
    pub const fn cost(self, places: usize) -> usize {
        match self {
            Self::Frames => places * BLOCK_BYTES,
            Self::Index => places * (BLOCK_BYTES + (16 << 10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposure::{BlockEntry, PagePlace};
    use dafs_mem::Mutex;

    /// The numbers of segments to come, with four frames each, and those that were discarded.
    #[derive(Default)]
    struct Numbers {
        next: Mutex<Vec<u16>>,
        discarded: Mutex<Vec<u16>>,
        has_no_pages: Mutex<bool>,
    }

    impl Memory for Numbers {
        fn add(&self, kind: SegmentKind, _is_first: bool) -> Option<(u16, usize)> {
            match kind {
                SegmentKind::Frames => self.next.lock().pop().map(|number| (number, 4)),
                SegmentKind::Index => (!*self.has_no_pages.lock()).then_some((100, 1)),
            }
        }

        fn store(&self, _page: PagePlace, _at: usize, _entry: BlockEntry) {}

        fn discard(&self, segment: u16) {
            self.discarded.lock().push(segment);
        }

        fn is_scarce(&self) -> bool {
            true
        }

        fn looked(&self, _now_ns: u64) {}
    }

    /// A file with four published blocks in segment 1.
    fn file(memory: &Numbers) -> File {
        memory.next.lock().push(1);
        let mut file = File::default();
        assert!(file.begin_grant() && file.page(0, 0, memory).is_some());
        for block in 0..4 {
            let fill = file.begin_fill(block, 0, memory).unwrap();
            assert!(file.end_fill(fill, BLOCK_BYTES, memory));
        }
        assert_eq!(file.frames.published_in(1), [0, 1, 2, 3]);
        file
    }

    #[test]
    fn a_segment_leaves_whose_blocks_no_request_asks_for() {
        let memory = Numbers::default();
        let mut file = file(&memory);
        let bytes = file.bytes;
        file.begin_leaving(0, &memory);
        assert!(file.frames.published_in(1).is_empty());
        assert!(file.restore(0, 1, &memory) && !file.restore(0, 1, &memory));
        assert!(file.restore(3, 1, &memory) && !file.may_leave());
        assert!(file.end_leaving(REUSE_DELAY_NS - 1, false, &memory).is_empty());
        assert_eq!(file.end_leaving(REUSE_DELAY_NS, false, &memory), [1]);
        assert_eq!(bytes - file.bytes, 4 * BLOCK_BYTES);
        assert_eq!(file.segments(0).collect::<Vec<_>>(), [100]);
        assert!(!file.restore(1, REUSE_DELAY_NS, &memory));
        // The number of the lost segment is no good for another one, to which entries would lead.
        memory.next.lock().extend([2, 1]);
        assert_eq!(file.begin_fill(0, REUSE_DELAY_NS, &memory), None);
        assert_eq!(*memory.discarded.lock(), [1]);
        let fill = file.begin_fill(0, REUSE_DELAY_NS, &memory).unwrap();
        assert_eq!(fill.place.segment, 2);
        assert_eq!(file.segments(2).collect::<Vec<_>>(), [2], "the lost one counts");
    }

    #[test]
    fn a_file_with_more_than_its_share_loses_also_what_requests_ask_for() {
        let memory = Numbers::default();
        let mut file = file(&memory);
        let mut now_ns = 0;
        let mut look = |has_much: bool| {
            file.begin_leaving(now_ns, &memory);
            assert_eq!((0..4).filter(|block| file.restore(*block, now_ns, &memory)).count(), 4);
            now_ns += REUSE_DELAY_NS;
            file.end_leaving(now_ns, has_much, &memory)
        };
        for _ in 0..EXPOSED_SPARED_MAX {
            assert!(look(true).is_empty());
        }
        assert!(look(false).is_empty());
        assert_eq!(look(true), [1]);
        assert_eq!(file.segments(0).collect::<Vec<_>>(), [100]);
    }

    #[test]
    fn a_file_gives_frames_for_window_pages_of_its_own() {
        let memory = Numbers::default();
        memory.next.lock().extend([6, 5, 4, 3, 2]);
        let mut file = file(&memory);
        for block in 4..20 {
            let fill = file.begin_fill(block, 0, &memory).unwrap();
            assert!(file.end_fill(fill, BLOCK_BYTES, &memory));
        }
        file.begin_leaving_for_pages(0, &memory);
        assert!(file.leaving.is_empty(), "it does not lack any");
        *memory.has_no_pages.lock() = true;
        assert_eq!(file.page(1, 0, &memory), None);
        file.begin_leaving_for_pages(0, &memory);
        assert!((0..4).all(|block| file.restore(block, 1, &memory)));
        assert_eq!((file.begin_fill(20, 1, &memory), memory.next.lock().len()), (None, 1));
        assert_eq!(file.end_leaving(REUSE_DELAY_NS, false, &memory), [1]);
        *memory.has_no_pages.lock() = false;
        assert!(file.page(1, REUSE_DELAY_NS, &memory).is_some());
        let fill = file.begin_fill(20, REUSE_DELAY_NS, &memory);
        assert_eq!(fill.map(|fill| fill.place.segment), Some(6));
        // Pages have more than a quarter of its memory now.
        *memory.has_no_pages.lock() = true;
        assert_eq!(file.page(2, REUSE_DELAY_NS, &memory), None);
        file.begin_leaving_for_pages(REUSE_DELAY_NS, &memory);
        assert!(file.leaving.is_empty());
    }

    #[test]
    fn a_change_takes_a_block_out_that_could_have_come_back() {
        let memory = Numbers::default();
        let mut file = file(&memory);
        file.begin_leaving(0, &memory);
        let change = file.begin_change(1..=2, 0, &memory);
        file.end_change(change);
        let restored = [0, 1, 2, 3].map(|block| file.restore(block, 0, &memory));
        assert_eq!(restored, [true, false, false, true]);
        assert!(file.end_leaving(REUSE_DELAY_NS, false, &memory).is_empty(), "it is in use");
        assert!(file.begin_fill(1, REUSE_DELAY_NS, &memory).is_some());
    }

    #[test]
    fn a_fill_does_not_write_to_a_segment_that_is_gone() {
        let memory = Numbers::default();
        let mut file = file(&memory);
        let change = file.begin_change(1..=1, 0, &memory);
        file.end_change(change);
        let fill = file.begin_fill(1, 0, &memory).unwrap();
        file.begin_leaving(0, &memory);
        assert!(file.may_write(&fill));
        assert_eq!(file.end_leaving(REUSE_DELAY_NS, false, &memory), [1]);
        assert!(!file.may_write(&fill) && !file.end_fill(fill, BLOCK_BYTES, &memory));
    }

    #[test]
    fn frames_that_a_former_reader_knows_are_filled_no_more() {
        let memory = Numbers::default();
        memory.next.lock().extend([4, 3, 2]);
        let mut file = file(&memory);
        let fill = file.begin_fill(4, 0, &memory).unwrap();
        assert_eq!(fill.place.segment, 2);
        file.has_former_readers = true;
        assert!(file.begin_fill(5, 0, &memory).is_none());
        assert!(file.bar_frames(0, &memory).is_empty());
        assert!(!file.may_write(&fill) && !file.end_fill(fill, BLOCK_BYTES, &memory));
        assert_eq!(file.frames.published_in(1), [0, 1, 2, 3]);
        // A change takes a block away. It comes back in another frame.
        let change = file.begin_change(1..=1, 0, &memory);
        file.end_change(change);
        let fill = file.begin_fill(1, 0, &memory).unwrap();
        assert_eq!(fill.place.segment, 3);
        assert!(file.end_fill(fill, BLOCK_BYTES, &memory));
        let bytes = file.bytes;
        assert_eq!(file.bar_frames(0, &memory), [2], "it has no block");
        assert_eq!((bytes - file.bytes, file.gone.as_slice()), (4 * BLOCK_BYTES, &[2][..]));
        assert_eq!(file.segments(0).collect::<Vec<_>>(), [100, 1, 3]);
        // One that leaves at the time does so at once, also with a block that requests have asked for.
        file.begin_leaving(0, &memory);
        assert!(file.restore(0, 0, &memory));
        let left = file.bar_frames(0, &memory);
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(file.frames.is_empty() && file.leaving.is_empty());
        let fill = file.begin_fill(0, 0, &memory);
        assert_eq!(fill.map(|fill| fill.place.segment), Some(4));
    }

    #[test]
    fn a_barred_frame_is_not_filled_after_its_segment_was_to_leave() {
        let memory = Numbers::default();
        let mut file = file(&memory);
        assert!(file.bar_frames(0, &memory).is_empty());
        file.begin_leaving(0, &memory);
        assert!((0..3).all(|block| file.restore(block, 1, &memory)));
        assert!(file.end_leaving(REUSE_DELAY_NS, false, &memory).is_empty(), "it is in use");
        let now_ns = 2 * REUSE_DELAY_NS;
        assert_eq!(file.begin_fill(4, now_ns, &memory), None, "block 3 had that frame");
        memory.next.lock().push(2);
        let fill = file.begin_fill(3, now_ns, &memory);
        assert_eq!(fill.map(|fill| fill.place.segment), Some(2));
    }

    #[test]
    fn a_file_does_not_grow_beyond_its_limit_while_others_lack_memory() {
        let memory = Numbers::default();
        memory.next.lock().push(1);
        let mut file = File::new(None);
        assert!(file.begin_grant() && file.page(0, 0, &memory).is_some());
        file.limit = Some(Limit { bytes: file.bytes, until_ns: 10 });
        assert_eq!((file.begin_fill(0, 9, &memory), file.lacking), (None, None));
        assert!(file.begin_fill(0, 10, &memory).is_some());
        assert_eq!(file.begin_fill(4, 10, &memory).map(|fill| fill.place.segment), Some(1));
    }
}
