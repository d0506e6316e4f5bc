//! Ranges of a file's content: holes, allocation, deallocation, and copies.

use super::content::{Content, split};
use crate::limits::{COPY_BUFFER_BYTES, MEMORY_BLOCK_BYTES, MEMORY_PAGE_BYTES};
use crate::{Result, SeekWhat, StoreError};
use dafs_mem::VolatileSlice;

const PAGE_BYTES: usize = MEMORY_PAGE_BYTES as usize;

impl Content {
    /// Returns the first data or hole at or after an offset.
    pub(super) fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        if offset >= self.size {
            return Err(StoreError::PastEnd);
        }
        let (first, _) = split(offset);
        let mut blocks = self.blocks.range(first..).map(|(&index, bytes)| {
            let start = index * MEMORY_BLOCK_BYTES;
            (start, start + bytes.len() as u64)
        });
        match what {
            SeekWhat::Data => {
                let data = blocks.find(|&(_, end)| offset < end);
                let start = data.map(|(start, _)| start.max(offset));
                Ok(start.filter(|&start| start < self.size))
            }
            SeekWhat::Hole => {
                let mut at = offset;
                for (start, end) in blocks {
                    if start > at {
                        break;
                    }
                    at = at.max(end);
                }
                Ok(Some(at.min(self.size)))
            }
        }
    }

    /// Allocates space for the range, all or nothing, and extends the file to its end.
    pub(super) fn allocate(&mut self, offset: u64, end: u64) -> Result<()> {
        self.set_aside(offset, end)?;
        self.size = self.size.max(end);
        Ok(())
    }

    fn set_aside(&mut self, offset: u64, end: u64) -> Result<()> {
        if offset >= end {
            return Ok(());
        }
        if end - offset > self.space.bytes_max {
            return Err(StoreError::NoSpace);
        }
        let (first, last) = (split(offset).0, split(end - 1).0);
        let wanted = |index: u64| {
            let inside = (end - index * MEMORY_BLOCK_BYTES).min(MEMORY_BLOCK_BYTES);
            (inside as usize).next_multiple_of(PAGE_BYTES)
        };
        let missing = |content: &Self, index| {
            wanted(index).saturating_sub(content.blocks.get(&index).map_or(0, Vec::len))
        };
        let more: u64 = (first..=last).map(|index| missing(self, index) as u64).sum();
        if !self.space.reserve(more) {
            return Err(StoreError::NoSpace);
        }
        self.allocated_bytes += more;
        for index in first..=last {
            let missing = missing(self, index);
            let block = self.blocks.entry(index).or_default();
            block.reserve_exact(missing);
            block.resize(block.len() + missing, 0);
        }
        Ok(())
    }

    /// Deallocates the space of the range, which then reads as zeros.
    pub(super) fn punch(&mut self, offset: u64, end: u64) {
        if offset >= end {
            return;
        }
        let (mut freed, mut empty) = (0, Vec::new());
        for (&index, block) in self.blocks.range_mut(split(offset).0..=split(end - 1).0) {
            let start = index * MEMORY_BLOCK_BYTES;
            let from = (offset.saturating_sub(start) as usize).min(block.len());
            let to = usize::try_from(end - start).unwrap_or(usize::MAX).min(block.len());
            block[from..to].fill(0);
            if to == block.len() {
                let keep = from.next_multiple_of(PAGE_BYTES).min(block.len());
                freed += (block.len() - keep) as u64;
                block.truncate(keep);
                block.shrink_to_fit();
            }
            if block.is_empty() {
                empty.push(index);
            }
        }
        for index in empty {
            self.blocks.remove(&index);
        }
        self.allocated_bytes -= freed;
        self.space.release(freed);
    }

    /// Copies a range, with its holes, to offset 0 of a new content.
    pub(super) fn copy_of(&self, offset: u64, len: u64) -> Result<Self> {
        let mut copy = Self::new(self.space.clone());
        copy.put_range(self, offset, 0, len)?;
        Ok(copy)
    }

    /// Inserts the result of `copy_of` at an offset. Without enough space it changes no data.
    pub(super) fn take_over(&mut self, copy: Self, offset: u64, len: u64) -> Result<()> {
        for (data, end) in copy.data(0, len) {
            self.set_aside(offset + data, offset + end)?;
        }
        self.put_range(&copy, 0, offset, len)
    }

    fn put_range(&mut self, source: &Self, from: u64, to: u64, len: u64) -> Result<()> {
        let mut buffer = vec![0; COPY_BUFFER_BYTES.min(usize::try_from(len).unwrap_or(usize::MAX))];
        let whole = VolatileSlice::from_mut(&mut buffer);
        let mut at = from;
        for (data, end) in source.data(from, from + len) {
            self.punch(to + (at - from), to + (data - from));
            at = data;
            while at < end {
                let piece = usize::try_from(end - at).unwrap_or(usize::MAX).min(whole.len());
                let views: Vec<_> = whole.slice(0, piece).into_iter().collect();
                let read = source.read(&views, at);
                if self.write(&views, to + (at - from))? < read {
                    return Err(StoreError::NoSpace);
                }
                at += read as u64;
            }
        }
        self.punch(to + (at - from), to + len);
        self.size = self.size.max(to + len);
        Ok(())
    }

    /// Returns the ranges of data inside a range.
    fn data(&self, offset: u64, end: u64) -> Vec<(u64, u64)> {
        let (mut found, mut at) = (Vec::new(), offset);
        let end = end.min(self.size);
        while let Ok(Some(data)) = self.seek(at, SeekWhat::Data)
            && data < end
        {
            at = self.seek(data, SeekWhat::Hole).ok().flatten().unwrap_or(end).min(end);
            found.push((data, at));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::{Space, tests::read};
    use super::*;
    use std::sync::Arc;

    const BLOCK: u64 = MEMORY_BLOCK_BYTES;

    fn content(space: &Arc<Space>, at: u64, bytes: &[u8]) -> Content {
        let mut content = Content::new(space.clone());
        content.write(&[VolatileSlice::from_mut(&mut bytes.to_vec())], at).unwrap();
        content
    }

    #[test]
    fn space_is_set_aside_all_or_nothing() {
        let space = Arc::new(Space::new(4 * BLOCK));
        let mut file = content(&space, 0, b"x");
        assert_eq!(file.allocate(0, 5 * BLOCK), Err(StoreError::NoSpace));
        assert_eq!(file.allocate(BLOCK, u64::MAX / 2), Err(StoreError::NoSpace));
        assert_eq!((file.size(), space.used_bytes()), (1, MEMORY_PAGE_BYTES));
        file.allocate(10, 3 * BLOCK).unwrap();
        assert_eq!((file.size(), space.used_bytes()), (3 * BLOCK, 3 * BLOCK));
        assert_eq!(file.allocated_bytes(), 3 * BLOCK);
        assert_eq!(read(&file, 0, 3), [b'x', 0, 0]);
    }

    #[test]
    fn a_punched_range_is_a_hole_again() {
        let space = Arc::new(Space::new(8 * BLOCK));
        let mut file = content(&space, 0, &vec![7; 3 * BLOCK as usize]);
        file.punch(10, 20);
        assert_eq!(read(&file, 9, 12), [&[7][..], &[0; 10], &[7]].concat());
        assert_eq!(space.used_bytes(), 3 * BLOCK);
        file.punch(BLOCK, 2 * BLOCK);
        assert_eq!(space.used_bytes(), 2 * BLOCK);
        assert_eq!(file.seek(5, SeekWhat::Hole), Ok(Some(BLOCK)));
        assert_eq!(file.seek(BLOCK, SeekWhat::Data), Ok(Some(2 * BLOCK)));
        file.punch(0, u64::MAX / 2);
        assert_eq!((space.used_bytes(), file.allocated_bytes()), (0, 0));
        assert_eq!(file.seek(5, SeekWhat::Data), Ok(None));
        assert_eq!(file.seek(3 * BLOCK, SeekWhat::Data), Err(StoreError::PastEnd));
        assert_eq!(read(&file, 3 * BLOCK - 2, 9), [0, 0]);
    }

    #[test]
    fn copies_keep_holes_and_fail_without_a_trace() {
        let space = Arc::new(Space::new(7 * BLOCK));
        let mut source = content(&space, 4 * BLOCK, &vec![5; BLOCK as usize]);
        source.set_size(9 * BLOCK).unwrap();
        let mut target = content(&space, 0, &vec![1; 2 * BLOCK as usize]);
        let copy = source.copy_of(3 * BLOCK, 6 * BLOCK).unwrap();
        target.take_over(copy, BLOCK, 6 * BLOCK).unwrap();
        assert_eq!((target.size(), target.allocated_bytes()), (7 * BLOCK, 2 * BLOCK));
        assert_eq!(read(&target, BLOCK - 1, 2), [1, 0]);
        assert_eq!(read(&target, 2 * BLOCK - 1, 2), [0, 5]);
        let filler = content(&space, 0, &vec![1; 4 * BLOCK as usize]);
        assert_eq!(source.copy_of(4 * BLOCK, BLOCK).err(), Some(StoreError::NoSpace));
        drop(filler);
        let copy = source.copy_of(4 * BLOCK, BLOCK).unwrap();
        let filler = content(&space, 0, &vec![1; 3 * BLOCK as usize]);
        assert_eq!(target.take_over(copy, 8 * BLOCK, BLOCK), Err(StoreError::NoSpace));
        assert_eq!(target.size(), 7 * BLOCK);
        drop((filler, source, target));
        assert_eq!(space.used_bytes(), 0);
    }
}
