//! Heads of HTTP/1.1 messages (RFC 9112), as much as ports for administrators need.
//!
//! Invariants
//! * A head that two parsers could read differently is refused: a line that ends without CR, a folded line,
//!   a blank before a colon, a repeated field that has one value, a length beside another framing.
//! * The length of content is known from the head. Chunked content is refused.

use thiserror::Error;

/// Bytes of a head with its end.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// Fields of a head.
pub const FIELDS_MAX: usize = 64;

/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

/// Fields that have one value. A second one could be what another parser believes.
const SINGLE: [&str; 5] = ["authorization", "content-length", "host", "origin", "sec-fetch-site"];

/// The reason why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HttpError {
    /// It is longer than [`HEAD_BYTES_MAX`], or has more than [`FIELDS_MAX`] fields.
    #[error("the head of the message is too large")]
    TooLarge,
    /// It is no head.
    #[error("this is no message of HTTP/1.1")]
    Malformed,
    /// A field that has one value is repeated.
    #[error("a field of the head is repeated")]
    Repeated,
    /// The content is chunked or compressed for its transfer.
    #[error("content needs a Content-Length, and no Transfer-Encoding")]
    Framing,
}

/// Returns the length of a head, if it is complete.
pub fn head_bytes(received: &[u8]) -> Result<Option<usize>, HttpError> {
    let searched = &received[..received.len().min(HEAD_BYTES_MAX)];
    match searched.windows(END.len()).position(|end| end == END) {
        Some(at) => Ok(Some(at + END.len())),
        None if received.len() >= HEAD_BYTES_MAX => Err(HttpError::TooLarge),
        None => Ok(None),
    }
}

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The method, such as `GET`.
    pub method: &'a str,
    /// The target, which begins with a slash.
    pub target: &'a str,
    /// The fields.
    pub fields: Fields<'a>,
}

impl<'a> Request<'a> {
    /// Parses a whole head, as [`head_bytes`] has found it.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub fn parse(head: &'a [u8]) -> Result<Self, HttpError> {
        let (line, fields) = parts(head)?;
        let mut words = line.split(' ');
        let (Some(method), Some(target), Some("HTTP/1.1"), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(HttpError::Malformed);
        };
        if !is_token(method) || !target.starts_with('/') {
            return Err(HttpError::Malformed);
        }
        Ok(Self { method, target, fields })
    }
}

/// The head of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response<'a> {
    /// The status, such as 200.
    pub status: u16,
    /// The fields.
    pub fields: Fields<'a>,
}

impl<'a> Response<'a> {
    /// Parses a whole head, as [`head_bytes`] has found it.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub fn parse(head: &'a [u8]) -> Result<Self, HttpError> {
        let (line, fields) = parts(head)?;
        let rest = line.strip_prefix("HTTP/1.1 ").ok_or(HttpError::Malformed)?;
        let (digits, _) = rest.split_once(' ').unwrap_or((rest, ""));
        let is_status = digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let status = digits.parse().ok().filter(|_| is_status).ok_or(HttpError::Malformed)?;
        Ok(Self { status, fields })
    }
}

/// The fields of a head, which were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    /// Returns names and values in their order, without the blanks around values.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let lines = self.0.split("\r\n").filter(|line| !line.is_empty());
        let split = |line: &'a str| line.split_once(':').unwrap_or((line, ""));
        lines.map(split).map(|(name, value)| (name, value.trim_matches([' ', '\t'])))
    }

    /// Returns the first value of a field. The case of names does not matter.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the bytes of the content: 0 without a length.
    ///
    /// # Errors
    /// The length is no number.
    pub fn content_bytes(&self) -> Result<u64, HttpError> {
        match self.get("content-length") {
            None => Ok(0),
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| HttpError::TooLarge)
            }
            Some(_) => Err(HttpError::Malformed),
        }
    }
}

/// Returns the first line and the checked fields of a head.
fn parts(head: &[u8]) -> Result<(&str, Fields<'_>), HttpError> {
    if head.len() > HEAD_BYTES_MAX {
        return Err(HttpError::TooLarge);
    }
    let is_allowed = |&byte: &u8| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n');
    let text = head.strip_suffix(END).filter(|head| head.iter().all(is_allowed));
    let text = text.and_then(|head| str::from_utf8(head).ok()).ok_or(HttpError::Malformed)?;
    let (line, rest) = text.split_once("\r\n").unwrap_or((text, ""));
    if line.contains(['\r', '\n', '\t']) {
        return Err(HttpError::Malformed);
    }
    let fields = Fields(rest);
    let mut seen = [false; SINGLE.len()];
    for (count, field) in rest.split("\r\n").enumerate() {
        if rest.is_empty() {
            break;
        }
        if count >= FIELDS_MAX {
            return Err(HttpError::TooLarge);
        }
        let (name, value) = field.split_once(':').ok_or(HttpError::Malformed)?;
        if !is_token(name) || value.contains(['\r', '\n']) {
            return Err(HttpError::Malformed);
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(HttpError::Framing);
        }
        let single = SINGLE.iter().position(|single| name.eq_ignore_ascii_case(single));
        if single.is_some_and(|at| std::mem::replace(&mut seen[at], true)) {
            return Err(HttpError::Repeated);
        }
    }
    Ok((line, fields))
}

