//! Owners and groups as text (RFC 8881 5.9).
//!
//! A caller that proves its name gets names in the server's domain, if that is configured. All
//! others get numbers, as decimal text without a domain, which clients with AUTH_SYS expect. The
//! server takes both from everybody.
//!
//! Invariants
//! * No database is asked here. Names that are not known yet are collected, and the operation runs
//!   again when a thread that may wait has looked them up.
//! * Without a domain the server knows only the names that every POSIX system has. With one, a name
//!   of another domain is nobody's.

use dafs_service::{OwnerAnswer, OwnerKind, OwnerNames, OwnerQuery};
use dafs_wire::nfs4::Status;
use rustc_hash::FxHashSet;
use std::cell::{Cell, RefCell};

/// The longest name of a user or group that is looked up, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// A number as decimal text without an allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decimal {
    digits: [u8; 10],
    start: u8,
}

impl Decimal {
    fn new(mut number: u32) -> Self {
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

    fn text(&self) -> &[u8] {
        &self.digits[usize::from(self.start)..]
    }
}

/// The text of an owner.
#[derive(Debug)]
pub(crate) enum Text {
    /// A number.
    Number(Decimal),
    /// A name with its domain.
    Name(Vec<u8>),
}

impl Text {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Number(number) => number.text(),
            Self::Name(name) => name,
        }
    }
}

/// Names that an operation has to wait for, and those that are old.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    /// The operation runs again when they are known.
    pub(crate) missing: FxHashSet<OwnerQuery>,
    /// They are looked up again, for later operations.
    pub(crate) old: FxHashSet<OwnerQuery>,
}

/// The names of owners for one operation.
#[derive(Debug, Default)]
pub(crate) struct Names<'a> {
    /// The names of the server's domain, and the time.
    known: Option<(&'a OwnerNames, u64)>,
    /// The caller gets names.
    tells: bool,
    /// Any name will do: only the kinds of attributes matter.
    ignores: bool,
    unknown: RefCell<Unknown>,
    /// A number stands in place of a name whose look-up has failed.
    has_failed: Cell<bool>,
}

impl<'a> Names<'a> {
    /// Makes a source of names. `tells` says that the caller gets them.
    pub(crate) fn new(known: Option<&'a OwnerNames>, now_ns: u64, tells: bool) -> Self {
        Self { known: known.map(|known| (known, now_ns)), tells, ..Self::default() }
    }

    /// Takes every name, for attributes that were set before.
    pub(crate) fn ignored() -> Self {
        Self { ignores: true, ..Self::default() }
    }

    /// True if the look-up of a name has failed, so that [`text`](Self::text) has returned a number.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Returns the names that were not known.
    pub(crate) fn into_unknown(self) -> Unknown {
        self.unknown.into_inner()
    }

    /// Returns the text of an owner: its number where the caller gets no names, or it has none.
    pub(crate) fn text(&self, kind: OwnerKind, number: u32) -> Text {
        let plain = Text::Number(Decimal::new(number));
        let Some((known, now_ns)) = self.known.filter(|_| self.tells) else { return plain };
        let mut unknown = self.unknown.borrow_mut();
        match known.name(kind, number, now_ns) {
            OwnerAnswer::Found { value, is_old } => {
                if is_old {
                    unknown.old.insert(OwnerQuery::Name(kind, number));
                }
                return Text::Name([value.as_bytes(), b"@", known.domain().as_bytes()].concat());
            }
            OwnerAnswer::Missing => {
                unknown.missing.insert(OwnerQuery::Name(kind, number));
            }
            OwnerAnswer::None => {}
            OwnerAnswer::Failed => self.has_failed.set(true),
        }
        plain
    }

    /// Parses the user or group of a text. For a name that is not known yet it returns any number.
    ///
    /// # Errors
    /// `Inval` for text that is not UTF-8 or empty, `BadOwner` for an unknown name, `Delay` when it
    /// cannot be looked up.
    pub(crate) fn parse(&self, kind: OwnerKind, text: &[u8]) -> Result<u32, Status> {
        let text = std::str::from_utf8(text).map_err(|_| Status::Inval)?;
        if text.is_empty() {
            return Err(Status::Inval);
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            // The highest number means "no change" in every system call.
            return text.parse().ok().filter(|&number| number != u32::MAX).ok_or(Status::BadOwner);
        }
        if self.ignores {
            return Ok(0);
        }
        let (name, domain) = text.rsplit_once('@').ok_or(Status::BadOwner)?;
        if domain.is_empty() {
            return Err(Status::BadOwner);
        }
        let known = self
            .known
            .map(|(known, now_ns)| (known, now_ns, known.domain().eq_ignore_ascii_case(domain)));
        match (name, known) {
            (_, Some((_, _, false))) => Err(Status::BadOwner),
            ("root", _) => Ok(0),
            ("nobody" | "nogroup", _) => Ok(NOBODY),
            (name, Some((known, now_ns, true))) if is_plain(name) => {
                self.look_up(known, now_ns, kind, name)
            }
            _ => Err(Status::BadOwner),
        }
    }

    fn look_up(
        &self,
        known: &OwnerNames,
        now_ns: u64,
        kind: OwnerKind,
        name: &str,
    ) -> Result<u32, Status> {
        let mut unknown = self.unknown.borrow_mut();
        let query = || OwnerQuery::Number(kind, name.into());
        match known.number(kind, name, now_ns) {
            OwnerAnswer::Found { value, is_old } => {
                if is_old {
                    unknown.old.insert(query());
                }
                Ok(value)
            }
            OwnerAnswer::None => Err(Status::BadOwner),
            OwnerAnswer::Failed => Err(Status::Delay),
            OwnerAnswer::Missing => {
                unknown.missing.insert(query());
                Ok(0)
            }
        }
    }
}

