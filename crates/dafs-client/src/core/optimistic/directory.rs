//! The places of blocks in memory of the server, of open files and of exposures that small files share
//! (`small.rs`), for reads by RDMA. No part of this does I/O.
//!
//! Invariants
//! * Nothing that the server wrote is trusted: each place is checked against the length of its segment.
//! * The client keeps entries for an hour at most, because a count of changes comes again some day.
//! * The entries of so many windows are kept, of the ones that were used last.

use crate::core::blocks::{AskWidth, BLOCK_BYTES, ExposeAnswer, WINDOW_BLOCKS};
use crate::limits::{
    OPTIMISTIC_ASK_PAUSE_MAX, OPTIMISTIC_ASK_PAUSE_MIN, OPTIMISTIC_CHECKS_MAX,
    OPTIMISTIC_ENTRIES_TIME, OPTIMISTIC_FETCH_PAUSE_MAX, OPTIMISTIC_FETCH_PAUSE_MIN,
    OPTIMISTIC_FILES_MAX, OPTIMISTIC_MISSES_BEFORE, OPTIMISTIC_PLACES_MAX, OPTIMISTIC_RUNS_MAX,
    OPTIMISTIC_WINDOWS_MAX,
};
use dafs_dat::{Instant, RemoteBuffer};
use dafs_wire::dafs::{EntryWord, ExposedKind, StateId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Bytes of a window page.
pub(super) const PAGE_BYTES: usize = 4096;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = size_of::<u64>();

/// A run of bytes in the server's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) source: RemoteBuffer,
    /// Its place in the target, in bytes.
    pub(super) at: u32,
}

/// Entries of adjacent blocks, which must not have changed when the data has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Check {
    window: u64,
    first: usize,
    pub(super) source: RemoteBuffer,
    /// As they were before the data was read.
    pub(super) words: SmallVec<[u64; 4]>,
}

/// The reads by RDMA that one read of a file takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    pub(super) exposure: u64,
    pub(super) runs: SmallVec<[Run; OPTIMISTIC_RUNS_MAX]>,
    pub(super) checks: SmallVec<[Check; OPTIMISTIC_CHECKS_MAX]>,
    pub(super) bytes: u32,
    /// They are fewer than the read asks for, because the file ends behind them.
    pub(super) is_end: bool,
    /// They are in an exposure of small files.
    pub(super) is_small: bool,
}

/// The reason why a read must be a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Miss {
    /// No frame has a block of this window.
    Absent(u64),
    /// The client does not have the entries of this window.
    Entries(u64),
    /// The client does not know where this window is, or a frame of it.
    Place(u64),
    /// It takes too many reads by RDMA.
    Scattered,
}

impl Miss {
    /// The window.
    pub(super) fn window(self) -> Option<u64> {
        match self {
            Self::Absent(window) | Self::Entries(window) | Self::Place(window) => Some(window),
            Self::Scattered => None,
        }
    }
}

/// A pause that doubles while waiting is in vain.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    next: Instant,
    pause: Duration,
}

impl Pace {
    fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    fn went(&mut self, now: Instant, is_new: bool, (least, most): (Duration, Duration)) {
        self.pause = if is_new { least } else { (self.pause * 2).clamp(least, most) };
        self.next = now + self.pause;
    }
}

/// The page of a window.
#[derive(Debug)]
struct Page {
    place: RemoteBuffer,
    /// The entries, and the time when the client fetched them.
    words: Option<(Box<[u64; WINDOW_BLOCKS as usize]>, Instant)>,
    fetches: Pace,
    is_fetching: bool,
    was_used: bool,
}

impl Page {
    fn new(place: RemoteBuffer) -> Self {
        let (words, fetches) = (None, Pace::default());
        Self { place, words, fetches, is_fetching: false, was_used: false }
    }

    fn word(&mut self, at: usize, now: Instant) -> Option<u64> {
        let (words, since) = self.words.as_ref()?;
        if now.since(*since) > OPTIMISTIC_ENTRIES_TIME {
            self.words = None;
            return None;
        }
        self.was_used = true;
        Some(words[at])
    }

    /// True if these are entries of this page, and not of the one where the window was before.
    fn has(&self, check: &Check) -> bool {
        let first = part(&self.place, (check.first * ENTRY_BYTES) as u64, ENTRY_BYTES);
        first.is_some_and(|first| {
            (first.key, first.address) == (check.source.key, check.source.address)
        })
    }
}

