//! Maps the bytes of a load: two cursors over the file's ranges and the client's buffers.
//!
//! Invariants
//! * The parts of a transfer cover its data without gap or overlap, and so do its moves.
//! * No part crosses the end of a staging chunk.

use crate::limits::STAGING_CHUNK_BYTES;
use dafs_dat::RemoteBuffer;
use dafs_wire::dafs::{DirectBuffer, FileChunk};
use std::cmp::Ordering;

/// A piece of a transfer that is one range of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Index of the transfer in the load.
    pub(super) transfer: usize,
    /// Position in the transfer's data.
    pub(super) at: usize,
    /// Position in the file.
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl Part {
    /// True if `next` begins in the file where this part ends.
    pub(super) fn meets(&self, next: &Self) -> bool {
        self.offset.checked_add(self.len as u64) == Some(next.offset)
    }
}

/// Appends the parts of the first `limit` bytes of a transfer.
pub(super) fn parts(transfer: usize, chunks: &[FileChunk], limit: usize, parts: &mut Vec<Part>) {
    let mut at = 0;
    for chunk in chunks {
        let len = (chunk.byte_count as usize).min(limit - at);
        if len > 0 {
            parts.push(Part { transfer, at, offset: chunk.offset, len });
        }
        at += len;
    }
}

/// Orders parts by file and offset. `order` compares the files of two transfers.
pub(super) fn sort(parts: &mut [Part], order: impl Fn(usize, usize) -> Ordering) {
    parts.sort_by(|one, other| {
        order(one.transfer, other.transfer)
            .then(one.offset.cmp(&other.offset))
            // Overlapping parts keep the order of the request.
            .then((one.transfer, one.at).cmp(&(other.transfer, other.at)))
    });
}

/// One RDMA operation: a piece of a staging chunk and the client's memory for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    /// Index of the chunk in the load.
    pub(super) chunk: usize,
    pub(super) offset: usize,
    pub(super) remote: RemoteBuffer,
}

impl Move {
    fn end(&self) -> usize {
        self.offset + self.remote.len as usize
    }
}

/// Appends the moves of the first `bytes` bytes of a transfer whose data begins at `base` of the
/// load's chunks. A move that continues the last of `moves` on both sides is merged with it.
pub(super) fn moves(base: usize, bytes: usize, buffers: &[DirectBuffer], moves: &mut Vec<Move>) {
    let mut done = 0;
    for buffer in buffers {
        let mut used = 0;
        while used < buffer.byte_count as usize && done < bytes {
            let (chunk, offset) =
                ((base + done) / STAGING_CHUNK_BYTES, (base + done) % STAGING_CHUNK_BYTES);
            let len = (buffer.byte_count as usize - used)
                .min(bytes - done)
                .min(STAGING_CHUNK_BYTES - offset);
            let remote = RemoteBuffer {
                key: buffer.context,
                address: buffer.address.wrapping_add(used as u64),
                len: len as u32,
            };
            match moves.last_mut() {
                Some(last)
                    if last.chunk == chunk
                        && last.end() == offset
                        && last.remote.key == remote.key
                        && last.remote.address.checked_add(last.remote.len.into())
                            == Some(remote.address) =>
                {
                    last.remote.len += remote.len;
                }
                _ => moves.push(Move { chunk, offset, remote }),
            }
            used += len;
            done += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::dafs::HintWord;

    fn chunk(offset: u64, byte_count: u32) -> FileChunk {
        FileChunk { offset, byte_count, cache_hint: HintWord::NONE }
    }

    fn buffer(address: u64, byte_count: u32) -> DirectBuffer {
        DirectBuffer { address, byte_count, context: 9 }
    }

    #[test]
    fn adjacent_memory_is_moved_at_once() {
        let mut found = Vec::new();
        moves(0, 8192, &[buffer(0x1000, 4096), buffer(0x2000, 4096)], &mut found);
        moves(8192, 4096, &[buffer(0x3000, 4096)], &mut found);
        moves(12_288, 10, &[buffer(0x9000, 10)], &mut found);
        let lens: Vec<_> = found.iter().map(|found| found.remote.len).collect();
        assert_eq!(lens, [12_288, 10]);
    }

    #[test]
    fn parts_are_sorted_by_file_and_offset() {
        let mut found = Vec::new();
        parts(0, &[chunk(8192, 4096), chunk(0, 4096)], 8192, &mut found);
        parts(1, &[chunk(4096, 4096)], 4096, &mut found);
        parts(2, &[chunk(0, 1)], 1, &mut found);
        sort(&mut found, |one, other| (one == 2).cmp(&(other == 2)));
        let order: Vec<_> = found.iter().map(|part| (part.transfer, part.at)).collect();
        assert_eq!(order, [(0, 4096), (1, 0), (0, 0), (2, 0)]);
        assert!(found[0].meets(&found[1]) && found[1].meets(&found[2]));
    }

    #[test]
    fn moves_cover_the_data_once() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let buffers: Vec<_> =
                (0..=random(7)).map(|n| buffer(n << 32, random(400_000) as u32)).collect();
            let total: usize = buffers.iter().map(|buffer| buffer.byte_count as usize).sum();
            let bytes = total.min(random(1_500_000) as usize);
            let base = random(600_000) as usize;
            let mut found = Vec::new();
            moves(base, bytes, &buffers, &mut found);
            let mut at = base;
            for piece in &found {
                assert_eq!(piece.chunk * STAGING_CHUNK_BYTES + piece.offset, at);
                assert!(piece.end() <= STAGING_CHUNK_BYTES);
                at += piece.remote.len as usize;
            }
            assert_eq!(at, base + bytes);
        }
    }
}
