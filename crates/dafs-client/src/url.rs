//! `dafs://[user@]host[:port]/path[?option=value&...]`, and `dafss://` for the same inside TLS.
//!
//! Invariants
//! * A parsed URL has a host, a port and an absolute path of raw bytes without a zero byte.
//! * Printing and parsing again yields the same URL.

mod options;

use crate::gss::GssCredentials;
use crate::limits::DEFAULT_PORT;
use crate::options::{TlsOptions, TransportChoice, WaitPolicy};
use dafs_wire::host::{address_of, in_url};
use dafs_wire::path::{absolute, below};
use options::Options;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// The characters that must be escaped in a path; the rest of ASCII stands for itself.
const PATH: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// The characters that must be escaped in a user name.
const USER: &AsciiSet = &PATH.add(b'/').add(b':').add(b'@').add(b'[').add(b']');

const SCHEME: &str = "dafs://";

/// The scheme that demands TLS.
const SECURE_SCHEME: &str = "dafss://";

/// The address of a file: server and path.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DafsUrl {
    user: Option<String>,
    host: String,
    port: u16,
    path: Vec<u8>,
    /// The scheme is `dafss`.
    is_secure: bool,
    options: Options,
}

/// The reason why a URL was refused, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UrlError {
    /// A percent sign without two hexadecimal digits.
    #[error("\"{0}\" holds a '%' that is not followed by two hexadecimal digits; write %25 for it")]
    Escape(String),
    /// Brackets around something that is not an IPv6 address.
    #[error("\"{0}\" is not an IPv6 address; write it as in dafs://[::1]:20490/path")]
    Ipv6(String),
    /// No host.
    #[error("the URL names no host; write dafs://HOST[:PORT]/PATH")]
    NoHost,
    /// The path holds a zero byte.
    #[error("the path holds a zero byte (%00), which no file name can contain")]
    NulInPath,
    /// The URL holds a password, which belongs elsewhere.
    #[error(
        "the URL holds a password, which others could read in the process list; \
         give it in a file instead"
    )]
    Password,
    /// The port is not a number from 1 to 65535.
    #[error("\"{0}\" is not a port; give a number from 1 to 65535")]
    Port(String),
    /// An unknown option.
    #[error(
        "\"{0}\" is no option of a URL; there are fence-id=NAME, recovery=SECONDS, \
         deadline=SECONDS, connect-timeout=SECONDS, transport=auto|iwarp|shm|verbs, \
         wait=adaptive|poll|sleep, checksums=yes|no, pnfs=yes|no, optimistic=yes|no, \
         inline-padding=yes|no, sec=gss and danger-clear-passwords=yes|no, for dafss:// also \
         xprtsec=tls|mtls, ca=FILE, cert=FILE and key=FILE, with & between them. Write %3F if the \
         '?' is part of a name"
    )]
    Option(String),
    /// A fragment.
    #[error(
        "the URL holds '{0}', which has no meaning here; write %{1:02X} if it is part of a name"
    )]
    Query(char, u8),
    /// A time is no number of seconds.
    #[error(
        "\"{0}\" is not a number of seconds from 0 to 4294967295; write it as in \
         dafs://HOST/PATH?recovery=120&deadline=60"
    )]
    Seconds(String),
    /// Options of GSS that do not fit together.
    #[error(
        "the URL gives {0}; write sec=gss for the default cache of tickets, sec=gss&ccache=NAME for another, or \
         sec=gss&keytab=FILE with principal=NAME or without"
    )]
    Gss(&'static str),
    /// Options of TLS that do not fit together, or the URL.
    #[error(
        "the URL gives {0}; write dafss://HOST/PATH?ca=FILE to trust other authorities than the system's, and \
         cert=FILE&key=FILE to show a certificate"
    )]
    Tls(&'static str),
    /// Another scheme or none.
    #[error(
        "\"{0}\" does not start with dafs:// or dafss://; write dafs://HOST[:PORT]/PATH, or dafss:// for TLS"
    )]
    Scheme(String),
    /// The same option again.
    #[error("the URL gives {0} twice; leave one of them out")]
    Twice(String),
    /// The user name is not UTF-8.
    #[error("the user name in the URL is not UTF-8")]
    User,
}

