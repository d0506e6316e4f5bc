//! One window of a file: the entries of its blocks, and the use of each.

use super::Memory;
use super::entry::{BlockEntry, FramePlace, WINDOW_BLOCKS};
use super::policy::{Asked, Use};

/// The place of a window page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PagePlace {
    /// The index segment, by its number.
    pub segment: u16,
    /// The page in it.
    pub page: u8,
}

/// The reason why a block loses its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The file changes there.
    Change,
    /// Its frame is to be used for another block, unless requests ask for this one.
    Eviction,
    /// The file is no longer exposed.
    End,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) page: PagePlace,
    /// The entries that the page holds.
    entries: Box<[BlockEntry; WINDOW_BLOCKS]>,
    uses: Use,
}

impl Window {
    pub(super) fn new(page: PagePlace, now_ns: u64) -> Self {
        let entries = Box::new([BlockEntry::default(); WINDOW_BLOCKS]);
        Self { page, entries, uses: Use::new(now_ns) }
    }

    pub(super) fn has(&self, at: usize) -> bool {
        self.entries[at].block.is_some()
    }

    pub(super) fn may_publish(&mut self, now_ns: u64) -> bool {
        self.uses.may_publish(now_ns)
    }

    /// True if blocks may make room: they can come back.
    pub(super) fn may_evict(&mut self, now_ns: u64) -> bool {
        self.uses.may_evict(now_ns)
    }

    pub(super) fn publish(&mut self, at: usize, block: (FramePlace, usize), memory: &dyn Memory) {
        self.uses.published();
        self.set(at, Some(block), memory);
    }

    /// Takes the entry of a block away. Returns its frame, if it had one.
    pub(super) fn take(
        &mut self,
        at: usize,
        (loss, now_ns): (Loss, u64),
        memory: &dyn Memory,
    ) -> Option<FramePlace> {
        let (place, _) = self.entries[at].block?;
        self.set(at, None, memory);
        match loss {
            Loss::Change => self.uses.changed(at, now_ns),
            Loss::Eviction => self.uses.evicted(at),
            Loss::End => {}
        }
        Some(place)
    }

    /// Forgets an absent block that is never published again.
    pub(super) fn forget(&mut self, at: usize, memory: &dyn Memory) {
        debug_assert!(!self.has(at), "readers may know its frame");
        if self.entries[at] != BlockEntry::default() {
            self.entries[at] = BlockEntry::default();
            memory.store(self.page, at, self.entries[at]);
        }
    }

    fn set(&mut self, at: usize, block: Option<(FramePlace, usize)>, memory: &dyn Memory) {
        self.entries[at] = self.entries[at].next(block);
        memory.store(self.page, at, self.entries[at]);
    }

    pub(super) fn asked(&mut self, at: usize, now_ns: u64) -> Asked {
        self.uses.asked(at, now_ns)
    }

    /// True, once in a period, if requests have asked for so many groups that the other blocks are worth
    /// frames, too.
    pub(super) fn begins_remainder(&mut self, now_ns: u64) -> bool {
        self.uses.begins_remainder(now_ns)
    }

    /// True if the block changes too often to be worth a frame.
    pub(super) fn rests(&self, at: usize, now_ns: u64) -> bool {
        self.uses.rests(at, now_ns)
    }
}
