//! Errors of the codec.

use super::status::Status;
use thiserror::Error;

/// Why a received message cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A boolean, enumeration or bit mask holds a value that has no meaning there.
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
        /// The word found, in the session's byte order.
        found: u32,
    },
    /// The length in the header is not that of the message (DAFS O15): drop the session.
    #[error("the header says {stated} bytes but the message has {actual}")]
    Length {
        /// The length in the header, in bytes.
        stated: u32,
        /// The length of the message, in bytes.
        actual: usize,
    },
    /// An offset is not a multiple of what its target needs (DAFS O8).
    #[error("an offset of {offset} is not a multiple of {align}")]
    Misaligned {
        /// The offset, in bytes.
        offset: usize,
        /// The alignment, in bytes.
        align: usize,
    },
    /// A field, offset or count reaches past the end of the message (DAFS O8).
    #[error("a field at {offset} with {bytes} bytes reaches past the end of the message")]
    Overrun {
        /// Where the field begins in its scope, in bytes.
        offset: usize,
        /// How long it claims to be, in bytes.
        bytes: usize,
    },
    /// The message is shorter than a header: drop the session.
    #[error("the message has {actual} bytes, fewer than its header")]
    Short {
        /// The length of the message, in bytes.
        actual: usize,
    },
    /// A list is longer than we take.
    #[error("a list has {count} elements, more than the {max} we take")]
    TooMany {
        /// Elements in the list.
        count: usize,
        /// Elements we take.
        max: usize,
    },
    /// The inline data does not fill the message from its place to the end.
    #[error("the message says {stated} bytes of inline data but carries {actual}")]
    InlineData {
        /// Bytes the fixed section speaks of.
        stated: usize,
        /// Bytes that follow the place where they begin.
        actual: usize,
    },
    /// A padded write on a session that agreed on no `inline_write_header_size` (DAFS O23).
    #[error("a padded write came on a session without inline_write_header_size")]
    PaddingNotAgreed,
    /// The procedure number is neither one of the 57 (DAFS 6) nor an extension.
    #[error("there is no procedure {0}")]
    UnknownProcedure(u32),
}

impl DecodeError {
    /// The status a server answers with when a request's body does not decode (DAFS O8).
    pub fn status(self) -> Status {
        match self {
            Self::UnknownProcedure(_) => Status::NotSupp,
            _ => Status::Inval,
        }
    }

    /// True when the session has to be dropped instead of the request being answered (DAFS O15,
    /// O64).
    pub fn is_fatal(self) -> bool {
        matches!(self, Self::Magic { .. } | Self::Length { .. } | Self::Short { .. })
    }
}

/// Why a message cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The message does not fit the buffer (a server answers TOOSMALL, DAFS O57).
    #[error("the message needs more than the {room} bytes of its buffer")]
    NoRoom {
        /// Length of the buffer, in bytes.
        room: usize,
    },
    /// The place of padded data is not usable (DAFS O23).
    #[error("padded data cannot begin at {at}: it has to be a multiple of 8, at least {min}")]
    PaddingTooShort {
        /// The place asked for, in bytes from the start of the message.
        at: usize,
        /// The end of the fixed section.
        min: usize,
    },
    /// The reply belongs to another procedure or status than the header says.
    #[error("a body of {0} is only sent with another status")]
    WrongBody(&'static str),
}
