//! `nfs://host[:port]/path[?option=value&...]` and `nfs+rdma://...` (RFC 2224 knows the first).
//!
//! Invariants
//! * A parsed URL has a host and an absolute path of raw bytes without a zero byte.
//! * Printing and parsing again yields the same URL.

use super::limits::{READ_AHEAD_MAX, TRANSFER_BYTES_MAX, TRANSFER_BYTES_MIN};
use super::security::UrlSecurity;
use super::xprtsec::{TlsOptions, UrlTls};
use dafs_wire::host::{address_of, in_url};
use dafs_wire::path::{absolute, below};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The characters that must be escaped in a path; the rest of ASCII stands for itself.
const PATH: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// The same for the value of an option.
pub(super) const VALUE: &AsciiSet = &PATH.add(b'&');

const TCP_SCHEME: &str = "nfs://";
const RDMA_SCHEME: &str = "nfs+rdma://";

/// The port of NFS over TCP (RFC 8881 2.9.3).
pub const TCP_PORT: u16 = 2049;

/// The port of NFS over RDMA (RFC 8267 6).
pub const RDMA_PORT: u16 = 20049;

/// A version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NfsVersion {
    /// Version 3 (RFC 1813).
    V3,
    /// Version 4.1 (RFC 8881).
    V41,
    /// Version 4.2 (RFC 7862).
    V42,
}

impl NfsVersion {
    /// The version as it is written in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::V3 => "3",
            Self::V41 => "4.1",
            Self::V42 => "4.2",
        }
    }
}

