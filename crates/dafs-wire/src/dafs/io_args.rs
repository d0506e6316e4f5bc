//! READ, WRITE, APPEND, COMMIT, CACHE_HINT (DAFS 6, 13).
//!
//! Invariants
//! * Inline data has a known position and extends to the end of the message (DAFS 6, O15).

use super::checksum::Checksum;
use super::codec::{Field, Scope, WordBool, Writer, layout, word_enum};
use super::error::{DecodeError, EncodeError};
use super::hint::HintWord;
use super::ids::{DirectBuffer, FileHandle, Stability, StateId, Verifier};
use super::limits::{APPEND_INLINE_DATA_AT, HEADER_BYTES, WRITE_INLINE_DATA_AT};
use super::order::ByteOrder;
use super::seq::Seq;

layout! {
    /// Arguments of READ_INLINE.
    pub struct ReadInline [88] {
        /// The file.
        fh: FileHandle = 0,
        /// The open, or `ZERO`.
        state_id: StateId = 64,
        /// First byte to read.
        offset: u64 = 72,
        /// Most bytes to read.
        byte_count: u32 = 80,
        /// Advice on caching (DAFS 13.4).
        cache_hint: HintWord = 84,
    }

    /// Arguments of READ_DIRECT.
    pub struct ReadDirect<'a> [96] {
        /// The file.
        fh: FileHandle = 0,
        /// The open, or `ZERO`.
        state_id: StateId = 64,
        /// First byte to read.
        offset: u64 = 72,
        /// Most bytes to read.
        byte_count: u32 = 80,
        /// Advice on caching (DAFS 13.4).
        cache_hint: HintWord = 84,
        /// Client memory that the server fills, in order.
        buffers: Seq<'a, DirectBuffer> = 88,
    }
}

/// Result of READ_INLINE; `bytes_read` is the length of `data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadInlineReply<'a> {
    /// True when the read reached the end of the file.
    pub eof: bool,
    /// The bytes read.
    pub data: &'a [u8],
}

impl<'a> ReadInlineReply<'a> {
    /// Length of the fixed section, in bytes.
    pub(crate) const BYTES: usize = 8;

    /// Reads the result from the body of a reply, as for the other results of one procedure.
    ///
    /// # Errors
    /// The fault in the body.
    #[inline]
    pub fn decode_body(body: &'a [u8], order: ByteOrder) -> Result<Self, DecodeError> {
        Self::read(Scope::new(body, order))
    }

    #[inline]
    pub(crate) fn read(scope: Scope<'a>) -> Result<Self, DecodeError> {
        let eof = WordBool::read(scope, 0)?.into();
        let stated = scope.u32(4)? as usize;
        let data = scope.bytes().get(Self::BYTES..).unwrap_or(&[]);
        exact(data, stated).map(|data| Self { eof, data })
    }

    /// Writes the fixed section before `data_bytes` bytes of data.
    #[inline]
    pub(crate) fn write_head(
        writer: &mut Writer<'_>,
        eof: bool,
        data_bytes: usize,
    ) -> Result<(), EncodeError> {
        let at = writer.allocate(Self::BYTES, 8)?;
        WordBool::from(eof).write(writer, at)?;
        writer.put_count(at + 4, data_bytes)
    }
}

layout! {
    /// Result of READ_DIRECT.
    pub struct ReadDirectReply [16] {
        /// True when the read reached the end of the file.
        eof: bool as WordBool = 0,
        /// Bytes written to the buffers.
        bytes_read: u32 = 4,
        /// Checksum of those bytes, when checksums are on (DAFS O20).
        direct_checksum: Checksum = 8,
    }
}

/// Arguments of WRITE_INLINE; `byte_count` is the length of `data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteInline<'a> {
    /// The file.
    pub fh: FileHandle,
    /// The open, or `ZERO`.
    pub state_id: StateId,
    /// First byte to write.
    pub offset: u64,
    /// The data that must be stable before the reply.
    pub stable: Stability,
    /// For a padded write, the session's inline_write_header_size: the start of the data, in bytes
    /// from the start of the message (DAFS O23). `None`: the data follows the fixed section
    /// directly.
    pub padded_to: Option<u32>,
    /// Advice on caching (DAFS 13.4).
    pub cache_hint: HintWord,
    /// The data.
    pub data: &'a [u8],
}

impl<'a> WriteInline<'a> {
    const BYTES: usize = 96;

