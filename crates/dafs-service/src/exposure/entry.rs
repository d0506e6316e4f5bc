//! The entry of a block: which frame has it.

/// Bytes of a block of a file, and of a frame of memory.
pub const BLOCK_BYTES: usize = 4096;

/// Blocks of a window, and entries of a window page.
pub const WINDOW_BLOCKS: usize = 512;

/// Entries repeat after this many changes: after a week at the earliest, because publications are
/// limited.
const GENERATIONS: u32 = 1 << 28;

/// The place of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FramePlace {
    /// The segment of memory, by the server's number.
    pub segment: u16,
    /// The frame in it.
    pub frame: u8,
}

/// The entry of a block. Each change of it yields another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockEntry {
    /// The number of changes, of 28 bits.
    pub generation: u32,
    /// The frame with the block, and the bytes of the block that are in the file: 1 to
    /// [`BLOCK_BYTES`]. A smaller number ends the file. `None` if no frame has the block.
    pub block: Option<(FramePlace, usize)>,
}

impl BlockEntry {
    /// Returns the next entry of the block.
    #[must_use]
    pub(super) fn next(self, block: Option<(FramePlace, usize)>) -> Self {
        debug_assert!(block.is_none_or(|(_, bytes)| (1..=BLOCK_BYTES).contains(&bytes)));
        Self { generation: (self.generation + 1) % GENERATIONS, block }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_repeats_for_a_long_time() {
        let place = FramePlace { segment: 7, frame: 8 };
        let first = BlockEntry::default();
        let (published, absent) = (first.next(Some((place, 9))), first.next(None));
        assert!(first != published && first != absent && published.next(None) != first);
        let last = BlockEntry { generation: GENERATIONS - 1, block: None };
        assert_eq!(last.next(None), first);
    }
}