/// A part of a segment; `None` if it is not inside.
fn part(segment: &RemoteBuffer, at: u64, len: usize) -> Option<RemoteBuffer> {
    let end = at.checked_add(len as u64)?;
    let address = segment.address.checked_add(at)?;
    address.checked_add(len as u64)?;
    let len = u32::try_from(len).ok()?;
    (end <= u64::from(segment.len)).then_some(RemoteBuffer { key: segment.key, address, len })
}

/// The blocks of one open file.
#[derive(Debug, Default)]
struct FileBlocks {
    /// 0 if nothing is known.
    exposure: u64,
    /// The number of segments that the client has taken.
    count: u32,
    frames: FxHashMap<u16, RemoteBuffer>,
    indexes: FxHashMap<u16, RemoteBuffer>,
    pages: FxHashMap<u64, Page>,
    misses: u32,
    questions: Pace,
    width: AskWidth,
    is_asking: bool,
}

impl FileBlocks {
    fn forget(&mut self) {
        let Self { misses, questions, width, is_asking, .. } = *self;
        *self = Self { misses, questions, width, is_asking, ..Self::default() };
    }

    fn plan(&mut self, offset: u64, len: u32, now: Instant) -> Result<Plan, Miss> {
        let mut plan = Plan { exposure: self.exposure, ..Plan::default() };
        offset.checked_add(len.into()).ok_or(Miss::Scattered)?;
        while plan.bytes < len {
            let at = offset + u64::from(plan.bytes);
            let (block, inside) = (at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize);
            let (window, index) = (block / WINDOW_BLOCKS, (block % WINDOW_BLOCKS) as usize);
            let page = self.pages.get_mut(&window).ok_or(Miss::Place(window))?;
            let word = page.word(index, now).ok_or(Miss::Entries(window))?;
            let place = EntryWord(u64::from_le(word)).block().ok_or(Miss::Absent(window))?;
            let segment = self.frames.get(&place.segment).ok_or(Miss::Place(window))?;
            let frame = part(segment, u64::from(place.frame) * BLOCK_BYTES, BLOCK_BYTES as usize);
            let frame = frame.ok_or(Miss::Place(window))?;
            plan.check((window, index), &page.place, word)?;
            let bytes = place.bytes.saturating_sub(inside) as u32;
            let bytes = bytes.min(len - plan.bytes);
            plan.read(&frame, inside as u64, bytes)?;
            if place.bytes < BLOCK_BYTES as usize {
                break;
            }
        }
        // As in the answer to a READ, whose bytes may end at the end of the file without this.
        plan.is_end = plan.bytes < len;
        Ok(plan)
    }

    /// True if the client knows the place of a window's page.
    fn knows(&self, window: u64) -> bool {
        self.pages.contains_key(&window)
    }

    /// Takes an answer of the server. Returns true if it has something new.
    fn take(&mut self, answer: ExposeAnswer, asked: u64, windows: &RangeInclusive<u64>) -> bool {
        let is_known = self.exposure == answer.exposure;
        if answer.exposure == 0 || !is_known || asked != answer.exposure {
            self.forget();
            if answer.exposure == 0 || asked == answer.exposure {
                // It has only what the client did not know on a channel that is gone.
                return false;
            }
        }
        self.exposure = answer.exposure;
        let mut is_new = false;
        for segment in answer.segments {
            let Ok(number) = u16::try_from(segment.number) else { break };
            let (key, address, len) = (segment.key, segment.address, segment.bytes);
            let segments = match segment.kind {
                ExposedKind::Frames => &mut self.frames,
                ExposedKind::Index => &mut self.indexes,
                ExposedKind::Life => break,
            };
            segments.insert(number, RemoteBuffer { key, address, len });
            self.count = self.count.saturating_add(1);
            is_new = true;
        }
        for page in answer.windows {
            let segment = u16::try_from(page.segment).ok();
            let segment = segment.and_then(|number| self.indexes.get(&number));
            let at = u64::from(page.page) * PAGE_BYTES as u64;
            let place = segment.and_then(|segment| part(segment, at, PAGE_BYTES));
            if let Some(place) = place.filter(|_| windows.contains(&page.window)) {
                let known = self.pages.get(&page.window);
                if known.is_none_or(|known| known.place != place) {
                    self.make_room();
                    self.pages.insert(page.window, Page::new(place));
                    is_new = true;
                }
            }
        }
        is_new
    }

