//! The places of a file's blocks in memory of the server, and the read from there.
//!
//! Invariants
//! * A read is a hit only if no entry of its blocks has changed from before their bytes were copied
//!   until after, and the server lived then. So the bytes are the content of the file at one moment.
//! * Nothing that the server wrote is trusted: each place is checked against the length of its segment.

use dafs_dat::shm::is_alive;
use dafs_dat::{Instant, RemoteWindow};
use dafs_mem::{CheckedSlice, Site, VolatileSlice};
use dafs_wire::dafs::{EntryBlock, EntryWord, ExposedKind};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Bytes of a block and of a frame.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Blocks of a window.
pub(super) const WINDOW_BLOCKS: u64 = 512;

/// Bytes of a window page.
const PAGE_BYTES: usize = 4096;

/// The place of the time of the server's last look for local changes, in its life page.
const LOOKED_AT: usize = 8;

/// The age of that look beyond which nothing is read: the server is held up, and a local program may
/// have changed the file.
const LOOK_AGE_MAX: Duration = Duration::from_secs(1);

/// The outcome of a read from the server's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
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

/// One exposure of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Its number, not 0.
    pub(super) exposure: u64,
    /// The number of the connection on which the server shows it. With another one, or none, the
    /// open may have ended.
    pub(super) connection: u64,
    /// The number of segments that the client has taken.
    pub(super) count: u32,
    life: Option<RemoteWindow>,
    frames: FxHashMap<u16, RemoteWindow>,
    indexes: FxHashMap<u16, RemoteWindow>,
    pages: FxHashMap<u64, Page>,
}

impl Known {
    pub(super) fn new(exposure: u64, connection: u64) -> Self {
        Self { exposure, connection, ..Self::default() }
    }

    /// Takes a segment. Returns false for a number that no entry can name.
    pub(super) fn add(&mut self, number: u32, kind: ExposedKind, segment: RemoteWindow) -> bool {
        let Ok(number) = u16::try_from(number) else { return false };
        match kind {
            ExposedKind::Life => self.life = Some(segment),
            ExposedKind::Frames => drop(self.frames.insert(number, segment)),
            ExposedKind::Index => drop(self.indexes.insert(number, segment)),
        }
        self.count += 1;
        true
    }

    /// Takes the page of a window. Returns true if it is a new one in a known segment.
    pub(super) fn add_page(&mut self, window: u64, segment: u32, page: u32) -> bool {
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
    pub(super) fn is_alive(&self, now: Instant) -> bool {
        let Some(life) = &self.life else { return false };
        let life = life.view();
        let (Some(word), Some(looked)) = (life.word32(0), life.word64(LOOKED_AT)) else {
            return false;
        };
        let looked = Instant(u64::from_le(load(looked)));
        is_alive(word.load(Ordering::Relaxed)) && now.since(looked) <= LOOK_AGE_MAX
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
    pub(super) fn read(&self, target: CheckedSlice<'_>, offset: u64, now: Instant) -> Outcome {
        let mut entries = SmallVec::<[(&AtomicU64, u64); 17]>::new();
        let mut done = 0;
        while done < target.len() {
            let Some(at) = offset.checked_add(done as u64) else { return Outcome::Unknown };
            let (block, inside) = (at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize);
            let Some(word) = self.word(block) else { return Outcome::Unknown };
            let entry = load(word);
            let Some(place) = EntryWord(u64::from_le(entry)).block() else {
                return Outcome::Absent;
            };
            let Some(frame) = self.frame(place) else { return Outcome::Unknown };
            let len = place.bytes.saturating_sub(inside).min(target.len() - done);
            let (Some(part), Some(source)) = (target.slice(done, len), frame.slice(inside, len))
            else {
                return Outcome::Unknown;
            };
            // The ordinary read reports memory that is missing.
            if part.copy_from(source, Site::ShmRdma).is_err() {
                return Outcome::Absent;
            }
            entries.push((word, entry));
            done += len;
            if place.bytes < BLOCK_BYTES as usize {
                break;
            }
        }
        // All bytes are copied before any entry is loaded again.
        fence(Ordering::Acquire);
        if entries.iter().any(|(word, entry)| load(word) != *entry) {
            return Outcome::Stale;
        }
        // The server lived after all that, so no other one has changed the file.
        if self.is_alive(now) { Outcome::Hit(done) } else { Outcome::Dead }
    }
}

#[cfg(test)]
mod tests;
