//! The importance of sessions: rules that give each a weight, and the division of what is scarce.
//!
//! Invariants
//! * The first rule that matches decides. A session without a rule has the default weight.
//! * A rule without a condition does not exist, so that no rule is about all sessions by mistake.
//! * All sessions have weights of the same rules: each has them weighed again when the version of the
//!   rules has changed.

mod share;

pub use share::{Claim, Level, divide};

use crate::network::AddressRange;
use dafs_mem::Mutex;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The weight of a session: 1 to 10,000, as for control groups of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u32);

impl Weight {
    /// The greatest weight.
    pub const MAX: u32 = 10_000;

    /// Makes a weight. `None` for 0 and above [`MAX`](Self::MAX).
    pub fn new(weight: u32) -> Option<Self> {
        (1..=Self::MAX).contains(&weight).then_some(Self(weight))
    }

    /// Returns the number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// True if some rule has made the session more important than one without a rule.
    pub fn is_raised(self) -> bool {
        self > Self::default()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(100)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The properties of a session that rules look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionFrom<'a> {
    /// The user of this host that the session acts as. With NFSv4.1 it is the user that has made the
    /// session.
    pub user: u32,
    /// The address of the client. Clients on this host have that of the loopback interface.
    pub address: Option<IpAddr>,
    /// The name that the client has given itself (DAFS client_id_string, RFC 8881 co_ownerid).
    pub client: &'a [u8],
}

/// Names of clients: bytes, in which each `*` stands for any number of any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPattern(Box<str>);

/// Bytes of a [`ClientPattern`].
const PATTERN_BYTES_MAX: usize = 256;

impl ClientPattern {
    /// True if a name matches as a whole.
    pub fn matches(&self, name: &[u8]) -> bool {
        let mut parts = self.0.as_bytes().split(|byte| *byte == b'*');
        // INVARIANT: splitting yields one part at least.
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // Each part may take its first place: a later one leaves less to the parts behind it.
        for part in parts.filter(|part| !part.is_empty()) {
            let found = rest.windows(part.len()).position(|window| window == part);
            let Some(at) = found else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl FromStr for ClientPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            return Err(format!(
                "write a client's name of 1 to {PATTERN_BYTES_MAX} bytes, where * stands for any text"
            ));
        }
        Ok(Self(text.into()))
    }
}

/// One rule: a session that has all of its properties gets its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportanceRule {
    /// The user.
    pub user: Option<u32>,
    /// The network of the client.
    pub network: Option<AddressRange>,
    /// The client's own name.
    pub client: Option<ClientPattern>,
    /// The weight.
    pub weight: Weight,
}

impl ImportanceRule {
    fn matches(&self, session: &SessionFrom<'_>) -> bool {
        let address =
            |range: &AddressRange| session.address.is_some_and(|address| range.contains(address));
        let has_any = self.user.is_some() || self.network.is_some() || self.client.is_some();
        has_any
            && self.user.is_none_or(|user| user == session.user)
            && self.network.as_ref().is_none_or(address)
            && self.client.as_ref().is_none_or(|client| client.matches(session.client))
    }
}

/// The rules that are in force, for all front ends.
#[derive(Debug, Default)]
pub struct Importance {
    rules: Mutex<Arc<[ImportanceRule]>>,
    version: AtomicU64,
}

impl Importance {
    /// Puts other rules into force.
    pub fn replace_rules(&self, rules: Vec<ImportanceRule>) {
        let mut present = self.rules.lock();
        if **present != *rules {
            *present = rules.into();
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns a number that changes with the rules.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the weight of a session.
    pub fn weigh(&self, session: &SessionFrom<'_>) -> Weight {
        let rules = self.rules.lock().clone();
        let rule = rules.iter().find(|rule| rule.matches(session));
        rule.map_or_else(Weight::default, |rule| rule.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn session<'a>(user: u32, address: &str, client: &'a str) -> SessionFrom<'a> {
        SessionFrom { user, address: address.parse().ok(), client: client.as_bytes() }
    }

    fn rule(
        user: Option<u32>,
        network: Option<&str>,
        client: Option<&str>,
        weight: u32,
    ) -> ImportanceRule {
        ImportanceRule {
            user,
            network: network.map(|text| text.parse().unwrap()),
            client: client.map(|text| text.parse().unwrap()),
            weight: Weight::new(weight).unwrap(),
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let importance = Importance::default();
        let weigh = |session| importance.weigh(&session).get();
        assert_eq!(weigh(session(7, "192.0.2.1", "a")), 100);
        importance.replace_rules(vec![
            rule(Some(7), Some("192.0.2.0/24"), None, 900),
            rule(None, Some("192.0.2.0/24"), Some("backup*"), 5),
            rule(Some(7), None, None, 300),
            rule(None, None, Some("*"), 50),
        ]);
        assert_eq!(weigh(session(7, "192.0.2.1", "backup 1")), 900);
        assert_eq!(weigh(session(8, "192.0.2.1", "backup 1")), 5);
        assert_eq!(weigh(session(8, "198.51.100.1", "backup 1")), 50);
        assert_eq!(weigh(session(7, "198.51.100.1", "backup 1")), 300);
        // A client whose address is unknown is in no network.
        assert_eq!(weigh(session(7, "", "")), 300);
    }

    #[test]
    fn a_rule_without_conditions_is_about_nobody() {
        let importance = Importance::default();
        importance.replace_rules(vec![rule(None, None, None, 9)]);
        assert_eq!(importance.weigh(&session(0, "127.0.0.1", "")).get(), 100);
    }

    #[test]
    fn the_version_tells_that_the_rules_have_changed() {
        let importance = Importance::default();
        let first = importance.version();
        importance.replace_rules(Vec::new());
        assert_eq!(importance.version(), first, "the same rules");
        importance.replace_rules(vec![rule(Some(1), None, None, 9)]);
        assert_ne!(importance.version(), first);
    }

    #[test]
    fn names_match_as_a_whole() {
        let matches = |pattern: &str, name: &str| {
            pattern.parse::<ClientPattern>().unwrap().matches(name.as_bytes())
        };
        assert!(matches("db1", "db1") && !matches("db1", "db12") && !matches("db1", "xdb1"));
        assert!(matches("*", "") && matches("*", "x") && matches("**", "x"));
        assert!(matches("db*", "db") && matches("*.org", "a.org") && !matches("*.org", "a.orgx"));
        assert!(matches("a*b*c", "a1b2b3c") && !matches("a*b*c", "a1c2b"));
        // The ends do not overlap.
        assert!(!matches("aba*aba", "aba") && matches("ab*ab", "abab"));
        assert!("".parse::<ClientPattern>().is_err());
        assert!("x".repeat(257).parse::<ClientPattern>().is_err());
    }

    fn slow_match(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|at| slow_match(rest, &name[at..])),
            Some((byte, rest)) => name
                .split_first()
                .is_some_and(|(first, name)| first == byte && slow_match(rest, name)),
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_their_definition_says(pattern in "[ab*]{1,8}", name in "[ab]{0,10}") {
            let fast = pattern.parse::<ClientPattern>().unwrap().matches(name.as_bytes());
            prop_assert_eq!(fast, slow_match(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
