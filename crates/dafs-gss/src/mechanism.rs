//! Establishing a context, without a word about the mechanism that does it: two traits, and what they yield.
//!
//! Invariants
//! * A name of a principal is text without control characters, and as short as its limit.
//! * A context that was not established leaves nothing behind: its state is dropped with [`Pending`].

use crate::limits::NAME_BYTES_MAX;
use crate::token::Keys;
use std::any::Any;
use std::fmt;

/// GSS_S_BAD_BINDINGS (RFC 2744 3.9.1).
pub(crate) const BAD_BINDINGS: u32 = 4 << 16;

/// GSS_S_DEFECTIVE_TOKEN (RFC 2744 3.9.1).
pub(crate) const DEFECTIVE_TOKEN: u32 = 9 << 16;

/// GSS_S_FAILURE (RFC 2744 3.9.1).
pub(crate) const FAILURE: u32 = 13 << 16;

/// The longest name of a host (RFC 1035 2.3.4), in bytes.
const HOST_BYTES_MAX: usize = 255;

/// The longest name of a service, in bytes.
const SERVICE_BYTES_MAX: usize = 32;

/// The side that accepts contexts: a server. Calls may read files, so they belong on a thread that may wait.
pub trait Accept: Send + Sync {
    /// Takes the next token of an initiator, with the state that the token before has left, and with the
    /// bindings that the channel must have (RFC 2743 1.1.6). A context without them, or with others, fails.
    fn accept(&self, pending: Option<Pending>, token: &[u8], bindings: Option<&[u8]>) -> Step;
}

/// The side that initiates contexts: a client. Calls may ask a KDC, so they belong on a thread that may wait.
pub trait Initiate: Send + Sync {
    /// Makes the next token for an acceptor. `token` is its last one, empty at first, and `pending` the state
    /// that the call before has left.
    fn initiate(&self, pending: Option<Pending>, wanted: &Wanted<'_>, token: &[u8]) -> Step;
}

/// The wishes of an initiator. It never delegates credentials, and never asks for detection of replays or of
/// order: the protocols above have their own.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The service to talk to.
    pub target: &'a ServiceName,
    /// The acceptor must prove who it is while the context is established (RFC 2743 1.2.6). RPCSEC_GSS does
    /// not need it, since the verifier of the first reply proves the same.
    pub mutual: bool,
    /// The bindings to the channel below.
    pub bindings: Option<&'a [u8]>,
}

/// The result of a call.
#[derive(Debug)]
pub enum Step {
    /// The other side must answer.
    Continue {
        /// The state for the next call.
        pending: Pending,
        /// The token for the other side.
        token: Vec<u8>,
    },
    /// The context is established.
    Done(Box<Established>),
    /// There will be no context.
    Failed(Failure),
}

/// An established context.
#[derive(Debug)]
pub struct Established {
    /// A last token for the other side, if it needs one.
    pub token: Option<Vec<u8>>,
    /// The initiator.
    pub principal: Principal,
    /// The acceptor has proven who it is, too (RFC 2743 1.2.6), or does so with `token`.
    pub mutual: bool,
    /// The end of the ticket, in seconds since 1970. Nothing was added for clocks that differ.
    pub end_time_seconds: u64,
    /// The keys of the context's messages.
    pub keys: Keys,
}

/// The state of a context between two calls, in the hands of the mechanism that made it.
pub struct Pending(Box<dyn Any + Send>);

impl Pending {
    /// Wraps the state of a mechanism.
    pub fn new<T: Any + Send>(state: T) -> Self {
        Self(Box::new(state))
    }

    /// Returns the state, if it is of this mechanism.
    pub fn into_state<T: Any + Send>(self) -> Option<T> {
        self.0.downcast().ok().map(|state| *state)
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

/// The name of a principal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    exported: Vec<u8>,
    display: String,
}

impl Principal {
    /// Makes a name of its exported form (RFC 2743 3.2) and its text, such as `anna@EXAMPLE.ORG`. `None` when
    /// it is too long, or when the text has control characters or is no UTF-8.
    pub fn new(exported: Vec<u8>, display: Vec<u8>) -> Option<Self> {
        let display = String::from_utf8(display).ok()?;
        let fits = exported.len() <= NAME_BYTES_MAX && display.len() <= NAME_BYTES_MAX;
        let is_text = !display.is_empty() && !display.chars().any(char::is_control);
        (fits && is_text).then_some(Self { exported, display })
    }

