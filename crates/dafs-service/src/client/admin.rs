//! The administrators' view of clients.

use super::{Client, ClientKey, ClientKind, Clients, Identity};
use crate::delegation::DelegationKind;
use crate::handle::Handle;
use crate::index::Held;
use crate::open::Share;
use crate::{Result, ServiceError};
use std::sync::Arc;

/// A client, for administrators.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    /// Its record, with its name, identity, address and usage.
    pub client: Arc<Client>,
    /// Nanoseconds since its last request.
    pub idle_ns: u64,
    /// True when its lease is over and its state is kept by courtesy.
    pub courtesy: bool,
    /// Its open files, counted once for each owner.
    pub opens: usize,
    /// Owners that have locked parts of a file.
    pub locks: usize,
    /// Its delegations.
    pub delegations: usize,
    /// Its layouts.
    pub layouts: usize,
}

/// One piece of state that a client holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Holding {
    Open {
        handle: Handle,
        owner: Vec<u8>,
        share: Share,
    },
    /// Ranges as first byte, length, and true for a write lock.
    Lock {
        handle: Handle,
        owner: Vec<u8>,
        ranges: Vec<(u64, u64, bool)>,
    },
    Delegation {
        handle: Handle,
        kind: DelegationKind,
        recalled: bool,
    },
    /// A layout for reading only, or for writing too.
    Layout {
        handle: Handle,
        write: bool,
        recalled: bool,
    },
}

impl ClientInfo {
    /// The client's kind.
    pub fn kind(&self) -> ClientKind {
        self.client.kind()
    }

    /// How the client authenticated.
    pub fn identity(&self) -> &Identity {
        self.client.identity()
    }
}

impl Clients {
    /// All clients, in the order of their keys.
    pub fn info(&self, now_ns: u64) -> Vec<ClientInfo> {
        let mut clients: Vec<_> = self.lock().by_key.values().cloned().collect();
        clients.sort_by_key(|client| client.key());
        let table = self.state.lock();
        let info = |client: Arc<Client>| {
            let held = table.by_client.get(&client.key());
            ClientInfo {
                idle_ns: client.idle_ns(now_ns),
                courtesy: client.kind() == ClientKind::Nfs && self.is_over(&client, now_ns),
                opens: held.map_or(0, |held| held.opens.len()),
                locks: held.map_or(0, |held| held.locks.len()),
                delegations: held.map_or(0, |held| held.delegations.len()),
                layouts: held.map_or(0, |held| held.layouts.len()),
                client,
            }
        };
        clients.into_iter().map(info).collect()
    }

    /// Returns up to `max` pieces of state that a client holds, in no order.
    ///
    /// # Errors
    /// `StaleClientId` when there is no such client.
    pub fn holdings(&self, key: ClientKey, max: usize) -> Result<Vec<Holding>> {
        if !self.lock().by_key.contains_key(&key) {
            return Err(ServiceError::StaleClientId);
        }
        let table = self.state.lock();
        let Some(held) = table.by_client.get(&key) else { return Ok(Vec::new()) };
        let ids = held.opens.iter().chain(&held.locks).chain(&held.delegations);
        let ids = ids.chain(&held.layouts);
        let show = |held: Held| match held {
            Held::Open(open) => Holding::Open {
                handle: *open.handle(),
                owner: open.owner().to_vec(),
                share: open.share(),
            },
            Held::Lock(lock) => {
                let file = table.files.get(&lock.open.key);
                let all = file.into_iter().flat_map(|file| file.locks.ranges.iter());
                let own = all.filter(|entry| entry.owner == lock.id);
                let ranges = own
                    .map(|entry| {
                        let writes = entry.kind == crate::LockKind::Write;
                        (entry.range.first, entry.range.length(), writes)
                    })
                    .collect();
                let (handle, owner) = (*lock.open.handle(), lock.owner.to_vec());
                Holding::Lock { handle, owner, ranges }
            }
            Held::Delegation(delegation) => Holding::Delegation {
                handle: delegation.handle,
                kind: delegation.kind,
                recalled: delegation.is_recalled(),
            },
            Held::Layout(layout) => layout.holding(),
        };
        Ok(ids.filter_map(|&id| table.index.find(id).ok()).take(max).map(show).collect())
    }
}
