//! Names of owners and groups for clients that identify them by text (RFC 8881 5.9), from this
//! host's user database.
//!
//! Invariants
//! * Reactors never ask the database: [`OwnerNames::name`] and [`OwnerNames::number`] return what an
//!   earlier [`OwnerNames::resolve`] on another thread has found.
//! * A lookup that failed is not "no such user". A known answer stays, and an unknown one is
//!   asked again soon.
//! * The kept answers are bounded. Those that were used longest ago make room, so texts of hostile
//!   clients take no more memory than others.

use super::directory::Directory;
use crate::limits::{
    IDENTITY_FRESH_NS, OWNER_ABSENT_NS, OWNER_FAILED_NS, OWNER_NEWS_NS, OWNERS_MAX,
};
use dafs_mem::Mutex;
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::sync::Arc;

/// A user or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// A user.
    User,
    /// A group.
    Group,
}

/// A question to the database.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OwnerQuery {
    /// The name of a number.
    Name(OwnerKind, u32),
    /// The number of a name without its domain.
    Number(OwnerKind, Box<str>),
}

/// The knowledge about a name or a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerAnswer<T> {
    /// The other one. If it is old, the caller has [`OwnerNames::resolve`] called on another thread;
    /// others are not told so meanwhile.
    Found {
        /// The name or number.
        value: T,
        /// True if it is to be looked up again.
        is_old: bool,
    },
    /// The database does not have it.
    None,
    /// The database could not be asked.
    Failed,
    /// It was not asked yet: have [`OwnerNames::resolve`] called first.
    Missing,
}

#[derive(Debug, Clone)]
enum Value<T> {
    Found(T),
    None,
    Failed,
}

#[derive(Debug)]
struct Entry<T> {
    value: Value<T>,
    until_ns: u64,
    used_ns: u64,
}

#[derive(Debug)]
struct Answers<K, T>(Mutex<FxHashMap<K, Entry<T>>>);

impl<K: Eq + Hash, T: Clone> Answers<K, T> {
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn get(&self, key: &K, now_ns: u64) -> OwnerAnswer<T> {
        let mut entries = self.0.lock();
        let Some(entry) = entries.get_mut(key) else { return OwnerAnswer::Missing };
        entry.used_ns = now_ns;
        let is_old = now_ns >= entry.until_ns;
        match &entry.value {
            Value::Found(value) => {
                let value = value.clone();
                if is_old {
                    entry.until_ns = now_ns.saturating_add(OWNER_ABSENT_NS);
                }
                OwnerAnswer::Found { value, is_old }
            }
            _ if is_old => OwnerAnswer::Missing,
            Value::None => OwnerAnswer::None,
            Value::Failed => OwnerAnswer::Failed,
        }
    }

    fn put(&self, key: K, found: std::io::Result<Option<T>>, now_ns: u64) {
        let (value, fresh_ns) = match found {
            Ok(Some(value)) => (Value::Found(value), IDENTITY_FRESH_NS),
            Ok(None) => (Value::None, OWNER_ABSENT_NS),
            Err(_) => (Value::Failed, OWNER_FAILED_NS),
        };
        let mut entries = self.0.lock();
        let known = entries.get(&key).is_some_and(|entry| matches!(entry.value, Value::Found(_)));
        if known && matches!(value, Value::Failed) {
            return;
        }
        if entries.len() >= OWNERS_MAX && !entries.contains_key(&key) {
            // An eighth goes at once, so that the search is rare.
            let mut used: Vec<u64> = entries.values().map(|entry| entry.used_ns).collect();
            let (_, bound, _) = used.select_nth_unstable(OWNERS_MAX / 8);
            entries.retain(|_, entry| entry.used_ns > *bound);
        }
        let until_ns = now_ns.saturating_add(fresh_ns);
        entries.insert(key, Entry { value, until_ns, used_ns: now_ns });
    }
}

/// Names and numbers of the users and groups of one domain.
#[derive(Debug)]
pub struct OwnerNames {
    domain: Box<str>,
    directory: Box<dyn Directory>,
    names: Answers<(OwnerKind, u32), Arc<str>>,
    numbers: Answers<(OwnerKind, Box<str>), u32>,
    /// The end of the time without reports of failures.
    quiet_until_ns: Mutex<u64>,
}

