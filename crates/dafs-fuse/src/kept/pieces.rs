//! The unstable data of one file, by offset.
//!
//! Invariants
//! * Pieces do not overlap: of two writes of one place the later one is kept.
//! * A piece knows the first and the last write with bytes in it. A commit under way does not make
//!   later writes of it stable, and may lose earlier ones.

use super::memory::{Charge, Memory, Reachable};
use crate::limits::{KEPT_PIECE_BYTES_MAX, KEPT_PIECE_COST};
use dafs_client::{Verifier, WriteState};
use dafs_mem::{Site, VolatileSlice};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the file.
#[derive(Debug)]
pub(super) struct Piece<W, B: Reachable> {
    pub(super) data: Data<B>,
    pub(super) len: usize,
    pub(super) origin: Origin<W>,
    charge: Charge<B>,
}

/// The origin of a piece.
#[derive(Debug, Clone)]
pub(super) struct Origin<W> {
    /// The open through which it was written, and is retransmitted.
    pub(super) writer: W,
    pub(super) write_state: WriteState,
    /// Number of the last write.
    pub(super) number: u64,
    /// Number of the first one.
    pub(super) oldest: u64,
    /// A lock that may cover it was released since: others may have overwritten it.
    pub(super) is_exposed: bool,
}

#[derive(Debug)]
pub(super) enum Data<B: Reachable> {
    Copied(Vec<u8>),
    Received(Received<B>),
}

/// A buffer with data as it was received, which goes back to the pool when it is free.
#[derive(Debug)]
pub(super) struct Received<B: Reachable> {
    buffer: Option<B>,
    /// The offset of the data in the buffer.
    pub(super) start: usize,
    /// The server may still reach it, for a transfer that has failed.
    is_unsafe: bool,
    memory: Arc<Memory<B>>,
}

impl<B: Reachable> Received<B> {
    pub(super) fn buffer(&self) -> Option<&B> {
        self.buffer.as_ref()
    }

    pub(super) fn mark_unsafe(&mut self) {
        self.is_unsafe = true;
    }
}

impl<B: Reachable> Drop for Received<B> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take().filter(|_| !self.is_unsafe) {
            self.memory.put_free(buffer);
        }
    }
}

impl<W, B: Reachable> Piece<W, B> {
    /// Keeps only its first bytes.
    fn cut_end(&mut self, len: usize) {
        debug_assert!(len < self.len);
        self.len = len;
        if let Data::Copied(bytes) = &mut self.data {
            bytes.truncate(len);
            bytes.shrink_to_fit();
            self.charge.set(KEPT_PIECE_COST + bytes.capacity());
        }
    }

    /// Removes its first bytes.
    fn cut_start(&mut self, bytes: usize) {
        debug_assert!(bytes < self.len);
        self.len -= bytes;
        match &mut self.data {
            Data::Copied(data) => {
                *data = data.split_off(bytes);
                self.charge.set(KEPT_PIECE_COST + data.capacity());
            }
            Data::Received(received) => received.start += bytes,
        }
    }

    /// Overwrites some of its bytes.
    fn overwrite(&mut self, at: usize, source: VolatileSlice<'_>) {
        match &mut self.data {
            Data::Copied(bytes) => {
                source.copy_to(&mut bytes[at..at + source.len()], Site::MountKept);
            }
            Data::Received(Received { buffer, start, .. }) => {
                let place = buffer.as_ref().and_then(|b| b.slice(*start + at, source.len()));
                debug_assert!(place.is_some());
                place.map(|place| place.copy_from_volatile(source, Site::MountKept));
            }
        }
    }
}

impl<W> Origin<W> {
    /// The origin of one write.
    pub(super) fn new(writer: W, write_state: WriteState, number: u64) -> Self {
        Self { writer, write_state, number, oldest: number, is_exposed: false }
    }

