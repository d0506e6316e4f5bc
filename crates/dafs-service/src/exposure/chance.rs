//! Second chances, as in the clock algorithm of page replacement. The server does not see hits, so it
//! makes a block absent that is to make room, and leaves its frame as it is. A request that asks for
//! the block meanwhile shows that it is in use: its entry comes back at once.
//!
//! The block makes room for a candidate: one that requests read as well, and that has no frame. If
//! requests ask for the candidate twice before one asks for the block, the block loses its frame. This
//! compares how often both are read, so it works at any rate of requests. The blocks that are read most
//! stay, nearly as with least frequently used (LFU) replacement. A block that no request asks for in
//! [`REUSE_DELAY_NS`] loses its frame in any case.
//!
//! Example. Block 7 makes room for block 9. If requests read 9, 9, then 9 has the frame. If they read 9,
//! 7, then block 7 comes back, and the next request for 9 finds another block that makes room.
//!
//! Invariants
//! * Each frame here has a whole block, as it is in the file: a change takes it out.
//! * No entry names a frame here.
//! * A candidate has one block at most that makes room for it.

use super::entry::FramePlace;
use crate::limits::EXPOSED_REUSE_DELAY_NS as REUSE_DELAY_NS;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

/// The least and the largest part of a file's frames that wait here at a time.
const PART_MIN: usize = 16;
const PART_MAX: usize = 4;

/// Requests for a candidate after which it has the frame, if none has asked for the block that makes
/// room for it.
const WINNING_REQUESTS: u32 = 2;

/// The frame of an absent block.
#[derive(Debug, Clone, Copy)]
struct Chance {
    place: FramePlace,
    /// The time at which the block became absent.
    since_ns: u64,
    /// The block for which it makes room, with the number of requests for that one since then.
    candidate: Option<(u64, u32)>,
}

/// The state of the contest for a frame, after one more request for a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contest {
    /// No block makes room for this one.
    No,
    /// The block that makes room may still come back.
    Open,
    /// The block that makes room has lost this frame.
    Won(FramePlace),
}

/// The absent blocks of a file that keep their frames.
#[derive(Debug, Clone, Default)]
pub(super) struct Chances {
    blocks: BTreeMap<u64, Chance>,
    /// The block that makes room, by its candidate.
    candidates: FxHashMap<u64, u64>,
    /// The time at which a block became absent, and the block, in the order of the times. Some blocks
    /// have left meanwhile.
    queue: VecDeque<(u64, u64)>,
    /// Blocks that may wait. It grows while no request asks for them, and shrinks while requests do.
    limit: usize,
}

impl Chances {
    pub(super) fn has(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }

    /// True if one more block of a file with so many frames may wait, of which `waiting` wait already
    /// because readers may know them.
    pub(super) fn may_add(&mut self, frames: usize, waiting: usize) -> bool {
        self.limit = self.limit.clamp((frames / PART_MIN).max(1), (frames / PART_MAX).max(1));
        self.blocks.len() + waiting < self.limit
    }

    /// Adds a block that has just become absent: to make room for a candidate, or with its segment.
    pub(super) fn add(
        &mut self,
        block: u64,
        place: FramePlace,
        candidate: Option<u64>,
        now_ns: u64,
    ) {
        if let Some(candidate) = candidate {
            let before = self.candidates.insert(candidate, block);
            debug_assert_eq!(before, None, "one block makes room for it");
        }
        let candidate = candidate.map(|candidate| (candidate, 0));
        let before = self.blocks.insert(block, Chance { place, since_ns: now_ns, candidate });
        debug_assert!(before.is_none(), "a block has one frame");
        if self.queue.len() > 2 * self.blocks.len() {
            let blocks = &self.blocks;
            self.queue.retain(|waiting| is_present(blocks, *waiting));
        }
        self.queue.push_back((now_ns, block));
    }

    /// Takes the frame of a block for which a request has asked.
    pub(super) fn asked(&mut self, block: u64) -> Option<FramePlace> {
        let place = self.remove(block)?;
        self.limit = self.limit.saturating_sub(1);
        Some(place)
    }

    /// Notes that a request has asked for a block without a frame, which may be a candidate. Takes the
    /// frame of the block that makes room for it, if that has lost it.
    pub(super) fn wanted(&mut self, candidate: u64) -> Contest {
        let Some(block) = self.candidates.get(&candidate).copied() else { return Contest::No };
        let chance = self.blocks.get_mut(&block);
        let Some((_, requests)) = chance.and_then(|chance| chance.candidate.as_mut()) else {
            return Contest::No;
        };
        *requests += 1;
        if *requests < WINNING_REQUESTS {
            return Contest::Open;
        }
        self.remove(block).map_or(Contest::No, Contest::Won)
    }

