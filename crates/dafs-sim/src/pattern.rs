//! File content that identifies its origin: every write has a number. Each byte follows from that
//! number and its position in the file.

/// The number of a write; no two writes of a world share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(pub u64);

impl WriteId {
    /// The eight bytes at positions `8 * word ..` of the file.
    fn word(self, word: u64) -> [u8; 8] {
        let mut z =
            self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word.wrapping_mul(0xd6e8_feb8_6659_fd93);
        z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (z ^ (z >> 32)).to_le_bytes()
    }

    /// The byte at a position of the file.
    pub fn byte(self, position: u64) -> u8 {
        self.word(position / 8)[(position % 8) as usize]
    }

    /// `len` bytes from `offset` of the file.
    pub fn bytes(self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        let skip = (offset % 8) as usize;
        for word in offset / 8.. {
            if bytes.len() >= len + skip {
                break;
            }
            bytes.extend_from_slice(&self.word(word));
        }
        bytes.drain(..skip);
        bytes.truncate(len);
        bytes
    }

    /// True when `bytes` are the content of this write at `offset`.
    pub fn matches(self, offset: u64, bytes: &[u8]) -> bool {
        match bytes {
            [byte] => self.byte(offset) == *byte,
            _ => self.bytes(offset, bytes.len()) == bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_from_number_and_position() {
        let write = WriteId(7);
        let all = write.bytes(0, 100);
        assert_eq!(write.bytes(13, 50), all[13..63]);
        assert!(write.matches(13, &all[13..63]));
        assert!(!write.matches(14, &all[13..63]));
        assert!(!WriteId(8).matches(13, &all[13..63]));
        assert_eq!(write.bytes(5, 0), b"");
    }
}
