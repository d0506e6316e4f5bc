//! The end of leases, and courtesy: state of an expired client is kept until it conflicts with
//! another client.
//!
//! Invariants
//! * The durable record of a client is removed before any of its state is given to others, so that
//!   it cannot reclaim after a restart what it has lost (RFC 8881 8.4.2.1).

use super::{Client, ClientKey, ClientKind, ClientTable, Clients};
use crate::Result;
use crate::admit::ExpiredClients;
use crate::error::ServiceError;
use crate::hosts::{Host, Shared};
use crate::limits::{
    COURTESY_CLIENTS_MAX, COURTESY_FILES_MIN, COURTESY_FILES_SHARE, DELEGATIONS_MAX,
    ENDED_AT_ONCE_MAX, OPENS_MAX,
};
use crate::open::Clock;
use dafs_store::Wait;
use rustc_hash::FxHashMap;
use std::sync::{Arc, MutexGuard};

impl Clients {
    /// True when the lease is over: another client that needs conflicting state may have it.
    pub(crate) fn is_over(&self, client: &Client, now_ns: u64) -> bool {
        client.kind.has_lease() && client.idle_ns(now_ns) > self.state.config.lease_ns()
    }

    /// Ends leases that ran out, and returns the number of opens released.
    ///
    /// DAFS clients lose their state, and without a session their record too. NFS clients with
    /// state are kept by courtesy, as long as the configuration says and while they are few. DAFS
    /// clients with persistent locks are kept as well: those locks stay theirs until another client
    /// asks for them (DAFS 9.3).
    pub(crate) fn expire(&self, now_ns: u64) -> usize {
        let courtesy = self.state.config.courtesy_time.as_nanos();
        let courtesy_ns =
            u64::try_from(courtesy).unwrap_or(u64::MAX).max(self.state.config.lease_ns());
        let mut table = self.lock();
        table.prune_hosts();
        let over = |client: &&Arc<Client>| self.is_over(client, now_ns);
        let mut over: Vec<_> = table.by_key.values().filter(over).cloned().collect();
        over.retain(|client| {
            let forget = client.kind == ClientKind::Nfs && !client.is_confirmed();
            if forget {
                table.drop_record(client);
            }
            !forget
        });
        drop(table);
        // Those absent longest first.
        over.sort_by_key(|client| std::cmp::Reverse(client.idle_ns(now_ns)));
        let keeps = |client: &Arc<Client>| match client.kind {
            _ if client.idle_ns(now_ns) > courtesy_ns => false,
            ClientKind::Dafs => self.state.lock().keeps_locks(client),
            // A client without state would only make others wait after a restart.
            _ => self.state.lock().holds_anything(client.key),
        };
        let (mut kept, mut ending): (Vec<_>, Vec<_>) = over.into_iter().partition(keeps);
        ending.extend(thin_out(&mut kept, COURTESY_CLIENTS_MAX, |_| 1));
        // Frees descriptors that no client has asked for yet.
        for (shared, max) in [(Shared::Opens, OPENS_MAX), (Shared::Delegations, DELEGATIONS_MAX)] {
            let table = self.state.lock();
            let max = (max.min(table.files_max) / COURTESY_FILES_SHARE).max(COURTESY_FILES_MIN);
            ending.extend(thin_out(&mut kept, max, |client| table.held(client, shared)));
        }
        // The replaced clients are dropped after the table's lock is released.
        let before = std::mem::replace(&mut self.state.lock().expired, ExpiredClients::new(kept));
        drop(before);
        // In chunks, so that the end of many clients costs few writes.
        let some = ending.chunks(ENDED_AT_ONCE_MAX);
        let released = some.map(|some| self.end_leases(some, now_ns).unwrap_or(0)).sum();
        if released > 0 {
            tracing::info!(released, "leases have ended");
        }
        released
    }

