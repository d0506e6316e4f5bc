//! Bitmaps of attribute, operation and other small numbers (`bitmap4`, RFC 8881 3.3.7).
//!
//! Invariants
//! * Numbers up to 95 are stored; a set bit above them is recorded as "an unknown number".
//! * Encoded bitmaps have no zero words at the end.

use super::limits::{BITMAP_WORDS, BITMAP_WORDS_MAX};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use std::fmt;

/// A set of small numbers, such as attributes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bitmap {
    words: [u32; BITMAP_WORDS],
    beyond: bool,
}

impl Bitmap {
    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; BITMAP_WORDS], beyond: false };

    /// The set of these numbers. A number that cannot be stored is recorded as "an unknown number".
    pub const fn of(numbers: &[u32]) -> Self {
        let mut set = Self::EMPTY;
        let mut at = 0;
        while at < numbers.len() {
            set = set.with(numbers[at]);
            at += 1;
        }
        set
    }

    /// The stored words.
    pub const fn words(self) -> [u32; BITMAP_WORDS] {
        self.words
    }

    /// This set and `number`.
    #[must_use]
    pub const fn with(mut self, number: u32) -> Self {
        let word = (number / 32) as usize;
        if word < BITMAP_WORDS {
            self.words[word] |= 1 << (number % 32);
        } else {
            self.beyond = true;
        }
        self
    }

    /// This set without `number`.
    #[must_use]
    pub const fn without(mut self, number: u32) -> Self {
        let word = (number / 32) as usize;
        if word < BITMAP_WORDS {
            self.words[word] &= !(1 << (number % 32));
        }
        self
    }

    /// Adds a number.
    #[inline]
    pub fn insert(&mut self, number: impl Into<u32>) {
        *self = self.with(number.into());
    }

    /// Removes a number.
    #[inline]
    pub fn remove(&mut self, number: impl Into<u32>) {
        *self = self.without(number.into());
    }

    /// True if the number is a member.
    #[inline]
    pub fn contains(self, number: impl Into<u32>) -> bool {
        let number = number.into();
        self.words.get((number / 32) as usize).is_some_and(|word| word >> (number % 32) & 1 != 0)
    }

    /// True if the set is empty, without unknown numbers too.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.words[0] | self.words[1] | self.words[2] == 0 && !self.beyond
    }

    /// True if the set has a number that is too large to be stored, and so unknown.
    #[inline]
    pub const fn has_beyond(self) -> bool {
        self.beyond
    }

    /// The members of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let (a, b) = (self.words, other.words);
        Self { words: [a[0] & b[0], a[1] & b[1], a[2] & b[2]], beyond: self.beyond && other.beyond }
    }

    /// The members of either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        let (a, b) = (self.words, other.words);
        Self { words: [a[0] | b[0], a[1] | b[1], a[2] | b[2]], beyond: self.beyond || other.beyond }
    }

    /// The members of this set that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        let (a, b) = (self.words, other.words);
        Self {
            words: [a[0] & !b[0], a[1] & !b[1], a[2] & !b[2]],
            beyond: self.beyond && !other.beyond,
        }
    }

    /// True if every member is in `other` too.
    pub const fn is_subset_of(self, other: Self) -> bool {
        self.minus(other).is_empty()
    }

    /// The stored members, in ascending order.
    #[inline]
    pub fn iter(self) -> Numbers {
        Numbers { words: self.words, word: 0 }
    }
}

/// Iterator over the numbers of a [`Bitmap`], in ascending order.
#[derive(Debug, Clone)]
pub struct Numbers {
    words: [u32; BITMAP_WORDS],
    word: usize,
}

impl Iterator for Numbers {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while let Some(word) = self.words.get_mut(self.word) {
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                return Some(self.word as u32 * 32 + bit);
            }
            self.word += 1;
        }
        None
    }
}

impl IntoIterator for Bitmap {
    type Item = u32;
    type IntoIter = Numbers;

    fn into_iter(self) -> Numbers {
        self.iter()
    }
}

impl<N: Into<u32>> FromIterator<N> for Bitmap {
    fn from_iter<I: IntoIterator<Item = N>>(numbers: I) -> Self {
        numbers.into_iter().fold(Self::EMPTY, |set, number| set.with(number.into()))
    }
}

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        set.entries(self.iter());
        if self.beyond {
            set.entry(&format_args!("unknown"));
        }
        set.finish()
    }
}

impl<'a> Decode<'a> for Bitmap {
    #[inline]
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let count = d.array_len(BITMAP_WORDS_MAX, 4)?;
        let mut set = Self::EMPTY;
        for at in 0..count {
            let word = d.u32()?;
            match set.words.get_mut(at) {
                Some(kept) => *kept = word,
                None => set.beyond |= word != 0,
            }
        }
        Ok(set)
    }
}

impl Encode for Bitmap {
    #[inline]
    fn encode(&self, e: &mut Encoder<'_>) {
        let count = match self.words {
            [0, 0, 0] => 0,
            [_, 0, 0] => 1,
            [_, _, 0] => 2,
            _ => 3,
        };
        e.u32(count as u32);
        for word in &self.words[..count] {
            e.u32(*word);
        }
    }
}