    /// Forgets the places of pages without entries when there are many.
    fn make_room(&mut self) {
        if self.pages.len() >= OPTIMISTIC_PLACES_MAX {
            self.pages.retain(|_, page| page.words.is_some() || page.is_fetching);
        }
    }
}

impl Plan {
    fn check(
        &mut self,
        (window, index): (u64, usize),
        page: &RemoteBuffer,
        word: u64,
    ) -> Result<(), Miss> {
        if let Some(last) = self.checks.last_mut()
            && last.window == window
            && last.first + last.words.len() == index
        {
            last.words.push(word);
            last.source.len += ENTRY_BYTES as u32;
            return Ok(());
        }
        let source = part(page, (index * ENTRY_BYTES) as u64, ENTRY_BYTES);
        let source = source.filter(|_| self.checks.len() < OPTIMISTIC_CHECKS_MAX);
        let source = source.ok_or(Miss::Scattered)?;
        self.checks.push(Check {
            window,
            first: index,
            source,
            words: SmallVec::from_slice(&[word]),
        });
        Ok(())
    }

    /// Adds a part of a frame.
    fn read(&mut self, frame: &RemoteBuffer, inside: u64, bytes: u32) -> Result<(), Miss> {
        let at = self.bytes;
        self.bytes += bytes;
        if bytes == 0 {
            return Ok(());
        }
        let source = part(frame, inside, bytes as usize).ok_or(Miss::Scattered)?;
        if let Some(last) = self.runs.last_mut()
            && last.source.key == source.key
            && last.source.address.checked_add(last.source.len.into()) == Some(source.address)
        {
            last.source.len += bytes;
            return Ok(());
        }
        if self.runs.len() == OPTIMISTIC_RUNS_MAX {
            return Err(Miss::Scattered);
        }
        self.runs.push(Run { source, at });
        Ok(())
    }

    /// The bytes of all entries.
    pub(super) fn entries_bytes(&self) -> usize {
        self.checks.iter().map(|check| check.words.len() * ENTRY_BYTES).sum()
    }
}

/// A question about windows of an open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) name: StateId,
    /// The exposure that the client knows, or 0, and the number of its segments.
    pub(super) exposure: u64,
    pub(super) known: u32,
    /// The window that a read needs, and all that the question names.
    pub(super) needed: u64,
    pub(super) windows: RangeInclusive<u64>,
}

/// A page of a window to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageFetch {
    name: StateId,
    exposure: u64,
    window: u64,
    pub(super) source: RemoteBuffer,
    /// It is of an exposure of small files.
    pub(super) is_small: bool,
}

/// The blocks of all open files, by the state-ids of the opens as the application knows them.
#[derive(Debug, Default)]
pub(super) struct Directory {
    files: FxHashMap<StateId, FileBlocks>,
    /// The windows whose entries are kept, in the order in which they came, or were spared.
    kept: VecDeque<(StateId, u64)>,
}

impl Directory {
    /// The reads by RDMA that a read takes.
    pub(super) fn plan(
        &mut self,
        name: StateId,
        (offset, len): (u64, u32),
        now: Instant,
    ) -> Result<Plan, Miss> {
        let window = offset / BLOCK_BYTES / WINDOW_BLOCKS;
        let file = self.files.get_mut(&name).ok_or(Miss::Place(window))?;
        file.plan(offset, len, now)
    }

    /// The number of segments of a file that the client has taken.
    pub(super) fn segment_count(&self, name: StateId) -> u32 {
        self.files.get(&name).map_or(0, |file| file.count)
    }

    /// Notes that a read was a request. Returns true if the client may ask for the blocks of the file.
    pub(super) fn missed(&mut self, name: StateId) -> bool {
        if !self.files.contains_key(&name) && self.files.len() >= OPTIMISTIC_FILES_MAX {
            return false;
        }
        let file = self.files.entry(name).or_default();
        file.misses = file.misses.saturating_add(1);
        file.misses > OPTIMISTIC_MISSES_BEFORE
    }

    /// The question that is due when a read needs a window of a file.
    pub(super) fn question(
        &mut self,
        name: StateId,
        needed: u64,
        now: Instant,
    ) -> Option<Question> {
        let file = self.files.get_mut(&name)?;
        if file.is_asking || !file.questions.is_due(now) {
            return None;
        }
        file.is_asking = true;
        let windows = file.width.windows(&(needed..=needed), |window| file.knows(window));
        let (exposure, known) = (file.exposure, file.count);
        Some(Question { name, exposure, known, needed, windows })
    }

