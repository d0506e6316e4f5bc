//! The hint word of READ, WRITE, APPEND, CACHE_HINT and of each chunk of a batch (draft 6.1.8 and
//! 6.5.6, DAFS 13.4).
//!
//! Invariants
//! * Every word has a meaning, so a hint never makes a message invalid. The draft defines the low
//!   seven bits; the others say nothing.

use super::codec::{Field, Scope, Writer};
use super::error::{DecodeError, EncodeError};

/// The bit that asks for a prefetch.
const PREFETCH: u32 = 0x01;

/// The three bits of a weight.
const WEIGHT: u32 = 0x7;

/// The positions of the two weights.
const READ_SHIFT: u32 = 1;
const WRITE_SHIFT: u32 = 4;

/// How likely a client finds it that it will access data again in the near future (draft 6.5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Likelihood {
    /// The client is confident that it will not.
    SurelyNot = 1,
    /// There is a good chance that it will not.
    Unlikely = 2,
    /// There is a better than even chance that it will not.
    RatherNot = 3,
    /// The client does not know.
    Unknown = 4,
    /// There is a better than even chance that it will.
    Rather = 5,
    /// There is a good chance that it will.
    Likely = 6,
    /// There is an excellent chance that it will.
    Surely = 7,
}

impl Likelihood {
    /// Returns the likelihood with this weight. `None` for 0, which says nothing, and above 7.
    pub const fn from_weight(weight: u32) -> Option<Self> {
        Some(match weight {
            1 => Self::SurelyNot,
            2 => Self::Unlikely,
            3 => Self::RatherNot,
            4 => Self::Unknown,
            5 => Self::Rather,
            6 => Self::Likely,
            7 => Self::Surely,
            _ => return None,
        })
    }
}

/// A hint word: what a client predicts of a range of bytes. The default says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct HintWord {
    /// The range is to be read ahead. It counts in CACHE_HINT alone.
    pub prefetch: bool,
    /// The likelihood that the client reads the range again. `None` says nothing.
    pub read: Option<Likelihood>,
    /// The likelihood that the client writes the range again. `None` says nothing.
    pub write: Option<Likelihood>,
}

impl HintWord {
    /// The word that says nothing.
    pub const NONE: Self = Self { prefetch: false, read: None, write: None };

    /// The client is done with the range.
    pub const DONE: Self = Self::both(Likelihood::SurelyNot);

    /// The client caches the range itself, so it will hardly ask for it again.
    pub const CACHED: Self = Self::both(Likelihood::Unlikely);

    /// The client will use the range again.
    pub const AGAIN: Self = Self::both(Likelihood::Surely);

    /// The range is to be read ahead.
    pub const PREFETCH: Self = Self { prefetch: true, read: Some(Likelihood::Surely), write: None };

    const fn both(likelihood: Likelihood) -> Self {
        Self { prefetch: false, read: Some(likelihood), write: Some(likelihood) }
    }

    /// Returns the meaning of a word. Bits that the draft does not define are ignored.
    #[inline]
    pub const fn from_bits(word: u32) -> Self {
        Self {
            prefetch: word & PREFETCH != 0,
            read: Likelihood::from_weight(word >> READ_SHIFT & WEIGHT),
            write: Likelihood::from_weight(word >> WRITE_SHIFT & WEIGHT),
        }
    }

    /// Returns the word.
    #[inline]
    pub const fn bits(self) -> u32 {
        const fn weight(likelihood: Option<Likelihood>) -> u32 {
            match likelihood {
                Some(likelihood) => likelihood as u32,
                None => 0,
            }
        }
        self.prefetch as u32 | weight(self.read) << READ_SHIFT | weight(self.write) << WRITE_SHIFT
    }

    /// True if a CACHE_HINT with this word asks for a prefetch. The draft ignores the bit unless a
    /// weight is at least 4.
    pub fn asks_prefetch(self) -> bool {
        self.prefetch && self.likelihood().is_some_and(|highest| highest >= Likelihood::Unknown)
    }

    /// Returns the likelihood of any access: the higher one of those that are stated. `None` if
    /// none is stated.
    pub fn likelihood(self) -> Option<Likelihood> {
        self.read.max(self.write)
    }
}

impl<'a> Field<'a> for HintWord {
    const TRIVIAL: bool = true;

    #[inline(always)]
    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        scope.u32(at).map(Self::from_bits)
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put_u32(at, self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_a_meaning_and_the_defined_bits_survive() {
        for word in 0..=0xffff {
            assert_eq!(HintWord::from_bits(word).bits(), word & 0x7f, "{word:#x}");
            assert_eq!(HintWord::from_bits(word << 16 | 0x2b).bits(), 0x2b, "{word:#x}");
        }
        assert_eq!(HintWord::from_bits(u32::MAX).bits(), 0x7f);
        assert_eq!(HintWord::from_bits(0), HintWord::NONE);
    }

    #[test]
    fn the_words_are_those_of_the_draft() {
        let (read, write) = (Some(Likelihood::Surely), Some(Likelihood::SurelyNot));
        assert_eq!(HintWord { read, ..HintWord::NONE }.bits(), 0x0e);
        assert_eq!(HintWord { write, ..HintWord::NONE }.bits(), 0x10);
        let write = Some(Likelihood::Surely);
        assert_eq!(HintWord { prefetch: true, read: None, write }.bits(), 0x71);
        let named = [HintWord::DONE, HintWord::CACHED, HintWord::AGAIN, HintWord::PREFETCH];
        assert_eq!(named.map(HintWord::bits), [0x12, 0x24, 0x7e, 0x0f]);
    }

    #[test]
    fn a_prefetch_of_unlikely_data_is_none() {
        let asks = |word| HintWord::from_bits(word).asks_prefetch();
        for word in [0x01 | 4 << 1, 0x01 | 7 << 1, 0x01 | 4 << 4, 0x01 | 1 << 1 | 5 << 4] {
            assert!(asks(word), "{word:#x}");
        }
        for word in [0, 0x01, 7 << 1, 0x01 | 3 << 1, 0x01 | 3 << 1 | 3 << 4] {
            assert!(!asks(word), "{word:#x}");
        }
    }

    #[test]
    fn the_higher_stated_weight_counts() {
        let likelihood = |word| HintWord::from_bits(word).likelihood();
        assert_eq!(likelihood(0x01), None);
        assert_eq!(likelihood(1 << 1), Some(Likelihood::SurelyNot));
        assert_eq!(likelihood(1 << 1 | 2 << 4), Some(Likelihood::Unlikely));
        assert_eq!(likelihood(1 << 1 | 7 << 4), Some(Likelihood::Surely));
    }
}
