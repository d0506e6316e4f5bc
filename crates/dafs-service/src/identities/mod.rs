//! Users of authenticated principals, with their groups from this host's user database.
//!
//! Invariants
//! * Reactors never ask the database: [`Identities::known`] returns what an earlier
//!   [`Identities::resolve`] on another thread has found.
//! * A lookup that failed is not "no such user" and not "no groups". A known answer stays, and a
//!   principal that was not known is refused.
//! * A finding by rules that were replaced is never kept.
//! * The number of kept principals is bounded. Those that were used longest ago make room.

mod directory;
mod owners;
mod rules;

pub use directory::{Directory, LocalDirectory, LocalUser};
pub use owners::{OwnerAnswer, OwnerKind, OwnerNames, OwnerQuery};
pub use rules::{Pattern, Rule, Rules, UserOf};

use crate::limits::{IDENTITIES_MAX, IDENTITY_FRESH_NS};
use dafs_mem::Mutex;
use dafs_store::Cred;
use rules::User;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use thiserror::Error;

/// The user of a principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// The user and its groups. `None` is the anonymous user of an export.
    pub cred: Option<Cred>,
    /// It may act for other users, whom it names (DAFS 4.5). NFS has no such callers.
    pub trusted: bool,
}

/// The database of users could not be asked.
#[derive(Debug, Error)]
#[error(
    "cannot look up user {user:?} of principal {principal}: {source}; see `getent passwd {user}`"
)]
pub struct LookupFailed {
    principal: String,
    user: String,
    source: std::io::Error,
}

/// The knowledge about a principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Its user.
    Fresh(Arc<Mapped>),
    /// Its user some time ago. The caller has [`Identities::resolve`] called again on another
    /// thread. Others are not told so meanwhile.
    Stale(Arc<Mapped>),
    /// Nothing: have [`Identities::resolve`] called first.
    Nothing,
}

#[derive(Debug)]
struct Entry {
    mapped: Arc<Mapped>,
    found_ns: u64,
    used_ns: u64,
}

/// The users of principals.
#[derive(Debug)]
pub struct Identities {
    directory: Box<dyn Directory>,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    rules: Arc<Rules>,
    entries: FxHashMap<Arc<str>, Entry>,
}

impl Identities {
    /// Makes a table without entries.
    pub fn new(rules: Rules, directory: Box<dyn Directory>) -> Self {
        let table = Table { rules: Arc::new(rules), entries: FxHashMap::default() };
        Self { directory, table: Mutex::new(table) }
    }

    /// Returns the present rules.
    pub fn rules(&self) -> Arc<Rules> {
        self.table.lock().rules.clone()
    }

    /// Puts other rules into force, and forgets what the old ones have found.
    pub fn replace_rules(&self, rules: Rules) {
        *self.table.lock() = Table { rules: Arc::new(rules), entries: FxHashMap::default() };
    }

    /// Returns what is known of a principal, given in its display form.
    pub fn known(&self, principal: &str, now_ns: u64) -> Known {
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(principal) else { return Known::Nothing };
        entry.used_ns = now_ns;
        let mapped = entry.mapped.clone();
        if now_ns.saturating_sub(entry.found_ns) <= IDENTITY_FRESH_NS {
            return Known::Fresh(mapped);
        }
        // The next caller after a failed lookup asks again after a tenth of the time.
        entry.found_ns = now_ns.saturating_sub(IDENTITY_FRESH_NS / 10 * 9);
        Known::Stale(mapped)
    }

    /// Returns what was found of a principal last, however long ago, and leaves the new lookup to others.
    pub fn last_known(&self, principal: &str) -> Option<Arc<Mapped>> {
        self.table.lock().entries.get(principal).map(|entry| entry.mapped.clone())
    }

    /// Asks the database of users. It may block.
    ///
    /// # Errors
    /// When the database fails.
    pub fn resolve(&self, principal: &str, now_ns: u64) -> Result<Arc<Mapped>, LookupFailed> {
        let rules = self.rules();
        let mapped = Arc::new(self.look_up(&rules, principal)?);
        let mut table = self.table.lock();
        if !Arc::ptr_eq(&rules, &table.rules) {
            drop(table);
            return self.resolve(principal, now_ns);
        }
        let entries = &mut table.entries;
        if entries.len() >= IDENTITIES_MAX && !entries.contains_key(principal) {
            // An eighth goes at once, so that the search is rare.
            let mut used: Vec<u64> = entries.values().map(|entry| entry.used_ns).collect();
            let (_, bound, _) = used.select_nth_unstable(IDENTITIES_MAX / 8);
            entries.retain(|_, entry| entry.used_ns > *bound);
        }
        let entry = Entry { mapped: mapped.clone(), found_ns: now_ns, used_ns: now_ns };
        entries.insert(principal.into(), entry);
        Ok(mapped)
    }

    fn look_up(&self, rules: &Rules, principal: &str) -> Result<Mapped, LookupFailed> {
        let verdict = rules.decide(principal);
        let trusted = verdict.trusted;
        let name = match verdict.user {
            User::Nobody => return Ok(Mapped { cred: None, trusted }),
            User::Number(uid, gid) => {
                return Ok(Mapped { cred: Some(Cred::new(uid, gid)), trusted });
            }
            User::Name(name) => name,
        };
        let found = self.directory.user(name).map_err(|source| LookupFailed {
            principal: principal.to_owned(),
            user: name.to_owned(),
            source,
        })?;
        let cred =
            found.map(|user| Cred { uid: user.uid, gid: user.gid, groups: user.groups.into() });
        Ok(Mapped { cred, trusted })
    }

