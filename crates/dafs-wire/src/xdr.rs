//! External Data Representation (RFC 4506): a reader and a writer.
//!
//! Invariants
//! * A [`Decoder`] never reads past its input, and a failed read leaves it where it was.
//! * Nothing is allocated for a length that the input has not shown to hold.
//! * What an [`Encoder`] appends is a multiple of four bytes long, item by item.

use thiserror::Error;

/// The unit of XDR: every item fills a multiple of so many bytes (RFC 4506 section 3).
pub const UNIT_BYTES: usize = 4;

/// The length of `len` bytes with the padding behind them; saturates.
pub const fn padded(len: usize) -> usize {
    match len.checked_next_multiple_of(UNIT_BYTES) {
        Some(padded) => padded,
        None => usize::MAX,
    }
}

/// Why bytes are not the XDR that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum XdrError {
    /// The input ends inside an item.
    #[error("the message ends inside an item: {wanted} more bytes wanted, {left} left")]
    Truncated {
        /// Bytes that the item needs.
        wanted: usize,
        /// Bytes that were there.
        left: usize,
    },
    /// A counted item is longer than its definition allows.
    #[error("a length of {len} where at most {max} is allowed")]
    TooLong {
        /// What the message says.
        len: u32,
        /// What the definition allows.
        max: usize,
    },
    /// A boolean that is neither 0 nor 1 (RFC 4506 section 4.4).
    #[error("{0} is not a boolean")]
    NotBool(u32),
    /// A value that the enumeration or union does not have.
    #[error("{value} is no value of {what}")]
    UnknownValue {
        /// The name of the type.
        what: &'static str,
        /// What the message says.
        value: u32,
    },
    /// Bytes are left where the message should end.
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
}

/// What can be read from XDR.
pub trait Decode<'a>: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// When the input is not one.
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError>;
}

/// What can be written as XDR.
pub trait Encode {
    /// Appends the value.
    fn encode(&self, encoder: &mut Encoder<'_>);
}

/// Reads XDR from bytes; what it yields borrows from them.
#[derive(Debug, Clone, Copy)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    /// A reader at the start of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    #[inline]
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// What has not been read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// The bytes from `start`, an earlier [`Decoder::position`], up to here.
    ///
    /// # Errors
    /// [`XdrError::Truncated`] when `start` lies behind the position.
    #[inline]
    pub fn since(&self, start: usize) -> Result<&'a [u8], XdrError> {
        let len = self.at.saturating_sub(start);
        self.bytes.get(start..self.at).ok_or(XdrError::Truncated { wanted: start, left: len })
    }

    /// Reads so many bytes as they are, without padding.
    ///
    /// # Errors
    /// [`XdrError::Truncated`].
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], XdrError> {
        let left = self.remaining();
        if len > left {
            return Err(XdrError::Truncated { wanted: len, left });
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    /// Reads opaque data of a fixed length that needs no padding, or reads the padding too.
    ///
    /// # Errors
    /// [`XdrError::Truncated`].
    #[inline]
    pub fn fixed<const N: usize>(&mut self) -> Result<&'a [u8; N], XdrError> {
        let taken = self.take(padded(N))?;
        taken.first_chunk().ok_or(XdrError::Truncated { wanted: N, left: taken.len() })
    }

    /// Reads an unsigned integer.
    ///
    /// # Errors
    /// [`XdrError::Truncated`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        Ok(u32::from_be_bytes(*self.fixed()?))
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// [`XdrError::Truncated`].
    #[inline]
    pub fn i32(&mut self) -> Result<i32, XdrError> {
        Ok(i32::from_be_bytes(*self.fixed()?))
    }

    /// Reads an unsigned hyper integer.
    ///
    /// # Errors
    /// [`XdrError::Truncated`].
    #[inline]
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        Ok(u64::from_be_bytes(*self.fixed()?))
    }

    /// Reads a hyper integer.
    ///
    /// # Errors
    /// [`XdrError::Truncated`].
    #[inline]
    pub fn i64(&mut self) -> Result<i64, XdrError> {
        Ok(i64::from_be_bytes(*self.fixed()?))
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// [`XdrError::Truncated`], [`XdrError::NotBool`].
    #[inline]
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        let mut ahead = *self;
        let value = match ahead.u32()? {
            0 => false,
            1 => true,
            other => return Err(XdrError::NotBool(other)),
        };
        *self = ahead;
        Ok(value)
    }

    /// Reads opaque data or a string of variable length, of at most `max` bytes. Padding is
    /// skipped whatever it holds (senders that leave garbage there exist).
    ///
    /// # Errors
    /// [`XdrError::TooLong`], [`XdrError::Truncated`].
    #[inline]
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], XdrError> {
        let mut ahead = *self;
        let len = ahead.u32()?;
        if len as usize > max {
            return Err(XdrError::TooLong { len, max });
        }
        let taken = ahead.take(padded(len as usize))?;
        *self = ahead;
        Ok(&taken[..len as usize])
    }

    /// Reads the number of items of an array of at most `max` items, each of which takes at least
    /// `item_bytes_min` bytes; a number that the rest of the input cannot hold is refused here.
    ///
    /// # Errors
    /// [`XdrError::TooLong`], [`XdrError::Truncated`].
    #[inline]
    pub fn array_len(&mut self, max: usize, item_bytes_min: usize) -> Result<usize, XdrError> {
        let mut ahead = *self;
        let len = ahead.u32()?;
        let count = len as usize;
        if count > max {
            return Err(XdrError::TooLong { len, max });
        }
        let wanted = count.saturating_mul(item_bytes_min.max(1));
        let left = ahead.remaining();
        if wanted > left {
            return Err(XdrError::Truncated { wanted, left });
        }
        *self = ahead;
        Ok(count)
    }

    /// Reads optional data (RFC 4506 section 4.19): a boolean, and the value if it is true.
    ///
    /// # Errors
    /// Those of the value, [`XdrError::NotBool`], [`XdrError::Truncated`].
    pub fn optional<T: Decode<'a>>(&mut self) -> Result<Option<T>, XdrError> {
        if self.bool()? { T::decode(self).map(Some) } else { Ok(None) }
    }

    /// Reads a value of type `T`.
    ///
    /// # Errors
    /// When the input is not one.
    #[inline]
    pub fn value<T: Decode<'a>>(&mut self) -> Result<T, XdrError> {
        T::decode(self)
    }

    /// Ends reading.
    ///
    /// # Errors
    /// [`XdrError::Trailing`] when something is left.
    #[inline]
    pub fn finish(self) -> Result<(), XdrError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(XdrError::Trailing(left)),
        }
    }
}