impl DafsUrl {
    /// A URL from its parts. `path` gets a leading slash if it has none.
    ///
    /// # Errors
    /// An empty host, port 0 or a zero byte in the path.
    pub fn new(host: &str, port: u16, path: &[u8]) -> Result<Self, UrlError> {
        let port = if port == 0 { return Err(UrlError::Port("0".into())) } else { port };
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(UrlError::NoHost);
        }
        if path.contains(&0) {
            return Err(UrlError::NulInPath);
        }
        Ok(Self {
            user: None,
            host: host.into(),
            port,
            path: absolute(path),
            is_secure: false,
            options: Options::default(),
        })
    }

    /// Parses a URL.
    ///
    /// # Errors
    /// The error in the text, with the correct notation.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let after = |scheme: &str| {
            let (start, rest) = text.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let (is_secure, rest) = match (after(SCHEME), after(SECURE_SCHEME)) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(UrlError::Scheme(text.into())),
        };
        if let Some(mark) = rest.find('#').map(|at| rest.as_bytes()[at]) {
            return Err(UrlError::Query(char::from(mark), mark));
        }
        let (rest, options) = match rest.split_once('?') {
            Some((rest, options)) => (rest, Options::parse(options)?),
            None => (rest, Options::default()),
        };
        options.check_tls(is_secure)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host_port) = match authority.rsplit_once('@') {
            Some((user, host_port)) => (Some(parse_user(user)?), host_port),
            None => (None, authority),
        };
        let (host, port) = parse_host_port(host_port)?;
        let path = unescape(path)?;
        if path.contains(&0) {
            return Err(UrlError::NulInPath);
        }
        Ok(Self { user, host, port, path: absolute(&path), is_secure, options })
    }

    /// The user named before the host.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Host name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; [`DEFAULT_PORT`] when the URL names none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path as raw bytes; starts with a slash.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The session's identity for fencing (DAFS 11).
    pub fn fence_id(&self) -> Option<&str> {
        self.options.fence_id.as_deref()
    }

    /// The time for replacing a lost connection; zero for an error at once.
    pub fn recovery(&self) -> Option<Duration> {
        self.options.recovery_seconds.map(seconds)
    }

    /// The time in which one operation must be answered; zero for no timeout.
    pub fn deadline(&self) -> Option<Duration> {
        self.options.deadline_seconds.map(seconds)
    }

    /// The time for connecting and opening the session.
    pub fn connect_timeout(&self) -> Option<Duration> {
        self.options.connect_timeout_seconds.map(seconds)
    }

    /// The transport to use.
    pub fn transport(&self) -> Option<TransportChoice> {
        self.options.transport
    }

    /// The way threads wait.
    pub fn wait(&self) -> Option<WaitPolicy> {
        self.options.wait
    }

    /// True when messages and data carry checksums.
    pub fn checksums(&self) -> Option<bool> {
        self.options.checksums
    }

    /// True when files are read and written at data servers, where there are some (pNFS).
    pub fn data_servers(&self) -> Option<bool> {
        self.options.pnfs
    }

    /// True when files are read from memory that a server on this host shows, where it does.
    pub fn optimistic(&self) -> Option<bool> {
        self.options.optimistic
    }

    /// True when data inside messages is padded, so that it arrives aligned.
    pub fn inline_padding(&self) -> Option<bool> {
        self.options.inline_padding
    }

    /// The tickets to use, when the client is to prove its principal by GSS.
    pub fn gss(&self) -> Option<GssCredentials> {
        self.options.gss()
    }

    /// The demand of TLS.
    pub fn tls(&self) -> Option<TlsOptions> {
        self.is_secure.then(|| self.options.tls())
    }

    /// True when a password may leave this host in clear text.
    pub fn danger_clear_passwords(&self) -> Option<bool> {
        self.options.danger_clear_passwords
    }

    /// True when both ask for sessions of the same kind.
    pub fn has_options_of(&self, other: &Self) -> bool {
        (self.is_secure, &self.options) == (other.is_secure, &other.options)
    }

    /// The same server with another path.
    ///
    /// # Errors
    /// A zero byte in the path.
    pub fn with_path(&self, path: &[u8]) -> Result<Self, UrlError> {
        if path.contains(&0) {
            return Err(UrlError::NulInPath);
        }
        Ok(Self { path: absolute(path), ..self.clone() })
    }

    /// This path with `name` below it.
    ///
    /// # Errors
    /// A zero byte in the name.
    pub fn join(&self, name: &[u8]) -> Result<Self, UrlError> {
        self.with_path(&below(&self.path, name))
    }
}