impl fmt::Display for NfsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The transport of `nfs+rdma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RdmaTransport {
    /// RDMA over TCP, in software (RFC 5040).
    Iwarp,
    /// Shared memory, on one host.
    Shm,
    /// An RDMA device of the system.
    Verbs,
}

impl RdmaTransport {
    /// The transport as it is written in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
        }
    }
}

/// The options in the query of a URL; `None` where an option is missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct UrlOptions {
    /// `vers`: the version of the protocol.
    pub version: Option<NfsVersion>,
    /// `transport`: the transport of data; only with `nfs+rdma`.
    pub transport: Option<RdmaTransport>,
    /// `rsize`: the longest READ, in bytes.
    pub read_bytes_max: Option<u32>,
    /// `wsize`: the longest WRITE, in bytes.
    pub write_bytes_max: Option<u32>,
    /// `readahead`: READs under way ahead of a sequential reader.
    pub read_ahead: Option<u32>,
    /// `pnfs`: reads and writes at data servers, if the server grants layouts.
    pub pnfs: Option<bool>,
    /// `sec`, `keytab`, `ccache` and `principal`.
    pub security: UrlSecurity,
}

/// The address of a file: server, path, and options of the mount.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NfsUrl {
    rdma: bool,
    host: String,
    port: u16,
    path: Vec<u8>,
    options: UrlOptions,
    tls: Option<UrlTls>,
}

/// The reason why a URL was refused, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NfsUrlError {
    /// A certificate without its key, or the other way round.
    #[error("a certificate needs its key: name both, cert=FILE&key=FILE")]
    CertificateAlone,
    /// A percent sign without two hexadecimal digits.
    #[error("\"{0}\" holds a '%' that is not followed by two hexadecimal digits; write %25 for it")]
    Escape(String),
    /// Files of TLS without TLS.
    #[error("ca=, cert= and key= are for TLS; write xprtsec=tls or xprtsec=mtls too")]
    FilesWithoutTls,
    /// A fragment.
    #[error("the URL holds '#', which has no meaning here; write %23 if it is part of a name")]
    Fragment,
    /// Brackets around something that is not an IPv6 address, or an address without brackets.
    #[error("\"{0}\" is not an IPv6 address; write it as in nfs://[::1]:2049/path")]
    Ipv6(String),
    /// TLS of both ends without a certificate of this one.
    #[error("xprtsec=mtls needs a certificate of this client; write cert=FILE&key=FILE too")]
    NoCertificate,
    /// No host.
    #[error("the URL names no host; write nfs://HOST[:PORT]/PATH or nfs+rdma://HOST[:PORT]/PATH")]
    NoHost,
    /// The path holds a zero byte.
    #[error("the path holds a zero byte (%00), which no file name can contain")]
    NulInPath,
    /// An unknown option.
    #[error(
        "\"{0}\" is no option of an nfs URL; there are vers, transport, rsize, wsize, readahead, \
         pnfs, sec, keytab, ccache, principal, xprtsec, ca, cert and key (write %3F for a '?' in a \
         name)"
    )]
    Option(String),
    /// An option with an invalid value.
    #[error("{option}={value} cannot be; give {expected}")]
    OptionValue {
        /// The option.
        option: &'static str,
        /// The value given.
        value: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// The port is not a number from 1 to 65535.
    #[error("\"{0}\" is not a port; give a number from 1 to 65535")]
    Port(String),
    /// A principal without a keytab.
    #[error("principal= chooses a user of a keytab; name a keytab, too, or leave it out")]
    PrincipalAlone,
    /// Another scheme or none.
    #[error("\"{0}\" does not start with nfs:// or nfs+rdma://; write nfs://HOST[:PORT]/PATH")]
    Scheme(String),
    /// TLS over a transport that has none.
    #[error(
        "xprtsec= protects TCP and iWARP; leave transport=shm or transport=verbs out, or write nfs://"
    )]
    TlsOverRdma,
    /// A transport in a URL of TCP.
    #[error("transport= chooses among RDMA transports; write nfs+rdma:// to use one")]
    TransportOfTcp,
    /// A keytab and a cache of tickets.
    #[error("keytab= and ccache= are two sources of tickets; leave one of them out")]
    TwoCredentials,
    /// A user before the host.
    #[error("the URL names a user, but NFS servers take the caller's own user; leave it out")]
    User,
    /// Credentials of Kerberos without Kerberos.
    #[error("{0}= is for Kerberos; add sec=krb5p, sec=krb5i or sec=krb5")]
    WithoutKerberos(&'static str),
}

impl NfsUrl {
    /// A URL from its parts, without options. `path` gets a leading slash if it has none.
    ///
    /// # Errors
    /// An empty host, port 0 or a zero byte in the path.
    pub fn new(rdma: bool, host: &str, port: u16, path: &[u8]) -> Result<Self, NfsUrlError> {
        if port == 0 {
            return Err(NfsUrlError::Port("0".into()));
        }
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(NfsUrlError::NoHost);
        }
        let options = UrlOptions::default();
        let path = checked(path)?;
        Ok(Self { rdma, host: host.into(), port, path, options, tls: None })
    }

    /// Parses a URL.
    ///
    /// # Errors
    /// The error in the text, with the correct notation.
    pub fn parse(text: &str) -> Result<Self, NfsUrlError> {
        let (rdma, rest) = match (after(text, TCP_SCHEME), after(text, RDMA_SCHEME)) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(NfsUrlError::Scheme(text.into())),
        };
        if rest.contains('#') {
            return Err(NfsUrlError::Fragment);
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
        if authority.contains('@') {
            return Err(NfsUrlError::User);
        }
        let (host, port) = host_and_port(authority)?;
        let (options, tls) = parse_options(query)?;
        let can_have_tls = !rdma || matches!(options.transport, None | Some(RdmaTransport::Iwarp));
        let tls = tls.finish(can_have_tls)?;
        if options.transport.is_some() && !rdma {
            return Err(NfsUrlError::TransportOfTcp);
        }
        let port = port.unwrap_or(if rdma { RDMA_PORT } else { TCP_PORT });
        Ok(Self { rdma, host, port, path: checked(&unescape(path)?)?, options, tls })
    }

    /// True for `nfs+rdma`.
    pub fn is_rdma(&self) -> bool {
        self.rdma
    }

    /// Host name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; [`TCP_PORT`] or [`RDMA_PORT`] when the URL names none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path on the server as raw bytes; starts with a slash.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The options in the query.
    pub fn options(&self) -> &UrlOptions {
        &self.options
    }

    /// The demand of TLS.
    pub fn tls(&self) -> Option<&UrlTls> {
        self.tls.as_ref()
    }

    /// True when both name the same server in the same way, so that one mount serves both.
    pub fn is_same_mount(&self, other: &Self) -> bool {
        (self.rdma, &self.host, self.port, &self.options, &self.tls)
            == (other.rdma, &other.host, other.port, &other.options, &other.tls)
    }

    /// The same server with another path.
    ///
    /// # Errors
    /// A zero byte in the path.
    pub fn with_path(&self, path: &[u8]) -> Result<Self, NfsUrlError> {
        Ok(Self { path: checked(path)?, ..self.clone() })
    }

    /// The same file with other options.
    #[must_use]
    pub fn with_options(&self, options: UrlOptions) -> Self {
        Self { options, ..self.clone() }
    }

    /// This path with `name` below it.
    ///
    /// # Errors
    /// A zero byte in the name.
    pub fn join(&self, name: &[u8]) -> Result<Self, NfsUrlError> {
        self.with_path(&below(&self.path, name))
    }
}

/// The text behind the scheme, if it is this one.
fn after<'a>(text: &'a str, scheme: &str) -> Option<&'a str> {
    let start = text.get(..scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then(|| &text[scheme.len()..])
}

fn checked(path: &[u8]) -> Result<Vec<u8>, NfsUrlError> {
    if path.contains(&0) {
        return Err(NfsUrlError::NulInPath);
    }
    Ok(absolute(path))
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>), NfsUrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let (address, behind) =
                inner.split_once(']').ok_or_else(|| NfsUrlError::Ipv6(text.into()))?;
            let host = address_of(address).ok_or_else(|| NfsUrlError::Ipv6(address.into()))?;
            match (behind.strip_prefix(':'), behind.is_empty()) {
                (Some(port), _) => (host, port),
                (None, true) => (host, ""),
                (None, false) => return Err(NfsUrlError::Port(behind.into())),
            }
        }
        None if text.matches(':').count() > 1 => return Err(NfsUrlError::Ipv6(text.into())),
        None => {
            let (host, port) = text.split_once(':').unwrap_or((text, ""));
            (host.to_owned(), port)
        }
    };
    if host.is_empty() {
        return Err(NfsUrlError::NoHost);
    }
    if port.is_empty() {
        return Ok((host, None));
    }
    match port.parse::<u16>() {
        Ok(number) if number != 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok((host, Some(number)))
        }
        _ => Err(NfsUrlError::Port(port.into())),
    }
}

fn parse_options(query: &str) -> Result<(UrlOptions, TlsOptions), NfsUrlError> {
    let (mut options, mut tls) = (UrlOptions::default(), TlsOptions::default());
    for text in query.split('&').filter(|text| !text.is_empty()) {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        match name {
            "vers" => options.version = Some(version(value)?),
            "transport" => options.transport = Some(transport(value)?),
            "rsize" => options.read_bytes_max = Some(transfer_bytes("rsize", value)?),
            "wsize" => options.write_bytes_max = Some(transfer_bytes("wsize", value)?),
            "readahead" => options.read_ahead = Some(read_ahead(value)?),
            "pnfs" => options.pnfs = Some(yes_or_no("pnfs", value)?),
            _ if options.security.take(name, value)? || tls.take(name, value)? => {}
            _ => return Err(NfsUrlError::Option(name.into())),
        }
    }
    options.security.check()?;
    Ok((options, tls))
}

pub(super) fn wrong(option: &'static str, value: &str, expected: &'static str) -> NfsUrlError {
    NfsUrlError::OptionValue { option, value: value.into(), expected }
}

fn yes_or_no(option: &'static str, value: &str) -> Result<bool, NfsUrlError> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(wrong(option, value, "yes or no")),
    }
}

fn version(value: &str) -> Result<NfsVersion, NfsUrlError> {
    match value {
        "3" => Ok(NfsVersion::V3),
        "4.1" => Ok(NfsVersion::V41),
        "4" | "4.2" => Ok(NfsVersion::V42),
        _ => Err(wrong("vers", value, "3, 4.1 or 4.2")),
    }
}

fn transport(value: &str) -> Result<RdmaTransport, NfsUrlError> {
    match value {
        "iwarp" => Ok(RdmaTransport::Iwarp),
        "shm" => Ok(RdmaTransport::Shm),
        "verbs" => Ok(RdmaTransport::Verbs),
        _ => Err(wrong("transport", value, "iwarp, shm or verbs")),
    }
}

/// A length, with `k` or `m` for 1024 and its square.
fn transfer_bytes(option: &'static str, value: &str) -> Result<u32, NfsUrlError> {
    let expected = "a number of bytes from 4k to 4m, which k and m may follow";
    let (digits, unit) = match value.as_bytes().last() {
        Some(b'k' | b'K') => (&value[..value.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&value[..value.len() - 1], 1 << 20),
        _ => (value, 1),
    };
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u32>());
    match number.and_then(Result::ok).and_then(|number| number.checked_mul(unit)) {
        Some(bytes) if (TRANSFER_BYTES_MIN..=TRANSFER_BYTES_MAX).contains(&bytes) => Ok(bytes),
        _ => Err(wrong(option, value, expected)),
    }
}

fn read_ahead(value: &str) -> Result<u32, NfsUrlError> {
    match value.parse::<u32>() {
        Ok(depth) if depth <= READ_AHEAD_MAX => Ok(depth),
        _ => Err(wrong("readahead", value, "a number of requests from 0 to 256")),
    }
}

/// Percent-decodes, and refuses input that the lenient decoder would pass through.
pub(super) fn unescape(text: &str) -> Result<Vec<u8>, NfsUrlError> {
    let bytes = text.as_bytes();
    for (at, _) in bytes.iter().enumerate().filter(|&(_, &byte)| byte == b'%') {
        let digits = bytes.get(at + 1..at + 3).unwrap_or_default();
        if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(NfsUrlError::Escape(text.into()));
        }
    }
    Ok(percent_decode_str(text).collect())
}

impl FromStr for NfsUrl {
    type Err = NfsUrlError;

    fn from_str(text: &str) -> Result<Self, NfsUrlError> {
        Self::parse(text)
    }
}

impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.rdma { RDMA_SCHEME } else { TCP_SCHEME })?;
        f.write_str(&in_url(&self.host))?;
        if self.port != if self.rdma { RDMA_PORT } else { TCP_PORT } {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "{}", percent_encode(&self.path, PATH))?;
        write!(f, "{}", self.options)?;
        match &self.tls {
            Some(tls) if self.options == UrlOptions::default() => write!(f, "?{tls}"),
            Some(tls) => write!(f, "&{tls}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for UrlOptions {
    /// As a query, with its question mark; empty if there are no options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let all = [
            ("vers", self.version.map(|version| version.name().to_owned())),
            ("transport", self.transport.map(|transport| transport.name().to_owned())),
            ("rsize", number(self.read_bytes_max)),
            ("wsize", number(self.write_bytes_max)),
            ("readahead", number(self.read_ahead)),
            ("pnfs", self.pnfs.map(|pnfs| if pnfs { "yes" } else { "no" }.to_owned())),
        ];
        let all = all.into_iter().chain(self.security.printed());
        let given = all.filter_map(|(name, value)| Some((name, value?)));
        for (at, (name, value)) in given.enumerate() {
            write!(f, "{}{name}={value}", if at == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NfsUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(text: &str) -> (bool, String, u16, Vec<u8>) {
        let url = NfsUrl::parse(text).unwrap();
        (url.is_rdma(), url.host().into(), url.port(), url.path().to_vec())
    }

    #[test]
    fn the_parts_of_a_url() {
        assert_eq!(parts("nfs://host"), (false, "host".into(), 2049, b"/".into()));
        assert_eq!(parts("NFS://host:7/a/b"), (false, "host".into(), 7, b"/a/b".into()));
        assert_eq!(parts("nfs+rdma://host/a"), (true, "host".into(), 20049, b"/a".into()));
        assert_eq!(parts("nfs://[::1]:9/a"), (false, "::1".into(), 9, b"/a".into()));
        assert_eq!(
            parts("nfs://[fe80::1%eth0]/"),
            (false, "fe80::1%eth0".into(), 2049, b"/".into())
        );
        assert_eq!(parts("nfs://[fe80::1%25eth0]:7/").1, "fe80::1%eth0");
        let url = NfsUrl::parse("nfs://[fe80::1%eth0]/a").unwrap();
        assert_eq!(url.to_string(), "nfs://[fe80::1%25eth0]/a");
        assert_eq!(parts("nfs://1.2.3.4/a%20b%FF").3, b"/a b\xff");
    }

    #[test]
    fn options_are_read_and_printed() {
        let text = "nfs+rdma://h/a?vers=4.1&transport=shm&rsize=64k&wsize=1m&readahead=8&pnfs=no";
        let url = NfsUrl::parse(text).unwrap();
        let expected = UrlOptions {
            version: Some(NfsVersion::V41),
            transport: Some(RdmaTransport::Shm),
            read_bytes_max: Some(65536),
            write_bytes_max: Some(1 << 20),
            read_ahead: Some(8),
            pnfs: Some(false),
            security: UrlSecurity::default(),
        };
        assert_eq!(*url.options(), expected);
        let printed = url.to_string();
        assert!(printed.ends_with("&rsize=65536&wsize=1048576&readahead=8&pnfs=no"), "{printed}");
        assert_eq!(NfsUrl::parse(&printed).unwrap(), url);
        assert!(!url.is_same_mount(&NfsUrl::parse("nfs+rdma://h/a?vers=4.2").unwrap()));
        assert!(url.is_same_mount(&url.join(b"below").unwrap()));
    }

    #[test]
    fn a_wrong_url_names_the_remedy() {
        let cases = [
            ("http://host/", "does not start with nfs://"),
            ("host:/path", "does not start with nfs://"),
            ("nfs:///path", "names no host"),
            ("nfs://:1/", "names no host"),
            ("nfs://h:0/", "number from 1 to 65535"),
            ("nfs://h:65536/", "number from 1 to 65535"),
            ("nfs://h:+1/", "number from 1 to 65535"),
            ("nfs://::1/", "is not an IPv6 address"),
            ("nfs://[zz]/", "is not an IPv6 address"),
            ("nfs://[::1]x/", "number from 1 to 65535"),
            ("nfs://u@h/", "leave it out"),
            ("nfs://h/a%2", "two hexadecimal digits"),
            ("nfs://h/a%00", "zero byte"),
            ("nfs://h/a#b", "write %23"),
            ("nfs://h/a?b", "no option"),
            ("nfs://h/a?vers=2", "3, 4.1 or 4.2"),
            ("nfs://h/a?rsize=1", "from 4k to 4m"),
            ("nfs://h/a?rsize=+8k", "from 4k to 4m"),
            ("nfs://h/a?wsize=99999999999m", "from 4k to 4m"),
            ("nfs://h/a?readahead=257", "from 0 to 256"),
            ("nfs://h/a?pnfs=maybe", "yes or no"),
            ("nfs+rdma://h/a?transport=tcp", "iwarp, shm or verbs"),
            ("nfs://h/a?transport=shm", "write nfs+rdma://"),
        ];
        for (text, part) in cases {
            let error = NfsUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(
            path in proptest::collection::vec(1u8.., 0..40),
            port in 1u16..,
            rdma in any::<bool>(),
        ) {
            let url = NfsUrl::new(rdma, "::1", port, &path).unwrap();
            prop_assert_eq!(NfsUrl::parse(&url.to_string()).unwrap(), url);
        }

        #[test]
        fn no_text_panics(text in "(nfs(\\+rdma)?://)?\\PC{0,40}") {
            let _ = NfsUrl::parse(&text);
        }
    }
}
