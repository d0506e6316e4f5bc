//! A sequential reader of a file, with read-ahead.
//!
//! Invariants
//! * A piece of memory is read into again only when the caller has finished with its content.
//! * Memory is allocated once, for as many pieces as can be under way.

use super::error::Result;
use super::file::File;
use super::limits::READ_AHEAD_GROWTH;
use super::pending::PendingRead;
use dafs_mem::VolatileSlice;
use dafs_rpc::client::{Memory, MemorySlice};
use std::collections::VecDeque;

/// Reads a file in order.
#[derive(Debug)]
pub struct Reader {
    file: File,
    free: Vec<MemorySlice>,
    under_way: VecDeque<Flying>,
    /// The bound of reads under way: few, until the file is known to be long.
    ahead: usize,
    /// The piece that the caller is using.
    shown: Option<MemorySlice>,
    /// The offset of the next piece.
    offset: u64,
    ended: bool,
}

#[derive(Debug)]
struct Flying {
    pending: PendingRead,
    memory: MemorySlice,
    offset: u64,
}

/// A part of a file in memory.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// Its content.
    pub view: VolatileSlice<'a>,
}

impl Reader {
    pub(crate) fn new(
        file: File,
        offset: u64,
        piece_bytes: usize,
        read_ahead: u32,
    ) -> Result<Self> {
        let piece_bytes = piece_bytes.clamp(1, file.mount().read_bytes_max());
        // The caller uses one piece while the others are under way.
        let pieces = read_ahead as usize + 1;
        let memory: Memory = file.mount().allocate(piece_bytes * pieces)?;
        let part = |at: usize| memory.slice(at * piece_bytes..(at + 1) * piece_bytes);
        let free = (0..pieces).rev().filter_map(part).collect();
        let under_way = VecDeque::with_capacity(pieces);
        let known = file.known_size().map_or(1, |size| {
            let pieces = size.saturating_sub(offset).div_ceil(piece_bytes as u64);
            usize::try_from(pieces).unwrap_or(usize::MAX)
        });
        let ahead = known.clamp(1, READ_AHEAD_GROWTH);
        Ok(Self { file, free, under_way, ahead, shown: None, offset, ended: false })
    }

    /// The next piece; `None` at the end of the file. It stays valid until the next call.
    ///
    /// # Errors
    /// The server's answer. The next call asks for the same piece.
    pub fn next_piece(&mut self) -> Result<Option<Piece<'_>>> {
        self.free.extend(self.shown.take());
        self.send()?;
        let Some(flying) = self.under_way.pop_front() else { return Ok(None) };
        let Flying { pending, memory, offset } = flying;
        let bytes = match pending.wait() {
            Ok(bytes) => bytes,
            Err(error) => {
                // The next call asks for it again.
                self.free.push(memory);
                self.settle();
                (self.offset, self.ahead) = (offset, 1);
                return Err(error);
            }
        };
        if bytes < memory.len() {
            self.ended = true;
            // If the file has grown since, data in later pieces lies behind a gap, and would seem
            // to follow. So those pieces are dropped.
            self.settle();
        } else {
            self.ahead = self.ahead.saturating_mul(READ_AHEAD_GROWTH);
        }
        // The memory of the current piece stays in use, so the others go on meanwhile. The next
        // call reports an error of this.
        let _ = self.send();
        let memory = self.shown.insert(memory);
        // INVARIANT: no more can have been read than the memory holds.
        let view = memory.view().slice(0, bytes).filter(|view| !view.is_empty());
        Ok(view.map(|view| Piece { offset, view }))
    }

    /// Starts as many reads as the bound and the memory allow.
    fn send(&mut self) -> Result<()> {
        // Without read-ahead there is one piece, which is read when it is asked for.
        while !self.ended
            && self.under_way.len() < self.ahead
            && let Some(memory) = self.free.pop()
        {
            let offset = self.offset;
            let pending = match self.file.submit_read(memory.clone(), offset) {
                Ok(pending) => pending,
                Err(error) => {
                    self.free.push(memory);
                    return Err(error);
                }
            };
            self.offset += memory.len() as u64;
            self.under_way.push_back(Flying { pending, memory, offset });
        }
        Ok(())
    }
}

impl Reader {
    /// Waits for reads under way and drops their results.
    fn settle(&mut self) {
        for flying in self.under_way.drain(..) {
            // Only its end matters.
            let _ = flying.pending.wait();
            self.free.push(flying.memory);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.settle();
    }
}
