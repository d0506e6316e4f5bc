//! External Data Representation (RFC 4506): a decoder and an encoder.
//!
//! Invariants
//! * A [`Decoder`] never reads beyond its input, and a failed read does not move it.
//! * A length causes no allocation before the input has proved to hold it.
//! * Each item that an [`Encoder`] appends is a multiple of four bytes long.

mod decoder;
mod encoder;
mod payload;

pub use decoder::Decoder;
pub use encoder::Encoder;
pub use payload::{MovedData, MovedItem, Payload};

use thiserror::Error;

/// The unit of XDR: every item fills a multiple of this size (RFC 4506 section 3).
pub const UNIT_BYTES: usize = 4;

/// The length of `len` bytes with their padding; saturates.
pub const fn padded(len: usize) -> usize {
    match len.checked_next_multiple_of(UNIT_BYTES) {
        Some(padded) => padded,
        None => usize::MAX,
    }
}

/// The reason why bytes are not the expected XDR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum XdrError {
    /// The input ends inside an item.
    #[error("the message ends inside an item: {wanted} more bytes wanted, {left} left")]
    Truncated {
        /// Bytes that the item needs.
        wanted: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A counted item is longer than its definition allows.
    #[error("a length of {len} where at most {max} is allowed")]
    TooLong {
        /// The length in the message.
        len: u32,
        /// The limit of the definition.
        max: usize,
    },
    /// A boolean that is neither 0 nor 1 (RFC 4506 section 4.4).
    #[error("{0} is not a boolean")]
    NotBool(u32),
    /// An undefined value of an enumeration or union.
    #[error("{value} is no value of {what}")]
    UnknownValue {
        /// The name of the type.
        what: &'static str,
        /// The value in the message.
        value: u32,
    },
    /// Bytes follow the end of the message.
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
    /// Moved data belongs to no payload of the message (RFC 8166 3.4.5).
    #[error("data was moved from position {0}, where the message has none that may be")]
    Misplaced(usize),
    /// The length of moved data differs from that in the message.
    #[error("{moved} bytes were moved for data of {len} bytes")]
    MovedLength {
        /// The length in the message.
        len: usize,
        /// The moved bytes.
        moved: usize,
    },
}

/// A type that can be decoded from XDR.
pub trait Decode<'a>: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// When the input is not a value of this type.
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError>;
}

/// A type that can be encoded as XDR.
pub trait Encode {
    /// Appends the value.
    fn encode(&self, encoder: &mut Encoder<'_>);

    /// The bytes of the value alone.
    fn encoded(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut Encoder::new(&mut bytes));
        bytes
    }
}

/// The error for an undefined enumerator or union arm.
#[cold]
pub(crate) const fn no_such(what: &'static str, value: u32) -> XdrError {
    XdrError::UnknownValue { what, value }
}

macro_rules! primitives {
    ($( $name:ident )*) => { $(
        impl Decode<'_> for $name {
            #[inline]
            fn decode(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
                d.$name()
            }
        }

        impl Encode for $name {
            #[inline]
            fn encode(&self, e: &mut Encoder<'_>) {
                e.$name(*self);
            }
        }
    )* };
}

primitives! { bool i32 u32 i64 u64 }

impl<const N: usize> Decode<'_> for [u8; N] {
    #[inline]
    fn decode(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(*d.fixed()?)
    }
}

impl<const N: usize> Encode for [u8; N] {
    #[inline]
    fn encode(&self, e: &mut Encoder<'_>) {
        e.fixed(self);
    }
}

/// Opaque data that only the message limits: it is borrowed, so its length costs nothing.
impl<'a> Decode<'a> for &'a [u8] {
    #[inline]
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.opaque(usize::MAX)
    }
}

impl Encode for &[u8] {
    #[inline]
    fn encode(&self, e: &mut Encoder<'_>) {
        e.opaque(self);
    }
}

/// Opaque data that a transport may have moved outside of the message.
impl<'a> Decode<'a> for Payload<'a> {
    #[inline]
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.payload(usize::MAX)
    }
}

impl Encode for Payload<'_> {
    #[inline]
    fn encode(&self, e: &mut Encoder<'_>) {
        e.payload(*self);
    }
}

/// Optional data, an array of at most one item and a union on a boolean have the same encoding.
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    #[inline]
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.optional()
    }
}