impl OwnerNames {
    /// Makes a table without answers. Users of this host are those of `domain`.
    pub fn new(domain: &str, directory: Box<dyn Directory>) -> Self {
        Self {
            domain: domain.into(),
            directory,
            names: Answers::new(),
            numbers: Answers::new(),
            quiet_until_ns: Mutex::default(),
        }
    }

    /// The domain behind every name.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the name of a number, without its domain.
    pub fn name(&self, kind: OwnerKind, number: u32, now_ns: u64) -> OwnerAnswer<Arc<str>> {
        self.names.get(&(kind, number), now_ns)
    }

    /// Returns the number of a name without its domain.
    pub fn number(&self, kind: OwnerKind, name: &str, now_ns: u64) -> OwnerAnswer<u32> {
        self.numbers.get(&(kind, name.into()), now_ns)
    }

    /// Asks the database. It may block. Returns false for a failure, which is logged at most once a
    /// minute, and asked again later.
    pub fn resolve(&self, query: &OwnerQuery, now_ns: u64) -> bool {
        match query {
            OwnerQuery::Name(kind, number) => {
                let found = match kind {
                    OwnerKind::User => self.directory.user_name(*number),
                    OwnerKind::Group => self.directory.group_name(*number),
                };
                let is_known = self.note(query, found.as_ref().err(), now_ns);
                self.names.put((*kind, *number), found.map(|name| name.map(Arc::from)), now_ns);
                is_known
            }
            OwnerQuery::Number(kind, name) => {
                let found = match kind {
                    OwnerKind::User => self.directory.uid(name),
                    OwnerKind::Group => self.directory.gid(name),
                };
                let is_known = self.note(query, found.as_ref().err(), now_ns);
                self.numbers.put((*kind, name.clone()), found, now_ns);
                is_known
            }
        }
    }

    /// Notes a failure without asking the database. A known answer stays.
    pub fn give_up(&self, query: OwnerQuery, now_ns: u64) {
        let failed = std::io::ErrorKind::TimedOut;
        match query {
            OwnerQuery::Name(kind, number) => {
                self.names.put((kind, number), Err(failed.into()), now_ns);
            }
            OwnerQuery::Number(kind, name) => {
                self.numbers.put((kind, name), Err(failed.into()), now_ns);
            }
        }
    }

    /// Logs an error. Returns true if there is none.
    fn note(&self, query: &OwnerQuery, error: Option<&std::io::Error>, now_ns: u64) -> bool {
        let Some(error) = error else { return true };
        if self.is_news(now_ns) {
            tracing::warn!(?query, %error, "cannot look up an owner; see `getent passwd`");
        }
        false
    }

