//! The exposed blocks of one file, without I/O: the time is handed in, and memory is behind
//! [`Memory`].
//!
//! Invariants
//! * No entry names a frame with other bytes than the file has for the block: a change takes the
//!   entries of its blocks away before it begins, and none comes back before it has ended.
//! * A frame is not written while an entry names it, nor for [`REUSE_DELAY_NS`] afterwards if a reader
//!   of another host may know it.
//! * A block with fewer than 4096 bytes is the last one. A change behind its start takes it away.
//! * After the end of a grant no frame that its reader may know is filled again.

use super::entry::{BLOCK_BYTES, FramePlace, WINDOW_BLOCKS};
use super::frames::Frames;
use super::policy::Asked;
use super::window::{Loss, PagePlace, Window};
use super::{Memory, SegmentKind};
use crate::limits::{EXPOSED_FILLS_MAX, EXPOSED_REUSE_DELAY_NS as REUSE_DELAY_NS};
use rustc_hash::FxHashMap;
use std::ops::RangeInclusive;

/// A change of the file that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChangeId(u64);

/// A frame to be filled with a block of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    number: u64,
    /// The block, counted from the start of the file.
    pub block: u64,
    /// The frame.
    pub place: FramePlace,
}

/// The results of a fill that are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Valid {
    /// None: the block has changed since the fill began.
    Nothing,
    /// A whole block. A change behind it has begun, so a block with fewer bytes may no longer be the
    /// last one.
    Whole,
    Any,
}

/// The exposed blocks of one file.
#[derive(Debug, Default)]
pub(super) struct File {
    windows: FxHashMap<u64, Window>,
    frames: Frames,
    /// Pages that no window has.
    pages: Vec<PagePlace>,
    /// All segments, in the order in which they came.
    segments: Vec<u16>,
    /// The blocks of changes under way.
    changes: Vec<(ChangeId, RangeInclusive<u64>)>,
    /// The fills under way.
    fills: Vec<(Fill, Valid)>,
    next: u64,
    /// The published block with fewer than 4096 bytes.
    short: Option<u64>,
    /// Grants that have not ended.
    grants: usize,
    /// A reader without a grant may know the segments.
    has_former_readers: bool,
    /// A reader of another host may know frames.
    pub(super) has_remote_readers: bool,
    /// It is no longer exposed.
    is_over: bool,
}

/// Returns the blocks that some bytes of a file lie in, and all behind them for `u64::MAX` bytes.
pub(super) fn blocks(offset: u64, bytes: u64) -> RangeInclusive<u64> {
    let last = offset.saturating_add(bytes.max(1) - 1);
    offset / BLOCK_BYTES as u64..=last / BLOCK_BYTES as u64
}

/// Returns the window of a block, and the number of the block there.
fn place_of(block: u64) -> (u64, usize) {
    (block / WINDOW_BLOCKS as u64, (block % WINDOW_BLOCKS as u64) as usize)
}

/// Returns the results that a fill of a block may have while these blocks change.
fn valid_beside(block: u64, changed: &RangeInclusive<u64>) -> Valid {
    match changed.contains(&block) {
        true => Valid::Nothing,
        false if *changed.end() > block => Valid::Whole,
        false => Valid::Any,
    }
}

impl File {
    /// Notes that requests have read blocks. Returns those that are worth a frame.
    pub(super) fn asked(&mut self, asked: RangeInclusive<u64>, now_ns: u64) -> Vec<u64> {
        let mut wanted = Vec::new();
        for block in asked {
            let (number, at) = place_of(block);
            let Some(window) = self.windows.get_mut(&number) else { continue };
            if window.asked(at, now_ns) == Asked::Often && !window.has(at) {
                wanted.push(block);
            }
        }
        wanted
    }

