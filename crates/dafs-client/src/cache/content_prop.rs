//! The cached content against a plain model: a file as the server has it, and as its user sees it.

use super::content::{
    Content, FileId, Filled, Flushed, Segments, Step, Transfer, TransferId, Transfers,
};
use crate::limits::{CACHE_BLOCK_BYTES, CACHE_SLAB_BLOCKS, CACHE_SLAB_BYTES};
use proptest::prelude::*;
use std::ops::Range;

/// More than the memory of one slab.
const FILE_BYTES: u64 = 40 * CACHE_BLOCK_BYTES as u64;

#[derive(Debug, Clone)]
enum Action {
    Read(u64, u64),
    Ahead(u64, u64),
    Write(u64, u64, u8),
    WriteBack(u64, u64, u64),
    /// Ends one request in the given way.
    End(prop::sample::Index, How),
    /// Another use of the same client bypasses the cache, after dirty data has been written back.
    Direct(u64, u64, u8),
    Truncate(u64),
    GiveUp,
    /// A recall: the cache is emptied, and then another client changes the file.
    Recall(u64, u64, u8),
}

#[derive(Debug, Clone, Copy)]
enum How {
    Well,
    Short(u32),
    Badly,
    Lost,
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..5000u64, 2 => 1..200_000u64, 1 => Just(CACHE_BLOCK_BYTES.into())]
}

fn action() -> impl Strategy<Value = Action> {
    // Mostly at places used before.
    let at = || prop_oneof![2 => 0..4 * u64::from(CACHE_BLOCK_BYTES), 1 => 0..FILE_BYTES];
    prop_oneof![
        6 => (at(), length()).prop_map(|(at, len)| Action::Read(at, len)),
        4 => (at(), 1..1_000_000u64).prop_map(|(at, len)| Action::Ahead(at, len)),
        6 => (at(), length(), any::<u8>()).prop_map(|(at, len, b)| Action::Write(at, len, b)),
        2 => (at(), 1..FILE_BYTES, 1..2_000_000u64).prop_map(|(a, l, m)| Action::WriteBack(a, l, m)),
        8 => (any::<prop::sample::Index>(), how()).prop_map(|(which, how)| Action::End(which, how)),
        2 => (at(), 1..1_000_000u64, any::<u8>()).prop_map(|(a, l, b)| Action::Direct(a, l, b)),
        1 => at().prop_map(Action::Truncate),
        1 => Just(Action::GiveUp),
        1 => (at(), 1..1_000_000u64, any::<u8>()).prop_map(|(a, l, b)| Action::Recall(a, l, b)),
    ]
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        12 => Just(How::Well),
        3 => (0..100_000u32).prop_map(How::Short),
        1 => Just(How::Badly),
        1 => Just(How::Lost),
    ]
}

/// A read in flight.
struct Asked {
    transfer: Transfer,
    /// The data that the server has read, if it did so at once; else it reads when the request
    /// ends.
    found: Option<Vec<u8>>,
}

struct World {
    content: Content,
    file: FileId,
    slabs: Vec<Vec<u8>>,
    server: Vec<u8>,
    /// The file as its user sees it.
    user: Vec<u8>,
    reads: Vec<Asked>,
    writes: Vec<Transfer>,
    /// Bound of the blocks that may not be reused, because the server may still write there.
    doomed: u64,
}

impl World {
    fn new(slabs: usize) -> Self {
        let mut content = Content::new(slabs * CACHE_SLAB_BYTES);
        let file = content.add_file();
        let server: Vec<u8> =
            (0..300_000u32).map(|at| (at.wrapping_mul(40_503) >> 9) as u8).collect();
        content.set_size(file, server.len() as u64);
        let (user, slabs) = (server.clone(), Vec::new());
        let (reads, writes) = (Vec::new(), Vec::new());
        Self { content, file, slabs, server, user, reads, writes, doomed: 0 }
    }

    fn grow(&mut self) -> bool {
        if !self.content.pool().can_grow() {
            return false;
        }
        self.content.pool().grow();
        self.slabs.push(vec![0xee; CACHE_SLAB_BYTES]);
        true
    }

    fn memory(&self, segments: &Segments) -> Vec<u8> {
        let part = |s: &super::content::Segment| {
            self.slabs[s.slab as usize][s.start as usize..(s.start + s.len) as usize].to_vec()
        };
        segments.iter().flat_map(part).collect()
    }

    fn put(&mut self, segments: &Segments, mut data: &[u8]) {
        for s in segments {
            let (now, later) = data.split_at(s.len as usize);
            self.slabs[s.slab as usize][s.start as usize..][..now.len()].copy_from_slice(now);
            data = later;
        }
        assert!(data.is_empty());
    }

    /// The server's data of a range.
    fn look(&self, transfer: &Transfer) -> Vec<u8> {
        let start = (transfer.offset as usize).min(self.server.len());
        let end = (transfer.end() as usize).min(self.server.len());
        self.server[start..end].to_vec()
    }

