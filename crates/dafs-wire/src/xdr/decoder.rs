//! Reading XDR.

use super::{Decode, MovedData, MovedItem, Payload, XdrError, padded};

/// Reads XDR from bytes; its values borrow from them.
#[derive(Debug, Clone, Copy)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Items that were moved out of the stream (DDP), in stream order.
    moved: &'a [MovedItem],
    /// The index of the next such item.
    moved_next: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder at the start of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self::with_moved(bytes, &[])
    }

    /// A decoder at the start of `bytes`, from which the data of `moved` was moved. The items
    /// belong to one message, in the order of their positions.
    #[inline]
    pub const fn with_moved(bytes: &'a [u8], moved: &'a [MovedItem]) -> Self {
        Self { bytes, at: 0, moved, moved_next: 0 }
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

    /// The unread bytes.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// The bytes from `start`, an earlier [`Decoder::position`], up to here.
    ///
    /// # Errors
    /// [`XdrError::Truncated`] when `start` lies after the position.
    #[inline]
    pub fn since(&self, start: usize) -> Result<&'a [u8], XdrError> {
        let len = self.at.saturating_sub(start);
        self.bytes.get(start..self.at).ok_or(XdrError::Truncated { wanted: start, left: len })
    }

    /// Reads `len` bytes without padding.
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

    /// Reads opaque data of a fixed length, which needs no padding or includes it.
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

    /// Reads opaque data or a string of variable length, of at most `max` bytes. The content of
    /// padding is ignored, because some senders leave garbage there.
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

    /// Reads opaque data of at most `max` bytes that may have been moved out of the stream.
    ///
    /// # Errors
    /// Those of [`Decoder::opaque`], [`XdrError::Misplaced`], [`XdrError::MovedLength`].
    #[inline]
    pub fn payload(&mut self, max: usize) -> Result<Payload<'a>, XdrError> {
        if self.moved_next < self.moved.len() {
            return self.payload_apart(max);
        }
        self.opaque(max).map(Payload::Here)
    }

    /// The same for a message with moved items.
    #[cold]
    fn payload_apart(&mut self, max: usize) -> Result<Payload<'a>, XdrError> {
        let index = self.moved_next;
        let item = self.moved[index];
        let mut ahead = *self;
        let word = ahead.u32()?;
        match item.at {
            // The item belongs to a later payload.
            Some(at) if at > ahead.at => return self.opaque(max).map(Payload::Here),
            Some(at) if at < ahead.at => return Err(XdrError::Misplaced(at)),
            _ => {}
        }
        let len = word as usize;
        if len > max {
            return Err(XdrError::TooLong { len: word, max });
        }
        ahead.moved_next += 1;
        if item.len == 0 && (item.at.is_none() || len == 0) {
            // The item was not moved.
            ahead.at = self.at;
            let data = ahead.opaque(max)?;
            *self = ahead;
            return Ok(Payload::Here(data));
        }
        if item.len != len && item.len != padded(len) {
            return Err(XdrError::MovedLength { len, moved: item.len });
        }
        *self = ahead;
        Ok(Payload::Moved(MovedData { index, len }))
    }

    /// All items that were moved out of the message.
    #[inline]
    pub const fn moved(&self) -> &'a [MovedItem] {
        self.moved
    }

    /// Checks that no data was moved out of the part that was read without a payload.
    ///
    /// # Errors
    /// [`XdrError::Misplaced`].
    #[inline]
    pub fn check_apart(&self) -> Result<(), XdrError> {
        match self.moved.get(self.moved_next) {
            Some(MovedItem { at: Some(at), .. }) if *at <= self.at => Err(XdrError::Misplaced(*at)),
            _ => Ok(()),
        }
    }

    /// Continues at `position`, an earlier [`Decoder::position`] of a decoder of the same message.
    /// For messages whose moved items have known positions: items before it count as read.
    ///
    /// # Errors
    /// [`XdrError::Truncated`].
    pub fn resume(&mut self, position: usize) -> Result<(), XdrError> {
        let rest = position.saturating_sub(self.at);
        self.take(rest)?;
        let items = &self.moved[self.moved_next..];
        let read = items.iter().take_while(|item| item.at.is_some_and(|at| at <= position));
        self.moved_next += read.count();
        Ok(())
    }

    /// Reads the number of items of an array of at most `max` items of at least `item_bytes_min`
    /// bytes. A number that the rest of the input cannot hold is refused.
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
    /// When the input is not a value of this type.
    #[inline]
    pub fn value<T: Decode<'a>>(&mut self) -> Result<T, XdrError> {
        T::decode(self)
    }

    /// Ends reading.
    ///
    /// # Errors
    /// [`XdrError::Trailing`] when bytes are left, [`XdrError::Misplaced`] when moved data belongs
    /// to no payload.
    #[inline]
    pub fn finish(self) -> Result<(), XdrError> {
        match self.remaining() {
            0 => self.finish_apart(),
            left => Err(XdrError::Trailing(left)),
        }
    }

    /// Checks that all moved data was read as a payload; for callers that ignore the rest.
    ///
    /// # Errors
    /// [`XdrError::Misplaced`].
    #[inline]
    pub fn finish_apart(&self) -> Result<(), XdrError> {
        let mut left = self.moved[self.moved_next..].iter();
        match left.find(|item| item.len > 0) {
            None => Ok(()),
            Some(item) => Err(XdrError::Misplaced(item.at.unwrap_or(self.at))),
        }
    }
}