    /// Returns the page of a window. A window without one gets one. `None` when there is no memory,
    /// or the file is no longer exposed.
    pub(super) fn page(
        &mut self,
        number: u64,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<PagePlace> {
        if let Some(window) = self.windows.get(&number) {
            return Some(window.page);
        }
        if self.is_over {
            return None;
        }
        if self.pages.is_empty() {
            let (segment, pages) = memory.add(SegmentKind::Index, true)?;
            self.segments.push(segment);
            // INVARIANT: a segment has at most 256 pages.
            self.pages.extend((0..pages).rev().map(|page| PagePlace { segment, page: page as u8 }));
        }
        let page = self.pages.pop()?;
        self.windows.insert(number, Window::new(page, now_ns));
        Some(page)
    }

    /// Returns all segments, in the order in which they came.
    pub(super) fn segments(&self) -> &[u16] {
        &self.segments
    }

    /// Begins to fill a frame with a block. `None` while the block changes, while too many fills are
    /// under way or too many frames wait, or without memory.
    pub(super) fn begin_fill(
        &mut self,
        block: u64,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<Fill> {
        let (number, at) = place_of(block);
        let window = self.windows.get_mut(&number)?;
        let is_wanted = !window.has(at) && window.may_publish(now_ns);
        let is_free = self.fills.len() < EXPOSED_FILLS_MAX
            && !self.fills.iter().any(|(fill, _)| fill.block == block);
        let changes = self.changes.iter().map(|(_, changed)| valid_beside(block, changed));
        let valid = changes.min().unwrap_or(Valid::Any);
        if !self.may_fill() || !is_wanted || !is_free || valid == Valid::Nothing {
            return None;
        }
        let place = self.take_frame(now_ns, memory)?;
        self.next += 1;
        let fill = Fill { number: self.next, block, place };
        self.fills.push((fill, valid));
        Some(fill)
    }

    fn take_frame(&mut self, now_ns: u64, memory: &dyn Memory) -> Option<FramePlace> {
        if let Some(place) = self.frames.take(now_ns) {
            return Some(place);
        }
        if self.frames.many_wait(now_ns) {
            return None;
        }
        if let Some((segment, frames)) = memory.add(SegmentKind::Frames, self.frames.is_empty()) {
            self.segments.push(segment);
            self.frames.add(segment, frames);
        } else {
            let victim = self.frames.victim()?;
            self.take_away(victim..=victim, Loss::Eviction, now_ns, memory);
        }
        self.frames.take(now_ns)
    }

    /// Ends a fill. The frame has the first `bytes` bytes of the block, and zeros behind them; 0 if
    /// it could not be filled. Publishes the block unless it has changed since the fill began.
    /// Returns true if it is published.
    pub(super) fn end_fill(&mut self, fill: Fill, bytes: usize, memory: &dyn Memory) -> bool {
        let Some(at) = self.fills.iter().position(|(own, _)| *own == fill) else { return false };
        let (_, valid) = self.fills.swap_remove(at);
        let is_valid = match valid {
            Valid::Nothing => false,
            Valid::Whole => bytes == BLOCK_BYTES,
            // A second last block: a local program has changed the file, and is reported soon.
            Valid::Any => bytes == BLOCK_BYTES || bytes > 0 && self.short.is_none(),
        };
        let (number, at) = place_of(fill.block);
        let window = self.windows.get_mut(&number).filter(|_| is_valid);
        let Some(window) = window else {
            self.frames.give_back(fill.place);
            return false;
        };
        window.publish(at, (fill.place, bytes), memory);
        self.frames.publish(fill.place, fill.block);
        if bytes < BLOCK_BYTES {
            self.short = Some(fill.block);
        }
        true
    }

    /// Takes the entries of blocks away, before the file changes there.
    pub(super) fn begin_change(
        &mut self,
        changed: RangeInclusive<u64>,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> ChangeId {
        let mut changed = changed;
        // The last block has more bytes when the file grows.
        if let Some(short) = self.short.filter(|short| *short < *changed.end()) {
            changed = short.min(*changed.start())..=*changed.end();
        }
        self.next += 1;
        let id = ChangeId(self.next);
        for (fill, valid) in &mut self.fills {
            *valid = (*valid).min(valid_beside(fill.block, &changed));
        }
        self.take_away(changed.clone(), Loss::Change, now_ns, memory);
        self.changes.push((id, changed));
        id
    }

    pub(super) fn end_change(&mut self, id: ChangeId) {
        self.changes.retain(|(own, _)| *own != id);
    }

    /// Adds a reader. Returns false if the file is no longer exposed.
    pub(super) fn begin_grant(&mut self, is_remote: bool) -> bool {
        self.grants += usize::from(!self.is_over);
        self.has_remote_readers |= is_remote;
        !self.is_over
    }

    /// Removes a reader, which still knows the segments. Returns true if it was the last one.
    pub(super) fn end_grant(&mut self) -> bool {
        self.grants = self.grants.saturating_sub(1);
        self.has_former_readers = true;
        self.grants == 0
    }

    pub(super) fn has_grants(&self) -> bool {
        self.grants > 0
    }

    /// True if its segments are to be replaced before anything more is filled.
    pub(super) fn is_used_up(&self) -> bool {
        self.has_former_readers
    }

    /// Ends the exposure: takes all entries away. Returns the segments, to be discarded when no fill
    /// is under way any more.
    pub(super) fn withdraw(&mut self, now_ns: u64, memory: &dyn Memory) -> Vec<u16> {
        self.is_over = true;
        self.fills.iter_mut().for_each(|(_, valid)| *valid = Valid::Nothing);
        self.take_away(0..=u64::MAX, Loss::End, now_ns, memory);
        self.frames.clear();
        self.pages.clear();
        self.windows.clear();
        std::mem::take(&mut self.segments)
    }

    /// True while frames may be filled: all who know its segments have grants.
    pub(super) fn may_fill(&self) -> bool {
        !self.is_over && !self.has_former_readers
    }

    fn take_away(
        &mut self,
        range: RangeInclusive<u64>,
        loss: Loss,
        now_ns: u64,
        memory: &dyn Memory,
    ) {
        if self.short.is_some_and(|short| range.contains(&short)) {
            self.short = None;
        }
        let (first, last) = (*range.start(), *range.end());
        let until_ns = match self.has_remote_readers {
            true => now_ns.saturating_add(REUSE_DELAY_NS),
            false => now_ns,
        };
        let frames = &mut self.frames;
        let mut take = |number: u64, window: &mut Window| {
            let start = number * WINDOW_BLOCKS as u64;
            let from = first.saturating_sub(start) as usize;
            let to = last.saturating_sub(start).min(WINDOW_BLOCKS as u64 - 1) as usize;
            for at in from..=to {
                if let Some(place) = window.take(at, (loss, now_ns), memory) {
                    frames.retire(place, until_ns);
                }
            }
        };
        let (first, last) = (place_of(first).0, place_of(last).0);
        if last - first < self.windows.len() as u64 {
            for number in first..=last {
                if let Some(window) = self.windows.get_mut(&number) {
                    take(number, window);
                }
            }
        } else {
            let inside =
                self.windows.iter_mut().filter(|(number, _)| (first..=last).contains(*number));
            inside.for_each(|(number, window)| take(*number, window));
        }
    }
}

/// Mistakes that tests make on purpose.
#[cfg(test)]
impl File {
    /// Forgets that blocks have changed since their fills began.
    pub(super) fn forget_changes(&mut self) {
        self.fills.iter_mut().for_each(|(_, valid)| *valid = Valid::Any);
        self.short = None;
    }

    /// Forgets the last block.
    pub(super) fn forget_short(&mut self) {
        self.short = None;
    }

    /// Forgets that grants have ended.
    pub(super) fn forget_former_readers(&mut self) {
        self.has_former_readers = false;
    }
}
