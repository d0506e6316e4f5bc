//! File content: a sparse map of blocks, and the space that all files share. `ranges` has the
//! operations on ranges.
//!
//! Invariants
//! * `allocated_bytes` is the sum of the block lengths, and equals the bytes reserved from
//!   [`Space`].
//! * Bytes at and beyond `size` inside a block are zero, so that growing a file shows zeros.

use crate::limits::{FILE_BYTES_MAX, MEMORY_BLOCK_BYTES, MEMORY_PAGE_BYTES};
use crate::{Result, StoreError};
use dafs_mem::{Site, VolatileSlice};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes that all files of a store share.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) bytes_max: u64,
    used_bytes: AtomicU64,
}

impl Space {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used_bytes: AtomicU64::new(0) }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn reserve(&self, bytes: u64) -> bool {
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|&sum| sum <= self.bytes_max)
            })
            .is_ok()
    }

    pub(super) fn release(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Reserved bytes for data other than file content, such as names. The drop releases them.
#[derive(Debug)]
pub(super) struct Reserved {
    bytes: u64,
    space: Arc<Space>,
}

impl Reserved {
    /// Reserves bytes; `NoSpace` if too few are left.
    pub(super) fn take(space: &Arc<Space>, bytes: usize) -> Result<Self> {
        let bytes = bytes as u64;
        if space.reserve(bytes) {
            Ok(Self { bytes, space: space.clone() })
        } else {
            Err(StoreError::NoSpace)
        }
    }
}

impl Clone for Reserved {
    /// Counts the bytes once more, even without room for them.
    fn clone(&self) -> Self {
        self.space.used_bytes.fetch_add(self.bytes, Ordering::Relaxed);
        Self { bytes: self.bytes, space: self.space.clone() }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.space.release(self.bytes);
    }
}

/// The bytes of one file.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) size: u64,
    pub(super) allocated_bytes: u64,
    pub(super) blocks: BTreeMap<u64, Vec<u8>>,
    pub(super) space: Arc<Space>,
}

