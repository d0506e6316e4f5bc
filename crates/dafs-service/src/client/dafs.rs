//! Records of DAFS clients.
//!
//! Invariants
//! * A key is a keyed hash of name and verifier, with the secret of the server's run. So two
//!   sessions of a client that connect at once get the same key, and a key changes when the server
//!   restarts.

use super::{Client, ClientKey, ClientKind, ClientTable, Clients, Identity};
use crate::error::ServiceError;
use crate::hosts::Host;
use crate::limits::CLIENT_NAME_BYTES_MAX;
use crate::{Result, Service};
use dafs_store::Wait;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// The result of [`Service::register_client`].
#[derive(Debug, Clone)]
pub struct Registered {
    /// The record.
    pub client: Arc<Client>,
    /// True when an older instance was replaced and its state released.
    pub replaced: bool,
}

/// The place of a request to register among all of them. Registrations of one name take effect in
/// this order, however long each of them waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Arrival(u64);

/// An authenticated DAFS client that registers.
#[derive(Debug, Clone)]
pub struct Newcomer<'a> {
    /// The name that it has given itself.
    pub name: &'a [u8],
    /// The number of its instance.
    pub verifier: u64,
    /// Its principal.
    pub identity: Identity,
    /// Its host, with whose clients it shares the host's share.
    pub host: Host,
    /// The arrival of its request.
    pub arrival: Arrival,
}

impl Clients {
    /// Numbers a request to register that arrives now.
    pub fn arrival(&self) -> Arrival {
        Arrival(self.arrivals.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The key that a DAFS client of this name and verifier has or would get.
    pub fn key(&self, name: &[u8], verifier: u64) -> ClientKey {
        let [first, second] = self.state.config.secret;
        let mut hasher = SipHasher24::new_with_keys(first, second);
        // Keys of NFS clients are hashes with this secret, too.
        hasher.write_u8(ClientKind::Dafs as u8);
        hasher.write_u64(verifier);
        hasher.write(name);
        ClientKey(hasher.finish().max(1))
    }
}

impl Service {
    /// Makes or finds the record of an authenticated DAFS client (the three client-id rules of DAFS
    /// 4.1), and starts its lease. Waits for the disk when an instance is replaced, or comes back
    /// after a restart of the server.
    ///
    /// # Errors
    /// Those of [`register_newcomer`](Self::register_newcomer).
    pub fn register_client(
        &self,
        name: &[u8],
        verifier: u64,
        identity: Identity,
        host: Host,
        now_ns: u64,
    ) -> Result<Registered> {
        let arrival = self.clients.arrival();
        let newcomer = Newcomer { name, verifier, identity, host, arrival };
        self.register_newcomer(newcomer, now_ns, Wait::Allowed)
    }

    /// Does the same for a client whose request may have arrived some time ago.
    ///
    /// # Errors
    /// `WouldWait`, without any effect, for a caller that may not wait. `ClientInUse` when the name
    /// belongs to another principal. `StaleClientId` when another instance has registered whose
    /// request arrived later. `Resource` when the name is too long or the host has its share of
    /// clients.
    pub fn register_newcomer(
        &self,
        newcomer: Newcomer<'_>,
        now_ns: u64,
        wait: Wait,
    ) -> Result<Registered> {
        let Newcomer { name, verifier, identity, host, arrival } = newcomer;
        if name.len() > CLIENT_NAME_BYTES_MAX {
            return Err(ServiceError::Resource);
        }
        let key = self.clients.key(name, verifier);
        let of_host = |table: &ClientTable| (!table.dafs.contains_key(name)).then_some(host);
        let mut table = self.clients.with_room(of_host, now_ns, wait)?;
        let old = table.dafs.get(name).cloned();
        if let Some(old) = &old {
            if old.identity != identity {
                return Err(ServiceError::ClientInUse);
            }
            if old.verifier == verifier {
                old.renew(now_ns);
                old.arrival.fetch_max(arrival.0, Ordering::Relaxed);
                return Ok(Registered { client: old.clone(), replaced: false });
            }
            if old.arrival.load(Ordering::Relaxed) > arrival.0 {
                // It has waited while the next instance registered.
                return Err(ServiceError::StaleClientId);
            }
            if wait == Wait::Never && self.clients.records.keeps() {
                return Err(ServiceError::WouldWait);
            }
            // The old one is dropped before the new one can be recorded, so that it is no longer
            // the recorded one.
            table.drop_record(old);
        }
        let owner = (ClientKind::Dafs, name.to_vec());
        if self.clients.awaits_another(owner, |record| record.is_by(&identity)) {
            return Err(ServiceError::ClientInUse);
        }
        // An older instance may have left a record, or locks.
        let left = self.clients.is_awaited(name) || !self.state.lock().left_files.is_empty();
        if wait == Wait::Never && left {
            return Err(ServiceError::WouldWait);
        }
        let client = table.enter_dafs(key, name, verifier, identity, host, now_ns);
        client.arrival.store(arrival.0, Ordering::Relaxed);
        drop(table);
        self.replies.discard_others(&client);
        if let Some(old) = &old {
            self.clients.forget_record(old);
            let released = self.clients.release(old);
            tracing::info!(client = %old.name.escape_ascii(), released, "client has restarted");
        }
        // The instance that has replaced this one may have looked before the old one left its locks.
        let newest = self.clients.lock().dafs.get(name).cloned();
        self.locks.break_older(newest.as_ref().unwrap_or(&client), wait, now_ns);
        self.clients.confirmed(&client);
        Ok(Registered { client, replaced: old.is_some() })
    }
}

impl Clients {
    /// Returns the locked table of clients, unless another instance of this client has replaced it.
    pub(crate) fn not_replaced(&self, client: &Client) -> Option<MutexGuard<'_, ClientTable>> {
        let table = self.lock();
        let now = table.dafs.get(&client.name);
        let replaced = now
            .is_some_and(|now| now.identity == client.identity && now.verifier != client.verifier);
        if replaced { None } else { Some(table) }
    }
}