    /// Takes the answer to a question; `None` if there is none. Returns true if it has something new.
    pub(super) fn answered(
        &mut self,
        question: &Question,
        answer: Option<ExposeAnswer>,
        now: Instant,
    ) -> bool {
        let Some(file) = self.files.get_mut(&question.name) else { return false };
        file.is_asking = false;
        let was_known = file.knows(question.needed);
        let take = |answer| file.take(answer, question.exposure, &question.windows);
        let is_new = answer.is_some_and(take);
        let is_known = file.knows(question.needed);
        file.width.answered(was_known, is_known);
        let pauses = (OPTIMISTIC_ASK_PAUSE_MIN, OPTIMISTIC_ASK_PAUSE_MAX);
        file.questions.went(now, is_new, pauses);
        is_new
    }

    /// The page to fetch for a window, if that is due.
    pub(super) fn fetch(&mut self, name: StateId, window: u64, now: Instant) -> Option<PageFetch> {
        let file = self.files.get_mut(&name)?;
        let page = file.pages.get_mut(&window)?;
        if page.is_fetching || !page.fetches.is_due(now) {
            return None;
        }
        page.is_fetching = true;
        let (exposure, source) = (file.exposure, page.place);
        Some(PageFetch { name, exposure, window, source, is_small: false })
    }

    /// Takes the content of a page.
    pub(super) fn fetched(&mut self, fetch: &PageFetch, bytes: &[u8; PAGE_BYTES], now: Instant) {
        let file = self.files.get_mut(&fetch.name);
        let file = file.filter(|file| file.exposure == fetch.exposure);
        let page = file.and_then(|file| file.pages.get_mut(&fetch.window));
        let Some(page) = page.filter(|page| page.place == fetch.source) else { return };
        page.is_fetching = false;
        let mut words = Box::new([0; WINDOW_BLOCKS as usize]);
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<ENTRY_BYTES>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let is_new = page.words.as_ref().is_none_or(|(known, _)| *known != words);
        let pauses = (OPTIMISTIC_FETCH_PAUSE_MIN, OPTIMISTIC_FETCH_PAUSE_MAX);
        page.fetches.went(now, is_new, pauses);
        let was_kept = page.words.replace((words, now)).is_some();
        if !was_kept {
            self.kept.push_back((fetch.name, fetch.window));
            self.make_room();
        }
    }

    /// Forgets the entries of windows that were not used lately.
    fn make_room(&mut self) {
        while self.kept.len() > OPTIMISTIC_WINDOWS_MAX {
            let Some(oldest) = self.kept.pop_front() else { return };
            let file = self.files.get_mut(&oldest.0);
            let Some(page) = file.and_then(|file| file.pages.get_mut(&oldest.1)) else { continue };
            if page.words.is_none() {
                continue;
            }
            if std::mem::take(&mut page.was_used) {
                self.kept.push_back(oldest);
            } else {
                page.words = None;
            }
        }
    }

    /// Compares entries, as they were found behind the data, with those of the plan. Takes over what
    /// has changed. Returns true if nothing has.
    pub(super) fn verify(&mut self, name: StateId, plan: &Plan, found: &[u8]) -> bool {
        let mut found =
            found.as_chunks::<ENTRY_BYTES>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
        let file = self.files.get_mut(&name).filter(|file| file.exposure == plan.exposure);
        let mut pages = file.map(|file| &mut file.pages);
        let mut is_same = true;
        for check in &plan.checks {
            let page = pages.as_mut().and_then(|pages| pages.get_mut(&check.window));
            let page = page.filter(|page| page.has(check));
            let mut words = page.and_then(|page| page.words.as_mut()).map(|(words, _)| words);
            for (at, word) in check.words.iter().enumerate() {
                let now = found.next();
                if now == Some(*word) {
                    continue;
                }
                is_same = false;
                let known = words.as_mut().and_then(|words| words.get_mut(check.first + at));
                if let (Some(known), Some(now)) = (known, now) {
                    *known = now;
                }
            }
        }
        is_same
    }

    /// Forgets an open.
    pub(super) fn closed(&mut self, name: StateId) {
        self.files.remove(&name);
    }

    /// Forgets all places: their keys are no good on another channel.
    pub(super) fn forget_places(&mut self) {
        self.kept.clear();
        self.files.values_mut().for_each(|file| {
            file.forget();
            file.is_asking = false;
            file.questions = Pace::default();
        });
    }
}

#[cfg(test)]
mod tests;
