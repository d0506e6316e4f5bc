//! Failed authentications: they delay the checks of later proofs.
//!
//! Invariants
//! * A user name is locked only for origins where proofs for it have failed. The user's own proof
//!   from another origin is checked at once.
//! * Unknown names count like known ones, so a delay does not reveal if a name exists.
//! * The tables are bounded. The oldest failure is dropped first.

use crate::limits::{
    AUTH_DELAY_FIRST, AUTH_DELAY_MAX, AUTH_FAILURES_FREE, AUTH_FAILURES_HOST_FREE,
    AUTH_FAILURES_HOSTS_MAX, AUTH_FAILURES_MEMORY, AUTH_FAILURES_NAMES_MAX, AUTH_HOST_DELAY_MAX,
};
use dafs_dat::Instant;
use dafs_mem::Mutex;
use dafs_service::Origin;
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::time::Duration;

/// Failures of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Failures {
    count: u32,
    last: Instant,
    /// The time until which no further proof is checked.
    until: Instant,
}

impl Failures {
    fn is_old(&self, now: Instant) -> bool {
        now.since(self.last) > AUTH_FAILURES_MEMORY
    }

    fn add(&mut self, now: Instant, free: u32, delay_max: Duration) {
        if self.is_old(now) {
            *self = Self::default();
        }
        self.count = self.count.saturating_add(1);
        self.last = now;
        if let Some(doublings) = self.count.checked_sub(free) {
            let delay = AUTH_DELAY_FIRST.saturating_mul(1 << doublings.min(16));
            self.until = now + delay.min(delay_max);
        }
    }
}

/// Failures from one origin.
#[derive(Debug, Default)]
struct Host {
    all: Failures,
    names: FxHashMap<Box<[u8]>, Failures>,
    /// Proofs that were not checked since the last failure.
    unchecked: u32,
}

/// The counts for the log line of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Failures for this name from the origin, with this one.
    pub(crate) failures: u32,
    /// Proofs from the origin that were not checked since its last failure.
    pub(crate) unchecked: u32,
}

/// The failures of all origins.
#[derive(Debug, Default)]
pub(crate) struct AuthFailures {
    hosts: Mutex<FxHashMap<Origin, Host>>,
}

impl AuthFailures {
    pub(crate) fn may_check(&self, origin: Origin, name: &[u8], now: Instant) -> bool {
        let mut hosts = self.hosts.lock();
        let Some(host) = hosts.get_mut(&origin) else { return true };
        let named = host.names.get(name).is_some_and(|failures| failures.until > now);
        let refused = named || host.all.until > now;
        if refused {
            host.unchecked = host.unchecked.saturating_add(1);
        }
        !refused
    }

    /// Records a wrong proof that was offered at `now`.
    pub(crate) fn failed(&self, origin: Origin, name: &[u8], now: Instant) -> Failed {
        let mut hosts = self.hosts.lock();
        make_room(&mut hosts, &origin, AUTH_FAILURES_HOSTS_MAX, |host| host.all.last);
        let host = hosts.entry(origin).or_default();
        host.all.add(now, AUTH_FAILURES_HOST_FREE, AUTH_HOST_DELAY_MAX);
        let name: Box<[u8]> = name.into();
        make_room(&mut host.names, &name, AUTH_FAILURES_NAMES_MAX, |failures| failures.last);
        let failures = host.names.entry(name).or_default();
        failures.add(now, AUTH_FAILURES_FREE, AUTH_DELAY_MAX);
        Failed { failures: failures.count, unchecked: std::mem::take(&mut host.unchecked) }
    }

    /// Records a right proof. It proves no other name that the same host tries.
    pub(crate) fn succeeded(&self, origin: Origin, name: &[u8]) {
        if let Some(host) = self.hosts.lock().get_mut(&origin) {
            host.names.remove(name);
        }
    }
}

/// Drops the oldest entry if there would be too many. A scan of all takes less time than the check
/// of a password.
fn make_room<K: Eq + Hash + Clone, V>(
    map: &mut FxHashMap<K, V>,
    key: &K,
    max: usize,
    last: impl Fn(&V) -> Instant,
) {
    if map.len() >= max
        && !map.contains_key(key)
        && let Some(oldest) = map.iter().min_by_key(|(_, value)| last(value))
    {
        let oldest = oldest.0.clone();
        map.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Origin = Origin::User(1);
    const THERE: Origin = Origin::User(2);

    fn at(seconds: u64) -> Instant {
        Instant(0) + Duration::from_secs(1000 + seconds)
    }

    #[test]
    fn each_failure_delays_its_host_longer_and_no_other() {
        let failures = AuthFailures::default();
        let mut now = 0;
        let mut checked = 0;
        // All day, once a second.
        for second in 0..86_400 {
            now = second;
            if failures.may_check(HERE, b"anna", at(now)) {
                failures.failed(HERE, b"anna", at(now));
                checked += 1;
            }
        }
        assert!(checked < AUTH_FAILURES_FREE + 10 + 86_400 / 60, "{checked} failures in a day");
        assert!(!failures.may_check(HERE, b"anna", at(now)));
        // The name is not locked elsewhere, and another name here not for long.
        assert!(failures.may_check(THERE, b"anna", at(now)));
        assert!(failures.may_check(HERE, b"bert", at(now) + AUTH_HOST_DELAY_MAX));
        // After a while the failure is forgotten.
        let later = at(now) + AUTH_FAILURES_MEMORY + AUTH_DELAY_MAX;
        assert!(failures.may_check(HERE, b"anna", later));
        assert_eq!(failures.failed(HERE, b"anna", later).failures, 1);
    }

    #[test]
    fn many_names_from_one_host_are_many_guesses() {
        let failures = AuthFailures::default();
        let mut checked = 0;
        for number in 0..86_400_u64 {
            let (name, now) = (number.to_string(), at(number / 24));
            if failures.may_check(HERE, name.as_bytes(), now) {
                failures.failed(HERE, name.as_bytes(), now);
                checked += 1;
            }
        }
        let most = u64::from(AUTH_FAILURES_HOST_FREE) + 3600 / AUTH_HOST_DELAY_MAX.as_secs() + 10;
        assert!(checked < most, "{checked} failures in an hour");
        assert!(failures.hosts.lock()[&HERE].names.len() <= AUTH_FAILURES_NAMES_MAX);
    }

    #[test]
    fn a_success_ends_the_count_of_its_own_name_alone() {
        let failures = AuthFailures::default();
        for _ in 1..AUTH_FAILURES_FREE {
            failures.failed(HERE, b"anna", at(0));
            failures.failed(HERE, b"bert", at(0));
        }
        failures.succeeded(HERE, b"anna");
        assert_eq!(failures.failed(HERE, b"anna", at(0)).failures, 1);
        assert_eq!(failures.failed(HERE, b"bert", at(0)).failures, AUTH_FAILURES_FREE);
        assert!(failures.may_check(HERE, b"anna", at(0)));
        assert!(!failures.may_check(HERE, b"bert", at(0)));
        assert_eq!(failures.failed(HERE, b"anna", at(0)), Failed { failures: 2, unchecked: 1 });
    }

    #[test]
    fn remembered_failures_are_bounded() {
        let failures = AuthFailures::default();
        for number in 0..AUTH_FAILURES_HOSTS_MAX as u32 + 10 {
            failures.failed(Origin::User(number), b"anna", at(number.into()));
        }
        assert_eq!(failures.hosts.lock().len(), AUTH_FAILURES_HOSTS_MAX);
        assert!(!failures.hosts.lock().contains_key(&Origin::User(9)));
    }
}
