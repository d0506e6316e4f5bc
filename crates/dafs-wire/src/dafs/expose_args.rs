//! Optimistic reads: where clients find blocks of a file in memory of the server. This is an
//! extension, marked by names that begin with X_; the draft has none.
//!
//! Invariants
//! * A word of zeros names no block. So memory that the server has taken back names none.

use super::codec::{WordBool, layout, word_enum};
use super::ids::{FileHandle, StateId};
use super::limits::{EXPOSED_SEGMENTS_MAX, EXPOSED_WINDOWS_MAX};
use super::seq::Seq;

word_enum! {
    /// The content of a segment of the server's memory, for its whole life.
    pub enum ExposedKind {
        /// Frames of 4096 bytes.
        Frames = 1,
        /// Window pages: 512 words of 8 bytes each.
        Index = 2,
        /// The life page of the server: the word of its life, and at 8 the time of its last look for
        /// changes that bypass it, in nanoseconds of the host's monotonic clock.
        Life = 3,
    }
}

layout! {
    /// Arguments of X_EXPOSE_GET.
    pub struct XExposeGet [104] {
        /// The file.
        fh: FileHandle = 0,
        /// An open that allows reading.
        state_id: StateId = 64,
        /// The first window that the client asks for. A window has 512 blocks of 4096 bytes.
        window: u64 = 72,
        /// The exposure that the client knows, or 0.
        exposure: u64 = 80,
        /// The number of windows, 1 to 64. 0 with `small` asks for the place of a small file alone.
        windows: u32 = 88,
        /// The number of segments of that exposure that the client knows.
        known: u32 = 92,
        /// The client also takes the place of a small file in an exposure of many files.
        small: bool as WordBool = 96,
    }

    /// The page of one window.
    pub struct ExposedWindow [16, array 8 max EXPOSED_WINDOWS_MAX] {
        /// The window.
        window: u64 = 0,
        /// The segment of the page.
        segment: u32 = 8,
        /// The page in the segment.
        page: u32 = 12,
    }

    /// A segment of memory that the client may read.
    pub struct ExposedSegment [24, array 8 max EXPOSED_SEGMENTS_MAX] {
        /// Its address for the client's adapter, on the operation channel or on the optimistic one.
        address: u64 = 0,
        /// Its number, as entries have it.
        number: u32 = 8,
        /// Its key.
        key: u32 = 12,
        /// Its length in bytes.
        bytes: u32 = 16,
        /// Its content.
        kind: ExposedKind = 20,
    }

    /// Result of X_EXPOSE_GET. Empty lists: nothing is exposed now.
    pub struct XExposeGetReply<'a> [24] {
        /// The exposure. Another number than the client knows: all that it knows is void.
        exposure: u64 = 0,
        /// The pages of windows.
        windows: Seq<'a, ExposedWindow> = 8,
        /// Segments that the client does not know, in the order in which they are counted.
        segments: Seq<'a, ExposedSegment> = 12,
        /// The block of the exposure that is the first one of the file. 0 in an exposure of this file
        /// alone. In one of many files a file has 16 blocks, and windows are those of the exposure.
        base: u64 = 16,
    }
}

/// A word of a window page: a change count of 28 bits, a segment of 16, a frame of 8, and the bytes
/// of the block less one, of 12. Words are little-endian. Segment 0 means that no frame has the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryWord(pub u64);

/// The place of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryBlock {
    /// The segment, not 0.
    pub segment: u16,
    /// The frame in the segment.
    pub frame: u8,
    /// The bytes of the file in the frame: 1 to 4096. Fewer than 4096 end the file.
    pub bytes: usize,
}

impl EntryWord {
    /// Makes the word after this many changes, of which the last 28 bits count.
    pub fn new(changes: u32, block: Option<EntryBlock>) -> Self {
        let block = block.map_or(0, |EntryBlock { segment, frame, bytes }| {
            debug_assert!(segment != 0 && (1..=4096).contains(&bytes));
            u64::from(segment) << 20 | u64::from(frame) << 12 | (bytes as u64 - 1) & 0xfff
        });
        Self(u64::from(changes) << 36 | block)
    }

    /// Returns the place of the block, if a frame has it.
    pub fn block(self) -> Option<EntryBlock> {
        let segment = (self.0 >> 20) as u16;
        let (frame, bytes) = ((self.0 >> 12) as u8, (self.0 & 0xfff) as usize + 1);
        (segment != 0).then_some(EntryBlock { segment, frame, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_parts() {
        for (segment, frame, bytes) in [(1, 0, 1), (u16::MAX, u8::MAX, 4096), (7, 8, 9)] {
            let block = EntryBlock { segment, frame, bytes };
            let word = EntryWord::new(5, Some(block));
            assert_eq!(word.block(), Some(block));
            assert_ne!(word, EntryWord::new(6, Some(block)));
            assert_eq!(EntryWord::new(5 + (1 << 28), Some(block)), word);
        }
        let block = EntryBlock { segment: 0x1234, frame: 0x56, bytes: 0x78a };
        assert_eq!(EntryWord::new(0xabc_def0, Some(block)).0, 0xabcd_ef01_2345_6789);
        assert_eq!(EntryWord::new(u32::MAX, None).block(), None);
        assert_eq!(EntryWord(0).block(), None);
    }
}
