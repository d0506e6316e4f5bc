//! The places of a file's blocks in memory of the server, and the read from there.
//!
//! The server says where the window pages of a file lie ([`ExposeAnswer`]). Their entries name frames.
//! No part of this asks the server, so a reader needs neither the session nor its lock.
//!
//! Invariants
//! * A read is a hit only if no entry of its blocks has changed from before their bytes were copied
//!   until after, and the server lived then. So the bytes are the content of the file at one moment.
//! * Nothing that the server wrote is trusted: each place is checked against the length of its segment.
//! * A read of a small file, whose blocks lie beside those of others, stays inside its part.

mod width;

pub(crate) use width::AskWidth;

use dafs_dat::shm::is_alive;
use dafs_dat::{Instant, RemoteBuffer, RemoteWindow};
use dafs_mem::{CheckedSlice, Site, VolatileSlice};
use dafs_wire::dafs::{
    EntryBlock, EntryWord, ExposedKind, ExposedSegment, ExposedWindow, XExposeGetReply,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Bytes of a block and of a frame.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Blocks of a window.
pub(crate) const WINDOW_BLOCKS: u64 = 512;

/// Blocks of a small file in an exposure of many files.
const SMALL_FILE_BLOCKS: u64 = 16;

/// The most bytes of a small file.
pub(crate) const SMALL_FILE_BYTES: u64 = SMALL_FILE_BLOCKS * BLOCK_BYTES;

/// Bytes of a window page.
const PAGE_BYTES: usize = 4096;

/// The place of the time of the server's last look for local changes, in its life page.
const LOOKED_AT: usize = 8;

/// The age of that look beyond which nothing is read: the server is held up, and a local program may
/// have changed the file.
const LOOK_AGE_MAX: Duration = Duration::from_secs(1);

/// The outcome of a read from the server's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockRead {
    /// So many bytes were read. Fewer than asked: the file ends there.
    Hit(usize),
    /// No frame has the block.
    Absent,
    /// The block changed during the read.
    Stale,
    /// The client does not know where the block is.
    Unknown,
    /// The server has died, or is held up.
    Dead,
}

impl BlockRead {
    /// True if the server may have other places of the blocks. After [`Stale`](Self::Stale) the next
    /// read finds another entry.
    pub(crate) fn asks(self) -> bool {
        matches!(self, Self::Absent | Self::Unknown | Self::Dead)
    }
}

