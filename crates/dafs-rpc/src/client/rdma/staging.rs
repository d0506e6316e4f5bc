//! Staging memory that servers reach: long calls, and replies that do not fit a message.
//!
//! Invariants
//! * Free memory is bounded per size, and so in total.
//! * Memory that a server may still write is never returned to the free list.

use crate::client::memory::Memory;
use crate::limits::{STAGING_BYTES, STAGING_KEPT_BYTES_MAX};

const SIZES: usize = STAGING_BYTES.len();

/// Free memory, by size.
#[derive(Debug, Default)]
pub(super) struct Staging {
    free: [Vec<Memory>; SIZES],
}

impl Staging {
    /// Takes memory of at least `len` bytes, or returns how much to allocate.
    pub(super) fn take(&mut self, len: usize) -> Result<Memory, usize> {
        match STAGING_BYTES.iter().position(|&bytes| len <= bytes) {
            Some(class) => self.free[class].pop().ok_or(STAGING_BYTES[class]),
            None => Err(len),
        }
    }

    /// Returns memory to the free list after its call has ended.
    pub(super) fn put(&mut self, memory: Memory) {
        if memory.is_spoiled() {
            return;
        }
        let Some(class) = STAGING_BYTES.iter().position(|&bytes| bytes == memory.len()) else {
            return;
        };
        let free = &mut self.free[class];
        if (free.len() + 1) * STAGING_BYTES[class] <= STAGING_KEPT_BYTES_MAX {
            free.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_within_bounds_unless_it_is_spoiled() {
        let mut staging = Staging::default();
        assert_eq!(staging.take(9 << 10).unwrap_err(), 36 << 10);
        assert_eq!(staging.take(9 << 20).unwrap_err(), 9 << 20);
        let spoiled = Memory::plain(36 << 10).unwrap();
        spoiled.spoil();
        staging.put(spoiled);
        assert!(staging.take(36 << 10).is_err());
        let kept = STAGING_KEPT_BYTES_MAX / (36 << 10);
        for _ in 0..kept + 5 {
            staging.put(Memory::plain(36 << 10).unwrap());
        }
        assert_eq!((0..).take_while(|_| staging.take(20 << 10).is_ok()).count(), kept);
    }
}