impl<T: Encode> Encode for Option<T> {
    #[inline]
    fn encode(&self, e: &mut Encoder<'_>) {
        e.optional(self.as_ref());
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.count(self.len());
        self.iter().for_each(|item| item.encode(e));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut Encoder::new(&mut bytes));
        bytes
    }

    #[test]
    fn integers_are_big_endian() {
        let bytes = written(|e| {
            e.u32(0x0102_0304);
            e.i32(-2);
            e.u64(0x0102_0304_0506_0708);
            e.i64(-1);
            e.bool(true);
        });
        assert_eq!(bytes[..8], [1, 2, 3, 4, 0xff, 0xff, 0xff, 0xfe]);
        let mut d = Decoder::new(&bytes);
        assert_eq!(d.u32(), Ok(0x0102_0304));
        assert_eq!(d.i32(), Ok(-2));
        assert_eq!(d.u64(), Ok(0x0102_0304_0506_0708));
        assert_eq!(d.i64(), Ok(-1));
        assert_eq!(d.bool(), Ok(true));
        assert_eq!(d.finish(), Ok(()));
    }

    #[test]
    fn opaque_data_is_padded_and_bounded() {
        let bytes = written(|e| e.opaque(b"hello"));
        assert_eq!(bytes, b"\0\0\0\x05hello\0\0\0");
        assert_eq!(Decoder::new(&bytes).opaque(5), Ok(&b"hello"[..]));
        let mut d = Decoder::new(&bytes);
        assert_eq!(d.opaque(4), Err(XdrError::TooLong { len: 5, max: 4 }));
        assert_eq!(d.position(), 0);
        // The padding belongs to the item.
        let short = Decoder::new(&bytes[..9]).opaque(5);
        assert_eq!(short, Err(XdrError::Truncated { wanted: 8, left: 5 }));
        let huge = Decoder::new(&[0xff; 8]).opaque(usize::MAX);
        assert!(matches!(huge, Err(XdrError::Truncated { .. })));
    }

    #[test]
    fn counts_that_cannot_fit_are_refused() {
        let bytes = written(|e| {
            e.u32(3);
            e.u64(0);
        });
        assert_eq!(Decoder::new(&bytes).array_len(3, 4).unwrap_err(), {
            XdrError::Truncated { wanted: 12, left: 8 }
        });
        assert_eq!(Decoder::new(&bytes).array_len(3, 2), Ok(3));
        let many = Decoder::new(&bytes).array_len(2, 1);
        assert_eq!(many, Err(XdrError::TooLong { len: 3, max: 2 }));
        assert!(Decoder::new(&[0xff; 12]).array_len(usize::MAX, usize::MAX).is_err());
    }

    #[test]
    fn optional_data_has_a_flag() {
        let bytes = written(|e| {
            e.optional(Some(&7u32));
            e.optional::<u32>(None);
        });
        let mut d = Decoder::new(&bytes);
        assert_eq!(d.optional(), Ok(Some(7u32)));
        assert_eq!(d.optional::<u32>(), Ok(None));
        assert_eq!(Decoder::new(&[0, 0, 0, 2]).optional::<u32>(), Err(XdrError::NotBool(2)));
    }

    #[test]
    fn patches_and_cuts_work_behind_other_bytes() {
        let mut bytes = vec![9; 4];
        let mut e = Encoder::new(&mut bytes);
        let count = e.position();
        e.u32(0);
        e.u32(5);
        let mark = e.position();
        e.u64(1);
        e.truncate(mark);
        e.patch_u32(count, 1);
        assert_eq!(bytes, [9, 9, 9, 9, 0, 0, 0, 1, 0, 0, 0, 5]);
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(values: Vec<Vec<u8>>, number: u64) {
            let bytes = written(|e| {
                e.u64(number);
                e.count(values.len());
                values.iter().for_each(|value| e.opaque(value));
            });
            let mut d = Decoder::new(&bytes);
            prop_assert_eq!(d.u64(), Ok(number));
            let count = d.array_len(values.len(), 4).unwrap();
            for value in &values[..count] {
                prop_assert_eq!(d.opaque(value.len()), Ok(&value[..]));
            }
            prop_assert_eq!(d.finish(), Ok(()));
        }

        #[test]
        fn a_failed_read_moves_nothing(bytes: Vec<u8>, max in 0usize..64) {
            let mut d = Decoder::new(&bytes);
            while d.opaque(max).is_ok() {}
            let at = d.position();
            prop_assert!(d.opaque(max).is_err());
            prop_assert!(d.array_len(0, 1).is_err() || d.position() == at + 4);
        }
    }
}