/// Loads a word of memory that is mapped for reading alone. There an atomic load must be a relaxed
/// one. Nothing that the caller loads afterwards is older.
fn load(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// The page of a window.
#[derive(Debug, Clone)]
struct Page {
    segment: RemoteWindow,
    at: usize,
}

/// An answer to X_EXPOSE_GET.
#[derive(Debug, Clone, Default)]
pub struct ExposeAnswer {
    pub(crate) exposure: u64,
    pub(crate) windows: Vec<ExposedWindow>,
    pub(crate) segments: Vec<ExposedSegment>,
    /// The first block of a small file in an exposure of many files, or 0.
    pub(crate) base: u64,
}

impl ExposeAnswer {
    /// Takes the answer out of its message.
    pub fn of(reply: &XExposeGetReply<'_>) -> Self {
        let (windows, segments) = (reply.windows.iter().collect(), reply.segments.iter().collect());
        Self { exposure: reply.exposure, windows, segments, base: reply.base }
    }
}

/// A question that the server has answered.
#[derive(Debug, Clone)]
pub struct ExposeQuestion {
    /// The exposure that the client knew, or 0.
    pub exposure: u64,
    /// The number of segments of it that the client had taken.
    pub known: u32,
    /// The number of the connection on which the answer came, not 0.
    pub connection: u64,
    /// The windows that the client asked for.
    pub windows: RangeInclusive<u64>,
}

/// The directory of blocks of one exposure, of a file or of many small ones.
#[derive(Debug, Clone, Default)]
pub struct BlockDirectory {
    exposure: u64,
    connection: u64,
    /// The number of segments that the client has taken. One that two answers name counts once.
    count: u32,
    life: Option<RemoteWindow>,
    frames: FxHashMap<u16, RemoteWindow>,
    indexes: FxHashMap<u16, RemoteWindow>,
    pages: FxHashMap<u64, Page>,
}

impl BlockDirectory {
    fn new(exposure: u64, connection: u64) -> Self {
        Self { exposure, connection, ..Self::default() }
    }

    /// Takes an answer of the server. `former` is the directory of the file until now. `map` maps
    /// memory that the server shows on this connection. Returns the new directory, which is `None`
    /// without an exposure, and true if the answer has something new.
    pub fn after(
        former: Option<Self>,
        answer: ExposeAnswer,
        asked: &ExposeQuestion,
        mut map: impl FnMut(RemoteBuffer) -> Option<RemoteWindow>,
    ) -> (Option<Self>, bool) {
        let exposure = answer.exposure;
        if exposure == 0 {
            return (None, false);
        }
        let present = (exposure, asked.connection);
        let former = former.filter(|known| (known.exposure, known.connection) == present);
        let mut known = match (former, asked.exposure == exposure) {
            (Some(known), true) => known,
            // The answer has only what the client did not know on a connection that is gone.
            (None, true) => return (None, false),
            (_, false) => Self::new(exposure, asked.connection),
        };
        // The first segment of an answer follows those that the client knew. Answers to questions that were
        // under way together name the same ones.
        let before = if asked.exposure == exposure { asked.known } else { 0 };
        let mut count = before;
        for ExposedSegment { address, number, key, bytes, kind } in answer.segments {
            // The rest follows when the client asks again.
            let Some(segment) = map(RemoteBuffer { key, address, len: bytes }) else { break };
            if !known.add(number, kind, segment) {
                break;
            }
            count = count.saturating_add(1);
        }
        let mut is_new = count > before;
        // Another answer may have begun the directory anew meanwhile, without those before.
        if known.count >= before {
            known.count = known.count.max(count);
        }
        for ExposedWindow { window, segment, page } in answer.windows {
            is_new |= asked.windows.contains(&window) && known.add_page(window, segment, page);
        }
        (Some(known), is_new)
    }

    /// The number of the exposure, not 0.
    pub fn exposure(&self) -> u64 {
        self.exposure
    }

    /// The number of segments that the client has taken.
    pub fn segment_count(&self) -> u32 {
        self.count
    }

    /// True if the server shows the memory on this connection. With another one, or none, the open may
    /// have ended.
    pub fn is_of(&self, connection: u64) -> bool {
        self.connection == connection
    }

    /// True if the client knows the page of a window.
    pub(crate) fn has_page(&self, window: u64) -> bool {
        self.pages.contains_key(&window)
    }

    /// Takes a segment. Returns false for a number that no entry can name.
    fn add(&mut self, number: u32, kind: ExposedKind, segment: RemoteWindow) -> bool {
        let Ok(number) = u16::try_from(number) else { return false };
        match kind {
            ExposedKind::Life => self.life = Some(segment),
            ExposedKind::Frames => drop(self.frames.insert(number, segment)),
            ExposedKind::Index => drop(self.indexes.insert(number, segment)),
        }
        true
    }

    /// Takes the page of a window. Returns true if it is a new one in a known segment.
    fn add_page(&mut self, window: u64, segment: u32, page: u32) -> bool {
        let segment = u16::try_from(segment).ok().and_then(|number| self.indexes.get(&number));
        let at = (page as usize).checked_mul(PAGE_BYTES);
        let (Some(segment), Some(at)) = (segment, at) else { return false };
        if segment.view().slice(at, PAGE_BYTES).is_none() {
            return false;
        }
        let segment = segment.clone();
        self.pages.insert(window, Page { segment, at }).is_none()
    }

    /// True while the server lives and looks for local changes.
    pub fn is_alive(&self, now: Instant) -> bool {
        let Some(life) = &self.life else { return false };
        let life = life.view();
        let (Some(word), Some(looked)) = (life.word32(0), life.word64(LOOKED_AT)) else {
            return false;
        };
        let looked = Instant(u64::from_le(load(looked)));
        is_alive(word.load(Ordering::Relaxed)) && now.since(looked) <= LOOK_AGE_MAX
    }

    /// True if a frame has had this block since the exposure began. The exposure lasts then: the pages of
    /// one that has ended are zeros.
    pub fn was_shown(&self, block: u64) -> bool {
        self.word(block).is_some_and(|word| load(word) != 0)
    }

    fn word(&self, block: u64) -> Option<&AtomicU64> {
        let page = self.pages.get(&(block / WINDOW_BLOCKS))?;
        let at = (block % WINDOW_BLOCKS) as usize * size_of::<u64>();
        page.segment.view().word64(page.at + at)
    }

    fn frame(&self, block: EntryBlock) -> Option<VolatileSlice<'_>> {
        let segment = self.frames.get(&block.segment)?;
        let at = usize::from(block.frame) * BLOCK_BYTES as usize;
        segment.view().slice(at, BLOCK_BYTES as usize)
    }

    /// Reads from `offset` on. Unless it is a hit, any part of the target may have changed.
    pub fn read(&self, target: CheckedSlice<'_>, offset: u64, now: Instant) -> BlockRead {
        self.read_in_steps(target, offset, now, || usize::MAX)
    }

    /// Reads from `offset` of a small file on, whose first block is the block `base` of the exposure. A
    /// read that leads behind its part is no hit.
    pub fn read_small(
        &self,
        target: CheckedSlice<'_>,
        (base, offset): (u64, u64),
        now: Instant,
    ) -> BlockRead {
        self.read_small_in_steps(target, (base, offset), now, || usize::MAX)
    }

    /// The same read, in steps as in [`read_in_steps`](Self::read_in_steps).
    pub fn read_small_in_steps(
        &self,
        target: CheckedSlice<'_>,
        (base, offset): (u64, u64),
        now: Instant,
        step: impl FnMut() -> usize,
    ) -> BlockRead {
        let end = base.checked_add(SMALL_FILE_BLOCKS).and_then(|end| end.checked_mul(BLOCK_BYTES));
        let Some(end) = end else { return BlockRead::Unknown };
        match (end - SMALL_FILE_BYTES).checked_add(offset) {
            Some(offset) => self.read_until(end, (target, offset), now, step),
            None => BlockRead::Unknown,
        }
    }

    /// The same read as [`read`](Self::read), in steps between which a simulation lets the server run. The
    /// read calls `step` before it loads an entry and before each copy, which has at most so many bytes, or
    /// one.
    pub fn read_in_steps(
        &self,
        target: CheckedSlice<'_>,
        offset: u64,
        now: Instant,
        step: impl FnMut() -> usize,
    ) -> BlockRead {
        self.read_until(u64::MAX, (target, offset), now, step)
    }

    /// Reads no byte of the exposure from `end` on.
    fn read_until(
        &self,
        end: u64,
        (target, offset): (CheckedSlice<'_>, u64),
        now: Instant,
        mut step: impl FnMut() -> usize,
    ) -> BlockRead {
        let mut entries = SmallVec::<[(&AtomicU64, u64); 17]>::new();
        let mut done = 0;
        while done < target.len() {
            let at = offset.checked_add(done as u64).filter(|at| *at < end);
            let Some(at) = at else { return BlockRead::Unknown };
            let (block, inside) = (at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize);
            let Some(word) = self.word(block) else { return BlockRead::Unknown };
            step();
            let entry = load(word);
            let Some(place) = EntryWord(u64::from_le(entry)).block() else {
                return BlockRead::Absent;
            };
            let Some(frame) = self.frame(place) else { return BlockRead::Unknown };
            let len = place.bytes.saturating_sub(inside).min(target.len() - done);
            let mut copied = 0;
            while copied < len {
                let most = step().clamp(1, len - copied);
                let part = target.slice(done + copied, most);
                let (Some(part), Some(source)) = (part, frame.slice(inside + copied, most)) else {
                    return BlockRead::Unknown;
                };
                // The ordinary read reports memory that is missing.
                if part.copy_from(source, Site::ShmRdma).is_err() {
                    return BlockRead::Absent;
                }
                copied += most;
            }
            entries.push((word, entry));
            done += len;
            if place.bytes < BLOCK_BYTES as usize {
                break;
            }
        }
        step();
        // All bytes are copied before any entry is loaded again.
        fence(Ordering::Acquire);
        if entries.iter().any(|(word, entry)| load(word) != *entry) {
            return BlockRead::Stale;
        }
        // The server lived after all that, so no other one has changed the file.
        if self.is_alive(now) { BlockRead::Hit(done) } else { BlockRead::Dead }
    }
}

#[cfg(test)]
mod tests;
