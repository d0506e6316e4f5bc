//! The private data of connection set-up (RFC 8797 section 4).
//!
//! Invariants
//! * Bytes of another format are no error: the peer has then announced nothing.
//! * An announced size is never larger than the real one.

use super::limits::{INLINE_BYTES_MAX, INLINE_UNIT_BYTES};

const MAGIC: [u8; 4] = [0xf6, 0xab, 0x0e, 0x18];
const FORMAT: u8 = 1;
const FLAG_REMOTE_INVALIDATION: u8 = 0x01;

/// The announcement of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    /// The sender's keys may be invalidated by a Send with Invalidate.
    pub remote_invalidation: bool,
    /// The longest message that the sender will send, in bytes.
    pub send_bytes: u32,
    /// The longest message that the sender can receive, in bytes.
    pub receive_bytes: u32,
}

impl PrivateData {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// The block to send. Sizes are rounded down to a multiple of 1024, and limited to 1024 bytes
    /// to 256 KiB, the range of the format.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let flags = if self.remote_invalidation { FLAG_REMOTE_INVALIDATION } else { 0 };
        let [m0, m1, m2, m3] = MAGIC;
        [m0, m1, m2, m3, FORMAT, flags, told(self.send_bytes), told(self.receive_bytes)]
    }

    /// The block at the start of a peer's private data. `None` when there is none: the peer does
    /// not want remote invalidation and takes
    /// [`INLINE_BYTES_DEFAULT`](super::limits::INLINE_BYTES_DEFAULT).
    pub fn find(private_data: &[u8]) -> Option<Self> {
        let rest = private_data.strip_prefix(&MAGIC)?;
        // Later formats may define the rest differently (RFC 8797 section 4).
        let [FORMAT, flags, send, receive, ..] = *rest else { return None };
        Some(Self {
            remote_invalidation: flags & FLAG_REMOTE_INVALIDATION != 0,
            send_bytes: size(send),
            receive_bytes: size(receive),
        })
    }
}

/// The encoded size: units less one.
fn told(bytes: u32) -> u8 {
    let units = (bytes as usize).clamp(INLINE_UNIT_BYTES, INLINE_BYTES_MAX) / INLINE_UNIT_BYTES;
    // INVARIANT: between 1 and 256 units by the clamp.
    u8::try_from(units - 1).expect("a size within the format's range")
}

fn size(told: u8) -> u32 {
    (u32::from(told) + 1) * INLINE_UNIT_BYTES as u32
}
