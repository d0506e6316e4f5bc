//! An X.509 certificate (RFC 5280), as far as administrators and policies look at it.
//!
//! Verification of signatures and chains is rustls' part. This reader answers other questions:
//! serial number, issuer, subject names, the user, end, extended key usage.
//!
//! Invariants
//! * Text that other crates get has no control characters and no NUL.
//! * A distinguished name as text is short enough for a line of a log, whoever made it. No decision
//!   depends on it.
//! * A certificate that this reader refuses is refused everywhere.

use crate::der::{Malformed, Reader, tag};
use crate::limits::{DAY_SECONDS, NAME_LETTERS_MAX, NAMES_MAX};
use crate::user::UserName;
use rustls::pki_types::CertificateDer;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use thiserror::Error;

/// Object identifiers, as DER has them.
mod oid {
    pub(super) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
    pub(super) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
    pub(super) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
    pub(super) const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
    pub(super) const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
    pub(super) const DOMAIN_COMPONENT: &[u8] =
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19];
}

/// The bytes are no X.509 certificate.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no X.509 certificate, or one with wrong lengths")]
pub struct MalformedCertificate;

impl From<Malformed> for MalformedCertificate {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// A name of the subject that a peer may connect to (RFC 5280 4.2.1.6).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubjectName {
    /// A host name.
    Dns(String),
    /// An address.
    Address(IpAddr),
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The uses that the extended key usage allows (RFC 5280 4.2.1.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purposes {
    /// `id-kp-serverAuth` is in the list.
    pub server: bool,
    /// `id-kp-clientAuth` is in the list.
    pub client: bool,
}

/// A certificate that has been read. Nothing in it has been verified.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    der: CertificateDer<'static>,
    serial: Vec<u8>,
    issuer: String,
    subject: String,
    common_name: Option<String>,
    subject_der: Vec<u8>,
    issuer_der: Vec<u8>,
    not_before_seconds: u64,
    not_after_seconds: u64,
    extensions: Extensions,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extensions {
    names: Vec<SubjectName>,
    user: UserName,
    purposes: Option<Purposes>,
    is_authority: bool,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({} by {})", self.subject, self.issuer)
    }
}

impl Certificate {
    /// Reads a certificate from DER.
    ///
    /// # Errors
    /// [`MalformedCertificate`].
    pub fn read(der: &[u8]) -> Result<Self, MalformedCertificate> {
        let mut outer = Reader::new(der);
        let mut certificate = outer.inside(tag::SEQUENCE)?;
        let mut body = certificate.inside(tag::SEQUENCE)?;
        if !outer.is_empty() {
            return Err(MalformedCertificate);
        }
        body.optional(tag::VERSION)?;
        let serial = body.expect(tag::INTEGER)?.to_vec();
        body.expect(tag::SEQUENCE)?;
        let issuer = body.next()?;
        let mut validity = body.inside(tag::SEQUENCE)?;
        let subject = body.next()?;
        if issuer.tag != tag::SEQUENCE || subject.tag != tag::SEQUENCE {
            return Err(MalformedCertificate);
        }
        body.expect(tag::SEQUENCE)?;
        let mut extensions = Extensions::default();
        while !body.is_empty() {
            let part = body.next()?;
            if part.tag == tag::EXTENSIONS {
                extensions = read_extensions(part.content)?;
            }
        }
        let (subject_text, common_name) = read_name(subject.content)?;
        Ok(Self {
            der: CertificateDer::from(der.to_vec()),
            serial,
            issuer: read_name(issuer.content)?.0,
            subject: subject_text,
            common_name,
            subject_der: subject.whole.to_vec(),
            issuer_der: issuer.whole.to_vec(),
            not_before_seconds: read_time(&mut validity)?,
            not_after_seconds: read_time(&mut validity)?,
            extensions,
        })
    }

    /// The bytes of the certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The serial number, big-endian. With the issuer it names the certificate (RFC 5280 4.1.2.2).
    pub fn serial(&self) -> &[u8] {
        &self.serial
    }

    /// The serial number as hexadecimal bytes with colons between them, as OpenSSL prints it.
    pub fn serial_text(&self) -> String {
        let mut text = String::new();
        for (index, byte) in self.serial.iter().enumerate() {
            // INVARIANT: writing to a String does not fail.
            let _ = write!(text, "{}{byte:02x}", if index == 0 { "" } else { ":" });
        }
        text
    }

    /// The distinguished name of the issuer, as text (RFC 4514) that is cut where it is long.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The distinguished name of the subject, as text (RFC 4514) that is cut where it is long.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The common name of the subject as it is in the certificate, if it has one.
    pub(crate) fn common_name(&self) -> Option<&str> {
        self.common_name.as_deref()
    }

