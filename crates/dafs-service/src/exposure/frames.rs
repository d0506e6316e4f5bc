//! The frames of a file's segments: free, in use, or waiting for reuse.
//!
//! Invariants
//! * A frame is in use by at most one block.
//! * A frame that readers may still read is not taken again before its time.
//! * No frame of a segment that leaves the file is taken, nor one that was barred.

use super::entry::FramePlace;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Frames {
    /// All frames, in the order of their segments.
    all: Vec<FramePlace>,
    free: Vec<FramePlace>,
    /// The published blocks, by frame.
    published: FxHashMap<FramePlace, u64>,
    /// Frames with the time from which on they may be used again, in the order of that time.
    waiting: VecDeque<(u64, FramePlace)>,
    /// The next frame that [`victim`](Self::victim) looks at.
    hand: usize,
    segments: Vec<u16>,
    /// The next segment to leave.
    next_segment: usize,
    /// The segments that leave, and their free frames.
    leaving: Vec<u16>,
    left: Vec<FramePlace>,
    /// Segments of which no frame is taken again. Blocks that have one keep it.
    barred: FxHashSet<u16>,
}

/// The numbers of a file's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FrameCounts {
    pub(super) published: u64,
    /// Absent blocks that keep them, and those that others may still read.
    pub(super) waiting: u64,
    pub(super) free: u64,
}

impl FrameCounts {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            published: self.published + other.published,
            waiting: self.waiting + other.waiting,
            free: self.free + other.free,
        }
    }
}

impl Frames {
    /// Adds the frames of a segment: at most 256.
    pub(super) fn add(&mut self, segment: u16, count: usize) {
        // INVARIANT: a segment has at most 256 frames.
        let places = (0..count).map(|frame| FramePlace { segment, frame: frame as u8 });
        self.all.extend(places.clone());
        self.free.extend(places.rev());
        self.segments.push(segment);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of frames that have no block and that readers may still read.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn counts(&self) -> FrameCounts {
        let free = self.free.len() + self.left.len();
        let in_use = self.published.len();
        FrameCounts {
            published: in_use as u64,
            waiting: self.all.len().saturating_sub(free + in_use) as u64,
            free: free as u64,
        }
    }

    /// Takes a frame for a block.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<FramePlace> {
        while let Some((until_ns, place)) = self.waiting.front().copied() {
            if until_ns > now_ns {
                break;
            }
            self.waiting.pop_front();
            self.give_back(place);
        }
        self.free.pop()
    }

    /// Returns a frame that no reader knows.
    pub(super) fn give_back(&mut self, place: FramePlace) {
        if self.barred.contains(&place.segment) {
            return;
        }
        let is_leaving = self.leaving.contains(&place.segment);
        let free = if is_leaving { &mut self.left } else { &mut self.free };
        free.push(place);
    }

    pub(super) fn publish(&mut self, place: FramePlace, block: u64) {
        let before = self.published.insert(place, block);
        debug_assert_eq!(before, None, "a frame has one block");
    }

    /// Takes a frame from its block. Readers may read it until then.
    pub(super) fn retire(&mut self, place: FramePlace, until_ns: u64) {
        debug_assert!(self.waiting.back().is_none_or(|(last, _)| *last <= until_ns));
        self.published.remove(&place);
        self.waiting.push_back((until_ns, place));
    }

    /// Takes a frame from its block, which may get it back.
    pub(super) fn hide(&mut self, place: FramePlace) {
        self.published.remove(&place);
    }

    /// Returns the published block that has waited longest for the hand of the clock.
    pub(super) fn victim(&mut self) -> Option<u64> {
        for _ in 0..self.all.len() {
            let place = self.all.get(self.hand).copied();
            self.hand = (self.hand + 1) % self.all.len();
            // A barred frame would be of no use to another block.
            let is_kept =
                |segment: &u16| !self.leaving.contains(segment) && !self.barred.contains(segment);
            let place = place.filter(|place| is_kept(&place.segment));
            let block = place.and_then(|place| self.published.get(&place).copied());
            if block.is_some() {
                return block;
            }
        }
        None
    }

    /// True if so many frames wait that no more are to be published: a quarter of all.
    pub(super) fn many_wait(&self, now_ns: u64) -> bool {
        let due = self.waiting.partition_point(|(until_ns, _)| *until_ns <= now_ns);
        (self.waiting.len() - due) * 4 > self.all.len().max(4)
    }

    /// True if a segment may begin to leave: one, and at most one of 16 at a time.
    pub(super) fn may_leave(&self) -> bool {
        let leaving = self.leaving.len();
        self.segments.len() > leaving && (leaving == 0 || leaving * 16 < self.segments.len())
    }

    /// Chooses the next segment to leave, in turn. No frame of it is taken any more.
    pub(super) fn begin_leaving(&mut self) -> Option<u16> {
        for _ in 0..self.segments.len() {
            let segment = *self.segments.get(self.next_segment % self.segments.len())?;
            self.next_segment = (self.next_segment + 1) % self.segments.len();
            if !self.leaving.contains(&segment) {
                self.leaving.push(segment);
                let free = self.free.extract_if(.., |place| place.segment == segment);
                self.left.extend(free);
                return Some(segment);
            }
        }
        None
    }

    /// Keeps a segment that was to leave.
    pub(super) fn keep(&mut self, segment: u16) {
        self.leaving.retain(|leaving| *leaving != segment);
        let free = self.left.extract_if(.., |place| place.segment == segment);
        self.free.extend(free);
    }

