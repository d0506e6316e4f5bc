//! Who is sure to hold what it has: whose lease cannot have ended.
//!
//! Invariant: a lease is counted from when an answered request was asked, which is before the server
//! has heard of it.

use super::vault::{Holder, Leases};
use crate::limits::LEASE;
use dafs_dat::Instant;

/// One client.
#[derive(Debug, Default, Clone)]
struct Lease {
    run: u64,
    alive: bool,
    until: Instant,
    /// It may have ended since the latest visit began.
    lapsed: bool,
    /// It may have ended at any time since the first answer.
    ever: bool,
}

/// The leases of all clients.
#[derive(Debug, Default)]
pub(crate) struct LeaseBook {
    clients: Vec<Lease>,
    now: Instant,
    /// Since when there is no server; no lease ends meanwhile.
    down: Option<Instant>,
}

impl LeaseBook {
    fn lease(&mut self, client: usize) -> &mut Lease {
        if self.clients.len() <= client {
            self.clients.resize(client + 1, Lease::default());
        }
        &mut self.clients[client]
    }

    /// Time goes on.
    pub(crate) fn at(&mut self, now: Instant) {
        self.now = now;
        if self.down.is_none() {
            for lease in &mut self.clients {
                lease.lapsed |= lease.until < now;
                lease.ever |= lease.until < now && lease.until > Instant(0);
            }
        }
    }

    /// A client is there with a new session; true when it is a new run.
    pub(crate) fn ready(&mut self, holder: Holder) -> bool {
        let lease = self.lease(holder.client);
        let new = lease.run != holder.run;
        (lease.run, lease.alive) = (holder.run, true);
        new
    }

    pub(crate) fn killed(&mut self, client: usize) {
        self.lease(client).alive = false;
    }

    /// A request that was asked at some time has been answered.
    pub(crate) fn renewed(&mut self, client: usize, asked: Instant) {
        let lease = self.lease(client);
        lease.until = lease.until.max(asked + LEASE);
    }

    /// Whether it may ever have lapsed.
    pub(crate) fn has_lapsed(&self, client: usize) -> bool {
        self.clients.get(client).is_some_and(|lease| lease.ever)
    }

    /// From now on it matters whether it lapses.
    pub(crate) fn visit(&mut self, client: usize) {
        let now = self.now;
        let lease = self.lease(client);
        lease.lapsed = lease.until < now;
    }

    pub(crate) fn server_ended(&mut self, now: Instant) {
        self.at(now);
        self.down = Some(now);
    }

    /// A new server waits for a lease for those whom the last one knew.
    pub(crate) fn server_started(&mut self, now: Instant) {
        if let Some(ended) = self.down.take() {
            let known = self.clients.iter_mut().filter(|lease| lease.until >= ended);
            known.for_each(|lease| lease.until = lease.until.max(now + LEASE));
        }
        self.at(now);
    }
}

impl Leases for LeaseBook {
    fn is_alive(&self, holder: Holder) -> bool {
        let lease = self.clients.get(holder.client);
        lease.is_some_and(|lease| lease.alive && lease.run == holder.run)
    }

    fn may_have_lapsed(&self, holder: Holder) -> bool {
        !self.is_alive(holder) || self.clients[holder.client].lapsed
    }
}