    /// Merges the origin of later bytes in the same piece.
    fn join(&mut self, later: Self) {
        let is_same = self.write_state == later.write_state;
        let oldest = self.oldest.min(later.oldest);
        let is_exposed = self.is_exposed || later.is_exposed;
        *self = Self { oldest, is_exposed, ..later };
        if !is_same {
            self.write_state = WriteState::Lost;
        }
    }
}

/// The pieces of one file.
#[derive(Debug)]
pub(super) struct Pieces<W, B: Reachable>(BTreeMap<u64, Piece<W, B>>);

impl<W, B: Reachable> Default for Pieces<W, B> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

fn range_of(offset: u64, len: usize) -> Range<u64> {
    offset..offset.saturating_add(len as u64)
}

impl<W, B: Reachable> Pieces<W, B> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Piece<W, B>)> {
        self.0.iter_mut().map(|(offset, piece)| (*offset, piece))
    }

    /// Removes the piece that begins there.
    pub(super) fn remove(&mut self, offset: u64) {
        self.0.remove(&offset);
    }

    /// The piece that contains a range, and its offset.
    fn around(&mut self, range: &Range<u64>) -> Option<(u64, &mut Piece<W, B>)> {
        let (&start, piece) = self.0.range_mut(..=range.start).next_back()?;
        (range.end <= range_of(start, piece.len).end).then_some((start, piece))
    }

    /// Removes a range that is not inside one larger piece.
    fn carve(&mut self, range: &Range<u64>) {
        if let Some((&start, before)) = self.0.range_mut(..range.start).next_back()
            && range_of(start, before.len).end > range.start
        {
            before.cut_end((range.start - start) as usize);
        }
        while let Some((&start, _)) = self.0.range(range.clone()).next() {
            let Some(mut piece) = self.0.remove(&start) else { break };
            if range_of(start, piece.len).end > range.end {
                piece.cut_start((range.end - start) as usize);
                self.0.insert(range.end, piece);
            }
        }
    }

    /// Retains a copy of a write.
    pub(super) fn copy(
        &mut self,
        offset: u64,
        source: VolatileSlice<'_>,
        origin: Origin<W>,
        mut charge: Charge<B>,
    ) {
        let range = range_of(offset, source.len());
        if let Some((start, piece)) = self.around(&range) {
            piece.overwrite((offset - start) as usize, source);
            return piece.origin.join(origin);
        }
        self.carve(&range);
        if let Some((&start, before)) = self.0.range_mut(..offset).next_back()
            && range_of(start, before.len).end == offset
            && before.origin.write_state == origin.write_state
            && !before.origin.is_exposed
            && before.len + source.len() <= KEPT_PIECE_BYTES_MAX
            && let Data::Copied(bytes) = &mut before.data
        {
            bytes.resize(before.len + source.len(), 0);
            source.copy_to(&mut bytes[before.len..], Site::MountKept);
            before.len += source.len();
            before.charge.set(KEPT_PIECE_COST + bytes.capacity());
            return before.origin.join(origin);
        }
        let bytes = source.to_vec(Site::MountKept);
        charge.set(KEPT_PIECE_COST + bytes.capacity());
        let piece = Piece { len: bytes.len(), data: Data::Copied(bytes), origin, charge };
        self.0.insert(offset, piece);
    }

    /// Retains the buffer itself, whose front holds the write.
    pub(super) fn take(
        &mut self,
        offset: u64,
        buffer: B,
        len: usize,
        origin: Origin<W>,
        charge: Charge<B>,
    ) {
        let memory = charge.memory().clone();
        let range = range_of(offset, len);
        if let Some((start, piece)) = self.around(&range)
            && piece.len > len
        {
            if let Some(source) = buffer.slice(0, len) {
                piece.overwrite((offset - start) as usize, source);
            }
            piece.origin.join(origin);
            return memory.put_free(buffer);
        }
        self.carve(&range);
        let received = Received { buffer: Some(buffer), start: 0, is_unsafe: false, memory };
        self.0.insert(offset, Piece { data: Data::Received(received), len, origin, charge });
    }

    /// Applies a write to that range that is stable already.
    pub(super) fn replaced(&mut self, offset: u64, source: VolatileSlice<'_>) {
        let range = range_of(offset, source.len());
        match self.around(&range) {
            Some((start, piece)) if piece.len > source.len() => {
                piece.overwrite((offset - start) as usize, source);
            }
            _ => self.carve(&range),
        }
    }

    /// Truncates the pieces to the size of the file.
    pub(super) fn cut(&mut self, size: u64) {
        self.0.split_off(&size);
        if let Some((&start, last)) = self.0.iter_mut().next_back()
            && range_of(start, last.len).end > size
        {
            last.cut_end((size - start) as usize);
        }
    }

    /// Applies a COMMIT: all pieces up to this write that were written under the verifier are
    /// stable. True when there are others among them, which are lost. A piece with writes before
    /// and after the COMMIT is not known to be stable, and is lost if any of it is.
    pub(super) fn committed(&mut self, number: u64, verifier: Verifier) -> bool {
        let current = WriteState::Unstable(verifier);
        let mut is_lost = false;
        self.0.retain(|_, piece| {
            let is_current = piece.origin.write_state == current;
            is_lost |= piece.origin.oldest <= number && !is_current;
            !(is_current && piece.origin.number <= number)
        });
        is_lost
    }

    /// Records that a lock is released.
    pub(super) fn expose(&mut self) {
        self.0.values_mut().for_each(|piece| piece.origin.is_exposed = true);
    }

    /// Drops pieces that the server has made stable without a COMMIT.
    pub(super) fn drop_stable(&mut self) {
        self.0.retain(|_, piece| piece.origin.write_state != WriteState::Stable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::KEPT_BYTES_MAX;
    use dafs_client::{File, IoBuffer};
    use dafs_mem::Buffer;

    impl Reachable for Buffer {
        fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
            Self::slice(self, offset, len)
        }

        fn is_shared(&self) -> bool {
            false
        }
    }

    const FILE_BYTES: usize = 300;

    fn verifier(number: u8) -> Verifier {
        Verifier([number; 8])
    }

    fn origin(number: u64, run: u8) -> Origin<()> {
        Origin::new((), WriteState::Unstable(verifier(run)), number)
    }

    /// The retained data, byte by byte.
    fn content(pieces: &mut Pieces<(), Buffer>) -> Vec<Option<u8>> {
        let mut found = vec![None; FILE_BYTES];
        for (offset, piece) in pieces.iter_mut() {
            assert!(piece.len > 0);
            let bytes = match &piece.data {
                Data::Copied(bytes) => bytes.clone(),
                Data::Received(received) => {
                    let buffer = received.buffer().unwrap();
                    buffer.slice(received.start, piece.len).unwrap().to_vec(Site::Inspect)
                }
            };
            assert_eq!(bytes.len(), piece.len);
            for (at, byte) in bytes.into_iter().enumerate() {
                let place = &mut found[offset as usize + at];
                assert!(place.is_none(), "two pieces of one place");
                *place = Some(byte);
            }
        }
        found
    }

    /// Random changes of a file, compared with an array.
    #[test]
    fn the_newest_write_of_each_place_is_kept() {
        let memory = Arc::<Memory<Buffer>>::default();
        let mut seed = 88_172_645_463_325_252_u64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below as u64) as usize
        };
        let (mut pieces, mut wanted) = (Pieces::default(), vec![None; FILE_BYTES]);
        for number in 1..20_000_u64 {
            let offset = random(FILE_BYTES);
            let len = 1 + random((FILE_BYTES - offset).min(60));
            let mut bytes = vec![number as u8; len];
            let origin = origin(number, random(2) as u8);
            let charge = memory.charge(KEPT_PIECE_COST + len).unwrap();
            let new = Some(number as u8);
            match random(20) {
                0 => {
                    pieces.cut(offset as u64);
                    wanted[offset..].fill(None);
                    continue;
                }
                1 => {
                    pieces.replaced(offset as u64, VolatileSlice::from_mut(&mut bytes));
                    // Retained or not, it is not the old data.
                    let kept = content(&mut pieces);
                    for at in offset..offset + len {
                        assert!(kept[at].is_none() || kept[at] == new);
                        wanted[at] = kept[at];
                    }
                }
                2..8 => {
                    let buffer = Buffer::zeroed(len).unwrap();
                    buffer.view().copy_from(&bytes, Site::Inspect);
                    pieces.take(offset as u64, buffer, len, origin, charge);
                    wanted[offset..offset + len].fill(new);
                }
                _ => {
                    let source = VolatileSlice::from_mut(&mut bytes);
                    pieces.copy(offset as u64, source, origin, charge);
                    wanted[offset..offset + len].fill(new);
                }
            }
            assert_eq!(content(&mut pieces), wanted);
        }
        drop(pieces);
        assert_eq!(memory.used_bytes(), 0, "memory that nobody gives back");
    }

    #[test]
    fn a_commit_ends_what_was_written_before_it_under_its_verifier() {
        let memory = Arc::<Memory<Buffer>>::default();
        let mut pieces = Pieces::default();
        let write = |pieces: &mut Pieces<_, _>, offset, number, run| {
            let mut bytes = [number as u8; 10];
            let charge = memory.charge(1000).unwrap();
            pieces.copy(offset, VolatileSlice::from_mut(&mut bytes), origin(number, run), charge);
        };
        write(&mut pieces, 0, 1, 7);
        write(&mut pieces, 100, 2, 7);
        write(&mut pieces, 100, 3, 7);
        assert!(!pieces.committed(2, verifier(7)), "a later write is not meant");
        assert!(content(&mut pieces)[0].is_none() && content(&mut pieces)[100] == Some(3));
        assert!(!pieces.committed(3, verifier(7)) && pieces.is_empty());
        write(&mut pieces, 0, 4, 7);
        write(&mut pieces, 5, 5, 8);
        assert!(pieces.committed(5, verifier(8)), "the first half is lost");
        write(&mut pieces, 2, 6, 8);
        assert!(pieces.committed(6, verifier(8)), "it is not all of the new run");
        pieces.cut(0);
        // Written before, and while the commit was under way.
        write(&mut pieces, 0, 7, 8);
        write(&mut pieces, 10, 8, 8);
        assert!(!pieces.committed(7, verifier(8)), "it is not known of all, but nothing is lost");
        assert!(pieces.committed(7, verifier(9)), "the first half is lost");
        assert!(!pieces.is_empty());
    }

    #[test]
    fn a_piece_costs_what_it_takes() {
        // The smallest allocation, and a place in a tree of which nearly half is free.
        const ALLOCATION_BYTES: usize = 32;
        let place = size_of::<(u64, Piece<Arc<File>, IoBuffer>)>();
        let cost = 2 * place + ALLOCATION_BYTES;
        assert!((cost..cost + 64).contains(&KEPT_PIECE_COST), "{cost}");
    }

    #[test]
    fn small_pieces_are_not_free() {
        let memory = Arc::<Memory<Buffer>>::default();
        let mut pieces = Pieces::default();
        let mut count = 0_u64;
        while let Some(charge) = memory.charge(KEPT_PIECE_COST + 1) {
            let mut byte = [1];
            // Each apart from the one before.
            let offset = 2 * count;
            pieces.copy(offset, VolatileSlice::from_mut(&mut byte), origin(count, 1), charge);
            count += 1;
        }
        assert!(count as usize <= KEPT_BYTES_MAX / KEPT_PIECE_COST);
        // Adjacent writes form one piece.
        drop(pieces);
        let mut pieces = Pieces::default();
        for offset in 0..1000 {
            let charge = memory.charge(KEPT_PIECE_COST + 1).unwrap();
            let mut byte = [1];
            pieces.copy(offset, VolatileSlice::from_mut(&mut byte), origin(offset, 1), charge);
        }
        assert_eq!(pieces.iter_mut().count(), 1);
        assert!(memory.used_bytes() < 2 * KEPT_PIECE_COST + 2000);
    }
}
