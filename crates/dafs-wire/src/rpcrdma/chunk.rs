//! The chunk lists of a header, which name memory of its sender (RFC 8166 section 4.3).
//!
//! Invariants
//! * One budget of [`SEGMENTS_MAX`] bounds all lists; the count before an array is accepted only
//!   when the rest of the input can hold it.

use super::header::HeaderProblem;
use super::limits::{SEGMENT_BYTES, SEGMENTS_MAX};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use smallvec::SmallVec;

/// A piece of registered memory. Its values are claims of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The key of the registration (steering tag).
    pub handle: u32,
    /// Length in bytes.
    pub length: u32,
    /// The start address. The end may lie beyond 64 bits: additions must be checked.
    pub offset: u64,
}

/// A piece of memory to read, and the position of its bytes in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSegment {
    /// The offset in the XDR stream of the whole message, in bytes. Segments of one position form
    /// one chunk; position 0 is the message itself (RFC 8166 section 3.4.4).
    pub position: u32,
    /// The memory.
    pub segment: Segment,
}

/// A write chunk or the reply chunk: memory that is filled segment by segment. In a reply the
/// lengths are those that were written (RFC 8166 section 4.3.2).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chunk {
    /// The segments, in the order of the bytes. The list may be empty, and segments may be empty.
    pub segments: SmallVec<[Segment; 4]>,
}

impl Chunk {
    /// The total length of the segments.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.length)).sum()
    }

    /// True if the segments have no bytes, such as those of an unused write chunk in a reply.
    pub fn is_empty(&self) -> bool {
        self.segments.iter().all(|segment| segment.length == 0)
    }

    fn encoded_bytes(&self) -> usize {
        4 + self.segments.len() * SEGMENT_BYTES
    }
}

/// All chunks of a header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chunks {
    /// Memory for the receiver to read (the read list).
    pub reads: SmallVec<[ReadSegment; 4]>,
    /// Memory for DDP-eligible results, one chunk for each (the write list).
    pub writes: SmallVec<[Chunk; 2]>,
    /// Memory for the whole reply if it does not fit inline (the reply chunk).
    pub reply: Option<Chunk>,
}

impl Chunks {
    /// Reads the three lists.
    pub(super) fn decode(decoder: &mut Decoder<'_>) -> Result<Self, HeaderProblem> {
        let mut budget = Budget(SEGMENTS_MAX);
        let mut chunks = Self::default();
        while decoder.bool()? {
            budget.take(1)?;
            let position = decoder.u32()?;
            chunks.reads.push(ReadSegment { position, segment: decoder.value()? });
        }
        while decoder.bool()? {
            chunks.writes.push(budget.chunk(decoder)?);
        }
        if decoder.bool()? {
            chunks.reply = Some(budget.chunk(decoder)?);
        }
        Ok(chunks)
    }

    /// The length of the three lists, in bytes.
    pub(super) fn encoded_bytes(&self) -> usize {
        let reads = 4 + self.reads.len() * (4 + 4 + SEGMENT_BYTES);
        let writes = self.writes.iter().fold(4, |sum, chunk| sum + 4 + chunk.encoded_bytes());
        let reply = 4 + self.reply.as_ref().map_or(0, Chunk::encoded_bytes);
        reads + writes + reply
    }
}

/// The number of segments that a header may still name.
struct Budget(usize);

impl Budget {
    fn take(&mut self, segments: usize) -> Result<(), HeaderProblem> {
        self.0 = self.0.checked_sub(segments).ok_or(HeaderProblem::TooManySegments)?;
        Ok(())
    }

    fn chunk(&mut self, decoder: &mut Decoder<'_>) -> Result<Chunk, HeaderProblem> {
        let count = decoder.array_len(usize::MAX, SEGMENT_BYTES)?;
        self.take(count.saturating_add(1))?;
        let mut segments = SmallVec::with_capacity(count);
        for _ in 0..count {
            segments.push(decoder.value()?);
        }
        Ok(Chunk { segments })
    }
}

impl Decode<'_> for Segment {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(Self { handle: decoder.u32()?, length: decoder.u32()?, offset: decoder.u64()? })
    }
}

impl Encode for Segment {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(self.handle);
        encoder.u32(self.length);
        encoder.u64(self.offset);
    }
}

impl Encode for Chunk {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.count(self.segments.len());
        self.segments.iter().for_each(|segment| encoder.value(segment));
    }
}

impl Encode for Chunks {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        for read in &self.reads {
            encoder.bool(true);
            encoder.u32(read.position);
            encoder.value(&read.segment);
        }
        encoder.bool(false);
        for chunk in &self.writes {
            encoder.bool(true);
            encoder.value(chunk);
        }
        encoder.bool(false);
        encoder.optional(self.reply.as_ref());
    }
}
