//! Rules from authenticated principals to users of this host.
//!
//! Invariants
//! * The first rule that matches decides. A principal without a rule is nobody.
//! * A realm is compared as a whole. A user of another realm is a local user only by a rule that
//!   names that realm.
//! * A principal of a machine or an instance of a user (`host/x`, `anna/admin`) is a user only by
//!   a rule that names it.

use std::fmt;
use std::str::FromStr;

/// A Kerberos principal in its display form, such as `anna@EXAMPLE.ORG` or `nfs/host@EXAMPLE.ORG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    /// The components, joined by slashes.
    name: &'a str,
    realm: &'a str,
}

impl<'a> Parts<'a> {
    /// Splits a display form. Returns `None` for one without a realm, or with escaped or control
    /// characters: no user has such a name.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let (name, realm) = text.split_once('@')?;
        let is_plain = |part: &str, others: &[char]| {
            !part.is_empty() && !part.contains(|c: char| c.is_control() || others.contains(&c))
        };
        let fits = is_plain(name, &['\\']) && is_plain(realm, &['\\', '@', '/']);
        fits.then_some(Self { name, realm })
    }
}

/// The principals that a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// One principal.
    Exact(Box<str>),
    /// All principals with one component in this realm: `*@REALM`.
    Users(Box<str>),
    /// All principals with this first component and one more in this realm: `host/*@REALM`.
    Instances(Box<str>, Box<str>),
}

impl Pattern {
    pub(super) fn matches(&self, principal: Parts<'_>) -> bool {
        match self {
            Self::Exact(text) => Parts::of(text) == Some(principal),
            Self::Users(realm) => **realm == *principal.realm && !principal.name.contains('/'),
            Self::Instances(service, realm) => {
                let instance = principal.name.split_once('/');
                **realm == *principal.realm
                    && instance.is_some_and(|(first, rest)| {
                        *first == **service && !rest.is_empty() && !rest.contains('/')
                    })
            }
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let remedy =
            || format!("{text:?} is no principal; write anna@REALM, *@REALM or host/*@REALM");
        let parts = Parts::of(text).ok_or_else(remedy)?;
        match (parts.name.strip_suffix('*'), parts.realm) {
            (None, _) if !parts.name.contains('*') => Ok(Self::Exact(text.into())),
            (Some(""), realm) => Ok(Self::Users(realm.into())),
            (Some(service), realm) => match service.strip_suffix('/') {
                Some(service) if !service.is_empty() && !service.contains(['*', '/']) => {
                    Ok(Self::Instances(service.into(), realm.into()))
                }
                _ => Err(remedy()),
            },
            (None, _) => Err(remedy()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => f.write_str(text),
            Self::Users(realm) => write!(f, "*@{realm}"),
            Self::Instances(service, realm) => write!(f, "{service}/*@{realm}"),
        }
    }
}

/// The user that a rule gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserOf {
    /// The local user of the principal's first component.
    Local,
    /// The local user of this name.
    Name(Box<str>),
    /// This number, with this group and no others.
    Number(u32, u32),
    /// The anonymous user of the export.
    Nobody,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The principals that it is about.
    pub pattern: Pattern,
    /// Their user.
    pub user: UserOf,
    /// They may act for other users, whom they name (DAFS 4.5).
    pub trusted: bool,
}

/// The rules of a server, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rules of the configuration.
    pub rules: Vec<Rule>,
    /// The realm whose users are local users where no rule matches.
    pub default_realm: Option<Box<str>>,
}

/// The decision for a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict<'a> {
    pub(super) user: User<'a>,
    /// The rule that has decided, if one has.
    pub(super) rule: Option<&'a Pattern>,
    pub(super) trusted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum User<'a> {
    /// The local user of this name.
    Name(&'a str),
    Number(u32, u32),
    Nobody,
}

