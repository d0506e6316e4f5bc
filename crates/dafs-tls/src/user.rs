//! The user that a client's certificate names (draft-cel-nfsv4-rpc-tls-othername, FreeBSD's
//! rpc.tlsservd).
//!
//! Invariants
//! * A name that is used is the only one of its certificate, and whole. The reader refuses no certificate for
//!   others, because they mean nothing to a server without rules for users.

use crate::der::{Malformed, Reader, tag};
use crate::limits::USER_BYTES_MAX;

/// The kind of a subject alternative name that names a user: 1.3.6.1.4.1.2238.1.1.1.
const KIND: &[u8] = &[0x2b, 6, 1, 4, 1, 0x91, 0x3e, 1, 1, 1];

/// The user that a certificate names in a subject alternative name of its own kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UserName {
    /// None.
    #[default]
    Absent,
    /// This one, as `user@domain`.
    One(String),
    /// Several, or one that is no such name.
    Unclear,
}

impl UserName {
    /// Adds another name (RFC 5280 4.2.1.6), which may be of any kind.
    pub(crate) fn add(&mut self, content: &[u8]) {
        let added = read(content).unwrap_or(Self::Unclear);
        match (&*self, added) {
            (_, Self::Absent) => {}
            (Self::Absent, user) => *self = user,
            _ => *self = Self::Unclear,
        }
    }
}

/// The user in another name, if that is of this kind.
fn read(content: &[u8]) -> Result<UserName, Malformed> {
    let mut other = Reader::new(content);
    if other.expect(tag::OBJECT_IDENTIFIER)? != KIND {
        return Ok(UserName::Absent);
    }
    let mut value = other.inside(tag::OTHER_VALUE)?;
    let text = value.expect(tag::UTF8_STRING)?;
    let text = std::str::from_utf8(text).map_err(|_| Malformed)?;
    let is_whole = other.is_empty() && value.is_empty();
    if is_whole && is_user(text) { Ok(UserName::One(text.to_owned())) } else { Err(Malformed) }
}

/// True for a name such as `anna@example.org`.
pub(crate) fn is_user(text: &str) -> bool {
    let parts = text.split_once('@');
    text.len() <= USER_BYTES_MAX
        && !text.contains(char::is_control)
        && parts.is_some_and(|(user, domain)| {
            !user.is_empty() && !domain.is_empty() && !domain.contains('@')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The user of a certificate with these other names: their kind and value.
    fn read_others(others: &[(&[u8], Vec<u8>)]) -> UserName {
        let element = |kind: &[u8]| [&[tag::OBJECT_IDENTIFIER, kind.len() as u8], kind].concat();
        let mut found = UserName::default();
        for (kind, value) in others {
            found.add(&[element(kind), value.clone()].concat());
        }
        found
    }

    fn value(kind: u8, text: &[u8]) -> Vec<u8> {
        let inner = match text.len() {
            short @ 0..0x80 => [&[kind, short as u8], text].concat(),
            long => [&[kind, 0x82, (long >> 8) as u8, long as u8], text].concat(),
        };
        match inner.len() {
            short @ 0..0x80 => [&[tag::OTHER_VALUE, short as u8], &inner[..]].concat(),
            long => [&[tag::OTHER_VALUE, 0x82, (long >> 8) as u8, long as u8], &inner[..]].concat(),
        }
    }

    #[test]
    fn one_name_of_a_user_is_read() {
        let anna = || value(tag::UTF8_STRING, b"anna@example.org");
        let one = UserName::One("anna@example.org".to_owned());
        assert_eq!(read_others(&[]), UserName::Absent);
        assert_eq!(read_others(&[(KIND, anna())]), one);
        // Other kinds of names are no users: that of Microsoft, and one that only begins so.
        let upn = &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 20, 2, 3];
        let longer = [KIND, &[1]].concat();
        for kind in [&upn[..], &longer, &KIND[..9]] {
            assert_eq!(read_others(&[(kind, anna())]), UserName::Absent);
            assert_eq!(read_others(&[(kind, anna()), (KIND, anna())]), one);
        }
        // The longest name.
        let longest = format!("{}@b", "a".repeat(USER_BYTES_MAX - 2));
        let read = read_others(&[(KIND, value(tag::UTF8_STRING, longest.as_bytes()))]);
        assert_eq!(read, UserName::One(longest));
    }

    #[test]
    fn several_names_of_users_and_other_words_are_unclear() {
        let utf8 = |text: &[u8]| value(tag::UTF8_STRING, text);
        let anna = || (KIND, utf8(b"anna@example.org"));
        let both = [anna(), (KIND, utf8(b"root@example.org"))];
        assert_eq!(read_others(&both), UserName::Unclear);
        assert_eq!(read_others(&[anna(), anna()]), UserName::Unclear);
        assert_eq!(read_others(&[anna(), anna(), anna()]), UserName::Unclear);
        let longer = format!("{}@b", "a".repeat(USER_BYTES_MAX - 1));
        let others: &[&[u8]] =
            &[b"", b"anna", b"@", b"anna@", b"@b", b"a@b@c", b"a\0@b", b"a\n@b", b"\xff@b"];
        for text in others.iter().chain([&longer.as_bytes()]) {
            assert_eq!(read_others(&[(KIND, utf8(text))]), UserName::Unclear, "{text:?}");
            // It hides no other one.
            assert_eq!(read_others(&[(KIND, utf8(text)), anna()]), UserName::Unclear);
            assert_eq!(read_others(&[anna(), (KIND, utf8(text))]), UserName::Unclear);
        }
        let twice = [utf8(b"a@b"), utf8(b"a@b")].concat();
        let inside = [&[tag::OTHER_VALUE, 10][..], b"\x0c\x03a@b", b"\x0c\x03a@b"].concat();
        let no_value = b"\x0c\x03a@b".to_vec();
        let cut = vec![tag::OTHER_VALUE, 9, 0x0c, 3, b'a', b'@', b'b'];
        for bad in [twice, inside, no_value, cut, vec![], value(tag::IA5_STRING, b"a@b")] {
            assert_eq!(read_others(&[(KIND, bad)]), UserName::Unclear);
        }
    }
}