/// True for bytes that can be a name in the database of users.
fn is_plain(name: &str) -> bool {
    let odd = |c: char| c.is_control() || matches!(c, ':' | '/');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(odd)
}

/// The number of user nobody on every Linux.
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::{Directory, LocalUser};
    use std::io;

    /// User anna is 1000, and group staff is 50. There is no user bert. Those of gone and 13 are not told.
    #[derive(Debug)]
    struct Toy;

    impl Directory for Toy {
        fn user(&self, _: &str) -> io::Result<Option<LocalUser>> {
            Ok(None)
        }

        fn uid(&self, name: &str) -> io::Result<Option<u32>> {
            match name {
                "anna" => Ok(Some(1000)),
                "gone" => Err(io::ErrorKind::TimedOut.into()),
                _ => Ok(None),
            }
        }

        fn gid(&self, name: &str) -> io::Result<Option<u32>> {
            Ok((name == "staff").then_some(50))
        }

        fn user_name(&self, uid: u32) -> io::Result<Option<String>> {
            if uid == 13 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok((uid == 1000).then(|| "anna".to_owned()))
        }

        fn group_name(&self, gid: u32) -> io::Result<Option<String>> {
            Ok((gid == 50).then(|| "staff".to_owned()))
        }
    }

    fn parse(text: &[u8]) -> Result<u32, Status> {
        Names::default().parse(OwnerKind::User, text)
    }

    fn written(names: &Names<'_>, kind: OwnerKind, number: u32) -> String {
        String::from_utf8(names.text(kind, number).as_bytes().to_vec()).unwrap()
    }

    /// Parses a text with a table, and looks up what is missing.
    fn parsed(known: &OwnerNames, kind: OwnerKind, text: &str) -> Result<u32, Status> {
        let names = Names::new(Some(known), 0, true);
        let first = names.parse(kind, text.as_bytes());
        let missing = names.into_unknown().missing;
        for query in &missing {
            known.resolve(query, 0);
        }
        if missing.is_empty() {
            return first;
        }
        let names = Names::new(Some(known), 0, true);
        let again = names.parse(kind, text.as_bytes());
        assert!(names.into_unknown().missing.is_empty(), "it is asked once");
        again
    }

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

    #[test]
    fn callers_that_prove_their_name_get_names() {
        let known = OwnerNames::new("a.org", Box::new(Toy));
        let queries =
            [OwnerQuery::Name(OwnerKind::User, 1000), OwnerQuery::Name(OwnerKind::Group, 50)];
        let names = Names::new(Some(&known), 0, true);
        // At first it is not known.
        assert_eq!(written(&names, OwnerKind::User, 1000), "1000");
        assert_eq!(written(&names, OwnerKind::Group, 50), "50");
        assert_eq!(names.into_unknown().missing, queries.iter().cloned().collect());
        assert!(queries.iter().all(|query| known.resolve(query, 0)));
        known.resolve(&OwnerQuery::Name(OwnerKind::User, 50), 0);
        let names = Names::new(Some(&known), 0, true);
        assert_eq!(written(&names, OwnerKind::User, 1000), "anna@a.org");
        assert_eq!(written(&names, OwnerKind::Group, 50), "staff@a.org");
        assert_eq!(written(&names, OwnerKind::User, 50), "50", "no user has this number");
        assert!(names.into_unknown().missing.is_empty());
        let claims = Names::new(Some(&known), 0, false);
        assert_eq!(written(&claims, OwnerKind::User, 1000), "1000");
    }

    #[test]
    fn a_number_in_place_of_a_name_that_is_not_told_is_noted() {
        let known = OwnerNames::new("a.org", Box::new(Toy));
        for uid in [13, 50] {
            known.resolve(&OwnerQuery::Name(OwnerKind::User, uid), 0);
        }
        let told = |uid: u32, tells| {
            let names = Names::new(Some(&known), 0, tells);
            (written(&names, OwnerKind::User, uid), names.has_failed())
        };
        assert_eq!(told(13, true), ("13".to_owned(), true));
        assert_eq!(told(13, false), ("13".to_owned(), false), "this caller gets numbers");
        assert_eq!(told(50, true), ("50".to_owned(), false), "no user has this number");
    }

    #[test]
    fn names_of_the_domain_are_taken() {
        let known = OwnerNames::new("a.org", Box::new(Toy));
        let user = |text| parsed(&known, OwnerKind::User, text);
        assert_eq!(user("anna@a.org"), Ok(1000));
        assert_eq!(user("anna@A.ORG"), Ok(1000));
        assert_eq!(user("1000"), Ok(1000));
        assert_eq!(user("root@a.org"), Ok(0));
        assert_eq!(user("gone@a.org"), Err(Status::Delay), "the database does not answer");
        let long = format!("{}@a.org", "x".repeat(NAME_BYTES_MAX + 1));
        for bad in [
            "bert@a.org",
            "staff@a.org",
            "anna@b.org",
            "root@evil.org",
            "anna@a.org.evil",
            "anna",
            "anna@",
            "@a.org",
            "a\0nna@a.org",
            "../anna@a.org",
            "anna@b.org@a.org",
            &long,
        ] {
            assert_eq!(user(bad), Err(Status::BadOwner), "{bad:?}");
        }
        assert_eq!(parsed(&known, OwnerKind::Group, "staff@a.org"), Ok(50));
        assert_eq!(parsed(&known, OwnerKind::Group, "anna@a.org"), Err(Status::BadOwner));
    }
}
