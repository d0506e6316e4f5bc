//! The plain bytes of sealed results, on their way from the mechanism: data for a sink goes there, all
//! else into a block.
//!
//! Invariants
//! * A place in the sink is chosen by bytes that are not verified yet. The caller relies on it only
//!   after the whole token was found good; then the same bytes say the same.
//! * No more is written than the token has bytes, and nothing beside the sink and the block.

use crate::client::memory::MemorySlice;
use crate::client::request::{Locate, Located};
use crate::limits::GSS_HEAD_TO_SEARCH_BYTES;
use crate::memory::Block;
use dafs_mem::Site;
use dafs_wire::rpc::gss::ProtectedData;
use dafs_wire::xdr::{UNIT_BYTES, padded};
use smallvec::SmallVec;
use std::io;

/// The destination of plain bytes.
pub(super) struct Placing<'a> {
    sink: Option<(&'a MemorySlice, Locate)>,
    /// The most bytes that may come.
    len_max: usize,
    /// The first bytes, until the data is looked for.
    head: SmallVec<[u8; GSS_HEAD_TO_SEARCH_BYTES]>,
    /// `None` as long as the head is gathered.
    block: Option<Block>,
    placed: Option<Placed>,
    /// The first error.
    failed: Option<io::Error>,
}

/// The data in the sink.
struct Placed {
    /// Bytes before the data.
    at: usize,
    len: usize,
    /// Bytes before the data that are still to come.
    before: usize,
    /// Bytes of the data that have come, padding included.
    done: usize,
}

/// All that has come.
pub(super) struct Opened {
    /// The bytes outside of the sink.
    pub(super) block: Block,
    /// The position and the length of the data in the sink.
    pub(super) placed: Option<(usize, usize)>,
}

impl<'a> Placing<'a> {
    /// For a token of so many bytes.
    pub(super) fn new(token_bytes: usize, sink: Option<(&'a MemorySlice, Locate)>) -> Self {
        let (head, len_max) = (SmallVec::new(), token_bytes);
        Self { sink, len_max, head, block: None, placed: None, failed: None }
    }

    /// Takes the next bytes.
    pub(super) fn write(&mut self, mut bytes: &[u8]) {
        if self.block.is_none() {
            let missing = GSS_HEAD_TO_SEARCH_BYTES - self.head.len();
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            self.head.extend_from_slice(head);
            bytes = rest;
            if self.head.len() < GSS_HEAD_TO_SEARCH_BYTES {
                return;
            }
            self.begin();
        }
        self.put(bytes);
    }

    /// Looks for the data in the head, and takes memory for the rest.
    fn begin(&mut self) {
        self.placed = self.locate();
        let moved = self.placed.as_ref().map_or(0, |placed| padded(placed.len));
        match Block::new(self.len_max.saturating_sub(moved)) {
            Ok(block) => self.block = Some(block),
            Err(error) => self.failed = Some(error),
        }
        let head = std::mem::take(&mut self.head);
        self.put(&head);
    }

    fn locate(&self) -> Option<Placed> {
        let (sink, locate) = self.sink.as_ref()?;
        let Located { position, len } = locate(self.head.get(ProtectedData::PREFIX_BYTES..)?)?;
        let at = position.checked_add(ProtectedData::PREFIX_BYTES)?;
        let end = at.checked_add(padded(len))?;
        let fits = len > 0 && len <= sink.len() && position.is_multiple_of(UNIT_BYTES);
        (fits && end <= self.len_max).then_some(Placed { at, len, before: at, done: 0 })
    }

    fn put(&mut self, mut bytes: &[u8]) {
        let Some(block) = &mut self.block else { return };
        if let Some(placed) = &mut self.placed {
            let (before, rest) = bytes.split_at(placed.before.min(bytes.len()));
            placed.before -= before.len();
            append(block, before);
            let missing = padded(placed.len) - placed.done;
            let (data, rest) = rest.split_at(missing.min(rest.len()));
            // The padding goes nowhere.
            let room = placed.len.saturating_sub(placed.done);
            let now = &data[..room.min(data.len())];
            if let Some((sink, _)) = &self.sink
                && let Some(space) = sink.view().slice(placed.done, now.len())
            {
                space.copy_from(now, Site::Gss);
            }
            placed.done += data.len();
            bytes = rest;
        }
        append(block, bytes);
    }

    /// All that has come. `None` if the data is not complete.
    pub(super) fn end(mut self) -> io::Result<Option<Opened>> {
        if self.block.is_none() && self.failed.is_none() {
            self.begin();
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        let is_complete = |placed: &Placed| placed.before == 0 && placed.done == padded(placed.len);
        if !self.placed.as_ref().is_none_or(is_complete) {
            return Ok(None);
        }
        let placed = self.placed.map(|placed| (placed.at, placed.len));
        Ok(self.block.map(|block| Opened { block, placed }))
    }
}

fn append(block: &mut Block, bytes: &[u8]) {
    let copied = block.space(bytes.len()).copy_from(bytes, Site::Gss);
    block.fill(copied);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::memory::Memory;
    use proptest::prelude::*;

    /// Results that begin with the length of their data.
    fn locate(results: &[u8]) -> Option<Located> {
        let len = results.first_chunk().map(|len| u32::from_be_bytes(*len) as usize)?;
        Some(Located { position: 4, len })
    }

    proptest! {
        #[test]
        fn bytes_arrive_in_any_pieces(
            len in 0usize..3000,
            more in 0usize..3000,
            room in 0usize..4000,
            cuts in prop::collection::vec(1usize..2000, 0..8),
        ) {
            let data: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let mut plain = [&[9; 4][..], &(len as u32).to_be_bytes()].concat();
            plain.extend_from_slice(&data);
            plain.resize(8 + padded(len), 0);
            plain.extend((0..more).map(|at| at as u8));
            let memory = Memory::plain(room.max(1)).unwrap();
            let sink = memory.slice(0..room).unwrap();
            let mut placing = Placing::new(plain.len() + 60, Some((&sink, locate)));
            let mut rest = &plain[..];
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                placing.write(now);
                rest = later;
            }
            placing.write(rest);
            let Opened { block, placed } = placing.end().unwrap().unwrap();
            if len > 0 && len <= room {
                prop_assert_eq!(placed, Some((8, len)));
                prop_assert_eq!(sink.view().to_vec(Site::Inspect)[..len].to_vec(), data);
                let others = [&plain[..8], &plain[8 + padded(len)..]].concat();
                prop_assert_eq!(block.bytes(), &others[..]);
            } else {
                prop_assert_eq!(placed, None);
                prop_assert_eq!(block.bytes(), &plain[..]);
            }
        }

        #[test]
        fn incomplete_data_is_told(len in 1u32..2000, missing in 1usize..100) {
            let memory = Memory::plain(4096).unwrap();
            let sink = memory.whole();
            let bytes = padded(len as usize);
            let mut placing = Placing::new(8 + bytes, Some((&sink, locate)));
            placing.write(&[9; 4]);
            placing.write(&len.to_be_bytes());
            placing.write(&vec![1; bytes.saturating_sub(missing)]);
            prop_assert!(placing.end().unwrap().is_none());
        }
    }
}
