//! A reader of the DER encoding (X.690), as much of it as certificates need.
//!
//! Invariants
//! * Every length is definite, minimal and inside its parent. The reader refuses all others.
//! * The reader copies nothing and has no recursion.

/// Tags of X.690 8.1.2: class, constructed bit and number in one byte.
pub(crate) mod tag {
    pub(crate) const BOOLEAN: u8 = 0x01;
    pub(crate) const INTEGER: u8 = 0x02;
    pub(crate) const OCTET_STRING: u8 = 0x04;
    pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
    pub(crate) const UTF8_STRING: u8 = 0x0c;
    pub(crate) const PRINTABLE_STRING: u8 = 0x13;
    pub(crate) const TELETEX_STRING: u8 = 0x14;
    pub(crate) const IA5_STRING: u8 = 0x16;
    pub(crate) const UTC_TIME: u8 = 0x17;
    pub(crate) const GENERALIZED_TIME: u8 = 0x18;
    pub(crate) const BMP_STRING: u8 = 0x1e;
    pub(crate) const SEQUENCE: u8 = 0x30;
    pub(crate) const SET: u8 = 0x31;
    /// `[0] IMPLICIT`, constructed: another name in GeneralName (RFC 5280 4.2.1.6).
    pub(crate) const OTHER_NAME: u8 = 0xa0;
    /// `[0] EXPLICIT`: the value of another name.
    pub(crate) const OTHER_VALUE: u8 = 0xa0;
    /// `[2] IMPLICIT`, primitive: a DNS name in GeneralName (RFC 5280 4.2.1.6).
    pub(crate) const DNS_NAME: u8 = 0x82;
    /// `[7] IMPLICIT`, primitive: an IP address in GeneralName.
    pub(crate) const IP_ADDRESS: u8 = 0x87;
    /// `[0] EXPLICIT`: the version of a certificate.
    pub(crate) const VERSION: u8 = 0xa0;
    /// `[3] EXPLICIT`: the extensions of a certificate.
    pub(crate) const EXTENSIONS: u8 = 0xa3;
}

/// The element that should be there is not, or its length is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// An element: its tag, its content, and all its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    pub(crate) content: &'a [u8],
    pub(crate) whole: &'a [u8],
}

/// Reads elements one after another.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next element.
    pub(crate) fn next(&mut self) -> Result<Element<'a>, Malformed> {
        let (tag, length, head_bytes) = head(self.rest)?;
        let end = head_bytes.checked_add(length).ok_or(Malformed)?;
        let whole = self.rest.get(..end).ok_or(Malformed)?;
        self.rest = &self.rest[end..];
        Ok(Element { tag, content: &whole[head_bytes..], whole })
    }

    /// The content of the next element, which must have this tag.
    pub(crate) fn expect(&mut self, tag: u8) -> Result<&'a [u8], Malformed> {
        let element = self.next()?;
        if element.tag == tag { Ok(element.content) } else { Err(Malformed) }
    }

    /// The next element if it has this tag.
    pub(crate) fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>, Malformed> {
        if self.rest.first() == Some(&tag) { self.expect(tag).map(Some) } else { Ok(None) }
    }

    /// A reader of the next element, which must have this tag.
    pub(crate) fn inside(&mut self, tag: u8) -> Result<Reader<'a>, Malformed> {
        self.expect(tag).map(Reader::new)
    }
}

/// Tag, length of the content, and length of both.
fn head(bytes: &[u8]) -> Result<(u8, usize, usize), Malformed> {
    let (&tag, rest) = bytes.split_first().ok_or(Malformed)?;
    // Numbers above 30 take more bytes (X.690 8.1.2.4). Certificates have none.
    if tag & 0x1f == 0x1f {
        return Err(Malformed);
    }
    match rest {
        [short @ 0..=0x7f, ..] => Ok((tag, usize::from(*short), 2)),
        [0x81, one @ 0x80..=0xff, ..] => Ok((tag, usize::from(*one), 3)),
        [0x82, high @ 1..=0xff, low, ..] => {
            Ok((tag, usize::from(*high) << 8 | usize::from(*low), 4))
        }
        [0x83, high @ 1..=0xff, middle, low, ..] => {
            let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            Ok((tag, length, 5))
        }
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_minimal_and_inside() {
        let read = |bytes: &[u8]| Reader::new(bytes).next().map(|element| element.content.len());
        assert_eq!(read(&[4, 2, 1, 2, 9]), Ok(2));
        assert_eq!(read(&[4, 0]), Ok(0));
        let mut long = vec![4, 0x81, 0x80];
        long.extend([7; 128]);
        assert_eq!(read(&long), Ok(128));
        let mut longer = vec![4, 0x82, 1, 0];
        longer.extend([7; 256]);
        assert_eq!(read(&longer), Ok(256));
        for bad in [
            &[][..],
            &[4],
            &[4, 1],
            &[4, 0x80, 0, 0],
            &[4, 0x81, 5, 1, 2, 3, 4, 5],
            &[4, 0x82, 0, 0x81],
            &[4, 0x84, 0, 0, 0, 1, 1],
            &[0x1f, 0x20, 0],
            &longer[..200],
        ] {
            assert_eq!(read(bad), Err(Malformed), "{bad:x?}");
        }
    }

    #[test]
    fn elements_are_read_in_order() {
        let mut reader = Reader::new(&[0x30, 3, 2, 1, 9, 1, 1, 0xff]);
        let mut inner = reader.inside(tag::SEQUENCE).unwrap();
        assert_eq!(inner.expect(tag::INTEGER), Ok(&[9][..]));
        assert!(inner.is_empty());
        assert_eq!(reader.optional(tag::INTEGER), Ok(None));
        assert_eq!(reader.optional(tag::BOOLEAN), Ok(Some(&[0xff][..])));
        assert!(reader.is_empty());
        assert_eq!(reader.expect(tag::SEQUENCE), Err(Malformed));
    }
}
