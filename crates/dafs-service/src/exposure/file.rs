//! The exposed blocks of one file, without I/O: the time is handed in, and memory is behind
//! [`Memory`]. Small files that share an exposure are parts of it (`small.rs`).
//!
//! Invariants
//! * No entry names a frame with other bytes than the file has for the block: a change takes the
//!   entries of its blocks away before it begins, and none comes back before it has ended.
//! * A frame is not written while an entry names it, nor for [`REUSE_DELAY_NS`] afterwards if a reader
//!   of another host may know it.
//! * A block with fewer than 4096 bytes is the last one of its file. A change behind its start takes it
//!   away. A change of a small file takes all of its blocks away.
//! * After the end of a grant no frame that its reader may know is filled again.
//! * A block that makes room keeps its frame until another one wins that, for [`REUSE_DELAY_NS`] at
//!   most. Its entry comes back only if no change of it has begun since (`chance.rs`).
//! * A segment that leaves takes its entries along first. Its number never names another segment of
//!   the same exposure (`leave.rs`).

use super::chance::{Chances, Contest};
use super::entry::{BLOCK_BYTES, FramePlace, WINDOW_BLOCKS};
use super::frames::{FrameCounts, Frames};
use super::leave::{Leaving, Limit};
use super::policy::Asked;
use super::remainder::Remainders;
use super::window::{Loss, PagePlace, Window};
use super::{Memory, SegmentKind};
use crate::limits::{
    EXPOSED_FILLS_MAX, EXPOSED_GONE_MAX, EXPOSED_GROUP_BLOCKS, EXPOSED_IDLE_NS, EXPOSED_PERIOD_NS,
    EXPOSED_REUSE_DELAY_NS as REUSE_DELAY_NS,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// A change of the file that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChangeId(u64);

/// A frame to be filled with a block of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    number: u64,
    /// The block, counted from the start of the exposure.
    pub(super) at: u64,
    /// The block, counted from the start of the file.
    pub block: u64,
    /// The frame.
    pub place: FramePlace,
    /// No request has asked for the block: it comes along with one next to it.
    pub is_neighbour: bool,
}

/// The numbers of what has happened to the blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Events {
    /// Published blocks that changes have taken away.
    pub(super) changed: u64,
    /// Published blocks that were to make room.
    pub(super) evicted: u64,
    /// Those that came back because requests asked for them.
    pub(super) restored: u64,
}

/// The results of a fill that are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Valid {
    /// None: the block has changed since the fill began.
    Nothing,
    /// A whole block. A change behind it has begun, so a block with fewer bytes may no longer be the
    /// last one.
    Whole,
    Any,
}

