//! Pooled memory for records and bulk data: page aligned, not zeroed again, bounded.
//!
//! Invariants
//! * A [`Block`] is the only handle to its memory, except for a transport that moves it. The owner
//!   writes through `&mut` and reads through `&`, so that the filled part can be seen as a plain
//!   slice. A transport writes only behind the filled part, and only into memory that no peer can
//!   reach.
//! * Free blocks are bounded per size, for each reactor and for all threads together.

use crate::limits::{BLOCK_BYTES, BLOCKS_KEPT_BYTES_MAX, BLOCKS_SHARED_BYTES_MAX};
use dafs_mem::{Buffer, Mutex, VolatileSlice};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZES: usize = BLOCK_BYTES.len();

/// Free blocks for every thread. The threads that fill blocks (a pool) differ from those that drain
/// them (a reactor), so blocks must find their way back.
static SHARED: [Mutex<Free>; SIZES] = [const { Mutex::new(Free::new()) }; SIZES];

thread_local! {
    /// True if this thread caches free blocks, and so calls [`trim`].
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    static KEPT: RefCell<[Free; SIZES]> =
        const { RefCell::new([const { Free::new() }; SIZES]) };
}

/// Free blocks of one size.
struct Free {
    blocks: Vec<Arc<Buffer>>,
    /// Free blocks that were not needed since the last [`trim`].
    unneeded: usize,
}

impl Free {
    const fn new() -> Self {
        Self { blocks: Vec::new(), unneeded: 0 }
    }

    fn pop(&mut self) -> Option<Arc<Buffer>> {
        let block = self.blocks.pop();
        self.unneeded = self.unneeded.min(self.blocks.len());
        block
    }

    /// Adds a block, if the free blocks stay within `bytes_max`.
    fn push(&mut self, block: &mut Option<Arc<Buffer>>, bytes_max: usize) {
        let bytes = block.as_ref().map_or(0, |block| block.len());
        if (self.blocks.len() + 1) * bytes <= bytes_max {
            self.blocks.extend(block.take());
        }
    }

    fn trim(&mut self) {
        self.blocks.truncate(self.blocks.len() - self.unneeded.div_ceil(2));
        if self.blocks.capacity() > 2 * self.blocks.len() {
            self.blocks.shrink_to_fit();
        }
        self.unneeded = self.blocks.len();
    }
}

fn size_class(len: usize) -> Option<usize> {
    BLOCK_BYTES.iter().position(|&bytes| len <= bytes)
}

/// The capacity of a block for `len` bytes.
pub(crate) fn block_bytes(len: usize) -> usize {
    size_class(len).map_or(len, |class| BLOCK_BYTES[class])
}

fn take(len: usize) -> io::Result<Arc<Buffer>> {
    let Some(class) = size_class(len) else {
        return Ok(Arc::new(Buffer::zeroed(len)?));
    };
    let kept = KEPT.try_with(|kept| kept.borrow_mut()[class].pop()).ok().flatten();
    match kept.or_else(|| SHARED[class].lock().pop()) {
        Some(buffer) => Ok(buffer),
        None => Ok(Arc::new(Buffer::zeroed(BLOCK_BYTES[class])?)),
    }
}

fn give(buffer: Arc<Buffer>) {
    let Some(class) = BLOCK_BYTES.iter().position(|&bytes| bytes == buffer.len()) else {
        return;
    };
    let mut buffer = Some(buffer);
    // A thread that is ending has no cache any more; then the shared pool takes the block.
    let _ = KEPT.try_with(|kept| {
        if !KEEPS.get() {
            return;
        }
        kept.borrow_mut()[class].push(&mut buffer, BLOCKS_KEPT_BYTES_MAX);
    });
    if buffer.is_some() {
        SHARED[class].lock().push(&mut buffer, BLOCKS_SHARED_BYTES_MAX);
    }
}

/// Lets this thread cache free blocks from now on. For reactors.
pub(crate) fn keep_here() {
    KEEPS.set(true);
}

/// Frees half of the blocks that were not needed since the last time: those of this thread and the
/// shared ones. For reactors, about once a second.
pub(crate) fn trim() {
    for (class, shared) in SHARED.iter().enumerate() {
        let _ = KEPT.try_with(|kept| kept.borrow_mut()[class].trim());
        shared.lock().trim();
    }
}

/// Memory from the pool, whose first part is filled. It returns to the pool when dropped.
pub(crate) struct Block {
    /// `None` only during drop.
    buffer: Option<Arc<Buffer>>,
    filled: usize,
    /// True while a transport may work on the memory.
    lent: AtomicBool,
}