impl Rules {
    /// Decides which user a principal is.
    pub(super) fn decide<'a>(&'a self, principal: &'a str) -> Verdict<'a> {
        let nobody = Verdict { user: User::Nobody, rule: None, trusted: false };
        let Some(parts) = Parts::of(principal) else { return nobody };
        if let Some(rule) = self.rules.iter().find(|rule| rule.pattern.matches(parts)) {
            let first = parts.name.split('/').next().unwrap_or(parts.name);
            let user = match &rule.user {
                UserOf::Local => User::Name(first),
                UserOf::Name(name) => User::Name(name),
                UserOf::Number(uid, gid) => User::Number(*uid, *gid),
                UserOf::Nobody => User::Nobody,
            };
            return Verdict { user, rule: Some(&rule.pattern), trusted: rule.trusted };
        }
        let is_own = self.default_realm.as_deref() == Some(parts.realm);
        if is_own && !parts.name.contains('/') {
            return Verdict { user: User::Name(parts.name), ..nobody };
        }
        nobody
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str, user: UserOf) -> Rule {
        Rule { pattern: pattern.parse().unwrap(), user, trusted: false }
    }

    fn rules(rules: Vec<Rule>) -> Rules {
        Rules { rules, default_realm: Some("A.ORG".into()) }
    }

    #[test]
    fn without_rules_users_of_the_default_realm_are_local_users() {
        let rules = rules(Vec::new());
        assert_eq!(rules.decide("anna@A.ORG").user, User::Name("anna"));
        let strangers = [
            "root@EVIL",
            "anna@B.ORG",
            "anna@a.org",
            "anna@A.ORG.EVIL",
            "host/x@A.ORG",
            "anna/admin@A.ORG",
            "anna",
            "@A.ORG",
            "anna@",
            "anna\\@A.ORG@EVIL",
            "an\\/na@A.ORG",
            "anna@EVIL@A.ORG",
            "anna\0@A.ORG",
            "",
            "/@A.ORG",
            "anna\n@A.ORG",
        ];
        for stranger in strangers {
            assert_eq!(rules.decide(stranger).user, User::Nobody, "{stranger:?}");
        }
        let long = format!("{}@EVIL", "a".repeat(1 << 16));
        assert_eq!(rules.decide(&long).user, User::Nobody);
        assert_eq!(Rules::default().decide("anna@A.ORG").user, User::Nobody);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = rules(vec![
            rule("root@A.ORG", UserOf::Nobody),
            rule("backup/*@A.ORG", UserOf::Number(0, 0)),
            rule("*@B.ORG", UserOf::Local),
            rule("host/one.b.org@B.ORG", UserOf::Name("machines".into())),
        ]);
        let user = |principal| rules.decide(principal).user;
        assert!(!rules.decide("backup/one@A.ORG").trusted, "trust is never by default");
        assert_eq!(user("root@A.ORG"), User::Nobody);
        assert_eq!(user("backup/one@A.ORG"), User::Number(0, 0));
        for other in ["backup@B.EVIL", "backup/@A.ORG", "backup/one/two@A.ORG", "xbackup/one@A.ORG"]
        {
            assert_eq!(user(other), User::Nobody, "{other}");
        }
        assert_eq!(user("anna@B.ORG"), User::Name("anna"));
        assert_eq!(user("host/one.b.org@B.ORG"), User::Name("machines"));
        assert_eq!(user("host/two.b.org@B.ORG"), User::Nobody);
        assert_eq!(user("bert@A.ORG"), User::Name("bert"));
    }

    #[test]
    fn patterns_are_read_and_written() {
        for text in ["anna@A.ORG", "*@A.ORG", "host/*@A.ORG", "host/a.b@A.ORG"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for bad in
            ["", "anna", "*", "*@", "a*@A.ORG", "*/x@A.ORG", "host/*/x@A.ORG", "/*@A.ORG", "x@*"]
        {
            let error = bad.parse::<Pattern>();
            // A star in a realm stands for itself, which no realm has.
            assert!(error.is_err() || bad == "x@*", "{bad}");
        }
    }
}
