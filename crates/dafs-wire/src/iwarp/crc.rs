//! The CRC32C of an FPDU (RFC 5044 4.4): over length, segment and padding, sent least significant
//! byte first.

use crc_fast::{CrcAlgorithm, Digest};

/// A running CRC32C.
#[derive(Clone, Copy)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// The state before the first byte.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The four bytes of the trailer; starts over for the next FPDU.
    pub fn finish(&mut self) -> [u8; 4] {
        // The algorithm has 32 bits, so the cast loses none.
        (self.0.finalize_reset() as u32).to_le_bytes()
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Crc32c")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_check_values() {
        // RFC 3720 B.4: 32 bytes of zeros give aa 36 91 8a on the wire.
        let mut crc = Crc32c::new();
        crc.update(&[0; 32]);
        assert_eq!(crc.finish(), [0xaa, 0x36, 0x91, 0x8a]);
        // The same in pieces, after a reset.
        for piece in [&[0u8; 13][..], &[0; 19]] {
            crc.update(piece);
        }
        assert_eq!(crc.finish(), [0xaa, 0x36, 0x91, 0x8a]);
    }
}