impl Block {
    /// Takes a block of at least `len` bytes, none of them filled.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        Ok(Self { buffer: Some(take(len)?), filled: 0, lent: AtomicBool::new(false) })
    }

    /// Bytes that the block can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// Bytes that have been filled.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// The bytes behind the filled ones, at most `len_max`.
    pub(crate) fn space(&mut self, len_max: usize) -> VolatileSlice<'_> {
        let len = len_max.min(self.capacity() - self.filled);
        let space = self.buffer.as_ref().and_then(|buffer| buffer.slice(self.filled, len));
        space.unwrap_or_else(|| VolatileSlice::from_mut(&mut []))
    }

    /// The bytes behind the filled ones, at most `len_max`, of memory that is not lent.
    pub(crate) fn spare(&mut self, len_max: usize) -> &mut [u8] {
        assert!(!*self.lent.get_mut(), "a transport may write to this memory");
        let len = len_max.min(self.capacity() - self.filled);
        let Some(buffer) = &self.buffer else { return &mut [] };
        // SAFETY: the mapping holds `filled + len` bytes, which were zeroed when it was made. This
        // block is borrowed exclusively while the slice lives. It is not lent, and a transport that
        // still has memory registered after its loan does not work on it.
        unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr().add(self.filled), len) }
    }

    /// Marks `len` more bytes as filled, at most up to the capacity.
    pub(crate) fn fill(&mut self, len: usize) {
        debug_assert!(len <= self.capacity() - self.filled, "more was filled than there is");
        self.filled = (self.filled + len).min(self.capacity());
    }

    /// Keeps only the first `len` bytes as filled.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.filled = self.filled.min(len);
    }

    /// Lends the memory to a transport, which registers it to send from it or to write behind the
    /// filled part. The memory does not return to the pool until [`Block::take_back`] reports that
    /// the transport has finished.
    pub(crate) fn lend(&self) -> Option<&Arc<Buffer>> {
        self.lent.store(true, Ordering::Relaxed);
        self.buffer.as_ref()
    }

    /// Ends the loan: no transport works on the memory any more, even if one still has it
    /// registered.
    pub(crate) fn take_back(&self) {
        self.lent.store(false, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(buffer) = &self.buffer else { return &[] };
        // A transport with which the mapping is registered writes behind the filled part only.
        // SAFETY: the mapping holds at least `filled` bytes, which were zeroed when it was made.
        // This block is the only handle to it and is borrowed while the slice lives, so no other
        // code writes there.
        unsafe { std::slice::from_raw_parts(buffer.as_ptr(), self.filled) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take()
            && !*self.lent.get_mut()
        {
            give(buffer);
        }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} of {} bytes)", self.filled, self.capacity())
    }
}

/// The bytes as a view, for sending and for security contexts.
pub(crate) fn source(bytes: &[u8]) -> VolatileSlice<'_> {
    // SAFETY: the bytes stay borrowed as long as the view lives, and the views made here go to
    // `sendmsg` and to the keys of security contexts only, which do not write through them.
    unsafe { VolatileSlice::new(bytes.as_ptr().cast_mut(), bytes.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Site;

    #[test]
    fn a_block_comes_back_to_its_reactor() {
        keep_here();
        let block = Block::new(100_000).unwrap();
        assert_eq!(block.capacity(), 264 << 10);
        let address = block.buffer.as_ref().unwrap().as_ptr() as usize;
        drop(block);
        let again = Block::new(200_000).unwrap();
        assert_eq!(again.buffer.as_ref().unwrap().as_ptr() as usize, address);
        assert_eq!(again.filled(), 0);
        drop(again);
        // A block that a transport may still use is not pooled.
        let again = Block::new(100_000).unwrap();
        let buffer = again.lend().unwrap().clone();
        drop(again);
        let other = Block::new(200_000).unwrap();
        assert_ne!(other.buffer.as_ref().unwrap().as_ptr(), buffer.as_ptr());
        let buffer = other.lend().unwrap().clone();
        other.take_back();
        drop(other);
        let again = Block::new(200_000).unwrap();
        assert_eq!(again.buffer.as_ref().unwrap().as_ptr(), buffer.as_ptr());
        // Nor is a block above the largest size.
        assert_eq!(Block::new(10 << 20).unwrap().capacity(), 10 << 20);
    }

    #[test]
    fn blocks_emptied_elsewhere_are_found_again_and_bounded() {
        let class = BLOCK_BYTES.len() - 1;
        let blocks: Vec<_> = (0..20).map(|_| Block::new(BLOCK_BYTES[class]).unwrap()).collect();
        std::thread::spawn(move || drop(blocks)).join().unwrap();
        let free = || SHARED[class].lock().blocks.len();
        let most = free();
        assert!((4..=BLOCKS_SHARED_BYTES_MAX / BLOCK_BYTES[class]).contains(&most));
        trim();
        // One is needed now and then; the others are freed.
        for _ in 0..10 {
            drop(Block::new(BLOCK_BYTES[class]).unwrap());
            trim();
        }
        assert!((1..=2).contains(&free()), "{} of {most}", free());
    }

    #[test]
    fn a_block_shows_what_was_filled() {
        let mut block = Block::new(16).unwrap();
        block.space(5).copy_from(b"hello", Site::Inspect);
        block.fill(5);
        block.space(3).copy_from(b"!!!", Site::Inspect);
        block.fill(3);
        assert_eq!(block.bytes(), b"hello!!!");
        block.truncate(6);
        assert_eq!(block.bytes(), b"hello!");
        assert_eq!(block.space(usize::MAX).len(), block.capacity() - 6);
    }
}