    /// Returns the locked table of clients. Where `newcomer` names the host of a client to be
    /// added, that host has room for it. May wait for the disk, because absent clients make room.
    ///
    /// # Errors
    /// Those of [`make_room`](Self::make_room).
    pub(super) fn with_room(
        &self,
        newcomer: impl Fn(&ClientTable) -> Option<Host>,
        now_ns: u64,
        wait: Wait,
    ) -> Result<MutexGuard<'_, ClientTable>> {
        loop {
            let table = self.lock();
            let lacks_room = |host: &Host| !table.has_room(*host);
            let Some(host) = newcomer(&table).filter(lacks_room) else { return Ok(table) };
            let level = (table.least_to_lose(host), table.count_max());
            drop(table);
            self.make_room(Shared::Clients, level, now_ns, wait)?;
        }
    }

    /// Makes room for more of one kind: some expired clients lose their state, those absent longest
    /// first. Only hosts that have [at least `least`](crate::least_to_lose) lose any, where `max`
    /// is the bound of all.
    ///
    /// # Errors
    /// `Resource` when no absent client has any of it. `WouldWait`. `Delay` when the disk fails.
    pub fn make_room(
        &self,
        shared: Shared,
        (least, max): (usize, usize),
        now_ns: u64,
        wait: Wait,
    ) -> Result<()> {
        let clock = Clock { now_ns, lease_ns: self.state.config.lease_ns() };
        let expired = self.state.lock().expired_with(shared, (least, max), clock);
        if expired.is_empty() {
            return Err(ServiceError::Resource);
        }
        if wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        self.end_leases(&expired, now_ns).map(drop)
    }

    /// Lets the next tick end the leases of expired clients.
    pub(crate) fn expire_soon(&self, clients: Vec<Arc<Client>>) {
        let mut expiring = self.expiring.lock();
        for client in clients {
            if !expiring.iter().any(|known| Arc::ptr_eq(known, &client)) {
                expiring.push(client);
            }
        }
    }

    pub(crate) fn end_expiring_leases(&self, now_ns: u64) {
        let expiring = std::mem::take(&mut *self.expiring.lock());
        if self.end_leases(&expiring, now_ns).is_err() {
            self.expire_soon(expiring);
        }
    }

    /// Ends all state of a client whose lease is over, unless it has come back. Returns the number
    /// of opens released. May wait for the disk.
    ///
    /// # Errors
    /// `Delay` when its durable record cannot be removed.
    pub(crate) fn end_lease(&self, client: &Arc<Client>, now_ns: u64) -> Result<usize> {
        self.end_leases(std::slice::from_ref(client), now_ns)
    }

    /// Does the same for several clients, whose records are removed together.
    ///
    /// # Errors
    /// `Delay` when these cannot be removed.
    pub(crate) fn end_leases(&self, clients: &[Arc<Client>], now_ns: u64) -> Result<usize> {
        let recorded: Vec<bool> = clients.iter().map(|client| client.is_recorded()).collect();
        self.remove_records(clients).map_err(|_| ServiceError::Delay)?;
        let clients = clients.iter().zip(recorded);
        let end = |(client, recorded)| self.end_unrecorded(client, recorded, now_ns);
        Ok(clients.map(end).sum())
    }

    /// Does the same for a client whose record, if it was `recorded`, has just been removed.
    fn end_unrecorded(&self, client: &Arc<Client>, recorded: bool, now_ns: u64) -> usize {
        let mut table = self.lock();
        if client.is_gone() {
            // Another thread is ending it. To do it twice does no harm.
            drop(table);
            return self.release(client);
        }
        if !self.is_over(client, now_ns) {
            drop(table);
            if recorded {
                self.put_record(client);
            }
            return 0;
        }
        // The session of a DAFS client goes on, and finds its state-ids stale.
        if client.kind != ClientKind::Dafs || client.sessions() == 0 {
            table.drop_record(client);
        }
        drop(table);
        let released = self.release(client);
        if released > 0 {
            let client = client.name.escape_ascii();
            tracing::info!(%client, released, "lease has ended; state is revoked");
        }
        released
    }

    /// Ends all state of a client at once, and removes the client: by an administrator's command, or
    /// because it now proves to be another user.
    ///
    /// # Errors
    /// `StaleClientId` when there is none, `Delay` when its durable record cannot be removed.
    pub fn revoke(&self, key: ClientKey) -> Result<()> {
        let find = || self.lock().by_key.get(&key).cloned();
        let client = find().ok_or(ServiceError::StaleClientId)?;
        self.remove_record(&client).map_err(|_| ServiceError::Delay)?;
        let mut table = self.lock();
        table.drop_record(&client);
        drop(table);
        self.release(&client);
        Ok(())
    }

    /// Releases the state of a client. If the record is gone for good, its front end is notified.
    pub(crate) fn release(&self, client: &Arc<Client>) -> usize {
        let (ended, opens) = self.state.lock().release_client(client);
        self.state.finish(ended);
        if client.is_gone()
            && let Some(front) = client.take_front()
        {
            front.client_gone(client.key);
        }
        opens
    }
}

/// Takes clients out of a crowd that has more than `max`. The crowd begins with those absent
/// longest. The first ones go of hosts that have more than an equal part.
fn thin_out(
    crowd: &mut Vec<Arc<Client>>,
    max: usize,
    has: impl Fn(&Client) -> usize,
) -> Vec<Arc<Client>> {
    let mut of_host: FxHashMap<Host, usize> = FxHashMap::default();
    for client in &*crowd {
        *of_host.entry(client.host().host()).or_default() += has(client);
    }
    let all: usize = of_host.values().sum();
    let (mut excess, each) = (all.saturating_sub(max), max / of_host.len().max(1));
    if excess == 0 {
        return Vec::new();
    }
    let too_much = |client: &mut Arc<Client>| {
        let own = of_host.get_mut(&client.host().host()).filter(|own| **own > each && excess > 0);
        let Some((own, less)) = own.zip(Some(has(client)).filter(|has| *has > 0)) else {
            return false;
        };
        *own -= less;
        excess = excess.saturating_sub(less);
        true
    };
    crowd.extract_if(.., too_much).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Identity;
    use crate::hosts::HostUse;

    #[test]
    fn a_crowd_loses_those_of_its_largest_hosts_that_are_away_longest() {
        let client = |host| {
            let nobody = Identity { mechanism: "none", principal: Vec::new() };
            let host = Arc::new(HostUse::new(Host::User(host)));
            Client::new(ClientKey(1), ClientKind::Nfs, b"c", 1, nobody, host, 0)
        };
        let crowd: Vec<_> = [1, 2, 2, 2, 2, 3, 3, 1].map(client).to_vec();
        let mut left = crowd.clone();
        let gone = thin_out(&mut left, 6, |_| 1);
        assert!(gone.iter().zip(&crowd[1..3]).all(|(one, other)| Arc::ptr_eq(one, other)));
        assert_eq!((gone.len(), left.len()), (2, 6));
        assert!(thin_out(&mut left, 6, |_| 1).is_empty());
        assert_eq!(thin_out(&mut left, 0, |_| 1).len(), 6);
    }
}
