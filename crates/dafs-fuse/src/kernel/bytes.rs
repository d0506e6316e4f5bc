//! Decoding of numbers and texts.

use thiserror::Error;

/// A request, or a message of a handover, is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the bytes end before what they should hold, or hold something else")]
pub(crate) struct Malformed;

/// Decodes items from the front of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (front, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*front)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_ne_bytes)
    }

    /// Bytes up to a zero, which is skipped.
    pub(crate) fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.0.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let text = self.bytes(len)?;
        self.0 = &self.0[1..];
        Ok(text)
    }

    /// All remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_that_is_not_there() {
        let mut reader = Reader::new(&[1, 0, 0, 0, b'a', 0, 7]);
        assert_eq!(reader.u32().map(u32::to_le), Ok(1));
        assert_eq!(reader.text(), Ok(&b"a"[..]));
        assert_eq!((reader.u32(), reader.text()), (Err(Malformed), Err(Malformed)));
        assert_eq!(reader.rest(), [7], "what could not be taken is still there");
    }
}
