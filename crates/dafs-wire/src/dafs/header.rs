//! The headers of requests and of replies (DAFS 5.2, 5.3).
//!
//! Invariants
//! * The length in a header is that of the message (DAFS O15).

use super::checksum::Checksum;
use super::codec::{Field, Scope, Writer};
use super::error::{DecodeError, EncodeError};
use super::ids::{Analyzer, ChainFlags, CredHandle, SpecCond};
use super::limits::{HEADER_BYTES, PROTOCOL_VERSION, REPLY_MAGIC, REQUEST_MAGIC};
use super::order::ByteOrder;
use super::procedure::Procedure;
use super::status::Status;

/// The header of a request (DAFS 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The protocol version, the same on every message of a session (DAFS O1).
    pub protocol_version: u32,
    /// Credits that the requester wants; 0 states no wish (DAFS O25).
    pub desired_nreq: u16,
    /// The chain dependency on neighbouring requests.
    pub chain_flags: ChainFlags,
    /// The stream (slot) of the request.
    pub stream_id: u16,
    /// The sequence number in the stream.
    pub seq_number: u16,
    /// A tag that the reply echoes.
    pub analyzer: Analyzer,
    /// The checksum as received; encoders store zero, [`seal`](super::seal) fills it.
    pub message_checksum: Checksum,
    /// The credential to use.
    pub cred_handle: CredHandle,
    /// The number of the procedure, known or not; encoders store that of the request.
    pub procedure: u32,
    /// Length of the whole message in bytes; encoders store the true one.
    pub request_len: u32,
}

impl Default for RequestHeader {
    fn default() -> Self {
        Self {
            protocol_version: PROTOCOL_VERSION,
            desired_nreq: 0,
            chain_flags: ChainFlags::empty(),
            stream_id: 0,
            seq_number: 0,
            analyzer: Analyzer::ZERO,
            message_checksum: Checksum::ZERO,
            cred_handle: CredHandle::SESSION,
            procedure: Procedure::Null as u32,
            request_len: 0,
        }
    }
}

impl RequestHeader {
    /// The procedure; `None` for an unknown number.
    pub fn known_procedure(&self) -> Option<Procedure> {
        Procedure::from_u32(self.procedure)
    }

    /// Decodes the header of a whole message.
    ///
    /// # Errors
    /// The message is shorter than a header, has another magic in this byte order, or has another
    /// length than its header states (DAFS O15, O64). Each of them ends the session.
    #[inline]
    pub fn decode(message: &[u8], order: ByteOrder) -> Result<Self, DecodeError> {
        let scope = checked_scope(message, order, REQUEST_MAGIC, 36)?;
        Ok(Self {
            protocol_version: scope.u32(4)?,
            desired_nreq: scope.u16(8)?,
            chain_flags: ChainFlags::from_bits_retain(scope.u16(10)?),
            stream_id: scope.u16(12)?,
            seq_number: scope.u16(14)?,
            analyzer: Field::read(scope, 16)?,
            message_checksum: Field::read(scope, 24)?,
            cred_handle: Field::read(scope, 28)?,
            procedure: scope.u32(32)?,
            request_len: scope.u32(36)?,
        })
    }

    /// Writes the header of a message of `bytes` bytes to position 0.
    #[inline]
    pub(crate) fn write(
        &self,
        writer: &mut Writer<'_>,
        procedure: Procedure,
        bytes: usize,
    ) -> Result<(), EncodeError> {
        writer.put_u32(0, REQUEST_MAGIC)?;
        writer.put_u32(4, self.protocol_version)?;
        writer.put_u16(8, self.desired_nreq)?;
        writer.put_u16(10, self.chain_flags.bits())?;
        writer.put_u16(12, self.stream_id)?;
        writer.put_u16(14, self.seq_number)?;
        self.analyzer.write(writer, 16)?;
        Checksum::ZERO.write(writer, 24)?;
        self.cred_handle.write(writer, 28)?;
        writer.put_u32(32, procedure as u32)?;
        writer.put_count(36, bytes)
    }
}