    /// Returns the exported form, by which names are compared.
    pub fn exported(&self) -> &[u8] {
        &self.exported
    }

    /// Returns the text, in which `\` escapes special characters (RFC 1964 2.1.1).
    pub fn display(&self) -> &str {
        &self.display
    }
}

/// The reason why there is no context, in the words of the mechanism.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The major status (RFC 2744 3.9.1), which RPCSEC_GSS tells the client.
    pub major: u32,
    /// The minor status, with a meaning that the mechanism gives it.
    pub minor: u32,
    /// The text of the major status.
    pub major_text: String,
    /// The text of the minor status.
    pub minor_text: String,
    /// The step that the administrator or the user should take, where one is known.
    pub remedy: Option<&'static str>,
    /// A token that tells the other side.
    pub token: Option<Vec<u8>>,
}

impl Failure {
    /// Makes a failure that was found here, not by a library.
    pub fn here(major: u32, text: &str) -> Self {
        let (minor, minor_text) = (0, String::new());
        Self { major, minor, major_text: text.to_owned(), minor_text, remedy: None, token: None }
    }

    /// Makes a failure of a token that is too long, or of a state that is no state of this mechanism.
    pub(crate) fn defective(text: &str) -> Self {
        Self::here(DEFECTIVE_TOKEN, text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, major_text, minor_text, remedy, .. } = self;
        f.write_str(major_text)?;
        if !minor_text.is_empty() {
            write!(f, ": {minor_text}")?;
        }
        write!(f, " (major {major:#x}, minor {})", minor.cast_signed())?;
        remedy.iter().try_for_each(|remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for Failure {}

/// A service on a host: `nfs@server.example.org` (RFC 2743 4.1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceName(String);

/// A name that cannot be one of a service on a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no service on a host: write it as nfs@server.example.org, with letters, digits, dots and \
     hyphens"
)]
pub struct ServiceNameError(String);

impl ServiceName {
    /// Makes the name of a service on a host.
    ///
    /// # Errors
    /// [`ServiceNameError`] for what has other characters than letters, digits, `-`, `_`, `.` and, in addresses,
    /// `:`, and for names that are empty or too long.
    pub fn new(service: &str, host: &str) -> Result<Self, ServiceNameError> {
        let name = format!("{service}@{host}");
        let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
        let is_good = (1..=SERVICE_BYTES_MAX).contains(&service.len())
            && (1..=HOST_BYTES_MAX).contains(&host.len())
            && service.chars().all(plain)
            && host.chars().all(|char| plain(char) || char == ':');
        if is_good { Ok(Self(name)) } else { Err(ServiceNameError(name)) }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_are_checked() {
        for host in ["a", "server.example.org", "10.0.0.1", "fe80::1", "a_b-c", &"h".repeat(255)] {
            assert_eq!(ServiceName::new("nfs", host).unwrap().as_str(), format!("nfs@{host}"));
        }
        for (service, host) in [
            ("", "host"),
            ("nfs", ""),
            ("nfs@other", "host"),
            ("nfs/x", "host"),
            ("nfs", "host@REALM"),
            ("nfs", "host\0"),
            ("nfs", "host name"),
            ("nfs", "h\u{f6}st"),
            ("nfs", &"h".repeat(256)),
            (&"s".repeat(33), "host"),
        ] {
            assert!(ServiceName::new(service, host).is_err(), "{service}@{host}");
        }
    }

    #[test]
    fn names_of_principals_are_short_text() {
        let make = |text: &[u8]| Principal::new(vec![4, 1], text.to_vec());
        let name = make(b"anna/admin@TEST.DAFS").unwrap();
        assert_eq!((name.display(), name.exported()), ("anna/admin@TEST.DAFS", &[4, 1][..]));
        for bad in [&b""[..], b"a\0b@R", b"a\nb@R", b"a\x1b[1m@R", b"\xff@R", &[b'a'; 4097]] {
            assert_eq!(make(bad), None);
        }
        assert_eq!(Principal::new(vec![4; 4097], b"anna@R".to_vec()), None);
    }

    #[test]
    fn a_failure_tells_both_texts_and_the_remedy() {
        let failure = Failure {
            minor: 2_529_638_949,
            minor_text: "Clock skew too great".to_owned(),
            remedy: Some("set the clocks"),
            ..Failure::here(FAILURE, "Unspecified GSS failure")
        };
        assert_eq!(
            failure.to_string(),
            "Unspecified GSS failure: Clock skew too great (major 0xd0000, minor -1765328347); set the clocks"
        );
    }
}
