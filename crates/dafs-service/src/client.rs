//! Clients: who they are, whether their lease runs, and their registered credentials.
//!
//! Invariants
//! * One name, one record. A client that comes back with a new verifier is a new instance: it gets
//!   a new key, and what the old one held is released at that moment (DAFS 4.1, case C).
//! * A name belongs to the mechanism and principal that used it first (DAFS O6).
//! * A key is a keyed hash of server instance, name and verifier, so that two sessions of a client
//!   that connect at once are told the same key, and a key changes when the server restarts.

use crate::error::ServiceError;
use crate::limits::{CLIENT_COUNT_MAX, CLIENT_NAME_BYTES_MAX};
use crate::metrics::Usage;
use crate::{Result, Service};
use dafs_store::Cred;
use rustc_hash::FxHashMap;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The server's short name of a client instance (DAFS client-id).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(pub u64);

/// How a client proved who it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The mechanism: "none", "text", later "gss".
    pub mechanism: &'static str,
    /// The proven name; empty for mechanism none.
    pub principal: Vec<u8>,
}

/// A client instance.
#[derive(Debug)]
pub struct Client {
    key: ClientKey,
    name: Vec<u8>,
    verifier: u64,
    identity: Identity,
    /// Time of the last request, in nanoseconds.
    renewed_ns: AtomicU64,
    sessions: AtomicU32,
    /// Set when the record has been replaced or removed.
    gone: AtomicBool,
    usage: Usage,
    /// Registered credentials, and by how many registrations.
    creds: Mutex<Vec<Option<(Cred, u32)>>>,
}

impl Client {
    /// Its key.
    pub fn key(&self) -> ClientKey {
        self.key
    }

    /// The name it gave itself.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// What was done for it.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// How it proved who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Renews all leases; any request does that (DAFS 9.1).
    pub fn renew(&self, now_ns: u64) {
        self.renewed_ns.store(now_ns, Ordering::Relaxed);
    }

