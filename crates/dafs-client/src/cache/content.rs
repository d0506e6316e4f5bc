//! Cached content of files, as a state machine: which bytes are valid and where, which are dirty,
//! the requests to send, and eviction. It moves no byte itself.
//!
//! Invariants
//! * Memory holds at most the blocks of the pool. A block in use by a request, or with dirty data,
//!   is not evicted; of the others the least recently used one is.
//! * Bytes do not change while a request reads or writes them.
//! * Dirty bytes are counted until the server has them, or until their loss has been reported.
//! * The answer to a request for bytes that were invalidated meanwhile is discarded.

use super::block::Block;
use super::pool::{Place, Pool};
use crate::limits::{
    CACHE_BLOCK_BYTES, CACHE_PAGE_BYTES, CACHE_RANGES_MAX, CACHE_SLAB_BLOCKS, CACHE_SLAB_BYTES,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Write-back requests made at a time; one more block's may be added.
const WRITES_AT_ONCE: usize = 16;

const BLOCK: u64 = CACHE_BLOCK_BYTES as u64;

/// A cached file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileId(u64);

/// A request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TransferId(u64);

/// Part of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) slab: u32,
    /// Its offset in the slab, in bytes.
    pub(super) start: u32,
    /// In bytes.
    pub(super) len: u32,
}

pub(super) type Segments = SmallVec<[Segment; 2]>;

/// A request to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) id: TransferId,
    /// Its offset in the file.
    pub(super) offset: u64,
    pub(super) memory: Segment,
}

impl Transfer {
    /// Its end in the file.
    pub(super) fn end(&self) -> u64 {
        self.offset + u64::from(self.memory.len)
    }
}

pub(super) type Transfers = SmallVec<[Transfer; 4]>;

/// The next step of a reader or writer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Copy the bytes from or to these segments.
    Copy(Segments),
    /// Some bytes are not valid and have not been requested.
    Unknown,
    /// Wait until a request is over.
    Wait(TransferId),
    /// There is no room: another slab, or the end of requests and of dirty data, would make some.
    Full,
}

/// The end of a write-back request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// The server took so many bytes; the rest has to be sent again.
    Written(u32),
    /// It took none, and never will: the data is given up.
    Failed,
    /// As `Failed`, but the server may still read the memory.
    Lost,
}

/// The end of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    /// The number of bytes read, and true at the end of the file.
    Read(u32, bool),
    /// No bytes came, and none will.
    Refused,
    /// No bytes came, but the server may still write some.
    Lost,
}

#[derive(Debug)]
struct InFlight {
    file: FileId,
    offset: u64,
    memory: Segment,
    is_write: bool,
    /// The bytes that it brings have been invalidated.
    is_stale: bool,
}

#[derive(Debug, Default)]
struct FileContent {
    size: u64,
    blocks: BTreeMap<u64, Block>,
    /// Dirty bytes, with those being written.
    unwritten: u64,
    /// Bytes being written.
    flushing: u64,
    in_flight: usize,
}

/// The cached content of all files.
#[derive(Debug)]
pub(super) struct Content {
    pool: Pool,
    files: FxHashMap<FileId, FileContent>,
    in_flight: FxHashMap<TransferId, InFlight>,
    /// The blocks that can be evicted, in the order of their last use.
    order: BTreeMap<u64, (FileId, u64)>,
    numbers: u64,
    unwritten: u64,
    filling: u64,
}

impl Content {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            pool: Pool::new(bytes / CACHE_SLAB_BYTES),
            files: FxHashMap::default(),
            in_flight: FxHashMap::default(),
            order: BTreeMap::new(),
            numbers: 0,
            unwritten: 0,
            filling: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Dirty bytes.
    pub(super) fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// Bytes that have been requested and have not come.
    pub(super) fn filling(&self) -> u64 {
        self.filling
    }

    pub(super) fn add_file(&mut self) -> FileId {
        let id = FileId(self.number());
        self.files.insert(id, FileContent::default());
        id
    }