/// True for a token (RFC 9110 5.6.2).
fn is_token(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<Request<'_>, HttpError> {
        Request::parse(text.as_bytes())
    }

    #[test]
    fn a_request_is_read_as_it_stands() {
        let text = "POST /v1/reload HTTP/1.1\r\nHost: here:1\r\ncontent-LENGTH:  12 \r\nX:\r\n\r\n";
        let head = request(text).unwrap();
        assert_eq!((head.method, head.target), ("POST", "/v1/reload"));
        assert_eq!(head.fields.get("HOST"), Some("here:1"));
        assert_eq!(head.fields.get("x"), Some(""));
        assert_eq!(head.fields.get("origin"), None);
        assert_eq!(head.fields.content_bytes(), Ok(12));
        let bare = request("GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((bare.fields.iter().count(), bare.fields.content_bytes()), (0, Ok(0)));
    }

    #[test]
    fn heads_that_can_be_read_in_two_ways_are_refused() {
        let with = |field: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        for (text, error) in [
            (with("Host: b"), HttpError::Repeated),
            (with("Content-Length: 1\r\nContent-Length: 1"), HttpError::Repeated),
            (with("Transfer-Encoding: chunked"), HttpError::Framing),
            (with("A : b"), HttpError::Malformed),
            (with(" folded: b"), HttpError::Malformed),
            (with("A: b\nHost: c"), HttpError::Malformed),
            (with("A: b\rHost: c"), HttpError::Malformed),
            (with("A: \0"), HttpError::Malformed),
            (with("A: \u{e9}"), HttpError::Malformed),
            (with("no colon"), HttpError::Malformed),
            (with(&"A: b\r\n".repeat(FIELDS_MAX)), HttpError::TooLarge),
            (with(&format!("A: {}", "b".repeat(HEAD_BYTES_MAX))), HttpError::TooLarge),
            ("GET / HTTP/1.0\r\n\r\n".to_owned(), HttpError::Malformed),
            ("GET  / HTTP/1.1\r\n\r\n".to_owned(), HttpError::Malformed),
            ("GET http://a/ HTTP/1.1\r\n\r\n".to_owned(), HttpError::Malformed),
            ("GET / HTTP/1.1\n\n".to_owned(), HttpError::Malformed),
            ("\r\n\r\n".to_owned(), HttpError::Malformed),
        ] {
            assert_eq!(request(&text).unwrap_err(), error, "{text:?}");
        }
        for length in ["-1", "+1", "1,1", "0x1", ""] {
            let text = with(&format!("Content-Length: {length}"));
            assert_eq!(request(&text).unwrap().fields.content_bytes(), Err(HttpError::Malformed));
        }
        let text = with("Content-Length: 99999999999999999999999");
        assert_eq!(request(&text).unwrap().fields.content_bytes(), Err(HttpError::TooLarge));
    }

    #[test]
    fn a_response_has_a_status() {
        let status = |line: &str| {
            Response::parse(format!("{line}\r\nA: b\r\n\r\n").as_bytes()).map(|head| head.status)
        };
        assert_eq!(status("HTTP/1.1 200 OK"), Ok(200));
        assert_eq!(status("HTTP/1.1 429"), Ok(429));
        for wrong in ["HTTP/1.1 20", "HTTP/1.1 +20", "HTTP/2 200", "", "HTTP/1.1 2000 X"] {
            assert_eq!(status(wrong), Err(HttpError::Malformed), "{wrong:?}");
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_within_bounds() {
        assert_eq!(head_bytes(b"GET / HTTP/1.1\r\n\r\nmore"), Ok(Some(18)));
        assert_eq!(head_bytes(b"GET / HTTP/1.1\r\n\r"), Ok(None));
        assert_eq!(head_bytes(&[b'a'; HEAD_BYTES_MAX - 1]), Ok(None));
        assert_eq!(head_bytes(&[b'a'; HEAD_BYTES_MAX]), Err(HttpError::TooLarge));
        let late = [&[b'a'; HEAD_BYTES_MAX][..], END].concat();
        assert_eq!(head_bytes(&late), Err(HttpError::TooLarge));
    }
}
