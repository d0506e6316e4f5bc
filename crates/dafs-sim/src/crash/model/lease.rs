//! The leases of clients: a client certainly holds its locks while its lease cannot have expired.
//!
//! Invariant: a lease is counted from the time at which an answered request was sent, which is
//! before the server received it.

use super::vault::{Holder, Leases};
use crate::limits::LEASE;
use dafs_dat::Instant;

/// One client.
#[derive(Debug, Default, Clone)]
struct Lease {
    run: u64,
    alive: bool,
    until: Instant,
    /// It may have expired since the latest visit began.
    lapsed: bool,
    /// It may have expired at any time since the first answer.
    ever: bool,
}

/// The leases of all clients.
#[derive(Debug, Default)]
pub(crate) struct LeaseBook {
    clients: Vec<Lease>,
    now: Instant,
    /// The time since which the server is down; no lease expires meanwhile.
    down: Option<Instant>,
}

impl LeaseBook {
    fn lease(&mut self, client: usize) -> &mut Lease {
        if self.clients.len() <= client {
            self.clients.resize(client + 1, Lease::default());
        }
        &mut self.clients[client]
    }

    /// Advances the time.
    pub(crate) fn at(&mut self, now: Instant) {
        self.now = now;
        if self.down.is_none() {
            for lease in &mut self.clients {
                lease.lapsed |= lease.until < now;
                lease.ever |= lease.until < now && lease.until > Instant(0);
            }
        }
    }

    /// A client has a new session; returns true if it is a new run.
    pub(crate) fn ready(&mut self, holder: Holder) -> bool {
        let lease = self.lease(holder.client);
        let new = lease.run != holder.run;
        (lease.run, lease.alive) = (holder.run, true);
        new
    }

    pub(crate) fn killed(&mut self, client: usize) {
        self.lease(client).alive = false;
    }

    /// A request sent at `asked` has been answered.
    pub(crate) fn renewed(&mut self, client: usize, asked: Instant) {
        let lease = self.lease(client);
        lease.until = lease.until.max(asked + LEASE);
    }

    /// True if the lease may ever have expired.
    pub(crate) fn has_lapsed(&self, client: usize) -> bool {
        self.clients.get(client).is_some_and(|lease| lease.ever)
    }

    /// Begins a visit: an expiry from now on counts.
    pub(crate) fn visit(&mut self, client: usize) {
        let now = self.now;
        let lease = self.lease(client);
        lease.lapsed = lease.until < now;
    }

    pub(crate) fn server_ended(&mut self, now: Instant) {
        self.at(now);
        self.down = Some(now);
    }

    /// A new server has a grace period of one lease for the clients of the last one.
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
