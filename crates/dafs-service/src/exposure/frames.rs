//! The frames of a file's segments: free, in use, or waiting for reuse.
//!
//! Invariants
//! * A frame is in use by at most one block.
//! * A frame that readers may still read is not taken again before its time.

use super::entry::FramePlace;
use rustc_hash::FxHashMap;
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
}

impl Frames {
    /// Adds the frames of a segment: at most 256.
    pub(super) fn add(&mut self, segment: u16, count: usize) {
        // INVARIANT: a segment has at most 256 frames.
        let places = (0..count).map(|frame| FramePlace { segment, frame: frame as u8 });
        self.all.extend(places.clone());
        self.free.extend(places.rev());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Takes a frame for a block.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<FramePlace> {
        while self.waiting.front().is_some_and(|(until_ns, _)| *until_ns <= now_ns) {
            self.free.extend(self.waiting.pop_front().map(|(_, place)| place));
        }
        self.free.pop()
    }

    /// Returns a frame that no reader knows.
    pub(super) fn give_back(&mut self, place: FramePlace) {
        self.free.push(place);
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

    /// Returns the published block that has waited longest for the hand of the clock.
    pub(super) fn victim(&mut self) -> Option<u64> {
        for _ in 0..self.all.len() {
            let place = self.all.get(self.hand).copied();
            self.hand = (self.hand + 1) % self.all.len();
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
}