    #[inline]
    pub(crate) fn read(scope: Scope<'a>, padding: u32) -> Result<Self, DecodeError> {
        scope.require(0, Self::BYTES)?;
        let padded = WordBool::read(scope, 88)?.into();
        let padded_to = padded_place(padded, padding)?;
        Ok(Self {
            fh: Field::read(scope, 0)?,
            state_id: Field::read(scope, 64)?,
            offset: scope.u64(72)?,
            stable: Field::read(scope, 84)?,
            padded_to,
            cache_hint: Field::read(scope, 92)?,
            data: inline_data(scope, WRITE_INLINE_DATA_AT, padded_to, scope.u32(80)?)?,
        })
    }

    /// Writes everything before the data, including the padding.
    #[inline]
    pub(crate) fn write_head(
        &self,
        writer: &mut Writer<'_>,
        data_bytes: usize,
    ) -> Result<(), EncodeError> {
        let at = writer.allocate(Self::BYTES, 8)?;
        self.fh.write(writer, at)?;
        self.state_id.write(writer, at + 64)?;
        writer.put_u64(at + 72, self.offset)?;
        writer.put_count(at + 80, data_bytes)?;
        self.stable.write(writer, at + 84)?;
        WordBool::from(self.padded_to.is_some()).write(writer, at + 88)?;
        self.cache_hint.write(writer, at + 92)?;
        pad(writer, WRITE_INLINE_DATA_AT, self.padded_to)
    }
}

layout! {
    /// Arguments of WRITE_DIRECT.
    pub struct WriteDirect<'a> [104] {
        /// The file.
        fh: FileHandle = 0,
        /// The open, or `ZERO`.
        state_id: StateId = 64,
        /// First byte to write.
        offset: u64 = 72,
        /// Bytes to write.
        byte_count: u32 = 80,
        /// The data that must be stable before the reply.
        stable: Stability = 84,
        /// Advice on caching (DAFS 13.4).
        cache_hint: HintWord = 88,
        /// Checksum of the data, when checksums are on (DAFS O20).
        direct_checksum: Checksum = 92,
        /// Client memory that holds the data, in order.
        buffers: Seq<'a, DirectBuffer> = 96,
    }

    /// Result of WRITE_INLINE and of WRITE_DIRECT.
    pub struct WriteReply [16] {
        /// Bytes written.
        count: u32 = 0,
        /// The stability reached; never less than requested.
        committed: Stability = 4,
        /// The write verifier; it changes after a loss of uncommitted data.
        verifier: Verifier = 8,
    }
}

/// Arguments of APPEND_INLINE; `byte_count` is the length of `data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendInline<'a> {
    /// The file.
    pub fh: FileHandle,
    /// The open, or `ZERO`.
    pub state_id: StateId,
    /// The data that must be stable before the reply.
    pub stable: Stability,
    /// As in [`WriteInline::padded_to`].
    pub padded_to: Option<u32>,
    /// Advice on caching (DAFS 13.4).
    pub cache_hint: HintWord,
    /// The data.
    pub data: &'a [u8],
}

impl<'a> AppendInline<'a> {
    const BYTES: usize = 88;

    #[inline]
    pub(crate) fn read(scope: Scope<'a>, padding: u32) -> Result<Self, DecodeError> {
        scope.require(0, Self::BYTES)?;
        let padded = WordBool::read(scope, 80)?.into();
        let padded_to = padded_place(padded, padding)?;
        Ok(Self {
            fh: Field::read(scope, 0)?,
            state_id: Field::read(scope, 64)?,
            stable: Field::read(scope, 72)?,
            padded_to,
            cache_hint: Field::read(scope, 84)?,
            data: inline_data(scope, APPEND_INLINE_DATA_AT, padded_to, scope.u32(76)?)?,
        })
    }

    /// Writes everything before the data, including the padding.
    #[inline]
    pub(crate) fn write_head(
        &self,
        writer: &mut Writer<'_>,
        data_bytes: usize,
    ) -> Result<(), EncodeError> {
        let at = writer.allocate(Self::BYTES, 8)?;
        self.fh.write(writer, at)?;
        self.state_id.write(writer, at + 64)?;
        self.stable.write(writer, at + 72)?;
        writer.put_count(at + 76, data_bytes)?;
        WordBool::from(self.padded_to.is_some()).write(writer, at + 80)?;
        self.cache_hint.write(writer, at + 84)?;
        pad(writer, APPEND_INLINE_DATA_AT, self.padded_to)
    }
}