    /// The DNS names and addresses of the subject. Clients accept a server by these names alone.
    pub fn names(&self) -> &[SubjectName] {
        &self.extensions.names
    }

    /// The user for whom the subject acts.
    pub fn user(&self) -> &UserName {
        &self.extensions.user
    }

    /// The allowed uses; none without the extension, and then every use is allowed.
    pub fn purposes(&self) -> Option<Purposes> {
        self.extensions.purposes
    }

    /// True if the certificate may issue others (RFC 5280 4.2.1.9).
    pub fn is_authority(&self) -> bool {
        self.extensions.is_authority
    }

    /// The first second in which the certificate is valid, since 1970.
    pub fn not_before_seconds(&self) -> u64 {
        self.not_before_seconds
    }

    /// The last second in which the certificate is valid, since 1970.
    pub fn not_after_seconds(&self) -> u64 {
        self.not_after_seconds
    }

    /// Whole days until the end of the certificate; negative after it.
    pub fn days_left(&self, now_seconds: u64) -> i64 {
        let day = DAY_SECONDS.cast_signed();
        // A certificate of the year 9999 ends before 2^38 seconds.
        let left = i128::from(self.not_after_seconds) - i128::from(now_seconds);
        i64::try_from(left).map_or(i64::MIN, |left| left.div_euclid(day))
    }

    pub(crate) fn subject_der(&self) -> &[u8] {
        &self.subject_der
    }

    /// The distinguished name of the issuer in DER. With the serial number it names the certificate.
    pub fn issuer_der(&self) -> &[u8] {
        &self.issuer_der
    }
}

fn read_extensions(bytes: &[u8]) -> Result<Extensions, Malformed> {
    let mut list = Reader::new(bytes).inside(tag::SEQUENCE)?;
    let mut found = Extensions::default();
    while !list.is_empty() {
        let mut extension = list.inside(tag::SEQUENCE)?;
        let id = extension.expect(tag::OBJECT_IDENTIFIER)?;
        extension.optional(tag::BOOLEAN)?;
        let value = extension.expect(tag::OCTET_STRING)?;
        match id {
            oid::SUBJECT_ALT_NAME => read_subject_names(value, &mut found)?,
            oid::BASIC_CONSTRAINTS => {
                let mut constraints = Reader::new(value).inside(tag::SEQUENCE)?;
                found.is_authority = constraints.optional(tag::BOOLEAN)? == Some(&[0xff]);
            }
            oid::EXTENDED_KEY_USAGE => found.purposes = Some(read_purposes(value)?),
            _ => {}
        }
    }
    Ok(found)
}

fn read_purposes(value: &[u8]) -> Result<Purposes, Malformed> {
    let mut list = Reader::new(value).inside(tag::SEQUENCE)?;
    let mut purposes = Purposes::default();
    while !list.is_empty() {
        match list.expect(tag::OBJECT_IDENTIFIER)? {
            oid::SERVER_AUTH => purposes.server = true,
            oid::CLIENT_AUTH => purposes.client = true,
            _ => {}
        }
    }
    Ok(purposes)
}

fn read_subject_names(value: &[u8], found: &mut Extensions) -> Result<(), Malformed> {
    let mut list = Reader::new(value).inside(tag::SEQUENCE)?;
    let names = &mut found.names;
    while !list.is_empty() {
        let name = list.next()?;
        match name.tag {
            tag::DNS_NAME => names.push(SubjectName::Dns(plain_text(name.content))),
            tag::IP_ADDRESS => names.push(SubjectName::Address(read_address(name.content)?)),
            tag::OTHER_NAME => found.user.add(name.content),
            _ => {}
        }
        if names.len() > NAMES_MAX {
            return Err(Malformed);
        }
    }
    Ok(())
}

fn read_address(bytes: &[u8]) -> Result<IpAddr, Malformed> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Ok(IpAddr::V4(Ipv4Addr::from(four)));
    }
    let sixteen = <[u8; 16]>::try_from(bytes).map_err(|_| Malformed)?;
    Ok(IpAddr::V6(Ipv6Addr::from(sixteen)))
}

/// ASCII text without control characters; other bytes as `\xx`.
fn plain_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if matches!(byte, 0x20..0x7f) {
            text.push(char::from(byte));
        } else {
            // INVARIANT: writing to a String does not fail.
            let _ = write!(text, "\\{byte:02x}");
        }
    }
    text
}