    /// A session begins.
    pub fn session_started(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// A session is over.
    pub fn session_ended(&self) {
        let before = self.sessions.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a session ended that had not begun");
    }

    /// True when the record has been replaced by a newer instance.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Keeps a credential and returns its number, from 1. `None` when `max` are kept.
    pub fn register_cred(&self, cred: Cred, max: usize) -> Option<u32> {
        let mut creds = self.creds.lock().unwrap_or_else(PoisonError::into_inner);
        // The same credential again costs nothing: a client registers per session.
        let same = |slot: &Option<(Cred, u32)>| slot.as_ref().is_some_and(|(old, _)| *old == cred);
        if let Some(index) = creds.iter().position(same) {
            if let Some((_, count)) = &mut creds[index] {
                *count += 1;
            }
            return Some(index as u32 + 1);
        }
        let index = match creds.iter().position(Option::is_none) {
            Some(free) => free,
            None if creds.len() < max => {
                creds.push(None);
                creds.len() - 1
            }
            None => return None,
        };
        creds[index] = Some((cred, 1));
        Some(index as u32 + 1)
    }

    /// Takes one registration of a credential back, and forgets it with the last; false when there is
    /// none of that number.
    pub fn release_cred(&self, number: u32) -> bool {
        let mut creds = self.creds.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (number as usize).checked_sub(1).and_then(|index| creds.get_mut(index));
        let Some(slot) = slot else { return false };
        match slot {
            Some((_, count)) if *count > 1 => {
                *count -= 1;
                true
            }
            Some(_) => slot.take().is_some(),
            None => false,
        }
    }

    /// The credential of a number.
    pub fn cred(&self, number: u32) -> Option<Cred> {
        let creds = self.creds.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = creds.get((number as usize).checked_sub(1)?)?;
        slot.as_ref().map(|(cred, _)| cred.clone())
    }
}

/// What [`Service::register_client`] found.
#[derive(Debug, Clone)]
pub struct Registered {
    /// The record.
    pub client: Arc<Client>,
    /// True when an older instance was replaced and its state released.
    pub replaced: bool,
}

#[derive(Debug)]
pub(crate) struct ClientTable {
    instance: u32,
    by_name: FxHashMap<Vec<u8>, Arc<Client>>,
}

impl ClientTable {
    pub(crate) fn new(instance: u32) -> Self {
        Self { instance, by_name: FxHashMap::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}

impl Service {
    /// The key that a client of this name and verifier has or would get.
    pub fn client_key(&self, name: &[u8], verifier: u64) -> ClientKey {
        let instance = self.lock_clients().instance;
        let mut hasher = SipHasher24::new_with_keys(u64::from(instance), verifier);
        hasher.write(name);
        ClientKey(hasher.finish().max(1))
    }

    /// Makes or finds the record of a client that has proved who it is (the three client-id rules
    /// of DAFS 4.1), and starts its lease.
    ///
    /// # Errors
    /// `ClientInUse` when the name belongs to somebody else, `Resource` when the name is too long
    /// or the table is full of clients that are alive.
    pub fn register_client(
        &self,
        name: &[u8],
        verifier: u64,
        identity: Identity,
        now_ns: u64,
    ) -> Result<Registered> {
        if name.len() > CLIENT_NAME_BYTES_MAX {
            return Err(ServiceError::Resource);
        }
        let key = self.client_key(name, verifier);
        let mut table = self.lock_clients();
        let old = table.by_name.get(name).cloned();
        if let Some(old) = &old {
            if old.identity != identity {
                return Err(ServiceError::ClientInUse);
            }
            if old.verifier == verifier {
                old.renew(now_ns);
                return Ok(Registered { client: old.clone(), replaced: false });
            }
        } else if table.by_name.len() >= CLIENT_COUNT_MAX {
            return Err(ServiceError::Resource);
        }
        let client = Arc::new(Client {
            key,
            name: name.to_vec(),
            verifier,
            identity,
            renewed_ns: AtomicU64::new(now_ns),
            sessions: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            usage: Usage::default(),
            creds: Mutex::new(Vec::new()),
        });
        table.by_name.insert(name.to_vec(), client.clone());
        drop(table);
        if let Some(old) = &old {
            old.gone.store(true, Ordering::Relaxed);
            let ended = self.lock_opens().release_client(old.key);
            let released = ended.len();
            tracing::info!(client = %old.name.escape_ascii(), released, "client has restarted");
        }
        Ok(Registered { client, replaced: old.is_some() })
    }

    /// Ends leases that ran out: releases what those clients hold, and forgets clients without a
    /// session. Returns the number of opens released.
    pub fn expire(&self, now_ns: u64) -> usize {
        let lease_ns = u64::try_from(self.config.lease_time.as_nanos()).unwrap_or(u64::MAX);
        let mut table = self.lock_clients();
        let mut expired = Vec::new();
        table.by_name.retain(|_, client| {
            let renewed_ns = client.renewed_ns.load(Ordering::Relaxed);
            if now_ns.saturating_sub(renewed_ns) <= lease_ns {
                return true;
            }
            expired.push(client.clone());
            let keep = client.sessions.load(Ordering::Relaxed) > 0;
            client.gone.store(!keep, Ordering::Relaxed);
            keep
        });
        drop(table);
        if expired.is_empty() {
            return 0;
        }
        let mut ended = Vec::new();
        for client in &expired {
            // It may have come back in the meantime.
            let renewed_ns = client.renewed_ns.load(Ordering::Relaxed);
            if client.is_gone() || now_ns.saturating_sub(renewed_ns) > lease_ns {
                ended.append(&mut self.lock_opens().release_client(client.key));
            }
        }
        let released = ended.len();
        drop(ended);
        if released > 0 {
            tracing::info!(clients = expired.len(), released, "leases have ended");
        }
        released
    }
}