layout! {
    /// Arguments of APPEND_DIRECT.
    pub struct AppendDirect [104] {
        /// The file.
        fh: FileHandle = 0,
        /// The open, or `ZERO`.
        state_id: StateId = 64,
        /// The data that must be stable before the reply.
        stable: Stability = 72,
        /// Bytes to append.
        byte_count: u32 = 76,
        /// Advice on caching (DAFS 13.4).
        cache_hint: HintWord = 80,
        /// Checksum of the data, when checksums are on (DAFS O20).
        direct_checksum: Checksum = 84,
        /// Client memory that holds the data.
        buffer: DirectBuffer = 88,
    }

    /// Result of APPEND_INLINE and of APPEND_DIRECT.
    pub struct AppendReply [24] {
        /// The offset of the data in the file.
        offset: u64 = 0,
        /// The write verifier; it changes after a loss of uncommitted data.
        verifier: Verifier = 8,
        /// The stability reached; never less than requested.
        committed: Stability = 16,
    }

    /// Arguments of COMMIT.
    pub struct Commit [80] {
        /// The file.
        fh: FileHandle = 0,
        /// First byte.
        offset: u64 = 64,
        /// Length in bytes; 0 means to the end of the file (DAFS O63).
        count: u32 = 72,
    }

    /// Result of COMMIT.
    pub struct CommitReply [8] {
        /// The write verifier; data that was written under another one may be lost.
        verifier: Verifier = 0,
    }
}

word_enum! {
    /// The expected use of a file (DAFS 13.4).
    pub enum AccessPattern {
        /// No particular pattern.
        Normal = 0,
        /// Random.
        Random = 1,
        /// From front to back.
        Sequential = 2,
        /// It will be used soon.
        WillNeed = 3,
        /// It is no longer used.
        DontNeed = 4,
    }

    /// The target of a search in a file.
    pub enum SeekWhat {
        /// Data.
        Data = 1,
        /// A hole, which reads as zeros; every file ends with one.
        Hole = 2,
    }
}

layout! {
    /// Arguments of X_SEEK, an extension.
    pub struct XSeek [88] {
        /// The file.
        fh: FileHandle = 0,
        /// The open, or `ZERO`.
        state_id: StateId = 64,
        /// Start of the search; NXIO at the end of the file and beyond.
        offset: u64 = 72,
        /// The target of the search.
        what: SeekWhat = 80,
    }

    /// Result of X_SEEK.
    pub struct XSeekReply [16] {
        /// Start of the target, at or after the start of the search.
        offset: u64 = 0,
        /// True if there is none before the end of the file; `offset` is then the end.
        eof: bool as WordBool = 8,
    }

    /// Arguments of CACHE_HINT.
    pub struct CacheHint [88] {
        /// The file.
        fh: FileHandle = 0,
        /// First byte.
        offset: u64 = 64,
        /// Bytes.
        count: u32 = 72,
        /// The expected pattern.
        access_pattern: AccessPattern = 76,
        /// The prediction for these bytes.
        cache_hint: HintWord = 80,
    }
}

/// The start of padded data, if the session has agreed on it (DAFS O23).
fn padded_place(padded: bool, agreed: u32) -> Result<Option<u32>, DecodeError> {
    match (padded, agreed) {
        (false, _) => Ok(None),
        (true, 0) => Err(DecodeError::PaddingNotAgreed),
        (true, agreed) => Ok(Some(agreed)),
    }
}

/// The inline data, which must extend to the end of the message.
#[inline]
fn inline_data<'a>(
    scope: Scope<'a>,
    unpadded_at: usize,
    padded_to: Option<u32>,
    stated: u32,
) -> Result<&'a [u8], DecodeError> {
    let at = padded_to.map_or(unpadded_at, |at| at as usize).max(unpadded_at) - HEADER_BYTES;
    let data = scope.bytes().get(at..).ok_or(DecodeError::Overrun { offset: at, bytes: 0 })?;
    exact(data, stated as usize)
}

fn exact(data: &[u8], stated: usize) -> Result<&[u8], DecodeError> {
    if data.len() == stated {
        Ok(data)
    } else {
        Err(DecodeError::InlineData { stated, actual: data.len() })
    }
}

/// Fills up to the start of padded data.
fn pad(
    writer: &mut Writer<'_>,
    unpadded_at: usize,
    padded_to: Option<u32>,
) -> Result<(), EncodeError> {
    let Some(at) = padded_to else { return Ok(()) };
    let at = at as usize;
    if at < unpadded_at || !at.is_multiple_of(8) {
        return Err(EncodeError::PaddingTooShort { at, min: unpadded_at });
    }
    let bytes = at.saturating_sub(writer.end());
    writer.allocate(bytes, 1)?;
    Ok(())
}
