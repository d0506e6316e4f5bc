//! Which blocks are worth a frame: those that requests have asked for, and while memory is scarce those
//! alone that they have asked for twice in a short time. Blocks that changes take away again and again
//! are not.
//!
//! Example. A database reads a table of 500 MB in random order, each page about once. If the memory is
//! larger, a page that is shown at its first read brings its neighbours along, whose first reads are hits.
//! When requests have asked for pages here and there in a window, the others follow (`remainder.rs`).

use super::entry::WINDOW_BLOCKS;
use crate::limits::{
    EXPOSED_CHANGES_MAX, EXPOSED_GROUP_BLOCKS as GROUP_BLOCKS, EXPOSED_PERIOD_NS as PERIOD_NS,
    EXPOSED_PUBLICATIONS_MAX, EXPOSED_REMAINDER_GROUPS as REMAINDER_GROUPS,
    EXPOSED_REST_NS as REST_NS,
};

/// The bits of a group in a word, at its lower end.
const GROUP_MASK: u64 = (1 << GROUP_BLOCKS) - 1;

const _: () = assert!(GROUP_BLOCKS < 64 && 64_u64.is_multiple_of(GROUP_BLOCKS));

/// How often a block was asked for in this period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Once,
    Often,
    /// It changes too often.
    Rests,
}

/// The use of the blocks of a window, by requests and by changes.
#[derive(Debug)]
pub(super) struct Use {
    begun_ns: u64,
    /// A bit for each block that was asked for in this period.
    asked: [u64; WINDOW_BLOCKS / 64],
    /// Published blocks that have changed in this period, or rest, with the number of changes and the
    /// time of the last one.
    changed: Vec<(u16, u8, u64)>,
    /// The number of publications in this period.
    published: u32,
    /// The other blocks of the window were to be filled in this period.
    has_remainder: bool,
}

