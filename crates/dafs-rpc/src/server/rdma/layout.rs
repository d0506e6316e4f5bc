//! Reassembly of a call from its read chunks (RFC 8166 section 3.4), without I/O.
//!
//! Positions are offsets in the stream of the whole message. The inline part lacks the content of
//! the chunks and the padding after it.
//!
//! Invariants
//! * A layout covers every byte of the message exactly once; otherwise there is no layout.
//! * No message exceeds the limit, whatever the lengths of its segments are.

use dafs_dat::RemoteBuffer;
use dafs_wire::rpcrdma::{Chunks, ReadSegment, Segment};
use dafs_wire::xdr::{UNIT_BYTES, padded};
use smallvec::SmallVec;
use thiserror::Error;

/// The fault in the read chunks of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum LayoutError {
    #[error("the call is longer than the {0} bytes that are accepted")]
    TooLong(usize),
    #[error("a read chunk is placed at {0}, where no item can be")]
    Position(usize),
    #[error("a call without a message has no chunk with one")]
    NoMessage,
}

/// The segments of one read chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadChunk {
    /// The offset of the chunk in the whole message.
    pub(super) position: usize,
    /// Bytes, without padding that the client left out.
    pub(super) len: usize,
    pub(super) segments: SmallVec<[Segment; 4]>,
}

/// The read chunks of a call, in the order of their positions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ReadChunks {
    /// The position-zero read chunk, which holds the message itself.
    pub(super) message: Option<ReadChunk>,
    /// The chunks that hold parts of the message.
    pub(super) parts: SmallVec<[ReadChunk; 1]>,
}

impl ReadChunks {
    /// Groups segments into chunks. `sent_bytes` is the length of the inline part; none when the
    /// message should be in a chunk.
    ///
    /// # Errors
    /// When the chunks do not make up a message of at most `bytes_max` bytes.
    pub(super) fn new(
        chunks: &Chunks,
        sent_bytes: Option<usize>,
        bytes_max: usize,
    ) -> Result<Self, LayoutError> {
        let mut reads: SmallVec<[ReadSegment; 4]> = chunks.reads.clone();
        // A stable sort keeps the order of the bytes within a chunk.
        reads.sort_by_key(|read| read.position);
        let mut all: SmallVec<[ReadChunk; 2]> = SmallVec::new();
        for ReadSegment { position, segment } in reads {
            let position = position as usize;
            if all.last().is_none_or(|chunk| chunk.position != position) {
                all.push(ReadChunk { position, len: 0, segments: SmallVec::new() });
            }
            if let Some(chunk) = all.last_mut()
                && segment.length > 0
            {
                chunk.len = chunk.len.saturating_add(segment.length as usize);
                chunk.segments.push(segment);
            }
        }
        all.retain(|chunk| chunk.len > 0);
        let message = match all.first() {
            Some(first) if first.position == 0 => Some(all.remove(0)),
            _ => None,
        };
        let sent_bytes = match (&message, sent_bytes) {
            (None, Some(bytes)) => bytes,
            (Some(message), None) => message.len,
            (Some(_), Some(_)) => return Err(LayoutError::Position(0)),
            (None, None) => return Err(LayoutError::NoMessage),
        };
        let read = Self { message, parts: all.into_iter().collect() };
        read.check(sent_bytes, bytes_max)?;
        Ok(read)
    }

    fn check(&self, sent_bytes: usize, bytes_max: usize) -> Result<(), LayoutError> {
        let mut total = sent_bytes;
        // The upper and the lower bound of the offset at which the next chunk may begin.
        let (mut end, mut begin) = (sent_bytes, 0);
        for part in &self.parts {
            let in_order = part.position >= begin && part.position <= end;
            if !in_order || !part.position.is_multiple_of(UNIT_BYTES) {
                return Err(LayoutError::Position(part.position));
            }
            let len = padded(part.len);
            total = total.saturating_add(len);
            end = end.saturating_add(len);
            begin = part.position.saturating_add(len);
        }
        if total > bytes_max {
            return Err(LayoutError::TooLong(bytes_max));
        }
        Ok(())
    }

    /// The length of the whole message, of which `sent_bytes` are not in parts.
    pub(super) fn total(&self, sent_bytes: usize) -> usize {
        sent_bytes + self.parts.iter().map(|part| padded(part.len)).sum::<usize>()
    }

