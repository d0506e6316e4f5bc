//! Errors of the codec.

use super::status::Status;
use thiserror::Error;

/// The reason why a received message cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A boolean, enumeration or bit mask has an undefined value.
    #[error("the field {field} holds the value {value}, which has no meaning there")]
    BadValue {
        /// The type of the field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// The magic is not that of the expected message in the session's byte order (DAFS O64).
    #[error("the message starts with 0x{found:08x}, not with a DAFS magic in the session's order")]
    Magic {
        /// The received word, in the session's byte order.
        found: u32,
    },
    /// The length in the header differs from that of the message (DAFS O15): the session must end.
    #[error("the header says {stated} bytes but the message has {actual}")]
    Length {
        /// The length in the header, in bytes.
        stated: u32,
        /// The length of the message, in bytes.
        actual: usize,
    },
    /// An offset is not a multiple of its target's alignment (DAFS O8).
    #[error("an offset of {offset} is not a multiple of {align}")]
    Misaligned {
        /// The offset, in bytes.
        offset: usize,
        /// The alignment, in bytes.
        align: usize,
    },
    /// A field, offset or count exceeds the end of the message (DAFS O8).
    #[error("a field at {offset} with {bytes} bytes reaches past the end of the message")]
    Overrun {
        /// Start of the field in its scope, in bytes.
        offset: usize,
        /// Its claimed length, in bytes.
        bytes: usize,
    },
    /// The message is shorter than a header: the session must end.
    #[error("the message has {actual} bytes, fewer than its header")]
    Short {
        /// The length of the message, in bytes.
        actual: usize,
    },
    /// A list exceeds the limit.
    #[error("a list has {count} elements, more than the {max} we take")]
    TooMany {
        /// Elements in the list.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// The inline data does not extend from its position to the end of the message.
    #[error("the message says {stated} bytes of inline data but carries {actual}")]
    InlineData {
        /// Bytes that the fixed section announces.
        stated: usize,
        /// Bytes after the start of the data.
        actual: usize,
    },
    /// A padded write on a session that agreed on no `inline_write_header_size` (DAFS O23).
    #[error("a padded write came on a session without inline_write_header_size")]
    PaddingNotAgreed,
    /// The procedure number is neither one of the 57 procedures (DAFS 6) nor an extension.
    #[error("there is no procedure {0}")]
    UnknownProcedure(u32),
}

impl DecodeError {
    /// The status for a request whose body cannot be decoded (DAFS O8).
    pub fn status(self) -> Status {
        match self {
            Self::UnknownProcedure(_) => Status::NotSupp,
            _ => Status::Inval,
        }
    }

    /// True when the session must end, without an answer to the request (DAFS O15, O64).
    pub fn is_fatal(self) -> bool {
        matches!(self, Self::Magic { .. } | Self::Length { .. } | Self::Short { .. })
    }
}

/// The reason why a message cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The message exceeds the buffer (a server answers TOOSMALL, DAFS O57).
    #[error("the message needs more than the {room} bytes of its buffer")]
    NoRoom {
        /// Length of the buffer, in bytes.
        room: usize,
    },
    /// The position of padded data is not usable (DAFS O23).
    #[error("padded data cannot begin at {at}: it has to be a multiple of 8, at least {min}")]
    PaddingTooShort {
        /// The requested position, in bytes from the start of the message.
        at: usize,
        /// The end of the fixed section.
        min: usize,
    },
    /// The body of the reply does not match the procedure and status of the header.
    #[error("a body of {0} is only sent with another status")]
    WrongBody(&'static str),
}
