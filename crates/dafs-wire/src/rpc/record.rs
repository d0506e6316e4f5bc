//! Record marks on byte streams (RFC 5531 section 11).

use super::limits::{FRAGMENT_BYTES_MAX, FRAGMENT_MARK_BYTES};

const LAST: u32 = 0x8000_0000;

/// The mark before a fragment of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentMark {
    /// Length of the fragment in bytes; at most [`FRAGMENT_BYTES_MAX`].
    pub len: u32,
    /// True for the last fragment of its record.
    pub last: bool,
}

impl FragmentMark {
    /// The mark of a record that is one fragment of `len` bytes; `None` when `len` is too large.
    pub fn whole(len: usize) -> Option<Self> {
        let len = u32::try_from(len).ok().filter(|&len| len as usize <= FRAGMENT_BYTES_MAX)?;
        Some(Self { len, last: true })
    }

    /// Decodes a mark; every value is valid.
    #[inline]
    pub const fn from_bytes(bytes: [u8; FRAGMENT_MARK_BYTES]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self { len: word & !LAST, last: word & LAST != 0 }
    }

    /// Encodes the mark.
    #[inline]
    pub const fn to_bytes(self) -> [u8; FRAGMENT_MARK_BYTES] {
        let word = self.len & !LAST;
        (if self.last { word | LAST } else { word }).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_bit_marks_the_last_fragment() {
        let mark = FragmentMark::from_bytes([0x80, 0, 1, 2]);
        assert_eq!(mark, FragmentMark { len: 258, last: true });
        assert_eq!(mark.to_bytes(), [0x80, 0, 1, 2]);
        assert_eq!(FragmentMark { len: 7, last: false }.to_bytes(), [0, 0, 0, 7]);
        assert_eq!(FragmentMark::whole(FRAGMENT_BYTES_MAX).unwrap().to_bytes(), [0xff; 4]);
        assert_eq!(FragmentMark::whole(FRAGMENT_BYTES_MAX + 1), None);
    }
}
