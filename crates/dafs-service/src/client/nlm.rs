//! Records of the lock managers of NFSv3 clients (NLM, X/Open C702 chapter 10).
//!
//! Invariants
//! * A name begins with the address of its host, so no host ends or uses the state of another by
//!   giving its name.
//! * A record without state is dropped when it was not used for the time of a lease.

use super::{Client, ClientAddress, ClientKey, ClientKind, ClientTable, Clients, Identity};
use crate::error::ServiceError;
use crate::front::Front;
use crate::hosts::Host;
use crate::limits::CLIENT_NAME_BYTES_MAX;
use crate::{Result, Service};
use dafs_store::Wait;
use std::sync::{Arc, Weak};

/// A lock manager that asks for a lock.
#[derive(Debug, Clone)]
pub struct LockManager<'a> {
    /// Its name, which begins with its address.
    pub name: &'a [u8],
    /// The address that it calls from.
    pub address: ClientAddress,
    /// The host whose share its state takes.
    pub host: Host,
}

impl Service {
    /// Makes or finds the record of a lock manager. `front` calls it when a lock is free.
    ///
    /// # Errors
    /// `Resource` when the name is too long or the host has its share of clients. `WouldWait` and
    /// `Delay` while absent clients make room.
    pub fn lock_manager(
        &self,
        manager: &LockManager<'_>,
        front: &Weak<dyn Front>,
        now_ns: u64,
        wait: Wait,
    ) -> Result<Arc<Client>> {
        let LockManager { name, address, host } = *manager;
        if name.len() > CLIENT_NAME_BYTES_MAX {
            return Err(ServiceError::Resource);
        }
        let of_host = |table: &ClientTable| (!table.nlm.contains_key(name)).then_some(host);
        let mut table = self.clients.with_room(of_host, now_ns, wait)?;
        if let Some(known) = table.nlm.get(name) {
            known.renew(now_ns);
            return Ok(known.clone());
        }
        let nobody = Identity { mechanism: "none", principal: Vec::new() };
        let client = table.enter_nlm(name, nobody, host, now_ns);
        client.set_front(front.clone());
        client.add_address(address);
        client.set_peer(address.ip.to_canonical().to_string());
        drop(table);
        self.clients.confirmed(&client);
        Ok(client)
    }
}

impl Clients {
    /// Finds the record of a lock manager by its name.
    pub fn lock_manager(&self, name: &[u8]) -> Option<Arc<Client>> {
        self.lock().nlm.get(name).cloned()
    }

    /// Finds the record of a lock manager by its key.
    pub fn lock_manager_of(&self, key: ClientKey) -> Option<Arc<Client>> {
        let table = self.lock();
        table.by_key.get(&key).filter(|client| client.kind() == ClientKind::Nlm).cloned()
    }

    /// The lock managers whose names begin with `prefix`, such as those of one host.
    pub fn lock_managers_at(&self, prefix: &[u8]) -> Vec<Arc<Client>> {
        let table = self.lock();
        let there = table.nlm.values().filter(|client| client.name().starts_with(prefix));
        there.cloned().collect()
    }

    /// The names of lock managers of the last run that have not come back, and are to be notified
    /// of the restart.
    pub fn awaited_lock_managers(&self) -> Vec<Vec<u8>> {
        let mut names = self.awaited(ClientKind::Nlm);
        let table = self.lock();
        names.retain(|name| !table.nlm.contains_key(name));
        names
    }

    /// Drops the records of lock managers without state that were not used for a while. One that may
    /// still reclaim stays, and one whose durable record could not be removed yet.
    pub(crate) fn forget_idle_lock_managers(&self, now_ns: u64) {
        let lease_ns = self.state.config.lease_ns();
        let mut table = self.lock();
        let idle = |client: &&Arc<Client>| {
            client.idle_ns(now_ns) > lease_ns
                && !client.is_recorded()
                && !(self.in_grace() && client.may_reclaim())
        };
        let mut idle: Vec<_> = table.nlm.values().filter(idle).cloned().collect();
        let state = self.state.lock();
        idle.retain(|client| !state.holds_anything(client.key()));
        idle.iter().for_each(|client| table.drop_record(client));
        drop((state, table));
        for client in idle {
            if let Some(front) = client.take_front() {
                front.client_gone(client.key());
            }
        }
    }
}
