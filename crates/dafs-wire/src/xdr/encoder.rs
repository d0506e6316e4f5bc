//! Writing XDR.

use super::{Encode, Payload, UNIT_BYTES, padded};

/// Appends XDR to a vector. Positions count from the start of the vector.
#[derive(Debug)]
pub struct Encoder<'v> {
    bytes: &'v mut Vec<u8>,
}

impl<'v> Encoder<'v> {
    /// An encoder that appends to `bytes`.
    #[inline]
    pub const fn new(bytes: &'v mut Vec<u8>) -> Self {
        Self { bytes }
    }

    /// The current length of the vector.
    #[inline]
    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    /// The content of the vector.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Removes the bytes from `position` on.
    #[inline]
    pub fn truncate(&mut self, position: usize) {
        self.bytes.truncate(position);
    }

    /// Replaces the four bytes at `position`, such as a count that becomes known later. It has no
    /// effect when they have not been written.
    #[inline]
    pub fn patch_u32(&mut self, position: usize, value: u32) {
        self.patch(position, &value.to_be_bytes());
    }

    /// Replaces the bytes from `position` on, such as a head whose content becomes known later. It
    /// has no effect when they reach beyond the written bytes.
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
    /// When it exceeds 32 bits, which no received value and no content of a record can.
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

    /// Writes opaque data; for data that the transport moves, only the length.
    #[inline]
    pub fn payload(&mut self, payload: Payload<'_>) {
        match payload {
            Payload::Here(data) => self.opaque(data),
            Payload::Moved(moved) => self.count(moved.len),
        }
    }

    /// Writes opaque data of a fixed length: the bytes and the padding.
    #[inline]
    pub fn fixed(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(&[0; UNIT_BYTES][..padded(value.len()) - value.len()]);
    }

    /// Appends encoded XDR.
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
