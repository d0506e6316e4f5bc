//! The weights of sessions, and what they hold by them.
//!
//! Invariants
//! * A session is weighed when it is made, and again within a second of a change of the rules.
//! * The table is locked before the slots of a session, never after.

use super::{Session, SessionTable};
use crate::shared::{NfsCounts, NfsSessionFacts};
use dafs_service::{Importance, SessionFrom, Weight};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The importance of a session.
#[derive(Debug)]
pub(crate) struct SessionWeight {
    /// The user that has made the session.
    user: u32,
    /// The address that it was made from.
    address: IpAddr,
    weight: AtomicU32,
    /// The version of the rules that gave the weight.
    version: AtomicU64,
}

impl Default for SessionWeight {
    fn default() -> Self {
        Self {
            user: dafs_service::NO_USER,
            address: Ipv4Addr::UNSPECIFIED.into(),
            weight: AtomicU32::new(Weight::default().get()),
            version: AtomicU64::new(0),
        }
    }
}

impl SessionWeight {
    /// Weighs a session that this user makes from here, for the client of this name.
    pub(crate) fn of(importance: &Importance, user: u32, address: IpAddr, client: &[u8]) -> Self {
        let this = Self { user, address, ..Self::default() };
        this.weigh(importance, importance.version(), client);
        this
    }

    fn weigh(&self, importance: &Importance, version: u64, client: &[u8]) {
        let from = SessionFrom { user: self.user, address: Some(self.address), client };
        self.weight.store(importance.weigh(&from).get(), Ordering::Relaxed);
        self.version.store(version, Ordering::Relaxed);
    }

    pub(super) fn weight(&self) -> Weight {
        Weight::new(self.weight.load(Ordering::Relaxed)).unwrap_or_default()
    }
}

impl SessionTable {
    /// Weighs sessions again whose rules have changed.
    pub(crate) fn weigh(&self, importance: &Importance) {
        let version = importance.version();
        for session in self.sessions.read().values() {
            if session.importance.version.load(Ordering::Relaxed) != version {
                session.importance.weigh(importance, version, session.client().name());
            }
        }
    }

    /// Divides the memory of cached replies among the sessions, if it is short.
    pub(crate) fn share_cache(&self, now_ns: u64) {
        self.cache.share(now_ns, || {
            let claim = |session: &Arc<Session>| {
                (session.importance.weight(), session.slots().cached_bytes())
            };
            self.sessions.read().values().map(claim).collect()
        });
    }

    /// Returns what the sessions hold.
    pub(crate) fn facts(&self, now_ns: u64) -> Vec<NfsSessionFacts> {
        let facts = |session: &Arc<Session>| {
            let slots = session.slots();
            let (held, target) = (slots.highest() + 1, slots.target_highest() + 1);
            NfsSessionFacts {
                id: session.id().0,
                client: session.client().clone(),
                age_seconds: now_ns.saturating_sub(session.made_ns()) / 1_000_000_000,
                weight: session.importance.weight().get(),
                slots: held,
                share: (target < held).then_some(target),
                in_flight: slots.running(),
                cached: slots.cached(),
                cached_bytes: slots.cached_bytes(),
            }
        };
        self.sessions.read().values().map(facts).collect()
    }

    /// Counts the table's content.
    pub(crate) fn counts(&self) -> NfsCounts {
        let sessions = self.sessions.read();
        let clients = self.clients.read().by_key.len();
        let cached_bytes = self.cache.bytes();
        let mut counts =
            NfsCounts { clients, sessions: sessions.len(), cached_bytes, ..NfsCounts::default() };
        for session in sessions.values() {
            let slots = session.slots();
            let (held, target) = (slots.highest() + 1, slots.target_highest() + 1);
            counts.slots += held as usize;
            counts.slots_owed += held.saturating_sub(target) as usize;
            if session.importance.weight().is_raised() {
                counts.important_sessions += 1;
                counts.important_slots += held as usize;
            }
        }
        counts
    }
}