    /// Passes each piece with its place in the whole message to `place`, in order. `sent_bytes` as
    /// in [`ReadChunks::new`].
    pub(super) fn lay_out(&self, sent_bytes: usize, mut place: impl FnMut(Place<'_>)) {
        let (mut from, mut to) = (0, 0);
        for part in &self.parts {
            let len = part.position - to;
            if len > 0 {
                place(Place::Sent { from, to, len });
            }
            from += len;
            place(Place::Part { to: part.position, part });
            to = part.position + padded(part.len);
        }
        if from < sent_bytes {
            place(Place::Sent { from, to, len: sent_bytes - from });
        }
    }

    /// The position of each part in the inline stream.
    pub(super) fn reduced_positions(&self) -> impl Iterator<Item = usize> {
        let mut missing = 0;
        self.parts.iter().map(move |part| {
            let at = part.position - missing;
            missing += padded(part.len);
            at
        })
    }
}

/// A piece of the whole message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// Bytes of the inline part, or of the chunk that holds the message.
    Sent {
        /// Their offset in that part.
        from: usize,
        /// Their offset in the whole message.
        to: usize,
        len: usize,
    },
    /// A part, with its padding.
    Part { to: usize, part: &'a ReadChunk },
}

/// Cuts the bytes `from..from + len` out of several segments, as pieces of a peer's memory.
pub(super) fn cut(
    segments: &[Segment],
    from: usize,
    len: usize,
) -> impl Iterator<Item = RemoteBuffer> {
    let (mut skip, mut left) = (from, len);
    segments.iter().filter_map(move |segment| {
        let skipped = skip.min(segment.length as usize);
        skip -= skipped;
        let taken = left.min(segment.length as usize - skipped);
        left -= taken;
        // The peer refuses a range that wraps around; this code must only not panic.
        let address = segment.offset.wrapping_add(skipped as u64);
        let remote = RemoteBuffer { key: segment.handle, address, len: taken as u32 };
        (taken > 0).then_some(remote)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(position: u32, length: u32) -> ReadSegment {
        ReadSegment { position, segment: Segment { handle: 7, length, offset: 1000 } }
    }

    fn chunks(reads: &[ReadSegment]) -> Chunks {
        Chunks { reads: reads.iter().copied().collect(), ..Chunks::default() }
    }

    fn error(reads: &[ReadSegment], sent: Option<usize>) -> LayoutError {
        ReadChunks::new(&chunks(reads), sent, 10_000).unwrap_err()
    }

    #[test]
    fn data_goes_between_what_was_sent() {
        let read = ReadChunks::new(
            &chunks(&[read(100, 3), read(100, 4), read(120, 8)]),
            Some(116),
            10_000,
        )
        .unwrap();
        let mut places = Vec::new();
        read.lay_out(116, |place| {
            places.push(match place {
                Place::Sent { from, to, len } => (from, to, len),
                Place::Part { to, part } => (usize::MAX, to, part.len),
            });
        });
        let part = usize::MAX;
        assert_eq!(
            places,
            [(0, 0, 100), (part, 100, 7), (100, 108, 12), (part, 120, 8), (112, 128, 4)]
        );
        assert_eq!(read.total(116), 132);
        assert_eq!(read.reduced_positions().collect::<Vec<_>>(), [100, 112]);
    }

    #[test]
    fn a_long_call_is_in_the_chunk_at_zero() {
        let read = ReadChunks::new(&chunks(&[read(8, 4), read(0, 16), read(0, 5)]), None, 10_000);
        let read = read.unwrap();
        assert_eq!(read.message.as_ref().map(|chunk| chunk.len), Some(21));
        assert_eq!(read.total(21), 25);
        assert_eq!(error(&[], None), LayoutError::NoMessage);
        assert_eq!(error(&[self::read(0, 0)], None), LayoutError::NoMessage);
        assert_eq!(error(&[self::read(0, 4)], Some(40)), LayoutError::Position(0));
    }

    #[test]
    fn chunks_that_make_no_message_are_refused() {
        assert_eq!(error(&[read(42, 4)], Some(80)), LayoutError::Position(42));
        assert_eq!(error(&[read(84, 4)], Some(80)), LayoutError::Position(84));
        assert_eq!(error(&[read(40, 8), read(44, 8)], Some(80)), LayoutError::Position(44));
        assert_eq!(error(&[read(u32::MAX - 3, 4)], Some(80)), LayoutError::Position(0xffff_fffc));
        let long = [read(40, u32::MAX), read(40, u32::MAX), read(40, u32::MAX)];
        assert_eq!(error(&long, Some(80)), LayoutError::TooLong(10_000));
        assert_eq!(error(&[read(0, 10_001)], None), LayoutError::TooLong(10_000));
    }

    #[test]
    fn segments_are_cut_anywhere() {
        let segments = [read(0, 10), read(0, 20)].map(|read| read.segment);
        let pieces = |from, len| {
            let pieces = cut(&segments, from, len);
            pieces.map(|piece| (piece.address, piece.len)).collect::<Vec<_>>()
        };
        assert_eq!(pieces(0, 30), [(1000, 10), (1000, 20)]);
        assert_eq!(pieces(4, 10), [(1004, 6), (1000, 4)]);
        assert_eq!(pieces(10, 3), [(1000, 3)]);
        assert_eq!(pieces(30, 5), []);
    }

    proptest! {
        #[test]
        fn every_byte_is_covered_once(
            sent in prop::option::of(0usize..200),
            reads in prop::collection::vec((0u32..60, 0u32..90), 0..6),
        ) {
            let reads: Vec<_> = reads.into_iter().map(|(at, len)| read(at * 4, len)).collect();
            let Ok(read) = ReadChunks::new(&chunks(&reads), sent, 400) else { return Ok(()) };
            let sent = sent.or(read.message.as_ref().map(|chunk| chunk.len)).unwrap();
            let total = read.total(sent);
            prop_assert!(total <= 400);
            let (mut to_next, mut from_next) = (0, 0);
            read.lay_out(sent, |place| match place {
                Place::Sent { from, to, len } => {
                    assert_eq!((from, to), (from_next, to_next));
                    from_next += len;
                    to_next += len;
                }
                Place::Part { to, part } => {
                    assert_eq!(to, to_next);
                    to_next += padded(part.len);
                }
            });
            prop_assert_eq!((from_next, to_next), (sent, total));
            prop_assert!(read.reduced_positions().all(|at| at <= sent));
        }
    }
}