    /// Takes the frame of a block. There is no contest for it any more.
    fn remove(&mut self, block: u64) -> Option<FramePlace> {
        let Chance { place, candidate, .. } = self.blocks.remove(&block)?;
        if let Some((candidate, _)) = candidate {
            self.candidates.remove(&candidate);
        }
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
                return self.remove(block);
            }
        }
        None
    }

    /// Takes the frames of blocks that change.
    pub(super) fn changed(&mut self, range: &RangeInclusive<u64>) -> Vec<FramePlace> {
        let blocks: Vec<u64> = self.blocks.range(range.clone()).map(|(block, _)| *block).collect();
        blocks.into_iter().filter_map(|block| self.remove(block)).collect()
    }

    /// Takes the blocks whose frames are in a segment.
    pub(super) fn take_segment(&mut self, segment: u16) -> BTreeMap<u64, FramePlace> {
        let inside = self.blocks.iter().filter(|(_, chance)| chance.place.segment == segment);
        let inside: Vec<u64> = inside.map(|(block, _)| *block).collect();
        inside.into_iter().filter_map(|block| Some((block, self.remove(block)?))).collect()
    }
}

/// True if a block of the queue still waits since then.
fn is_present(blocks: &BTreeMap<u64, Chance>, (since_ns, block): (u64, u64)) -> bool {
    blocks.get(&block).is_some_and(|chance| chance.since_ns == since_ns)
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
        chances.add(7, place(1), None, 10);
        chances.add(8, place(2), None, 20);
        assert_eq!(chances.expired(9 + REUSE_DELAY_NS), None);
        assert_eq!(chances.asked(7), Some(place(1)));
        assert_eq!((chances.asked(7), chances.expired(19 + REUSE_DELAY_NS)), (None, None));
        assert_eq!(chances.expired(20 + REUSE_DELAY_NS), Some(place(2)));
        assert_eq!((chances.expired(u64::MAX), chances.blocks.len()), (None, 0));
    }

    #[test]
    fn the_frame_is_that_of_the_block_for_which_requests_ask_more() {
        let mut chances = Chances::default();
        chances.add(7, place(1), Some(9), 10);
        assert_eq!((chances.wanted(8), chances.wanted(9)), (Contest::No, Contest::Open));
        assert_eq!(chances.wanted(9), Contest::Won(place(1)));
        assert_eq!((chances.wanted(9), chances.asked(7)), (Contest::No, None));
        chances.add(7, place(2), Some(9), 20);
        assert_eq!((chances.wanted(9), chances.asked(7)), (Contest::Open, Some(place(2))));
        assert_eq!(chances.wanted(9), Contest::No, "the block is back");
    }

    #[test]
    fn a_contest_ends_with_the_wait_of_its_block() {
        let mut chances = Chances::default();
        let contest = |chances: &mut Chances| {
            chances.add(7, place(1), Some(9), 10);
            assert_eq!(chances.wanted(9), Contest::Open);
        };
        contest(&mut chances);
        assert_eq!(chances.changed(&(7..=7)), [place(1)]);
        assert_eq!(chances.wanted(9), Contest::No);
        contest(&mut chances);
        assert_eq!(chances.take_segment(0).len(), 1);
        assert_eq!(chances.wanted(9), Contest::No);
        contest(&mut chances);
        assert_eq!(chances.expired(10 + REUSE_DELAY_NS), Some(place(1)));
        assert_eq!((chances.wanted(9), chances.candidates.len()), (Contest::No, 0));
    }

    #[test]
    fn a_second_wait_of_a_block_takes_its_whole_time() {
        let mut chances = Chances::default();
        chances.add(7, place(1), None, 10);
        assert_eq!(chances.asked(7), Some(place(1)));
        chances.add(7, place(1), None, 20);
        assert_eq!(chances.expired(19 + REUSE_DELAY_NS), None);
        assert_eq!(chances.expired(20 + REUSE_DELAY_NS), Some(place(1)));
    }

    #[test]
    fn changes_and_leaving_segments_take_blocks_out() {
        let mut chances = Chances::default();
        for block in 1..=5 {
            chances.add(block, place(8 + block as u8), None, 0);
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
            while chances.may_add(frames, 0) {
                chances.add(added, place(added as u8), None, now_ns);
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
        assert_eq!(counts, [8, 16, 32, 32, 32]);
        for block in 0..32 {
            chances.asked(block);
        }
        assert_eq!(fill(&mut chances, 0), 8);
        assert!(!Chances::default().may_add(16, 1), "another frame is free soon");
        assert!(Chances::default().may_add(1, 0), "one always may");
    }

    #[test]
    fn blocks_that_come_and_go_leave_nothing_behind() {
        let mut chances = Chances::default();
        chances.add(1, place(1), None, 0);
        for now_ns in 0..1000 {
            chances.add(2, place(2), None, now_ns);
            assert_eq!(chances.asked(2), Some(place(2)));
        }
        assert!(chances.queue.len() < 10, "{}", chances.queue.len());
    }
}
