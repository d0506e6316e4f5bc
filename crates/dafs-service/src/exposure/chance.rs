//! Second chances, as in the clock algorithm of page replacement. The server does not see hits, so it
//! makes a block absent that is to make room, and leaves its frame as it is. A request that asks for
//! the block meanwhile shows that it is in use: its entry comes back at once. The frame of a block
//! that no request asked for is given to another one.
//!
//! Invariants
//! * Each frame here has a whole block, as it is in the file: a change takes it out.
//! * No entry names a frame here.

use super::entry::FramePlace;
use crate::limits::EXPOSED_REUSE_DELAY_NS as REUSE_DELAY_NS;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

/// The least and the largest part of a file's frames that wait here at a time.
const PART_MIN: usize = 32;
const PART_MAX: usize = 4;

/// The absent blocks of a file that keep their frames.
#[derive(Debug, Clone, Default)]
pub(super) struct Chances {
    /// The frames by block, with the time at which each block became absent.
    blocks: BTreeMap<u64, (FramePlace, u64)>,
    /// That time and the block, in the order of the times. Some blocks have left meanwhile.
    queue: VecDeque<(u64, u64)>,
    /// Blocks that may wait. It grows while no request asks for them, and shrinks while requests do.
    limit: usize,
}

impl Chances {
    pub(super) fn has(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }

    /// True if one more block of a file with so many frames may wait.
    pub(super) fn may_add(&mut self, frames: usize) -> bool {
        self.limit = self.limit.clamp((frames / PART_MIN).max(1), (frames / PART_MAX).max(1));
        self.blocks.len() < self.limit
    }

    /// Adds a block that has just become absent.
    pub(super) fn add(&mut self, block: u64, place: FramePlace, now_ns: u64) {
        let before = self.blocks.insert(block, (place, now_ns));
        debug_assert_eq!(before, None, "a block has one frame");
        if self.queue.len() > 2 * self.blocks.len() {
            let blocks = &self.blocks;
            self.queue.retain(|waiting| is_present(blocks, *waiting));
        }
        self.queue.push_back((now_ns, block));
    }

    /// Takes the frame of a block for which a request has asked.
    pub(super) fn asked(&mut self, block: u64) -> Option<FramePlace> {
        let (place, _) = self.blocks.remove(&block)?;
        self.limit = self.limit.saturating_sub(1);
        Some(place)
    }

    /// Takes the frame of the block that has waited longest, if its time is over.
    pub(super) fn expired(&mut self, now_ns: u64) -> Option<FramePlace> {
        while let Some(oldest) = self.queue.front().copied() {
            let is_present = is_present(&self.blocks, oldest);
            let (since_ns, block) = oldest;
            if is_present && since_ns.saturating_add(REUSE_DELAY_NS) > now_ns {
                return None;
            }
            self.queue.pop_front();
            if is_present {
                self.limit += 1;
                return self.blocks.remove(&block).map(|(place, _)| place);
            }
        }
        None
    }

    /// Takes the frames of blocks that change.
    pub(super) fn changed(&mut self, range: &RangeInclusive<u64>) -> Vec<FramePlace> {
        let blocks: Vec<u64> = self.blocks.range(range.clone()).map(|(block, _)| *block).collect();
        let taken = blocks.into_iter().filter_map(|block| self.blocks.remove(&block));
        taken.map(|(place, _)| place).collect()
    }

    /// Takes the blocks whose frames are in a segment.
    pub(super) fn take_segment(&mut self, segment: u16) -> BTreeMap<u64, FramePlace> {
        let mut taken = BTreeMap::new();
        self.blocks.retain(|block, (place, _)| {
            let is_taken = place.segment == segment;
            if is_taken {
                taken.insert(*block, *place);
            }
            !is_taken
        });
        taken
    }
}

/// True if a block of the queue still waits since then.
fn is_present(blocks: &BTreeMap<u64, (FramePlace, u64)>, (since_ns, block): (u64, u64)) -> bool {
    blocks.get(&block).is_some_and(|(_, known_ns)| *known_ns == since_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(frame: u8) -> FramePlace {
        FramePlace { segment: u16::from(frame / 10), frame }
    }

    #[test]
    fn a_block_that_no_request_asks_for_loses_its_frame_in_time() {
        let mut chances = Chances::default();
        chances.add(7, place(1), 10);
        chances.add(8, place(2), 20);
        assert_eq!(chances.expired(9 + REUSE_DELAY_NS), None);
        assert_eq!(chances.asked(7), Some(place(1)));
        assert_eq!((chances.asked(7), chances.expired(19 + REUSE_DELAY_NS)), (None, None));
        assert_eq!(chances.expired(20 + REUSE_DELAY_NS), Some(place(2)));
        assert_eq!((chances.expired(u64::MAX), chances.blocks.len()), (None, 0));
    }

    #[test]
    fn a_second_wait_of_a_block_takes_its_whole_time() {
        let mut chances = Chances::default();
        chances.add(7, place(1), 10);
        assert_eq!(chances.asked(7), Some(place(1)));
        chances.add(7, place(1), 20);
        assert_eq!(chances.expired(19 + REUSE_DELAY_NS), None);
        assert_eq!(chances.expired(20 + REUSE_DELAY_NS), Some(place(1)));
    }

    #[test]
    fn changes_and_leaving_segments_take_blocks_out() {
        let mut chances = Chances::default();
        for block in 1..=5 {
            chances.add(block, place(8 + block as u8), 0);
        }
        assert_eq!(chances.changed(&(2..=3)), [place(10), place(11)]);
        let left = chances.take_segment(1);
        assert_eq!(left.into_iter().collect::<Vec<_>>(), [(4, place(12)), (5, place(13))]);
        assert!(chances.has(1) && !chances.has(4));
        assert_eq!(chances.expired(REUSE_DELAY_NS), Some(place(9)));
        assert_eq!(chances.expired(REUSE_DELAY_NS), None);
    }

    #[test]
    fn more_blocks_wait_while_no_request_asks_for_them() {
        let (mut chances, frames) = (Chances::default(), 128);
        let fill = |chances: &mut Chances, now_ns: u64| {
            let mut added = 0;
            while chances.may_add(frames) {
                chances.add(added, place(added as u8), now_ns);
                added += 1;
            }
            added
        };
        let mut counts = Vec::new();
        for round in 0..5 {
            let now_ns = round * REUSE_DELAY_NS;
            while chances.expired(now_ns).is_some() {}
            counts.push(fill(&mut chances, now_ns));
        }
        assert_eq!(counts, [4, 8, 16, 32, 32]);
        for block in 0..32 {
            chances.asked(block);
        }
        assert_eq!(fill(&mut chances, 0), 4);
        assert!(Chances::default().may_add(1), "one always may");
    }

    #[test]
    fn blocks_that_come_and_go_leave_nothing_behind() {
        let mut chances = Chances::default();
        chances.add(1, place(1), 0);
        for now_ns in 0..1000 {
            chances.add(2, place(2), now_ns);
            assert_eq!(chances.asked(2), Some(place(2)));
        }
        assert!(chances.queue.len() < 10, "{}", chances.queue.len());
    }
}
