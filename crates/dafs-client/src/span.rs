//! The bytes that a read or write moves: a range of a buffer, and the offset in the file.

use crate::buffer::IoBuffer;
use crate::core::Piece;
use crate::driver::Shared;
use crate::error::{Error, Result};
use std::ops::Range;

pub(crate) const OUTSIDE: Error = Error::Argument("the range does not lie inside the buffer");

/// A range of a buffer that is moved to or from an offset in a file.
#[derive(Debug, Clone)]
pub(crate) struct Span<'a> {
    pub(crate) buffer: &'a IoBuffer,
    pub(crate) range: Range<usize>,
    pub(crate) offset: u64,
}

impl Span<'_> {
    /// # Errors
    /// The range ends before it starts.
    pub(crate) fn len(&self) -> Result<usize> {
        self.range.end.checked_sub(self.range.start).ok_or(OUTSIDE)
    }

    /// The piece that one request of at most `bytes_max` bytes moves.
    pub(crate) fn piece(&self, shared: &Shared, bytes_max: usize) -> Result<Piece> {
        shared.piece(self.buffer, self.range.clone(), self.offset, bytes_max)
    }

    /// `len` bytes from `at` on.
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        let start = self.range.start + at;
        Self { buffer: self.buffer, range: start..start + len, offset: self.offset + at as u64 }
    }

    /// All from `at` on.
    pub(crate) fn rest(&self, at: usize) -> Self {
        let range = self.range.start + at..self.range.end;
        Self { buffer: self.buffer, range, offset: self.offset + at as u64 }
    }

    /// The part that one request of at most `bytes_max` bytes moves.
    pub(crate) fn first(&self, bytes_max: usize) -> Self {
        let Range { start, end } = self.range;
        Self { range: start..end.min(start.saturating_add(bytes_max)), ..*self }
    }
}
