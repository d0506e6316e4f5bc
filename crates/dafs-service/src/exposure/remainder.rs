//! The other blocks of windows of which requests have asked for many: the remainders. They are filled while
//! there is no other work, a few at a time.
//!
//! Example. A program reads a table of 500 MB in random order. Each miss has its 64 KiB filled, which are a group
//! of blocks. A window has 32 groups. After misses in eight of them the server fills the other 24, and later reads
//! of the window are hits.
//!
//! Invariants
//! * Such blocks take no frame from others, and none while memory is scarce.
//! * One step looks at one window, and begins to fill a group's number of blocks at most.
//! * A window is noted once in a period. A block that is not in memory, or that gets no frame, ends its remainder.

use super::Memory;
use super::entry::WINDOW_BLOCKS;
use super::file::{File, Fill};
use super::files::ExposedFile;
use crate::limits::{EXPOSED_GROUP_BLOCKS, EXPOSED_REMAINDERS_MAX};
use std::collections::VecDeque;

/// Blocks of a window.
const BLOCKS: u64 = WINDOW_BLOCKS as u64;

/// The windows of a file whose other blocks are to be filled, each with the first block there that has not
/// been looked at.
#[derive(Debug, Default)]
pub(super) struct Remainders(VecDeque<(u64, u64)>);

impl File {
    /// Notes the windows of blocks that requests have asked for, if all their blocks are worth frames now.
    pub(super) fn note_remainders(&mut self, wanted: &[u64], now_ns: u64, memory: &dyn Memory) {
        // Other groups have other files.
        if self.is_shared || memory.is_scarce() {
            return;
        }
        let mut last = None;
        for block in wanted {
            let number = block / BLOCKS;
            let is_same = last.replace(number) == Some(number);
            if is_same || self.remainders.0.len() >= EXPOSED_REMAINDERS_MAX {
                continue;
            }
            let Some(window) = self.windows.get_mut(&number) else { continue };
            if window.begins_remainder(now_ns) {
                self.remainders.0.push_back((number, 0));
            }
        }
    }

    /// Begins to fill frames with some blocks of the next window. `None` when no window is left.
    pub(super) fn begin_remainder(
        &mut self,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<Vec<Fill>> {
        if !self.may_fill() || memory.is_scarce() {
            self.remainders.0.clear();
        }
        let (number, from) = self.remainders.0.pop_front()?;
        let mut fills = Vec::new();
        for at in from..BLOCKS {
            if fills.len() as u64 == EXPOSED_GROUP_BLOCKS {
                self.remainders.0.push_front((number, at));
                break;
            }
            let block = number * BLOCKS + at;
            if !self.may_come_along(block, now_ns) {
                continue;
            }
            match self.begin_neighbour(block, now_ns, memory) {
                Some(fill) => fills.push(fill),
                None => break,
            }
        }
        Some(fills)
    }

    /// Gives up the other blocks of the window that a fill is for.
    pub(super) fn end_remainder(&mut self, fill: &Fill) {
        self.remainders.0.retain(|(number, _)| *number != fill.at / BLOCKS);
    }
}

impl ExposedFile {
    /// True if blocks are to be filled for which no request has asked, because requests have asked for many
    /// others of the same windows.
    pub fn has_remainder(&self) -> bool {
        !self.file.lock().remainders.0.is_empty()
    }

    /// Begins to fill some of them, each by [`fill`](Self::fill). `None` when there are none left.
    pub fn begin_remainder(&self) -> Option<Vec<Fill>> {
        self.file.lock().begin_remainder(self.shared.now_ns(), &*self.memory)
    }

