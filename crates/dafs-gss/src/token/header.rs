//! Headers of tokens (RFC 4121 4.2.6).
//!
//! Invariants
//! * A decoded header is one that this context may receive: its id, its filler and its flags are right.
//! * Unknown flags are ignored, as RFC 4121 4.2.2 asks. The checksum covers them.

use super::TokenError;
use crate::enctype::HEADER_BYTES;

const MIC_ID: [u8; 2] = [0x04, 0x04];
const WRAP_ID: [u8; 2] = [0x05, 0x04];

/// The flags of a token (RFC 4121 4.2.2).
const SENT_BY_ACCEPTOR: u8 = 0x01;
const SEALED: u8 = 0x02;
const ACCEPTOR_SUBKEY: u8 = 0x04;

/// The flags that all tokens of one direction of a context have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Direction {
    /// The acceptor sends the tokens.
    pub(super) from_acceptor: bool,
    /// The key is a subkey that the acceptor chose.
    pub(super) acceptor_subkey: bool,
}

impl Direction {
    fn flags(self) -> u8 {
        let mut flags = 0;
        if self.from_acceptor {
            flags |= SENT_BY_ACCEPTOR;
        }
        if self.acceptor_subkey {
            flags |= ACCEPTOR_SUBKEY;
        }
        flags
    }

    /// Checks flags that were received.
    fn check(self, flags: u8) -> Result<(), TokenError> {
        if flags & SENT_BY_ACCEPTOR != self.flags() & SENT_BY_ACCEPTOR {
            return Err(TokenError::Direction);
        }
        if flags & ACCEPTOR_SUBKEY != self.flags() & ACCEPTOR_SUBKEY {
            return Err(TokenError::Subkey);
        }
        Ok(())
    }

    /// Returns the header of a MIC token (RFC 4121 4.2.6.1).
    pub(super) fn mic_header(self, sequence: u64) -> [u8; HEADER_BYTES] {
        header(MIC_ID, self.flags(), [0xff; 5], sequence)
    }

    /// Checks the header of a MIC token.
    pub(super) fn check_mic(self, header: &[u8; HEADER_BYTES]) -> Result<(), TokenError> {
        if header[..2] != MIC_ID || header[3..8] != [0xff; 5] {
            return Err(TokenError::Malformed);
        }
        self.check(header[2])
    }

    /// Returns the header of a wrap token (RFC 4121 4.2.6.2) without rotation, whose data is followed by `ec`
    /// bytes of filler.
    pub(super) fn wrap_header(self, ec: u16, sequence: u64) -> [u8; HEADER_BYTES] {
        let [high, low] = ec.to_be_bytes();
        header(WRAP_ID, self.flags() | SEALED, [0xff, high, low, 0, 0], sequence)
    }

    /// Checks the header of a wrap token. Data that is not sealed is refused.
    pub(super) fn check_wrap(self, header: &[u8; HEADER_BYTES]) -> Result<Wrap, TokenError> {
        if header[..2] != WRAP_ID || header[3] != 0xff {
            return Err(TokenError::Malformed);
        }
        self.check(header[2])?;
        if header[2] & SEALED == 0 {
            return Err(TokenError::NotSealed);
        }
        let short = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let mut inner = *header;
        inner[6..8].fill(0);
        Ok(Wrap { extra_count: short(4), rotation: short(6), inner })
    }
}

/// The decoded header of a wrap token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrap {
    /// The bytes of filler behind the data (EC).
    pub(super) extra_count: usize,
    /// The bytes by which the rest of the token was rotated to the right (RRC).
    pub(super) rotation: usize,
    /// The copy of the header that must be found inside: without rotation.
    pub(super) inner: [u8; HEADER_BYTES],
}

fn header(id: [u8; 2], flags: u8, middle: [u8; 5], sequence: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..2].copy_from_slice(&id);
    header[2] = flags;
    header[3..8].copy_from_slice(&middle);
    header[8..].copy_from_slice(&sequence.to_be_bytes());
    header
}
