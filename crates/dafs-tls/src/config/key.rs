//! The private key in PEM text (RFC 7468).
//!
//! Invariants
//! * Bytes of a key are erased before their memory is freed. No buffer grows, because growth would leave
//!   a copy behind.

use rustls::pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

/// The reason why a text has no key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoKey {
    /// It has no section with a key.
    Missing,
    /// A section is damaged in this way.
    Damaged(&'static str),
}

const BAD_BEGIN: NoKey = NoKey::Damaged("a BEGIN line is damaged");
const NO_END: NoKey = NoKey::Damaged("an END line is missing");
const NOT_BASE64: NoKey = NoKey::Damaged("there are other characters than base64 in it");

#[derive(Debug, Clone, Copy)]
enum Format {
    Pkcs1,
    Pkcs8,
    Sec1,
}

const LABELS: [(&[u8], Format); 3] = [
    (b"EC PRIVATE KEY", Format::Sec1),
    (b"PRIVATE KEY", Format::Pkcs8),
    (b"RSA PRIVATE KEY", Format::Pkcs1),
];

/// A key in DER.
pub(super) struct PrivateKey {
    format: Format,
    der: Zeroizing<Vec<u8>>,
}

impl PrivateKey {
    /// Reads the first key of a text.
    pub(super) fn from_pem(text: &[u8]) -> Result<Self, NoKey> {
        let mut lines =
            text.split(|byte| matches!(byte, b'\n' | b'\r')).map(<[u8]>::trim_ascii_end);
        let (label, format) = loop {
            let line = lines.next().ok_or(NoKey::Missing)?;
            let Some(rest) = line.strip_prefix(b"-----BEGIN ") else { continue };
            let label = rest.strip_suffix(b"-----").ok_or(BAD_BEGIN)?;
            if let Some(found) = LABELS.into_iter().find(|(known, _)| *known == label) {
                break found;
            }
        };
        let der = Zeroizing::new(Vec::with_capacity(text.len()));
        let mut decoder = Base64 { der, bits: 0, characters: 0, fill: 0 };
        for line in lines {
            if let Some(rest) = line.strip_prefix(b"-----END ") {
                return match rest.strip_suffix(b"-----") {
                    Some(end) if end == label => Ok(Self { format, der: decoder.finish()? }),
                    _ => Err(NO_END),
                };
            }
            line.iter().try_for_each(|byte| decoder.take(*byte))?;
        }
        Err(NO_END)
    }

    /// The key for a library that reads DER.
    pub(super) fn der(&self) -> PrivateKeyDer<'_> {
        let der = &self.der[..];
        match self.format {
            Format::Pkcs1 => PrivateKeyDer::Pkcs1(der.into()),
            Format::Pkcs8 => PrivateKeyDer::Pkcs8(der.into()),
            Format::Sec1 => PrivateKeyDer::Sec1(der.into()),
        }
    }
}

/// Decodes base64 (RFC 4648 section 4).
struct Base64 {
    der: Zeroizing<Vec<u8>>,
    /// The last bits, and the number of characters that they come from.
    bits: u32,
    characters: u8,
    /// The number of characters that fill the last group.
    fill: u8,
}

impl Base64 {
    fn take(&mut self, character: u8) -> Result<(), NoKey> {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' if self.fill < 2 => {
                self.fill += 1;
                return Ok(());
            }
            _ => return Err(NOT_BASE64),
        };
        if self.fill > 0 {
            return Err(NOT_BASE64);
        }
        self.bits = self.bits << 6 | u32::from(value);
        self.characters += 1;
        if self.characters == 4 {
            self.der.extend_from_slice(&self.bits.to_be_bytes()[1..]);
            (self.bits, self.characters) = (0, 0);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Zeroizing<Vec<u8>>, NoKey> {
        match (self.characters, self.fill) {
            (0, 0) => {}
            (2, 2) => self.der.push((self.bits >> 4) as u8),
            (3, 1) => self.der.extend_from_slice(&((self.bits >> 2) as u16).to_be_bytes()),
            _ => return Err(NOT_BASE64),
        }
        Ok(self.der)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<u8>, NoKey> {
        PrivateKey::from_pem(text.as_bytes()).map(|key| key.der().secret_der().to_vec())
    }

    fn section(label: &str, body: &str) -> String {
        format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    }

    /// The characters of these bytes.
    fn encoded(bytes: &[u8]) -> String {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let group = |group: &[u8]| {
            let mut bytes = [0; 4];
            bytes[1..=group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes(bytes);
            let character = |at: usize| match at <= group.len() {
                true => char::from(ALPHABET[(bits >> (18 - 6 * at)) as usize & 63]),
                false => '=',
            };
            (0..4).map(character).collect::<String>()
        };
        bytes.chunks(3).map(group).collect()
    }

    proptest! {
        #[test]
        fn the_bytes_of_a_key_come_back(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            width in 1..80_usize,
            (label, end) in (0..3_usize, prop::sample::select(vec!["\n", "\r\n", " \n"])),
        ) {
            let label = std::str::from_utf8(LABELS[label].0).unwrap();
            let body = encoded(&bytes).into_bytes();
            let lines = body.chunks(width).map(|line| std::str::from_utf8(line).unwrap());
            let text = section(label, &lines.collect::<Vec<_>>().join(end));
            let text = format!("words\n{}{text}more", section("CERTIFICATE", "AAAA"));
            prop_assert_eq!(read(&text).unwrap(), bytes);
        }

        #[test]
        fn no_text_is_too_bad(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = [&b"-----BEGIN PRIVATE KEY-----\n"[..], &bytes].concat();
            let _ = PrivateKey::from_pem(&text);
            let _ = PrivateKey::from_pem(&bytes);
        }
    }

    #[test]
    fn damage_is_told() {
        let key = |body| section("PRIVATE KEY", body);
        assert_eq!(read(&key("AA==")), Ok(vec![0]));
        for bad in ["A", "AA", "AAA", "A===", "AA=", "AAA==", "====", "AA==AAAA", "AAAA=", "A-AA"] {
            assert_eq!(read(&key(bad)), Err(NOT_BASE64), "{bad}");
        }
        assert_eq!(read(""), Err(NoKey::Missing));
        assert_eq!(read(&section("CERTIFICATE", "AAAA")), Err(NoKey::Missing));
        assert_eq!(read("-----BEGIN PRIVATE KEY\nAAAA\n"), Err(BAD_BEGIN));
        assert_eq!(read("-----BEGIN PRIVATE KEY-----\nAAAA\n"), Err(NO_END));
        let other = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n";
        assert_eq!(read(other), Err(NO_END));
    }
}