    /// Says in words who a principal is and why, for administrators.
    pub fn explain(&self, principal: &str) -> String {
        let rules = self.rules();
        let verdict = rules.decide(principal);
        let rule = match verdict.rule {
            Some(pattern) => format!("by the rule for {pattern}"),
            None => "by no rule".to_owned(),
        };
        let user = match self.look_up(&rules, principal) {
            Err(error) => return format!("{error} ({rule})"),
            Ok(Mapped { cred: Some(cred), .. }) => {
                let groups: Vec<String> = cred.groups.iter().map(u32::to_string).collect();
                format!("user {}, group {}, groups {}", cred.uid, cred.gid, groups.join(" "))
            }
            Ok(Mapped { cred: None, .. }) => match verdict.user {
                User::Name(name) => format!("nobody: this host has no user {name:?}"),
                User::Number(..) | User::Nobody => "nobody".to_owned(),
            },
        };
        let trust = if verdict.trusted { ", trusted over DAFS to act for others" } else { "" };
        format!("{principal} is {user}{trust} ({rule})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug)]
    struct Toy(Arc<AtomicBool>);

    impl Directory for Toy {
        fn user(&self, name: &str) -> io::Result<Option<LocalUser>> {
            if self.0.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let groups = (100..120).collect();
            Ok((name == "anna").then_some(LocalUser { uid: 7, gid: 70, groups }))
        }

        fn uid(&self, _: &str) -> io::Result<Option<u32>> {
            Ok(None)
        }

        fn gid(&self, _: &str) -> io::Result<Option<u32>> {
            Ok(None)
        }

        fn user_name(&self, _: u32) -> io::Result<Option<String>> {
            Ok(None)
        }

        fn group_name(&self, _: u32) -> io::Result<Option<String>> {
            Ok(None)
        }
    }

    fn identities() -> (Identities, Arc<AtomicBool>) {
        let is_down = Arc::new(AtomicBool::new(false));
        let rules = Rules { default_realm: Some("R".into()), ..Rules::default() };
        (Identities::new(rules, Box::new(Toy(is_down.clone()))), is_down)
    }

    #[test]
    fn a_user_has_all_groups_of_the_database() {
        let (identities, _) = identities();
        assert_eq!(identities.known("anna@R", 0), Known::Nothing);
        let anna = identities.resolve("anna@R", 0).unwrap();
        let cred = anna.cred.as_ref().unwrap();
        assert_eq!((cred.uid, cred.gid, cred.groups.len()), (7, 70, 20));
        assert_eq!(identities.known("anna@R", IDENTITY_FRESH_NS), Known::Fresh(anna));
        assert_eq!(identities.resolve("bert@R", 0).unwrap().cred, None);
        assert!(identities.explain("bert@R").contains("no user \"bert\""));
        assert!(identities.explain("anna@R").contains("user 7, group 70"));
    }

    #[test]
    fn a_database_that_fails_takes_nothing_away() {
        let (identities, is_down) = identities();
        let anna = identities.resolve("anna@R", 0).unwrap();
        is_down.store(true, Ordering::Relaxed);
        let later = IDENTITY_FRESH_NS + 1;
        assert_eq!(identities.known("anna@R", later), Known::Stale(anna.clone()));
        assert!(identities.resolve("anna@R", later).is_err());
        assert_eq!(identities.known("anna@R", later), Known::Fresh(anna.clone()), "asked once");
        let again = later + IDENTITY_FRESH_NS / 10 + 1;
        assert_eq!(identities.known("anna@R", again), Known::Stale(anna));
        let error = identities.resolve("bert@R", later).unwrap_err();
        assert!(error.to_string().contains("getent passwd bert"), "{error}");
        assert_eq!(identities.known("bert@R", later), Known::Nothing);
    }

    #[test]
    fn other_rules_are_in_force_at_once() {
        let (identities, _) = identities();
        identities.resolve("anna@R", 0).unwrap();
        let rules = Rules { default_realm: Some("S".into()), ..Rules::default() };
        identities.replace_rules(rules);
        assert_eq!(identities.known("anna@R", 0), Known::Nothing);
        assert_eq!(identities.resolve("anna@R", 0).unwrap().cred, None);
        assert_eq!(identities.resolve("anna@S", 0).unwrap().cred.as_ref().unwrap().uid, 7);
    }

    #[test]
    fn the_table_is_bounded() {
        let (identities, _) = identities();
        let last = IDENTITIES_MAX as u64;
        for number in 0..=last {
            identities.resolve(&format!("u{number}@R"), number).unwrap();
        }
        let len = identities.table.lock().entries.len();
        assert!(len < IDENTITIES_MAX && len > IDENTITIES_MAX / 2, "{len}");
        assert_eq!(identities.known("u4@R", 0), Known::Nothing);
        assert_ne!(identities.known(&format!("u{last}@R"), 0), Known::Nothing);
    }
}
