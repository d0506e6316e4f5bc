//! Owners and groups as text (RFC 8881 5.9).
//!
//! Numbers travel as decimal text without a domain, which AUTH_SYS clients accept. The server asks
//! no name service, so it knows only the names that every POSIX system has.

use dafs_wire::nfs4::Status;

/// A number as decimal text without an allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decimal {
    digits: [u8; 10],
    start: u8,
}

impl Decimal {
    pub(crate) fn new(mut number: u32) -> Self {
        let mut digits = [b'0'; 10];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, start: start as u8 };
            }
        }
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.digits[usize::from(self.start)..]
    }
}

/// Parses the user or group of a text: a number, or "root", "nobody" or "nogroup" with any domain.
///
/// # Errors
/// `Inval` for text that is not UTF-8 or empty, `BadOwner` for an unknown name.
pub(crate) fn parse(text: &[u8]) -> Result<u32, Status> {
    let text = std::str::from_utf8(text).map_err(|_| Status::Inval)?;
    if text.is_empty() {
        return Err(Status::Inval);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // The highest number means "no change" in every system call.
        return text.parse().ok().filter(|&number| number != u32::MAX).ok_or(Status::BadOwner);
    }
    match text.split_once('@') {
        Some(("root", domain)) if !domain.is_empty() => Ok(0),
        Some(("nobody" | "nogroup", domain)) if !domain.is_empty() => Ok(NOBODY),
        _ => Err(Status::BadOwner),
    }
}

/// The number of user nobody on every Linux.
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_both_ways() {
        for number in [0, 7, 1000, 65_534, u32::MAX - 1] {
            let decimal = Decimal::new(number);
            assert_eq!(decimal.text(), number.to_string().as_bytes());
            assert_eq!(parse(decimal.text()), Ok(number));
        }
        assert_eq!(Decimal::new(u32::MAX).text(), b"4294967295");
    }

    #[test]
    fn names_that_are_not_known_are_bad_owners() {
        assert_eq!(parse(b"root@example.org"), Ok(0));
        assert_eq!(parse(b"nobody@localdomain"), Ok(65_534));
        for bad in ["anna", "anna@example.org", "root@", "4294967295", "99999999999", "-1", "+1"] {
            assert_eq!(parse(bad.as_bytes()), Err(Status::BadOwner), "{bad}");
        }
        assert_eq!(parse(b""), Err(Status::Inval));
        assert_eq!(parse(b"\xff"), Err(Status::Inval));
    }
}