    /// Gives up those of a window, because this one could not be read without waiting, or is behind the end
    /// of the file.
    pub fn end_remainder(&self, fill: &Fill) {
        self.file.lock().end_remainder(fill);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposure::files::begin_fills;
    use crate::exposure::{BLOCK_BYTES, BlockEntry, PagePlace, SegmentKind};
    use crate::limits::{EXPOSED_PERIOD_NS, EXPOSED_REMAINDER_GROUPS};
    use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

    const GROUP: u64 = EXPOSED_GROUP_BLOCKS;

    /// Memory without content.
    #[derive(Default)]
    struct Shown {
        segments: AtomicU16,
        is_scarce: AtomicBool,
    }

    impl Memory for Shown {
        fn add(&self, kind: SegmentKind, is_first: bool) -> Option<(u16, usize)> {
            Some((self.segments.fetch_add(1, Ordering::Relaxed), kind.places(is_first)))
        }

        fn store(&self, _page: PagePlace, _at: usize, _entry: BlockEntry) {}

        fn discard(&self, _segment: u16) {}

        fn is_scarce(&self) -> bool {
            self.is_scarce.load(Ordering::Relaxed)
        }

        fn looked(&self, _now_ns: u64) {}
    }

    /// Requests read a block of each of these groups of window 0, in no order of the file.
    fn read(file: &mut File, groups: std::ops::Range<u64>, now_ns: u64, memory: &Shown) {
        for group in groups.rev() {
            let block = group * GROUP + 3;
            let wanted = file.asked(block..=block, now_ns, memory);
            for fill in begin_fills(file, &wanted, now_ns, memory) {
                assert!(file.end_fill(fill, BLOCK_BYTES, memory));
            }
            file.note_remainders(&wanted, now_ns, memory);
        }
    }

    /// Fills all that is left. Returns the number of blocks in each step.
    fn fill(file: &mut File, now_ns: u64, memory: &Shown) -> Vec<usize> {
        let mut steps = Vec::new();
        while let Some(fills) = file.begin_remainder(now_ns, memory) {
            steps.push(fills.len());
            for fill in fills {
                assert!(fill.is_neighbour && file.end_fill(fill, BLOCK_BYTES, memory));
            }
        }
        steps
    }

    fn file(memory: &Shown) -> File {
        let mut file = File::default();
        assert!(file.begin_grant() && file.page(0, 0, memory).is_some());
        file
    }

    const ENOUGH: u64 = EXPOSED_REMAINDER_GROUPS as u64;

    #[test]
    fn the_other_blocks_of_a_window_follow_when_requests_have_asked_for_a_quarter_of_its_groups() {
        let memory = Shown::default();
        let mut file = file(&memory);
        read(&mut file, 0..ENOUGH - 1, 1, &memory);
        assert!(fill(&mut file, 1, &memory).is_empty());
        read(&mut file, ENOUGH - 1..ENOUGH, 1, &memory);
        let others = (BLOCKS / GROUP - ENOUGH) as usize;
        assert_eq!(fill(&mut file, 1, &memory), vec![GROUP as usize; others]);
        assert_eq!(file.frame_counts().published, BLOCKS);
    }

    #[test]
    fn a_window_is_filled_once_in_a_period() {
        let memory = Shown::default();
        let mut file = file(&memory);
        for (now_ns, is_filled) in [(1, true), (1, false), (EXPOSED_PERIOD_NS, true)] {
            read(&mut file, 0..ENOUGH, now_ns, &memory);
            assert_eq!(!fill(&mut file, now_ns, &memory).is_empty(), is_filled, "{now_ns}");
            // A change takes all blocks away.
            let change = file.begin_change(0..=BLOCKS - 1, now_ns, &memory);
            file.end_change(change);
        }
    }

    #[test]
    fn no_block_comes_along_while_memory_is_scarce() {
        let memory = Shown::default();
        let mut file = file(&memory);
        read(&mut file, 0..ENOUGH, 1, &memory);
        let published = file.frame_counts().published;
        memory.is_scarce.store(true, Ordering::Relaxed);
        assert!(fill(&mut file, 1, &memory).is_empty());
        memory.is_scarce.store(false, Ordering::Relaxed);
        assert!(fill(&mut file, 1, &memory).is_empty(), "it was given up");
        assert_eq!(file.frame_counts().published, published);
    }

    #[test]
    fn a_block_that_is_not_in_memory_ends_the_remainder_of_its_window() {
        let memory = Shown::default();
        let mut file = file(&memory);
        read(&mut file, 0..ENOUGH, 1, &memory);
        let fills = file.begin_remainder(1, &memory).unwrap();
        file.end_remainder(&fills[0]);
        fills.into_iter().for_each(|fill| assert!(!file.end_fill(fill, 0, &memory)));
        assert!(file.begin_remainder(1, &memory).is_none());
    }

    /// Another reactor may be filling a block of the window at the same time.
    #[test]
    fn a_fill_under_way_leaves_the_other_blocks_to_the_remainder() {
        let memory = Shown::default();
        let mut file = file(&memory);
        read(&mut file, 0..ENOUGH, 1, &memory);
        let own = file.begin_fill(ENOUGH * GROUP, 1, &memory).unwrap();
        let filled: usize = fill(&mut file, 1, &memory).iter().sum();
        assert_eq!(filled as u64, BLOCKS - ENOUGH * GROUP - 1);
        assert!(file.end_fill(own, BLOCK_BYTES, &memory));
        assert_eq!(file.frame_counts().published, BLOCKS);
    }

    #[test]
    fn after_the_end_of_a_grant_nothing_follows() {
        let memory = Shown::default();
        let mut file = file(&memory);
        assert!(file.begin_grant());
        read(&mut file, 0..ENOUGH, 1, &memory);
        assert!(!file.end_grant() && file.begin_remainder(1, &memory).is_none());
    }

    #[test]
    fn small_files_bring_no_others_along() {
        let memory = Shown::default();
        let mut file = File::of_small_files(None);
        assert!(file.begin_grant() && file.page(0, 0, &memory).is_some());
        read(&mut file, 0..BLOCKS / GROUP, 1, &memory);
        assert!(fill(&mut file, 1, &memory).is_empty());
    }
}