    /// Removes a segment. No block has a frame of it. Returns the number of its frames.
    pub(super) fn remove(&mut self, segment: u16) -> usize {
        let before = self.all.len();
        self.all.retain(|place| place.segment != segment);
        self.left.retain(|place| place.segment != segment);
        self.waiting.retain(|(_, place)| place.segment != segment);
        self.segments.retain(|known| *known != segment);
        self.leaving.retain(|leaving| *leaving != segment);
        self.barred.remove(&segment);
        self.hand = self.hand.checked_rem(self.all.len()).unwrap_or(0);
        before - self.all.len()
    }

    /// Returns the blocks that are published in a segment.
    pub(super) fn published_in(&self, segment: u16) -> Vec<u64> {
        let places = (0..=u8::MAX).map(|frame| FramePlace { segment, frame });
        places.filter_map(|place| self.published.get(&place).copied()).collect()
    }

    /// Lets no frame be taken again that is there now. Returns the segments of which that was so already,
    /// and less than half of the frames have blocks.
    pub(super) fn bar(&mut self) -> Vec<u16> {
        let mut counts = FxHashMap::<u16, (usize, usize)>::default();
        for place in self.all.iter().filter(|place| self.barred.contains(&place.segment)) {
            let (all, published) = counts.entry(place.segment).or_default();
            *all += 1;
            *published += usize::from(self.published.contains_key(place));
        }
        let sparse = counts.into_iter().filter(|(_, (all, published))| published * 2 < *all);
        let mut sparse: Vec<u16> = sparse.map(|(segment, _)| segment).collect();
        sparse.sort_unstable();
        self.barred.extend(&self.segments);
        self.free.clear();
        self.left.clear();
        self.waiting.clear();
        sparse
    }

    /// True if no frame of a segment is to be taken again.
    pub(super) fn is_barred(&self, segment: u16) -> bool {
        self.barred.contains(&segment)
    }

    /// Forgets all frames.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_comes_to_every_block_in_turn() {
        let mut frames = Frames::default();
        frames.add(1, 3);
        for block in 10..13 {
            let place = frames.take(0).unwrap();
            frames.publish(place, block);
        }
        assert_eq!(frames.take(0), None);
        let victims: Vec<_> = (0..4).map(|_| frames.victim()).collect();
        assert_eq!(victims, [Some(10), Some(11), Some(12), Some(10)]);
    }

    #[test]
    fn a_frame_waits_for_its_time() {
        let mut frames = Frames::default();
        frames.add(1, 2);
        let places = [frames.take(0).unwrap(), frames.take(0).unwrap()];
        frames.publish(places[0], 1);
        frames.retire(places[0], 10);
        assert_eq!((frames.take(9), frames.take(10)), (None, Some(places[0])));
        frames.give_back(places[1]);
        assert_eq!(frames.take(10), Some(places[1]));
        assert_eq!(frames.victim(), None);
    }

    #[test]
    fn a_quarter_of_the_frames_may_wait() {
        let mut frames = Frames::default();
        frames.add(1, 8);
        for frame in 0..3 {
            assert!(!frames.many_wait(5), "{frame}");
            let place = frames.take(0).unwrap();
            frames.retire(place, 10);
        }
        assert!(frames.many_wait(9) && !frames.many_wait(10));
    }

    #[test]
    fn a_barred_frame_stays_with_its_block_and_is_not_taken_again() {
        let mut frames = Frames::default();
        frames.add(1, 4);
        let places: Vec<_> = (0..3).filter_map(|_| frames.take(0)).collect();
        frames.publish(places[0], 10);
        frames.publish(places[1], 11);
        assert!(frames.bar().is_empty() && frames.take(0).is_none());
        frames.give_back(places[2]);
        assert_eq!((frames.take(0), frames.victim()), (None, None));
        assert_eq!(frames.published_in(1), [10, 11]);
        frames.add(2, 1);
        let place = frames.take(0).unwrap();
        assert_eq!(place.segment, 2);
        frames.publish(place, 12);
        assert_eq!((frames.victim(), frames.victim()), (Some(12), Some(12)));
        assert!(frames.bar().is_empty(), "half of its frames have blocks");
        frames.retire(places[0], 5);
        assert_eq!((frames.take(5), frames.bar()), (None, vec![1]));
        assert_eq!((frames.remove(1), frames.published_in(2)), (4, vec![12]));
        // The memory may come again with the same number.
        frames.add(1, 1);
        assert!(frames.take(5).is_some());
    }

    #[test]
    fn no_frame_of_a_segment_that_leaves_is_taken() {
        let mut frames = Frames::default();
        frames.add(1, 3);
        frames.add(2, 1);
        let places: Vec<_> = (0..3).filter_map(|_| frames.take(0)).collect();
        assert_eq!(places.iter().map(|place| place.segment).collect::<Vec<_>>(), [2, 1, 1]);
        frames.publish(places[1], 10);
        frames.publish(places[0], 11);
        assert_eq!((frames.may_leave(), frames.begin_leaving()), (true, Some(1)));
        assert!(!frames.may_leave(), "one after the other");
        frames.give_back(places[2]);
        assert_eq!(frames.take(0), None);
        assert_eq!((frames.victim(), frames.victim()), (Some(11), Some(11)));
        assert_eq!(frames.published_in(1), [10]);
        let counts = FrameCounts { published: 2, waiting: 0, free: 2 };
        assert_eq!(frames.counts(), counts);
        frames.keep(1);
        assert!(frames.take(0).is_some_and(|place| place.segment == 1));
        assert_eq!(frames.begin_leaving(), Some(2), "the next one");
        frames.hide(places[0]);
        assert_eq!((frames.remove(2), frames.len()), (1, 3));
        assert_eq!(frames.victim(), Some(10));
    }
}