impl Use {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            begun_ns: now_ns,
            asked: [0; WINDOW_BLOCKS / 64],
            changed: Vec::new(),
            published: 0,
            has_remainder: false,
        }
    }

    fn turn(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.begun_ns) >= PERIOD_NS {
            self.begun_ns = now_ns;
            self.asked = [0; WINDOW_BLOCKS / 64];
            self.published = 0;
            self.has_remainder = false;
            self.changed.retain(|(_, changes, last_ns)| {
                *changes >= EXPOSED_CHANGES_MAX && now_ns.saturating_sub(*last_ns) < REST_NS
            });
        }
    }

    /// True if a block may be published. The limit bounds how soon an entry repeats.
    pub(super) fn may_publish(&mut self, now_ns: u64) -> bool {
        self.turn(now_ns);
        self.published < EXPOSED_PUBLICATIONS_MAX
    }

    /// True if a block may make room. A part of the limit is left for those that come back.
    pub(super) fn may_evict(&mut self, now_ns: u64) -> bool {
        self.turn(now_ns);
        self.published < EXPOSED_PUBLICATIONS_MAX / 4 * 3
    }

    pub(super) fn published(&mut self) {
        self.published += 1;
    }

    /// Notes that the block has lost its frame to another one.
    pub(super) fn evicted(&mut self, at: usize) {
        self.asked[at / 64] &= !(1 << (at % 64));
    }

    /// True if the block changes too often.
    pub(super) fn rests(&self, at: usize, now_ns: u64) -> bool {
        self.changed.iter().any(|(block, changes, last_ns)| {
            usize::from(*block) == at
                && *changes >= EXPOSED_CHANGES_MAX
                && now_ns.saturating_sub(*last_ns) < REST_NS
        })
    }

    /// Notes that a request has read the block.
    pub(super) fn asked(&mut self, at: usize, now_ns: u64) -> Asked {
        self.turn(now_ns);
        let rests = self.rests(at, now_ns);
        let (word, bit) = (&mut self.asked[at / 64], 1 << (at % 64));
        let was_asked = *word & bit != 0;
        *word |= bit;
        match (rests, was_asked) {
            (true, _) => Asked::Rests,
            (false, true) => Asked::Often,
            (false, false) => Asked::Once,
        }
    }

    /// True if requests have asked for so many groups that the other blocks are worth frames, too. Returns
    /// true once in a period.
    pub(super) fn begins_remainder(&mut self, now_ns: u64) -> bool {
        self.turn(now_ns);
        if self.has_remainder {
            return false;
        }
        let groups_of = |word: &u64| {
            let bits = *word;
            (0..64 / GROUP_BLOCKS)
                .filter(|at| (bits >> (at * GROUP_BLOCKS)) & GROUP_MASK != 0)
                .count()
        };
        let groups: usize = self.asked.iter().map(groups_of).sum();
        self.has_remainder = groups >= REMAINDER_GROUPS;
        self.has_remainder
    }

    /// Notes that a change has taken a published block away.
    pub(super) fn changed(&mut self, at: usize, now_ns: u64) {
        self.turn(now_ns);
        self.evicted(at);
        // INVARIANT: a window has 512 blocks.
        let block = at as u16;
        match self.changed.iter_mut().find(|(known, ..)| *known == block) {
            Some((_, changes, last_ns)) => {
                (*changes, *last_ns) = (changes.saturating_add(1), now_ns);
            }
            None => self.changed.push((block, 1, now_ns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_worth_a_frame_when_it_is_asked_for_twice_in_a_period() {
        let mut uses = Use::new(0);
        assert_eq!(uses.asked(7, 1), Asked::Once);
        assert_eq!(uses.asked(8, 1), Asked::Once);
        assert_eq!(uses.asked(7, 2), Asked::Often);
        assert_eq!(uses.asked(8, PERIOD_NS), Asked::Once, "that was long ago");
        uses.changed(8, PERIOD_NS + 1);
        assert_eq!(uses.asked(8, PERIOD_NS + 2), Asked::Once, "it has changed since");
    }

    #[test]
    fn a_block_that_changes_again_and_again_rests() {
        let mut uses = Use::new(0);
        for change in 0..u64::from(EXPOSED_CHANGES_MAX) {
            assert_eq!(uses.asked(511, change), Asked::Once);
            assert_eq!(uses.asked(511, change), Asked::Often);
            uses.changed(511, change);
        }
        assert_eq!(uses.asked(511, REST_NS), Asked::Rests);
        assert_eq!(uses.asked(510, REST_NS), Asked::Once);
        let later = REST_NS + u64::from(EXPOSED_CHANGES_MAX);
        assert_eq!(uses.asked(511, later), Asked::Often);
    }

    #[test]
    fn requests_for_a_quarter_of_the_groups_bring_the_others_along_once_in_a_period() {
        let groups = WINDOW_BLOCKS / GROUP_BLOCKS as usize;
        assert_eq!(groups / REMAINDER_GROUPS, 4);
        let mut uses = Use::new(0);
        for now_ns in [1, PERIOD_NS] {
            for group in (0..groups).step_by(4) {
                assert!(!uses.begins_remainder(now_ns), "{group}");
                // Blocks of one group count once.
                for block in 0..GROUP_BLOCKS as usize {
                    uses.asked(group * GROUP_BLOCKS as usize + block, now_ns);
                }
            }
            assert!(uses.begins_remainder(now_ns) && !uses.begins_remainder(now_ns));
        }
    }

    #[test]
    fn publications_of_a_window_are_limited() {
        let mut uses = Use::new(0);
        for number in 0..EXPOSED_PUBLICATIONS_MAX {
            assert!(uses.may_publish(1));
            assert_eq!(uses.may_evict(1), number < EXPOSED_PUBLICATIONS_MAX / 4 * 3);
            uses.published();
        }
        assert!(!uses.may_publish(PERIOD_NS - 1) && uses.may_publish(PERIOD_NS));
        assert!(uses.may_evict(PERIOD_NS));
    }
}
