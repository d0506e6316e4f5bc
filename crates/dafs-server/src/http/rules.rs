//! The decision about a request for administration, as a function of its head.
//!
//! Invariants
//! * Nothing is looked at beyond the head before the token was right.
//! * A page of another site gets nothing done, although a browser of an administrator sends its request: the
//!   browser says where it comes from, a name that leads to this host is not this host's, and no cookie counts.
//! * However many wrong tokens come, they cost a bounded number of log lines. They keep no right token out.

use super::token::Token;
use crate::limits::{REFUSALS_LOG_INTERVAL, REFUSALS_PER_SECOND};
use dafs_wire::http::{HttpError, Request};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The reason why a request is not carried out, with its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) text: String,
}

/// The statuses of answers (RFC 9110 15, RFC 6585).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    ContentTooLarge,
    UnprocessableContent,
    TooManyRequests,
    FieldsTooLarge,
}

impl Status {
    /// Returns the status line without the version.
    pub(super) fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::Unauthorized => "401 Unauthorized",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::UnprocessableContent => "422 Unprocessable Content",
            Self::TooManyRequests => "429 Too Many Requests",
            Self::FieldsTooLarge => "431 Request Header Fields Too Large",
        }
    }
}

/// Makes a refusal.
pub(super) fn refusal(status: Status, text: impl Into<String>) -> Refusal {
    Refusal { status, text: text.into() }
}

impl From<HttpError> for Refusal {
    fn from(error: HttpError) -> Self {
        let status = match error {
            HttpError::TooLarge => Status::FieldsTooLarge,
            _ => Status::BadRequest,
        };
        refusal(status, error.to_string())
    }
}

/// Returns the name of this server in a request.
///
/// # Errors
/// The answer to a request for another server.
pub(super) fn own_host<'a>(request: &Request<'a>, is_secure: bool) -> Result<&'a str, Refusal> {
    let host = request.fields.get("host");
    let host = host.ok_or_else(|| refusal(Status::BadRequest, "name this server in Host"))?;
    // In the clear only this host gets here, and by no other name than that. Inside TLS the client has
    // checked the name.
    if !is_secure && !is_loopback(host) {
        return Err(refusal(Status::Forbidden, "this is not the server that Host names"));
    }
    Ok(host)
}

/// Decides if the sender of a request is an administrator.
///
/// # Errors
/// The answer to others.
pub(super) fn admit(request: &Request<'_>, is_secure: bool, token: &Token) -> Result<(), Refusal> {
    let host = own_host(request, is_secure)?;
    let scheme = if is_secure { "https" } else { "http" };
    let own_origin = format!("{scheme}://{host}");
    let is_foreign = request.fields.get("origin").is_some_and(|origin| origin != own_origin);
    let site = request.fields.get("sec-fetch-site");
    if is_foreign || site.is_some_and(|site| !["same-origin", "none"].contains(&site)) {
        return Err(refusal(Status::Forbidden, "a page of another site has sent this request"));
    }
    let given = request.fields.get("authorization").and_then(|field| field.split_once(' '));
    match given {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("bearer") => {
            match token.is(given.trim().as_bytes()) {
                true => Ok(()),
                false => Err(refusal(Status::Unauthorized, "the token is wrong")),
            }
        }
        _ => Err(refusal(Status::Unauthorized, "send the header Authorization: Bearer TOKEN")),
    }
}

/// True if a Host field names this host by a loopback address, with any port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_address = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || name.eq_ignore_ascii_case("localhost")
}

/// Requests without the right token.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    second: Option<Instant>,
    in_second: u32,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Refusals {
    /// Counts one. Returns true if there are too many, and the number for a line of the log if one is due.
    pub(super) fn count(&mut self, now: Instant) -> (bool, Option<u64>) {
        let is_over = |since: Option<Instant>, time: Duration| {
            since.is_none_or(|since| now.saturating_duration_since(since) >= time)
        };
        if is_over(self.second, Duration::from_secs(1)) {
            (self.second, self.in_second) = (Some(now), 0);
        }
        self.in_second = self.in_second.saturating_add(1);
        self.unlogged += 1;
        let is_due = is_over(self.logged, REFUSALS_LOG_INTERVAL);
        let due = is_due.then(|| {
            self.logged = Some(now);
            std::mem::take(&mut self.unlogged)
        });
        (self.in_second > REFUSALS_PER_SECOND, due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn token() -> Token {
        Token::of(TOKEN.as_bytes()).unwrap()
    }

    fn status(fields: &str, is_secure: bool) -> Status {
        let head = format!("GET /v1/clients HTTP/1.1\r\n{fields}\r\n\r\n");
        let request = Request::parse(head.as_bytes()).unwrap();
        admit(&request, is_secure, &token()).map_or_else(|refusal| refusal.status, |()| Status::Ok)
    }

    #[test]
    fn only_the_token_admits() {
        let with =
            |authorization: &str| status(&format!("Host: localhost\r\n{authorization}"), false);
        assert_eq!(with(&format!("Authorization: Bearer {TOKEN}")), Status::Ok);
        assert_eq!(with(&format!("authorization: bearer {TOKEN}")), Status::Ok);
        for wrong in [
            "A: b",
            "Authorization: Bearer",
            "Authorization: Bearer x",
            "Authorization: 0123456789abcdef0123456789abcdef",
            "Authorization: Basic 0123456789abcdef0123456789abcdef",
            "Authorization: Bearer 0123456789abcdef0123456789abcdee",
            "Cookie: token=0123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(with(wrong), Status::Unauthorized, "{wrong}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused_with_the_token_too() {
        let with = |fields: &str, is_secure| {
            status(&format!("Authorization: Bearer {TOKEN}\r\n{fields}"), is_secure)
        };
        for (fields, is_secure, expected) in [
            ("Host: 127.0.0.1:9480", false, Status::Ok),
            ("Host: [::1]:9480", false, Status::Ok),
            ("Host: attacker.example", false, Status::Forbidden),
            ("Host: 192.0.2.1:9480", false, Status::Forbidden),
            ("Host: localhost.attacker.example", false, Status::Forbidden),
            ("A: b", false, Status::BadRequest),
            ("Host: nas.example", true, Status::Ok),
            ("Host: localhost\r\nOrigin: http://localhost", false, Status::Ok),
            ("Host: localhost\r\nOrigin: http://attacker.example", false, Status::Forbidden),
            ("Host: localhost\r\nOrigin: null", false, Status::Forbidden),
            ("Host: nas.example\r\nOrigin: http://nas.example", true, Status::Forbidden),
            ("Host: localhost\r\nSec-Fetch-Site: cross-site", false, Status::Forbidden),
            ("Host: localhost\r\nSec-Fetch-Site: same-origin", false, Status::Ok),
        ] {
            assert_eq!(with(fields, is_secure), expected, "{fields}");
        }
    }

    #[test]
    fn ten_thousand_wrong_tokens_have_few_log_lines() {
        let (mut refusals, begin) = (Refusals::default(), Instant::now());
        let (mut floods, mut lines, mut logged) = (0, 0, 0);
        for number in 0..10_000 {
            let (is_flood, due) = refusals.count(begin + Duration::from_millis(number));
            floods += u32::from(is_flood);
            lines += u32::from(due.is_some());
            logged += due.unwrap_or_default();
        }
        assert_eq!((floods, lines, logged), (10_000 - 10 * REFUSALS_PER_SECOND, 1, 1));
        let (is_flood, due) = refusals.count(begin + REFUSALS_LOG_INTERVAL * 2);
        assert_eq!((is_flood, due), (false, Some(10_000)));
    }
}
