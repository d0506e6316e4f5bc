//! The byte order of a session.
//!
//! Invariants
//! * The client's order holds on every channel and in both directions (DAFS 5.1). Only
//!   [`peek_order`] derives an order, from the magic.

use super::limits::{HEADER_BYTES, REPLY_MAGIC, REQUEST_MAGIC};

/// The byte order of all numbers of a session, which the client chooses (DAFS 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Most significant byte first.
    Big,
    /// Least significant byte first.
    Little,
}

impl ByteOrder {
    /// The order of this machine, which a client uses.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    /// Converts a number to the wire order, or back.
    #[inline(always)]
    pub(crate) fn u16(self, value: u16) -> u16 {
        if self == Self::NATIVE { value } else { value.swap_bytes() }
    }

    /// Converts a number to the wire order, or back.
    #[inline(always)]
    pub(crate) fn u32(self, value: u32) -> u32 {
        if self == Self::NATIVE { value } else { value.swap_bytes() }
    }

    /// Converts a number to the wire order, or back.
    #[inline(always)]
    pub(crate) fn u64(self, value: u64) -> u64 {
        if self == Self::NATIVE { value } else { value.swap_bytes() }
    }
}

/// The byte order that the magic of a request or of a reply shows (DAFS O64).
///
/// `None` when the message is shorter than a header or starts with another word: the connection
/// must end.
pub fn peek_order(message: &[u8]) -> Option<ByteOrder> {
    if message.len() < HEADER_BYTES {
        return None;
    }
    let magic = *message.first_chunk::<4>()?;
    let is_magic = |value| value == REQUEST_MAGIC || value == REPLY_MAGIC;
    if is_magic(u32::from_be_bytes(magic)) {
        Some(ByteOrder::Big)
    } else if is_magic(u32::from_le_bytes(magic)) {
        Some(ByteOrder::Little)
    } else {
        None
    }
}