impl Content {
    pub(super) fn new(space: Arc<Space>) -> Self {
        Self { size: 0, allocated_bytes: 0, blocks: BTreeMap::new(), space }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// Copies out from `offset`; a short count means the end of the file.
    pub(super) fn read(&self, views: &[VolatileSlice<'_>], offset: u64) -> usize {
        let mut left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut at = offset;
        let mut total = 0;
        for view in views {
            let mut done = 0;
            while done < view.len() && left > 0 {
                let (block, inside) = split(at);
                let len = (MEMORY_BLOCK_BYTES as usize - inside).min(view.len() - done).min(left);
                let Some(piece) = view.slice(done, len) else { return total };
                let bytes =
                    self.blocks.get(&block).map_or(&[][..], |b| b.get(inside..).unwrap_or(&[]));
                let copied = piece.copy_from(bytes, Site::MemoryStore);
                if let Some(hole) = piece.slice(copied, len - copied) {
                    hole.fill(0);
                }
                done += len;
                left -= len;
                total += len;
                at += len as u64;
            }
        }
        total
    }

    /// Copies in at `offset`, as much as there is space for.
    pub(super) fn write(&mut self, views: &[VolatileSlice<'_>], offset: u64) -> Result<usize> {
        let mut at = offset;
        let mut total = 0;
        for view in views {
            let mut done = 0;
            while done < view.len() {
                if at >= FILE_BYTES_MAX {
                    return short(total, StoreError::FileTooBig);
                }
                let (block, inside) = split(at);
                let room = usize::try_from(FILE_BYTES_MAX - at).unwrap_or(usize::MAX);
                let len = (MEMORY_BLOCK_BYTES as usize - inside).min(view.len() - done).min(room);
                let Some(bytes) = self.block_for_write(block, inside + len) else {
                    return short(total, StoreError::NoSpace);
                };
                let Some(piece) = view.slice(done, len) else { return Ok(total) };
                piece.copy_to(&mut bytes[inside..inside + len], Site::MemoryStore);
                done += len;
                total += len;
                at += len as u64;
                self.size = self.size.max(at);
            }
        }
        Ok(total)
    }

    /// Truncates, or extends by a hole.
    pub(super) fn set_size(&mut self, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(StoreError::FileTooBig);
        }
        if size < self.size {
            let (last, inside) = split(size);
            let mut freed: u64 = 0;
            for (_, block) in self.blocks.split_off(&(last + u64::from(inside > 0))) {
                freed += block.len() as u64;
            }
            if inside > 0
                && let Some(block) = self.blocks.get_mut(&last)
            {
                let keep = inside.next_multiple_of(MEMORY_PAGE_BYTES as usize);
                freed += block.len().saturating_sub(keep) as u64;
                block.truncate(keep);
                block.shrink_to_fit();
                if let Some(tail) = block.get_mut(inside..) {
                    tail.fill(0);
                }
            }
            self.allocated_bytes -= freed;
            self.space.release(freed);
        }
        self.size = size;
        Ok(())
    }

    /// Returns a block that is long enough for a write up to `end`; `None` if there is no space.
    fn block_for_write(&mut self, index: u64, end: usize) -> Option<&mut Vec<u8>> {
        let have = self.blocks.get(&index).map_or(0, Vec::len);
        if have < end {
            let len = end.next_multiple_of(MEMORY_PAGE_BYTES as usize);
            let more = (len - have) as u64;
            if !self.space.reserve(more) {
                return None;
            }
            self.allocated_bytes += more;
            let block = self.blocks.entry(index).or_default();
            block.reserve_exact(len - have);
            block.resize(len, 0);
        }
        self.blocks.get_mut(&index)
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.space.release(self.allocated_bytes);
    }
}

pub(super) fn split(offset: u64) -> (u64, usize) {
    (offset / MEMORY_BLOCK_BYTES, (offset % MEMORY_BLOCK_BYTES) as usize)
}

/// Returns the count after some progress; the caller's next attempt gets the error.
fn short(total: usize, error: StoreError) -> Result<usize> {
    if total > 0 { Ok(total) } else { Err(error) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn read(content: &Content, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        let got = content.read(&[VolatileSlice::from_mut(&mut bytes)], offset);
        bytes.truncate(got);
        bytes
    }

    #[test]
    fn holes_cost_nothing_and_read_as_zeros() {
        let space = Arc::new(Space::new(1 << 20));
        let mut content = Content::new(space.clone());
        let far = 5u64 << 32;
        content.write(&[VolatileSlice::from_mut(&mut [7; 10])], far).unwrap();
        assert_eq!(content.size(), far + 10);
        assert_eq!(space.used_bytes(), MEMORY_PAGE_BYTES);
        assert_eq!(read(&content, far - 3, 20), [&[0; 3][..], &[7; 10]].concat());
        assert_eq!(read(&content, far + 10, 5), []);
        drop(content);
        assert_eq!(space.used_bytes(), 0);
    }

    #[test]
    fn cut_bytes_do_not_come_back() {
        let space = Arc::new(Space::new(1 << 20));
        let mut content = Content::new(space.clone());
        content.write(&[VolatileSlice::from_mut(&mut vec![9; 200_000])], 0).unwrap();
        content.set_size(70_000).unwrap();
        content.set_size(200_000).unwrap();
        assert_eq!(read(&content, 69_999, 3), [9, 0, 0]);
        assert!(read(&content, 70_000, 130_000).iter().all(|&b| b == 0));
        content.set_size(0).unwrap();
        assert_eq!((space.used_bytes(), content.allocated_bytes()), (0, 0));
    }

    #[test]
    fn a_full_store_gives_the_short_count_then_the_error() {
        let mut content = Content::new(Arc::new(Space::new(MEMORY_BLOCK_BYTES)));
        let mut bytes = vec![1; MEMORY_BLOCK_BYTES as usize + 1];
        let written = content.write(&[VolatileSlice::from_mut(&mut bytes)], 0).unwrap();
        assert_eq!(written as u64, MEMORY_BLOCK_BYTES);
        let more = content.write(&[VolatileSlice::from_mut(&mut bytes)], MEMORY_BLOCK_BYTES);
        assert_eq!(more, Err(StoreError::NoSpace));
    }
}