/// A distinguished name as text, cut where it is long, and its first common name. The last component
/// stands first (RFC 4514 2.1).
fn read_name(content: &[u8]) -> Result<(String, Option<String>), Malformed> {
    let mut sets = Reader::new(content);
    let mut parts: Vec<String> = Vec::new();
    let mut common_name = None;
    while !sets.is_empty() {
        let mut set = sets.inside(tag::SET)?;
        let mut together = Vec::new();
        while !set.is_empty() {
            let mut attribute = set.inside(tag::SEQUENCE)?;
            let kind = attribute.expect(tag::OBJECT_IDENTIFIER)?;
            let value = attribute.next()?;
            let text = directory_string(value.tag, value.content);
            if kind == [0x55, 4, 3] && common_name.is_none() {
                common_name = Some(text.clone());
            }
            together.push(format!("{}={}", attribute_name(kind), escaped(&text)));
        }
        parts.push(together.join("+"));
    }
    parts.reverse();
    Ok((cut(&parts.join(",")), common_name))
}

/// The first letters of a long text, and a mark that there were more.
fn cut(text: &str) -> String {
    match text.char_indices().nth(NAME_LETTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn attribute_name(kind: &[u8]) -> String {
    let short = match kind {
        [0x55, 4, 3] => "CN",
        [0x55, 4, 6] => "C",
        [0x55, 4, 7] => "L",
        [0x55, 4, 8] => "ST",
        [0x55, 4, 10] => "O",
        [0x55, 4, 11] => "OU",
        oid::DOMAIN_COMPONENT => "DC",
        other => return dotted(other),
    };
    short.to_owned()
}

/// An object identifier as numbers with dots (RFC 4514 2.3).
fn dotted(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut number: u64 = 0;
    for &byte in bytes {
        number = number.saturating_mul(128).saturating_add(u64::from(byte & 0x7f));
        if byte & 0x80 == 0 {
            // INVARIANT: writing to a String does not fail.
            let _ = match text.is_empty() {
                true => {
                    let first = (number / 40).min(2);
                    write!(text, "{first}.{}", number - first * 40)
                }
                false => write!(text, ".{number}"),
            };
            number = 0;
        }
    }
    text
}

fn directory_string(kind: u8, bytes: &[u8]) -> String {
    let decoded = match kind {
        tag::UTF8_STRING => std::str::from_utf8(bytes).ok().map(str::to_owned),
        tag::PRINTABLE_STRING | tag::IA5_STRING if bytes.is_ascii() => Some(plain_text(bytes)),
        tag::TELETEX_STRING => Some(bytes.iter().map(|&byte| char::from(byte)).collect()),
        tag::BMP_STRING => {
            let units = bytes.chunks_exact(2).map(|two| u16::from(two[0]) << 8 | u16::from(two[1]));
            Some(char::decode_utf16(units).map(|unit| unit.unwrap_or('\u{fffd}')).collect())
        }
        _ => None,
    };
    decoded.unwrap_or_else(|| plain_text(bytes))
}

/// Special characters with a backslash, control characters as their bytes (RFC 4514 2.4).
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' => {
                out.push('\\');
                out.push(letter);
            }
            letter if letter.is_control() => {
                let mut bytes = [0; 4];
                for byte in letter.encode_utf8(&mut bytes).bytes() {
                    // INVARIANT: writing to a String does not fail.
                    let _ = write!(out, "\\{byte:02x}");
                }
            }
            letter => out.push(letter),
        }
    }
    out
}