/// Writes XDR behind what a vector holds. Positions are counted from the start of the vector.
#[derive(Debug)]
pub struct Encoder<'v> {
    bytes: &'v mut Vec<u8>,
}

impl<'v> Encoder<'v> {
    /// A writer that appends to `bytes`.
    #[inline]
    pub const fn new(bytes: &'v mut Vec<u8>) -> Self {
        Self { bytes }
    }

    /// The length of the vector now.
    #[inline]
    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    /// What the vector holds.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Cuts off what was written from `position` on.
    #[inline]
    pub fn truncate(&mut self, position: usize) {
        self.bytes.truncate(position);
    }

    /// Replaces the four bytes at `position`, such as a count that is known only later. Nothing
    /// happens when they have not been written.
    #[inline]
    pub fn patch_u32(&mut self, position: usize, value: u32) {
        self.patch(position, &value.to_be_bytes());
    }

    /// Replaces the bytes from `position` on, such as a head whose content is known only after what
    /// follows it. Nothing happens when so many have not been written.
    #[inline]
    pub fn patch(&mut self, position: usize, bytes: &[u8]) {
        let end = position.saturating_add(bytes.len());
        debug_assert!(end <= self.bytes.len(), "a patch of bytes that are not there");
        if let Some(place) = self.bytes.get_mut(position..end) {
            place.copy_from_slice(bytes);
        }
    }

    /// Writes an unsigned integer.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes an integer.
    #[inline]
    pub fn i32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes an unsigned hyper integer.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes a hyper integer.
    #[inline]
    pub fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes a boolean.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Writes a length or a count.
    ///
    /// # Panics
    /// When it does not fit 32 bits, which nothing that came over a wire or goes into a record
    /// can reach.
    #[inline]
    pub fn count(&mut self, len: usize) {
        // INVARIANT: records are far shorter than 4 GiB, and so is everything in them.
        self.u32(u32::try_from(len).expect("a length beyond 32 bits"));
    }

    /// Writes opaque data or a string of variable length: the length, the bytes, the padding.
    #[inline]
    pub fn opaque(&mut self, value: &[u8]) {
        self.count(value.len());
        self.fixed(value);
    }

    /// Writes opaque data of a fixed length: the bytes and the padding.
    #[inline]
    pub fn fixed(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(&[0; UNIT_BYTES][..padded(value.len()) - value.len()]);
    }

    /// Writes bytes that are XDR already.
    #[inline]
    pub fn raw(&mut self, xdr: &[u8]) {
        debug_assert!(xdr.len().is_multiple_of(UNIT_BYTES), "not whole XDR items");
        self.bytes.extend_from_slice(xdr);
    }

    /// Writes optional data (RFC 4506 section 4.19).
    pub fn optional<T: Encode>(&mut self, value: Option<&T>) {
        self.bool(value.is_some());
        if let Some(value) = value {
            value.encode(self);
        }
    }

    /// Writes a value.
    #[inline]
    pub fn value<T: Encode + ?Sized>(&mut self, value: &T) {
        value.encode(self);
    }
}

impl Decode<'_> for u32 {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        decoder.u32()
    }
}

impl Decode<'_> for u64 {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        decoder.u64()
    }
}

impl Encode for u32 {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(*self);
    }
}

impl Encode for u64 {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u64(*self);
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
        fn what_is_written_is_read(values: Vec<Vec<u8>>, number: u64) {
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
