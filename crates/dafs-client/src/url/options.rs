//! The options behind the question mark of a URL.

use super::{USER, UrlError, unescape};
use crate::gss::GssCredentials;
use crate::limits::SPIN_POLLS;
use crate::options::{TlsOptions, TransportChoice, WaitPolicy};
use dafs_tls::TransportSecurity;
use percent_encoding::{AsciiSet, percent_encode};
use std::fmt::{self, Display};
use std::path::PathBuf;

/// The characters that must be escaped in an option.
const OPTION: &AsciiSet = &USER.add(b'&').add(b'=').add(b'+');

const FENCE_ID: &str = "fence-id";
const RECOVERY: &str = "recovery";
const DEADLINE: &str = "deadline";
const CONNECT_TIMEOUT: &str = "connect-timeout";
const TRANSPORT: &str = "transport";
const WAIT: &str = "wait";
const CHECKSUMS: &str = "checksums";
const PNFS: &str = "pnfs";
const OPTIMISTIC: &str = "optimistic";
const INLINE_PADDING: &str = "inline-padding";
const SEC: &str = "sec";
const CCACHE: &str = "ccache";
const KEYTAB: &str = "keytab";
const PRINCIPAL: &str = "principal";
const XPRTSEC: &str = "xprtsec";
const CA: &str = "ca";
const CERT: &str = "cert";
const KEY: &str = "key";
const DANGER_CLEAR_PASSWORDS: &str = "danger-clear-passwords";

const TRANSPORTS: [(&str, TransportChoice); 4] = [
    ("auto", TransportChoice::Auto),
    ("iwarp", TransportChoice::Iwarp),
    ("shm", TransportChoice::Shm),
    ("verbs", TransportChoice::Verbs),
];
const WAITS: [(&str, WaitPolicy); 3] = [
    ("adaptive", WaitPolicy::Adaptive { spin: SPIN_POLLS }),
    ("poll", WaitPolicy::Poll),
    ("sleep", WaitPolicy::Sleep),
];
/// The one way to prove who the client is that a URL can ask for.
const SECS: [(&str, bool); 1] = [("gss", true)];
const DEMANDS: [(&str, TransportSecurity); 2] =
    [("tls", TransportSecurity::Tls), ("mtls", TransportSecurity::Mtls)];
const ANSWERS: [(&str, bool); 2] = [("yes", true), ("no", false)];

/// The options that a URL gives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Options {
    pub(super) fence_id: Option<String>,
    pub(super) recovery_seconds: Option<u32>,
    pub(super) deadline_seconds: Option<u32>,
    pub(super) connect_timeout_seconds: Option<u32>,
    pub(super) transport: Option<TransportChoice>,
    pub(super) wait: Option<WaitPolicy>,
    pub(super) checksums: Option<bool>,
    pub(super) pnfs: Option<bool>,
    pub(super) optimistic: Option<bool>,
    pub(super) inline_padding: Option<bool>,
    /// True for GSS.
    pub(super) sec: Option<bool>,
    pub(super) ccache: Option<String>,
    pub(super) keytab: Option<String>,
    pub(super) principal: Option<String>,
    pub(super) xprtsec: Option<TransportSecurity>,
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
    pub(super) danger_clear_passwords: Option<bool>,
}

impl Options {
    pub(super) fn parse(text: &str) -> Result<Self, UrlError> {
        let mut options = Self::default();
        for option in text.split('&') {
            let unknown = || UrlError::Option(option.into());
            let (name, value) = option.split_once('=').ok_or_else(unknown)?;
            if value.is_empty() || value.contains('?') {
                return Err(unknown());
            }
            let text = || String::from_utf8(unescape(value)?).map_err(|_| unknown());
            let first = match name {
                FENCE_ID => give(&mut options.fence_id, Some(text()?)),
                SEC => give(&mut options.sec, named(&SECS, value)),
                CCACHE => give(&mut options.ccache, Some(text()?)),
                KEYTAB => give(&mut options.keytab, Some(text()?)),
                PRINCIPAL => give(&mut options.principal, Some(text()?)),
                XPRTSEC => give(&mut options.xprtsec, named(&DEMANDS, value)),
                CA => give(&mut options.ca, Some(text()?)),
                CERT => give(&mut options.cert, Some(text()?)),
                KEY => give(&mut options.key, Some(text()?)),
                DANGER_CLEAR_PASSWORDS => {
                    give(&mut options.danger_clear_passwords, named(&ANSWERS, value))
                }
                RECOVERY => give(&mut options.recovery_seconds, Some(parse_seconds(value)?)),
                DEADLINE => give(&mut options.deadline_seconds, Some(parse_seconds(value)?)),
                CONNECT_TIMEOUT => {
                    // A timeout of zero would refuse every connection.
                    let time = Some(parse_seconds(value)?).filter(|&time| time > 0);
                    give(&mut options.connect_timeout_seconds, time)
                }
                TRANSPORT => give(&mut options.transport, named(&TRANSPORTS, value)),
                WAIT => give(&mut options.wait, named(&WAITS, value)),
                CHECKSUMS => give(&mut options.checksums, named(&ANSWERS, value)),
                PNFS => give(&mut options.pnfs, named(&ANSWERS, value)),
                OPTIMISTIC => give(&mut options.optimistic, named(&ANSWERS, value)),
                INLINE_PADDING => give(&mut options.inline_padding, named(&ANSWERS, value)),
                _ => None,
            };
            if !first.ok_or_else(unknown)? {
                return Err(UrlError::Twice(name.into()));
            }
        }
        options.check_gss()?;
        Ok(options)
    }

