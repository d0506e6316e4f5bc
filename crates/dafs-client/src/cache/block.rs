//! One block of a file: its place in memory, and the state of its bytes.
//!
//! Invariants
//! * Dirty bytes, and those being written to the server, are known; bytes being read from it are
//!   not.
//! * Bytes being written to the server do not change.

use super::content::TransferId;
use super::pool::Place;
use super::ranges::Ranges;
use smallvec::SmallVec;
use std::ops::Range;

/// Parts of a block that requests in flight read or write.
pub(super) type Moving = SmallVec<[(Range<u32>, TransferId); 1]>;

/// A block of a file.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) place: Place,
    /// Valid bytes.
    pub(super) known: Ranges,
    /// Bytes not yet sent to the server.
    pub(super) dirty: Ranges,
    /// Bytes that the server is writing here.
    pub(super) filling: Moving,
    /// Bytes that the server is reading here.
    pub(super) flushing: Moving,
    /// A late answer may still write to it, so it must not be reused.
    pub(super) is_unsafe: bool,
    /// Its place in the order of use; 0 while it cannot be evicted.
    pub(super) stamp: u64,
}

impl Block {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            known: Ranges::default(),
            dirty: Ranges::default(),
            filling: SmallVec::new(),
            flushing: SmallVec::new(),
            is_unsafe: false,
            stamp: 0,
        }
    }

    /// True when it can be evicted.
    pub(super) fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.filling.is_empty() && self.flushing.is_empty()
    }

    /// The request that is moving a part of `range`.
    pub(super) fn mover(moving: &Moving, range: &Range<u32>) -> Option<TransferId> {
        let overlaps =
            |part: &&(Range<u32>, _)| part.0.start < range.end && range.start < part.0.end;
        moving.iter().find(overlaps).map(|part| part.1)
    }

    /// Invalidates `range`, except bytes that the server has not got.
    pub(super) fn forget(&mut self, range: Range<u32>) {
        self.known.remove(range);
        let kept = self.dirty.iter().chain(self.flushing.iter().map(|part| part.0.clone()));
        kept.for_each(|part| self.known.insert(part));
    }

    /// The parts of `range` that must be requested.
    pub(super) fn unknown(&self, range: Range<u32>) -> SmallVec<[Range<u32>; 2]> {
        let mut gaps = SmallVec::new();
        for gap in self.known.gaps(range) {
            let mut moving = Ranges::default();
            self.filling.iter().for_each(|part| moving.insert(part.0.clone()));
            gaps.extend(moving.gaps(gap));
        }
        gaps
    }

    pub(super) fn check(&self) {
        debug_assert!(self.dirty.iter().all(|part| self.known.contains(&part)));
        debug_assert!(self.flushing.iter().all(|part| self.known.contains(&part.0)));
        debug_assert!(!self.flushing.iter().any(|part| self.dirty.overlaps(&part.0)));
        debug_assert!(!self.filling.iter().any(|part| self.known.overlaps(&part.0)));
    }
}
