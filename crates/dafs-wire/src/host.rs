//! IPv6 addresses as URLs write them, with the zone of a link-local one (RFC 4007, RFC 6874).

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// The address between the brackets of a URL, in the form for resolvers. It is `fe80::1%eth0` for
/// `fe80::1%25eth0`, and also for an unescaped zone. `None` if the text is not an address.
pub fn address_of(text: &str) -> Option<String> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone.strip_prefix("25").unwrap_or(zone))),
        None => (text, None),
    };
    address.parse::<Ipv6Addr>().ok()?;
    match zone {
        Some(zone) if is_zone(zone) => Some(format!("{address}%{zone}")),
        Some(_) => None,
        None => Some(address.to_owned()),
    }
}

/// True if the text may be the name or the number of an interface, and needs no further escapes
/// (RFC 3986 2.3).
fn is_zone(zone: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    !zone.is_empty() && zone.bytes().all(is_letter)
}

/// A host in the form for a URL: an IPv6 address in brackets, with its zone after `%25`.
pub fn in_url(host: &str) -> Cow<'_, str> {
    let (address, zone) = match host.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (host, None),
    };
    match (address.parse::<Ipv6Addr>(), zone) {
        (Ok(_), Some(zone)) => Cow::Owned(format!("[{address}%25{zone}]")),
        (Ok(_), None) => Cow::Owned(format!("[{address}]")),
        (Err(_), _) => Cow::Borrowed(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_escaped_in_urls_and_nowhere_else() {
        for text in ["fe80::1%25eth0", "fe80::1%eth0"] {
            assert_eq!(address_of(text).as_deref(), Some("fe80::1%eth0"));
        }
        assert_eq!(address_of("::1").as_deref(), Some("::1"));
        for wrong in ["", "host", "1.2.3.4", "fe80::1%", "fe80::1%25", "fe80::1%a/b", "fe80::1%a%b"]
        {
            assert_eq!(address_of(wrong), None, "{wrong}");
        }
        assert_eq!(in_url("fe80::1%eth0"), "[fe80::1%25eth0]");
        assert_eq!(in_url("::1"), "[::1]");
        assert_eq!(in_url("host"), "host");
    }
}
