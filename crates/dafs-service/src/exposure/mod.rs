//! Blocks of files in memory that clients read without a request (optimistic reads).
//!
//! A block lies in a frame of memory that clients can read. An entry of a window page names the frame.
//! A reader reads the entry, the frame, and the entry again: if both are equal, the frame did not
//! change in between.
//!
//! | part | file |
//! |---|---|
//! | the blocks of one file, their changes and their fills | `file.rs`, `changing.rs` |
//! | one window: its entries, and the use of its blocks | `window.rs`, `policy.rs` |
//! | frames: free, in use, waiting for reuse | `frames.rs` |
//! | blocks that make room for others, and come back if requests ask for them | `chance.rs` |
//! | segments that leave a file for another one, and the shares of files | `leave.rs`, `share.rs`, `room.rs` |
//! | the exposed files, and the grants of opens | `files.rs` |
//! | the other blocks of windows that requests read here and there | `remainder.rs` |
//! | small files, which share an exposure, and the grants of clients | `small.rs` |
//!
//! Example. A client has block 7 in its directory. Another client writes to it: the entry becomes
//! absent, then the data changes, then the reply leaves. A read that began before finds another entry
//! at its end, and asks the server. A read that begins later finds none.
//!
//! Invariants
//! * Every change of a file's content that passes through the service takes the entries of its blocks
//!   away before it begins, and keeps them away until it has ended.
//! * A file becomes exposed while no change of it is under way, so none is missed.
//! * A file that is not exposed costs a writer one relaxed load.

mod begun;
mod chance;
mod changing;
#[cfg(test)]
mod choices;
mod entry;
#[cfg(test)]
mod exhaustive;
mod file;
mod files;
mod frames;
mod leave;
mod policy;
#[cfg(test)]
mod ratios;
mod remainder;
mod room;
mod share;
mod small;
#[cfg(test)]
mod small_tests;
#[cfg(test)]
mod tests;
mod window;

pub use begun::Begun;
pub(crate) use changing::Changing;
pub use entry::{BLOCK_BYTES, BlockEntry, FramePlace, WINDOW_BLOCKS};
pub use file::Fill;
pub use files::{ExposedFile, ExposureCounts};
pub(crate) use files::{Exposure, Grant};
pub(crate) use small::ClientGrants;
pub use small::{SMALL_FILE_BYTES, SmallFile, SmallPart};
pub use window::PagePlace;

/// The content of a segment of memory, for its whole life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// Blocks of a file.
    Frames,
    /// Window pages.
    Index,
}

/// The memory that clients can read.
pub trait Memory: Send + Sync {
    /// Makes a segment, which may be small if it is the first one of its kind for a file. Returns its
    /// number and the number of its frames or pages, at most 256: best that of
    /// [`SegmentKind::places`]. The entries of its pages are absent. `None` when there is no more
    /// memory. It is best if a number comes again late.
    fn add(&self, kind: SegmentKind, is_first: bool) -> Option<(u16, usize)>;

    /// Stores an entry of a window page. When it returns, no reader finds the one before.
    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry);

    /// Takes the memory of a segment back from all who can read it. Its number may name a segment of
    /// another exposure from now on.
    fn discard(&self, segment: u16);

    /// True if so much memory is in use that blocks are not worth it for which no request has asked, or
    /// one alone.
    fn is_scarce(&self) -> bool;

    /// Tells readers that the server has looked for changes which bypass it, at this time.
    fn looked(&self, now_ns: u64);
}