    /// Removes a file without requests in flight and without dirty data.
    pub(super) fn remove_file(&mut self, file: FileId) {
        self.forget(file, 0..u64::MAX);
        if let Some(content) = self.files.remove(&file) {
            assert!(content.blocks.is_empty(), "nothing is in flight and nothing unwritten");
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(super) fn size(&self, file: FileId) -> u64 {
        self.files.get(&file).map_or(0, |file| file.size)
    }

    /// Sets the size; bytes beyond it have been invalidated.
    pub(super) fn set_size(&mut self, file: FileId, size: u64) {
        if let Some(file) = self.files.get_mut(&file) {
            file.size = size;
        }
    }

    pub(super) fn unwritten_of(&self, file: FileId) -> u64 {
        self.files.get(&file).map_or(0, |file| file.unwritten)
    }

    /// Dirty bytes that no request is writing.
    pub(super) fn unsent_of(&self, file: FileId) -> u64 {
        self.files.get(&file).map_or(0, |file| file.unwritten - file.flushing)
    }

    /// The newest request of all.
    pub(super) fn newest(&self) -> TransferId {
        TransferId(self.numbers)
    }

    /// The oldest request in flight for a file; with `writes` the oldest write.
    pub(super) fn first_in_flight(&self, file: FileId, writes: bool) -> Option<TransferId> {
        if self.files.get(&file)?.in_flight == 0 {
            return None;
        }
        let theirs = |(_, flight): &(&TransferId, &InFlight)| {
            flight.file == file && (flight.is_write || !writes)
        };
        self.in_flight.iter().filter(theirs).map(|(id, _)| *id).min()
    }

    /// The files with dirty data.
    pub(super) fn unwritten_files(&self) -> Vec<FileId> {
        let changed = self.files.iter().filter(|(_, file)| file.unwritten > 0);
        changed.map(|(id, _)| *id).collect()
    }

    /// The place of the bytes of `range`, which lies inside the file.
    pub(super) fn read(&mut self, file: FileId, range: Range<u64>) -> Step {
        let Some(content) = self.files.get(&file) else { return Step::Unknown };
        debug_assert!(range.end <= content.size);
        let mut segments = Segments::new();
        for (number, part) in parts(range.clone()) {
            let Some(block) = content.blocks.get(&number) else { return Step::Unknown };
            if !block.known.contains(&part) {
                let open = block.unknown(part.clone());
                return match Block::mover(&block.filling, &part).filter(|_| open.is_empty()) {
                    Some(id) => Step::Wait(id),
                    None => Step::Unknown,
                };
            }
            push(&mut segments, segment(block.place, &part));
        }
        for (number, _) in parts(range) {
            self.touch(file, number);
        }
        Step::Copy(segments)
    }

    /// Makes room for `range` and marks it as dirty: the caller copies the bytes there at once.
    pub(super) fn write(&mut self, file: FileId, range: Range<u64>) -> Step {
        let Some(content) = self.files.get(&file) else { return Step::Full };
        for (number, part) in parts(range.clone()) {
            let Some(block) = content.blocks.get(&number) else { continue };
            let moving = [&block.filling, &block.flushing];
            if let Some(id) = moving.iter().find_map(|moving| Block::mover(moving, &part)) {
                return Step::Wait(id);
            }
            if block.is_unsafe || block.dirty.count() >= CACHE_RANGES_MAX {
                return Step::Full;
            }
        }
        let blocks = blocks(&range);
        for number in blocks.clone() {
            if !self.ensure(file, number, &blocks) {
                self.drop_empty(file, blocks);
                return Step::Full;
            }
        }
        let mut segments = Segments::new();
        let Some(content) = self.files.get_mut(&file) else { return Step::Full };
        content.size = content.size.max(range.end);
        for (number, part) in parts(range) {
            let Some(block) = content.blocks.get_mut(&number) else { return Step::Full };
            push(&mut segments, segment(block.place, &part));
            let before = block.dirty.bytes();
            block.dirty.insert(part.clone());
            block.known.insert(part);
            simplify(block);
            let more = block.dirty.bytes() - before;
            content.unwritten += more;
            self.unwritten += more;
            block.check();
            // It has dirty data now, and cannot be evicted.
            self.order.remove(&std::mem::take(&mut block.stamp));
        }
        Step::Copy(segments)
    }

    /// Requests the bytes of `range` that are not valid, rounded to pages and cut at the end of the
    /// file, as far as there is room.
    pub(super) fn fetch(&mut self, file: FileId, range: Range<u64>) -> Transfers {
        let size = self.size(file);
        let page = |at: u64| at / CACHE_PAGE_BYTES * CACHE_PAGE_BYTES;
        let end = page(range.end.saturating_add(CACHE_PAGE_BYTES - 1)).min(size);
        let range = page(range.start)..end;
        let mut transfers = Transfers::new();
        if range.is_empty() {
            return transfers;
        }
        let numbers = blocks(&range);
        for (number, part) in parts(range) {
            let block = self.files.get(&file).and_then(|content| content.blocks.get(&number));
            if block.is_some_and(|block| block.is_unsafe || block.unknown(part.clone()).is_empty())
            {
                continue;
            }
            if !self.ensure(file, number, &numbers) {
                break;
            }
            let Some(content) = self.files.get_mut(&file) else { break };
            let Some(block) = content.blocks.get_mut(&number) else { break };
            for gap in block.unknown(part) {
                let (offset, memory) =
                    (number * BLOCK + u64::from(gap.start), segment(block.place, &gap));
                self.filling += u64::from(memory.len);
                let id = join(&mut transfers, &mut self.numbers, offset, memory);
                block.filling.push((gap, id));
            }
            block.check();
            self.order.remove(&std::mem::take(&mut block.stamp));
        }
        self.enter(file, &transfers, false);
        transfers
    }

    /// The requests that write the dirty data of `range` back, at most `bytes_max` of it.
    pub(super) fn flush(&mut self, file: FileId, range: Range<u64>, bytes_max: u64) -> Transfers {
        let mut transfers = Transfers::new();
        let numbers = self.numbers_of(file, &range);
        let mut left = bytes_max;
        for number in numbers {
            if left == 0 || transfers.len() >= WRITES_AT_ONCE {
                break;
            }
            let Some(content) = self.files.get_mut(&file) else { break };
            let Some(block) = content.blocks.get_mut(&number) else { continue };
            let dirty: SmallVec<[_; 4]> = block.dirty.overlap(part_of(number, &range)).collect();
            for part in dirty {
                let (offset, memory) =
                    (number * BLOCK + u64::from(part.start), segment(block.place, &part));
                left = left.saturating_sub(u64::from(memory.len));
                content.flushing += u64::from(memory.len);
                let id = join(&mut transfers, &mut self.numbers, offset, memory);
                block.dirty.remove(part.clone());
                block.flushing.push((part, id));
            }
            block.check();
        }
        self.enter(file, &transfers, true);
        transfers
    }

    /// A request in flight that writes a part of `range`.
    #[cfg(test)]
    pub(super) fn flushing(&self, file: FileId, range: &Range<u64>) -> Option<TransferId> {
        let content = self.files.get(&file)?;
        self.numbers_of(file, range).iter().find_map(|number| {
            let block = content.blocks.get(number)?;
            Block::mover(&block.flushing, &part_of(*number, range))
        })
    }

    /// Ends a read; yields memory that must be filled with zeros at once.
    pub(super) fn filled(&mut self, id: TransferId, how: Filled) -> Segments {
        let mut zeros = Segments::new();
        let Some(flight) = self.leave(id) else { return zeros };
        self.filling -= u64::from(flight.memory.len);
        let Some(content) = self.files.get_mut(&flight.file) else { return zeros };
        let whole = flight.offset..flight.offset + u64::from(flight.memory.len);
        let (known, zeroed) = match how {
            _ if flight.is_stale => (0, false),
            Filled::Read(bytes, at_end) => (bytes.min(flight.memory.len), at_end),
            Filled::Refused | Filled::Lost => (0, false),
        };
        let read = flight.offset + u64::from(known);
        for (number, part) in parts(whole.clone()) {
            let Some(block) = content.blocks.get_mut(&number) else { continue };
            block.filling.retain(|moving| moving.1 != id);
            let start = number * BLOCK;
            let from_server = part_of(number, &(whole.start..read));
            if from_server.start < from_server.end {
                block
                    .known
                    .insert(from_server.start.max(part.start)..from_server.end.min(part.end));
            }
            // Up to the size, bytes that the server does not have yet are zeros.
            let behind = part_of(number, &(read.max(start + u64::from(part.start))..whole.end));
            if zeroed && behind.start < behind.end {
                block.known.insert(behind.clone());
                push(&mut zeros, segment(block.place, &behind));
            }
            block.is_unsafe |= how == Filled::Lost;
            simplify(block);
            block.check();
        }
        blocks(&whole).for_each(|number| self.settle(flight.file, number));
        zeros
    }

    /// Ends a write; yields the bytes that were given up.
    pub(super) fn flushed(&mut self, id: TransferId, how: Flushed) -> u64 {
        let Some(flight) = self.leave(id) else { return 0 };
        let Some(content) = self.files.get_mut(&flight.file) else { return 0 };
        let whole = flight.offset..flight.offset + u64::from(flight.memory.len);
        let done = match how {
            Flushed::Written(bytes) => whole.start + u64::from(bytes.min(flight.memory.len)),
            Flushed::Failed | Flushed::Lost => whole.end,
        };
        let given_up = !matches!(how, Flushed::Written(_));
        for (number, part) in parts(whole.clone()) {
            let Some(block) = content.blocks.get_mut(&number) else { continue };
            block.flushing.retain(|moving| moving.1 != id);
            let rest = part_of(number, &(done..whole.end));
            if rest.start < rest.end {
                block.dirty.insert(rest.start.max(part.start)..rest.end.min(part.end));
            }
            if given_up {
                block.known.remove(part);
            }
            block.is_unsafe |= how == Flushed::Lost;
            block.check();
        }
        content.unwritten -= done - whole.start;
        content.flushing -= whole.end - whole.start;
        self.unwritten -= done - whole.start;
        blocks(&whole).for_each(|number| self.settle(flight.file, number));
        if given_up { done - whole.start } else { 0 }
    }

    /// Invalidates `range`, except bytes that the server has not got, and marks reads in flight as
    /// stale.
    pub(super) fn forget(&mut self, file: FileId, range: Range<u64>) {
        for number in self.numbers_of(file, &range) {
            let Some(content) = self.files.get_mut(&file) else { return };
            let Some(block) = content.blocks.get_mut(&number) else { continue };
            let part = part_of(number, &range);
            block.forget(part.clone());
            for (moving, id) in &block.filling {
                if moving.start < part.end
                    && part.start < moving.end
                    && let Some(flight) = self.in_flight.get_mut(id)
                {
                    flight.is_stale = true;
                }
            }
            block.check();
            self.settle(file, number);
        }
    }

    /// Gives up dirty data of a file that is not being written; yields how much that was, in bytes.
    pub(super) fn give_up(&mut self, file: FileId) -> u64 {
        let mut given_up = 0;
        for number in self.numbers_of(file, &(0..u64::MAX)) {
            let Some(content) = self.files.get_mut(&file) else { break };
            let Some(block) = content.blocks.get_mut(&number) else { continue };
            let dirty = std::mem::take(&mut block.dirty);
            dirty.iter().for_each(|part| block.known.remove(part));
            content.unwritten -= dirty.bytes();
            self.unwritten -= dirty.bytes();
            given_up += dirty.bytes();
            self.settle(file, number);
        }
        given_up
    }

    /// The existing blocks of `range`.
    fn numbers_of(&self, file: FileId, range: &Range<u64>) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let content = self.files.get(&file);
        content.map_or_else(Vec::new, |c| c.blocks.range(blocks(range)).map(|(n, _)| *n).collect())
    }

    fn enter(&mut self, file: FileId, transfers: &Transfers, is_write: bool) {
        for transfer in transfers {
            let &Transfer { id, offset, memory } = transfer;
            let flight = InFlight { file, offset, memory, is_write, is_stale: false };
            self.in_flight.insert(id, flight);
        }
        if let Some(content) = self.files.get_mut(&file) {
            content.in_flight += transfers.len();
        }
    }

    fn leave(&mut self, id: TransferId) -> Option<InFlight> {
        let flight = self.in_flight.remove(&id)?;
        if let Some(content) = self.files.get_mut(&flight.file) {
            content.in_flight -= 1;
        }
        Some(flight)
    }

    /// Makes sure that a block exists, one of those that are wanted together.
    fn ensure(&mut self, file: FileId, number: u64, wanted: &Range<u64>) -> bool {
        let Some(content) = self.files.get(&file) else { return false };
        if content.blocks.contains_key(&number) {
            return true;
        }
        let before = number.checked_sub(1).and_then(|before| content.blocks.get(&before));
        let wish = before.and_then(|block| block.place.next());
        let count = (wanted.end - number).min(CACHE_SLAB_BLOCKS.into()) as usize;
        // New memory is better than a block that may be used again.
        while self.pool.free_blocks() < count && !self.pool.can_grow() {
            if !self.throw_out(file, wanted) {
                break;
            }
        }
        let Some(place) = self.pool.take(wish, count) else { return false };
        if let Some(content) = self.files.get_mut(&file) {
            content.blocks.insert(number, Block::new(place));
        }
        // Not in the order until it has valid bytes.
        true
    }

    /// Evicts the least recently used block, except those that the caller is about to use.
    fn throw_out(&mut self, file: FileId, wanted: &Range<u64>) -> bool {
        let is_wanted = |entry: &(FileId, u64)| entry.0 == file && wanted.contains(&entry.1);
        let found = self.order.iter().find(|(_, entry)| !is_wanted(entry));
        let Some((&stamp, &(file, number))) = found else { return false };
        self.order.remove(&stamp);
        self.remove_block(file, number);
        true
    }

    fn remove_block(&mut self, file: FileId, number: u64) {
        let content = self.files.get_mut(&file);
        if let Some(block) = content.and_then(|content| content.blocks.remove(&number)) {
            assert!(block.is_idle(), "nothing changed and nothing in flight is thrown out");
            self.order.remove(&block.stamp);
            if !block.is_unsafe {
                self.pool.give_back(block.place);
            }
        }
    }

    /// Removes blocks that were made and not used.
    fn drop_empty(&mut self, file: FileId, numbers: Range<u64>) {
        for number in numbers {
            self.settle(file, number);
        }
    }

    /// Updates a block that may have become evictable or useless.
    fn settle(&mut self, file: FileId, number: u64) {
        let Some(content) = self.files.get(&file) else { return };
        let Some(block) = content.blocks.get(&number) else { return };
        if !block.is_idle() {
            return;
        }
        if block.known.is_empty() || block.is_unsafe {
            self.remove_block(file, number);
        } else if block.stamp == 0 {
            self.touch(file, number);
        }
    }

    /// Marks a block as used.
    fn touch(&mut self, file: FileId, number: u64) {
        let newest = self.numbers;
        let Some(content) = self.files.get_mut(&file) else { return };
        let Some(block) = content.blocks.get_mut(&number) else { return };
        if !block.is_idle() || block.stamp == newest && newest != 0 {
            return;
        }
        self.order.remove(&block.stamp);
        self.numbers += 1;
        block.stamp = self.numbers;
        self.order.insert(block.stamp, (file, number));
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut unwritten = 0;
        let mut held = 0;
        for (id, content) in &self.files {
            let (mut of_file, mut flying) = (0, 0);
            for (number, block) in &content.blocks {
                block.check();
                held += 1;
                let flushing: u64 =
                    block.flushing.iter().map(|(part, _)| u64::from(part.end - part.start)).sum();
                of_file += block.dirty.bytes() + flushing;
                let listed = self.order.get(&block.stamp) == Some(&(*id, *number));
                assert_eq!(listed, block.is_idle(), "{block:?}");
                flying += flushing;
                assert!(block.known.count() <= 3 * CACHE_RANGES_MAX);
            }
            assert_eq!(of_file, content.unwritten);
            assert_eq!(flying, content.flushing);
            unwritten += of_file;
        }
        assert_eq!(unwritten, self.unwritten);
        assert!(self.order.len() <= held);
    }
}

/// Keeps the range lists of a block short: bytes that can be requested again are invalidated.
fn simplify(block: &mut Block) {
    if block.known.count() > CACHE_RANGES_MAX {
        block.forget(0..CACHE_BLOCK_BYTES);
    }
}

/// The numbers of the blocks of a range that is not empty.
fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

/// The part of a block that is in `range`.
fn part_of(number: u64, range: &Range<u64>) -> Range<u32> {
    let start = number * BLOCK;
    let inside = |at: u64| at.saturating_sub(start).min(BLOCK) as u32;
    inside(range.start)..inside(range.end)
}

/// The blocks of a range that is not empty, and the part of each that is in it.
fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<u32>)> {
    blocks(&range).map(move |number| (number, part_of(number, &range)))
}

fn segment(place: Place, part: &Range<u32>) -> Segment {
    Segment { slab: place.slab, start: place.start() + part.start, len: part.end - part.start }
}

/// Adds a segment, to the last one if it follows that in memory.
fn push(segments: &mut Segments, segment: Segment) {
    match segments.last_mut() {
        Some(last) if last.slab == segment.slab && last.start + last.len == segment.start => {
            last.len += segment.len;
        }
        _ => segments.push(segment),
    }
}

/// Adds a part to the last request if it follows that in the file and in memory, else as a new one;
/// yields the request's id.
fn join(transfers: &mut Transfers, numbers: &mut u64, offset: u64, memory: Segment) -> TransferId {
    if let Some(last) = transfers.last_mut()
        && last.offset + u64::from(last.memory.len) == offset
        && last.memory.slab == memory.slab
        && last.memory.start + last.memory.len == memory.start
    {
        last.memory.len += memory.len;
        return last.id;
    }
    *numbers += 1;
    let id = TransferId(*numbers);
    transfers.push(Transfer { id, offset, memory });
    id
}