/// Seconds since 1970 of a UTCTime or GeneralizedTime in the form of RFC 5280 4.1.2.5.
fn read_time(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    let time = reader.next()?;
    let (year, rest) = match (time.tag, time.content.len()) {
        (tag::UTC_TIME, 13) => {
            let year = number(&time.content[..2])?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &time.content[2..])
        }
        (tag::GENERALIZED_TIME, 15) => (number(&time.content[..4])?, &time.content[4..]),
        _ => return Err(Malformed),
    };
    if rest[10] != b'Z' {
        return Err(Malformed);
    }
    let field = |at: usize| number(&rest[at..at + 2]);
    let (month, day) = (field(0)?, field(2)?);
    let (hour, minute, second) = (field(4)?, field(6)?, field(8)?);
    let inside = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    if !inside || hour > 23 || minute > 59 || second > 59 {
        return Err(Malformed);
    }
    // A time before 1970 is as good as 1970 for a certificate.
    let Some(days) = days_since_1970(year, month, day) else { return Ok(0) };
    Ok(days * DAY_SECONDS + hour * 3600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Result<u64, Malformed> {
    digits.iter().try_fold(0, |value, digit| match digit {
        b'0'..=b'9' => Ok(value * 10 + u64::from(digit - b'0')),
        _ => Err(Malformed),
    })
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let before = year.checked_sub(1970)?;
    // Leap years between 1970 and the year.
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let days = before * 365 + leaps(year - 1) - leaps(1969);
    Some(days + (1..month).map(|month| days_of(year, month)).sum::<u64>() + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki;
    use proptest::prelude::*;

    fn utc(text: &str) -> Result<u64, Malformed> {
        let kind = if text.len() == 13 { tag::UTC_TIME } else { tag::GENERALIZED_TIME };
        let mut bytes = vec![kind, text.len() as u8];
        bytes.extend(text.as_bytes());
        read_time(&mut Reader::new(&bytes))
    }

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(utc("700101000000Z"), Ok(0));
        assert_eq!(utc("19700102000001Z"), Ok(86_401));
        assert_eq!(utc("000301000000Z"), Ok(951_868_800));
        assert_eq!(utc("20240229235959Z"), Ok(1_709_251_199));
        assert_eq!(utc("491231235959Z"), Ok(2_524_607_999));
        assert_eq!(utc("500101000000Z"), Ok(0));
        assert_eq!(utc("99991231235959Z"), Ok(253_402_300_799));
        for bad in
            ["230229000000Z", "231301000000Z", "230100000000Z", "23010100000aZ", "230101240000Z"]
        {
            assert_eq!(utc(bad), Err(Malformed), "{bad}");
        }
        assert_eq!(utc("2301010000000"), Err(Malformed));
    }

    #[test]
    fn a_made_certificate_is_read_back() {
        let now = 1_800_000_000;
        let authority = pki::Authority::create("the CA, of tests", now).unwrap();
        let names = ["nas.example".to_owned(), "192.0.2.7".to_owned(), "2001:db8::7".to_owned()];
        let made = authority.server(&names, now).unwrap();
        let read = Certificate::read(&made.certificate_der()).unwrap();
        assert_eq!(read.issuer(), "CN=the CA\\, of tests");
        assert_eq!(read.subject(), "CN=nas.example");
        assert_eq!(read.common_name(), Some("nas.example"));
        let found: Vec<String> = read.names().iter().map(SubjectName::to_string).collect();
        assert_eq!(found, names);
        assert_eq!(read.purposes(), Some(Purposes { server: true, client: false }));
        assert!(!read.is_authority());
        assert_eq!(read.not_before_seconds(), now - 3600);
        assert_eq!(read.days_left(now), 397);
        assert_eq!(read.days_left(now + 397 * 86_400), 0);
        assert_eq!(read.days_left(now + 397 * 86_400 + 1), -1);
        assert!(!read.serial().is_empty());
        assert_eq!(read.serial_text().len(), read.serial().len() * 3 - 1);
        let own = Certificate::read(&authority.certificate_der()).unwrap();
        assert!(own.is_authority());
        assert_eq!(own.subject_der(), read.issuer_der());
        assert_eq!(own.days_left(now), 3653);
    }

    #[test]
    fn names_show_no_control_characters() {
        // CN=a<newline>b, C=X
        let name = [
            0x31, 14, 0x30, 12, 6, 3, 0x55, 4, 3, 0x0c, 5, b'a', b'\n', b'b', b',', 0, // CN
            0x31, 10, 0x30, 8, 6, 3, 0x55, 4, 6, 0x13, 1, b'X', // C
        ];
        let (text, common) = read_name(&name).unwrap();
        assert_eq!(text, "C=X,CN=a\\0ab\\,\\00");
        assert_eq!(common.as_deref(), Some("a\nb,\0"));
        assert_eq!(plain_text(b"nas\0.evil"), "nas\\00.evil");
        assert_eq!(dotted(&[0x2b, 6, 1, 0x84, 0x10]), "1.3.6.1.528");
    }

    #[test]
    fn a_long_name_is_cut() {
        let name = |letter: &str, letters| {
            let text = letter.repeat(letters);
            let length = text.len() as u16;
            // The lengths of set, sequence and string have two bytes each, from 256 on.
            let long = |length: u16| [0x82, length.to_be_bytes()[0], length.to_be_bytes()[1]];
            let mut name = vec![0x31];
            name.extend(long(length + 13));
            name.push(0x30);
            name.extend(long(length + 9));
            name.extend([6, 3, 0x55, 4, 3, 0x0c]);
            name.extend(long(length));
            name.extend(text.as_bytes());
            read_name(&name).unwrap().0
        };
        assert_eq!(name("\u{e4}", 253), format!("CN={}", "\u{e4}".repeat(253)));
        assert_eq!(name("\u{e4}", 254), format!("CN={}...", "\u{e4}".repeat(253)));
        // A letter becomes three.
        assert_eq!(name("\n", 300), format!("CN={}\\...", "\\0a".repeat(84)));
    }

    #[test]
    fn a_certificate_cut_or_changed_is_no_panic() {
        let authority = pki::Authority::create("CA", 1_800_000_000).unwrap();
        let der = authority.certificate_der();
        for length in 0..der.len() {
            assert_eq!(Certificate::read(&der[..length]), Err(MalformedCertificate));
        }
        for at in 0..der.len() {
            for bit in 0..8 {
                let mut changed = der.to_vec();
                changed[at] ^= 1 << bit;
                let _ = Certificate::read(&changed);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Certificate::read(&bytes);
        }
    }
}
