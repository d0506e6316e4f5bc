//! The page for administrators with a browser: one file of HTML with its style and script, which asks `/v1/`.
//!
//! Invariants
//! * The page is the same for everyone, and has nothing of this server. Its script gets the state of the server
//!   by requests with the token that an administrator has entered.
//! * A browser runs no script but that of the file, whose hash is in the policy. It loads nothing from elsewhere,
//!   makes no HTML of text, and shows the page in no frame of another one.

use dafs_wire::http::Request;

const HTML: &str = include_str!("page.html");

const ICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\">\
    <path d=\"M2 13V8m4 5V3m4 10V6m4 7V9\" stroke=\"#2f7fd6\" stroke-width=\"3\"/></svg>";

/// The rules for browsers (Content Security Policy Level 3). The hashes are of the content of `<script>` and
/// `<style>`.
const POLICY: &str = "default-src 'none'; script-src 'sha256-6W6kq+5NaTY44a8lp9jxZGCcFZEYKPTQNOP9DFof+NI='; \
    style-src 'sha256-qw0/NQMDyVYkI4Hq/lu32xhVyfZUtcrXUN/84oH0f3E='; connect-src 'self'; img-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// Content that needs no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    media_type: &'static str,
    content: &'static str,
}

impl Page {
    /// Returns the page or the icon, if a request is for one of them.
    pub(super) fn of(request: &Request<'_>) -> Option<Self> {
        match (request.method, request.target) {
            ("GET", "/") => Some(Self { media_type: "text/html; charset=utf-8", content: HTML }),
            ("GET", "/favicon.ico" | "/favicon.svg") => {
                Some(Self { media_type: "image/svg+xml", content: ICON })
            }
            _ => None,
        }
    }

    /// Returns a whole message.
    pub(super) fn message(self) -> Vec<u8> {
        let Self { media_type, content } = self;
        let bytes = content.len();
        let text = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {bytes}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nContent-Security-Policy: {POLICY}\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Connection: close\r\n\r\n{content}"
        );
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::http::{Response, head_bytes};

    fn page(line: &str) -> Option<Page> {
        let head = format!("{line} HTTP/1.1\r\n\r\n");
        Page::of(&Request::parse(head.as_bytes()).unwrap())
    }

    /// Encodes base64 (RFC 4648 section 4).
    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let group = |bytes: &[u8]| {
            let at = |index: usize| u32::from(bytes.get(index).copied().unwrap_or_default());
            let bits = (at(0) << 16) | (at(1) << 8) | at(2);
            let digit = |index: usize| match index <= bytes.len() {
                true => char::from(DIGITS[(bits >> (18 - 6 * index)) as usize % 64]),
                false => '=',
            };
            [digit(0), digit(1), digit(2), digit(3)]
        };
        bytes.chunks(3).flat_map(group).collect()
    }

    /// Returns the source of a policy that allows the content of the only element of this name.
    fn source(name: &str) -> String {
        let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
        assert_eq!(HTML.matches(&format!("<{name}")).count(), 1, "{name}");
        let content = HTML.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
        let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
        let sha256 = suite.tls13().unwrap().common.hash_provider;
        format!(
            "{name}-src 'sha256-{}';",
            base64(sha256.hash(content.unwrap().0.as_bytes()).as_ref())
        )
    }

    #[test]
    fn digits_of_base64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_policy_allows_the_script_and_the_style_of_the_page_alone() {
        for name in ["script", "style"] {
            let source = source(name);
            assert!(POLICY.contains(&source), "write into POLICY: {source}");
        }
        for rule in ["default-src 'none'", "form-action 'none'", "frame-ancestors 'none'"] {
            assert!(POLICY.contains(rule), "{rule}");
        }
        assert!(!POLICY.contains("unsafe") && !POLICY.contains("http"), "{POLICY}");
    }

    #[test]
    fn the_page_has_nothing_from_elsewhere_and_makes_no_html_of_text() {
        for wrong in [
            "://",
            "@import",
            "url(",
            "src=",
            "style=",
            "onclick=",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "localStorage",
            "document.cookie",
            "location.hash",
        ] {
            assert!(!HTML.contains(wrong), "{wrong}");
        }
        assert_eq!(HTML.matches("href=").count(), 1, "the icon");
        assert!(HTML.is_ascii());
    }

    #[test]
    fn a_browser_keeps_the_page_out_of_caches_and_frames() {
        for (line, media_type) in [
            ("GET /", "text/html; charset=utf-8"),
            ("GET /favicon.ico", "image/svg+xml"),
            ("GET /favicon.svg", "image/svg+xml"),
        ] {
            let message = page(line).unwrap().message();
            let bytes = head_bytes(&message).unwrap().unwrap();
            let head = Response::parse(&message[..bytes]).unwrap();
            assert_eq!(head.status, 200);
            assert_eq!(head.fields.content_bytes(), Ok((message.len() - bytes) as u64));
            for (name, value) in [
                ("content-type", media_type),
                ("cache-control", "no-store"),
                ("x-content-type-options", "nosniff"),
                ("content-security-policy", POLICY),
                ("referrer-policy", "no-referrer"),
                ("connection", "close"),
            ] {
                assert_eq!(head.fields.get(name), Some(value), "{line}: {name}");
            }
        }
        for line in ["GET /?", "GET /index.html", "GET //", "POST /", "HEAD /", "GET /v1/status"] {
            assert_eq!(page(line), None, "{line}");
        }
    }
}
