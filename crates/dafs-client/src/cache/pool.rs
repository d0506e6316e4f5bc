//! The place of blocks in memory: slabs of registered memory, cut into blocks.
//!
//! Blocks that follow each other in a file are adjacent in memory where possible, so that one
//! request moves many of them.
//!
//! Invariants
//! * A block is free or belongs to one place in one file; a block to which a late answer of the
//!   server may still write is neither, for good.

use crate::limits::{CACHE_BLOCK_BYTES, CACHE_SLAB_BLOCKS};

/// All blocks of a slab.
const ALL: u16 = u16::MAX;
const _: () = assert!(CACHE_SLAB_BLOCKS == u16::BITS);

/// A block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slab: u32,
    /// The index of the block in the slab.
    pub(super) block: u32,
}

impl Place {
    /// Its offset in its slab, in bytes.
    pub(super) fn start(self) -> u32 {
        self.block * CACHE_BLOCK_BYTES
    }

    /// The block behind it in memory, if that is in the same slab.
    pub(super) fn next(self) -> Option<Self> {
        (self.block + 1 < CACHE_SLAB_BLOCKS).then_some(Self { block: self.block + 1, ..self })
    }
}

/// The memory of a cache.
#[derive(Debug)]
pub(super) struct Pool {
    /// The free blocks of each slab, a bit each.
    free: Vec<u16>,
    slabs_max: usize,
    free_blocks: usize,
}

impl Pool {
    pub(super) fn new(slabs_max: usize) -> Self {
        Self { free: Vec::new(), slabs_max, free_blocks: 0 }
    }

    pub(super) fn free_blocks(&self) -> usize {
        self.free_blocks
    }

    /// True when one more slab may be added.
    pub(super) fn can_grow(&self) -> bool {
        self.free.len() < self.slabs_max
    }

    /// Stops growth, because there is no memory for more slabs.
    pub(super) fn stop_growing(&mut self) {
        self.slabs_max = self.free.len();
    }

    /// Adds a slab.
    pub(super) fn grow(&mut self) {
        assert!(self.can_grow());
        self.free.push(ALL);
        self.free_blocks += CACHE_SLAB_BLOCKS as usize;
    }

    /// Takes a free block: `wish` if it is free, else the first of a row of `count` free ones, or
    /// of the longest row.
    pub(super) fn take(&mut self, wish: Option<Place>, count: usize) -> Option<Place> {
        let place = wish.filter(|place| self.is_free(*place)).or_else(|| self.row(count))?;
        self.free[place.slab as usize] &= !(1 << place.block);
        self.free_blocks -= 1;
        Some(place)
    }

    pub(super) fn give_back(&mut self, place: Place) {
        assert!(!self.is_free(place), "a block is given back once");
        self.free[place.slab as usize] |= 1 << place.block;
        self.free_blocks += 1;
    }

    fn is_free(&self, place: Place) -> bool {
        self.free[place.slab as usize] & 1 << place.block != 0
    }

    fn row(&self, count: usize) -> Option<Place> {
        let count = (count as u32).clamp(1, CACHE_SLAB_BLOCKS);
        let mut best: Option<(u32, Place)> = None;
        for (slab, &free) in self.free.iter().enumerate().filter(|(_, free)| **free != 0) {
            let (len, block) = longest_row(free);
            if best.is_none_or(|(longest, _)| len > longest) {
                best = Some((len, Place { slab: slab as u32, block }));
            }
            if len >= count {
                break;
            }
        }
        best.map(|(_, place)| place)
    }
}

/// The longest row of ones: its length and its start.
fn longest_row(bits: u16) -> (u32, u32) {
    let mut best = (0, 0);
    let mut at = 0;
    while at < u16::BITS {
        let rest = bits >> at;
        if rest == 0 {
            break;
        }
        at += rest.trailing_zeros();
        let len = (bits >> at).trailing_ones();
        if len > best.0 {
            best = (len, at);
        }
        at += len;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found() {
        assert_eq!(longest_row(0), (0, 0));
        assert_eq!(longest_row(ALL), (16, 0));
        assert_eq!(longest_row(0b1011_1001), (3, 3));
        assert_eq!(longest_row(1 << 15), (1, 15));
    }

    #[test]
    fn neighbours_are_kept_together() {
        let mut pool = Pool::new(2);
        assert!(pool.take(None, 4).is_none());
        pool.grow();
        let first = pool.take(None, 4).unwrap();
        let second = pool.take(first.next(), 3).unwrap();
        assert_eq!(second, first.next().unwrap());
        // Taken: a row elsewhere.
        let third = pool.take(first.next(), 3).unwrap();
        assert_eq!(third, second.next().unwrap());
        pool.grow();
        assert!(!pool.can_grow());
        let wide = pool.take(None, 16).unwrap();
        assert_eq!(wide, Place { slab: 1, block: 0 });
        assert_eq!(pool.free_blocks(), 28);
        pool.give_back(second);
        assert_eq!(pool.free_blocks(), 29);
    }
}