/// The exposed blocks of one file, or of many small ones.
#[derive(Debug, Default)]
pub(super) struct File {
    /// It has small files. Each has [`EXPOSED_GROUP_BLOCKS`] blocks.
    pub(super) is_shared: bool,
    /// The first blocks of small files that have left it for good.
    retired: FxHashSet<u64>,
    pub(super) windows: FxHashMap<u64, Window>,
    pub(super) remainders: Remainders,
    pub(super) frames: Frames,
    pub(super) chances: Chances,
    /// The segments that leave.
    pub(super) leaving: Vec<Leaving>,
    /// Pages that no window has.
    pages: Vec<PagePlace>,
    /// All segments, in the order in which they came. `None` for one that has left.
    pub(super) segments: Vec<Option<u16>>,
    /// The numbers of segments that have left.
    pub(super) gone: Vec<u16>,
    /// Segments in a row that were to leave and stayed.
    pub(super) spared: u32,
    /// Its part of the memory in bytes, and the limit of that while others lack memory.
    pub(super) bytes: usize,
    pub(super) limit: Option<Limit>,
    /// The bytes of the last segment for which there was no memory.
    pub(super) lacking: Option<usize>,
    /// There was no memory for a window page. Until then it gets none for frames.
    pub(super) lacks_pages_until_ns: u64,
    /// The time of the last request that has read the file.
    asked_ns: u64,
    pub(super) events: Events,
    /// The blocks of changes under way.
    changes: Vec<(ChangeId, RangeInclusive<u64>)>,
    /// The fills under way.
    pub(super) fills: Vec<(Fill, Valid)>,
    next: u64,
    /// The published blocks with fewer than 4096 bytes, at most one of each file.
    pub(super) shorts: BTreeSet<u64>,
    /// Grants that have not ended.
    grants: usize,
    /// A reader without a grant may know frames that could be filled.
    pub(super) has_former_readers: bool,
    /// A reader of another host may know frames.
    pub(super) has_remote_readers: bool,
    /// It is no longer exposed.
    pub(super) is_over: bool,
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

/// Returns the results that a fill of a block may have while these blocks change. Where files share the
/// exposure, blocks behind it are those of others.
fn valid_beside(block: u64, changed: &RangeInclusive<u64>, is_shared: bool) -> Valid {
    match changed.contains(&block) {
        true => Valid::Nothing,
        false if !is_shared && *changed.end() > block => Valid::Whole,
        false => Valid::Any,
    }
}

/// Returns the blocks of the small file that has this one.
fn part_of(block: u64) -> RangeInclusive<u64> {
    let first = block - block % EXPOSED_GROUP_BLOCKS;
    first..=first + (EXPOSED_GROUP_BLOCKS - 1)
}

impl File {
    pub(super) fn new(limit: Option<Limit>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The blocks of small files.
    pub(super) fn of_small_files(limit: Option<Limit>) -> Self {
        Self { is_shared: true, ..Self::new(limit) }
    }

    /// True if a published block has fewer than 4096 bytes.
    pub(super) fn is_short(&self, block: u64) -> bool {
        self.shorts.contains(&block)
    }

    /// True if a published block is the last one of the file that has this block.
    fn has_end(&self, block: u64) -> bool {
        match self.is_shared {
            true => self.shorts.range(part_of(block)).next().is_some(),
            false => !self.shorts.is_empty(),
        }
    }

    /// Notes that requests have read blocks. Returns those that are worth a frame: while memory is not
    /// scarce, all that do not change too often.
    pub(super) fn asked(
        &mut self,
        asked: RangeInclusive<u64>,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Vec<u64> {
        let is_scarce = memory.is_scarce();
        let mut wanted = Vec::new();
        for block in asked {
            let (number, at) = place_of(block);
            let Some(window) = self.windows.get_mut(&number) else { continue };
            let is_worth = match window.asked(at, now_ns) {
                Asked::Often => true,
                Asked::Once => !is_scarce || self.chances.has(block) || is_in(&self.leaving, block),
                Asked::Rests => false,
            };
            if is_worth && !window.has(at) {
                wanted.push(block);
            }
        }
        self.asked_ns = now_ns;
        wanted
    }

    /// Returns the blocks next to a wanted one that are to come along with it: those of the same
    /// [`EXPOSED_GROUP_BLOCKS`] without a frame. Those behind it come first.
    pub(super) fn neighbours(&self, wanted: u64, now_ns: u64) -> Vec<u64> {
        let first = wanted - wanted % EXPOSED_GROUP_BLOCKS;
        let behind = wanted + 1..first + EXPOSED_GROUP_BLOCKS;
        let all = behind.chain((first..wanted).rev());
        all.filter(|block| self.may_come_along(*block, now_ns)).collect()
    }

    /// True if a block has no frame, and may get one though no request has asked for it.
    pub(super) fn may_come_along(&self, block: u64, now_ns: u64) -> bool {
        let (number, at) = place_of(block);
        let Some(window) = self.windows.get(&number) else { return false };
        let is_under_way = self.fills.iter().any(|(fill, _)| fill.at == block);
        let has_frame = window.has(at) || is_under_way || self.chances.has(block);
        !has_frame && !is_in(&self.leaving, block) && !window.rests(at, now_ns)
    }

    /// Publishes a block again that was to make room and has its frame still. Returns false if it has
    /// none.
    pub(super) fn restore(&mut self, block: u64, now_ns: u64, memory: &dyn Memory) -> bool {
        if !self.may_fill() {
            return false;
        }
        let (number, at) = place_of(block);
        let window = self.windows.get_mut(&number).filter(|window| !window.has(at));
        let Some(window) = window else { return false };
        if !window.may_publish(now_ns) {
            return false;
        }
        let leaving = self.leaving.iter_mut().find_map(|leaving| leaving.blocks.remove(&block));
        let Some(place) = leaving.or_else(|| self.chances.asked(block)) else { return false };
        window.publish(at, (place, BLOCK_BYTES), memory);
        self.frames.publish(place, block);
        self.events.restored += 1;
        true
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
            let (segment, pages) = self.add_segment(SegmentKind::Index, true, now_ns, memory)?;
            // INVARIANT: a segment has at most 256 pages.
            self.pages.extend((0..pages).rev().map(|page| PagePlace { segment, page: page as u8 }));
        }
        let page = self.pages.pop()?;
        self.windows.insert(number, Window::new(page, now_ns));
        self.asked_ns = now_ns;
        Some(page)
    }

    /// The same for a window that no read needs yet. It gets no page while memory is scarce, because frames
    /// are worth more, unless pages are a small part of the file's memory.
    pub(super) fn spare_page(
        &mut self,
        number: u64,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<PagePlace> {
        let is_known = self.windows.contains_key(&number);
        let may_have = is_known || !memory.is_scarce() || self.has_few_pages();
        if may_have { self.page(number, now_ns, memory) } else { None }
    }

    /// Returns its segments behind the first `skipped` ones that it has had, in the order in which
    /// they came.
    pub(super) fn segments(&self, skipped: usize) -> impl Iterator<Item = u16> {
        self.segments.iter().skip(skipped).copied().flatten()
    }

    pub(super) fn frame_counts(&self) -> FrameCounts {
        self.frames.counts()
    }

    /// True if no request has read it for a while.
    pub(super) fn is_idle(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.asked_ns) >= EXPOSED_PERIOD_NS
    }

    /// True if it has memory, and no request has read it for so long that its readers may have gone.
    pub(super) fn is_abandoned(&self, now_ns: u64) -> bool {
        self.bytes > 0 && now_ns.saturating_sub(self.asked_ns) >= EXPOSED_IDLE_NS
    }

    /// Begins to fill a frame with a block. `None` while the block changes, while too many fills are
    /// under way or too many frames wait, or without memory.
    pub(super) fn begin_fill(
        &mut self,
        block: u64,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<Fill> {
        self.begin(block, false, now_ns, memory)
    }

    /// The same for a block that no request has asked for. No other block makes room for it.
    pub(super) fn begin_neighbour(
        &mut self,
        block: u64,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<Fill> {
        self.begin(block, true, now_ns, memory)
    }

    fn begin(
        &mut self,
        block: u64,
        is_neighbour: bool,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<Fill> {
        let (number, at) = place_of(block);
        let window = self.windows.get_mut(&number)?;
        let is_wanted = !window.has(at) && window.may_publish(now_ns);
        let is_free = self.fills.len() < EXPOSED_FILLS_MAX
            && !self.fills.iter().any(|(fill, _)| fill.at == block)
            && !self.chances.has(block)
            && !is_in(&self.leaving, block);
        let changes = self.changes.iter();
        let changes = changes.map(|(_, changed)| valid_beside(block, changed, self.is_shared));
        let valid = changes.min().unwrap_or(Valid::Any);
        let is_retired = self.is_shared && self.retired.contains(part_of(block).start());
        if !self.may_fill() || !is_wanted || !is_free || is_retired || valid == Valid::Nothing {
            return None;
        }
        let place = self.take_frame((block, is_neighbour), now_ns, memory)?;
        self.next += 1;
        // A small file begins at a multiple of its blocks.
        let of_file = if self.is_shared { block % EXPOSED_GROUP_BLOCKS } else { block };
        let fill = Fill { number: self.next, at: block, block: of_file, place, is_neighbour };
        self.fills.push((fill, valid));
        Some(fill)
    }

    /// Takes a frame for a block. If all are in use, another block may begin to make room.
    fn take_frame(
        &mut self,
        (block, is_neighbour): (u64, bool),
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<FramePlace> {
        if let Some(place) = self.frames.take(now_ns) {
            return Some(place);
        }
        if self.frames.many_wait(now_ns) {
            return None;
        }
        let is_first = self.frames.is_empty();
        if let Some((segment, frames)) =
            self.add_segment(SegmentKind::Frames, is_first, now_ns, memory)
        {
            self.frames.add(segment, frames);
            return self.frames.take(now_ns);
        }
        if is_neighbour {
            return None;
        }
        while let Some(place) = self.chances.expired(now_ns) {
            // A segment that stayed has left blocks there whose frames may be barred.
            if !self.frames.is_barred(place.segment) {
                return Some(place);
            }
        }
        let until_ns = self.reuse_ns(now_ns);
        match self.chances.wanted(block) {
            Contest::No => self.make_room(block, now_ns, memory),
            Contest::Open => return None,
            Contest::Won(place) => self.frames.retire(place, until_ns),
        }
        self.frames.take(now_ns)
    }

    /// Returns the time from which on a frame may be written that readers may know now.
    fn reuse_ns(&self, now_ns: u64) -> u64 {
        match self.has_remote_readers {
            true => now_ns.saturating_add(REUSE_DELAY_NS),
            false => now_ns,
        }
    }

    /// Makes a block absent, whose frame `candidate` may win.
    fn make_room(&mut self, candidate: u64, now_ns: u64, memory: &dyn Memory) {
        if !self.chances.may_add(self.frames.len(), self.frames.waiting()) {
            return;
        }
        let Some(block) = self.frames.victim() else { return };
        let window = self.windows.get_mut(&place_of(block).0);
        let may_come_back = window.is_some_and(|window| window.may_evict(now_ns));
        if !may_come_back {
            return;
        }
        if self.is_short(block) {
            self.take_away(block..=block, Loss::Eviction, now_ns, memory);
        } else if let Some(place) = self.hide(block, now_ns, memory) {
            self.chances.add(block, place, Some(candidate), now_ns);
        }
    }

    /// Makes a block of 4096 bytes absent that keeps its frame. Returns that.
    pub(super) fn hide(
        &mut self,
        block: u64,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> Option<FramePlace> {
        debug_assert!(!self.is_short(block), "a change may make it longer");
        let (number, at) = place_of(block);
        let window = self.windows.get_mut(&number)?;
        let place = window.take(at, (Loss::Eviction, now_ns), memory)?;
        self.frames.hide(place);
        self.events.evicted += 1;
        Some(place)
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
            Valid::Any => bytes == BLOCK_BYTES || bytes > 0 && !self.has_end(fill.at),
        };
        let (number, at) = place_of(fill.at);
        let window = self.windows.get_mut(&number).filter(|_| is_valid);
        let Some(window) = window else {
            self.frames.give_back(fill.place);
            return false;
        };
        window.publish(at, (fill.place, bytes), memory);
        self.frames.publish(fill.place, fill.at);
        if bytes < BLOCK_BYTES {
            self.shorts.insert(fill.at);
        }
        true
    }

    /// Takes the entries of blocks away, before the file changes there: all blocks of a small file.
    pub(super) fn begin_change(
        &mut self,
        changed: RangeInclusive<u64>,
        now_ns: u64,
        memory: &dyn Memory,
    ) -> ChangeId {
        let mut changed = changed;
        // The last block has more bytes when the file grows.
        let last = self.shorts.first().filter(|_| !self.is_shared);
        if let Some(short) = last.filter(|short| **short < *changed.end()) {
            changed = (*short).min(*changed.start())..=*changed.end();
        }
        self.next += 1;
        let id = ChangeId(self.next);
        for (fill, valid) in &mut self.fills {
            *valid = (*valid).min(valid_beside(fill.at, &changed, self.is_shared));
        }
        self.take_away(changed.clone(), Loss::Change, now_ns, memory);
        self.changes.push((id, changed));
        id
    }

    pub(super) fn end_change(&mut self, id: ChangeId) {
        self.changes.retain(|(own, _)| *own != id);
    }

    /// Takes the blocks of a small file away for good: none of them is published any more. Their entries
    /// are as at the beginning, so clients ask where the file is now.
    pub(super) fn retire(&mut self, part: RangeInclusive<u64>, now_ns: u64, memory: &dyn Memory) {
        let change = self.begin_change(part.clone(), now_ns, memory);
        self.end_change(change);
        self.retired.insert(*part.start());
        let (number, first) = place_of(*part.start());
        if let Some(window) = self.windows.get_mut(&number) {
            (first..).zip(part).for_each(|(at, _)| window.forget(at, memory));
        }
    }

    /// Adds a reader. Returns false if the file is no longer exposed.
    pub(super) fn begin_grant(&mut self) -> bool {
        self.grants += usize::from(!self.is_over);
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

    /// True if its segments are to be replaced before anything more is filled. Where files share it, the
    /// end of a grant bars their frames instead.
    pub(super) fn is_used_up(&self) -> bool {
        self.has_former_readers && !self.is_shared || self.gone.len() > EXPOSED_GONE_MAX
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
        (self.bytes, self.lacking) = (0, None);
        self.leaving.clear();
        std::mem::take(&mut self.segments).into_iter().flatten().collect()
    }

    /// True while frames may be filled: all who know its segments have grants.
    pub(super) fn may_fill(&self) -> bool {
        !self.is_over && !self.has_former_readers
    }

    /// True if the frame of a fill may be written now. Its segment may have left meanwhile.
    pub(super) fn may_write(&self, fill: &Fill) -> bool {
        self.may_fill() && self.fills.iter().any(|(own, _)| own == fill)
    }

    pub(super) fn take_away(
        &mut self,
        range: RangeInclusive<u64>,
        loss: Loss,
        now_ns: u64,
        memory: &dyn Memory,
    ) {
        let shorts: Vec<u64> = self.shorts.range(range.clone()).copied().collect();
        for short in &shorts {
            self.shorts.remove(short);
        }
        let (first, last) = (*range.start(), *range.end());
        let until_ns = self.reuse_ns(now_ns);
        let (frames, events) = (&mut self.frames, &mut self.events);
        let kept = self.chances.changed(&range);
        let left = self.leaving.iter_mut().flat_map(|leaving| leaving.changed(&range));
        kept.into_iter().chain(left).for_each(|place| frames.retire(place, until_ns));
        let counter = match loss {
            Loss::Change => Some(&mut events.changed),
            Loss::Eviction => Some(&mut events.evicted),
            Loss::End => None,
        };
        let mut taken = 0;
        let mut take = |number: u64, window: &mut Window| {
            let start = number * WINDOW_BLOCKS as u64;
            let from = first.saturating_sub(start) as usize;
            let to = last.saturating_sub(start).min(WINDOW_BLOCKS as u64 - 1) as usize;
            for at in from..=to {
                if let Some(place) = window.take(at, (loss, now_ns), memory) {
                    frames.retire(place, until_ns);
                    taken += 1;
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
        if let Some(counter) = counter {
            *counter += taken;
        }
    }
}

const _: () = assert!((WINDOW_BLOCKS as u64).is_multiple_of(EXPOSED_GROUP_BLOCKS));

/// True if a block of a segment that leaves has its frame still.
fn is_in(leaving: &[Leaving], block: u64) -> bool {
    leaving.iter().any(|leaving| leaving.blocks.contains_key(&block))
}