    fn end_read(&mut self, Asked { transfer, found }: Asked, how: How) {
        let memory = transfer.memory;
        let found = found.unwrap_or_else(|| self.look(&transfer));
        let there = found.len();
        let (bytes, ended) = match how {
            How::Short(bytes) if (bytes as usize) < there => (bytes as usize, false),
            _ => (there, there < memory.len as usize),
        };
        // A server that fails may have written garbage.
        let data = match how {
            How::Badly | How::Lost => vec![0xbd; memory.len as usize],
            _ => found[..bytes].to_vec(),
        };
        let target = &mut self.slabs[memory.slab as usize][memory.start as usize..];
        target[..data.len()].copy_from_slice(&data);
        let filled = match how {
            How::Badly => Filled::Refused,
            How::Lost => Filled::Lost,
            _ => Filled::Read(bytes as u32, ended),
        };
        self.doom(transfer, how);
        for zero in self.content.filled(transfer.id, filled) {
            self.slabs[zero.slab as usize][zero.start as usize..][..zero.len as usize].fill(0);
        }
        self.compare(transfer.offset..transfer.end());
    }

    /// Compares the valid bytes of a range with the user's view.
    fn compare(&mut self, range: Range<u64>) {
        let end = range.end.min(self.content.size(self.file));
        let block = u64::from(CACHE_BLOCK_BYTES);
        let mut at = range.start;
        while at < end {
            let part = at..end.min(at + block);
            at = part.end;
            if let Step::Copy(segments) = self.content.read(self.file, part.clone()) {
                let want = &self.user[part.start as usize..part.end as usize];
                assert!(self.memory(&segments) == want, "what is known of {part:?}");
            }
        }
    }

    /// Ends the request that a caller waits for.
    fn end(&mut self, id: TransferId) {
        if let Some(at) = self.reads.iter().position(|read| read.transfer.id == id) {
            let read = self.reads.swap_remove(at);
            self.end_read(read, How::Well);
        } else if let Some(at) = self.writes.iter().position(|write| write.id == id) {
            let write = self.writes.swap_remove(at);
            self.end_write(write, How::Well);
        } else {
            panic!("{id:?} is waited for and not in flight");
        }
    }

    fn end_writes(&mut self) {
        while let Some(transfer) = self.writes.pop() {
            self.end_write(transfer, How::Well);
        }
    }

    fn end_write(&mut self, transfer: Transfer, how: How) {
        let memory = transfer.memory;
        let bytes = match how {
            How::Well => memory.len as usize,
            How::Short(bytes) => (bytes as usize).min(memory.len as usize),
            How::Badly | How::Lost => {
                self.doom(transfer, how);
                let failed = if matches!(how, How::Lost) { Flushed::Lost } else { Flushed::Failed };
                let lost = self.content.flushed(transfer.id, failed);
                assert_eq!(lost, u64::from(memory.len));
                self.revert(transfer.offset..transfer.offset + lost);
                return;
            }
        };
        let start = transfer.offset as usize;
        let data = &self.slabs[memory.slab as usize][memory.start as usize..][..bytes];
        if self.server.len() < start + bytes {
            self.server.resize(start + bytes, 0);
        }
        self.server[start..start + bytes].copy_from_slice(data);
        self.content.flushed(transfer.id, Flushed::Written(bytes as u32));
    }

    fn doom(&mut self, transfer: Transfer, how: How) {
        if matches!(how, How::Lost) {
            self.doomed += blocks(&(transfer.offset..transfer.end()));
        }
    }

    /// True when the remaining memory may be too small for a range, even when it is otherwise
    /// empty.
    fn is_too_small_for(&self, range: &Range<u64>) -> bool {
        let all = self.slabs.len() as u64 * u64::from(CACHE_SLAB_BLOCKS);
        all.saturating_sub(self.doomed) < blocks(range)
    }

    /// Data that was given up reverts to the server's.
    fn revert(&mut self, range: Range<u64>) {
        for at in range {
            self.user[at as usize] = self.server.get(at as usize).copied().unwrap_or(0);
        }
    }

    fn settle(&mut self) {
        while let Some(transfer) = self.reads.pop() {
            self.end_read(transfer, How::Well);
        }
        self.end_writes();
    }

    fn write_back_all(&mut self) {
        loop {
            let writes = self.content.flush(self.file, 0..u64::MAX, u64::MAX);
            if writes.is_empty() {
                break;
            }
            self.writes.extend(writes);
        }
        self.end_writes();
        assert_eq!(self.content.unwritten_of(self.file), 0);
        // The end of the file may have been given up.
        if self.server.len() < self.user.len() {
            self.server.resize(self.user.len(), 0);
        }
        assert!(self.server == self.user, "the server has all");
    }

    fn send(&mut self, reads: Transfers) -> bool {
        let sent = !reads.is_empty();
        for transfer in reads {
            let at_once = self.reads.len().is_multiple_of(2);
            let found = at_once.then(|| self.look(&transfer));
            self.reads.push(Asked { transfer, found });
        }
        sent
    }

