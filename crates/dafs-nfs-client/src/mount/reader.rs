//! Reading a file from one end to the other, with requests under way ahead of the reader.
//!
//! Invariants
//! * A piece of memory is read into again only when its content has been looked at.
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
    /// How many may be: few, until it is known that the file is long.
    ahead: usize,
    /// What the caller is looking at.
    shown: Option<MemorySlice>,
    /// Where the next piece begins.
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
    /// Where it is in the file, in bytes.
    pub offset: u64,
    /// What is in it.
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
        // One is looked at while the others are under way.
        let pieces = read_ahead as usize + 1;
        let memory: Memory = file.mount().allocate(piece_bytes * pieces)?;
        let part = |at: usize| memory.slice(at * piece_bytes..(at + 1) * piece_bytes);
        let free = (0..pieces).rev().filter_map(part).collect();
        let under_way = VecDeque::with_capacity(pieces);
        Ok(Self { file, free, under_way, ahead: 1, shown: None, offset, ended: false })
    }

    /// The next piece; none at the end of the file. It can be looked at until the next call.
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
            // What the file has grown by since lies behind a gap, and would look as if it followed.
            self.settle();
        } else {
            self.ahead = self.ahead.saturating_mul(READ_AHEAD_GROWTH);
        }
        // The place of the one that is looked at stays empty, so the others go on meanwhile. What cannot be asked
        // for now is for the next call to tell.
        let _ = self.send();
        let memory = self.shown.insert(memory);
        // INVARIANT: no more can have been read than the memory holds.
        let view = memory.view().slice(0, bytes).filter(|view| !view.is_empty());
        Ok(view.map(|view| Piece { offset, view }))
    }

    /// Asks for as many pieces as may be under way and there is memory for.
    fn send(&mut self) -> Result<()> {
        // Without read-ahead there is one piece, and it is asked for when it is wanted.
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
    /// Waits for what is under way and looks at none of it.
    fn settle(&mut self) {
        for flying in self.under_way.drain(..) {
            // Only that it is over matters.
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
