//! The bytes of a message, wherever they lie.
//!
//! Invariants
//! * Every byte is read once. So a peer that changes its memory meanwhile cannot make the MAC and
//!   the cipher see different bytes.
//! * A message of several pieces is never joined.

use crate::limits::{PIECE_BYTES, SMALL_PIECE_BYTES};
use dafs_mem::{Site, VolatileSlice};

/// A message that is read once, from its first byte to its last.
pub trait Source {
    /// Returns the number of bytes that are still unread.
    fn len(&self) -> usize;

    /// Returns true when all is read.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the next bytes. The caller asks for no more than [`len`](Self::len).
    fn read(&mut self, into: &mut [u8]);
}

/// A source that lies in one piece and can be read in another order.
pub trait Contiguous: Source + Sized {
    /// Returns the first `at` bytes, and all others. `at` is at most [`len`](Source::len).
    fn split(self, at: usize) -> (Self, Self);
}

impl Source for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn read(&mut self, into: &mut [u8]) {
        let (now, later) = self.split_at(into.len());
        into.copy_from_slice(now);
        *self = later;
    }
}

impl Contiguous for &[u8] {
    fn split(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Source for VolatileSlice<'_> {
    fn len(&self) -> usize {
        VolatileSlice::len(self)
    }

    fn read(&mut self, into: &mut [u8]) {
        let (now, later) = self.split(into.len());
        now.copy_to(into, Site::Gss);
        *self = later;
    }
}

impl Contiguous for VolatileSlice<'_> {
    fn split(self, at: usize) -> (Self, Self) {
        let halves = self.slice(0, at).zip(self.slice(at, self.len().saturating_sub(at)));
        // INVARIANT: `at` is at most the length, by the contract of `split` and `read`.
        halves.expect("a split inside the view")
    }
}

impl<S: Source + ?Sized> Source for &mut S {
    fn len(&self) -> usize {
        S::len(self)
    }

    fn read(&mut self, into: &mut [u8]) {
        S::read(self, into);
    }
}

/// One source after another.
impl<A: Source, B: Source> Source for (A, B) {
    fn len(&self) -> usize {
        self.0.len() + self.1.len()
    }

    fn read(&mut self, into: &mut [u8]) {
        let (first, second) = into.split_at_mut(self.0.len().min(into.len()));
        if !first.is_empty() {
            self.0.read(first);
        }
        if !second.is_empty() {
            self.1.read(second);
        }
    }
}

/// A list of sources, one after another, such as the slices of a message.
#[derive(Debug, Clone)]
pub struct Parts<'a, S = &'a [u8]> {
    /// The part that is being read.
    current: Option<S>,
    rest: &'a [S],
    /// Unread bytes in all parts.
    len: usize,
}

impl<'a, S: Source + Copy> Parts<'a, S> {
    /// Makes a source of a list.
    pub fn new(parts: &'a [S]) -> Self {
        Self { current: None, rest: parts, len: parts.iter().map(Source::len).sum() }
    }
}

impl<S: Source + Copy> Source for Parts<'_, S> {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&mut self, mut into: &mut [u8]) {
        self.len -= into.len();
        while !into.is_empty() {
            let Some(part) = self.current.as_mut().filter(|part| !part.is_empty()) else {
                let (next, rest) = self
                    .rest
                    .split_first()
                    .map_or((None, self.rest), |(next, rest)| (Some(*next), rest));
                assert!(next.is_some(), "a source is read beyond its end");
                (self.current, self.rest) = (next, rest);
                continue;
            };
            let (now, later) = into.split_at_mut(part.len().min(into.len()));
            part.read(now);
            into = later;
        }
    }
}

/// Shows the next `len` bytes in pieces. All but the last are as long as each other, and a whole number of
/// cipher blocks.
pub(super) fn pieces(source: &mut dyn Source, len: usize, look: &mut dyn FnMut(&[u8])) {
    if len <= SMALL_PIECE_BYTES {
        return pieces_of::<SMALL_PIECE_BYTES>(source, len, look);
    }
    pieces_of::<PIECE_BYTES>(source, len, look);
}

/// Not inlined, so that short messages pay for no large frame.
#[inline(never)]
fn pieces_of<const BYTES: usize>(
    source: &mut dyn Source,
    mut len: usize,
    look: &mut dyn FnMut(&[u8]),
) {
    let mut piece = [0; BYTES];
    while len > 0 {
        let part = &mut piece[..len.min(BYTES)];
        source.read(part);
        look(part);
        len -= part.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_steps(mut source: impl Source, step: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !source.is_empty() {
            let mut piece = vec![0; step.min(source.len())];
            source.read(&mut piece);
            bytes.extend_from_slice(&piece);
        }
        bytes
    }

    #[test]
    fn all_sources_yield_the_same_bytes() {
        let want: Vec<u8> = (0..=255).collect();
        let mut shared = want.clone();
        let view = VolatileSlice::from_mut(&mut shared);
        for step in 1..=260 {
            assert_eq!(read_in_steps(&want[..], step), want);
            assert_eq!(read_in_steps(view, step), want);
            for cut in [0, 1, 17, 255, 256] {
                let (a, b) = want.split_at(cut);
                assert_eq!(read_in_steps((a, b), step), want);
                assert_eq!(read_in_steps(Parts::new(&[a, &[], b, &[]]), step), want);
                let (a, b) = view.split(cut);
                assert_eq!(read_in_steps(Parts::new(&[a, b]), step), want);
            }
        }
    }

    #[test]
    fn pieces_are_whole_blocks_but_for_the_last() {
        for len in [0, 1, 511, 512, 513, 4096, 4097, 10_000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let (mut seen, mut lengths) = (Vec::new(), Vec::new());
            pieces(&mut &bytes[..], len, &mut |piece| {
                seen.extend_from_slice(piece);
                lengths.push(piece.len());
            });
            assert_eq!(seen, bytes);
            let last = lengths.len().saturating_sub(1);
            assert!(lengths[..last].iter().all(|len| len % 16 == 0), "{lengths:?}");
        }
    }
}