fn parse_user(user: &str) -> Result<String, UrlError> {
    if user.contains(':') {
        return Err(UrlError::Password);
    }
    String::from_utf8(unescape(user)?).map_err(|_| UrlError::User)
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

fn parse_host_port(text: &str) -> Result<(String, u16), UrlError> {
    let (host, port) = if let Some(inner) = text.strip_prefix('[') {
        let (address, after) = inner.split_once(']').ok_or_else(|| UrlError::Ipv6(text.into()))?;
        let host = address_of(address).ok_or_else(|| UrlError::Ipv6(address.into()))?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(UrlError::Port(after.into())),
        }
    } else if text.matches(':').count() > 1 {
        return Err(UrlError::Ipv6(text.into()));
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        }
    };
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(port) => match port.parse::<u16>() {
            Ok(number) if number != 0 && port.bytes().all(|b| b.is_ascii_digit()) => number,
            _ => return Err(UrlError::Port(port.into())),
        },
    };
    Ok((host, port))
}

/// Percent-decodes, and refuses input that the lenient decoder would pass through.
fn unescape(text: &str) -> Result<Vec<u8>, UrlError> {
    let bytes = text.as_bytes();
    for (at, _) in bytes.iter().enumerate().filter(|&(_, &byte)| byte == b'%') {
        let digits = bytes.get(at + 1..at + 3).unwrap_or_default();
        if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(UrlError::Escape(text.into()));
        }
    }
    Ok(percent_decode_str(text).collect())
}

impl FromStr for DafsUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text)
    }
}

impl fmt::Display for DafsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_secure { SECURE_SCHEME } else { SCHEME })?;
        if let Some(user) = &self.user {
            write!(f, "{}@", percent_encode(user.as_bytes(), USER))?;
        }
        f.write_str(&in_url(&self.host))?;
        if self.port != DEFAULT_PORT {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "{}", percent_encode(&self.path, PATH))?;
        write!(f, "{}", self.options)
    }
}

