//! The bytes of a message, wherever they lie.
//!
//! Invariants
//! * Every byte is read once. So a peer that changes its memory meanwhile cannot make the MAC and
//!   the cipher see different bytes.
//! * A message of several pieces is never joined.
//! * Bytes that no peer can change are seen where they lie. Others are copied first, in counted
//!   pieces.

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

    /// Passes the next `len` bytes to `look`, in pieces of any length. The caller asks for no more
    /// than [`len`](Self::len).
    fn show(&mut self, len: usize, look: &mut dyn FnMut(&[u8]));
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

    fn show(&mut self, len: usize, look: &mut dyn FnMut(&[u8])) {
        let (now, later) = self.split_at(len);
        look(now);
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

    fn show(&mut self, len: usize, look: &mut dyn FnMut(&[u8])) {
        if len <= SMALL_PIECE_BYTES {
            return copies::<SMALL_PIECE_BYTES>(self, len, look);
        }
        copies::<PIECE_BYTES>(self, len, look);
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

    fn show(&mut self, len: usize, look: &mut dyn FnMut(&[u8])) {
        S::show(self, len, look);
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

    fn show(&mut self, len: usize, look: &mut dyn FnMut(&[u8])) {
        let first = self.0.len().min(len);
        if first > 0 {
            self.0.show(first, look);
        }
        if len > first {
            self.1.show(len - first, look);
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

    /// The part with the next unread byte. The caller knows that there is one.
    fn part(&mut self) -> &mut S {
        while self.current.as_ref().is_none_or(Source::is_empty) {
            let next = self.rest.split_first();
            // INVARIANT: the contract of `read` and `show`.
            let (next, rest) = next.expect("a source is not read beyond its end");
            (self.current, self.rest) = (Some(*next), rest);
        }
        // INVARIANT: the loop has set it.
        self.current.as_mut().expect("a part")
    }
}

impl<S: Source + Copy> Source for Parts<'_, S> {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&mut self, mut into: &mut [u8]) {
        self.len -= into.len();
        while !into.is_empty() {
            let part = self.part();
            let (now, later) = into.split_at_mut(part.len().min(into.len()));
            part.read(now);
            into = later;
        }
    }

    fn show(&mut self, mut len: usize, look: &mut dyn FnMut(&[u8])) {
        self.len -= len;
        while len > 0 {
            let part = self.part();
            let now = part.len().min(len);
            part.show(now, look);
            len -= now;
        }
    }
}

/// Shows the next `len` bytes of memory that a peer may change, in private copies of its pieces. Not
/// inlined, so that short messages pay for no large frame.
#[inline(never)]
fn copies<const BYTES: usize>(
    source: &mut VolatileSlice<'_>,
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

    fn shown_in_steps(mut source: impl Source, step: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !source.is_empty() {
            let len = step.min(source.len());
            let before = bytes.len();
            source.show(len, &mut |piece| bytes.extend_from_slice(piece));
            assert_eq!(bytes.len() - before, len);
        }
        bytes
    }

    #[test]
    fn all_sources_show_the_same_bytes() {
        let want: Vec<u8> = (0..10_000).map(|at| (at * 7) as u8).collect();
        let mut shared = want.clone();
        let view = VolatileSlice::from_mut(&mut shared);
        for step in [1, 511, 512, 513, 4096, 4097, 10_000] {
            assert_eq!(shown_in_steps(&want[..], step), want);
            assert_eq!(shown_in_steps(view, step), want);
            for cut in [0, 1, 5000, 9999, 10_000] {
                let (a, b) = want.split_at(cut);
                assert_eq!(shown_in_steps((a, b), step), want);
                assert_eq!(shown_in_steps(Parts::new(&[a, &[], b, &[]]), step), want);
                let (a, b) = view.split(cut);
                assert_eq!(shown_in_steps(Parts::new(&[a, b]), step), want);
            }
        }
    }

    #[test]
    fn private_bytes_are_shown_where_they_lie() {
        let bytes = [7; 10_000];
        let (a, b) = bytes.split_at(3);
        let mut shown = Vec::new();
        let mut see = |piece: &[u8]| shown.push(piece.as_ptr_range());
        (&b"head"[..], Parts::new(&[a, b])).show(10_004, &mut see);
        assert_eq!(shown[1..], [a.as_ptr_range(), b.as_ptr_range()]);
    }
}