/// The scope of a message with the magic and, at `length_at`, its own length.
#[inline]
fn checked_scope(
    message: &[u8],
    order: ByteOrder,
    magic: u32,
    length_at: usize,
) -> Result<Scope<'_>, DecodeError> {
    if message.len() < HEADER_BYTES {
        return Err(DecodeError::Short { actual: message.len() });
    }
    let scope = Scope::new(message, order);
    let found = scope.u32(0)?;
    if found != magic {
        return Err(DecodeError::Magic { found });
    }
    let stated = scope.u32(length_at)?;
    if stated as usize != message.len() {
        return Err(DecodeError::Length { stated, actual: message.len() });
    }
    Ok(scope)
}

/// The header of a reply (DAFS 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The protocol version, or on a mismatch the next lower supported one, or 0 (DAFS O1).
    pub protocol_version: u32,
    /// Credits that the responder targets (DAFS 7).
    pub target_nreq: u16,
    /// Special conditions of the server.
    pub spec_cond: SpecCond,
    /// The stream of the request.
    pub stream_id: u16,
    /// The sequence number of the request.
    pub seq_number: u16,
    /// The tag of the request.
    pub analyzer: Analyzer,
    /// The checksum as received; encoders store zero, [`seal`](super::seal) fills it.
    pub message_checksum: Checksum,
    /// The outcome.
    pub status: Status,
    /// Length of the whole message in bytes; encoders store the true one.
    pub response_len: u32,
}

impl Default for ResponseHeader {
    fn default() -> Self {
        Self::answering(&RequestHeader::default(), 0)
    }
}

impl ResponseHeader {
    /// The header of a successful reply to a request.
    pub fn answering(request: &RequestHeader, target_nreq: u16) -> Self {
        Self {
            protocol_version: PROTOCOL_VERSION,
            target_nreq,
            spec_cond: SpecCond::empty(),
            stream_id: request.stream_id,
            seq_number: request.seq_number,
            analyzer: request.analyzer,
            message_checksum: Checksum::ZERO,
            status: Status::Ok,
            response_len: 0,
        }
    }

    /// The same header with another status.
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// Decodes the header of a whole message.
    ///
    /// # Errors
    /// As [`RequestHeader::decode`].
    #[inline]
    pub fn decode(message: &[u8], order: ByteOrder) -> Result<Self, DecodeError> {
        let scope = checked_scope(message, order, REPLY_MAGIC, 32)?;
        Ok(Self {
            protocol_version: scope.u32(4)?,
            target_nreq: scope.u16(8)?,
            spec_cond: SpecCond::from_bits_retain(scope.u16(10)?),
            stream_id: scope.u16(12)?,
            seq_number: scope.u16(14)?,
            analyzer: Field::read(scope, 16)?,
            message_checksum: Field::read(scope, 24)?,
            status: Field::read(scope, 28)?,
            response_len: scope.u32(32)?,
        })
    }

    /// Writes the header of a message of `bytes` bytes to position 0.
    #[inline]
    pub(crate) fn write(
        &self,
        writer: &mut Writer<'_>,
        status: Status,
        bytes: usize,
    ) -> Result<(), EncodeError> {
        writer.put_u32(0, REPLY_MAGIC)?;
        writer.put_u32(4, self.protocol_version)?;
        writer.put_u16(8, self.target_nreq)?;
        writer.put_u16(10, self.spec_cond.bits())?;
        writer.put_u16(12, self.stream_id)?;
        writer.put_u16(14, self.seq_number)?;
        self.analyzer.write(writer, 16)?;
        Checksum::ZERO.write(writer, 24)?;
        status.write(writer, 28)?;
        writer.put_count(32, bytes)?;
        writer.put_u32(36, 0)
    }
}