impl fmt::Debug for DafsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DafsUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_tls::TransportSecurity;
    use proptest::prelude::*;

    fn parts(text: &str) -> (Option<String>, String, u16, Vec<u8>) {
        let url = DafsUrl::parse(text).unwrap();
        (url.user().map(str::to_owned), url.host().into(), url.port(), url.path().to_vec())
    }

    #[test]
    fn the_parts_of_a_url() {
        let plain = |host: &str, port, path: &str| (None, host.to_owned(), port, path.into());
        assert_eq!(parts("dafs://host"), plain("host", 20490, "/"));
        assert_eq!(parts("DAFS://host:7/a/b"), plain("host", 7, "/a/b"));
        assert_eq!(parts("dafs://host:/a"), plain("host", 20490, "/a"));
        assert_eq!(parts("dafs://[::1]:9/a"), plain("::1", 9, "/a"));
        assert_eq!(parts("dafs://[fe80::1%eth0]/"), plain("fe80::1%eth0", 20490, "/"));
        assert_eq!(parts("dafs://[fe80::1%25eth0]:7/a"), plain("fe80::1%eth0", 7, "/a"));
        assert_eq!(parts("dafs://[fe80::1%252]"), plain("fe80::1%2", 20490, "/"));
        let url = DafsUrl::parse("dafs://[fe80::1%eth0]:7/a").unwrap();
        assert_eq!(url.to_string(), "dafs://[fe80::1%25eth0]:7/a");
        assert_eq!(parts("dafs://1.2.3.4/a%20b%FF").3, b"/a b\xff");
        assert_eq!(parts("dafs://a%40b@host/x").0.unwrap(), "a@b");
    }

    #[test]
    fn a_wrong_url_names_the_remedy() {
        let cases = [
            ("http://host/", "does not start with dafs://"),
            ("dafs://h/a?ca=/c", "a file of TLS without dafss://"),
            ("dafs://h/a?xprtsec=tls", "xprtsec=tls or mtls without dafss://"),
            ("dafss://h/a?xprtsec=none", "is no option"),
            ("dafss://h/a?cert=/c", "a certificate or a key alone"),
            ("dafss://h/a?xprtsec=mtls", "mtls without a certificate"),
            ("dafss://h/a?transport=shm", "transport=shm with TLS"),
            ("dafss://h/a?transport=verbs", "transport=verbs with TLS"),
            ("host:/path", "does not start with dafs://"),
            ("dafs:///path", "names no host"),
            ("dafs://:1/", "names no host"),
            ("dafs://h:0/", "number from 1 to 65535"),
            ("dafs://h:65536/", "number from 1 to 65535"),
            ("dafs://h:+1/", "number from 1 to 65535"),
            ("dafs://::1/", "is not an IPv6 address"),
            ("dafs://[zz]/", "is not an IPv6 address"),
            ("dafs://[fe80::1%]/", "is not an IPv6 address"),
            ("dafs://[fe80::1%25]/", "is not an IPv6 address"),
            ("dafs://[fe80::1%25a%2F]/", "is not an IPv6 address"),
            ("dafs://[::1]x/", "number from 1 to 65535"),
            ("dafs://u:p@h/", "password"),
            ("dafs://h/a%2", "two hexadecimal digits"),
            ("dafs://h/a%00", "zero byte"),
            ("dafs://h/a?b", "Write %3F"),
            ("dafs://h/a#b", "write %23"),
            ("dafs://h/a?fence-id=", "Write %3F"),
            ("dafs://h/a?fence-id=a&b=c", "is no option"),
            ("dafs://h/a?fence-id=a?b", "is no option"),
            ("dafs://h/a?fence-id=a&", "is no option"),
            ("dafs://h/a?recovery=", "is no option"),
            ("dafs://h/a?recovery=+5", "number of seconds"),
            ("dafs://h/a?recovery=5s", "number of seconds"),
            ("dafs://h/a?deadline=-1", "number of seconds"),
            ("dafs://h/a?deadline=1&deadline=1", "twice"),
            ("dafs://h/a?recovery=4294967296", "number of seconds"),
            ("dafs://h/a?recovery=5&fence-id=a&recovery=6", "twice"),
            ("dafs://h/a?connect-timeout=0", "is no option"),
            ("dafs://h/a?transport=tcp", "transport=auto|iwarp|shm|verbs"),
            ("dafs://h/a?wait=long", "wait=adaptive|poll|sleep"),
            ("dafs://h/a?checksums=on", "checksums=yes|no"),
            ("dafs://h/a?inline-padding=512", "inline-padding=yes|no"),
            ("dafs://h/a?checksums=no&checksums=no", "twice"),
            ("dafs://h/a?sec=krb5", "sec=gss"),
            ("dafs://h/a?keytab=/k", "without sec=gss"),
            ("dafs://h/a?sec=gss&principal=anna", "a principal without a keytab"),
            ("dafs://h/a?sec=gss&ccache=c&keytab=k", "both a cache and a keytab"),
            ("dafs://h/a?sec=gss&ccache=%FF", "is no option"),
        ];
        for (text, part) in cases {
            let error = DafsUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn options_in_any_order() {
        let url = DafsUrl::parse("dafs://h/a?recovery=007&fence-id=n%26m").unwrap();
        assert_eq!(url.recovery(), Some(Duration::from_secs(7)));
        assert_eq!(url.fence_id(), Some("n&m"));
        assert_eq!(url.to_string(), "dafs://h/a?fence-id=n%26m&recovery=7");
        let url = DafsUrl::parse("dafs://h/a?recovery=0").unwrap();
        assert_eq!(url.join(b"b").unwrap().recovery(), Some(Duration::ZERO));
        let url = DafsUrl::parse("dafs://h/a").unwrap();
        assert_eq!((url.recovery(), url.deadline()), (None, None));
        let url = DafsUrl::parse("dafs://h/a?deadline=5&recovery=7").unwrap();
        assert_eq!(url.deadline(), Some(Duration::from_secs(5)));
        assert_eq!(url.to_string(), "dafs://h/a?recovery=7&deadline=5");
        let text = "dafs://h/a?connect-timeout=3&transport=shm&wait=poll&checksums=yes&pnfs=no\
                    &optimistic=yes&inline-padding=no";
        let url = DafsUrl::parse(text).unwrap();
        assert_eq!(url.to_string(), text);
        assert_eq!(url.connect_timeout(), Some(Duration::from_secs(3)));
        assert_eq!(url.transport(), Some(TransportChoice::Shm));
        assert_eq!((url.wait(), url.checksums()), (Some(WaitPolicy::Poll), Some(true)));
        assert_eq!((url.data_servers(), url.optimistic()), (Some(false), Some(true)));
        assert_eq!(url.inline_padding(), Some(false));
        let other = DafsUrl::parse("dafs://h/a").unwrap();
        assert!(!url.has_options_of(&other) && url.has_options_of(&url.join(b"b").unwrap()));
    }

    #[test]
    fn another_scheme_demands_tls() {
        let text = "dafss://h/a?xprtsec=mtls&ca=/x%20y&cert=c&key=k&danger-clear-passwords=no";
        let url = DafsUrl::parse(text).unwrap();
        let tls = url.tls().unwrap();
        assert_eq!((tls.least, tls.authorities), (TransportSecurity::Mtls, Some("/x y".into())));
        assert_eq!(tls.own, Some(("c".into(), "k".into())));
        assert_eq!(url.to_string().replace("%2F", "/"), text);
        let (plain, short) = (DafsUrl::parse("dafs://h/"), DafsUrl::parse("DAFSS://h/"));
        let (plain, short) = (plain.unwrap(), short.unwrap());
        assert_eq!((plain.tls(), short.tls()), (None, Some(TlsOptions::default())));
        assert_eq!(short.to_string(), "dafss://h/");
        assert!(!plain.has_options_of(&short));
    }

    #[test]
    fn paths_are_joined() {
        let url = DafsUrl::parse("dafs://h/a").unwrap();
        assert_eq!(url.join(b"b c").unwrap().to_string(), "dafs://h/a/b%20c");
        assert_eq!(url.with_path(b"/").unwrap().join(b"x").unwrap().path(), b"/x");
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(
            path in proptest::collection::vec(1u8.., 0..40),
            port in 1u16..,
            user in proptest::option::of("[a-z@/:% \u{e9}]{1,8}"),
            fence_id in proptest::option::of("[a-z@/:%?&=#+ \u{e9}]{1,8}"),
            times in proptest::array::uniform3(proptest::option::of(1u32..)),
            transport in proptest::option::of(0..4usize),
            wait in proptest::option::of(0..3usize),
            checksums: Option<bool>,
            pnfs: Option<bool>,
            tickets in proptest::option::of((0..4, "[a-z@/:%?&=#+ \u{e9}]{1,8}")),
        ) {
            let mut url = DafsUrl::new("::1", port, &path).unwrap();
            url.user = user;
            let transports = [
                TransportChoice::Auto,
                TransportChoice::Iwarp,
                TransportChoice::Shm,
                TransportChoice::Verbs,
            ];
            let waits = [WaitPolicy::default(), WaitPolicy::Poll, WaitPolicy::Sleep];
            let [recovery_seconds, deadline_seconds, connect_timeout_seconds] = times;
            url.options = Options {
                fence_id,
                recovery_seconds,
                deadline_seconds,
                connect_timeout_seconds,
                transport: transport.map(|at| transports[at]),
                wait: wait.map(|at| waits[at]),
                checksums,
                pnfs,
                ..Options::default()
            };
            if let Some((kind, name)) = tickets {
                let options = &mut url.options;
                options.sec = Some(true);
                match kind {
                    0 => {}
                    1 => options.ccache = Some(name),
                    2 => options.keytab = Some(name),
                    _ => (options.keytab, options.principal) = (Some(name.clone()), Some(name)),
                }
            }
            prop_assert_eq!(DafsUrl::parse(&url.to_string()).unwrap(), url);
        }

        #[test]
        fn no_text_panics(text in "(dafs://)?\\PC{0,40}") {
            let _ = DafsUrl::parse(&text);
        }
    }
}