    fn read(&mut self, range: Range<u64>) {
        let range = range.start..range.end.min(self.content.size(self.file));
        if range.is_empty() {
            return;
        }
        for _ in 0..1000 {
            match self.content.read(self.file, range.clone()) {
                Step::Copy(segments) => {
                    let want = &self.user[range.start as usize..range.end as usize];
                    assert!(self.memory(&segments) == want, "a read of {range:?}");
                    return;
                }
                Step::Unknown => {
                    let reads = self.content.fetch(self.file, range.clone());
                    if !self.send(reads) && !self.grow() {
                        if self.reads.is_empty() && self.writes.is_empty() {
                            // All is dirty: another caller would bypass the cache to read.
                            return;
                        }
                        self.settle();
                    }
                }
                Step::Wait(id) => self.end(id),
                Step::Full => panic!("a read needs no room"),
            }
        }
        panic!("a read of {range:?} gets nowhere");
    }

    fn write(&mut self, range: Range<u64>, byte: u8) {
        for _ in 0..100 {
            match self.content.write(self.file, range.clone()) {
                Step::Copy(segments) => {
                    let data: Vec<u8> = range.clone().map(|at| byte ^ at as u8).collect();
                    self.put(&segments, &data);
                    if self.user.len() < range.end as usize {
                        self.user.resize(range.end as usize, 0);
                    }
                    self.user[range.start as usize..range.end as usize].copy_from_slice(&data);
                    return;
                }
                Step::Wait(id) => self.end(id),
                Step::Full => {
                    if !self.grow() {
                        let was_empty = self.reads.is_empty() && self.writes.is_empty();
                        let was_written = self.content.unwritten() == 0;
                        if was_empty && was_written && self.is_too_small_for(&range) {
                            // Another caller would bypass the cache to write.
                            return;
                        }
                        self.write_back_all();
                        self.settle();
                    }
                }
                Step::Unknown => panic!("a write needs to know nothing"),
            }
        }
        panic!("a write of {range:?} gets nowhere");
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Read(at, len) => self.read(at..at + len),
            Action::Ahead(at, len) => {
                let reads = self.content.fetch(self.file, at..at + len);
                self.send(reads);
            }
            Action::Write(at, len, byte) => self.write(at..at + len, byte),
            Action::WriteBack(at, len, max) => {
                let writes = self.content.flush(self.file, at..at + len, max);
                self.writes.extend(writes);
            }
            Action::End(which, how) => {
                let count = self.reads.len() + self.writes.len();
                if count == 0 {
                    return;
                }
                let at = which.index(count);
                if at < self.reads.len() {
                    let transfer = self.reads.swap_remove(at);
                    self.end_read(transfer, how);
                } else {
                    let transfer = self.writes.swap_remove(at - self.reads.len());
                    self.end_write(transfer, how);
                }
            }
            Action::Direct(at, len, byte) => {
                let range = at..at + len;
                loop {
                    let writes = self.content.flush(self.file, range.clone(), u64::MAX);
                    if writes.is_empty() && self.content.flushing(self.file, &range).is_none() {
                        break;
                    }
                    self.writes.extend(writes);
                    self.end_writes();
                }
                self.change_beside(&range, byte);
                self.content.forget(self.file, range);
                self.content.set_size(self.file, self.user.len() as u64);
            }
            Action::Truncate(size) => {
                self.write_back_all();
                for file in [&mut self.server, &mut self.user] {
                    file.resize(size as usize, 0);
                }
                self.content.forget(self.file, size..u64::MAX);
                self.content.set_size(self.file, size);
            }
            Action::GiveUp => {
                self.end_writes();
                self.content.give_up(self.file);
                self.revert(0..self.user.len() as u64);
            }
            Action::Recall(at, len, byte) => {
                self.write_back_all();
                self.content.forget(self.file, 0..u64::MAX);
                self.change_beside(&(at..at + len), byte);
                self.content.set_size(self.file, self.user.len() as u64);
            }
        }
        self.content.check();
    }

    fn change_beside(&mut self, range: &Range<u64>, byte: u8) {
        let (start, end) = (range.start as usize, range.end as usize);
        for file in [&mut self.server, &mut self.user] {
            if file.len() < end {
                file.resize(end, 0);
            }
            file[start..end].fill(byte);
        }
    }
}

/// The number of blocks that a range, which is not empty, touches.
fn blocks(range: &Range<u64>) -> u64 {
    let block = u64::from(CACHE_BLOCK_BYTES);
    range.end.div_ceil(block) - range.start / block
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn a_reader_sees_the_bytes_written(
        actions in proptest::collection::vec(action(), 1..150),
        slabs in 1..3usize,
    ) {
        let mut world = World::new(slabs);
        for action in actions {
            world.act(action);
        }
        world.settle();
        world.write_back_all();
        world.compare(0..u64::MAX);
        world.content.check();
        world.content.remove_file(world.file);
        world.content.check();
    }
}
