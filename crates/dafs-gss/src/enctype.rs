//! Encryption types of Kerberos, and the sizes of their tokens.
//!
//! Invariants
//! * Only types with AES exist here. A context with any other type is refused when it is established.

use std::fmt;
use zeroize::Zeroizing;

/// The bytes of a token's header (RFC 4121 4.2.6).
pub(crate) const HEADER_BYTES: usize = 16;

/// The random bytes before sealed data (RFC 3962 6, RFC 8009 5).
pub(crate) const CONFOUNDER_BYTES: usize = 16;

/// The longest key, in bytes.
const KEY_BYTES_MAX: usize = 32;

/// An encryption type of Kerberos.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enctype {
    /// aes128-cts-hmac-sha1-96, 17 (RFC 3962).
    Aes128Sha1,
    /// aes256-cts-hmac-sha1-96, 18 (RFC 3962).
    Aes256Sha1,
    /// aes128-cts-hmac-sha256-128, 19 (RFC 8009).
    Aes128Sha256,
    /// aes256-cts-hmac-sha384-192, 20 (RFC 8009).
    Aes256Sha384,
}

impl Enctype {
    /// All types, by their numbers.
    pub const ALL: [Self; 4] =
        [Self::Aes128Sha1, Self::Aes256Sha1, Self::Aes128Sha256, Self::Aes256Sha384];

    /// Returns the type with this number, if it is one of those with AES.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            17 => Some(Self::Aes128Sha1),
            18 => Some(Self::Aes256Sha1),
            19 => Some(Self::Aes128Sha256),
            20 => Some(Self::Aes256Sha384),
            _ => None,
        }
    }

    /// Returns the number of the type, in the registry of Kerberos encryption types.
    pub const fn number(self) -> u32 {
        match self {
            Self::Aes128Sha1 => 17,
            Self::Aes256Sha1 => 18,
            Self::Aes128Sha256 => 19,
            Self::Aes256Sha384 => 20,
        }
    }

    /// Returns the name of the type, as krb5.conf spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Sha1 => "aes128-cts-hmac-sha1-96",
            Self::Aes256Sha1 => "aes256-cts-hmac-sha1-96",
            Self::Aes128Sha256 => "aes128-cts-hmac-sha256-128",
            Self::Aes256Sha384 => "aes256-cts-hmac-sha384-192",
        }
    }

    /// Returns the length of a key, in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes128Sha256 => 16,
            Self::Aes256Sha1 | Self::Aes256Sha384 => 32,
        }
    }

    /// Returns the length of a checksum, in bytes.
    pub const fn checksum_len(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes256Sha1 => 12,
            Self::Aes128Sha256 => 16,
            Self::Aes256Sha384 => 24,
        }
    }

    /// Returns the length of a MIC token (RFC 4121 4.2.6.1), in bytes.
    pub const fn mic_len(self) -> usize {
        HEADER_BYTES + self.checksum_len()
    }

    /// Returns the bytes by which a sealed message is longer than the message.
    pub const fn seal_overhead(self) -> usize {
        HEADER_BYTES + CONFOUNDER_BYTES + HEADER_BYTES + self.checksum_len()
    }

    /// Returns the length of the wrap token (RFC 4121 4.2.6.2) that seals a message of `len` bytes.
    pub const fn sealed_len(self, len: usize) -> usize {
        len + self.seal_overhead()
    }

    /// Returns the most bytes of data that a wrap token of `len` bytes may hold: with an extra count of 0,
    /// it holds exactly these. `None` for what is too short to be a wrap token.
    pub const fn opened_len_max(self, len: usize) -> Option<usize> {
        len.checked_sub(self.seal_overhead())
    }
}

impl fmt::Display for Enctype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The key of a context, from which the keys of its messages are derived. It is erased when it is dropped.
pub struct Key {
    enctype: Enctype,
    bytes: Zeroizing<[u8; KEY_BYTES_MAX]>,
}

/// A key has a length that its type does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key of {enctype} has {} bytes, not {len}", enctype.key_len())]
pub struct KeyLengthError {
    /// The type.
    pub enctype: Enctype,
    /// The length of the bytes, which is wrong.
    pub len: usize,
}

impl Key {
    /// Makes a key of its bytes, and copies them.
    ///
    /// # Errors
    /// [`KeyLengthError`].
    pub fn new(enctype: Enctype, key: &[u8]) -> Result<Self, KeyLengthError> {
        if key.len() != enctype.key_len() {
            return Err(KeyLengthError { enctype, len: key.len() });
        }
        let mut bytes = Zeroizing::new([0; KEY_BYTES_MAX]);
        bytes[..key.len()].copy_from_slice(key);
        Ok(Self { enctype, bytes })
    }

    /// Returns the type.
    pub fn enctype(&self) -> Enctype {
        self.enctype
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.enctype.key_len()]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.enctype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_standards() {
        let sizes = Enctype::ALL.map(|of| (of.mic_len(), of.sealed_len(0)));
        assert_eq!(sizes, [(28, 60), (28, 60), (32, 64), (40, 72)]);
        for of in Enctype::ALL {
            assert_eq!(Enctype::from_number(of.number()), Some(of));
            assert_eq!(of.opened_len_max(of.sealed_len(1000)), Some(1000));
            assert_eq!(of.opened_len_max(of.sealed_len(0) - 1), None);
        }
        for other in [0, 1, 3, 16, 21, 23, 25, 26, u32::MAX] {
            assert_eq!(Enctype::from_number(other), None, "{other}");
        }
    }

    #[test]
    fn keys_have_the_length_of_their_type_and_show_nothing() {
        for of in Enctype::ALL {
            for len in 0..=64 {
                assert_eq!(Key::new(of, &vec![7; len]).is_ok(), len == of.key_len());
            }
        }
        let key = Key::new(Enctype::Aes128Sha1, &[0x77; 16]).unwrap();
        assert_eq!(format!("{key:?}"), "Key(aes128-cts-hmac-sha1-96)");
    }
}
