//! A running hash, to compare two runs of one seed.

/// A running hash over words and bytes. Not for use against an attacker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimDigest(u64);

impl Default for SimDigest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl SimDigest {
    /// Adds a number.
    pub fn word(&mut self, word: u64) {
        // Multiplication spreads upwards only; the rotation brings high bits back down.
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// Adds bytes and their count.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|chunk| self.word(u64::from_le_bytes(*chunk)));
        rest.iter().for_each(|byte| self.word(u64::from(*byte)));
    }

    /// The hash so far.
    pub fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_length_and_every_byte_count() {
        let of = |parts: &[&[u8]]| {
            let mut digest = SimDigest::default();
            parts.iter().for_each(|part| digest.bytes(part));
            digest.value()
        };
        assert_eq!(of(&[b"0123456789"]), of(&[b"0123456789"]));
        assert_ne!(of(&[b"0123456789"]), of(&[b"0123456788"]));
        assert_ne!(of(&[b"0123456789"]), of(&[b"1123456789"]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
    }
}