    fn is_news(&self, now_ns: u64) -> bool {
        let mut quiet_until_ns = self.quiet_until_ns.lock();
        let is_news = now_ns >= *quiet_until_ns;
        if is_news {
            *quiet_until_ns = now_ns.saturating_add(OWNER_NEWS_NS);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::super::LocalUser;
    use super::*;
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// User anna is 7, and group staff is 8. Other names and numbers fail, or are absent.
    #[derive(Debug)]
    struct Toy(Arc<AtomicBool>);

    impl Toy {
        fn answer<T>(&self, found: Option<T>) -> io::Result<Option<T>> {
            if self.0.load(Ordering::Relaxed) {
                Err(io::ErrorKind::TimedOut.into())
            } else {
                Ok(found)
            }
        }
    }

    impl Directory for Toy {
        fn user(&self, _: &str) -> io::Result<Option<LocalUser>> {
            Ok(None)
        }

        fn uid(&self, name: &str) -> io::Result<Option<u32>> {
            self.answer((name == "anna").then_some(7))
        }

        fn gid(&self, name: &str) -> io::Result<Option<u32>> {
            self.answer((name == "staff").then_some(8))
        }

        fn user_name(&self, uid: u32) -> io::Result<Option<String>> {
            self.answer((uid == 7).then(|| "anna".to_owned()))
        }

        fn group_name(&self, gid: u32) -> io::Result<Option<String>> {
            self.answer((gid == 8).then(|| "staff".to_owned()))
        }
    }

    fn owners() -> (OwnerNames, Arc<AtomicBool>) {
        let is_down = Arc::new(AtomicBool::new(false));
        (OwnerNames::new("a.org", Box::new(Toy(is_down.clone()))), is_down)
    }

    fn found<T>(value: T, is_old: bool) -> OwnerAnswer<T> {
        OwnerAnswer::Found { value, is_old }
    }

    #[test]
    fn users_and_groups_have_names_of_their_own() {
        let (owners, _) = owners();
        assert_eq!(owners.number(OwnerKind::User, "anna", 0), OwnerAnswer::Missing);
        for kind in [OwnerKind::User, OwnerKind::Group] {
            for name in ["anna", "staff"] {
                owners.resolve(&OwnerQuery::Number(kind, name.into()), 0);
            }
            for number in [7, 8] {
                owners.resolve(&OwnerQuery::Name(kind, number), 0);
            }
        }
        assert_eq!(owners.number(OwnerKind::User, "anna", 0), found(7, false));
        assert_eq!(owners.number(OwnerKind::Group, "anna", 0), OwnerAnswer::None);
        assert_eq!(owners.name(OwnerKind::Group, 8, 0), found("staff".into(), false));
        assert_eq!(owners.name(OwnerKind::User, 8, 0), OwnerAnswer::None);
    }

    #[test]
    fn a_database_that_fails_takes_nothing_away() {
        let (owners, is_down) = owners();
        let [anna, bert] =
            ["anna", "bert"].map(|name| OwnerQuery::Number(OwnerKind::User, name.into()));
        assert!(owners.resolve(&anna, 0));
        is_down.store(true, Ordering::Relaxed);
        assert!(!owners.resolve(&bert, 0));
        assert_eq!(
            owners.number(OwnerKind::User, "bert", OWNER_FAILED_NS - 1),
            OwnerAnswer::Failed
        );
        assert_eq!(owners.number(OwnerKind::User, "bert", OWNER_FAILED_NS), OwnerAnswer::Missing);
        let later = IDENTITY_FRESH_NS;
        assert_eq!(owners.number(OwnerKind::User, "anna", later), found(7, true));
        assert_eq!(owners.number(OwnerKind::User, "anna", later), found(7, false), "asked once");
        owners.resolve(&anna, later);
        assert_eq!(owners.number(OwnerKind::User, "anna", later + 1), found(7, false));
    }

    #[test]
    fn a_question_that_was_given_up_is_a_failure() {
        let (owners, _) = owners();
        let [anna, bert] =
            ["anna", "bert"].map(|name| OwnerQuery::Number(OwnerKind::User, name.into()));
        owners.resolve(&anna, 0);
        for query in [anna, bert, OwnerQuery::Name(OwnerKind::Group, 8)] {
            owners.give_up(query, 1);
        }
        assert_eq!(owners.number(OwnerKind::User, "anna", 1), found(7, false));
        assert_eq!(owners.number(OwnerKind::User, "bert", 1), OwnerAnswer::Failed);
        assert_eq!(owners.name(OwnerKind::Group, 8, 1), OwnerAnswer::Failed);
    }

    #[test]
    fn failures_are_news_once_a_minute() {
        let (owners, is_down) = owners();
        is_down.store(true, Ordering::Relaxed);
        for number in 0..3 {
            owners.resolve(&OwnerQuery::Name(OwnerKind::User, number), 5);
        }
        let news = [5, OWNER_NEWS_NS + 4, OWNER_NEWS_NS + 5, OWNER_NEWS_NS + 6];
        assert_eq!(news.map(|now_ns| owners.is_news(now_ns)), [false, false, true, false]);
    }

    #[test]
    fn a_new_user_is_found_soon() {
        let (owners, _) = owners();
        owners.resolve(&OwnerQuery::Number(OwnerKind::User, "new".into()), 0);
        assert_eq!(owners.number(OwnerKind::User, "new", OWNER_ABSENT_NS - 1), OwnerAnswer::None);
        assert_eq!(owners.number(OwnerKind::User, "new", OWNER_ABSENT_NS), OwnerAnswer::Missing);
    }

    #[test]
    fn the_answers_are_bounded() {
        let (owners, _) = owners();
        for number in 0..=OWNERS_MAX as u64 {
            let query = OwnerQuery::Number(OwnerKind::User, number.to_string().into());
            owners.resolve(&query, number);
        }
        let len = owners.numbers.0.lock().len();
        assert!(len < OWNERS_MAX && len > OWNERS_MAX / 2, "{len}");
        assert_eq!(owners.number(OwnerKind::User, "4", 0), OwnerAnswer::Missing);
    }
}