    fn check_gss(&self) -> Result<(), UrlError> {
        let (cache, keytab, principal) =
            (self.ccache.is_some(), self.keytab.is_some(), self.principal.is_some());
        let wrong = match self.sec {
            None if cache || keytab || principal => "tickets without sec=gss",
            _ if cache && keytab => "both a cache and a keytab",
            _ if principal && !keytab => "a principal without a keytab",
            _ => return Ok(()),
        };
        Err(UrlError::Gss(wrong))
    }

    /// Checks that the options of TLS fit each other and the scheme.
    pub(super) fn check_tls(&self, is_secure: bool) -> Result<(), UrlError> {
        let (has_certificate, has_key) = (self.cert.is_some(), self.key.is_some());
        let wrong = if !is_secure && (self.ca.is_some() || has_certificate || has_key) {
            "a file of TLS without dafss://"
        } else if !is_secure && self.xprtsec.is_some() {
            "xprtsec=tls or mtls without dafss://"
        } else if has_certificate != has_key {
            "a certificate or a key alone"
        } else if self.xprtsec == Some(TransportSecurity::Mtls) && !has_certificate {
            "mtls without a certificate"
        } else if is_secure && self.transport == Some(TransportChoice::Shm) {
            "transport=shm with TLS, which shared memory neither has nor needs"
        } else if is_secure && self.transport == Some(TransportChoice::Verbs) {
            "transport=verbs with TLS, which RDMA devices do not have"
        } else {
            return Ok(());
        };
        Err(UrlError::Tls(wrong))
    }

    /// The demand of TLS, where the scheme has it.
    pub(super) fn tls(&self) -> TlsOptions {
        let own = self.cert.as_ref().zip(self.key.as_ref());
        TlsOptions {
            least: self.xprtsec.unwrap_or(TransportSecurity::Tls),
            authorities: self.ca.as_ref().map(PathBuf::from),
            own: own.map(|(own, key)| (own.into(), key.into())),
        }
    }

    /// The tickets to use, with GSS.
    pub(super) fn gss(&self) -> Option<GssCredentials> {
        self.sec?;
        Some(match (&self.ccache, &self.keytab) {
            (Some(name), _) => GssCredentials::Cache(name.clone()),
            (None, Some(path)) => {
                GssCredentials::Keytab { path: path.into(), principal: self.principal.clone() }
            }
            (None, None) => GssCredentials::Default,
        })
    }
}

/// Sets an option, if the value is valid; true the first time, false for a duplicate.
fn give<T>(place: &mut Option<T>, value: Option<T>) -> Option<bool> {
    Some(place.replace(value?).is_none())
}

fn named<T: Copy>(names: &[(&str, T)], name: &str) -> Option<T> {
    names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: Option<T>) -> Option<String> {
    let value = value?;
    names.iter().find(|(_, known)| *known == value).map(|(name, _)| (*name).to_owned())
}

fn parse_seconds(text: &str) -> Result<u32, UrlError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = text.parse().ok().filter(|_| digits);
    seconds.ok_or_else(|| UrlError::Seconds(text.into()))
}

impl Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: &Option<String>| {
            text.as_ref().map(|text| percent_encode(text.as_bytes(), OPTION).to_string())
        };
        let seconds = |time: Option<u32>| time.map(|time| time.to_string());
        let given = [
            (FENCE_ID, text(&self.fence_id)),
            (RECOVERY, seconds(self.recovery_seconds)),
            (DEADLINE, seconds(self.deadline_seconds)),
            (CONNECT_TIMEOUT, seconds(self.connect_timeout_seconds)),
            (TRANSPORT, name_of(&TRANSPORTS, self.transport)),
            (WAIT, name_of(&WAITS, self.wait)),
            (CHECKSUMS, name_of(&ANSWERS, self.checksums)),
            (PNFS, name_of(&ANSWERS, self.pnfs)),
            (OPTIMISTIC, name_of(&ANSWERS, self.optimistic)),
            (INLINE_PADDING, name_of(&ANSWERS, self.inline_padding)),
            (SEC, name_of(&SECS, self.sec)),
            (CCACHE, text(&self.ccache)),
            (KEYTAB, text(&self.keytab)),
            (PRINCIPAL, text(&self.principal)),
            (XPRTSEC, name_of(&DEMANDS, self.xprtsec)),
            (CA, text(&self.ca)),
            (CERT, text(&self.cert)),
            (KEY, text(&self.key)),
            (DANGER_CLEAR_PASSWORDS, name_of(&ANSWERS, self.danger_clear_passwords)),
        ];
        let mut mark = '?';
        for (name, value) in given {
            if let Some(value) = value {
                write!(f, "{mark}{name}={value}")?;
                mark = '&';
            }
        }
        Ok(())
    }
}
